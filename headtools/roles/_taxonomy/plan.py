"""What to measure: for every role its queries and keys, and what chance and the baseline score on them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headtools.roles._taxonomy import statistics as measures
from headtools.roles._taxonomy.annotation import Array
from headtools.roles._taxonomy.families import MAPS
from headtools.roles._taxonomy.pairing import Partners, Queries
from headtools.roles._taxonomy.scores import Cells, Part
from headtools.roles._taxonomy.sequences import MARKS, Side
from headtools.roles._taxonomy.targets import Antecedent, aligned, before, looked, weighed
from headtools.roles.baselines import Usual
from headtools.roles.conventions import Conventions

_NONE = -(10**9)  # no offset at all


def looks(side: Side, place: dict[str, int], conventions: Conventions) -> Partners:
    """Who should look at whom, of the roles in ``place``; only what a query can see."""
    if side.kind == "cross":
        wanted = place.get("alignment", -1)
        found = aligned(side.sentences, side.gold, side.queries, side.keys, wanted)
        return found.asked(found.role >= 0)
    return _seen(looked(side.gold, side.keys, place, conventions), side, conventions, conventions.self_as_key)


def weights(side: Side, place: dict[str, int], conventions: Conventions) -> Partners:
    """Who should give weight to whom; here a query's own weight always counts."""
    if side.kind == "cross":
        place = {role: n for role, n in place.items() if role in (*MARKS, "punctuation")}
        asking = Queries(side.queries.word.numpy() >= 0)
        return weighed(side.gold, side.keys, place, side.words.marks, conventions, asking)
    return _seen(weighed(side.gold, side.keys, place, side.words.marks, conventions), side, conventions, True)


def _seen(found: Partners, side: Side, conventions: Conventions, itself: bool) -> Partners:
    """The partners that a query can see: in a decoder itself and what came before; itself only where that counts.

    Queries without any are dropped, or kept with no keys where ``edges`` is 'count'.
    """
    query = found.query[found.owner]
    found = found.only(((found.key <= query) | (not side.causal)) & ((found.key != query) | itself))
    return found if conventions.edges == "count" else found.asked(found.hits() > 0)


