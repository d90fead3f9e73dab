"""What the maps of one batch are measured by, and the sums that come of them: a part of a :class:`~.plan.Plan`."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headtools.heads._precision import without_autocast
from headtools.roles import map_classes
from headtools.roles._taxonomy import statistics as measures
from headtools.roles._taxonomy.families import MAPS
from headtools.roles._taxonomy.spans import Units, between
from headtools.roles.conventions import Conventions

_STEPS = 2**16  # between 0 and 1, for map classes
Cells = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Part:
    """One batch of B sentences, with Q and K units at most; R roles, each in its ``place``.

    counted         (B, 3, R) sums over each sentence of n, of what the baseline scores and of what chance scores
    visible         (B, Q, K) what a query can see
    allowed         (B, Q, K) where a look may land
    rows            (B, Q) which queries count
    rare            (B, K) rarity of each key
    pairs, likeness what content similarity is about; None without
    looks, weights  three numbers of each pair of partners: where it is summed (sentence and role), its row of the maps
                    (sentence and query), its key
    """

    kind: str
    place: Mapping[str, int]
    conventions: Conventions
    queries: Units
    keys: Units
    counted: Tensor
    visible: Tensor
    allowed: Tensor
    rows: Tensor
    rare: Tensor
    pairs: Tensor | None
    likeness: Tensor | None
    looks: Cells
    weights: Cells

    def tokens(self) -> Tensor:
        """What a token may see, (B, 1, T, S): for the control that shuffles its row."""
        queries, keys = self.queries.of_token, self.keys.of_token
        visible = (queries[:, :, None] >= 0) & (keys[:, None] >= 0)
        return (visible.tril() if self.kind == "decoder" else visible)[:, None]

    def check(self, maps: Tensor) -> None:
        """Raise ValueError for maps of other tokens than the batch's."""
        tokens = (self.queries.of_token.shape[1], self.keys.of_token.shape[1])
        if maps.shape[-2:] != tokens:
            raise ValueError(
                f"{self.kind} maps between {tuple(maps.shape[-2:])} places came, the text has {tokens} tokens: "
                "these heads look at something else (an image?); leave them out, e.g. kinds=['decoder']"
            )

    @without_autocast
    def measure(self, maps: Tensor) -> Tensor:
        """Sums of every role over each sentence: maps between tokens (B, head, T, S), on the CPU, to (B, R, head).

        Heads of several layers may stand side by side. Raises ValueError for maps of other tokens than the batch's.
        """
        self.check(maps)
        last = between(maps, self.queries, self.keys).permute(0, 2, 3, 1).contiguous()  # (B, Q, K, head)
        keys, heads = last.shape[2:]
        key, weight = measures.strongest(last, self.allowed, self.rows)
        out = maps.new_zeros(self.counted.shape[0] * len(self.place), heads)
        group, row, target = self.looks
        seen = key.view(-1, heads).index_select(0, row)
        out.index_add_(0, group, torch.from_numpy(seen.numpy() == target.int().numpy()[:, None]).float())
        group, row, target = self.weights
        given = last.view(-1, heads).index_select(0, row * keys + target)
        if self.conventions.renormalise:  # words share what the row leaves them; marks keep their own
            left = (last * self.allowed[..., None]).sum(2).clamp_min(1e-12)
            weight = weight / left
            words = self.allowed.flatten()[row * keys + target]
            given = torch.where(words[:, None], given / left.view(-1, heads)[row], given)
        out.index_add_(0, group, given)
        out = out.view(-1, len(self.place), heads)
        asks = self.counted[:, 0] > 0
        for role, sums in self._measured(last, key, weight, asks).items():
            out[:, self.place[role]] = sums * asks[:, self.place[role], None]
        return out

    def _measured(self, last: Tensor, key: Tensor, weight: Tensor, asks: Tensor) -> dict[str, Tensor]:
        ways = {
            "confidence": lambda: weight.sum(1),
            "entropy": lambda: measures.entropy(last, self.rows),
            "distance": lambda: measures.distance(last, self.rows),
            "rarity": lambda: measures.rarity(key, self.rare),
            "content": lambda: measures.correlation(last, self.likeness, self.pairs),
        }  # fmt: skip
        out = {role: way() for role, way in ways.items() if role in self.place and asks[:, self.place[role]].any()}
        if any(role in self.place for role in MAPS):
            # Sums of whole steps are exact: shares of a sharp map that tie still tie whatever padding it was made with.
            steps = (last * _STEPS).round_().div_(_STEPS)
            found = map_classes.classify(steps.permute(0, 3, 1, 2), self.keys.real)
            out |= {role: (found == i).float() for i, role in enumerate(MAPS) if role in self.place}
        return out
