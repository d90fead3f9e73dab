"""Models whose weights are written, not trained, so that it is known which head does what and which does nothing.

The residual stream is a row of slots, each with a place for every symbol, and symbols are one-hot: a head reads one
slot and writes another, and nothing else can happen. So "the circuit" is a fact, on which measures of importance can be
tried (``recipes/truth.py``).

    token     the symbol itself                      position   0 to 23, read by queries and keys only
    before    written by a previous-token head       answer     what the logits are read from
    middle    for a circuit of three steps           nowhere    nothing reads it

>>> model = WrittenModel(layers=2)
>>> write_induction(model, gain=100.0)
>>> ids = torch.tensor([[0, 5, 3, 7, 5]])  # 5 was followed by 3
>>> model(ids).logits[0, -1].argmax().item()
3
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headtools.organism.toy_decoder import Attention, eager_attention_forward

SYMBOLS, LENGTH, HEADS, HEAD_DIM = 16, 24, 4, 26
STARTS = (0, 1)  # symbols that begin a sequence and are no letters: nothing copies them
SLOTS = {name: slice(SYMBOLS * i, SYMBOLS * (i + 1)) for i, name in enumerate(("token", "before", "answer", "middle"))}
SLOTS |= {"nowhere": slice(64, 80), "position": slice(80, 80 + LENGTH)}
SHARP = 200.0  # score of heads that look by position


class WrittenAttention(Attention):
    """The toy decoder's attention, in which heads may share keys and values, and queries may see later keys."""

    def __init__(self, config: PreTrainedConfig, kv_heads: int, causal: bool) -> None:
        super().__init__(HEADS * HEAD_DIM, HEADS, config)
        self.is_causal = causal
        self.k_proj, self.v_proj = (nn.Linear(HEADS * HEAD_DIM, kv_heads * HEAD_DIM, bias=False) for _ in range(2))

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """Return what the layer adds: x (B, T, width), position (T, width), mask (1, 1, T, T) -> (B, T, width)."""
        projections = self.q_proj(x + position), self.k_proj(x + position), self.v_proj(x)
        q, k, v = (projection.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for projection in projections)
        k, v = (some.repeat_interleave(HEADS // some.shape[1], 1) for some in (k, v))
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        return self.out_proj(attend(self, q, k, v, mask)[0].flatten(-2))


class WrittenModel(nn.Module):
    """An attention-only model of 4 heads a layer in which every weight is 0 until ``write_head`` writes it.

    ``model(ids)``: symbols (B, T), T at most 24 -> an object with ``logits`` (B, T, 16). It has no norm, no MLP and no
    bias. ``kv_heads`` of 2 or 1 make heads share keys and values; ``causal=False`` makes it an encoder.
    """

    def __init__(self, layers: int, kv_heads: int = HEADS, causal: bool = True) -> None:
        super().__init__()
        self.config = PreTrainedConfig(attn_implementation="eager")
        self.layers = nn.ModuleList(WrittenAttention(self.config, kv_heads, causal) for _ in range(layers))
        self.symbol, self.position = nn.Embedding(SYMBOLS, HEADS * HEAD_DIM), nn.Embedding(LENGTH, HEADS * HEAD_DIM)
        self.unembed = nn.Linear(HEADS * HEAD_DIM, SYMBOLS, bias=False)
        with torch.no_grad():
            for weight in self.parameters():
                weight.zero_()
            self.symbol.weight[:, SLOTS["token"]] = torch.eye(SYMBOLS)
            self.position.weight[:, SLOTS["position"]] = torch.eye(LENGTH)
            self.unembed.weight[:, SLOTS["answer"]] = torch.eye(SYMBOLS)
        self.requires_grad_(False).eval()

    def forward(self, input_ids: Tensor) -> CausalLMOutput:
        """Return the logits, (B, T) -> (B, T, symbols)."""
        length, x = input_ids.shape[1], self.symbol(input_ids)
        position = self.position.weight[:length]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device)
        mask = (mask.tril() if self.layers[0].is_causal else mask)[None, None]
        for layer in self.layers:
            x = x + layer(x, position, mask)
        return CausalLMOutput(logits=self.unembed(x))

    def get_output_embeddings(self) -> nn.Linear:
        """Return the unembedding; transformers' models have a method of this name."""
        return self.unembed


@torch.no_grad()
def write_head(
    model: WrittenModel,
    layer: int,
    head: int,
    match: tuple[str, str] | int,
    into: str,
    size: float = 1.0,
    gain: float = SHARP,
    rest: float | dict[int, float] = 0.0,
    reads: str = "token",
) -> None:
    """Write one head: where it looks, and what it copies from there.

    ``match``: (query's slot, key's slot) looks for keys that hold the symbol of the query, with a score of ``gain``; a
    number looks so many positions back. It copies the slot ``reads`` of these keys ``into`` a slot, times ``size``.
    ``rest``: the first position, of which it copies nothing, has the score ``rest * gain``: where no key has more, the
    head rests there. A dict has such a score for each symbol that may begin a sequence.
    """
    attention, d = model.layers[layer], HEAD_DIM
    kv = head * (attention.k_proj.out_features // d) // HEADS
    q, k, v = (
        w.weight[i * d : (i + 1) * d]
        for w, i in ((attention.q_proj, head), (attention.k_proj, kv), (attention.v_proj, kv))
    )
    strength = gain * d**0.5  # attention divides by the root of the width
    asks, has = match if isinstance(match, tuple) else ("position", "position")
    n = LENGTH if asks == "position" else SYMBOLS
    q[:n, SLOTS[asks]] = strength * (torch.eye(n).roll(-match, 0) if isinstance(match, int) else torch.eye(n))
    k[:n, SLOTS[has]] = torch.eye(n)
    if isinstance(match, int):
        q[n - match :] = 0  # there is nothing so many positions before the first ones
    q[d - 1, SLOTS["position"]] = strength  # every query asks for the symbols that begin a sequence
    k[d - 1, SLOTS["token"]] = torch.tensor(
        [(rest.get(s, 0.0) if isinstance(rest, dict) else rest) if s in STARTS else 0.0 for s in range(SYMBOLS)]
    )
    letters = torch.eye(SYMBOLS)
    letters[list(STARTS)] = 0
    v[:SYMBOLS, SLOTS[reads]] = letters
    attention.out_proj.weight[SLOTS[into], head * d : head * d + SYMBOLS] = size * letters


def write_induction(model: WrittenModel, gain: float, size: float = 8.0) -> None:
    """Write an induction circuit: a previous-token head, 0.0, and a head that finds what followed before, 1.0.

    ``gain`` is how sharp the second head's softmax is: 1 soft, 10 sharp, 100 saturated.
    """
    write_head(model, 0, 0, match=1, into="before")
    write_head(model, 1, 0, match=("token", "before"), into="answer", size=size, gain=gain, rest=0.5)
