"""What to measure in one batch: for every role its queries and keys, and what chance and the baseline score on them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headtools.roles import map_classes, measures
from headtools.roles.baselines import Usual
from headtools.roles.conventions import Conventions
from headtools.roles.families import MAPS
from headtools.roles.gold import Array
from headtools.roles.pairing import Partners, Queries
from headtools.roles.partners import Antecedent, aligned, before, looked, weighed
from headtools.roles.sides import MARKS, Side
from headtools.roles.units import between

_NONE = -(10**9)  # no offset at all
_STEPS = 2**16  # between 0 and 1, for map classes


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
    """Everything :meth:`measure` needs, made once a batch and kind.

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
        counted = self._count(looking, self.allowed) + self._count(weighing, self.visible)
        self.counted = torch.from_numpy(counted).float().view(size)
        self._rare = torch.zeros(side.keys.word.shape)
        if "rarity" in self._place:
            word = torch.from_numpy(side.gold.start)[:, None] + side.keys.word.clamp_min(0)
            self._rare = torch.from_numpy(side.gold.rarity)[word].float() * (side.keys.word >= 0)
        self._statistics()
        self._asks = self.counted[:, 0] > 0
        if self._any("content"):
            self._pairs = self._word_pairs()
            self._likeness = measures.likeness(side.vectors, self._pairs)
        self._looks, self._weights = self._cells(looking), self._cells(weighing)

    def _any(self, role: str) -> bool:
        return role in self._place and bool(self._asks[:, self._place[role]].any())

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

    def _cells(self, found: Partners) -> tuple[Tensor, Tensor, Tensor]:
        """For each pair: where it is summed (sentence and role), its row of the maps (sentence and query), its key."""
        group, row = found.row * len(self.roles) + found.role, found.row * self.visible.shape[1] + found.query
        return tuple(map(torch.from_numpy, (group[found.owner], row[found.owner], found.key)))

    def _count(self, found: Partners, keys: Tensor) -> Array:
        """How many queries each role has in each sentence, and what baseline and chance score on them: (B, 3 * R)."""
        hits, roles = found.hits(), len(self.roles)
        chance = hits / np.maximum(keys.sum(-1).numpy()[found.row, found.query], 1)
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
        long = (self.side.keys.word >= 0).sum(-1) >= self.conventions.shortest
        even = {
            "confidence": 1 / keys, "entropy": keys.log(),
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

    def _word_pairs(self) -> Tensor:
        """Pairs of different words, which content similarity is about."""
        words = (self.side.keys.word >= 0)[:, None] & (self.side.queries.word >= 0)[:, :, None] & self.visible
        return words & ~torch.eye(words.shape[-1], dtype=torch.bool)

    def check(self, maps: Tensor) -> None:
        """Raise ValueError for maps of other tokens than the batch's."""
        tokens = (self.side.queries.of_token.shape[1], self.side.keys.of_token.shape[1])
        if maps.shape[-2:] != tokens:
            raise ValueError(
                f"{self.side.kind} maps between {tuple(maps.shape[-2:])} places came, the text has {tokens} tokens: "
                "these heads look at something else (an image?); leave them out, e.g. kinds=['decoder']"
            )

    def measure(self, maps: Tensor) -> Tensor:
        """Sums of every role over each sentence: maps between tokens (B, head, T, S), on the CPU, to (B, R, head).

        Heads of several layers may stand side by side. Raises ValueError for maps of other tokens than the batch's.
        """
        self.check(maps)
        maps = between(maps, self.side.queries, self.side.keys)
        last = maps.permute(0, 2, 3, 1).contiguous()  # (B, Q, K, head)
        heads, keys = maps.shape[1], maps.shape[3]
        key, weight = measures.strongest(last, self.allowed, self.rows)
        out = maps.new_zeros(self.counted.shape[0] * len(self.roles), heads)
        group, row, target = self._looks
        seen = key.view(-1, heads).index_select(0, row)
        out.index_add_(0, group, torch.from_numpy(seen.numpy() == target.int().numpy()[:, None]).float())
        group, row, target = self._weights
        given = last.view(-1, heads).index_select(0, row * keys + target)
        if self.conventions.renormalise:  # words share what the row leaves them; marks keep their own
            left = (last * self.allowed[..., None]).sum(2).clamp_min(1e-12).view(-1, heads)
            words = self.allowed.flatten()[row * keys + target]
            given = torch.where(words[:, None], given / left[row], given)
        out.index_add_(0, group, given)
        out = out.view(-1, len(self.roles), heads)
        for role, sums in self._measured(maps, last, key, weight).items():
            out[:, self._place[role]] = sums * self._asks[:, self._place[role], None]
        return out

    def _measured(self, maps: Tensor, last: Tensor, key: Tensor, weight: Tensor) -> dict[str, Tensor]:
        ways = {
            "confidence": lambda: weight.sum(1),
            "entropy": lambda: measures.entropy(last, self.rows),
            "distance": lambda: measures.distance(last, self.rows),
            "rarity": lambda: measures.rarity(key, self._rare),
            "content": lambda: measures.correlation(last, self._likeness, self._pairs),
        }  # fmt: skip
        out = {role: way() for role, way in ways.items() if self._any(role)}
        if any(role in self._place for role in MAPS):
            # Sums of whole steps are exact: shares of a sharp map that tie still tie whatever padding it was made with.
            steps = (last * _STEPS).round_().div_(_STEPS)
            found = map_classes.classify(steps.permute(0, 3, 1, 2), self.side.keys.real)
            out |= {role: (found == i).float() for i, role in enumerate(MAPS) if role in self._place}
        return out
