"""The page of the claims: what others say about attention heads, and what was found here, as a table to filter."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from site_lessons import paths

from headtools.course.claims import VERDICTS, ledger

READ = "ledger.json"  # rows of the ledger that only reading can settle, and the list of all rows
SOURCES = {
    "0": "An encyclopaedia-style page",
    "1": "A blog post by the first author of Voita et al.",
    "2": "An essay on the geometry of heads",
    "3": "A course page",
    "E": "Papers beside their own code",
}
TOPICS = {  # the topic of a claim is that of the first lesson which weighs it
    "00": "Switching off",
    "01": "Computation",
    "02": "Geometry",
    "03": "Roles",
    "04": "Names",
    "05": "Probing",
    "06": "Training",
    "07": "Importance",
    "08": "Relevance",
    "09": "Gates",
    "10": "Pruning",
    "11": "Editing",
}
MEANING = {
    "right": "so it is, in the source or in our measurement",
    "imprecise": "right in part, or under conditions that the claim leaves out",
    "wrong": "the source says otherwise, or it does not hold where we measured",
    "contradicted": "another source, or another part of the same one such as its code, says otherwise",
    "unverifiable": "no source is given, or what is given does not settle it",
}


def order(row: str) -> tuple:
    """Sort rows as the ledger has them: 0.1 ... 3.11, then E1 ... E18.

    >>> sorted(["E2", "2.10", "2.9"], key=order)
    ['2.9', '2.10', 'E2']
    """
    return row.startswith("E"), [int(n) for n in re.findall(r"\d+", row)]


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return every row of the ledger: its claim, source, verdict, topic; found: [(what was found, notebook or None)].

    A row may stand in several lessons, which must come to one verdict. Raises ``ValueError`` where they do not, and for
    a row that stands nowhere, or both in a lesson and among those read.
    """
    readings = json.loads((folder / READ).read_text("utf-8"))
    rows: dict[str, dict[str, Any]] = {}
    for path in paths(folder):
        number = path.name[:2]
        for claim in ledger(number).rows:
            verdict, why = claim["cited"]  # of the two verdicts, the one on the source
            new = {name: claim[name] for name in ("row", "claim", "source")}
            new |= {"verdict": verdict, "found": [], "topic": TOPICS.get(number)}
            entry = rows.setdefault(claim["row"], new)
            if entry["verdict"] != verdict:
                raise ValueError(f"row {claim['row']} is {entry['verdict']} in one lesson, {verdict} in {path.name}")
            entry["found"].append((f"{why} {claim['here'][1]}", path.stem))
    both = rows.keys() & readings["read"].keys()
    for row, entry in readings["read"].items():
        rows.setdefault(row, entry | {"row": row, "found": [(entry["measured"], None)]})
    lost = set(readings["rows"]) - rows.keys()
    odd = rows.keys() - set(readings["rows"])
    if both or lost or odd:
        raise ValueError(
            f"the ledger is not whole: in a lesson and read {sorted(both, key=order)}; nowhere "
            f"{sorted(lost, key=order)}; not in its list {sorted(odd, key=order)}"
        )
    return {row: rows[row] for row in sorted(rows, key=order)}


def counts(rows: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Return how many rows have each verdict, those without a row left out."""
    found = {verdict: sum(entry["verdict"] == verdict for entry in rows.values()) for verdict in VERDICTS}
    return {verdict: n for verdict, n in found.items() if n}


def context(folder: Path) -> dict[str, Any]:
    """Return what the page's template needs."""
    rows = entries(folder)
    topics = [topic for topic in TOPICS.values() if any(entry["topic"] == topic for entry in rows.values())]
    read = sum(lesson is None for entry in rows.values() for _, lesson in entry["found"])
    return {
        "rows": rows,
        "counts": counts(rows),
        "read": read,
        "topics": topics,
        "sources": SOURCES,
        "meaning": MEANING,
        "marks": {verdict: mark for verdict, (_, mark) in VERDICTS.items()},
    }


if __name__ == "__main__":  # which rows are still nowhere
    try:
        print(len(entries(Path(__file__).resolve().parents[1] / "notebooks")), "rows")
    except ValueError as error:
        sys.exit(str(error))
