#!/usr/bin/env python3
"""Makes the tables of docs/performance.md from the plan (`lily plan --json`) and the figures below.

  scripts/performance.py --model DIR [--lily target/release/lily] [--write docs/performance.md]

DIR needs the config.json of Qwen3.6-35B-A3B in the MLX 4-bit format, no weights. Without --write the
tables are printed; with it they replace those between `<!-- table NAME -->` and `<!-- end -->`.
"""
import argparse
import json
import re
import subprocess
from collections import defaultdict

CONTEXT = 139264  # room for 128K tokens and a chunk
LENGTHS = [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]
SHOWN = [512, 4096, 32768, 131072]
CHUNK = 4096

# One H200: read bandwidth and bf16 products as measured, f32 as NVIDIA states it (the scan).
H200 = {"bandwidth": 4.42e12, "matrix": 793e12, "vector": 67e12}
# Tokens per second on it (docs/h200.md).
H200_DECODE = {512: 944, 4096: 913, 32768: 753, 131072: 479}
H200_PREFILL = {512: 25200, 4096: 39930, 32768: 30080, 131072: 16070}
# Microseconds that all steps of a kind add to a token after 512 tokens (prove.sh trace).
DECODE_US = {
    "linear_attn.in_proj": 150, "linear_attn.mix": 130, "linear_attn.out_proj + self_attn.o_proj": 120,
    "mlp.gates": 90, "mlp.routed_swiglu": 270, "mlp.routed_down": 135, "self_attn.qkv_proj": 35,
    "self_attn.split": 51, "self_attn.merge": 34, "lm_head": 66, "argmax + advance": 5,
}
# Microseconds of all launches of a kind in one run, one by one under ncu (caches flushed before each).
PREFILL_US = {  # (chunk of 4095 rows, chunk of 511 rows); launches of four layers, times how often there are such layers
    "linear_attn.gated_delta": (13413, 1829),
    "mlp.switch_mlp.swiglu": (22588, 6117),
    "mlp.switch_mlp.down_proj": (13201, 3372),
    "linear_attn.in_proj_qkv + self_attn.q_proj": (17039, 2332),
    "linear_attn.out_proj + self_attn.o_proj": (9268, 1673),
    "linear_attn.in_proj_z": (6627, 940),
    "self_attn.attention": (5627, 524),
    "mlp.shared_expert.swiglu": (2519, 873),
    "mlp.shared_expert.down_proj": (1380, 328),
    "mlp.combine": (3405, 508),
    "linear_attn.conv": (2191, 371),
    "mlp.gate": (830, 777),
    "linear_attn.in_proj_b + linear_attn.in_proj_a": (708, 660),
    "mlp.shared_expert_gate": (418, 366),
    "linear_attn.norm": (1303, 243),
    "input_layernorm + post_attention_layernorm": (1126, 372),
    "self_attn.k_proj + self_attn.v_proj": (623, 380),
    "mlp.group + mlp.route": (1125, 380),
    "self_attn.rope_append": (416, 96),
    "embed + last_row + norm + lm_head": (150, 97),
}

# Apple: GB/s, GPU cores, f32 TFLOP/s, GB of memory sold. From M5 on the tensor units multiply.
CHIPS = {
    "M1": (68, 8, 2.6, "8, 16"), "M1 Pro": (200, 16, 5.3, "16, 32"), "M1 Max": (400, 32, 10.6, "32, 64"),
    "M1 Ultra": (800, 64, 21.0, "64, 128"),
    "M2": (100, 10, 3.6, "8, 16, 24"), "M2 Pro": (200, 19, 6.8, "16, 32"),
    "M2 Max": (400, 38, 13.6, "32, 64, 96"), "M2 Ultra": (800, 76, 27.0, "64, 128, 192"),
    "M3": (100, 10, 3.6, "8, 16, 24"), "M3 Pro": (150, 18, 6.4, "18, 36"),
    "M3 Max, 30 cores": (300, 30, 10.6, "36, 96"), "M3 Max, 40 cores": (400, 40, 14.1, "48, 64, 128"),
    "M3 Ultra": (819, 80, 28.2, "96, 256, 512"),
    "M4": (120, 10, 4.5, "16, 24, 32"), "M4 Pro": (273, 20, 9.0, "24, 48, 64"),
    "M4 Max, 32 cores": (410, 32, 14.4, "36"), "M4 Max, 40 cores": (546, 40, 18.0, "48, 64, 128"),
    "M5": (153.6, 10, 4.0, "16, 24, 32"), "M5 Pro": (307, 20, 8.1, "24, 48, 64"),
    "M5 Max, 32 cores": (460, 32, 12.9, "36"), "M5 Max, 40 cores": (614, 40, 16.2, "48, 64, 128"),
}
M5_MAX = "M5 Max, 40 cores"
SIMDGROUP_SHARE = 0.8  # of the f32 rate, what 8x8 simdgroup matrices reach
TENSOR_PER_CORE = 45 / 40  # TFLOP/s: the best f16 product reported on an M5 Max, of some 66 to 70 peak

