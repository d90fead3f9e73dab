"""How long a lesson takes whoever works through it: text, code, predictions, exercises and the run, in minutes.

A rule, the same for every lesson, in place of a guess: 150 words of text a minute (captions included; solutions, fine
print, the list of references and the words that stand for a picture left out), ten lines of given code a minute, a
minute and a half for a prediction, what each exercise says, and the time of the run. The box at the top of each lesson,
the site and a test take it from here.
"""

from __future__ import annotations

import ast
import re
from html import unescape

import nbformat

SPEED = 150  # words a minute, for text that is thought about
CODE_LINES = 10  # a minute
PREDICTION = 1.5  # minutes

NOT_READ = re.compile(r"<details>.*?</details>|```.*?```|!\[.*?\]\(.*?\)|## References\n.*?(?=\n---|$)", re.S)


def honest_minutes(notebook: nbformat.NotebookNode, seconds: float) -> int:
    """Return the minutes that a lesson takes, to the next five; ``seconds`` is what running it takes."""
    total = text_minutes(notebook) + code_lines(notebook) / CODE_LINES + exercise_minutes(notebook)
    total += PREDICTION * predictions(notebook) + seconds / 60
    return max(5, 5 * round(total / 5))


def text_minutes(notebook: nbformat.NotebookNode) -> float:
    """Return the minutes that the text of a lesson takes, captions included, code and solutions left out."""
    return sum(map(words, texts(notebook))) / SPEED


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what a lesson gives to read: Markdown without solutions, references, code and alt texts, and captions.

    >>> cell = nbformat.v4.new_markdown_cell("![A map.](map.svg)Read this.<details>Or this, or not.</details>")
    >>> texts(nbformat.v4.new_notebook(cells=[cell]))
    ['Read this.']
    """
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            found.append(NOT_READ.sub("", cell.source))
        for output in cell.get("outputs", []):
            html = output.get("data", {}).get("text/html", "")
            captions = re.findall(r"<figcaption.*?</figcaption>", html, re.S)
            found += [unescape(re.sub(r"<[^>]+>", " ", caption)) for caption in captions]
    return found


def words(text: str) -> int:
    """Count the words of a text; a formula counts as one, an address as none.

    >>> words("The rank of $W_{OV} = W_V W_O$ is [at most](02.ipynb) `d_k`.")
    8
    """
    text = re.sub(r"\$\$.*?\$\$|\$[^$]*\$", " formula ", text, flags=re.S)
    return len(re.findall(r"\w[\w'’-]*", re.sub(r"\]\([^)]*\)", "]", text)))


def code_lines(notebook: nbformat.NotebookNode) -> int:
    """Count the lines of code that are given to read: no blank lines, no imports, no folded cells, no stubs, no calls.

    The first cell sets up; a cell that is one call (a prediction, a check) is read at a glance.
    """
    count = 0
    for cell in [cell for cell in notebook.cells if cell.cell_type == "code"][1:]:
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            continue
        body = ast.parse(cell.source).body
        rest = [node for node in body if not isinstance(node, ast.Import | ast.ImportFrom)]
        if len(rest) == 1 and isinstance(rest[0], ast.Expr):
            continue
        if any(_is_stub(node) for part in rest for node in ast.walk(part)):
            continue
        lines = {line for node in rest for line in range(node.lineno, node.end_lineno + 1)}
        count += sum(bool(text.strip()) for n, text in enumerate(cell.source.splitlines(), 1) if n in lines)
    return count


def _is_stub(node: ast.AST) -> bool:
    """Whether a statement is the dots of an exercise, as in ``...`` or ``return ...``; those in ``x[..., 0]`` are not.

    >>> [_is_stub(ast.parse(line).body[0]) for line in ("...", "x = ...", "x[..., 0] = y")]
    [True, True, False]
    """
    value = getattr(node, "value", None) if isinstance(node, ast.stmt) else None
    return isinstance(value, ast.Constant) and value.value is ...


def predictions(notebook: nbformat.NotebookNode) -> int:
    """Count the predictions that a lesson asks for."""
    return sum(cell.source.startswith("ht.predict(") for cell in notebook.cells if cell.cell_type == "code")


def exercise_minutes(notebook: nbformat.NotebookNode) -> int:
    """Return the minutes that a lesson's exercises are marked with. Its investigation says its own, and comes after."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return sum(map(int, re.findall(r"^\*Goal: .*?, about (\d+) minutes", text, re.M)))
