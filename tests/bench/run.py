"""Run every benchmark, one process each, and write the results: ``make bench``.

    python tests/bench/run.py [--quick] [--peers] [--only gradient pruned ...]

Each script runs by itself, one after the other, and its rows replace its last ones in ``results.json``; then
``results.md`` and the table in the README are written from it. ``--peers`` adds the comparison with other packages,
whose environments ``make bench ARGS=--peers`` makes first. ``--quick`` runs tiny models, to see that everything runs,
and writes nothing.
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
import torch
import transformers

SCRIPTS = ("gradient", "ablation", "relevance", "gates", "taxonomy", "overhead", "recording", "pruned", "scaling")
COMPARISON = "comparison"


def run(name: str, quick: bool, folder: Path) -> list[dict]:
    """The rows of one script, in the form of all."""
    path = folder / f"{name}.json"
    command = [sys.executable, str(results.HERE / f"{name}.py"), "--json", str(path), *(["--quick"] if quick else [])]
    subprocess.run(command, check=True)
    found = json.loads(path.read_text(encoding="utf-8"))
    return [results.common(name, row) for row in (found if isinstance(found, list) else found["rows"])]


def section(rows: list[dict]) -> dict:
    """Rows with what they were measured on."""
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return {"date": today, "cpu": results.processor(), "versions": versions, "rows": rows}


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny models; writes nothing")
    parser.add_argument("--peers", action="store_true", help="compare with other packages as well")
    parser.add_argument("--only", nargs="+", choices=(*SCRIPTS, COMPARISON), help="some scripts, not all")
    given = parser.parse_args()
    names = given.only or [*SCRIPTS, *([COMPARISON] if given.peers else [])]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(f"\n## {name}\n", flush=True)
            rows = run(name, given.quick, Path(folder))
            if not given.quick:
                found = results.read()
                found["sections"][name] = section(rows)
                results.save(found)


if __name__ == "__main__":
    main()
