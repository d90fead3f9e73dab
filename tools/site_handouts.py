"""A handout for every lesson, one printed page: what it finds, its formulas, what is built, what others write.

Nothing is written for it. Findings are the titles and captions of the lesson's figures, formulas the rows of the cheat
sheet, functions those of the learner's library, claims those that the lesson weighs.
"""

from __future__ import annotations

import ast
import re
from html import unescape
from pathlib import Path

import nbformat
from site_lessons import paths

from headtools.course import my_heads
from headtools.course.claims import ledger
from headtools.course.library import builds

FOLDER = "handouts"
CAPTION = re.compile(r"<figcaption[^>]*>(.*?)(?:\s*<small>.*?)?</figcaption>", re.S)
# A line that is all of a page's own: what only a handout needs to be printed with.
MARK = '<p class="handout">headtools · <a href="../{page}.html">the lesson</a></p>'


def title(code: str) -> str:
    """Return the finding above a figure, which its cell draws; '' where it draws none.

    >>> title('ax.set_title("One head is enough", loc="left")\\nplot.bars(x, title=name)')
    'One head is enough'
    """
    for node in ast.walk(ast.parse(re.sub(r"^%.*$", "", code, flags=re.M))):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        given = [word.value for word in node.keywords if word.arg == "title"]
        given += node.args[:1] if called in ("suptitle", "set_title") else []
        given += node.args if called == "draw" else []  # the lessons' own, of one map
        for value in given:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                return value.value
    return ""


def findings(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    """Return (title, caption) of every figure of a lesson, as it is stored; a title may be ''."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            caption = CAPTION.search("".join(output.get("data", {}).get("text/html", "")))
            if caption:
                text = unescape(re.sub(r"<[^>]+>", "", caption[1])).strip()
                found.append((marked(title(cell.source)), marked(text)))
    return found


def marked(text: str) -> str:
    r"""Return text as Markdown that shows it as it is.

    >>> print(marked("W_O < *"))
    W\_O \< \*
    """
    return re.sub(r"([\\`*_<>\[\]$])", r"\\\1", text)


def formulas(sheet: str) -> list[tuple[str, str, str]]:
    """Return (what, formula, lesson) of every row of the cheat sheet's table of formulas."""
    return re.findall(r"^\| (.+) \| (.+) \| (\d\d) \|$", sheet, re.M)


def built(number: str) -> list[tuple[str, str]]:
    """Return (function, what it returns) for what a lesson adds to the learner's library."""
    names = [name for name, exercise in builds().items() if exercise.startswith(f"{number}.")]
    return [(name, getattr(my_heads, name).__doc__.splitlines()[0]) for name in names]


def page(path: Path, sheet: str) -> str:
    """Return the handout of a lesson, Markdown that prints on one page."""
    notebook, number = nbformat.read(path, as_version=4), path.name[:2]
    top = notebook.cells[0].source
    able = re.search(r"You will be able to\*\* (.+)", top)[1]
    question = re.search(r"^# (\d\d · .+)", top)[1]
    claims = ledger(number).rows
    parts = [f"# {question}", MARK.format(page=path.stem), f"**You will be able to** {able}"]
    for heading, lines in (
        ("Findings", [f"**{name}.** {text}" if name else text for name, text in findings(notebook)]),
        ("Formulas", [f"{what}: {formula}" for what, formula, lesson in formulas(sheet) if lesson == number]),
        ("What you write", [f"`{name}`: {text}" for name, text in built(number)]),
        ("What others write", ["{claim} ({source}): *{cited[0]}*. {cited[1]}".format(**one) for one in claims[:3]]),
    ):
        if lines:
            parts.append(f"## {heading}\n\n" + "\n".join(f"- {line}" for line in lines))
    return "\n\n".join(parts) + "\n"


def pages(notebooks: Path) -> dict[str, str]:
    """Return {file: Markdown} of all handouts and of the page that lists them."""
    sheet = (notebooks / "cheat_sheet.md").read_text("utf-8")
    made = {f"{path.name[:2]}.md": page(path, sheet) for path in paths(notebooks)}
    listed = "\n".join(name.removesuffix(".md") for name in made)
    about = "One page a lesson, to print (Ctrl+P, or ⌘P) or to show. Numbers are those of the lesson's stored run."
    return made | {"index.md": f"# Handouts\n\n{about}\n\n```{{toctree}}\n{listed}\n```\n"}
