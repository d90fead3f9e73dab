"""Roles as data: what a head could attend to, and what it takes to do so. :class:`Role`, and the roles there are.

A role says of each sentence which words a query should attend to, and how a head is scored on them:

by argmax   how often the query's strongest key is one of these

    offset -1, offset +0, ...     the word at that distance from the query, the query itself at +0
    nsubj up, obj down, ...       from a word to its syntactic head, or from the head to the word, by relation
    coreference                   from a mention to any earlier mention of the same thing
    rarest, two rarest            from any word to the rarest word, or one of the two rarest (Voita et al. 2019, 5.3);
                                  words of equal frequency are equally rare, and each of them is a hit
    rarest other                  the same, but each query has its own target: the rarest word other than itself
    alignment                     from a target word to the source word it translates (cross-attention)

by weight   how much weight a query gives to all of these together

    previous, next, self, first   the neighbours, the query itself, the first token of all
    bos, eos, cls, sep            the tokenizer's special tokens
    punctuation, duplicate        words that are punctuation; other occurrences of the same word
    induction                     words that follow an earlier occurrence of the same word

of the row  without targets: confidence, entropy, distance, rarity, content, and the classes of maps (``_row_scores``)
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, log

from headtools.roles.map_classes import CLASSES
from headtools.roles.sentence import Sentence

Key = int | str  # the position of a word, from 0; or "first", "bos", "eos", "cls", "sep"
Pairs = Sequence[tuple[int, Sequence[Key]]]  # queries, each with the keys that are a hit
KINDS = ("encoder", "decoder", "cross")
SPECIAL_TOKENS = ("bos", "eos", "cls", "sep")
NO_RELATION = ("root", "punct")
NOMINAL = ("NOUN", "PROPN", "PRON")
MAX_OFFSET = 5  # offsets from -5 to 5 are scored
N_FREQUENT = 500  # a sentence counts for the rarest word if it has a word to which so many words are more frequent
MARGIN = 0.1  # how far above its baseline a relation, a mention or an alignment must be
MAPS = tuple(f"map {name}" for name in CLASSES)


@dataclass(frozen=True)
class Role:
    """One thing that heads may do, with the score of a head that cannot.

    name        what the table calls it
    kind        the attention it is for: "encoder", "decoder" or "cross", or several of them
    targets     a function of a :class:`~headtools.roles.sentence.Sentence` to pairs (query, keys): positions of words,
                from 0. A hit is any of the keys; a query without a key that it can see is not counted. In
                cross-attention queries are words of ``sentence.target`` and keys words of ``sentence.words``. (None:
                a statistic of rows, which has no targets.)
    by          "argmax": the fraction of queries whose strongest key is a hit; "weight": the weight on all of them
    baseline    what a score is compared with: "best offset", the distance that hits most often in other sentences; a
                function ``(sentence, query)`` to the word that a rule would choose; any other text names chance
    among       a function ``(sentence, query)`` to the words that chance chooses from (None: all that the query sees)
    threshold   (scale, minimum): a head holds the role where the lower end of score - scale * baseline is at the
                minimum or above. (1, 0.1) is a margin of .1 above the baseline, (0, 0.9) nine queries in ten
    family      a name for roles of one sort, by which ``taxonomy(roles=...)`` selects them
    range       the least and the greatest score

    Raises ValueError for a kind or a way to score that does not exist.

    >>> near = Role("near", "encoder", targets=lambda s: [(q, [q - 1, q + 1]) for q in range(1, len(s.words) - 1)])
    >>> near.by, near.baseline, near.threshold
    ('argmax', 'best offset', (1, 0.1))
    """

    name: str
    kind: str | Sequence[str]
    targets: Callable[[Sentence], Pairs] | None
    by: str = "argmax"
    baseline: str | Callable[[Sentence, int], int | None] = "best offset"
    among: Callable[[Sentence, int], Sequence[int]] | None = None
    threshold: tuple[float, float] = (1, MARGIN)
    family: str = "own"
    range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        wrong = {*self.kinds} - {*KINDS}
        if wrong or self.by not in ("argmax", "weight"):
            raise ValueError(
                f"got the role {self.name!r} with kind={self.kind!r} and by={self.by!r}; expected kinds of "
                f"{', '.join(KINDS)}, and by='argmax' or 'weight'"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of attention it is for."""
        return (self.kind,) if isinstance(self.kind, str) else tuple(self.kind)


