import assert from "node:assert/strict";
import { test } from "node:test";

import { EventStream } from "../src/sse.js";

const bytes = (text) => new TextEncoder().encode(text);

const STREAM =
  ': prefill 1/2\r\n\r\ndata: {"a":"ď 👋 日"}\n\nevent: x\rdata:one\rdata: two\r\rid: 3\n\ndata\n\ndata:  spaced\r\n\r\n';
const EVENTS = [
  { comment: "prefill 1/2" },
  { data: '{"a":"ď 👋 日"}' },
  { data: "one\ntwo" },
  { data: "" },
  { data: " spaced" },
];

test("a stream in one piece gives its events and comments in order", () => {
  assert.deepEqual(new EventStream().push(bytes(STREAM)), EVENTS);
});

test("a stream may be cut in two anywhere, also within a character", () => {
  const all = bytes(STREAM);
  for (let at = 0; at <= all.length; at += 1) {
    const stream = new EventStream();
    const events = [...stream.push(all.subarray(0, at)), ...stream.push(all.subarray(at))];
    assert.deepEqual(events, EVENTS, `cut at ${at}`);
  }
});

test("a stream may come byte by byte", () => {
  const stream = new EventStream();
  const events = [...bytes(STREAM)].flatMap((byte) => stream.push(Uint8Array.of(byte)));
  assert.deepEqual(events, EVENTS);
});

test("an event without its empty line is not an event yet", () => {
  const stream = new EventStream();
  assert.deepEqual(stream.push(bytes("data: half\n")), []);
  assert.deepEqual(stream.push(bytes("\n")), [{ data: "half" }]);
});

test("bytes that are no UTF-8 do not end the stream", () => {
  const stream = new EventStream();
  const broken = [...bytes("data: a"), 0xff, ...bytes("b\n\n")];
  assert.deepEqual(stream.push(Uint8Array.from(broken)), [{ data: "a\ufffdb" }]);
});

test("a line separator of Unicode is no line end", () => {
  const line = "data: a\u2028b\u2029c\u0085d\n\n";
  assert.deepEqual(new EventStream().push(bytes(line)), [{ data: "a\u2028b\u2029c\u0085d" }]);
});
