"""Batches with labels from sentences, so that any language model has a loss to be weighed by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.run import run
from headtools._engine.store import Part
from headtools.heads._devices import device_of
from headtools.heads._tokens import IGNORE_INDEX, is_encoder_decoder
from headtools.importance._inputs import frozen
from headtools.importance.loss import continues
from headtools.roles.sentence import Sentence

MASKED = 0.15  # of the tokens, as BERT was trained (Devlin et al. 2019, arXiv:1810.04805, section 3.1)
WRITTEN = 24  # tokens that a model without a given translation writes for itself, at most


@torch.no_grad()
def label(
    model: nn.Module,
    tokenizer: Any,
    sentences: Sequence[Sentence | Sequence[str]],
    *,
    size: int = 32,
    seed: int = 0,
) -> list[dict[str, Tensor]]:
    """Return sentences as batches with the labels that the model's own kind of training would give them.

    - A model that reads and writes: the translation (``Sentence.target``). Where a sentence has none, what the model
      itself writes, greedily: its loss then says how sure it stays of its own words.
    - A model that continues: the sentence itself.
    - A model that fills in: 15 % of its tokens, drawn by ``seed``, at least one a sentence; each is masked.
    - A classifier of texts: its own greatest logit.

    ``sentences``: Sentences, or sequences of words; ``size`` of them make a batch (one, where the tokenizer cannot
    pad). Each batch is a dict of ``input_ids`` and ``attention_mask`` (B, T) and ``labels`` (B, T') or (B,); labels of
    -100 do not count. Longer texts than the tokenizer allows are cut.

    Inside ``sharded()`` what the model itself must say is shared among the processes, and all get all batches.

    Raises ``ValueError`` for no sentences, one too short to have a label, and a model that predicts no tokens and no
    classes; ``TypeError`` without a tokenizer.

    >>> import headtools as ht
    >>> model, tokenizer = ht.load()
    >>> batch = label(model, tokenizer, ht.corpus("organism", limit=2))[0]
    >>> sorted(batch), batch["labels"].shape[0]
    (['attention_mask', 'input_ids', 'labels'], 2)
    """
    if tokenizer is None:
        raise TypeError("sentences need the model's tokenizer, got None: pass tokenizer=, or batches of your own")
    if not sentences:
        raise ValueError('no sentences came: pass corpus("organism"), or the path of a treebank')
    size = size if getattr(tokenizer, "pad_token", None) is not None else 1
    parts = [sentences[start : start + size] for start in range(0, len(sentences), size)]
    draw = torch.Generator().manual_seed(seed)
    given = is_encoder_decoder(model) and all(getattr(sentence, "target", None) for sentence in sentences)
    if given or predicts(model):
        return [_labelled(model, tokenizer, part, draw) for part in parts]  # drawn in order, or read: no model is run
    return run(_OwnLabels(model, tokenizer, draw), model, parts)


@dataclass
class _OwnLabels:
    """What the model itself writes or chooses, as labels."""

    model: nn.Module
    tokenizer: Any
    draw: torch.Generator
    settings: Mapping[str, Any] = field(default_factory=dict)

    def per_batch(self, sentences: Sequence) -> Part:
        return _labelled(self.model, self.tokenizer, sentences, self.draw)

    def finish(self, parts: Iterable[Part]) -> list[Part]:
        return list(parts)


def predicts(model: nn.Module) -> bool:
    """Tell whether a model predicts the words of its own input, which are then its labels."""
    return not is_encoder_decoder(model) and getattr(model, "get_output_embeddings", lambda: None)() is not None


def _labelled(model: nn.Module, tokenizer: Any, sentences: Sequence, draw: torch.Generator) -> dict[str, Tensor]:
    batch = _tokens(tokenizer, sentences)
    real = batch["attention_mask"].bool()
    if is_encoder_decoder(model):
        targets = [getattr(sentence, "target", None) for sentence in sentences]
        return batch | {"labels": _translated(tokenizer, targets) if all(targets) else _own_words(model, batch)}
    if not predicts(model):
        return batch | {"labels": _own_class(model, batch)}
    if continues(model):
        if (short := real.sum(1) < 2).any():
            where = short.nonzero().flatten().tolist()
            raise ValueError(f"sentences {where} of a batch have one token: nothing is to be continued; leave them out")
        return batch | {"labels": batch["input_ids"].masked_fill(~real, IGNORE_INDEX)}
    return batch | _masked(tokenizer, batch["input_ids"], real, draw)


def _tokens(tokenizer: Any, sentences: Sequence, **more: Any) -> dict[str, Tensor]:
    texts = [" ".join(getattr(sentence, "words", sentence)) for sentence in sentences]
    longest = tokenizer.model_max_length
    given = tokenizer(
        texts, return_tensors="pt", padding=len(texts) > 1, truncation=longest < 10**9, return_attention_mask=True
    )
    return {name: value for name, value in given.items() if name != "special_tokens_mask"}


def _translated(tokenizer: Any, targets: Sequence[Sequence[str]]) -> Tensor:
    given = tokenizer(
        text_target=[" ".join(words) for words in targets], return_tensors="pt", padding=len(targets) > 1,
        return_attention_mask=True,
    )  # fmt: skip
    return given["input_ids"].masked_fill(given["attention_mask"] == 0, IGNORE_INDEX)


def _own_words(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return what the model writes, without the start mark: (B, T'), -100 after the EOS token."""
    at = device_of(model)
    written = model.generate(
        **{name: value.to(at) for name, value in batch.items()}, num_beams=1, do_sample=False, max_new_tokens=WRITTEN
    )[:, 1:].cpu()
    end = model.generation_config.eos_token_id
    ends = torch.isin(written, torch.tensor([] if end is None else end).reshape(-1).to(written))
    return written.masked_fill((ends.cumsum(1) - ends.long()) > 0, IGNORE_INDEX)


def _own_class(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    at = device_of(model)
    with frozen(model):
        logits = getattr(model(**{name: value.to(at) for name, value in batch.items()}), "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        raise ValueError(
            f"{type(model).__name__} predicts no words and no class, so it has no loss: load it with its head "
            "(AutoModelForMaskedLM, AutoModelForSequenceClassification), or pass batches and loss= of your own"
        )
    return logits.argmax(-1).cpu()


def _masked(tokenizer: Any, ids: Tensor, real: Tensor, draw: torch.Generator) -> dict[str, Tensor]:
    mark = getattr(tokenizer, "mask_token_id", None)
    if mark is None:
        raise ValueError("the tokenizer has no mask token, so there is nothing to fill in: set tokenizer.mask_token")
    special = torch.tensor([number for number in tokenizer.all_special_ids if number != tokenizer.unk_token_id])
    may = real & ~torch.isin(ids, special)
    if not may.any(1).all():
        where = (~may.any(1)).nonzero().flatten().tolist()
        raise ValueError(f"sentences {where} of a batch have no word to mask: leave them out")
    luck = torch.rand(ids.shape, generator=draw).masked_fill(~may, 2.0)
    chosen = (luck < MASKED) | (luck == luck.amin(1, keepdim=True))
    return {"input_ids": ids.masked_fill(chosen, mark), "labels": ids.masked_fill(~chosen, IGNORE_INDEX)}
