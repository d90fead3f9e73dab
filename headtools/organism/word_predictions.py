"""What the model says about a feature, word by word: for interventions that make it say something else, not nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import nn

from headtools.importance._intervals import linearised_ratio
from headtools.organism.batches import batches
from headtools.organism.features import FEATURES, feature
from headtools.organism.translation import PHENOMENA
from headtools.organism.vocabulary import SPECIAL, vocabulary
from headtools.roles.sentence import Sentence


@torch.no_grad()
def said(
    model: nn.Module, sentences: Sequence[Sentence], name: str, needs: str | None = None, batch_size: int = 50
) -> pd.DataFrame:
    """Return what the model's next word says about a feature, given the right words so far, beside what it must say.

    ``name``: one of :data:`headtools.organism.features.FEATURES`; ``needs`` leaves only target words that depend on one
    of the ``PHENOMENA``. One row a target word that must say something about the feature: ``sentence`` and ``word``
    (numbers from 0; the source word that it translates), ``wanted``, and ``said``, None where the predicted word says
    nothing about it. Works inside ``ablate``, ``gates``, ``edit`` and ``patch``; with ``batch_size=len(sentences)`` all
    sentences run in one batch.

    Raises ValueError for an unknown feature or phenomenon, no sentences, or none with such words.

    >>> import headtools as ht
    >>> frame = said(ht.load()[0], ht.corpus("organism", limit=5), "gender", needs="noun")
    >>> list(frame.columns), bool((frame.said == frame.wanted).mean() > 0.9)
    (['sentence', 'word', 'wanted', 'said'], True)
    """
    for came, there, what in ((name, FEATURES, "feature"), (needs, (None, *PHENOMENA), "phenomenon")):
        if came not in there:
            raise ValueError(f"no {what} {came!r}; there is {', '.join(filter(None, there))}")
    words, rows = list(vocabulary()), []
    for start, batch in zip(range(0, len(sentences), batch_size), batches(sentences, batch_size), strict=True):
        labels = batch.pop("labels")
        guesses = model(**batch).logits.argmax(-1)
        for number, (wanted, guessed) in enumerate(zip(labels.tolist(), guesses.tolist(), strict=True), start):
            sentence = sentences[number]
            for place, phenomena in enumerate(sentence.phenomena):
                if needs and needs not in phenomena:
                    continue
                must, word = feature(words[wanted[place]], name), words[guessed[place]]
                if must is not None:
                    says = None if word in SPECIAL else feature(word, name)
                    rows.append((number, sentence.alignment[place] - 1, must, says))
    if not rows:
        raise ValueError(f"no word of these {len(sentences)} sentences says {name} because of {needs}; take more")
    return pd.DataFrame(rows, columns=["sentence", "word", "wanted", "said"])


def share(hits: pd.Series, frame: pd.DataFrame) -> torch.Tensor:
    """Return rows whose mean is the share of hits, one a sentence: what ``bootstrap`` takes.

    ``hits``: a bool for each row of a frame that :func:`said` returned.

    >>> frame = pd.DataFrame({"sentence": [0, 0, 1]})
    >>> share(pd.Series([True, False, False]), frame).mean().item()
    0.3333333432674408
    """
    by_sentence = hits.astype(float).groupby(frame["sentence"])
    sums = torch.tensor(by_sentence.sum().to_numpy())
    return linearised_ratio(sums[:, None], torch.tensor(by_sentence.size().to_numpy(), dtype=sums.dtype))[:, 0].float()
