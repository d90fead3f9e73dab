"""A decoder small enough to grow while you watch: attention alone, and a language of repeats.

The language has no words, only 64 symbols drawn at random. From a random position on, a random number of them repeats
to the end. So the first half of a sequence cannot be predicted, and the second half can, by whoever finds the position
where the present symbol stood before and copies what came after it: induction. It takes two layers of attention and
nothing else (Elhage et al. 2021; Olsson et al. 2022, arXiv:2209.11895). Length and offset are random because from a
repeat that is always 24 symbols back a model learns to attend 24 positions back, whatever stands there.

>>> model = ToyDecoder()
>>> history = train(model, steps=2, every=1)
>>> list(history.columns), len(history)
(['step', 'loss', 'unpredictable'], 3)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headtools._engine.progress import progress

SYMBOLS, LENGTH = 64, 48
SHORTEST, LONGEST, LATEST = 6, 24, 12  # of a segment that repeats: its length, and the last position where it may begin


def eager_attention_forward(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **_unused: object
) -> tuple[Tensor, Tensor]:
    """Attend: q, k, v (B, head, T, head_dim), mask (1, 1, T, T) true where looking is allowed -> (output, maps).

    A function of this name is where headtools looks for a model's own attention; output is (B, T, head, head_dim).
    """
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    maps = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return (maps @ v).transpose(1, 2), maps


class Attention(nn.Module):
    """One layer of heads that look back. Queries and keys read where a symbol stands; what is moved does not."""

    is_causal = True

    def __init__(self, width: int, heads: int, config: PreTrainedConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.config = heads, width // heads, config
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """Return what the layer adds: x (B, T, width), position (T, width), mask (1, 1, T, T) -> (B, T, width)."""
        parts = self.q_proj(x + position), self.k_proj(x + position), self.v_proj(x)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        # through transformers' registry, so that ht.record can see the maps
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        z, _maps = attend(self, q, k, v, mask)
        return self.out_proj(z.flatten(-2))


class ToyDecoder(nn.Module):
    """A decoder of attention layers alone: no MLP, no bias, a norm before each layer and before the logits.

    ``model(ids)``: (B, T) symbols -> (B, T, symbols) logits of the next one, T at most ``length``. All functions of
    headtools that take a model take this one; its heads are ("decoder", layer, head).
    """

    def __init__(
        self,
        layers: int = 2,
        heads: int = 4,
        width: int = 64,
        symbols: int = SYMBOLS,
        length: int = LENGTH,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"the width must be a multiple of the heads, got width={width} and heads={heads}")
        self.config = PreTrainedConfig(attn_implementation="eager", max_position_embeddings=length)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.symbol, self.position = nn.Embedding(symbols, width), nn.Embedding(length, width)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
            self.layers = nn.ModuleList(Attention(width, heads, self.config) for _ in range(layers))
            self.last_norm, self.unembed = nn.LayerNorm(width), nn.Linear(width, symbols, bias=False)
        self.eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the logits of the symbol after each: (B, T) -> (B, T, symbols). Raises ValueError for too many."""
        length = input_ids.shape[1]
        if length > self.position.num_embeddings:
            raise ValueError(
                f"{length} symbols do not fit; there are {self.position.num_embeddings} positions: pass fewer"
            )
        position = self.position.weight[:length]
        mask = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril()[None, None]
        x = self.symbol(input_ids)
        for norm, attention in zip(self.norms, self.layers, strict=True):
            x = x + attention(norm(x), position, mask)
        return self.unembed(self.last_norm(x))

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the symbols' embedding, by the name that transformers' models give it."""
        return self.symbol

    def get_output_embeddings(self) -> nn.Linear:
        """Return the unembedding, by the name that transformers' models give it."""
        return self.unembed


def repeats(n: int, generator: torch.Generator, symbols: int = SYMBOLS, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Draw ``n`` sequences of the language: symbols (n, length), and which of them can be predicted (n, length).

    Sequence i is random up to a position a, and from there a random segment of P symbols again and again, with P
    from 6 to 24 and a from 0 to 11. From position a + P + 1 on a symbol can be predicted; the first of the second copy
    cannot, because nothing says that the copy begins.

    >>> ids, known = repeats(2, torch.Generator().manual_seed(0))
    >>> period = int((~known[0]).sum()) - 1  # a + P
    >>> bool(known[0, period + 1 :].all())
    True
    """
    position = torch.arange(length)
    period = torch.randint(SHORTEST, LONGEST + 1, (n, 1), generator=generator)
    begin = torch.randint(LATEST, (n, 1), generator=generator)
    ids = torch.randint(symbols, (n, length), generator=generator)
    source = torch.where(position >= begin, (position - begin) % period + begin, position)
    return ids.gather(1, source), position > begin + period


def losses(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the loss of every symbol but the first, in nats: ids (B, T) -> (B, T - 1)."""
    return cross_entropy(model(ids)[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")


def train(
    model: nn.Module,
    *,
    steps: int = 500,
    seed: int = 0,
    batch: int = 32,
    rate: float = 3e-3,
    every: int = 25,
    watch: Callable[[nn.Module], Mapping[str, float]] | None = None,
) -> pd.DataFrame:
    """Train a ToyDecoder in place and return its history: one row at step 0 and after every ``every`` steps.

    AdamW at a constant ``rate``, ``batch`` fresh sequences a step, all symbols in the loss, gradients clipped at 1.
    Columns: ``step``; ``loss`` of the symbols that can be predicted and of the ``unpredictable`` ones, means in nats
    over 64 sequences that training never shows; and whatever ``watch(model)`` returns, as a dict, at each look. The
    same seed and thread count give the same model.

    Raises ``ValueError`` for fewer than one step.
    """
    if steps < 1 or every < 1:
        raise ValueError(f"needed steps >= 1 and every >= 1, got {steps} and {every}")
    draw, rows = torch.Generator().manual_seed(seed), []
    ids, known = repeats(64, torch.Generator().manual_seed(2**31 + seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)

    def look(step: int) -> None:
        with torch.no_grad():
            loss, can = losses(model, ids), known[:, 1:]
        rows.append({"step": step, "loss": loss[can].mean().item(), "unpredictable": loss[~can].mean().item(),
                     **(watch(model) if watch else {})})  # fmt: skip

    look(0)
    for step in progress(range(1, steps + 1), "training"):
        loss = losses(model, repeats(batch, draw)[0]).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % every == 0:
            look(step)
    return pd.DataFrame(rows)
