"""The loss of each example: one that is given, or the cross-entropy of its labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtools.heads._finite import nonfinite_weights
from headtools.heads._kinds import is_transformers_class
from headtools.heads._tokens import IGNORE_INDEX, is_encoder_decoder, model_inputs, real_from_mask
from headtools.heads.sites import GUESSED_KIND, sites

Loss = Callable[[Any, Mapping], Tensor] | str  # (outputs, batch) -> (B,), or one of FORMS
FORMS = ("causal", "aligned")
_HOW = "pass loss=lambda outputs, batch: ..., one number per example, (B,)"


def label_loss(model: nn.Module, outputs: Any, batch: Mapping, form: str | None = None) -> Tensor:
    """Return each example's cross-entropy in nats, (B,): of its label, or the mean over its labelled tokens.

    ``outputs.logits`` (B, T, V) with ``batch["labels"]`` (B, T) is a translation, a filled-in text or, where the model
    sees only what comes before, a continuation (labels then stand one token further on, as transformers has it). Labels
    of -100 do not count, nor does the first token after padding on the left: nothing stands before it. Logits (B, C)
    with labels (B,) are a classification. The mean is over each example's own tokens, so an example weighs the same
    however long it is.

    ``form`` says which token a label (B, T) belongs to: "causal", the one before its place, which is to predict it, or
    "aligned", the one at its place. Left out, models of transformers have "causal" if they have decoder attention
    (``sites``) and no encoder, as they do themselves; a classifier of tokens has "aligned". For a model written
    elsewhere the labels tell: those that repeat the input are "causal" if the model is, and those that are moved
    already are "aligned". What neither tells is refused.

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
        raise ValueError(f'the batch has no "labels", so it has no loss of its own: add them, or {_HOW}')
    if not isinstance(logits, Tensor) or labels.is_floating_point():
        what = "no logits" if not isinstance(logits, Tensor) else "labels that are no classes"
        raise ValueError(f"{type(model).__name__} came with {what}: {_HOW}")
    labels = labels.to(logits.device).long()
    continued, shape = False, labels.shape
    if logits.dim() == 2 and labels.shape == logits.shape[:1]:
        logits, labels = logits[:, None], labels[:, None]
    elif logits.dim() == 3 and labels.shape == logits.shape[:2]:
        continued = moves_labels(model, batch) if form is None else form == "causal"
        if continued:
            logits, labels = logits[:, :-1], labels[:, 1:]
    else:
        shapes = f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        raise ValueError(f"{shapes} are neither a text nor a classification: {_HOW}")
    counted = labels != IGNORE_INDEX
    if continued:
        counted = counted & _told(batch.get("attention_mask"), shape).to(counted)[:, :-1]
    number = counted.sum(1)
    if not number.all():
        raise ValueError(f"examples {(number == 0).nonzero().flatten().tolist()} of a batch have no label: drop them")
    _check_classes(labels[counted], logits.shape[-1])
    wide = logits[counted].to(torch.promote_types(logits.dtype, torch.float32))
    each = F.cross_entropy(wide, labels[counted], reduction="none")
    return each.new_zeros(len(labels)).index_add(0, counted.nonzero()[:, 0], each) / number


def _told(mask: Any, shape: tuple[int, int]) -> Tensor:
    """Return which tokens may predict the next: what padding predicts depends on how much of it there is."""
    if isinstance(mask, Tensor) and mask.dim() == 4:
        real = real_from_mask(mask, shape)
        if real is None:
            raise ValueError(
                f"attention_mask of shape {tuple(mask.shape)} does not tell which labels follow padding, and those "
                f"have no loss: pass one of shape {tuple(shape)}, or {_HOW}"
            )
        return real
    fits = isinstance(mask, Tensor) and mask.shape == shape
    return mask.bool() if fits else torch.ones(shape, dtype=torch.bool)


def _check_classes(labels: Tensor, classes: int) -> None:
    if classes == 1:
        raise ValueError(f"the examples have one logit for each, which is a number and no class: {_HOW}")
    least, most = labels.min().item(), labels.max().item()
    if least < 0 or most >= classes:
        raise ValueError(
            f"labels from {least} to {most} for {classes} classes, which are 0 to {classes - 1}; labels of "
            f"{IGNORE_INDEX} do not count: check them, or {_HOW}"
        )


