"""Who should look at whom: for each role, the queries of a batch with the keys that count as a hit.

Units are words or tokens (``units.py``). Names of roles:

    offset -1, offset +0, ...     the unit so many places away, the query itself at +0
    nsubj up, obj down, ...       from a word to its syntactic head, or from the head to the word, by relation
    coreference                   from a mention to any mention before it of the same thing
    rarest, two rarest            from any word to the rarest word, or one of the two rarest (Voita et al. 2019, 5.3);
                                  of words equally rare any will do
    rarest other                  the same, but each query has its own target: the rarest word other than itself
    alignment                     from a target word to the source word it translates (cross-attention)
    previous, next, self, first   the neighbours, the query itself, the first unit of all, by weight
    bos, eos, cls, sep            the tokenizer's marks, by weight
    punctuation                   units of punctuation, by weight
    duplicate, induction          other units of the same word, by weight; units that follow an earlier such one

Everything is made for a whole batch at once; :func:`looked_at` shows it for one sentence. ``place`` gives the number
of each role that is wanted; others are left out.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from headtools.roles._taxonomy.annotation import NOMINAL, Array, Gold, Places, Words, gold, spread
from headtools.roles._taxonomy.families import RARE
from headtools.roles._taxonomy.pairing import Partners, Queries, everywhere, join, neighbours
from headtools.roles._taxonomy.spans import Units
from headtools.roles.conventions import Conventions
from headtools.roles.sentence import Sentence

Antecedent = Callable[[Sentence, int], int | None]
Found = dict[str, list[tuple[int, tuple[int, ...]]]]
_NEAR = {"previous": -1, "next": 1, "self": 0}


def looked(gold: Gold, units: Units, place: Mapping[str, int], conventions: Conventions) -> Partners:
    """Partners by the strongest look, within the sentences of a batch."""
    at, (queries, keys) = Places(gold, units), _asking(units, conventions)
    near = {f"offset {k:+d}": k for k in range(-conventions.span, conventions.span + 1)}
    parts = [neighbours(_wanted(near, place), queries, keys)]
    for way in ("up", "down"):
        parts.append(_relations(gold, at, way, np.array([place.get(f"{r} {way}", -1) for r in gold.relations])))
    if "coreference" in place:
        parts.append(_mentions(gold, at, place["coreference"]))
    return join([*parts, *_rarest(gold, at, queries, place, conventions.common)])


def weighed(
    gold: Gold, units: Units, place: Mapping[str, int], marks: Mapping[str, int], conventions: Conventions,
    queries: Queries | None = None,
) -> Partners:  # fmt: skip
    """Partners by weight: ``marks`` {'eos': token id, ...}; ``queries`` are those of another side (cross-attention)."""
    at, (own, keys) = Places(gold, units), _asking(units, conventions)
    alike = [] if queries else [neighbours(_wanted(_NEAR, place), own, keys), *_repeats(gold, at, place)]
    if "first" in place and not queries:
        rows = np.arange(gold.sentences)
        first, _ = everywhere(place["first"], rows, np.zeros_like(rows), own)
        alike.append(first.asked(first.query > 0))
    mark = units.mark.numpy()
    found = {name: np.nonzero(mark == token) for name, token in marks.items()}
    point = gold.point[at.word]
    found["punctuation"] = at.row[point], at.unit[point]
    return join([*alike, *(everywhere(place[name], *found[name], queries or own)[0]
                           for name in found if name in place)])  # fmt: skip


def aligned(sentences: Sequence[Sentence], gold: Gold, queries: Units, keys: Units, role: int) -> Partners:
    """Partners of cross-attention: from the first unit of each aligned target word to its source word's units.

    Raises ValueError for an alignment with a word that is none.
    """
    for s in sentences:
        if not 0 <= max(s.alignment or (0,)) <= len(s.words):
            raise ValueError(f"an alignment names word {max(s.alignment)} of {len(s.words)}: {str(s)[:80]!r}; words "
                             "count from 1, and 0 is none")  # fmt: skip
    link = np.array([(row, target, source) for row, s in enumerate(sentences)
                     for target, source in enumerate(s.alignment or ()) if source], dtype=np.int64)  # fmt: skip
    link = link.reshape(-1, 3)
    row, unit = np.nonzero(queries.word.numpy() >= 0)
    word = queries.word.numpy()[row, unit]
    none = queries.word.shape[1]
    first = np.full((len(sentences), max([0, *word, *link[:, 1]]) + 1), none)
    np.minimum.at(first, (row, word), unit)
    row, target, source = link.T
    query = first[row, target]
    there = query < none  # what the decoder reads may lack the last word
    owner, key = Places(gold, keys).of((gold.start[row] + source - 1)[there])
    return Partners(np.full(there.sum(), role), row[there], query[there], owner, key)


def looked_at(
    sentence: Sentence, places: Mapping[int, Sequence[int]], n: int, conventions: Conventions, rank: Mapping[str, int]
) -> Found:
    """Partners by the strongest look in one sentence: {role: [(query, keys), ...]}.

    ``places`` {word: its units} of ``n`` units; ``rank`` of words, 0 most frequent. Words that ``rank`` does not hold
    are rarer than all others. An empty ``rank`` gives no rarest word.

    >>> slept = Sentence(("it", "slept"), (2, 0), ("nsubj", "root"), ("PRON", "VERB"), (0, 0))
    >>> found = looked_at(slept, {0: [0], 1: [1]}, 2, Conventions(span=1), {})
    >>> found["offset -1"], found["nsubj up"], found["nsubj down"]
    ([(0, ()), (1, (0,))], [(0, (1,))], [(1, (0,))])
    """
    word = torch.full((1, n), -1)
    for number, units in places.items():
        word[0, list(units)] = number
    known = gold([sentence], Words(rank, {}, 0.0, {}))
    roles = [f"offset {k:+d}" for k in range(-conventions.span, conventions.span + 1)]
    roles += [f"{relation} {way}" for relation in known.relations for way in ("up", "down")] + ["coreference", *RARE]
    units = Units(torch.arange(n)[None], word, torch.ones(1, n, dtype=torch.bool), torch.full((1, n), -1))
    found = looked(known, units, {role: i for i, role in enumerate(roles)}, conventions)
    keys: list[list[int]] = [[] for _ in found.query]
    for owner, key in zip(found.owner.tolist(), found.key.tolist(), strict=True):
        keys[owner].append(key)
    out: Found = {role: [] for role in roles if role.startswith("offset") or role == "coreference"}
    for role, query, some in zip(found.role, found.query.tolist(), keys, strict=True):
        out.setdefault(roles[role], []).append((query, tuple(sorted(some))))
    return out


def nearest_nominal(sentence: Sentence, mention: int) -> int | None:
    """Place of the nearest noun, name or pronoun before a word, from 0; None where there is none."""
    return next((j for j in reversed(range(mention)) if sentence.upos[j] in NOMINAL), None)


def before(gold: Gold, mentions: Array) -> tuple[Array, Array, Array]:
    """All words before each mention in its sentence: which mention, the word, whether both stand for the same thing."""
    owner, part = spread(gold.place[mentions])
    other = gold.start[gold.row[mentions]][owner] + part
    thing = gold.coreference[mentions][owner]
    return owner, other, (part + 1 == thing) | (gold.coreference[other] == thing)


def _asking(units: Units, conventions: Conventions) -> tuple[Queries, Array]:
    """Which units ask, and which may be found (B, U)."""
    real, words = units.real.numpy(), units.word.numpy() >= 0
    return Queries(real if conventions.specials_as_queries else words), real if conventions.specials_as_keys else words


def _wanted(offsets: Mapping[str, int], place: Mapping[str, int]) -> dict[int, int]:
    return {place[name]: k for name, k in offsets.items() if name in place}


def _relations(gold: Gold, at: Places, way: str, roles: Array) -> Partners:
    """One way of all relations; ``roles`` gives the role's number of each relation, -1 for none."""
    role = roles[gold.relation]
    word = np.flatnonzero((gold.head >= 0) & (role >= 0))
    head = gold.head[word]
    asking, sought = (word, head) if way == "up" else (head, word)
    return Partners(role[word], gold.row[word], at.first[asking], *at.of(sought))


