"""What to measure in one batch: for every role its queries and keys, and what chance and the baseline score on them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headtools.roles import map_classes, measures
from headtools.roles.baselines import Usual, seen
from headtools.roles.conventions import Conventions
from headtools.roles.corpus import Sentence
from headtools.roles.families import MAPS
from headtools.roles.partners import Antecedent, Partners, aligned, looked_at, nominals, weighed
from headtools.roles.sides import MARKS, Side
from headtools.roles.units import between


def partners(side: Side, row: int, conventions: Conventions) -> tuple[Partners, Partners]:
    """Who should look at whom in one sentence, by strongest look and by weight; only what a query can see."""
    sentence, keys = side.sentences[row], side.keys.places(row)
    marks = side.keys.mark[row, side.keys.real[row]].tolist()
    if side.kind == "cross":
        queries = side.queries.places(row)
        looks = aligned(sentence, queries, keys)
        own = [u for units in queries.values() for u in units]
        weights = weighed(sentence, keys, marks, side.words.marks, conventions)
        weights = {r: [(q, p[0][1]) for q in own] for r, p in weights.items()
                   if p and r in (*MARKS, "punctuation")}  # fmt: skip
        return looks, weights
    looks = looked_at(sentence, keys, len(marks), conventions, side.words.rank)
    weights = weighed(sentence, keys, marks, side.words.marks, conventions)
    return seen(looks, side.causal, conventions), seen(weights, side.causal, _with_self(conventions))


def _with_self(conventions: Conventions) -> Conventions:
    """The conventions for weights, which always count the query's own."""
    return conventions if conventions.self_as_key else Conventions(**{**vars(conventions), "self_as_key": True})


