#!/usr/bin/env python3
"""Where the time of a decode step goes, from `prove trace`.

    trace.py TRACE.json

Every block of every step left the clock of its multiprocessor and the global timer (the record_ of
kernels/runtime/cuda/trace.cuh). Clocks are placed on the common time by the timer's readings of all
blocks of a multiprocessor. All columns are means in us over the steps of one kind, counted from the
moment when the last block of the step before has ended:

    stage    its own last block ends: what the step adds to the token
    first    its first block begins (negative: early)
    last     its last block begins
    waited   its first block has waited
    longest  the longest time from there (or from the block's begin) to the block's end
    middle   the same, of the block in the middle

A block ends when its first thread does. The first step has no predecessor and is left out.
"""
import json
import re
import statistics
import sys


def place(steps):
    """Times of every block in us: begun, waited or None, ended."""
    readings = {}
    for step in steps:
        for begun, _, ended, begun_ns, ended_ns, sm in step["blocks"]:
            readings.setdefault(sm, []).extend([(begun, begun_ns), (ended, ended_ns)])
    slopes = []
    for pairs in readings.values():
        first, last = min(pairs), max(pairs)
        if last[1] > first[1]:
            slopes.append((last[0] - first[0]) / (last[1] - first[1]))
    rate = statistics.median(slopes)  # cycles per ns
    origin = min(ns for pairs in readings.values() for _, ns in pairs)
    offset = {
        sm: statistics.mean(ns - origin - clock / rate for clock, ns in pairs)
        for sm, pairs in readings.items()
    }
    ticks = sorted({ns for pairs in readings.values() for _, ns in pairs})
    tick = min(b - a for a, b in zip(ticks, ticks[1:]))
    print(f"{rate:.3f} cycles per ns, {len(readings)} multiprocessors, timer in steps of {tick} ns")

    def at(clock, sm):
        return (clock / rate + offset[sm]) / 1000

    for step in steps:
        step["times"] = [
            (at(b, sm), at(w, sm) if w else None, at(e, sm)) for b, w, e, _, _, sm in step["blocks"]
        ]


def kind(step):
    return re.sub(r"^layers\.\d+\.|^layer \d+ ", "", re.sub(r"\.\d+\.", ".", step["step"]))


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    trace = json.load(open(sys.argv[1]))
    steps = trace["steps"]
    place(steps)
    rows = {}
    end = None
    for step in steps:
        times = step["times"]
        last = max(e for _, _, e in times)
        if end is not None:
            waits = [w for _, w, _ in times if w is not None]
            busy = sorted(e - max(b, w or b) for b, w, e in times)
            row = (
                last - end,
                min(b for b, _, _ in times) - end,
                max(b for b, _, _ in times) - end,
                min(waits) - end if waits else 0.0,
                busy[-1],
                busy[len(busy) // 2],
            )
            rows.setdefault(kind(step), (len(times), []))[1].append(row)
        end = last
    print(f"{trace['us_per_token']:.0f} us per token with the trace")
    print(f"{'step':<36} {'n':>3} {'blocks':>6} {'sum':>6}  stage  first   last waited longest middle")
    total = 0.0
    for name, (blocks, values) in sorted(rows.items(), key=lambda r: -sum(v[0] for v in r[1][1])):
        means = [statistics.mean(column) for column in zip(*values)]
        spent = means[0] * len(values)
        total += spent
        cells = " ".join(f"{m:6.2f}" for m in means)
        print(f"{name:<36} {len(values):>3} {blocks:>6} {spent:>6.0f} {cells}")
    print(f"{'sum':<36} {'':>10} {total:>6.0f}")


main()
