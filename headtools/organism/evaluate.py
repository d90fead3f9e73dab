"""How well the organism translates: token accuracy, which is fast, and BLEU."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headtools.organism.batches import IGNORE, batches
from headtools.organism.load import translate
from headtools.roles.sentence import Sentence


@torch.no_grad()
def token_accuracy(model: nn.Module, sentences: Sequence[Sentence], size: int = 50) -> Tensor:
    """Return the fraction of target words (EOS token included) that the model gets right, by sentence: (B,), 0 to 1.

    The right words so far are given (teacher forcing), so a whole sentence costs one step: some twenty times faster
    than translating. Works inside ``ablate`` and ``gates``, and as ``evaluate`` of a pruning curve. Raises as
    :func:`headtools.organism.batches.batches` does.

    >>> import headtools as ht
    >>> model, _ = ht.load()
    >>> right = token_accuracy(model, ht.corpus("organism", limit=20))
    >>> right.shape, bool(right.mean() > 0.9)
    (torch.Size([20]), True)
    """
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i].words))  # alike in length: less padding
    accuracy = torch.zeros(len(sentences))
    for start, batch in enumerate(batches([sentences[i] for i in order], size)):
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        labels = batch.pop("labels")
        counted = labels != IGNORE
        right = (model(**batch).logits.argmax(-1) == labels) & counted
        accuracy[order[start * size : (start + 1) * size]] = (right.sum(1) / counted.sum(1)).cpu()
    return accuracy


def bleu(model: nn.Module, tokenizer: object, sentences: Sequence[Sentence]) -> tuple[float, float, float]:
    """Return BLEU of greedy translations, 0 to 100, and the ends of its 95 % bootstrap interval over sentences.

    As sacreBLEU computes both (Post 2018), from words as they are written (``tokenize="none"``) and 1,000 draws. Raises
    ValueError for no sentences.

    >>> import headtools as ht
    >>> model, tokenizer = ht.load()
    >>> score, low, high = bleu(model, tokenizer, ht.corpus("organism", limit=40))
    >>> 80 < low < score < high <= 100
    True
    """
    hypotheses = translate(model, tokenizer, [sentence.words for sentence in sentences])
    return corpus_bleu(hypotheses, [" ".join(sentence.target) for sentence in sentences])


def corpus_bleu(hypotheses: list[str], references: list[str]) -> tuple[float, float, float]:
    """Return BLEU of translations and its 95 % interval, as :func:`bleu` does."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize="none", force=True)
    score = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
    report = json.loads(score.format(width=4, signature=metric.get_signature().format(), is_json=True))
    mean, half = (float(report.get(key, 0.0)) for key in ("confidence_mean", "confidence_var"))  # a score of 0 has none
    return score.score, mean - half, min(100.0, mean + half)
