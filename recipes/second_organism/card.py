"""Write the tables of the card from the results: ``python -m recipes.second_organism.card``

In README.md each table stands between two comments, ``<!-- roles -->`` and ``<!-- end of roles -->``; what is between
them is written here, from ``results/roles.json`` (``goals`` from all results). No number of theirs is typed by hand.
"""

import importlib
import re
from pathlib import Path

from headtools._engine.store import write_bytes
from recipes._results import ASSETS, read

FOLDER = ASSETS / "second"
README, RESULTS = FOLDER / "README.md", FOLDER / "results"
MISSING = "*Not measured yet.*"


def rendered(text: str, results: Path = RESULTS) -> str:
    """Return the text of a card with its tables written anew.

    >>> print(rendered("<!-- roles -->\\nold\\n<!-- end of roles -->", results=Path("none")))
    <!-- roles -->
    <BLANKLINE>
    *Not measured yet.*
    <BLANKLINE>
    <!-- end of roles -->
    """

    def table(match: re.Match) -> str:
        name = match[1]
        files = [results / f"{name}.json"] if name != "goals" else sorted(results.glob("*.json"))
        measured = {file.stem: read(file) for file in files if file.exists()}
        measured = measured if name == "goals" else measured.get(name)
        measures = importlib.import_module(f"recipes.second_organism.measures.{name}")
        tables = measures.markdown(measured) if measured else MISSING
        return f"<!-- {name} -->\n\n{tables}\n\n<!-- end of {name} -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end of \1 -->", table, text, flags=re.S)


def write(results: Path = RESULTS, readme: Path = README) -> None:
    """Write the tables of the card anew."""
    write_bytes(readme, rendered(readme.read_text("utf-8"), results).encode("utf-8"))


if __name__ == "__main__":
    write()
