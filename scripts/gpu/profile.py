#!/usr/bin/env python3
"""profile.py FILE: sums the raw page that ncu printed as CSV, by kernel, the dearest first."""
import csv
import sys
from collections import defaultdict

if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
    sys.exit(__doc__)
lines = [line for line in open(sys.argv[1], encoding="utf-8") if line.startswith('"')]
rows = list(csv.DictReader(lines))
NANOSECONDS = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}
BYTES = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
TIME, MOVED = "gpu__time_duration.sum", "dram__bytes.sum"
units, rows = rows[0], rows[1:]  # the first row holds the units
kernels = defaultdict(lambda: [0, 0.0, 0.0])
for row in rows:
    kernel = kernels[row["Kernel Name"]]
    kernel[0] += 1
    kernel[1] += float(row[TIME].replace(",", "")) * NANOSECONDS[units[TIME]] / 1e3
    kernel[2] += float(row[MOVED].replace(",", "")) * BYTES[units[MOVED]]
total = sum(time for _, time, _ in kernels.values())
print(f"{len(rows)} launches, {total:.0f} us")
print("launches   total us    each us   GB/s  kernel")
for name, (n, time, moved) in sorted(kernels.items(), key=lambda item: -item[1][1]):
    print(f"{n:>8} {time:>10.1f} {time / n:>10.2f} {moved / time / 1e3:>6.0f}  {name[:110]}")
