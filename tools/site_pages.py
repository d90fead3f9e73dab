"""The pages of the site that repeat what is told elsewhere: the first page, the claims ledger, the reference."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import nbformat

import headtools
from headtools.lesson import catalogue
from headtools.lesson.claims import VERDICTS, ledger_rows

READ = "ledger.json"  # rows of the ledger that only reading can settle, and the list of all rows
PICTURE = "03_what_do_heads_look_at.ipynb"  # whose role map opens the first page
ROOMS = {
    "heads": "See, switch and cut heads",
    "roles": "What heads look at, and carry",
    "importance": "What heads are worth",
    "sparse": "How many heads can go",
    "organism": "The shipped model",
    "lesson": "What the notebooks show and ask",
}
PARTS = {
    "0": "An encyclopaedia-style page", "1": "A blog post by the first author of Voita et al.",
    "2": "An essay on the geometry of heads", "3": "A course page", "E": "Papers against themselves and their code",
}  # fmt: skip


def lessons(folder: Path) -> list[Path]:
    """Return the lessons in a folder, in order."""
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def home(path: Path, readme: Path) -> str:
    """Return the first page: ``index.md`` with the role map and the lesson table put in."""
    text = path.read_text("utf-8")
    table = re.search(r"\| n \| lesson.*?\n\n", readme.read_text("utf-8"), re.S)
    if table is None:
        raise ValueError("README.md has no table that starts with '| n | lesson': the first page shows it")
    head, line, *rows = table[0].replace("](notebooks/", "](").strip().splitlines()
    told = {lesson.name[:2]: effort(lesson) for lesson in lessons(path.parent)}
    rows = [f"{row} {' | '.join(told[row[2:4]])} |" for row in rows]
    whole = "\n".join([f"{head} difficulty | minutes to read |", f"{line}---|---|", *rows, ""])
    return text.replace("<!-- lessons -->", whole).replace("<!-- picture -->", picture(path.parent / PICTURE))


def effort(notebook: Path) -> tuple[str, str]:
    """Return what the box of a lesson says of its difficulty, ``"2 of 3"``, and of the minutes to read it, ``"45"``."""
    top = nbformat.read(notebook, as_version=4).cells[0].source
    found = re.search(r"Difficulty\*\* (\d of \d)", top), re.search(r"about (\d+) minutes to read", top)
    if None in found:
        raise ValueError(f"the box of {notebook.name} lacks its difficulty or its minutes to read")
    return found[0][1], found[1][1]


def picture(notebook: Path) -> str:
    """Return the ``<figure>`` of a lesson's role map, as it is stored there."""
    for cell in nbformat.read(notebook, as_version=4).cells:
        for output in cell.get("outputs", []):
            html = output.get("data", {}).get("text/html", "")
            if "role map" in cell.source.lower().replace("_", " ") and "<figure" in html:
                return re.search(r"<figure.*?</figure>", html, re.S)[0]
    raise ValueError(f"{notebook.name} shows no role map any more: name another lesson in PICTURE")


def toc(paths: Sequence[Path], pages: Sequence[str]) -> str:
    """Return the hidden tables of contents that make the side bar."""
    lessons = "\n".join(path.stem for path in paths)
    rest = "\n".join(["ledger", *(Path(name).stem for name in pages)])
    rooms = "\n".join(f"reference/{room}" for room in ROOMS)
    blocks = (("Lessons", lessons), ("Look up", rest), ("Reference", rooms), ("For lecturers", "teaching"))
    return "".join(f"\n```{{toctree}}\n:hidden:\n:caption: {name}\n\n{inside}\n```\n" for name, inside in blocks)


def order(row: str) -> tuple:
    """Sort rows as the ledger has them: 0.1 ... 3.11, then E1 ... E18.

    >>> sorted(["E2", "2.10", "2.9"], key=order)
    ['2.9', '2.10', 'E2']
    """
    return row.startswith("E"), [int(n) for n in re.findall(r"\d+", row)]


def _cited(number: str) -> dict[str, list[str]]:
    """Return the verdict on each source and its reason, by row, of a lesson's closing table."""
    try:
        others = catalogue.lesson(number).get("others", [])
    except KeyError:
        return {}
    return {row["row"]: row["cited"] for row in others}