def of_labels(loss: Loss | None) -> bool:
    """Tell whether a loss is the labels' cross-entropy, which couples no examples, rather than one of the user's own.

    >>> of_labels(None), of_labels("causal"), of_labels(lambda outputs, batch: outputs.loss)
    (True, True, False)
    """
    return loss is None or isinstance(loss, str)


def each_loss(
    model: nn.Module, batch: Mapping, loss: Loss | None, rows: int | None = None, per: str = "example"
) -> Tensor:
    """Return the loss of each example, (B,); ``label_loss`` where no other is given, or the name of its form.

    With ``per="batch"`` that of the batch, (1,): the mean over its examples, or the one number that ``loss`` returns.

    Raises ``ValueError`` for a loss of another shape, one for other than ``rows`` examples, and NaN or infinity.
    """
    if of_labels(loss):
        each = label_loss(model, model(**model_inputs(model, batch)), batch, loss)
    else:
        each = loss(model(**batch), batch)
    if per == "batch" and isinstance(each, Tensor) and each.dim() < 2 and each.is_floating_point() and each.numel():
        each = each.mean()[None]
    if not isinstance(each, Tensor) or each.dim() != 1 or not each.is_floating_point() or rows not in (None, len(each)):
        what = f"a tensor of shape {tuple(each.shape)}" if isinstance(each, Tensor) else type(each).__name__
        raise ValueError(
            f"the loss must be one number per example, shape ({'B' if rows is None else rows},), got {what}: take "
            "means over tokens only, for instance cross_entropy(..., reduction='none').mean(1); or, for a loss of the "
            'whole batch, such as a contrastive one, write per="batch"'
        )
    if not each.detach().isfinite().all():
        which = (~each.detach().isfinite()).nonzero().flatten().tolist()
        why = nonfinite_weights(model)
        raise ValueError(
            f"the loss of examples {which} is NaN or infinite: it is no finite number" + (f"; {why}" if why else "")
        )
    return each


def continues(model: nn.Module) -> bool:
    """Tell whether a model predicts the next token of its own input, so that labels stand one token further on.

    Raises ``ValueError`` where that would be a guess.
    """
    if is_encoder_decoder(model) or "TokenClassification" in type(model).__name__:
        return False
    found = sites(model)
    if "decoder" in found.kinds:
        return True
    if found.guessed:
        raise ValueError(f"{type(model).__name__}, {found.guessed[0].label}: {GUESSED_KIND}")
    return False


def moves_labels(model: nn.Module, batch: Mapping) -> bool:
    """Tell whether the labels (B, T) of a batch belong to the token before their place.

    So they do in transformers, for every model that continues a text. Who writes a model may as well move labels
    himself, so there the labels are compared with the input. Raises ``ValueError`` where that does not tell.
    """
    if is_transformers_class(type(model)) and not sites(model).guessed:
        return continues(model)
    if is_encoder_decoder(model):
        return False
    found, labels = sites(model), batch["labels"]
    causal = True if "decoder" in found.kinds else None if found.guessed else False
    texts = [value for name, value in batch.items() if _is_text(name, value, labels)]
    if causal is False:
        return False
    if any(_agree(labels, text) for text in texts):
        if causal:
            return True
    elif any(_agree(labels[:, :-1], text[:, 1:]) for text in texts):
        return False
    elif causal is None and texts:
        return False  # other words than those at the same places: filled in, or tags
    about = f"; {found.guessed[0].label}: {GUESSED_KIND}" if causal is None else ""
    raise ValueError(
        f"nothing says whether the labels of {type(model).__name__} belong to the token at their place or to the one "
        f'before it: pass loss="aligned" or loss="causal"; to relevance, a score{about}'
    )


def _is_text(name: str, value: Any, labels: Tensor) -> bool:
    """Tell token ids of a batch, as many as there are labels, from masks, types and positions."""
    other = name == "labels" or any(part in name for part in ("mask", "type", "position"))
    return not other and isinstance(value, Tensor) and (value.shape, value.dtype) == (labels.shape, labels.dtype)


def _agree(labels: Tensor, text: Tensor) -> bool:
    """Tell whether labels that count are the text's own tokens."""
    counted = labels != IGNORE_INDEX
    return bool(counted.any()) and torch.equal(labels[counted], text.to(labels.device)[counted])