# Tokens per second on an M5 Max (40 cores, 128 GB), published: Lily decode, MLX decode, Lily prefill, MLX prefill.
PUBLISHED = {
    256: (194.7, 148.5, 2866.6, 2536.4), 512: (193.8, 149.5, 3859.9, 3309.5),
    1024: (193.3, 148.1, 4734.6, 4471.7), 2048: (190.4, 147.6, 5274.3, 5121.9),
    4096: (182.8, 145.6, 5724.4, 5165.7), 8192: (180.5, 136.8, 5457.6, 5031.8),
    16384: (167.0, 129.6, 4968.5, 4722.5), 32768: (151.1, 118.2, 3927.5, 3963.7),
    65536: (125.4, 98.5, 2752.5, 3051.1), 131072: (92.7, 75.0, 1792.7, 2237.5),
}
PUBLISHED_STAGES = 555  # of a decode step of the published Lily

# Metal's tuning under NVRTC 13: registers and threads as the test prints them, bytes of threadgroup
# memory from the assembler's log, threadgroups of one step by the launch (prefill: of 4096 rows).
KERNELS = [
    ("decode", "stacked_matvec (in_proj)", 80, 256, 10272, 386),
    ("decode", "stacked_matvec (qkv_proj)", 80, 256, 10272, 288),
    ("decode", "stacked_matvec (gates, 8-bit)", 80, 64, 10248, 129),
    ("decode", "stacked_matvec (lm_head)", 80, 256, 10272, 7760),
    ("decode", "matvec (out_proj, o_proj)", 55, 512, 20480, 128),
    ("decode", "delta_mix", 94, 512, 2048, 32),
    ("decode", "routed_gated_matvec", 56, 256, 10276, 576),
    ("decode", "routed_down", 56, 288, 360, 512),
    ("decode", "attention_split, bf16 cache", 99, 256, 27648, 128),
    ("decode", "attention_split, f32 cache", 123, 256, 27648, 128),
    ("decode", "attention_merge", 32, 256, 4416, 64),
    ("prefill", "matmul (64 x 64)", 99, 128, 18432, 8192),
    ("prefill", "gated_matmul (shared expert)", 121, 128, 18432, 1024),
    ("prefill", "expert_gated_matmul (32 rows)", 94, 128, 23040, 10240),
    ("prefill", "expert_matmul (32 rows)", 95, 128, 23040, 20480),
    ("prefill", "attention_prefill", 99, 256, 10240, 2048),
    ("prefill", "gated_delta (scan)", 128, 128, 9472, 128),
    ("prefill", "conv, norms, rope, combine, routing", 34, 256, 4096, 0),
]
# 16-bit registers of a thread -> threads of a core, M1 and M2 (Mesa's AGX driver).
RESIDENT = [(104, 1024), (112, 896), (128, 832), (136, 768), (144, 704), (160, 640), (184, 576), (208, 512),
            (232, 448), (256, 384)]
THREADGROUP_SRAM = 60 << 10  # of a core, M1 and M2

FIELDS = ["weight_bytes", "state_bytes", "kv_bytes", "activation_bytes", "flops"]


