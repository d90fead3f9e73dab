"""What the rules of ``anatomy.py`` read: prose, headings, links, images, exercises, and the pages in outputs."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat

LESSON = re.compile(r"\d\d_\w+")
LOADS = re.compile(r"(?:@import\s+|url\(|import\(|fetch\(|require\(\[?)['\"]?((?:https?:)?//[^'\")\s]+)")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.S | re.M)
SOLUTION = re.compile(r"<details>\s*<summary>\s*Solution.*?</summary>(.*?)</details>", re.S)
PYTHON = re.compile(r"```python\n(.*?)```", re.S)


def text(thing: Any, key: str = "source") -> str:
    """A multi-line field of a cell or an output as one string, whether it is stored as lines or as a string."""
    value = thing.get(key, "")
    return "".join(value) if isinstance(value, list) else str(value)


def headings(markdown: str) -> list[tuple[int, str]]:
    """(level, title) of each heading outside code."""
    return [(len(m[1]), m[2].strip()) for m in re.finditer(r"^(#{1,6}) +(.*)$", FENCE.sub("", markdown), re.M)]


def prose(markdown: str) -> str:
    """The words a reader reads: no fenced code, no solutions, no formulas, no tags, no addresses."""
    left = re.sub(r"<details>.*?</details>", " ", FENCE.sub(" ", markdown), flags=re.S)
    left = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", " ", left, flags=re.S)
    left = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", left)
    left = re.sub(r"<[^>\n]+>", " ", left)
    return " ".join(word for word in left.split() if re.search(r"\w", word))


def links(markdown: str) -> list[str]:
    """The addresses of Markdown links and images, and of ``<a>`` and ``<img>``, outside code."""
    left = re.sub(r"`[^`\n]*`", "", FENCE.sub("", markdown))
    page = Page(left)
    found = re.findall(r"\[[^\]]*\]\(<?([^)\s>]+)>?[^)]*\)", left) + page.links
    return [*found, *(src for src, _ in page.images if not str(src).startswith("data:"))]


def slug(title: str) -> str:
    """A heading as JupyterLab and GitHub address it, near enough to compare."""
    return re.sub(r"[^\w]+", "-", title.lower()).strip("-")


class Page(HTMLParser):
    """What an HTML text shows and asks for; the documents of its frames are ``frames``, not part of it."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.images: list[tuple[str | None, str | None]] = []
        self.links: list[str] = []
        self.remote: list[str] = []
        self.frames: list[str] = []
        self.figures = 0
        self._captions: list[str] = []
        self._in_caption = False
        self.feed(html)
        self.close()

    @property
    def captions(self) -> list[str]:
        """The captions that say something."""
        return [caption for caption in self._captions if caption.strip()]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = [given.get(name) for name in ("src", "srcset", "data", "poster")]
        loads += [given.get("href")] if tag == "link" else []
        loads += re.findall(r"url\(['\"]?([^)'\"]+)", given.get("style") or "")
        self.remote += [address for address in loads if address and re.match(r"\s*(https?:)?//", address)]
        if tag == "img":
            self.images.append((given.get("src"), given.get("alt")))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "iframe" and given.get("srcdoc"):
            self.frames.append(given["srcdoc"])
        if tag == "figure":
            self.figures += 1
        if tag == "figcaption":
            self._captions.append("")
            self._in_caption = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "figcaption":
            self._in_caption = False

    def handle_data(self, data: str) -> None:
        if self._in_caption:
            self._captions[-1] += data
        # Styles that import and scripts that load: only what is written as a literal address can be seen here.
        self.remote += LOADS.findall(data)


@dataclass(frozen=True)
class Exercise:
    """One exercise: its header and the places of its stub, check and solution among the cells, None where missing."""

    title: str
    header: str
    stub: int | None
    check: int | None
    solution: int | None


@dataclass(frozen=True)
class Notebook:
    """A notebook, where it lies, and what was measured of it: {"seconds": ..., "megabytes": ...} or None."""

    path: Path
    nb: nbformat.NotebookNode
    measured: dict[str, float] | None = None

    @classmethod
    def read(cls, path: Path) -> Notebook:
        """Read a notebook and its row of ``measured.json`` beside it."""
        file = path.with_name("measured.json")
        rows = json.loads(file.read_text("utf-8"))["lessons"] if file.exists() else {}
        return cls(path, nbformat.read(path, as_version=4), rows.get(path.stem))

    @cached_property
    def code(self) -> list[Any]:
        """The code cells."""
        return [cell for cell in self.nb.cells if cell.cell_type == "code"]

    @cached_property
    def markdown(self) -> str:
        """All text cells as one."""
        return "\n\n".join(text(cell) for cell in self.nb.cells if cell.cell_type == "markdown")

    @cached_property
    def outputs(self) -> list[Any]:
        """All outputs."""
        return [out for cell in self.code for out in cell.get("outputs", [])]

    def pages(self, out: Any) -> list[Page]:
        """The HTML of an output, and that of the frames in it."""
        page = Page(text(out.get("data", {}), "text/html"))
        return [page, *(Page(frame) for frame in page.frames)]

    def tree(self, cell: Any) -> ast.Module | None:
        """The code of a cell, None where it is not Python."""
        try:
            return ast.parse(text(cell))
        except SyntaxError:
            return None

    def neighbour(self, step: int) -> str | None:
        """The file name of the lesson before (-1) or after (1), None where there is none."""
        names = sorted(p.name for p in self.path.parent.glob("*.ipynb") if LESSON.fullmatch(p.stem))
        if self.path.name not in names:
            return None
        place = names.index(self.path.name) + step
        return names[place] if 0 <= place < len(names) else None

    def exercises(self) -> list[Exercise]:
        """The exercises: from a heading that starts with "Exercise" to its solution."""
        starts = [
            i
            for i, cell in enumerate(self.nb.cells)
            if cell.cell_type == "markdown" and any(title.startswith("Exercise") for _, title in headings(text(cell)))
        ]
        found = []
        for start, end in zip(starts, [*starts, len(self.nb.cells)][1:], strict=True):
            within = range(start, end)
            title = next(title for _, title in headings(text(self.nb.cells[start])) if title.startswith("Exercise"))
            check = next((i for i in within if self._calls_check(self.nb.cells[i])), None)
            stub = next((i for i in within if self.nb.cells[i].cell_type == "code" and i != check), None)
            solution = next((i for i in within if SOLUTION.search(text(self.nb.cells[i]))), None)
            found.append(Exercise(title, text(self.nb.cells[start]), stub, check, solution))
        return found

    def solution_code(self, exercise: Exercise) -> str:
        """The Python of an exercise's solution."""
        body = SOLUTION.search(text(self.nb.cells[exercise.solution]))[1]
        return "\n".join(PYTHON.findall(body))

    def _calls_check(self, cell: Any) -> bool:
        tree = self.tree(cell) if cell.cell_type == "code" else None
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree else []
        return any(
            (isinstance(f, ast.Name) and f.id == "check") or (isinstance(f, ast.Attribute) and f.attr == "check")
            for f in calls
        )


def images(notebook: Notebook) -> list[tuple[str | None, str | None]]:
    """(address, alt) of every image in texts and outputs, frames included."""
    found = re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", FENCE.sub("", notebook.markdown))
    pages = [Page(notebook.markdown), *(page for out in notebook.outputs for page in notebook.pages(out))]
    return [(src, alt) for alt, src in found] + [image for page in pages for image in page.images]


def lessons(folder: Path) -> list[Path]:
    """The lessons in a folder, in order."""
    return sorted(path for path in folder.glob("*.ipynb") if LESSON.fullmatch(path.stem))
