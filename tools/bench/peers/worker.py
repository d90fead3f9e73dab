"""One side of a comparison: a process that runs works on demand, in whatever environment started it.

    python tools/bench/peers/worker.py MODULE KIND SIZE

``MODULE`` is a file beside this one whose ``works(kind, size)`` returns the works by name. A work returns numbers by
name, for instance those of every head, to be compared with the other side's; where it does only a share of what is
told, it returns a pair, the numbers and that share. The process writes one line of JSON when it is ready, then one for
every name it reads: CPU seconds (divided by the share) and the numbers. An error becomes a line that tells it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = ("torch", "transformers", "transformer-lens", "captum", "lxt")


def versions() -> dict[str, str]:
    """Versions of what matters here and is installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def run(work) -> dict:
    """Run one work; its CPU seconds and its numbers, or what went wrong."""
    start = time.process_time()
    try:
        found = work()
    except Exception as error:  # whatever a peer raises is its answer
        return {"error": f"{type(error).__name__}: {error}".split("\n")[0][:300]}
    seconds = time.process_time() - start
    numbers, share = found if isinstance(found, tuple) else (found, 1.0)
    return {"seconds": seconds / share, "numbers": numbers}


def main() -> None:
    """Answer until the other side hangs up."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    import torch

    torch.set_num_threads(1)
    module, kind, size = sys.argv[1:]
    try:
        works = importlib.import_module(module).works(kind, size)
        answer: dict = {"works": list(works), "versions": versions()}
    except Exception as error:
        works, answer = {}, {"error": f"{type(error).__name__}: {error}".split("\n")[0][:300]}
    print(json.dumps(answer), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(works[line.strip()])), file=answers, flush=True)


if __name__ == "__main__":
    main()