class Plans:
    """Work of each kind of step, by what the name says after its layer."""

    def __init__(self, lily, model):
        self.lily, self.model, self.known = lily, model, {}

    def raw(self, phase, rows, position, device="metal"):
        key = (phase, rows, position, device)
        if key not in self.known:
            command = [self.lily, "plan", "--json", "--model-path", self.model, "--phase", phase, "--rows", str(rows),
                       "--position", str(position), "--context", str(CONTEXT), "--kv-cache", "bf16", "--device", device]
            try:
                ran = subprocess.run(command, capture_output=True, text=True)
            except OSError as error:
                raise SystemExit(f"{self.lily}: {error.strerror}; --lily names the program") from None
            if ran.returncode != 0:
                raise SystemExit(ran.stderr.strip())
            self.known[key] = json.loads(ran.stdout)
        return self.known[key]

    def kinds(self, phase, rows, position, device="metal"):
        kinds = defaultdict(lambda: dict.fromkeys(FIELDS + ["steps"], 0))
        for step in self.raw(phase, rows, position, device)["work"]:
            kind = kinds[re.sub(r"^layers\.\d+\.", "", step["name"])]
            kind["steps"] += 1
            for field in FIELDS:
                kind[field] += step[field]
        return dict(kinds)

    def chunks(self, length, chunk=CHUNK):
        """The chunks of a prompt. Work is linear in the position, so two plans tell all."""
        rows = min(length, chunk)
        first, last = (self.kinds("prefill", rows, at) for at in (0, length - rows))
        count = length // rows
        for i in range(count):
            share = i / max(count - 1, 1)
            yield {kind: {f: first[kind][f] + share * (last[kind][f] - first[kind][f]) for f in first[kind]}
                   for kind in first}


def moved(work, activations=True):
    """Bytes: state is read and written; activations of a decode step stay in caches."""
    return (work["weight_bytes"] + 2 * work["state_bytes"] + work["kv_bytes"]
            + (work["activation_bytes"] if activations else 0))


def floor(kind, work, machine, activations=True):
    """Seconds that the bytes or the operations of a step take at least."""
    vector = any(word in kind for word in ("gated_delta", "mix", "conv", "combine", "merge"))
    rate = machine["vector" if vector else "matrix"]
    return max(moved(work, activations) / machine["bandwidth"], work["flops"] / rate)


def prefill_floor(plans, length, machine, chunk=CHUNK):
    return sum(floor(kind, work, machine) for chunk in plans.chunks(length, chunk) for kind, work in chunk.items())


def decode_bytes(plans, length):
    return sum(moved(work, False) for work in plans.kinds("decode", 1, length).values())


def apple(name):
    bandwidth, cores, f32, _ = CHIPS[name]
    matrix = TENSOR_PER_CORE * cores if name.startswith("M5") else SIMDGROUP_SHARE * f32
    return {"bandwidth": bandwidth * 1e9, "matrix": matrix * 1e12, "vector": f32 * 1e12}


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def short(length):
    return f"{length // 1024}K" if length >= 1024 else str(length)


def figures(number):
    """Three figures of a number of tokens per second or the like."""
    if number >= 1000:
        return f"{round(number, -1 if number < 10000 else -2):,.0f}"
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def megabytes(number):
    return "" if number < 5e3 else f"{number / 1e6:.2f}" if number < 1e7 else f"{number / 1e6:.0f}"


def decode_steps(plans):
    at = {length: plans.kinds("decode", 1, length) for length in SHOWN}
    rows = []
    for kind, work in at[512].items():
        state, flops = 2 * work["state_bytes"], work["flops"] / 1e6
        rows.append([f"`{kind}`", work["steps"], megabytes(work["weight_bytes"]), megabytes(state),
                     megabytes(work["activation_bytes"]), f"{flops:.0f}" if flops else ""])
        if kind == "self_attn.split":
            rows[-1][3] = "KV"
    return table(["step", "steps", "weights MB", "state, both ways MB", "activations MB", "MFLOP"], rows)


def decode_totals(plans):
    rows = []
    for length in SHOWN:
        plan = plans.raw("decode", 1, length)
        total = decode_bytes(plans, length)
        rows.append([short(length), f"{plan['weight_bytes'] / 1e9:.3f}", f"{2 * plan['state_bytes'] / 1e9:.3f}",
                     f"{plan['kv_bytes'] / 1e9:.3f}", f"**{total / 1e9:.3f}**", f"{plan['flops'] / 1e9:.2f}",
                     f"{plan['flops'] / total:.1f}"])
    return table(["tokens before", "weights GB", "state GB", "KV GB", "sum GB", "GFLOP", "FLOP/byte"], rows)


