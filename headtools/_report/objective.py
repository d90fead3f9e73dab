"""What importance is measured by: the loss a model was trained with or, without one, the change of its output.

``objective`` chooses for a model, ``output_change`` and ``output_projection`` are losses that need no labels.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._tokens import is_encoder_decoder, model_inputs, real_tokens
from headtools.heads.scores import HeadScores
from headtools.heads.sites import sites
from headtools.importance._inputs import each_batch, evaluating
from headtools.importance.ablation import ablation
from headtools.importance.gradient import gradient
from headtools.importance.labels import class_logits, in_batches, label, predicts_own_input, tokenize
from headtools.importance.loss import Loss, predicts_next_token

OBJECTIVES = {
    "lm": "cross-entropy of the next token",
    "mlm": "cross-entropy of masked tokens",
    "class": "cross-entropy of the class the model itself chooses",
    "output": "change of the model's output",
}
# The inputs that identify an example; other tensors of a batch may be shared by all its examples.
_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features", "token_type_ids")
_INPUTS += ("attention_mask", "decoder_input_ids", "decoder_attention_mask")


def output_change(model: nn.Module, batches: Mapping | Sequence[Mapping]) -> Loss:
    """Return a loss that needs no labels: how far the output moves from that of the model as it is now.

    The Euclidean distance between each example's output and that of the model as it is now, by the latter's norm, (B,):
    0.1 is a change by a tenth. The output is ``last_hidden_state``, or ``logits`` minus their mean; padding does not
    count. ``batches`` are run here, and the loss takes only their examples. At its minimum it has no slope: it is for
    ``ablation`` and ``curve``, and ``gradient`` takes ``output_projection``.

    Raises ``ValueError`` for a model with no such output; the loss does for another example, and for a gradient.

    >>> import headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model, batch = BertModel(tiny), {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]])}
    >>> scores = ht.ablation(model, batch, output_change(model, batch), progress=False)
    >>> bool((scores.flat() > 0).all())
    True
    """
    originals: dict[bytes, Tensor] = {}
    with evaluating(model), torch.no_grad():
        for batch in each_batch(model, batches):
            output = _output(model(**model_inputs(model, batch)))
            for key, original in zip(_keys(batch, len(output)), output.float().cpu(), strict=True):
                first = originals.setdefault(key, original)
                if not torch.allclose(first, original, rtol=1e-2, atol=1e-3 * original.abs().max().item()):
                    raise ValueError(
                        f"two examples with the same {', '.join(n for n in _INPUTS if n in batch)} have different "
                        "outputs, so they cannot be told apart: leave one of them out"
                    )

    def loss(outputs: Any, batch: Mapping) -> Tensor:
        output = _output(outputs)
        if output.requires_grad:
            raise ValueError(
                "output_change has no slope where nothing is changed yet: pass loss=output_projection(model) to "
                "gradient, or measure with ablation"
            )
        keys = list(_keys(batch, len(output)))
        if not originals.keys() >= set(keys):
            raise ValueError(
                "got an example whose unchanged output is not known: make the loss with "
                "output_change(model, batches), of the same batches"
            )
        original, counted = (
            torch.stack([originals[key] for key in keys]).to(output.device),
            _counted(model, batch, output),
        )
        return _norm((output.float() - original) * counted) / _norm(original * counted)

    return loss


def output_projection(model: nn.Module, seed: int = 0) -> Loss:
    """Return a loss for ``gradient`` whose mean absolute slope is, to first order, what ``output_change`` measures.

    It projects each example's output y on a direction u ~ N(0, 1), drawn from ``seed`` and the batch's content. The
    slope u . dy/dgate is then normal with mean absolute value |dy/dgate| sqrt(2 / pi); this factor is divided out. An
    example's number is mostly noise, the mean over examples is not.

    >>> import headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model, batch = BertModel(tiny), {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]])}
    >>> scores = ht.gradient(model, batch, output_projection(model))
    >>> bool((scores.flat() > 0).all())
    True
    """

    def loss(outputs: Any, batch: Mapping) -> Tensor:
        output = _output(outputs)
        # Of the content, not of the position: the same batch gets the same directions in every run and process.
        content = zlib.crc32(b"".join(_keys(batch, len(output))))
        # torch uses the lower 32 bits of a seed; an odd factor keeps the directions of two seeds apart
        generator = torch.Generator().manual_seed((content + 7919 * seed) % 2**32)
        directions = torch.randn(output.shape, generator=generator).to(output.device)
        counted = _counted(model, batch, output)
        # u . y for a normal u: by each gate its slope is normal with the deviation |dy/dgate|.
        projected = (output.float() * directions * counted).flatten(1).sum(1)
        return projected * math.sqrt(math.pi / 2) / _norm(output.detach().float() * counted)

    return loss


def _output(outputs: Any) -> Tensor:
    """Return a model's output, (B, ...)."""
    hidden, logits = getattr(outputs, "last_hidden_state", None), getattr(outputs, "logits", None)
    if isinstance(hidden, Tensor):
        return hidden
    if isinstance(logits, Tensor):
        # The softmax ignores what all logits share, so that a change of their mean is no change.
        return logits - logits.mean(-1, keepdim=True)
    raise ValueError(
        f"the model returned {type(outputs).__name__}; expected last_hidden_state or logits, to measure how its output "
        "changes: pass loss=lambda outputs, batch: ..., one number per example, (B,)"
    )