@dataclass
class Plan:
    """Everything that measuring one kind of attention needs, made at once for some batches; :meth:`part` is for one.

    ``usual`` gives the best offset of each role, for each sentence; ``counted`` (B, 3, R) are sums over each sentence
    of n, of what the baseline scores and of what chance scores.
    """

    side: Side
    roles: Sequence[str]
    conventions: Conventions
    usual: Sequence[Usual]
    antecedent: Antecedent
    counted: Tensor = field(init=False)

    def __post_init__(self) -> None:
        side, size = self.side, (len(self.side.sentences), 3, len(self.roles))
        self._place = {role: i for i, role in enumerate(self.roles)}
        self._masks()
        looking, weighing = (make(side, self._place, self.conventions) for make in (looks, weights))
        of_weights = self._count(weighing, self.visible, self.conventions.renormalise)
        counted = self._count(looking, self.allowed) + of_weights
        self.counted = torch.from_numpy(counted).float().view(size)
        self._rare = torch.zeros(side.keys.word.shape)
        if "rarity" in self._place:
            word = torch.from_numpy(side.gold.start)[:, None] + side.keys.word.clamp_min(0)
            self._rare = torch.from_numpy(side.gold.rarity)[word].float() * (side.keys.word >= 0)
        self._statistics()
        self._looks, self._weights = _sorted(looking), _sorted(weighing)

    def part(self, first: int, last: int) -> Part:
        """What is measured in the sentences from ``first`` to before ``last``, as narrow as they are."""
        queries = self.side.queries.part(first, last)
        keys = queries if self.side.keys is self.side.queries else self.side.keys.part(first, last)
        q, k = queries.real.shape[1], keys.real.shape[1]
        pairs = likeness = None
        if self.side.vectors is not None and "content" in self._place:
            words = (keys.word >= 0)[:, None] & (queries.word >= 0)[:, :, None] & self.visible[first:last, :q, :k]
            pairs = words & ~torch.eye(k, dtype=torch.bool)  # of different words
            likeness = measures.likeness(self.side.vectors(first, last), pairs)
        masks = (self.visible[first:last, :q, :k], self.allowed[first:last, :q, :k], self.rows[first:last, :q])
        cells = (self._cells(some, first, last, q) for some in (self._looks, self._weights))
        return Part(self.side.kind, self._place, self.conventions, queries, keys, self.counted[first:last], *masks,
                    self._rare[first:last, :k], pairs, likeness, *cells)  # fmt: skip

    def _cells(self, found: Array, first: int, last: int, queries: int) -> Cells:
        """The partners in some sentences, as :class:`Part` has them."""
        row, role, query, key = found[:, slice(*np.searchsorted(found[0], (first, last)))]
        row = row - first
        return tuple(map(torch.from_numpy, (row * len(self.roles) + role, row * queries + query, key.copy())))

    def _masks(self) -> None:
        queries, keys, rules = self.side.queries, self.side.keys, self.conventions
        self.visible = queries.real[:, :, None] & keys.real[:, None]
        if self.side.causal:
            self.visible = self.visible.tril()
        self.allowed = self.visible if rules.specials_as_keys else self.visible & (keys.word >= 0)[:, None]
        if not rules.self_as_key and self.side.kind != "cross":
            self.allowed = self.allowed & ~torch.eye(self.allowed.shape[-1], dtype=torch.bool)
        asked = queries.real if rules.specials_as_queries and self.side.kind != "cross" else queries.word >= 0
        self.rows = asked & self.allowed.any(-1)

    def _count(self, found: Partners, keys: Tensor, renormalise: bool = False) -> Array:
        """How many queries each role has in each sentence, and what baseline and chance score on them: (B, 3 * R).

        ``renormalise`` says that words share what is left to them: an even spread is one over those alone.
        """
        hits, roles = found.hits(), len(self.roles)
        chance = hits / np.maximum(keys.sum(-1).numpy()[found.row, found.query], 1)
        if renormalise:
            at = found.row[found.owner], found.query[found.owner]
            shares = [1 / np.maximum(mask.sum(-1).numpy()[at], 1) for mask in (self.allowed, keys)]
            words = self.allowed.numpy()[(*at, found.key)]
            chance = np.bincount(found.owner, np.where(words, *shares), len(hits))
        offset = self._usual()[found.row, found.role]
        right = np.bincount(found.owner, found.key == (found.query + offset)[found.owner], len(hits)) > 0
        base = np.where(offset == _NONE, chance, right)
        mentions = found.role == self._place.get("coreference", -1)
        if mentions.any():
            chance[mentions], base[mentions] = self._antecedents(found.row[mentions], found.query[mentions])
        into, size = found.row * 3 * roles + found.role, len(self.side.sentences) * 3 * roles
        values = (np.ones_like(base), base, chance)
        return sum(np.bincount(into + i * roles, some, size) for i, some in enumerate(values))

    def _usual(self) -> Array:
        """The best offset of each role for each sentence, (B, R); of few different sets of them."""
        sets = {id(usual): usual for usual in self.usual}
        table = np.array([[usual.get(role, _NONE) for role in self.roles] for usual in sets.values()])
        return table[[list(sets).index(id(usual)) for usual in self.usual]]

    def _antecedents(self, row: Array, query: Array) -> tuple[Array, Array]:
        """For mentions: how likely a random noun before is a right one, and whether the one ``antecedent`` names is."""
        gold, word = self.side.gold, self.side.keys.word.numpy()[row, query]
        owner, other, same = before(gold, gold.start[row] + word)
        nouns = gold.nominal[other]
        n, right = (np.bincount(owner, some, len(row)) for some in (nouns, nouns & same))
        named = [self.antecedent(self.side.sentences[i], int(w)) for i, w in zip(row, word, strict=True)]
        told = np.array([-1 if place is None else place for place in named])
        hit = np.bincount(owner, same & (gold.place[other] == told[owner]), len(row))
        return right / np.maximum(n, 1), hit

    def _statistics(self) -> None:
        """Numbers of rows, and what an even spread scores, for the statistics without partners."""
        rows, visible, allowed = self.rows, self.visible.float(), self.allowed.float()
        keys = visible.sum(-1).clamp_min(1)
        among = allowed.sum(-1).clamp_min(1) if self.conventions.renormalise else keys
        long = (self.side.keys.word >= 0).sum(-1) >= self.conventions.shortest
        even = {
            "confidence": 1 / among, "entropy": keys.log(),
            "distance": (measures.offsets(visible).abs() * visible).sum(-1) / keys,
            "rarity": (allowed * self._rare[:, None]).sum(-1) / allowed.sum(-1).clamp_min(1),
        }  # fmt: skip
        for role, place in self._place.items():
            if role in even:
                self.counted[:, 0, place] = rows.sum(-1)
                self.counted[:, 1:, place] = (even[role] * rows).sum(-1, keepdim=True)
            elif role in MAPS or (role == "content" and self.side.vectors is not None):
                self.counted[:, 0, place] = long.float()
                self.counted[:, 1:, place] = (long / len(MAPS) * (role in MAPS))[:, None]


def _sorted(found: Partners) -> Array:
    """Each pair of partners as a column, sentence by sentence: its sentence, role, query and key."""
    columns = np.stack([found.row[found.owner], found.role[found.owner], found.query[found.owner], found.key])
    return columns[:, np.argsort(columns[0], kind="stable")]
