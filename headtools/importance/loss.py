"""The loss of each example: the user's, or the cross-entropy of its labels.

Requirements:

1. Every loss is per example, (B,), and an example weighs the same however many tokens it has; the losses that models
   return are means over all tokens of a batch.
2. Where a label belongs (at its token, or one token further on, as in a causal language model) is known for models of
   transformers and inferred for others; where it would be a guess, it is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtools.heads._checks import nonfinite_weights
from headtools.heads._kinds import is_transformers_class
from headtools.heads._tokens import IGNORE_INDEX, is_encoder_decoder, model_inputs, real_from_mask
from headtools.heads.sites import GUESSED_KIND, sites

Loss = Callable[[Any, Mapping], Tensor] | str  # (outputs, batch) -> (B,), or one of FORMS
FORMS = ("causal", "aligned")
_FIX = "pass loss=lambda outputs, batch: ..., one number per example, (B,)"
COUPLED = (
    "the loss of one example changes with what heads do for another, so it is no loss of this example: write "
    'per="batch" to measure the loss of each batch as one number (loss may then return just that), or compute each '
    "loss from its own example only"
)


def label_loss(model: nn.Module, outputs: Any, batch: Mapping, form: str | None = None) -> Tensor:
    """Return each example's cross-entropy in nats, (B,): of its label, or the mean over its labelled tokens.

    ``outputs.logits`` (B, T, V) come with ``batch["labels"]`` (B, T), or (B, C) with (B,) for a classification. Labels
    of -100 do not count, nor does the first token after padding on the left, which no token before it predicts.

    ``form`` says which token's logits a label (B, T) belongs to: "causal", those of the token before it, or "aligned",
    its own. By default decoders of transformers are "causal" and its other models "aligned"; for models written
    elsewhere the labels decide (equal to the input, or shifted already), and where they do not, the batch is refused.

    Raises ``ValueError`` for outputs or labels of another form, and for an example without a label.

    >>> from types import SimpleNamespace as Outputs
    >>> outputs, batch = Outputs(logits=torch.zeros(2, 4)), {"labels": torch.tensor([3, 0])}
    >>> label_loss(nn.Identity(), outputs, batch)  # log 4
    tensor([1.3863, 1.3863])
    """
    if form not in (None, *FORMS):
        raise ValueError(f'a loss is loss(outputs, batch) -> (B,), "causal" or "aligned"; got {form!r}')
    logits, labels = getattr(outputs, "logits", None), batch.get("labels")
    if not isinstance(labels, Tensor):
        raise ValueError(f'the batch has no "labels", so it has no loss: add them, or {_FIX}')
    if not isinstance(logits, Tensor) or labels.is_floating_point():
        got = "no logits" if not isinstance(logits, Tensor) else "labels that are not classes"
        raise ValueError(f"{type(model).__name__}: got {got}: {_FIX}")
    labels = labels.to(logits.device).long()
    causal, shape = False, labels.shape
    if logits.dim() == 2 and labels.shape == logits.shape[:1]:
        logits, labels = logits[:, None], labels[:, None]
    elif logits.dim() == 3 and labels.shape == logits.shape[:2]:
        causal = labels_need_shift(model, batch) if form is None else form == "causal"
        if causal:
            logits, labels = logits[:, :-1], labels[:, 1:]
    else:
        shapes = f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        raise ValueError(f"{shapes} are neither a text nor a classification: {_FIX}")
    counted = labels != IGNORE_INDEX
    if causal:
        counted = counted & can_predict(batch.get("attention_mask"), shape).to(counted)[:, :-1]
    n_labels = counted.sum(1)
    if not n_labels.all():
        raise ValueError(f"examples {(n_labels == 0).nonzero().flatten().tolist()} of a batch have no label: drop them")
    lowest, highest, classes = labels[counted].min().item(), labels[counted].max().item(), logits.shape[-1]
    if classes == 1:
        raise ValueError(f"the model has one logit per example, which is a regression and not a classification: {_FIX}")
    if lowest < 0 or highest >= classes:
        raise ValueError(
            f"labels from {lowest} to {highest} for {classes} classes, which are 0 to {classes - 1}; labels of "
            f"{IGNORE_INDEX} do not count: check them, or {_FIX}"
        )
    # Only labelled positions go through the softmax, in float32 or wider: (n, V) -> (n,), then summed by example.
    selected = logits.flatten(0, 1) if bool(counted.all()) else logits[counted]  # choosing copies: not where all are
    upcast = selected.to(torch.promote_types(logits.dtype, torch.float32))
    token_losses = F.cross_entropy(upcast, labels[counted], reduction="none")
    return _means_by_example(token_losses, counted)


def labels_only_loss(model: nn.Module, batch: Mapping) -> Tensor:
    """Return what ``label_loss`` says of a pass over the batch, (B,), with logits at labelled positions alone.

    Where the vocabulary is large, the layer that turns states into logits costs as much as all others together, and
    neither padding nor tokens that are not masked need its work. Models that are not of transformers or have no such
    layer compute all logits. Without gradients. Raises ``ValueError`` as ``label_loss`` does.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
    >>> model, ids = BertForMaskedLM(tiny).eval(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> batch = {"input_ids": ids, "labels": torch.tensor([[-100, 7, -100], [8, -100, 1]])}
    >>> torch.allclose(labels_only_loss(model, batch), label_loss(model, model(input_ids=ids), batch), atol=1e-6)
    True
    """
    labels, inputs = batch.get("labels"), model_inputs(model, batch)
    unembedding = getattr(model, "get_output_embeddings", lambda: None)()
    of_tokens = isinstance(labels, Tensor) and labels.dim() == 2 and not labels.is_floating_point()
    if not of_tokens or type(unembedding) is not nn.Linear or not type(model).__module__.startswith("transformers."):
        with torch.no_grad():
            return label_loss(model, model(**inputs), batch)
    labelled = labels != IGNORE_INDEX
    if labels_need_shift(model, batch):  # states and labels of one index belong together from here on
        real = can_predict(batch.get("attention_mask"), labels.shape).to(labels.device)
        labelled = torch.cat([labelled[:, 1:] & real[:, :-1], torch.zeros_like(labelled[:, :1])], 1)
        labels = labels.roll(-1, 1)
    seen = []

    def keep_labelled(_layer: nn.Module, given: tuple) -> tuple[Tensor, ...]:
        seen.append(given[0].shape)
        if seen != [(*labels.shape, unembedding.in_features)]:  # a model that calls the layer in a way of its own
            return given
        return given[0][labelled.to(given[0].device)][None], *given[1:]

    hook = unembedding.register_forward_pre_hook(keep_labelled)
    try:
        with torch.no_grad():
            outputs = model(**inputs)
    finally:
        hook.remove()
    logits = getattr(outputs, "logits", None)
    if not labelled.any(1).all() or getattr(logits, "shape", ())[:2] != (1, int(labelled.sum())):
        with torch.no_grad():
            return label_loss(model, model(**inputs), batch)
    outputs.logits = logits[0]  # as if each labelled token were an example
    return _means_by_example(label_loss(model, outputs, {"labels": labels[labelled]}), labelled)


def _means_by_example(token_losses: Tensor, counted: Tensor) -> Tensor:
    """Return the mean of each example's losses, (n,) -> (B,); ``counted``, (B, T), says where they belong."""
    counted = counted.to(token_losses.device)
    return token_losses.new_zeros(len(counted)).index_add(0, counted.nonzero()[:, 0], token_losses) / counted.sum(1)


def can_predict(mask: Any, shape: tuple[int, int]) -> Tensor:
    """Return which tokens may predict the next: not padding, whose prediction depends on the length of the batch."""
    if isinstance(mask, Tensor) and mask.dim() == 4:
        real = real_from_mask(mask, shape)
        if real is None:
            raise ValueError(
                f"attention_mask of shape {tuple(mask.shape)} does not tell which labels follow padding, and those "
                f"have no loss: pass one of shape {tuple(shape)}, or {_FIX}"
            )
        return real
    has_shape = isinstance(mask, Tensor) and mask.shape == shape
    return mask.bool() if has_shape else torch.ones(shape, dtype=torch.bool)


def of_labels(loss: Loss | None) -> bool:
    """Tell whether a loss is the labels' cross-entropy, which couples no examples, and not one of the user's."""
    return loss is None or isinstance(loss, str)


def rounding(model: nn.Module, losses: Tensor) -> float:
    """Return how far losses may differ that are equal but for the order of operations."""
    dtype = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)
    return max(1e-5, 4 * torch.finfo(dtype).eps) * losses.abs().max().item()


