// Server-sent events out of the chunks of a response body.

/**
 * Reads an event stream that may be cut anywhere, also within a character or
 * between the two halves of a line end.
 */
export class EventStream {
  #decoder = new TextDecoder();
  #line = "";
  #data = [];
  #afterReturn = false;

  /**
   * Takes the next bytes; returns what they complete, in order: `{data}` for an
   * event, `{comment}` for a comment line.
   */
  push(bytes) {
    return this.#read(this.#decoder.decode(bytes, { stream: true }));
  }

  #read(text) {
    // The second half of a line end whose first half ended the last chunk.
    if (this.#afterReturn && text.startsWith("\n")) {
      text = text.slice(1);
      this.#afterReturn = false;
    }
    if (text === "") return [];
    this.#afterReturn = text.endsWith("\r");
    const lines = text.split(/\r\n|\n|\r/);
    lines[0] = this.#line + lines[0];
    this.#line = lines.pop();
    return lines.flatMap((line) => this.#complete(line));
  }

  #complete(line) {
    if (line === "") {
      const data = this.#data;
      this.#data = [];
      return data.length > 0 ? [{ data: data.join("\n") }] : [];
    }
    if (line.startsWith(":")) return [{ comment: line.slice(1).trim() }];
    const [, field, value] = /^([^:]*):? ?(.*)$/su.exec(line);
    if (field === "data") this.#data.push(value);
    return [];
  }
}
