"""Texts with context that every Python carries: the documents of its help, and the code of its library.

They differ from version to version of Python, so a number measured on them says on which: ``texts.about``.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from collections.abc import Iterable
from pathlib import Path

LIBRARY = {"documents": "help texts (pydoc_data.topics)", "code": "modules of the standard library"}
# Long modules without native parts, single files in every Python from 3.11 on.
MODULES = (
    *("inspect", "textwrap", "fractions", "difflib", "statistics", "argparse", "dataclasses", "calendar"),
    *("tarfile", "heapq", "configparser", "shlex", "tempfile", "random", "csv", "mailbox"),
)


class Texts(list):
    """Strings, and what they are: ``about`` names the version of Python, how many there are, and their SHA-256."""

    def __init__(self, texts: Iterable[str], name: str) -> None:
        super().__init__(texts)
        digest = hashlib.sha256("\0".join(self).encode("utf-8")).hexdigest()
        self.about = (
            f"{len(self)} {LIBRARY[name]} of Python {platform.python_version()}, {sum(map(len, self))} characters, "
            f"SHA-256 {digest[:16]}"
        )


def library_texts(name: str) -> list[str]:
    """Return all "documents" (the help on Python's syntax and types) or all "code" (sixteen modules), in order.

    Raises ``FileNotFoundError`` for a Python that came without them.

    >>> library_texts("documents")[0].partition(chr(10))[0]
    'The "assert" statement'
    """
    if name == "documents":
        try:
            from pydoc_data.topics import topics
        except ImportError as error:
            raise FileNotFoundError(
                "this Python came without pydoc_data.topics, its help: install Python from python.org or conda"
            ) from error
        return list(dict.fromkeys(text for _, text in sorted(topics.items())))  # some have two names
    files = [Path(sysconfig.get_path("stdlib")) / f"{module}.py" for module in MODULES]
    if missing := [file for file in files if not file.is_file()]:
        raise FileNotFoundError(
            f"{missing[0]} is missing, as this Python came without its sources: install Python from python.org or conda"
        )
    return [file.read_text(encoding="utf-8") for file in files]