def check_loss(loss: Loss | None, what: str = "loss") -> None:
    """Raise ``TypeError`` for a loss (or score) of one's own that does not take two arguments."""
    if of_labels(loss):
        return
    try:
        inspect.signature(loss).bind(None, None)
    except (TypeError, ValueError):
        name = getattr(loss, "__name__", type(loss).__name__)
        raise TypeError(
            f"a {what} is called as {what}(outputs, batch), and {name} does not take two arguments: write "
            f"def {name}(outputs, batch): ..., one number for each example, (B,)"
        ) from None


def each_loss(
    model: nn.Module, batch: Mapping, loss: Loss | None, n_examples: int | None = None, per: str = "example"
) -> Tensor:
    """Return the loss of each example, (B,); ``label_loss`` where no other is given, or the name of its form.

    With ``per="batch"`` that of the batch, (1,): the mean over its examples, or the one number that ``loss`` returns.

    Raises ``ValueError`` for a loss of another shape or another number of examples than ``n_examples``, and for NaN or
    infinity.
    """
    check_loss(loss)
    if of_labels(loss):
        losses = label_loss(model, model(**model_inputs(model, batch)), batch, loss)
    else:
        losses = loss(model(**batch), batch)
    is_float = isinstance(losses, Tensor) and losses.is_floating_point()
    if per == "batch" and is_float and losses.dim() < 2 and losses.numel():
        losses = losses.mean()[None]
    check_losses(model, losses, n_examples)
    return losses


