"""Our docstrings as reStructuredText: a Sphinx extension that marks up what reads well as plain text.

Lists of arguments (``name: what it is``, a line each) become bullets, aligned columns keep their columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any

ARGUMENT = re.compile(r"^([A-Za-z_][\w.]*(?:, [A-Za-z_][\w.]*)*): (.*)$")
ITEM = re.compile(r"^(?:[-*] |\d+\. |>>>|\.\.|\|)")


def marked(lines: Iterable[str]) -> list[str]:
    """Return the lines of a docstring, marked up.

    >>> marked(["Do it.", "", "maps: all of them", "n: how many,", "    at least"])
    ['Do it.', '', '- ``maps``: all of them', '- ``n``: how many,', '  at least']
    >>> marked(["words    the words", "heads    their heads,", "         0 for the root"])[0]
    '::'
    """
    done: list[str] = []
    for blank, group in groupby(lines, key=lambda line: not line.strip()):
        block = [re.sub(r"(?<=[(,])( ?)\*(?=\w)", r"\1\\*", line) if "``" not in line else line for line in group]
        literal = bool(done) and any(line.rstrip().endswith("::") for line in done[-2:] if line.strip())
        done += block if blank or literal else _paragraph(block)
    return done


def _paragraph(block: list[str]) -> list[str]:
    indent = min(len(line) - len(line.lstrip()) for line in block)
    bare = [line[indent:] for line in block]
    if ITEM.match(bare[0]):
        return block
    tops = [line for line in bare if not line.startswith(" ")]
    if all(ARGUMENT.match(line) for line in tops):
        return [" " * indent + _argument(line) for line in bare]
    if len(tops) < len(bare) or (len(bare) > 1 and all(re.search(r"\S {3,}\S", line) for line in bare)):
        return ["::", "", *("    " + line for line in block)]
    return block


def _argument(line: str) -> str:
    if line.startswith(" "):
        return "  " + line.lstrip()
    names, text = ARGUMENT.match(line).groups()
    return f"- {', '.join(f'``{name}``' for name in names.split(', '))}: {text}"


def setup(app: Any) -> dict[str, bool]:
    """Put it before everything that reads docstrings."""

    def change(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
        lines[:] = marked(lines)

    app.connect("autodoc-process-docstring", change)
    return {"parallel_read_safe": True}
