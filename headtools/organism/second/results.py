"""What was measured on the second organism: ``python -m recipes.second_organism.measure TABLE`` measures it again."""

from typing import Any

from headtools._engine.store import read_json
from headtools.organism._checksums import ASSETS

_FOLDER = ASSETS / "second" / "results"


def second_results(table: str, model: str = "seed 1") -> dict[str, Any]:
    """Return a table measured on the second organism, or on another training run of its recipe.

    ``model``: the shipped one, ``"seed 1"``, or another name in the table. Its card
    (``headtools/organism/assets/second/README.md``) shows all tables.

    Raises ``ValueError`` for a table or a model that was not measured.

    >>> errors = second_results("cross")["errors"]  # of alignment, by cross-attention head
    >>> sum(error < 0.1 for error in errors.values()), sum(error > 0.5 for error in errors.values()), len(errors)
    (3, 38, 48)
    """
    tables = sorted(file.stem for file in _FOLDER.glob("*.json"))
    if table not in tables:
        raise ValueError(
            f"got table {table!r}; expected one of {', '.join(map(repr, tables))}: write second_results('cross')"
        )
    rows = read_json(_FOLDER / f"{table}.json", remedy=f"python -m recipes.second_organism.measure {table}")
    if model not in rows:
        raise ValueError(f"{table} was not measured on {model!r}, but on {', '.join(map(repr, rows))}")
    return rows[model]
