"""Queries with the keys that count as a hit, as arrays: what they are, and the ways to make them for a whole batch."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from headtools.roles._taxonomy.annotation import Array, spread


class Partners(NamedTuple):
    """N queries, each asking for one role, and P keys, each a hit for one of the N.

    role, row, query  (N,) number of the role, sentence in the batch, unit in the sentence
    owner, key        (P,) which of the N a key belongs to, and the unit it is
    """

    role: Array
    row: Array
    query: Array
    owner: Array
    key: Array

    def hits(self) -> Array:
        """How many keys each query has: (N,)."""
        return np.bincount(self.owner, minlength=len(self.query))

    def only(self, keep: Array) -> "Partners":
        """The same queries, with those of their keys for which ``keep`` (P,) is true."""
        return self._replace(owner=self.owner[keep], key=self.key[keep])

    def asked(self, keep: Array) -> "Partners":
        """The queries for which ``keep`` (N,) is true, with their keys."""
        number, keys = np.cumsum(keep) - 1, keep[self.owner]
        return Partners(*(some[keep] for some in self[:3]), number[self.owner[keys]], self.key[keys])


class Queries:
    """The units that ask, of a mask (B, U): ``row`` and ``unit`` (Q,), sentence by sentence."""

    def __init__(self, mask: Array) -> None:
        self.row, self.unit = np.nonzero(mask)
        self.number = mask.sum(1)  # in each sentence
        self.begin = np.cumsum(self.number) - self.number


def join(parts: Sequence[Partners]) -> Partners:
    """All of them, behind each other; of none, none."""
    parts = [Partners(*[np.zeros(0, dtype=np.int64)] * 5), *parts]
    behind = np.cumsum([0, *(len(part.query) for part in parts)])
    owners = [part.owner + n for part, n in zip(parts, behind, strict=False)]
    moved = [part._replace(owner=owner) for part, owner in zip(parts, owners, strict=True)]
    return Partners(*(np.concatenate(some).astype(np.int64) for some in zip(*moved, strict=True)))


def neighbours(offsets: Mapping[int, int], queries: Queries, keys: Array) -> Partners:
    """Every query asks for the unit so many places away, by role; ``keys`` (B, U) tells which may be found.

    >>> found = neighbours({7: -1}, Queries(np.array([[True, True]])), np.array([[True, True]]))
    >>> found.query.tolist(), found.owner.tolist(), found.key.tolist()
    ([0, 1], [1], [0])
    """
    role, by = (np.array(list(some), dtype=np.int64) for some in (offsets.keys(), offsets.values()))
    key = queries.unit + by[:, None]
    inside = (key >= 0) & (key < keys.shape[1])
    owner = np.flatnonzero(inside & keys[queries.row, np.where(inside, key, 0)])
    row, query = (np.tile(some, len(by)) for some in (queries.row, queries.unit))
    return Partners(role.repeat(len(queries.unit)), row, query, owner, key.ravel()[owner])


def everywhere(role: int, row: Array, key: Array, queries: Queries) -> tuple[Partners, Array]:
    """Every query of a sentence asks for the same keys: ``row`` (ascending) and ``key`` of each of them.

    Also gives which of the keys each hit is. Sentences without keys are not asked.

    >>> queries = Queries(np.array([[True, True], [True, False]]))
    >>> found, _ = everywhere(3, np.array([0, 0]), np.array([1, 4]), queries)
    >>> found.query.tolist(), found.owner.tolist(), found.key.tolist()
    ([0, 1], [0, 0, 1, 1], [1, 4, 1, 4])
    """
    number = np.bincount(row, minlength=len(queries.number))
    begin, rows = np.cumsum(number) - number, np.flatnonzero(number)
    which, part = spread(queries.number[rows])
    asked = rows[which]
    query = queries.unit[queries.begin[asked] + part]
    owner, part = spread(number[asked])
    which = begin[asked][owner] + part
    return Partners(np.full(len(query), role), asked, query, owner, key[which]), which
