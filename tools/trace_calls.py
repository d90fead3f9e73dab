"""How far a call travels: files, functions and depth of eleven public calls, and the lines that two of them import.

    python tools/trace_calls.py            # all calls
    python tools/trace_calls.py record     # some of them

Each call is made twice and the second time is counted, so that caches and lazy imports do not matter. Only functions of
headtools count. Fewer hops matter more than shorter functions: a reader follows the call from file to file.
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import headtools as ht

PACKAGE = Path(ht.__file__).parent
# What version 1.0.0 needed: (files, functions, depth).
SECOND_EDITION = {
    "record": (12, 86, 10),
    "ablate": (12, 79, 10),
    "taxonomy": (33, 250, 17),
    "gradient": (19, 128, 12),
    "ablation": (24, 198, 21),
    "relevance": (26, 165, 21),
    "prune": (10, 84, 11),
    "fit_gates": (15, 128, 14),
    "check": (17, 32, 6),
    "figure": (9, 39, 6),
    "report": (74, 692, 22),
}


def trace(call: Callable[[], object]) -> tuple[int, int, int]:
    """Return how many files and functions of headtools a call enters, and how deep they call each other."""
    entered, depth, deepest = set(), 0, 0

    def profile(frame, event, _argument):
        nonlocal depth, deepest
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)):
            return
        if event == "call":
            depth += 1
            deepest = max(deepest, depth)
            entered.add((code.co_filename, code.co_qualname))
        elif event == "return":
            depth -= 1

    call()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len({file for file, _ in entered}), len(entered), deepest


def public_calls() -> dict[str, Callable[[], object]]:
    """Return the calls by name, on the shipped model and a few sentences."""
    model, tokenizer = ht.load()
    sentences, validation = (ht.corpus("organism", split, limit=24) for split in ("test", "validation"))
    batches = ht.label(model, tokenizer, sentences)
    two = {name: value[:2] for name, value in batches[0].items()}

    def inside(context):
        with torch.no_grad(), context:
            model(**batches[0])

    def figure():
        import matplotlib.pyplot as plt

        fig = ht.plot.matrix(torch.eye(3), title="x")
        ht.figure(fig, claim="Every row sums to 1.", alt="An identity matrix.")
        plt.close(fig)

    def report():
        with tempfile.TemporaryDirectory() as folder:
            ht.report(model, sentences[:12], tokenizer, path=Path(folder) / "report.html", progress=False)

    return {
        "record": lambda: inside(ht.record(model)),
        "ablate": lambda: inside(ht.ablate(model, {("encoder", 2): [0, 5]})),
        "taxonomy": lambda: ht.taxonomy(model, tokenizer, sentences, validation, kinds="encoder"),
        "gradient": lambda: ht.gradient(model, batches, sites=["encoder"]),
        "ablation": lambda: ht.ablation(model, batches, sites=[("encoder", 2)], progress=False),
        "relevance": lambda: ht.relevance(model, two, sites=["encoder"]),
        "prune": lambda: ht.prune(copy.deepcopy(model), {("encoder", 0): [1, 2]}),
        "fit_gates": lambda: ht.fit_gates(model, batches, penalty=0.1, steps=3, sites="encoder", progress=False),
        "check": lambda: ht.check("01.softmax", ...),
        "figure": figure,
        "report": report,
    }


def imported_lines(name: str) -> tuple[int, int]:
    """Return how many files of headtools, and lines in them, are imported for a public name."""
    code = (
        f"import sys, headtools; headtools.{name}\n"
        "files = {m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'headtools' and m.__file__}\n"
        "print(len(files), sum(len(open(file, encoding='utf-8').readlines()) for file in files))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    files, lines = map(int, done.stdout.split())
    return files, lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("calls", nargs="*", choices=[[], *SECOND_EDITION], help="which calls; all without a name")
    chosen = parser.parse_args().calls or list(SECOND_EDITION)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    calls = public_calls()
    print(f"{'call':10} {'files':>12} {'functions':>12} {'depth':>12}")
    for name in chosen:
        try:
            now = trace(calls[name])
        except Exception as error:  # the others are still worth knowing
            print(f"{name:10} failed: {type(error).__name__}: {error}")
            continue
        cells = (f"{a} (was {b})" for a, b in zip(now, SECOND_EDITION[name], strict=True))
        print(f"{name:10} " + " ".join(f"{cell:>12}" for cell in cells))
    for name in ("record", "gradient"):
        files, lines = imported_lines(name)
        print(f"importing ht.{name}: {files} files, {lines} lines")


if __name__ == "__main__":
    main()
