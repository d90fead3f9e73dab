"""How well the organism translates: token accuracy, which is fast, BLEU, and the features of the predicted words."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from headtools.heads.intervals import linearised_ratio
from headtools.organism.batches import IGNORE, batches
from headtools.organism.features import FEATURES, feature
from headtools.organism.load import translate
from headtools.organism.translation import PHENOMENA
from headtools.organism.vocabulary import SPECIAL, vocabulary
from headtools.roles.sentence import Sentence


@torch.no_grad()
def token_accuracy(model: nn.Module, sentences: Sequence[Sentence], size: int = 50) -> Tensor:
    """Return the fraction of target words (EOS token included) that the model gets right, by sentence: (B,), 0 to 1.

    The preceding reference words are given (teacher forcing), so a sentence takes a single pass: about twenty times
    faster than translating. Works inside ``ablate`` and ``gates``, and as ``evaluate`` of a pruning curve. Raises as
    :func:`headtools.organism.batches.batches` does.

    >>> import headtools as ht
    >>> model, _ = ht.load()
    >>> accuracy = token_accuracy(model, ht.corpus("organism", limit=20))
    >>> accuracy.shape, bool(accuracy.mean() > 0.9)
    (torch.Size([20]), True)
    """
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i].words))  # by length: less padding
    accuracy = torch.zeros(len(sentences))
    for start, batch in enumerate(batches([sentences[i] for i in order], size)):
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        labels = batch.pop("labels")
        is_word = labels != IGNORE
        correct = (model(**batch).logits.argmax(-1) == labels) & is_word
        accuracy[order[start * size : (start + 1) * size]] = (correct.sum(1) / is_word.sum(1)).cpu()
    return accuracy


def bleu(model: nn.Module, tokenizer: object, sentences: Sequence[Sentence]) -> tuple[float, float, float]:
    """Return BLEU of greedy translations, 0 to 100, and the ends of its 95 % bootstrap interval over sentences.

    As sacreBLEU computes both (Post 2018), with ``tokenize="none"``, since the words are separated by spaces already,
    and 1,000 bootstrap samples. Raises ValueError for no sentences.

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
    # sacreBLEU calls half of the interval's width confidence_var; for a score of 0 it reports neither.
    mean, half_width = (float(report.get(key, 0.0)) for key in ("confidence_mean", "confidence_var"))
    return score.score, mean - half_width, min(100.0, mean + half_width)


@torch.no_grad()
def predicted_features(
    model: nn.Module, sentences: Sequence[Sentence], name: str, needs: str | None = None, batch_size: int = 50
) -> pd.DataFrame:
    """Return the value of a feature in each word that the model predicts, and the value in the reference word.

    For interventions that change what a word says instead of making it wrong. ``name``: one of
    :data:`headtools.organism.features.FEATURES`; ``needs`` keeps only target words that depend on this one of the
    ``PHENOMENA``. The preceding reference words are given. One row for each target word in which the feature has a
    value: ``sentence`` and ``word`` (indices from 0; ``word`` is the source word that it translates), ``expected``, and
    ``predicted``, None where the predicted word has no such value. Works inside ``ablate``, ``gates``, ``edit`` and
    ``patch``; with ``batch_size=len(sentences)`` all sentences run in one batch.

    Raises ValueError for an unknown feature or phenomenon, and where no sentence has such words.

    >>> import headtools as ht
    >>> frame = predicted_features(ht.load()[0], ht.corpus("organism", limit=5), "gender", needs="noun")
    >>> list(frame.columns), bool((frame.predicted == frame.expected).mean() > 0.9)
    (['sentence', 'word', 'expected', 'predicted'], True)
    """
    for got, allowed, what in ((name, FEATURES, "feature"), (needs, (None, *PHENOMENA), "phenomenon")):
        if got not in allowed:
            raise ValueError(f"got {what} {got!r}; expected one of {', '.join(filter(None, allowed))}")
    words, rows = list(vocabulary()), []
    for start, batch in zip(range(0, len(sentences), batch_size), batches(sentences, batch_size), strict=True):
        del batch["labels"]  # without them no loss is computed
        predictions = model(**batch).logits.argmax(-1)
        for index, ids in enumerate(predictions.tolist(), start):
            sentence = sentences[index]
            for i, (target, source, phenomena) in enumerate(
                zip(sentence.target, sentence.alignment, sentence.phenomena, strict=True)
            ):
                expected, word = feature(target, name), words[ids[i]]
                if expected is not None and (needs is None or needs in phenomena):
                    predicted = None if word in SPECIAL else feature(word, name)
                    rows.append((index, source - 1, expected, predicted))
    if not rows:
        raise ValueError(f"no word of these {len(sentences)} sentences says {name} because of {needs}; take more")
    return pd.DataFrame(rows, columns=["sentence", "word", "expected", "predicted"])


def hit_rate(hits: pd.Series, frame: pd.DataFrame) -> Tensor:
    """Return one number per sentence, whose mean is the fraction of hits among all words: input for ``bootstrap``.

    ``hits``: a bool for each row of a frame that :func:`predicted_features` returned. Sentences have different numbers
    of words, so the fraction is a ratio of two sums, linearised sentence by sentence.

    >>> frame = pd.DataFrame({"sentence": [0, 0, 1]})
    >>> hit_rate(pd.Series([True, False, False]), frame).mean().item()
    0.3333333432674408
    """
    by_sentence = hits.astype(float).groupby(frame["sentence"])
    sums = torch.tensor(by_sentence.sum().to_numpy())
    return linearised_ratio(sums[:, None], torch.tensor(by_sentence.size().to_numpy(), dtype=sums.dtype))[:, 0].float()
