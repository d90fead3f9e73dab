"""What the second organism is trained on: the translation loss, and aids that can each be left out.

Cross-attention is guided by nothing. The aids: word vectors composed of features, source-side tagging for the first
part of the run, short sentences first, the initialisation, and positions that start at a random number.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.organism.second.vocabulary import vocabulary
from recipes._training_model import HEADS, AuxiliaryTrainingModel

ATTENTION = ("learned", "none", "uniform")


class TrainingModel(AuxiliaryTrainingModel):
    """A MarianMT model in training; ``composed`` word vectors and the organism's ``initialisation`` may be left out."""

    def __init__(self, composed: bool = True, initialisation: bool = True) -> None:
        super().__init__(HEADS, vocabulary())
        if not composed:
            self.member.zero_()
            self.own.data.mul_(2 / 0.5)  # so that a vector has the length that a composed one has
        if not initialisation:
            for name, weight in self.model.named_parameters():
                if weight.dim() == 2 and not any(part in name for part in ("embed", "shared", "lm_head")):
                    nn.init.normal_(weight, std=self.model.config.init_std)  # as transformers leaves it
        self._first: Tensor | None = None
        for side in (self.model.model.encoder, self.model.model.decoder):
            side.embed_positions.register_forward_hook(self._shifted)

    def _shifted(self, table: nn.Embedding, _inputs: tuple, positions: Tensor) -> Tensor:
        """Position vectors that start at each sentence's own number: (B, tokens, width) for (tokens, width)."""
        if self._first is None:
            return positions
        shifted = self._first[:, None] + torch.arange(positions.shape[-2])
        return table.weight[shifted]

    @contextmanager
    def positions_from(self, first: Tensor | None) -> Iterator[None]:
        """Number the source and target words of each sentence of a batch from ``first`` (B,) on, instead of 0."""
        self._first = first
        try:
            yield
        finally:
            self._first = None


@contextmanager
def encoder_attention(model: nn.Module, kind: str) -> Iterator[None]:
    """The model with ``learned`` encoder attention, with ``none`` or with ``uniform`` weights, for the controls.

    Raises ValueError for another word.
    """
    if kind not in ATTENTION:
        raise ValueError(f"attention={kind!r}: it is one of {', '.join(ATTENTION)}")
    if kind == "learned":
        yield
        return
    heads = {site.key: list(range(site.heads)) for site in ht.sites(model)["encoder"]}
    with ht.ablate(model, heads, replacement="zero" if kind == "none" else "uniform"):
        yield


def first_positions(seed: int, step: int, rows: int, shift: int) -> Tensor | None:
    """Return where each sentence of a step's batch begins to count: 0 for half of them, else up to ``shift``.

    Half stay at 0, where translation begins, so that it is learned best.

    >>> first_positions(1, 7, 6, shift=20)
    tensor([ 0, 16,  0,  3,  0,  0])
    """
    if not shift:
        return None
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    first = torch.randint(1, shift + 1, (rows,), generator=generator)
    return first * torch.randint(0, 2, (rows,), generator=generator)