class Frequencies:
    """How frequent and how rare words are. A word that was counted in another case only has that one's count.

    Raises ValueError for a frequency that is not a count.

    >>> counted = Frequencies({"the": 9, "dog": 2, "cat": 2})
    >>> [counted.rank(word) for word in ("The", "dog", "cat", "gnu")]
    [0, 1, 1, 3]
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        for word, n in counts.items():
            if not (n >= 0 and n % 1 == 0):
                raise ValueError(
                    f"got frequency[{word!r}] = {n!r}; expected how often the word occurs, a whole number from 0: "
                    "write frequency=Counter(words), or multiply fractions by the size of their corpus"
                )
        self.counts = dict(counts)
        by_frequency = sorted(filter(counts.get, counts), key=counts.get, reverse=True)
        first_rank: dict[int, int] = {}  # by frequency: words of equal frequency have equal ranks
        for index, word in enumerate(by_frequency):
            first_rank.setdefault(counts[word], index)
        self._rank = {word: first_rank[counts[word]] for word in by_frequency}
        # of several spellings the most frequent, so that a capital letter makes no word rare
        self._other_case = {word.casefold(): word for word in reversed(by_frequency)}
        self.n_words = len(by_frequency)
        self._total = sum(counts.values()) + len(counts) + 1  # add-one smoothing, and one unknown word

    def rank(self, word: str) -> int:
        """How many words are more frequent; for a word that was not counted, how many were counted."""
        return self._rank.get(self._counted(word), self.n_words)

    def rarity(self, word: str) -> float:
        """Minus the logarithm of its fraction of all words, in nats."""
        return log(self._total / (self.counts.get(self._counted(word), 0) + 1))

    def _counted(self, word: str) -> str:
        return word if word in self._rank else self._other_case.get(word.casefold(), word)


def builtin_roles(kind: str, relations: Iterable[str], frequencies: Frequencies | None) -> list[Role]:
    """The roles that every head of one kind of attention is scored for, in the order of the table.

    ``relations`` are those of the corpus. Without ``frequencies`` the sentences are the words of a translation, which
    have no annotation: they have no relations, no mentions and no rare words.
    """

    def by_weight(name: str, targets: Callable[[Sentence], Pairs]) -> Role:
        # half of the weight: Clark et al. 2019, 3.1
        return Role(name, kind, targets, "weight", "uniform attention", threshold=(0, 0.5), family="weight")

    def of_row(name: str, threshold: tuple[float, float], **more: object) -> Role:
        return Role(
            name, kind, None, **{"baseline": "uniform attention", "family": "statistic", **more}, threshold=threshold
        )

    marks = [by_weight(name, partial(_everyone_to, kind, name)) for name in SPECIAL_TOKENS]
    marks.append(by_weight("punctuation", partial(_to_punctuation, kind)))
    confidence = of_row("confidence", (0, 0.8))  # Voita et al. 2019, 4
    entropy = of_row("entropy", (0.9, 0), range=(0.0, inf))  # nine tenths of the greatest
    if kind == "cross":
        return [Role("alignment", kind, _alignment, family="alignment"), *marks, confidence, entropy]
    roles = [
        # nine queries in ten: Voita et al. 2019, 5.1
        Role(
            f"offset {k:+d}",
            kind,
            partial(_at_offset, k),
            baseline="random key",
            threshold=(0, 0.9),
            family="positional",
        )
        for k in range(-MAX_OFFSET, MAX_OFFSET + 1)
    ]
    roles += [by_weight(name, partial(_at_offset, k)) for name, k in (("previous", -1), ("next", 1), ("self", 0))]
    roles += [by_weight("first", partial(_everyone_to, kind, "first")), *marks]
    roles += [by_weight("duplicate", _duplicates), by_weight("induction", _after_duplicates), confidence, entropy]
    roles.append(of_row("distance", (1.25, 0), range=(0.0, inf)))  # a quarter more than uniform attention
    roles.append(of_row("content", (1, 0.1), baseline="none", family="content", range=(-1.0, 1.0)))
    roles += [of_row(name, (0, 0.5), baseline="one in five", family="map") for name in MAPS]
    if frequencies is None:
        return roles
    roles.append(of_row("rarity", (1, 1), range=(0.0, inf)))  # a nat above a uniform choice
    roles += [
        Role(f"{relation} {way}", kind, partial(_relation, relation, way), family="syntactic")
        for relation in relations
        if relation not in NO_RELATION
        for way in ("up", "down")
    ]
    roles.append(
        Role("coreference", kind, _coreference, "argmax", nearest_nominal, _earlier_nominals, family="coreference")
    )
    return roles + [
        Role(name, kind, partial(_rarest, name, frequencies), threshold=(0, 0.5), family="rare")
        for name in ("rarest", "two rarest", "rarest other")
    ]


def select_roles(
    builtin: Mapping[str, Sequence[Role]], requested: Iterable[str | Role] | None
) -> dict[str, list[Role]]:
    """By kind, the built-in roles whose names or families are requested (None: all), and then roles of one's own.

    ``builtin`` has the roles of each kind that there are, also of kinds that are not scored. Raises ValueError for
    names that do not exist, and for two roles of one name.
    """
    if requested is None:
        return {kind: list(roles) for kind, roles in builtin.items()}
    names = {name for name in requested if not isinstance(name, Role)}
    own = [role for role in requested if isinstance(role, Role)]
    every = [role for kind in builtin.values() for role in kind]
    families = sorted({role.family for role in every})
    for name in sorted(names - {role.name for role in every} - {*families}):
        examples = [*(role.name for role in every[:2]), "nsubj up", "confidence"]
        raise ValueError(
            f"no role or family {name!r}; there is {', '.join(families)}, and roles such as {', '.join(examples)}; one "
            "of your own is Role(name, kind, targets=...)"
        )
    out = {}
    for kind, roles in builtin.items():
        out[kind] = [role for role in roles if {role.name, role.family} & names]
        out[kind] += [role for role in own if kind in role.kinds]
        twice = [name for name, n in Counter(role.name for role in out[kind]).items() if n > 1]
        if twice:
            raise ValueError(f"got two roles {twice[0]!r} of {kind} attention; give yours another name")
    return out


def family(role: str) -> str:
    """The family of a built-in role by its name: positional, weight, syntactic, ...; 'own' for other names.

    >>> family("offset -1"), family("nsubj up"), family("entropy"), family("mine")
    ('positional', 'syntactic', 'statistic', 'own')
    """
    if role.endswith((" up", " down")):
        return "syntactic"
    names = [*builtin_roles("encoder", (), Frequencies({})), *builtin_roles("cross", (), None)]
    return next(
        (each.family for each in names if each.name == role), "positional" if role.startswith("offset ") else "own"
    )


def nearest_nominal(sentence: Sentence, mention: int) -> int | None:
    """Position of the nearest noun, name or pronoun before a word, from 0; None where there is none."""
    return next(iter(_earlier_nominals(sentence, mention)), None)


def check_sentence(sentence: Sentence) -> None:
    """Raise ValueError for annotation that does not fit the words."""
    n = len(sentence.words)
    lengths = [*map(len, (sentence.heads, sentence.relations, sentence.upos, sentence.coreference))]
    if not n or {*lengths} != {n}:
        raise ValueError(
            f"got a sentence of {n} words, with heads, relations, upos and coreference of {lengths}: "
            f"{str(sentence)[:80]!r}; expected one word or more, and one of each for every word; leave the sentence out"
        )
    for what, numbers in (("a head", sentence.heads), ("alignment", sentence.alignment or ())):
        for number in numbers:
            if not 0 <= number <= n:
                text = f"{str(sentence)[:80]!r}"
                raise ValueError(f"got word {number} as {what} in a sentence of {n} words: {text}; expected 0 to {n}")


# Targets: from a sentence to its queries, each with the keys that are a hit. Nothing here knows of tokens, nor of what
# a query can see; both come in where a batch is made (``_row_scores.find_targets``).


def _at_offset(k: int, sentence: Sentence) -> Pairs:
    n = len(sentence.words)
    return [(query, [query + k]) for query in range(n) if 0 <= query + k < n]


def _relation(relation: str, way: str, sentence: Sentence) -> Pairs:
    words = [i for i, name in enumerate(sentence.relations) if name == relation and sentence.heads[i]]
    heads = [sentence.heads[i] - 1 for i in words]
    queries, keys = (words, heads) if way == "up" else (heads, words)
    return [(query, [key]) for query, key in zip(queries, keys, strict=True)]


def _coreference(sentence: Sentence) -> Pairs:
    """From each mention to all earlier ones; ``coreference`` names the first of them, counted from 1."""
    first = sentence.coreference
    return [
        (word, [earlier for earlier in range(word) if first[word] in (earlier + 1, first[earlier])])
        for word in range(len(first))
        if first[word]
    ]


def _earlier_nominals(sentence: Sentence, mention: int) -> list[int]:
    return [word for word in reversed(range(mention)) if sentence.upos[word] in NOMINAL]


def _alignment(sentence: Sentence) -> Pairs:
    return [(target, [source - 1]) for target, source in enumerate(sentence.alignment or ()) if source]


def _rarest(which: str, frequencies: Frequencies, sentence: Sentence) -> Pairs:
    """From every word to the rarest, if the sentence has any.

    It has none without a rare word, and where more than half of its words are rarest, so that chance would do.
    """
    rank = {word: frequencies.rank(word) for word in sentence.words}
    rarest = {word for word in rank if rank[word] == max(rank.values())}
    n_rarest = sum(word in rarest for word in sentence.words)
    if not frequencies.n_words or max(rank.values()) < N_FREQUENT or 2 * n_rarest > len(sentence.words):
        return []

    def places(n: int, but: str | None = None) -> list[int]:
        """Where the words are to which fewer than ``n`` others are rarer, leaving out one."""
        others = {word: rank[word] for word in rank if word != but}
        least = sorted(others.values(), reverse=True)[:n][-1]
        return [i for i, word in enumerate(sentence.words) if others.get(word, -1) >= least]

    if which != "rarest other":
        keys = places(2 if which == "two rarest" else 1)
        return [(query, keys) for query in range(len(sentence.words))]
    # only the rarest words themselves have another target than the rest
    of_rarest, others = {word: places(1, word) for word in rarest}, places(1)
    return [(query, of_rarest.get(word, others)) for query, word in enumerate(sentence.words)]


def _everyone_to(kind: str, key: Key, sentence: Sentence) -> Pairs:
    return [(query, [key]) for query in range(len(sentence.target if kind == "cross" else sentence.words))]


def _to_punctuation(kind: str, sentence: Sentence) -> Pairs:
    keys = [
        i
        for i, (word, upos) in enumerate(zip(sentence.words, sentence.upos, strict=True))
        # a word without a part of speech is punctuation if it has no letter and no digit
        if upos == "PUNCT" or (upos in ("_", "") and not any(character.isalnum() for character in word))
    ]
    return [(query, keys) for query in range(len(sentence.target if kind == "cross" else sentence.words))]


def _copies(sentence: Sentence) -> list[list[int]]:
    """For each word the other places where it occurs."""
    places = defaultdict(list)
    for i, word in enumerate(sentence.words):
        places[word].append(i)
    return [[place for place in places[word] if place != i] for i, word in enumerate(sentence.words)]


def _duplicates(sentence: Sentence) -> Pairs:
    return [*enumerate(_copies(sentence))]


def _after_duplicates(sentence: Sentence) -> Pairs:
    """What follows an earlier copy; the query itself is not one to predict from."""
    return [
        (query, [copy + 1 for copy in copies if copy < query and copy + 1 != query])
        for query, copies in enumerate(_copies(sentence))
    ]
