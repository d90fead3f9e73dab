"""An attention-only decoder, small enough to train in a lesson, and a language of repeats.

The language has no words, only 64 symbols drawn at random. From a random position on, a segment of random length is
repeated to the end. So the first half of a sequence cannot be predicted, and the second half can, by finding the
position where the current symbol occurred before and copying the symbol after it: induction. This takes two layers of
attention and nothing else (Elhage et al. 2021; Olsson et al. 2022, arXiv:2209.11895). Start and length of the segment
are random because, if the repeat were always 24 symbols back, a model would learn to attend 24 positions back, whatever
symbol is there.

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

from headtools._engine.loop import progress

SYMBOLS, LENGTH = 64, 48
MIN_PERIOD, MAX_PERIOD = 6, 24  # length of the segment that repeats
N_STARTS = 12  # positions, from 0 on, at which it may start


def eager_attention_forward(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **_unused: object
) -> tuple[Tensor, Tensor]:
    """Return (output, maps) of scaled dot-product attention.

    q, k and v are (B, head, T, head_dim), mask is (1, 1, T, T) and true where a query may attend, output is
    (B, T, head, head_dim). By convention, headtools finds a model's own attention under this name.
    """
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    maps = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return (maps @ v).transpose(1, 2), maps


class Attention(nn.Module):
    """One layer of causal heads. Positions are added to what queries and keys read, but not to what values read."""

    is_causal = True

    def __init__(self, width: int, heads: int, config: PreTrainedConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.config = heads, width // heads, config
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """Return what the layer adds: x (B, T, width), position (T, width), mask (1, 1, T, T) -> (B, T, width)."""
        projections = self.q_proj(x + position), self.k_proj(x + position), self.v_proj(x)
        q, k, v = (projection.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for projection in projections)
        # Called through transformers' registry, which is where ht.record captures the maps.
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        z, _maps = attend(self, q, k, v, mask)
        return self.out_proj(z.flatten(-2))


class ToyDecoder(nn.Module):
    """An attention-only decoder: no MLP, no biases, a layer norm before each layer and before the logits.

    ``model(ids)``: symbols (B, T) -> logits of the next one (B, T, symbols), T at most ``length``. It works with every
    function of headtools that takes a model; its heads are ("decoder", layer, head).
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
            raise ValueError(f"got width={width} and heads={heads}; expected a width that is a multiple of heads")
        self.config = PreTrainedConfig(attn_implementation="eager", max_position_embeddings=length)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.symbol, self.position = nn.Embedding(symbols, width), nn.Embedding(length, width)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
            self.layers = nn.ModuleList(Attention(width, heads, self.config) for _ in range(layers))
            self.last_norm, self.unembed = nn.LayerNorm(width), nn.Linear(width, symbols, bias=False)
        self.eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the logits of the next symbol, (B, T) -> (B, T, symbols); ValueError for too many symbols."""
        length = input_ids.shape[1]
        if length > self.position.num_embeddings:
            limit = self.position.num_embeddings
            raise ValueError(f"got {length} symbols; expected at most {limit}: write ToyDecoder(length={length})")
        position = self.position.weight[:length]
        mask = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril()[None, None]
        x = self.symbol(input_ids)
        for norm, attention in zip(self.norms, self.layers, strict=True):
            x = x + attention(norm(x), position, mask)
        return self.unembed(self.last_norm(x))

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embedding of symbols; transformers' models have a method of this name."""
        return self.symbol

    def get_output_embeddings(self) -> nn.Linear:
        """Return the unembedding; transformers' models have a method of this name."""
        return self.unembed


def repeats(n: int, generator: torch.Generator, symbols: int = SYMBOLS, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Sample ``n`` sequences: symbols (n, length), and a mask of those that can be predicted (n, length).

    A sequence is random up to a position a; from there a random segment of P symbols is repeated to the end, with P
    from 6 to 24 and a from 0 to 11. From position a + P + 1 on symbols can be predicted; the first of the second copy
    cannot, because nothing shows yet that the copy begins.

    >>> ids, predictable = repeats(2, torch.Generator().manual_seed(0))
    >>> period = int((~predictable[0]).sum()) - 1  # a + P
    >>> bool(predictable[0, period + 1 :].all())
    True
    """
    position = torch.arange(length)
    period = torch.randint(MIN_PERIOD, MAX_PERIOD + 1, (n, 1), generator=generator)
    start = torch.randint(N_STARTS, (n, 1), generator=generator)
    ids = torch.randint(symbols, (n, length), generator=generator)
    source = torch.where(position >= start, (position - start) % period + start, position)
    return ids.gather(1, source), position > start + period


def losses(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the loss of each symbol but the first, in nats: ids (B, T) -> (B, T - 1)."""
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
    """Train a ToyDecoder in place and return a frame of its evaluations, at step 0 and after each ``every`` steps.

    AdamW with a constant learning ``rate``, ``batch`` new sequences in each step, all symbols in the loss, gradients
    clipped to a norm of 1. Columns: ``step``; ``loss`` of the symbols that can be predicted and of the
    ``unpredictable`` ones, means in nats over 64 held-out sequences; and the items of the dict that ``watch(model)``
    returns. The same seed and number of threads give the same model. Raises ``ValueError`` for fewer than one step.
    """
    if steps < 1 or every < 1:
        raise ValueError(f"got steps={steps} and every={every}; expected both to be at least 1")
    generator, rows = torch.Generator().manual_seed(seed), []
    ids, predictable = repeats(64, torch.Generator().manual_seed(2**31 + seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)

    def evaluate(step: int) -> None:
        with torch.no_grad():
            loss, mask = losses(model, ids), predictable[:, 1:]
        means = {"loss": loss[mask].mean().item(), "unpredictable": loss[~mask].mean().item()}
        rows.append({"step": step, **means, **(watch(model) if watch else {})})

    evaluate(0)
    for step in progress(range(1, steps + 1), "training"):
        loss = losses(model, repeats(batch, generator)[0]).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % every == 0:
            evaluate(step)
    return pd.DataFrame(rows)
