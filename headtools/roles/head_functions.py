"""Which head has which function: the verdicts of a taxonomy, one row a head."""

import pandas as pd

from headtools.roles._taxonomy.families import family

# The function of a head, the letter that stands for it on a map, and the roles that give it, the first coming first.
LETTERS = {"positional": "P", "syntactic": "S", "rare": "R", "coreference": "C", "alignment": "A", "self": "O",
           "mark": "E"}  # fmt: skip
NONE = "none"
_MARKS = ("bos", "eos", "cls", "sep", "punctuation", "first")


def function(role: str) -> str | None:
    """The function that a role gives its head; None for roles that are no function, such as entropy.

    A *mark* head rests on a start or end mark, on punctuation or on the first unit; ``self`` looks at the query.

    >>> function("offset -1"), function("offset +0"), function("nsubj up"), function("eos"), function("entropy")
    ('positional', 'self', 'syntactic', 'mark', None)
    """
    if role in ("offset +0", "self"):
        return "self"
    if role in _MARKS:
        return "mark"
    found = family(role)
    return found if found in LETTERS else None


def holders(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a head, in the order of ``frame``, which :func:`~headtools.roles.taxonomy.taxonomy` made.

    Columns: ``kind``, ``layer``, ``head`` (and ``stack`` where there are several); ``function``, the first of its
    functions in the order of ``LETTERS``, or 'none'; ``letters``, one for each function, '' for none; ``roles``, those
    that hold, best score first. Raises ValueError for a frame without verdicts.

    >>> frame = pd.DataFrame({"kind": "encoder", "layer": 0, "head": [0, 0, 1], "role": ["eos", "obj up", "eos"],
    ...                       "score": [0.75, 0.9, 0.2], "holds": [True, True, False]})
    >>> holders(frame)[["head", "function", "letters", "roles"]].values.tolist()
    [[0, 'syntactic', 'SE', 'obj up, eos'], [1, 'none', '', '']]
    """
    if "holds" not in frame:
        raise ValueError(f"columns {list(frame)} came, 'holds' is needed; make the frame with taxonomy(model, ...)")
    by = [name for name in ("stack", "kind", "layer", "head") if name in frame]
    rows = []
    for head, some in frame.groupby(by, sort=False):
        held = some[some.holds].sort_values("score", ascending=False, kind="stable").role
        held = [role for role in held if function(role)]
        functions = [name for name in LETTERS if name in {function(role) for role in held}]
        rows.append((*head, functions[0] if functions else NONE, "".join(LETTERS[name] for name in functions),
                     ", ".join(held)))  # fmt: skip
    return pd.DataFrame(rows, columns=[*by, "function", "letters", "roles"])
