"""Write what an installation is made of: every package that headtools needs, with its version and its licence.

    tools/sbom.py --json build/sbom.json --extras course,test

The JSON is a CycloneDX 1.5 bill of materials; the table that is printed has the same packages, and below it how many
have which licence. Licences go by their SPDX names; where a package only says "BSD License", so does the table.
Everything is read from what is installed, nothing is asked of a network. Exit status 1 where a package that is needed
is not there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

UNKNOWN = "not declared"
# Licences whose name tells which; "BSD License" and "Apache Software License" may be several, and stay as they are.
SPDX = ("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0")


def main(words: Sequence[str] | None = None) -> int:
    """Write the bill of materials and print the licences."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the bill of materials")
    parser.add_argument("--extras", default="", help="extras of headtools to include, such as course,test")
    args = parser.parse_args(words)
    found, missing = needed("headtools", [extra for extra in args.extras.split(",") if extra])
    rows = [(dist.metadata["Name"], dist.version, licence(dist)) for dist in found]
    for name, version, said in rows:
        print(f"{name:32} {version:18} {said}")
    print(f"{len(rows)} packages")
    for said, count in Counter(said for _, _, said in rows).most_common():
        print(f"{count:5}  {said}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(bill(found), indent=1, ensure_ascii=False) + "\n", "utf-8")
    for name in missing:
        print(f"{name} is needed and not installed", file=sys.stderr)
    return 1 if missing else 0


def needed(root: str, extras: Iterable[str] = ()) -> tuple[dict[Distribution, set[str]], list[str]]:
    """Return all installed packages that ``root`` needs in the end, with what each needs itself; and what is missing.

    Packages are sorted by name; what they need are names in the index's spelling.
    """
    todo, seen = [(root, frozenset(extras))], {}
    asked, missing = set(), set()
    while todo:
        name, some = todo.pop()
        if (canonicalize_name(name), some) in asked:
            continue
        asked.add((canonicalize_name(name), some))
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            missing.add(name)
            continue
        _, needs = seen.setdefault(canonicalize_name(name), (dist, set()))
        for line in dist.requires or ():
            need = Requirement(line)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in (some or {""})):
                needs.add(canonicalize_name(need.name))
                todo.append((need.name, frozenset(need.extras)))
    return {dist: needs for _, (dist, needs) in sorted(seen.items())}, sorted(missing)


def licence(dist: Distribution) -> str:
    """Return a package's licence: its expression, the SPDX name of what it tells, or else what it tells."""
    told = dist.metadata
    if told.get("License-Expression"):
        return told["License-Expression"]
    classes = [line.split(" :: ")[-1] for line in told.get_all("Classifier", []) if line.startswith("License :: ")]
    classes = [name for name in classes if name != "OSI Approved"]
    field = (told.get("License") or "").strip().partition("\n")[0][:80]
    told_as = {_plain(words) for words in (field, *classes)}
    known = [name for name in SPDX if _plain(name) in told_as]
    if known and len(classes) < 2:  # of several, none is left out
        return known[0]
    return ", ".join(dict.fromkeys(classes)) or field or UNKNOWN


def _plain(words: str) -> str:
    """What is common to "Apache License, Version 2.0" and "Apache-2.0"."""
    return re.sub(r"license|version|\(.*\)|[^a-z0-9.]", "", words.lower())


def bill(found: Mapping[Distribution, Iterable[str]]) -> dict:
    """Return a CycloneDX 1.5 document: the first application is headtools, all others are what it needs, and why."""
    parts = [_component(dist) for dist in found]
    known = {part["name"]: part["bom-ref"] for part in parts}
    needs = [sorted(known[name] for name in names if name in known) for names in found.values()]
    own = [part for part in parts if part["name"] == "headtools"]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own[0] | {"type": "application"}} if own else {},
        "components": [part for part in parts if part not in own],
        "dependencies": [
            {"ref": reference, "dependsOn": some} for reference, some in zip(known.values(), needs, strict=True)
        ],
    }


def _component(dist: Distribution) -> dict:
    name = canonicalize_name(dist.metadata["Name"])
    said, expression = licence(dist), dist.metadata.get("License-Expression")
    licences = [{"expression": expression}] if expression else [{"license": {"id" if said in SPDX else "name": said}}]
    reference = f"pkg:pypi/{name}@{quote(dist.version)}"  # torch's version may hold a plus
    return {"type": "library", "bom-ref": reference, "name": name, "version": dist.version, "purl": reference,
            "licenses": licences}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