def prefill_steps(plans):
    small, large = (plans.kinds("prefill", rows, 0) for rows in (512, CHUNK))
    rows = []
    for kind, work in large.items():
        cells = [f"`{kind}`", work["steps"]]
        for each in (small[kind], work):
            cells += [megabytes(moved(each) - each["activation_bytes"]), megabytes(each["activation_bytes"]),
                      f"{each['flops'] / 1e9:.0f}" if each["flops"] >= 5e8 else ""]
        rows.append(cells + [f"{work['flops'] / moved(work):.0f}" if work["flops"] else ""])
    half = ["activations MB", "GFLOP"]
    return table(["step", "steps", "512 rows: memory MB", *half, "4096 rows: memory MB", *half, "FLOP/byte"], rows)


def prefill_totals(plans):
    rows = []
    for length in SHOWN:
        for chunk in (512, 4096):
            if chunk > length:
                continue
            chunks = list(plans.chunks(length, chunk))
            total = {f: sum(work[f] for kinds in chunks for work in kinds.values()) / length for f in FIELDS}
            attention = sum(kinds["self_attn.attention"]["flops"] for kinds in chunks) / length
            rows.append([short(length), chunk, f"{total['weight_bytes'] / 1e6:.1f}", f"{total['kv_bytes'] / 1e6:.2f}",
                         f"{total['activation_bytes'] / 1e6:.1f}", f"{attention / 1e9:.2f}",
                         f"{(total['flops'] - attention) / 1e9:.2f}", f"**{total['flops'] / 1e9:.2f}**"])
    return table(["prompt", "chunk", "weights MB", "KV MB", "activations MB", "attention GFLOP", "other GFLOP",
                  "GFLOP"], rows)


def group(kinds, names, machine, activations):
    steps, bound, flops, total = 0, 0.0, 0, 0
    for name in names.split(" + "):
        work = kinds[name]
        steps += work["steps"]
        flops += work["flops"]
        total += moved(work, activations)
        bound += floor(name, work, machine, activations)
    return steps, bound * 1e6, flops, total


def h200_decode(plans):
    kinds = plans.kinds("decode", 1, 512, "cuda")
    rows, sums = [], [0, 0.0, 0.0]
    for names, measured in sorted(DECODE_US.items(), key=lambda item: -item[1]):
        steps, bound, _, total = group(kinds, names, H200, False)
        sums = [sums[0] + steps, sums[1] + bound, sums[2] + measured]
        rows.append([f"`{names}`", steps, f"{bound:.0f}", f"{measured:.0f}", f"{measured - bound:.0f}",
                     f"{measured / steps:.1f}", f"{total / measured / 1e6:.2f}"])
    rows.append(["sum", sums[0], f"{sums[1]:.0f}", f"{sums[2]:.0f}", f"{sums[2] - sums[1]:.0f}", "", ""])
    return table(["step", "steps", "floor us", "adds us", "gap us", "us each", "TB/s"], rows)


def h200_prefill(plans):
    rows, sums = [], [0.0] * 4
    large, small = (plans.kinds("prefill", n, 0, "cuda") for n in (CHUNK, 512))
    for names, (of_large, of_small) in sorted(PREFILL_US.items(), key=lambda item: -item[1][0]):
        steps, bound, flops, _ = group(large, names, H200, True)
        _, small_bound, _, _ = group(small, names, H200, True)
        for i, number in enumerate((bound, of_large, small_bound, of_small)):
            sums[i] += number / 1e3
        rate = f"{flops / of_large / 1e6:.0f}" if flops > 1e11 else ""
        rows.append([f"`{names}`", steps, f"{bound / 1e3:.2f}", f"{of_large / 1e3:.2f}", rate,
                     f"{small_bound / 1e3:.2f}", f"{of_small / 1e3:.2f}"])
    rows.append(["sum", "", f"{sums[0]:.1f}", f"{sums[1]:.1f}", "", f"{sums[2]:.1f}", f"{sums[3]:.1f}"])
    head = ["step", "steps", "4096 rows: floor ms", "measured", "TFLOP/s", "512 rows: floor ms", "measured"]
    return table(head, rows)