def _mentions(gold: Gold, at: Places, role: int) -> Partners:
    mention = np.flatnonzero(gold.coreference)
    owner, other, same = before(gold, mention)
    part, key = at.of(other[same])
    return Partners(np.full(len(mention), role), gold.row[mention], at.first[mention], owner[same][part], key)


def _rarest(gold: Gold, at: Places, queries: Queries, place: Mapping[str, int], common: int) -> list[Partners]:
    """The roles of the rarest words, in the sentences that have any; words of equal frequency are rarest together.

    Left out are sentences with nothing but words to which fewer than ``common`` are more frequent, and those of whose
    words more than half are rarest, so that a look at random would do.
    """
    if not any(role in place for role in RARE) or not gold.ranked:
        return []  # without ranks nothing is rare
    # Each sentence's words, rarest first, equal words beside each other.
    order = np.lexsort((gold.form, -gold.rank, gold.row))
    numbers, starts = np.arange(len(order)), np.zeros(len(order), dtype=bool)
    starts[gold.start] = True
    different, rarer = (starts | (np.diff(values[order], prepend=-1) != 0) for values in (gold.form, gold.rank))
    kind = np.cumsum(different) - 1
    kind = kind - kind[gold.start][gold.row]  # of the sentence's different words, from 0
    kind = kind[np.maximum.accumulate(np.where(rarer, numbers, 0))]  # how many of them are rarer
    highest = gold.rank[order[gold.start]]
    sizes, tied = (np.add.reduceat(values, gold.start) for values in (np.ones_like(order), (kind == 0).astype(int)))
    rare = ((highest >= common) & (2 * tied <= sizes))[gold.row] & (kind < 2)
    word, kind = order[rare], kind[rare]
    part, unit = at.of(word)
    row, kind, form = gold.row[word][part], kind[part], gold.form[word][part]
    out = []
    for role, chosen in (("rarest", kind == 0), ("two rarest", kind < 2)):
        if role in place:
            out.append(everywhere(place[role], row[chosen], unit[chosen], queries)[0])
    if "rarest other" in place:
        found, which = everywhere(place["rarest other"], row, unit, queries)
        rarest = np.full((gold.sentences, 1 + max([0, *unit, *queries.unit])), -1)
        rarest[row[kind == 0], unit[kind == 0]] = form[kind == 0]
        itself = rarest[found.row, found.query][found.owner]  # the query's own word, if it is one of the rarest
        out.append(found.only(np.where(itself < 0, kind[which] == 0, form[which] != itself)))
    return out