def check_losses(model: nn.Module, losses: Any, n_examples: int | None = None) -> None:
    """Raise ``ValueError`` unless losses are one finite number per example, (B,)."""
    is_float = isinstance(losses, Tensor) and losses.is_floating_point()
    if not is_float or losses.dim() != 1 or n_examples not in (None, len(losses)):
        expected = f"({'B' if n_examples is None else n_examples},)"
        got = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"the loss must be one number per example, shape {expected}, got {got}: take "
            "means over tokens only, for instance cross_entropy(..., reduction='none').mean(1); or, for a loss of the "
            'whole batch, such as a contrastive one, write per="batch"'
        )
    if not losses.detach().isfinite().all():
        indices = (~losses.detach().isfinite()).nonzero().flatten().tolist()
        cause = nonfinite_weights(model)
        raise ValueError(
            f"the loss of examples {indices} is NaN or infinite: it is no finite number"
            + (f"; {cause}" if cause else "")
        )


def predicts_next_token(model: nn.Module) -> bool:
    """Tell whether a model predicts the next token of its own input, as causal language models do.

    Raises ``ValueError`` where that would be a guess.
    """
    if is_encoder_decoder(model) or "TokenClassification" in type(model).__name__:
        return False
    every_site = sites(model)
    if "decoder" in every_site.kinds:
        return True
    if every_site.guessed:
        raise ValueError(f"{type(model).__name__}, {every_site.guessed[0].label}: {GUESSED_KIND}")
    return False


def labels_need_shift(model: nn.Module, batch: Mapping) -> bool:
    """Tell whether the labels (B, T) of a batch are to be compared with the logits of the token before them.

    In transformers they are for every causal language model. The author of another model may shift labels when making
    batches, so its labels are compared with the input. Raises ``ValueError`` where that does not decide.
    """
    every_site, labels = sites(model), batch["labels"]
    causal = None if every_site.guessed and "decoder" not in every_site.kinds else "decoder" in every_site.kinds
    if is_encoder_decoder(model) or causal is False or "TokenClassification" in type(model).__name__:
        return False  # an encoder-decoder shifts its decoder's input, not the labels
    if is_transformers_class(type(model)) and not every_site.guessed:
        return True
    counted, inputs = labels != IGNORE_INDEX, []
    for name, ids in batch.items():  # token ids, one per label, and not a mask, types or positions
        is_other = name == "labels" or any(word in name for word in ("mask", "type", "position"))
        if not is_other and isinstance(ids, Tensor) and (ids.shape, ids.dtype) == (labels.shape, labels.dtype):
            inputs.append(ids.to(labels.device))
    if counted.any() and any(torch.equal(labels[counted], ids[counted]) for ids in inputs):  # labels repeat the input
        if causal:
            return True
    elif counted[:, :-1].any() and any(
        torch.equal(labels[:, :-1][counted[:, :-1]], ids[:, 1:][counted[:, :-1]]) for ids in inputs
    ):
        return False  # labels are shifted already
    elif causal is None and inputs:
        return False  # labels are other tokens than the input's: masked ones, or tags
    about = f"; {every_site.guessed[0].label}: {GUESSED_KIND}" if causal is None else ""
    raise ValueError(
        f"nothing says whether the labels of {type(model).__name__} belong to the token at their position or to the "
        f'one before it: pass loss="aligned" or loss="causal"; to relevance, a score{about}'
    )
