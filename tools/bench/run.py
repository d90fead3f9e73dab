"""Run every benchmark, one process each, and write the results: ``make bench``.

    python tools/bench/run.py [--quick] [--peers] [--only gradient pruned ...] [--check]

Each script runs by itself, one after the other, and its rows replace its last ones in ``results.json``; then
``results.md`` and the table on the page of benchmarks are written from it. ``--peers`` adds the comparison with other
packages, whose environments ``make bench ARGS=--peers`` makes first. ``--quick`` runs tiny models, to see that
everything runs, and writes nothing. With ``--check`` the exit status is 1 when a ratio is over the bound that its
script promises.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import results
import timing
import torch
import transformers

SCRIPTS = (
    "gradient",
    "ablation",
    "relevance",
    "gates",
    "taxonomy",
    "overhead",
    "recording",
    "pruned",
    "scaling",
    "long_texts",
    "verify",
)
COMPARISON = "comparison"


def run(name: str, quick: bool, folder: Path) -> list[dict]:
    """The rows of one script."""
    path = folder / f"{name}.json"
    command = [sys.executable, str(results.HERE / f"{name}.py"), "--json", str(path), *(["--quick"] if quick else [])]
    subprocess.run(command, check=True)
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


def section(rows: list[dict]) -> dict:
    """Rows with what they were measured on."""
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return {"date": today, "cpu": results.processor(), "versions": versions, "rows": rows}


def main() -> int:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny models; writes nothing")
    parser.add_argument("--peers", action="store_true", help="compare with other packages as well")
    parser.add_argument("--only", nargs="+", choices=(*SCRIPTS, COMPARISON), help="some scripts, not all")
    parser.add_argument("--check", action="store_true", help="fail when a bound is broken")
    given = parser.parse_args()
    broken = []
    names = given.only or [*SCRIPTS, *([COMPARISON] if given.peers else [])]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(f"\n## {name}\n", flush=True)
            rows = run(name, given.quick, Path(folder))
            if not given.quick:
                broken += timing.over(rows)
                found = results.read()
                found["sections"][name] = section(rows)
                results.save(found)
    for line in broken:
        print(f"over its bound: {line}", file=sys.stderr)
    return 1 if broken and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
