"""Batches with labels from sentences, so that any language model has a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._devices import on_device
from headtools.heads._tokens import IGNORE_INDEX, is_encoder_decoder
from headtools.importance._inputs import evaluating
from headtools.importance.loss import predicts_next_token
from headtools.roles.sentence import Sentence

_MASKED_FRACTION = 0.15  # of the tokens, as BERT was trained (Devlin et al. 2019, arXiv:1810.04805, section 3.1)
_MAX_GENERATED = 24  # tokens that a model generates as its own labels where a sentence has no translation


@torch.no_grad()
def label(
    model: nn.Module, tokenizer: Any, sentences: Sequence[Sentence | Sequence[str]], *, size: int = 32, seed: int = 0
) -> list[dict[str, Tensor]]:
    """Return sentences as batches with the labels of the model's training objective.

    - Encoder-decoder model: ``Sentence.target`` or, where a sentence has none, the model's own greedy output.
    - Causal language model: the sentence itself.
    - Masked language model: 15 % of its tokens, drawn by ``seed``, at least one per sentence; each is masked.
    - Text classifier: the class with its highest logit.

    ``sentences``: Sentences, or sequences of words, cut where the tokenizer's limit is; ``size`` of them make a batch
    (one, where it cannot pad): ``input_ids``, ``attention_mask`` (B, T) and ``labels`` (B, T') or (B,), -100 for none.

    Raises ``ValueError`` for no sentences, one too short to have a label, and a model that predicts neither tokens nor
    classes; ``TypeError`` without a tokenizer and for a sentence that is a plain string.

    >>> import headtools as ht
    >>> model, tokenizer = ht.load()
    >>> batch = label(model, tokenizer, ht.corpus("organism", limit=2))[0]
    >>> sorted(batch), batch["labels"].shape[0]
    (['attention_mask', 'input_ids', 'labels'], 2)
    """
    if tokenizer is None:
        raise TypeError("sentences need the model's tokenizer, got None: pass tokenizer=, or batches of your own")
    _check_words(sentences)
    if not sentences:
        raise ValueError('got no sentences: pass corpus("organism"), or the path of a treebank')
    if predicts_own_input(model) and predicts_next_token(model):
        _check_lengths(tokenizer, sentences)
    generator = torch.Generator().manual_seed(seed)  # masked tokens are drawn batch after batch
    return [_with_labels(model, tokenizer, some, generator) for some in in_batches(tokenizer, sentences, size)]


def in_batches(tokenizer: Any, sentences: Sequence, size: int) -> list[Sequence]:
    """Return ``size`` sentences at a time, or single ones where the tokenizer cannot pad."""
    size = size if getattr(tokenizer, "pad_token", None) is not None else 1
    return [sentences[start : start + size] for start in range(0, len(sentences), size)]


def _check_words(sentences: Any) -> None:
    """Refuse strings, which would be taken for sequences of letters."""
    if isinstance(sentences, str | Sentence):
        raise TypeError("got one sentence; expected a list of them: write label(model, tokenizer, [sentence])")
    for i, sentence in enumerate(sentences):
        if isinstance(sentence, str):
            raise TypeError(
                f"sentences[{i}] is a string; expected its words: write {sentence[:40]!r}.split(), or "
                "text_batches(tokenizer, texts) for texts of a causal model"
            )


def _check_lengths(tokenizer: Any, sentences: Sequence) -> None:
    """Refuse sentences of one token, after which nothing is predicted, by their place in the list."""
    texts = map(_text, sentences)
    short = [i for i, text in enumerate(texts) if len(tokenizer([text], verbose=False)["input_ids"][0]) < 2]
    if short:
        raise ValueError(
            f"sentences {short[:10]} have fewer than two tokens ({_text(sentences[short[0]])!r}), so nothing is "
            "predicted in them: leave them out, or write text_batches(tokenizer, texts), which skips and counts them"
        )


def _text(sentence: Sentence | Sequence[str]) -> str:
    return " ".join(getattr(sentence, "words", sentence))


def predicts_own_input(model: nn.Module) -> bool:
    """Tell whether a model predicts the tokens of its own input, which are then its labels."""
    return not is_encoder_decoder(model) and getattr(model, "get_output_embeddings", lambda: None)() is not None


def _with_labels(
    model: nn.Module, tokenizer: Any, sentences: Sequence, generator: torch.Generator
) -> dict[str, Tensor]:
    batch = tokenize(tokenizer, sentences)
    real = batch["attention_mask"].bool()
    if is_encoder_decoder(model):
        targets = [getattr(sentence, "target", None) for sentence in sentences]
        if not all(targets):
            return batch | {"labels": _own_words(model, batch)}
        how = {"return_tensors": "pt", "padding": len(targets) > 1, "return_attention_mask": True}
        encoding = tokenizer(text_target=[" ".join(words) for words in targets], **how)
        return batch | {"labels": encoding["input_ids"].masked_fill(encoding["attention_mask"] == 0, IGNORE_INDEX)}
    if not predicts_own_input(model):
        logits = class_logits(model, batch)
        if logits is None:
            raise ValueError(
                f"{type(model).__name__} predicts neither tokens nor a class, so it has no loss: load it with its head "
                "(AutoModelForMaskedLM, AutoModelForSequenceClassification), or pass batches and loss= of your own"
            )
        return batch | {"labels": logits.argmax(-1).cpu()}
    if predicts_next_token(model):
        return batch | {"labels": batch["input_ids"].masked_fill(~real, IGNORE_INDEX)}
    return batch | _masked(tokenizer, batch["input_ids"], real, generator)


def tokenize(tokenizer: Any, sentences: Sequence) -> dict[str, Tensor]:
    """Return sentences as one batch of ``input_ids``, ``attention_mask`` and whatever else the model reads."""
    texts = [_text(sentence) for sentence in sentences]
    has_limit = tokenizer.model_max_length < 10**9  # transformers writes 10**30 for "none"
    encoding = tokenizer(
        texts, return_tensors="pt", padding=len(texts) > 1, truncation=has_limit, return_attention_mask=True
    )
    return {name: value for name, value in encoding.items() if name != "special_tokens_mask"}


def _own_words(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the model's greedy output without its start token: (B, T'), -100 after the EOS token."""
    greedy = {"num_beams": 1, "do_sample": False, "max_new_tokens": _MAX_GENERATED}
    output = model.generate(**on_device(model, batch), **greedy)[:, 1:].cpu()
    eos = model.generation_config.eos_token_id
    is_eos = torch.isin(output, torch.tensor([] if eos is None else eos).reshape(-1).to(output))
    return output.masked_fill((is_eos.cumsum(1) - is_eos.long()) > 0, IGNORE_INDEX)


@torch.no_grad()
def class_logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor | None:
    """Return a classifier's logits, (B, classes); None for any other model."""
    with evaluating(model):
        logits = getattr(model(**on_device(model, batch)), "logits", None)
    return logits if isinstance(logits, Tensor) and logits.dim() == 2 else None


def _masked(tokenizer: Any, ids: Tensor, real: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    mask_token = getattr(tokenizer, "mask_token_id", None)
    if mask_token is None:
        raise ValueError("the tokenizer has no mask token, so no token can be masked: set tokenizer.mask_token")
    special_tokens = torch.tensor([id_ for id_ in tokenizer.all_special_ids if id_ != tokenizer.unk_token_id])
    candidates = real & ~torch.isin(ids, special_tokens)
    if not candidates.any(1).all():
        indices = (~candidates.any(1)).nonzero().flatten().tolist()
        raise ValueError(f"sentences {indices} of a batch have no token to mask: leave them out")
    uniform = torch.rand(ids.shape, generator=generator).masked_fill(~candidates, 2.0)
    masked = (uniform < _MASKED_FRACTION) | (uniform == uniform.amin(1, keepdim=True))  # at least one per sentence
    return {"input_ids": ids.masked_fill(masked, mask_token), "labels": ids.masked_fill(~masked, IGNORE_INDEX)}