def h200_totals(plans):
    rows = []
    for length in SHOWN:
        token = decode_bytes(plans, length) / H200["bandwidth"]
        prompt = prefill_floor(plans, length, H200) / length
        decode, prefill = H200_DECODE[length], H200_PREFILL[length]
        rows.append([short(length), figures(1 / token), decode, f"{decode * token * 100:.0f} %",
                     figures(1 / prompt), f"{prefill:,}", f"{prefill * prompt * 100:.0f} %"])
    return table(["tokens", "decode at the floor", "measured", "", "prefill at the floor", "measured", ""], rows)


def m5_decode(plans):
    machine = apple(M5_MAX)
    rows = []
    for length in LENGTHS:
        total = decode_bytes(plans, length)
        roof = machine["bandwidth"] / total
        lily, mlx = PUBLISHED[length][:2]
        rows.append([f"{length:,}", f"{total / 1e9:.2f}", f"{roof:.0f}", lily, f"{lily / roof * 100:.0f} %", mlx,
                     f"{mlx / roof * 100:.0f} %"])
    return table(["tokens", "GB per token", "roofline", "Lily", "of it", "MLX-LM", "of it"], rows)


def m5_prefill(plans):
    machine = apple(M5_MAX)
    rows = []
    for length in LENGTHS:
        flops = sum(work["flops"] for kinds in plans.chunks(length) for work in kinds.values()) / length
        bound = length / prefill_floor(plans, length, machine)
        lily, mlx = PUBLISHED[length][2:]
        rows.append([f"{length:,}", f"{flops / 1e9:.2f}", figures(bound), f"{lily:,.0f}",
                     f"{lily * flops / 1e12:.0f}", f"{lily / bound * 100:.0f} %", f"{mlx:,.0f}",
                     f"{mlx * flops / 1e12:.0f}", f"{mlx / bound * 100:.0f} %"])
    return table(["prompt", "GFLOP per token", "floor", "Lily", "TFLOP/s", "of it", "MLX-LM", "TFLOP/s", "of it"],
                 rows)


def fit(plans, engine):
    """Seconds of a token as a + bytes / b, least squares over the ten lengths."""
    xs = [decode_bytes(plans, length) for length in LENGTHS]
    ys = [1 / PUBLISHED[length][engine] for length in LENGTHS]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((a - x) * (b - y) for a, b in zip(xs, ys)) / sum((a - x) ** 2 for a in xs)
    return y - slope * x, 1 / slope


def m5_fit(plans):
    rows = []
    for name, engine in (("Lily", 0), ("MLX-LM", 1)):
        fixed, speed = fit(plans, engine)
        worst = max(abs(fixed + decode_bytes(plans, n) / speed - 1 / PUBLISHED[n][engine]) * PUBLISHED[n][engine]
                    for n in LENGTHS)
        rows.append([name, f"{fixed * 1e3:.2f}", f"{speed / 1e9:.0f}", f"{speed / 614e9 * 100:.0f} %",
                     f"{worst * 100:.1f} %"])
    fixed, speed = fit(plans, 0)
    stages = plans.raw("decode", 1, 512)["stages"]
    guess = [1 / (fixed * stages / PUBLISHED_STAGES + decode_bytes(plans, n) / speed) for n in SHOWN]
    said = ", ".join(f"{speed:.0f} at {short(n)}" for n, speed in zip(SHOWN, guess))
    return (table(["engine", "fixed ms per token", "GB/s beyond", "of 614", "worst miss"], rows)
            + f"\n\nThe same with {stages} stages in place of {PUBLISHED_STAGES}, each as dear: {said} tokens/s.")


def span(low, high):
    low, high = figures(low), figures(high)
    return low if low == high else f"{low} to {high}"


def chips_decode(plans):
    """Both published engines by their fit, with the bandwidth of the chip."""
    rows, fits = [], [fit(plans, engine) for engine in (1, 0)]
    for name, (bandwidth, *_) in CHIPS.items():
        cells = [name, bandwidth, CHIPS[name][3]]
        for length in (512, 32768, 131072):
            total = decode_bytes(plans, length)
            slow, fast = (1 / (fixed + total / (speed / 614 * bandwidth)) for fixed, speed in fits)
            cells += [figures(bandwidth * 1e9 / total), span(slow, fast)]
        rows.append(cells)
    return table(["chip", "GB/s", "memory GB", "512: roofline", "expected", "32K: roofline", "expected",
                  "128K: roofline", "expected"], rows)


