"""mlx-lm, measured by the contract of `lily bench`.

Started by `lily bench --compare mlx-lm`. Requests come on standard input and answers leave on
standard output, each a JSON object in one line:

    (start)                                   {"versions": {...}, "device": ...}
    {"load": DIR}                             {"loaded": true}
    {"length": N, "steps": M, "vocab": V}     {"prefill_s": ..., "decode_s": ..., "tokens": [M + 1 ids]}

or {"error": ...}, with "missing" where a module is not installed. It ends with its input.
"""

import sys

# What lies in the working directory is not to be imported.
sys.path[:] = [place for place in sys.path if place]

import json
import os
import platform
import time
from pathlib import Path

# The protocol keeps standard output for itself; what libraries print goes to standard error.
ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
# Nothing is fetched: the checkpoint is on this machine.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def answer(**fields):
    ANSWERS.write(json.dumps(fields) + "\n")
    ANSWERS.flush()


try:
    from importlib.metadata import PackageNotFoundError, version

    import mlx.core as mx
    import mlx_lm.generate
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model
except ModuleNotFoundError as error:
    answer(error=str(error), missing=str(error.name).split(".")[0])
    sys.exit(1)


def installed(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def greedy(logprobs):
    return mx.argmax(logprobs, axis=-1)


class Model:
    def __init__(self, folder):
        # Without the tokenizer: random checkpoints have none.
        self.model, config = load_model(Path(folder))
        config = config.get("text_config") or config
        self.vocab = config.get("vocab_size")
        # As mlx-lm's own generation does on Apple GPUs; to the end of this process.
        wired = getattr(mlx_lm.generate, "wired_limit", None)
        if wired is not None:
            self.wired = wired(self.model)
            self.wired.__enter__()

    def measure(self, length, steps, vocab):
        if self.vocab not in (None, vocab):
            raise ValueError(f"its vocabulary has {self.vocab} tokens, that of lily's model {vocab}")
        prompt = mx.array([(i * 2654435761 & 0xFFFFFFFF) % vocab for i in range(length)])
        mx.eval(prompt)
        tokens, first = [], None
        start = time.perf_counter()
        for token, _ in generate_step(prompt, self.model, max_tokens=steps + 1, sampler=greedy):
            last = time.perf_counter()
            first = first or last
            tokens.append(int(token))
        # One step more was begun than is counted: this machine is to be idle when others are measured.
        stream = getattr(mlx_lm.generate, "generation_stream", None)
        if stream is not None:
            mx.synchronize(stream)
        mx.synchronize()
        return {"prefill_s": first - start, "decode_s": last - first, "tokens": tokens}


def main():
    answer(
        versions={
            "mlx": installed("mlx"),
            "mlx-lm": installed("mlx-lm"),
            "python": platform.python_version(),
        },
        device=str(mx.default_device()),
    )
    model = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "load" in request:
                model = Model(request["load"])
                answer(loaded=True)
            else:
                answer(**model.measure(request["length"], request["steps"], request["vocab"]))
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}")


main()
