"""Which head has which function: the verdicts of a taxonomy, one row a head."""

import pandas as pd

from headtools.heads.scores import head_columns
from headtools.roles.role import SPECIAL_TOKENS, family

# The function of a head and the letter that stands for it on a map; a head with several has the first as its own.
LETTERS = {
    "positional": "P",
    "syntactic": "S",
    "rare": "R",
    "coreference": "C",
    "alignment": "A",
    "self": "O",
    "mark": "E",
}
NONE = "none"
_MARKS = (*SPECIAL_TOKENS, "punctuation", "first")


def function(role: str) -> str | None:
    """The function that a role gives its head; None for roles that are no function, such as entropy.

    A *mark* head attends to a special token, to punctuation or to the first word; ``self`` to the query itself.

    >>> function("offset -1"), function("offset +0"), function("nsubj up"), function("eos"), function("entropy")
    ('positional', 'self', 'syntactic', 'mark', None)
    """
    if role in ("offset +0", "self"):
        return "self"
    if role in _MARKS:
        return "mark"
    return family(role) if family(role) in LETTERS else None


def head_functions(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a head, in the order of ``frame``, which :func:`~headtools.roles.taxonomy.taxonomy` made.

    Columns: ``kind``, ``layer``, ``head`` (and ``stack`` where there are several); ``function``, the first of its
    functions in the order of ``LETTERS``, or 'none'; ``letters``, one for each function, '' for none; ``roles``, those
    that hold, best score first. Raises ValueError for a frame without verdicts.

    >>> frame = pd.DataFrame({"kind": "encoder", "layer": 0, "head": [0, 0, 1], "role": ["eos", "obj up", "eos"],
    ...                       "score": [0.75, 0.9, 0.2], "passes": [True, True, False]})
    >>> head_functions(frame)[["head", "function", "letters", "roles"]].values.tolist()
    [[0, 'syntactic', 'SE', 'obj up, eos'], [1, 'none', '', '']]
    """
    if "passes" not in frame:
        raise ValueError(f"got the columns {list(frame)}; expected 'passes': make the frame with taxonomy(model, ...)")
    columns = head_columns(frame)
    rows = []
    for head, verdicts in frame.groupby(columns, sort=False):
        held = verdicts[verdicts.passes].sort_values("score", ascending=False, kind="stable").role
        held = [role for role in held if function(role)]
        functions = [name for name in LETTERS if name in {function(role) for role in held}]
        letters = "".join(LETTERS[name] for name in functions)
        rows.append((*head, functions[0] if functions else NONE, letters, ", ".join(held)))
    return pd.DataFrame(rows, columns=[*columns, "function", "letters", "roles"])