def _counted(model: nn.Module, batch: Mapping, output: Tensor) -> Tensor:
    """Return 1 where an output belongs to a real token and 0 where to padding, broadcastable to the output."""
    if output.dim() < 3:  # one output per example, such as a classifier's logits
        return torch.ones_like(output)
    last = [site for site in sites(model) if site.kind != "cross"][-1]  # its tokens are those of the output
    real = real_tokens(model, last, batch, output.shape[:2]).to(output)
    return real.reshape(*real.shape, *[1] * (output.dim() - 2))


def _norm(outputs: Tensor) -> Tensor:
    return outputs.flatten(1).norm(dim=1)  # (B, ...) -> (B,)


def _keys(batch: Mapping, size: int) -> Iterator[bytes]:
    """Give one key for each example of a batch: the shapes and bytes of its inputs."""
    inputs = [value.cpu() for name in _INPUTS if isinstance(value := batch.get(name), Tensor) and len(value) == size]
    for tensors in zip(*inputs, strict=True):
        flat = [tensor.detach().contiguous().flatten().view(torch.uint8).numpy() for tensor in tensors]
        yield b"".join(str(t.shape).encode() + part.tobytes() for t, part in zip(tensors, flat, strict=True))


@dataclass(frozen=True)
class Objective:
    """What the importance of a model's heads is measured by: ``name``, one of ``OBJECTIVES``, and its batches."""

    model: nn.Module
    tokenizer: Any
    name: str
    seed: int = 0

    @property
    def description(self) -> str:
        """The objective in words, for tables and messages."""
        translates = self.name == "lm" and writes(self.model)
        return "cross-entropy of the translation's tokens" if translates else OBJECTIVES[self.name]

    def batches(self, sentences: Sequence, size: int = 32) -> list[dict[str, Tensor]]:
        """Return sentences as batches for this objective; ``size`` of them make a batch."""
        if self.name == "output" and not writes(self.model):
            return unlabelled(self.tokenizer, sentences, size)
        return label(self.model, self.tokenizer, sentences, size=size, seed=self.seed)

    def gradient(self, batches: Sequence[Mapping], **options: Any) -> HeadScores:
        """Measure importance by gradient; options are those of ``headtools.gradient``."""
        if self.name != "output":
            return gradient(self.model, batches, **options)
        scores = gradient(self.model, batches, output_projection(self.model, self.seed), **options)
        return replace(scores, name="output change by gradient")

    def ablation(self, batches: Sequence[Mapping], **options: Any) -> HeadScores:
        """Measure importance by ablation; options are those of ``headtools.ablation``."""
        scores = ablation(self.model, batches, self.loss(batches), **options)
        return replace(scores, name="output change by ablation") if self.name == "output" else scores

    def loss(self, batches: Sequence[Mapping]) -> Loss | None:
        """Return the loss on these batches; None stands for the cross-entropy of their labels."""
        return output_change(self.model, batches) if self.name == "output" else None


def objective(
    model: nn.Module, tokenizer: Any, sentences: Sequence, name: str | None = None, seed: int = 0
) -> Objective:
    """Return what to measure the importance of a model's heads by: its own loss, or ``name``, one of ``OBJECTIVES``.

    An encoder-decoder and a causal language model have "lm", a masked language model "mlm", a text classifier "class";
    a model without logits, such as a bare encoder, has "output", which every other model can have, too.

    Raises ``ValueError`` for a loss that the model cannot have, with the reason, and ``TypeError`` without a tokenizer.

    >>> import headtools as ht
    >>> model, tokenizer = ht.load()
    >>> sentences = ht.corpus("organism", limit=2)
    >>> objective(model, tokenizer, sentences).name, objective(model, tokenizer, sentences, "output").name
    ('lm', 'output')
    """
    if name not in (None, *OBJECTIVES):
        raise ValueError(f"a loss is one of {', '.join(OBJECTIVES)}; got {name!r}")
    first = unlabelled(tokenizer, sentences[:1])
    if writes(model):
        if getattr(model, "get_output_embeddings", lambda: None)() is None:
            raise ValueError(
                f"{type(model).__name__} is an encoder-decoder without its head, so it has no labels for its decoder "
                "to read: load it with its head (AutoModelForSeq2SeqLM)"
            )
        own = "lm"
    elif predicts_own_input(model):
        own = "lm" if predicts_next_token(model) else "mlm"
    else:
        own = "output" if class_logits(model, first[0]) is None else "class"
    if name not in (None, "output", own):
        raise ValueError(
            f"{type(model).__name__} has no {name} loss ({OBJECTIVES[name]}): write {own} ({OBJECTIVES[own]})"
            + ("" if own == "output" else " or output")
        )
    return Objective(model, tokenizer, name or own, seed)


def writes(model: nn.Module) -> bool:
    """Tell whether a model reads one sequence and writes another; the encoder of such a model alone does not."""
    return is_encoder_decoder(model) and "decoder" in sites(model).kinds


def unlabelled(tokenizer: Any, sentences: Sequence, size: int = 32) -> list[dict[str, Tensor]]:
    """Return sentences as batches of tokens, for what needs no labels; ``size`` of them make a batch.

    Texts longer than the tokenizer allows are truncated. Raises ``TypeError`` without a tokenizer.
    """
    if tokenizer is None:
        raise TypeError("sentences need the model's tokenizer, got None: save it in the model's folder")
    return [tokenize(tokenizer, some) for some in in_batches(tokenizer, sentences, size)]