def entries(folder: Path) -> dict[str, dict]:
    """Return every row of the ledger: {row: claim, source, measured, verdict, where (HTML-free Markdown)}.

    A row may stand in several lessons, which must come to one verdict. Raises ``ValueError`` where they do not, and for
    a row that stands nowhere, or both in a lesson and among those read.
    """
    told = json.loads((folder / READ).read_text("utf-8"))
    found: dict[str, dict] = {}
    for path in lessons(folder):
        cited = _cited(path.name[:2])
        for box in ledger_rows(path):
            if box["row"] in cited:  # a table with two verdicts: the ledger's is the one on the source
                verdict, why = cited[box["row"]]
                box |= {"verdict": verdict, "measured": f"{why} {box['measured']}"}
            where, before = f"[Lesson {path.name[:2]}]({path.name}).", found.get(box["row"])
            if before and before["verdict"] != box["verdict"]:
                raise ValueError(
                    f"row {box['row']} is {before['verdict']} in one lesson, {box['verdict']} in {path.name}"
                )
            said = f"{_plain(box['measured'])} {where}"
            found[box["row"]] = {**box, **(before or {}), "said": f"{before['said']} {said}" if before else said}
    both = found.keys() & told["read"].keys()
    for row, entry in told["read"].items():
        found.setdefault(row, entry | {"row": row, "said": f"{_plain(entry['measured'])} *Read.*", "read": True})
    lost = set(told["rows"]) - found.keys()
    odd = found.keys() - set(told["rows"])
    if both or lost or odd:
        raise ValueError(
            f"the ledger is not whole: in a lesson and read {sorted(both, key=order)}; nowhere "
            f"{sorted(lost, key=order)}; not in its list {sorted(odd, key=order)}"
        )
    return {row: found[row] for row in sorted(found, key=order)}


def ledger(folder: Path) -> str:
    """Return the page of the claims ledger."""
    rows = entries(folder)
    count = {verdict: sum(entry["verdict"] == verdict for entry in rows.values()) for verdict in VERDICTS}
    read = sum("read" in entry for entry in rows.values())
    said = ", ".join(f"{n} {verdict}" for verdict, n in count.items() if n)
    lines = [
        "# The claims ledger",
        "",
        f"What pages on attention heads say, and what became of it here: {len(rows)} claims, {said}. Each stands in "
        f"our own words. {len(rows) - read} were weighed in a lesson, where its numbers are measured before your eyes "
        f"or the source is cited; {read} only reading can settle.",
    ]
    part = ""
    for row, entry in rows.items():
        if row[0] != part:
            part = row[0]
            lines += ["", f"## {PARTS[part]}"]
        claim = f"**The claim.** {_plain(entry['claim'])} ({_plain(entry['source'])})"
        lines += ["", f"### {row} · {entry['verdict']}", "", claim, "", f"**Found here.** {entry['said']}"]
    return "\n".join(lines) + "\n"


def reference() -> dict[str, str]:
    """Return the pages of the reference: for each room its public names with their docstrings."""
    pages = {}
    for room, heading in ROOMS.items():
        lines = [f"# {heading}", "", f"```{{eval-rst}}\n.. automodule:: headtools.{room}\n```"]
        names = [name for name, where in headtools._WHERE.items() if where.startswith(f"{room}.")]
        for name in names:
            thing = getattr(import_module(f"headtools.{headtools._WHERE[name]}"), name)
            kind = "autoclass" if isinstance(thing, type) else "autofunction"
            more = "\n   :members:" if kind == "autoclass" else ""
            lines += ["", f"## {name}", "", f"```{{eval-rst}}\n.. {kind}:: {thing.__module__}.{name}{more}\n```"]
        pages[f"{room}.md"] = "\n".join(lines) + "\n"
    return pages


def _plain(text: str) -> str:
    """Text of a box as Markdown that shows the same characters."""
    return re.sub(r"([\\`*_\[\]<>$|#])", r"\\\1", text)


if __name__ == "__main__":  # which rows are still nowhere
    try:
        print(len(entries(Path(__file__).resolve().parents[1] / "notebooks")), "rows")
    except ValueError as error:
        sys.exit(str(error))
