"""Who should look at whom: for one sentence and each role, the queries with the keys that count as a hit.

A *partner* is a pair (query, keys) of units (words or tokens, ``units.py``). Names of roles:

    offset -1, offset +0, ...     the unit so many places away, the query itself at +0
    nsubj up, obj down, ...       from a word to its syntactic head, or from the head to the word, by relation
    coreference                   from a mention to any mention before it of the same thing
    rarest, two rarest            from any word to the rarest word, or one of the two rarest (Voita et al. 2019, 5.3)
    rarest other                  the same, but each query has its own target: the rarest word other than itself
    alignment                     from a target word to the source word it translates (cross-attention)
    previous, next, self, first   the neighbours, the query itself, the first unit of all, by weight
    bos, eos, cls, sep            the tokenizer's marks, by weight
    punctuation                   units of punctuation, by weight
    duplicate, induction          other units of the same word, by weight; units that follow an earlier such one
"""

from collections.abc import Callable, Mapping, Sequence

from headtools.roles.conventions import Conventions
from headtools.roles.corpus import Sentence

Partners = dict[str, list[tuple[int, tuple[int, ...]]]]
Antecedent = Callable[[Sentence, int], int | None]
_NOMINAL = ("NOUN", "PROPN", "PRON")
_SKIPPED = ("root", "punct")


def looked_at(
    sentence: Sentence, places: Mapping[int, Sequence[int]], n: int, conventions: Conventions, rank: Mapping[str, int]
) -> Partners:
    """Partners by the strongest look: ``places`` {word: its units}, ``n`` units; ``rank`` of words, 0 most frequent.

    Words that ``rank`` does not hold are rarer than all others. An empty ``rank`` gives no rarest word.

    >>> slept = Sentence(("it", "slept"), (2, 0), ("nsubj", "root"), ("PRON", "VERB"), (0, 0))
    >>> found = looked_at(slept, {0: [0], 1: [1]}, 2, Conventions(span=1), {})
    >>> found["offset -1"], found["nsubj up"], found["nsubj down"]
    ([(0, ()), (1, (0,))], [(0, (1,))], [(1, (0,))])
    """
    words = {unit for units in places.values() for unit in units}
    queries = range(n) if conventions.specials_as_queries else sorted(words)
    keys = set(range(n)) if conventions.specials_as_keys else words
    out: Partners = {}
    for k in range(-conventions.span, conventions.span + 1):
        out[f"offset {k:+d}"] = [(q, (q + k,) if q + k in keys else ()) for q in queries]
    for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
        if head and relation not in _SKIPPED:
            out.setdefault(f"{relation} up", []).append((places[word][0], tuple(places[head - 1])))
            out.setdefault(f"{relation} down", []).append((places[head - 1][0], tuple(places[word])))
    mentions = [(i, antecedents(sentence, i)) for i, first in enumerate(sentence.coreference) if first]
    out["coreference"] = [(places[i][0], tuple(u for j in before for u in places[j])) for i, before in mentions]
    return out | _rarest(sentence, places, queries, conventions.common, rank)


def _rarest(
    sentence: Sentence, places: Mapping, queries: Sequence[int], common: int, rank: Mapping[str, int]
) -> Partners:
    kinds = sorted(set(sentence.words), key=lambda w: (-rank.get(w, len(rank)), w))
    if not rank or rank.get(kinds[0], len(rank)) < common:
        return {}
    of = {kind: tuple(u for i, w in enumerate(sentence.words) if w == kind for u in places[i]) for kind in kinds[:2]}
    first, second = of[kinds[0]], of[kinds[-1] if len(kinds) == 1 else kinds[1]]
    return {
        "rarest": [(q, first) for q in queries],
        "two rarest": [(q, tuple({*first, *second})) for q in queries],
        "rarest other": [(q, second if q in first else first) for q in queries if len(kinds) > 1],
    }


def weighed(
    sentence: Sentence, places: Mapping[int, Sequence[int]], marks: Sequence[int], names: Mapping[str, int],
    conventions: Conventions,
) -> Partners:  # fmt: skip
    """Partners by weight: ``marks`` token id of each unit that is no word, else -1; ``names`` {'eos': token id, ...}.

    >>> slept = Sentence(("it", "slept"), (2, 0), ("nsubj", "root"), ("PRON", "VERB"), (0, 0))
    >>> found = weighed(slept, {0: [0], 1: [1]}, [-1, -1, 9], {"eos": 9}, Conventions())
    >>> found["next"], found["eos"]
    ([(0, (1,)), (1, ())], [(0, (2,)), (1, (2,))])
    """
    word = {unit: i for i, units in places.items() for unit in units}
    queries = list(range(len(marks))) if conventions.specials_as_queries else sorted(word)
    keys = set(range(len(marks))) if conventions.specials_as_keys else set(word)
    out: Partners = {name: [(q, (q + k,) if q + k in keys else ()) for q in queries]
                     for name, k in (("previous", -1), ("next", 1), ("self", 0))}  # fmt: skip
    out["first"] = [(q, (0,)) for q in queries if q]
    for name, token in names.items():
        found = tuple(u for u, mark in enumerate(marks) if mark == token)
        out[name] = [(q, found) for q in queries if found]
    points = tuple(u for i, units in places.items() if _is_punctuation(sentence, i) for u in units)
    out["punctuation"] = [(q, points) for q in queries if points]
    out["duplicate"], out["induction"] = [], []
    form = {unit: (sentence.words[i], places[i].index(unit)) for unit, i in word.items()}
    for q in sorted(word):
        same = [u for u in form if u != q and form[u] == form[q]]
        if same:
            out["duplicate"].append((q, tuple(same)))
        after = tuple(u + 1 for u in same if u < q and u + 1 in form and u + 1 != q)
        if after:
            out["induction"].append((q, after))
    return out


def aligned(sentence: Sentence, queries: Mapping[int, Sequence[int]], keys: Mapping[int, Sequence[int]]) -> Partners:
    """Partners of cross-attention: from the first unit of each aligned target word to its source word's units."""
    links = enumerate(sentence.alignment or ())
    return {"alignment": [(queries[j][0], tuple(keys[i - 1])) for j, i in links if i and j in queries]}


def antecedents(sentence: Sentence, mention: int) -> tuple[int, ...]:
    """Earlier mentions of what a word stands for: places from 0, in order.

    >>> told = Sentence(("Ann", "said", "she", "lost", "her", "dog"), (2, 0, 4, 2, 6, 4), ("_",) * 6, ("_",) * 6,
    ...                 (0, 0, 1, 0, 1, 0))
    >>> antecedents(told, 4)
    (0, 2)
    """
    first = sentence.coreference[mention]
    return tuple(j for j in range(mention) if j + 1 == first or sentence.coreference[j] == first)


def nearest_nominal(sentence: Sentence, mention: int) -> int | None:
    """Place of the nearest noun, name or pronoun before a word, from 0; None where there is none."""
    return next(iter(reversed(nominals(sentence, mention))), None)


def nominals(sentence: Sentence, mention: int) -> tuple[int, ...]:
    """Places of all nouns, names and pronouns before a word, from 0."""
    return tuple(j for j in range(mention) if sentence.upos[j] in _NOMINAL)


def _is_punctuation(sentence: Sentence, word: int) -> bool:
    known = sentence.upos[word] not in ("_", "")
    return sentence.upos[word] == "PUNCT" if known else not any(c.isalnum() for c in sentence.words[word])