def chips_prefill(plans):
    """Both published engines by the fraction of the floor's speed that they reach at this length."""
    rows = []
    for name, (_, cores, f32, _) in CHIPS.items():
        machine = apple(name)
        cells = [name, cores, f32, f"{machine['matrix'] / 1e12:.1f}"]
        for length in (512, 4096, 32768):
            roof, best = (length / prefill_floor(plans, length, each) for each in (machine, apple(M5_MAX)))
            slow, fast = sorted(speed / best * roof for speed in PUBLISHED[length][2:])
            cells += [figures(roof), span(slow, fast)]
        rows.append(cells)
    return table(["chip", "GPU cores", "f32 TFLOP/s", "products TFLOP/s", "512: floor", "expected", "4K: floor",
                  "expected", "32K: floor", "expected"], rows)


def memory(plans):
    plan = plans.raw("decode", 1, 512)
    fixed = plan["memory"]["weights"] + plan["memory"]["state"]
    # Scratch of the prefill chunk: the plan's own.
    needs = {}
    for name, length, element, chunk in (("4K bf16", 4096, 1, 512), ("32K bf16", 32768, 1, 512),
                                         ("32K f32", 32768, 2, 512), ("128K bf16", 131072, 1, 512),
                                         ("128K f32", 131072, 2, 512), ("32K bf16, chunks of 4096", 32768, 1, 4096)):
        scratch = plans.raw("prefill", chunk, 0)["arena_bytes"]
        needs[name] = fixed + scratch + length * element * plan["kv_bytes_per_token"]
    rows = [["needs", "", *(f"{need / 1e9:.1f}" for need in needs.values())]]
    for size in (16, 18, 24, 32, 36, 48, 64):  # macOS lets the GPU have about this share
        low, high = (0.65, 0.70) if size <= 36 else (0.75, 0.75)
        low, high = (share * size * 2**30 for share in (low, high))
        fits = ["yes" if need + 5e8 <= low else "perhaps" if need <= high else "no" for need in needs.values()]
        limit = f"{low / 1e9:.1f} to {high / 1e9:.1f}" if low < high else f"{low / 1e9:.1f}"
        rows.append([f"{size} GB", limit, *fits])
    return table(["memory", "GPU may use, GB", *needs], rows)


def occupancy(_):
    rows = []
    for phase, name, registers, threads, memory_bytes, grid in KERNELS:
        halves = 2 * registers
        resident = next((count for limit, count in RESIDENT if halves <= limit), 0)
        by_registers = resident // threads
        by_memory = THREADGROUP_SRAM // memory_bytes if memory_bytes else by_registers + 1
        groups = min(by_registers, by_memory, 32)
        bound = "registers" if by_registers <= by_memory else "memory"
        if by_registers == 0:  # A threadgroup is resident as a whole.
            bound = f"over: {max(limit for limit, count in RESIDENT if count >= threads) // 2} at most"
        elif groups * threads >= 1000:
            bound = ""
        rows.append([phase, f"`{name}`", registers, threads, f"{memory_bytes / 1024:.1f}", grid or "", resident,
                     groups, groups * threads // 32, bound])
    return table(["", "kernel", "registers", "threads", "memory KB", "threadgroups in all",
                  "threads a core holds", "threadgroups a core holds", "simdgroups", "bound by"], rows)


TABLES = [decode_steps, decode_totals, prefill_steps, prefill_totals, h200_totals, h200_decode, h200_prefill,
          m5_decode, m5_fit, m5_prefill, chips_decode, chips_prefill, memory, occupancy]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lily", default="target/release/lily")
    parser.add_argument("--model", required=True)
    parser.add_argument("--write", metavar="DOCUMENT")
    args = parser.parse_args()
    plans = Plans(args.lily, args.model)
    tables = {make.__name__: make(plans) for make in TABLES}
    if not args.write:
        for name, text in tables.items():
            print(f"{name}\n\n{text}\n")
        return
    with open(args.write, encoding="utf-8") as file:
        text = file.read()
    for name, made in tables.items():
        pattern = rf"(<!-- table {name} -->\n).*?(<!-- end -->)"
        text, found = re.subn(pattern, lambda match: f"{match[1]}\n{made}\n\n{match[2]}", text, flags=re.S)
        if found != 1:
            raise SystemExit(f"{args.write} has {found} places for the table {name}")
    with open(args.write, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
