"""Every word of the second organism's languages, in a fixed order, with the features it is made of.

The first organism's words with more endings; ``headtools.organism.vocabulary`` says what features are for.
"""

from functools import cache

from headtools.organism import lexicon as lx
from headtools.organism.second.translation import AGENT, OBLIQUE, OWNED, PLACE
from headtools.organism.vocabulary import Endings, Features, build, describe

_ENDINGS = Endings(
    cases=("", AGENT, OBLIQUE, PLACE),
    owned=OWNED,
    by_family=(*lx.ADVERBS.values(), *(lx.OTHERS[word] for word in ("had", *lx.CONNECTIVES))),
    by_gender=(*lx.PREPOSITIONS.values(), lx.OTHERS["very"]),
)


@cache
def vocabulary() -> dict[str, Features]:
    """Every token and its features, in the order of the token numbers.

    >>> list(vocabulary())[:3], len(vocabulary())
    (['<pad>', '</s>', '<unk>'], 7309)
    """
    return build(_ENDINGS)


def gloss(word: str) -> str:
    """What a word of either language says, in plain words.

    Raises ValueError for a word that neither language has.

    >>> gloss("s'tikolik'n")
    'cat: gender o, plural, subject of a transitive verb, accent to the left, accent to the right'
    """
    return describe(word, vocabulary())
