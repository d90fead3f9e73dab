"""Write requirements.lock: the versions of constraints.txt with the SHA-256 of the files that were installed from.

    python tools/lock.py

pip finds the files (for the Python and system that it runs on) and tells their digests; this keeps names, versions and
digests, and no addresses. torch is left out, since builds for GPUs and for processors differ: install it first. Then

    python -m pip install --require-hashes --no-deps -r requirements.lock

installs these files and no others.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
OWN_SOURCE = ("torch",)


def main(words: Sequence[str] | None = None) -> int:
    """Ask pip for the digests and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--report", type=Path, help="what pip install --dry-run --report wrote, instead of asking now")
    parser.add_argument("--out", type=Path, default=ROOT / "requirements.lock")
    args = parser.parse_args(words)
    told = json.loads(args.report.read_text("utf-8")) if args.report else ask((ROOT / "constraints.txt").read_text())
    args.out.write_text(lock(told), "utf-8")
    return 0


def wanted(constraints: str) -> list[str]:
    """Return the lines of constraints.txt that this system needs, without torch.

    >>> wanted("# a comment\\nnumpy==2.0\\ntorch==2.9\\nodd==1; python_version < '3'")
    ['numpy==2.0']
    """
    parsed = [Requirement(line) for line in constraints.splitlines() if line and not line.startswith("#")]
    here = [need for need in parsed if need.marker is None or need.marker.evaluate()]
    return [f"{need.name}{need.specifier}" for need in here if canonicalize_name(need.name) not in OWN_SOURCE]


def ask(constraints: str) -> dict:
    """Return pip's report on what it would install."""
    with tempfile.TemporaryDirectory() as folder:
        pins, report = Path(folder) / "pins.txt", Path(folder) / "report.json"
        pins.write_text("\n".join(wanted(constraints)), "utf-8")
        options = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--quiet"]
        command = [sys.executable, "-m", "pip", "install", *options, "--report", str(report), "-r", str(pins)]
        subprocess.run(command, check=True)
        return json.loads(report.read_text("utf-8"))


def lock(report: Mapping) -> str:
    """Return the text of the file; raise ``ValueError`` for a package without a SHA-256.

    >>> one = {"metadata": {"name": "Odd_Name", "version": "1.0"}, "download_info": {"archive_info": {"hashes": {}}}}
    >>> one["download_info"]["archive_info"]["hashes"] = {"sha256": "ab12"}
    >>> lock({"install": [one]}).splitlines()[-1]
    'odd-name==1.0 --hash=sha256:ab12'
    """
    system = f"Python {platform.python_version_tuple()[0]}.{platform.python_version_tuple()[1]}, {platform.system()} "
    lines = [f"# The files of constraints.txt, without torch: {system}{platform.machine()}. Made by tools/lock.py."]
    for one in sorted(report["install"], key=lambda part: canonicalize_name(part["metadata"]["name"])):
        name, version = canonicalize_name(one["metadata"]["name"]), one["metadata"]["version"]
        digest = one["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not digest:
            raise ValueError(f"pip tells no SHA-256 of {name} {version}: install from an index that has it")
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