@dataclass
class Plan:
    """Everything :meth:`measure` needs, made once a batch and kind; ``n``, ``base`` and ``chance`` are (B, R) sums."""

    side: Side
    roles: Sequence[str]
    conventions: Conventions
    usual: Sequence[Usual]
    antecedent: Antecedent
    n: Tensor = field(init=False)
    base: Tensor = field(init=False)
    chance: Tensor = field(init=False)

    def __post_init__(self) -> None:
        size = len(self.side.sentences), len(self.roles)
        sums = torch.zeros(3, *size).numpy()  # filled one number at a time, which tensors are slow at
        self.n, self.base, self.chance = map(torch.from_numpy, sums)
        self._sums = sums
        self._place = {role: i for i, role in enumerate(self.roles)}
        self._masks()
        self._rare = self._rarity() if "rarity" in self._place else torch.zeros(self.side.keys.word.shape)
        looked, weighed = [], []
        for row in range(len(self.side.sentences)):
            looks, weights = partners(self.side, row, self.conventions)
            self._enter(looked, row, looks, self.allowed[row].sum(-1).tolist())
            self._enter(weighed, row, weights, self.visible[row].sum(-1).tolist())
        self._looks, self._weights = (torch.tensor(pairs or torch.zeros(0, 4).tolist()).long().view(-1, 4).T
                                      for pairs in (looked, weighed))  # fmt: skip
        self._statistics()

    def _masks(self) -> None:
        queries, keys, rules = self.side.queries, self.side.keys, self.conventions
        self.visible = (queries.real[:, :, None] & keys.real[:, None]).clone()
        if self.side.causal:
            self.visible &= torch.ones(self.visible.shape[1:], dtype=torch.bool).tril()
        self.allowed = self.visible if rules.specials_as_keys else self.visible & (keys.word >= 0)[:, None]
        if not rules.self_as_key and self.side.kind != "cross":
            self.allowed = self.allowed & ~torch.eye(self.allowed.shape[-1], dtype=torch.bool)
        asked = queries.real if rules.specials_as_queries and self.side.kind != "cross" else queries.word >= 0
        self.rows = asked & self.allowed.any(-1)

    def _enter(self, into: list, row: int, found: Partners, keys: list[int]) -> None:
        """Note the pairs of one sentence, and what chance and the baseline score on them."""
        sentence, usual = self.side.sentences[row], self.usual[row]
        for role, some in found.items():
            place = self._place.get(role)
            if place is None or not some:
                continue
            into += [(place, row, q, k) for q, targets in some for k in targets]
            chance = sum(len(targets) / keys[q] for q, targets in some)
            base = chance
            if role == "coreference":
                chance, base = self._mentions(sentence, row, some)
            elif role in usual:
                base = sum(q + usual[role] in targets for q, targets in some)
            self._sums[:, row, place] += len(some), base, chance

    def _mentions(self, sentence: Sentence, row: int, some: list) -> tuple[float, float]:
        """How often a random noun before the mention, and the one that ``antecedent`` names, is a right one."""
        word, places = self.side.keys.word[row], self.side.keys.places(row)
        random, named = 0.0, 0.0
        for q, targets in some:
            before = nominals(sentence, int(word[q]))
            random += sum(places[j][0] in targets for j in before) / max(len(before), 1)
            guess = self.antecedent(sentence, int(word[q]))
            named += guess is not None and places[guess][0] in targets
        return random, named

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
                self.n[:, place], sums = rows.sum(-1).float(), (even[role] * rows).sum(-1)
                self.base[:, place], self.chance[:, place] = sums, sums
            elif role == "content" and self.side.vectors is not None:
                self.n[:, place] = long.float()
            elif role in MAPS:
                self.n[:, place] = long.float()
                self.base[:, place] = self.chance[:, place] = long / len(MAPS)

    def _rarity(self) -> Tensor:
        """Rarity of each key's word, (B, K), 0 for marks."""
        out = torch.zeros(self.side.keys.word.shape)
        for row, (sentence, words) in enumerate(zip(self.side.sentences, self.side.keys.word.tolist(), strict=True)):
            out[row] = torch.tensor([self.side.words.rare(sentence.words[w]) if w >= 0 else 0.0 for w in words])
        return out

    @property
    def counted(self) -> Tensor:
        """What each sentence adds to n, to the baseline's score and to chance: (B, 3, R)."""
        return torch.stack([self.n, self.base, self.chance], 1)

    def measure(self, maps: Tensor) -> Tensor:
        """Sums of every role over each sentence: maps between tokens (B, head, T, S), on the CPU, to (B, R, head).

        Raises ValueError for maps of other tokens than the batch's.
        """
        tokens = (self.side.queries.of_token.shape[1], self.side.keys.of_token.shape[1])
        if maps.shape[-2:] != tokens:
            raise ValueError(
                f"{self.side.kind} maps between {tuple(maps.shape[-2:])} places came, the text has {tokens} tokens: "
                "these heads look at something else (an image?); leave them out, e.g. kinds=['decoder']"
            )
        maps = between(maps, self.side.queries, self.side.keys)
        out = maps.new_zeros(maps.shape[0] * len(self.roles), maps.shape[1])
        allowed = self.allowed[:, None]
        looks = torch.where(self.rows[:, None], maps.masked_fill(~allowed, -1.0).argmax(-1), -1)
        weights = maps
        if self.conventions.renormalise:  # words share what the row leaves them; marks keep their own
            left = (maps * allowed).sum(-1, keepdim=True).clamp_min(1e-12)
            weights = torch.where(allowed, maps / left, maps)
        place, row, q, k = self._looks
        out.index_add_(0, row * len(self.roles) + place, (looks[row, :, q] == k[:, None]).float())
        place, row, q, k = self._weights
        out.index_add_(0, row * len(self.roles) + place, weights[row, :, q, k])
        out = out.view(maps.shape[0], len(self.roles), maps.shape[1])
        for role, sums in self._measured(maps, looks).items():
            out[:, self._place[role]] = sums * (self.n[:, self._place[role], None] > 0)
        return out

    def _measured(self, maps: Tensor, looks: Tensor) -> dict[str, Tensor]:
        ways = {
            "confidence": lambda: measures.confidence(maps, self.allowed, self.rows),
            "entropy": lambda: measures.entropy(maps, self.rows),
            "distance": lambda: measures.distance(maps, self.rows),
            "rarity": lambda: measures.rarity(looks, self._rare, self.rows),
            "content": lambda: measures.content(maps, self.side.vectors, self._pairs()),
        }  # fmt: skip
        out = {role: ways[role]() for role in self.roles if role in ways and self.n[:, self._place[role]].any()}
        if any(role in self._place for role in MAPS):
            found = map_classes.classify(maps, self.side.keys.real)
            out |= {role: (found == i).float() for i, role in enumerate(MAPS) if role in self._place}
        return out

    def _pairs(self) -> Tensor:
        """Pairs of different words, which content similarity is about."""
        words = (self.side.keys.word >= 0)[:, None] & (self.side.queries.word >= 0)[:, :, None] & self.visible
        return words & ~torch.eye(words.shape[-1], dtype=torch.bool)

