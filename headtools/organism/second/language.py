"""The second organism's parallel corpus: sentences with trees, coreference, alignment and translation.

``LANGUAGE.md`` beside this file explains the language with examples that run. The words are those of the first organism
(``headtools.organism.lexicon``); grammar, target words and vocabulary are its own.

>>> first = next(sentences("test"))
>>> print(first)
over this véry qúick market á létter of Zanena with these apples painted my bóx .
>>> " ".join(first.target)
"paza nva'n s'rumak s'kosva Zanena jorvo tvoli tevoliga mve'n mazet gono tvo'n s'fevot'n s'povo fudvo'n ."
"""

from collections.abc import Iterator
from itertools import islice

from headtools.organism.language import SIZES, SPLITS, drawn
from headtools.organism.second.grammar import HARD, USUAL, SentenceSampler, Style
from headtools.organism.second.translation import write
from headtools.roles.sentence import Sentence

__all__ = ["SPLITS", "corpus", "sentences"]


def sentences(split: str = "test", style: Style | None = None, stream: int = 0) -> Iterator[Sentence]:
    """Endless stream of the sentences of a split, the same on every machine; ``stream`` draws another one.

    ``style`` changes lengths and constructions (by default the split's own). Raises ValueError for an unknown split.

    >>> next(sentences("hard")).words == next(sentences("hard")).words
    True
    """
    yield from drawn(SentenceSampler, style or (HARD if split == "hard" else USUAL), write, split, stream)


def corpus(split: str = "test", limit: int | None = None) -> list[Sentence]:
    """Return the first ``limit`` sentences of a split; without a limit 1,000, of train 20,000.

    >>> len(corpus("validation", 3))
    3
    """
    return list(islice(sentences(split), limit or SIZES.get(split, 1)))
