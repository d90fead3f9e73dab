"""The models that benchmarks run: random, of ordinary sizes, the same weights in every environment.

Nothing here needs headtools, so that a peer in an environment of its own builds the very same model: its weights are
drawn from their names, not by the initialisation of one version of transformers. ``size`` is "full" for the sizes that
are told, "tiny" for tests.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 1000  # small, so that the heads' part of the work is not hidden behind the last layer
SPREAD = 0.04  # of the weights: maps that are neither flat nor one-hot


@dataclass(frozen=True)
class Size:
    """How large a model and its batch are; ``layers`` counts one stack."""

    layers: int
    width: int
    heads: int
    inner: int
    rows: int = 4
    tokens: int = 64


FULL = {"bert": Size(12, 768, 12, 3072), "gpt2": Size(12, 768, 12, 3072), "marian": Size(6, 512, 8, 2048)}
TINY = Size(2, 16, 2, 32, 2, 6)
NAMES = {"bert": "BERT-base", "gpt2": "GPT-2 small", "marian": "Marian base"}


@dataclass(frozen=True)
class Subject:
    """A model, what it takes, and the ids that its loss asks for."""

    name: str
    model: nn.Module
    batch: dict[str, Tensor]
    labels: Tensor
    size: Size

    def part(self, rows: int) -> Subject:
        """Return the same model with the first rows of the batch."""
        some = {name: value[:rows] if isinstance(value, Tensor) else value for name, value in self.batch.items()}
        return replace(self, batch=some, labels=self.labels[:rows])


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return every example's mean cross-entropy over its tokens, (B,).

    >>> loss(torch.zeros(2, 3, 5), torch.zeros(2, 3).long())
    tensor([1.6094, 1.6094])
    """
    return functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(1)


def size_of(kind: str, size: str = "full", **changes: int) -> Size:
    """Return the size of a kind of model, with changes: ``size_of("bert", layers=4)``."""
    return replace(TINY if size == "tiny" else FULL[kind], **changes)


def make(kind: str, size: Size) -> Subject:
    """Return a random model of this kind ("bert", "gpt2", "marian") and size with a batch, the same everywhere."""
    model = MAKERS[kind](size).eval()
    fill(model)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(10, VOCABULARY, (2, size.rows, size.tokens), generator=draw)
    batch = {"input_ids": ids[0]}
    if kind == "gpt2":
        batch["use_cache"] = False
    if kind == "marian":
        batch |= {"decoder_input_ids": ids[1], "use_cache": False}
    labels = torch.randint(10, VOCABULARY, (size.rows, size.tokens), generator=draw)
    layers = f"{size.layers} + {size.layers}" if kind == "marian" else size.layers
    return Subject(f"{NAMES[kind]}, {layers} layers, {size.rows} x {size.tokens} tokens", model, batch, labels, size)


def bert(size: Size) -> nn.Module:
    """A masked language model like BERT's."""
    config = transformers.BertConfig(
        num_hidden_layers=size.layers,
        hidden_size=size.width,
        num_attention_heads=size.heads,
        intermediate_size=size.inner,
        vocab_size=VOCABULARY,
    )
    return transformers.BertForMaskedLM(config)


def gpt2(size: Size) -> nn.Module:
    """A language model like GPT-2."""
    config = transformers.GPT2Config(
        n_layer=size.layers,
        n_embd=size.width,
        n_head=size.heads,
        n_inner=size.inner,
        vocab_size=VOCABULARY,
        bos_token_id=1,
        eos_token_id=1,
    )
    return transformers.GPT2LMHeadModel(config)


def marian(size: Size) -> nn.Module:
    """A translation model like Marian's and Voita's base models; ``size.layers`` in each stack."""
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY,
        d_model=size.width,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=size.inner,
        decoder_ffn_dim=size.inner,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
    )
    return transformers.MarianMTModel(config)


MAKERS: dict[str, Callable[[Size], nn.Module]] = {"bert": bert, "gpt2": gpt2, "marian": marian}


@torch.no_grad()
def fill(model: nn.Module) -> None:
    """Draw every weight anew from its name; gains of norms lie around 1. Sinusoids stay as their formula has them."""
    for name, weight in model.named_parameters():
        if "embed_positions" in name:
            continue
        draw = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        noise = torch.randn(weight.shape, generator=draw) * SPREAD
        gain = weight.dim() == 1 and name.endswith("weight")
        weight.copy_(noise + 1 if gain else noise)