def _repeats(gold: Gold, at: Places, place: Mapping[str, int]) -> list[Partners]:
    """Duplicate and induction. Of a word in pieces, each piece has the same piece of the word's other occurrences."""
    if not {"duplicate", "induction"} & place.keys():
        return []
    piece = np.arange(len(at.unit)) - at.begin[at.word]
    same = (at.row * (1 + gold.form.max()) + gold.form[at.word]) * (1 + max([0, *piece])) + piece
    _, group, size = np.unique(same, return_inverse=True, return_counts=True)
    order, begin = np.argsort(group, kind="stable"), np.cumsum(size) - size
    asking = np.flatnonzero(size[group] > 1)
    owner, part = spread(size[group[asking]])
    other = order[begin[group[asking]][owner] + part]
    row, query = at.row[asking], at.unit[asking]
    same = Partners(np.full(len(asking), place.get("duplicate", -1)), row, query, owner, at.unit[other])
    same = same.only(other != asking[owner])
    isword = np.zeros((gold.sentences, 2 + max([0, *at.unit])), dtype=bool)
    isword[at.row, at.unit] = True
    asked, behind = query[same.owner], same.key + 1
    follows = (same.key < asked) & isword[row[same.owner], behind] & (behind != asked)
    after = Partners(np.full(len(asking), place.get("induction", -1)), row, query, same.owner[follows], behind[follows])
    found = {"duplicate": same, "induction": after.asked(after.hits() > 0)}
    return [found[name] for name in found if name in place]
