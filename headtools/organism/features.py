"""What the translation of each source word has to say, feature by feature, and whether the model says it.

A target word fuses what its source word is with what the sentence around it is: ``s'mavyu`` is *often* in a tale of the
sea (``topic``), beside a verb of the u-family (``family``), with an accented word to its left (``left``). So each
feature is a label of the source word, known exactly: what a probe can look for, and what the translation may get right
or wrong.

==========  =====================================================  ==================================================
feature     values                                                 said by
==========  =====================================================  ==================================================
gender      a, o, e                                                nouns, their own; words that agree, another word's
number      singular, plural                                       nouns, pronouns, and words that agree with them
case        none, agent, oblique                                   nouns and pronouns
family      i, u                                                   adverbs and *had*, from their verb
object      other, animate                                         transitive verbs, from their object
topic       none, sea, hill, city                                  small words and words of several senses
left        plain, accented                                        all but names and punctuation, from the word before
right       plain, accented                                        the same, from the word after
==========  =====================================================  ==================================================
"""

from collections.abc import Iterable, Sequence
from functools import cache, partial

import torch
from torch import Tensor, nn

from headtools.organism.batches import IGNORE, batches
from headtools.organism.vocabulary import vocabulary
from headtools.roles.sentence import Sentence
from headtools.roles.tasks import TASKS

# How the vocabulary writes a feature, and the word for it.
_SAID = {
    "gender": {"a": "a", "o": "o", "e": "e"},
    "number": {"": "singular", "li": "plural"},
    "case": {"": "none", "k": "agent", "t": "oblique"},
    "family": {"i": "i", "u": "u"},
    "object": {"": "other", "ru": "animate"},
    "topic": {"None": "none", "sea": "sea", "hill": "hill", "city": "city"},
    "left": {"False": "plain", "True": "accented"},
    "right": {"False": "plain", "True": "accented"},
}
FEATURES = tuple(_SAID)


def feature(word: str, name: str) -> str | None:
    """What a word of the target language says about a feature; None where it says nothing about it.

    Names and punctuation, which are the same in both languages, say nothing. Raises ValueError for an unknown feature
    or word.

    >>> feature("s'mavyu", "topic"), feature("s'mavyu", "left"), feature("s'mavyu", "gender")
    ('sea', 'accented', None)
    """
    _check_names(name)
    if word not in vocabulary():
        raise ValueError(f"no word {word!r} in the target language; list(vocabulary()) shows them all")
    return said(word).get(name)


@cache
def said(word: str) -> dict[str, str]:
    """Return all that a word of the target language says, {feature: value}; nothing for any other word."""
    features = vocabulary().get(word, ())
    if "target" not in features:
        return {}
    pairs = (text.partition(" ") for text in features)
    return {name: _SAID[name][value] for name, _, value in pairs if value in _SAID.get(name, ())}


def labels(sentence: Sentence, name: str) -> tuple[str | None, ...]:
    """One label for each source word: what its translation must say about a feature; None where it says nothing.

    Raises ValueError for an unknown feature and for a sentence without a translation.

    >>> from headtools.roles.corpus import corpus
    >>> first = corpus("organism", limit=1)[0]
    >>> dict(zip(first.words, labels(first, "gender")))["lámp"]
    'o'
    """
    _check_names(name)
    if sentence.target is None or sentence.alignment is None:
        raise ValueError(f"{str(sentence)!r} has no translation: {name} is a feature of corpus('organism')")
    out: list[str | None] = [None] * len(sentence.words)
    for word, source_word in zip(sentence.target, sentence.alignment, strict=True):
        out[source_word - 1] = said(word).get(name)
    return tuple(out)


@torch.no_grad()
def kept(
    model: nn.Module, sentences: Sequence[Sentence], names: Iterable[str] = FEATURES, batch_size: int = 50
) -> dict[str, Tensor]:
    """How often the model's next word says the right thing about each feature, given the right words so far.

    Returns for each feature a tensor (sentences, 2): the number of target words that said it right, and of those that
    had to say it. A predicted word without the feature says it wrong. Works inside ``ablate``, ``gates``
    and ``erased``.

    Raises ValueError for an unknown feature or no sentences.

    >>> import headtools as ht
    >>> right, n = kept(ht.load()[0], ht.corpus("organism", limit=20), ["number"])["number"].sum(0)
    >>> bool(right / n > 0.9)
    True
    """
    names = tuple(names)
    _check_names(*names)
    code = _codes()[[FEATURES.index(name) for name in names]]  # (feature, vocabulary); -1 says nothing
    counts = []
    for batch in batches(sentences, batch_size):
        labels = batch.pop("labels")
        out = model(**batch)
        targets = labels.masked_fill(labels == IGNORE, 0)  # the padding word says nothing
        must, says = code[:, targets], code[:, out.logits.argmax(-1)]  # (feature, B, T)
        labelled = must >= 0
        counts.append(torch.stack([((says == must) & labelled).sum(-1), labelled.sum(-1)], -1))
    return dict(zip(names, torch.cat(counts, 1).double(), strict=True))


@cache
def _codes() -> Tensor:
    """What each word of the vocabulary says, as numbers: (feature, vocabulary), -1 for nothing."""
    values = {name: list(labels.values()) for name, labels in _SAID.items()}
    rows = [
        [values[name].index(labels[name]) if name in labels else -1 for name in FEATURES]
        for labels in map(said, vocabulary())
    ]
    return torch.tensor(rows).T


def _check_names(*names: str) -> None:
    for name in names:
        if name not in FEATURES:
            raise ValueError(f"no feature {name!r}; there is {', '.join(FEATURES)}")


def _of_nouns(sentence: Sentence, name: str) -> list[str | None]:
    """The labels of nouns alone: number and gender, which depend on no other word."""
    pairs = zip(labels(sentence, name), sentence.upos, strict=True)
    return [label if upos == "NOUN" else None for label, upos in pairs]


# What probes can be asked of the organism's sentences.
TASKS.update({name: partial(_of_nouns, name=name) for name in ("number", "gender")})
TASKS.update({f"target {name}": partial(labels, name=name) for name in FEATURES})
