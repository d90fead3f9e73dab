"""Who should attend to whom: for each role, the queries of a batch and the keys that count as a hit.

Queries and keys are spans (``spans.py``): words with the special tokens around them, or single tokens. Two scores are
made of them (``scores.py``).

Scored by argmax attention, how often a query's strongest key is one of these (:func:`argmax_targets`):

    offset -1, offset +0, ...     the span at that distance from the query, the query itself at +0
    nsubj up, obj down, ...       from a word to its syntactic head, or from the head to the word, by relation
    coreference                   from a mention to any earlier mention of the same thing
    rarest, two rarest            from any word to the rarest word, or one of the two rarest (Voita et al. 2019, 5.3);
                                  words of equal frequency are equally rare, and each of them is a hit
    rarest other                  the same, but each query has its own target: the rarest word other than itself
    alignment                     from a target word to the source word it translates (cross-attention)

Scored by attention weight, how much a query gives to all of these together (:func:`weight_targets`):

    previous, next, self, first   the neighbours, the query itself, the first span of all
    bos, eos, cls, sep            the tokenizer's special tokens
    punctuation                   spans of punctuation
    duplicate                     other spans of the same word
    induction                     spans that follow an earlier span of the same word

Everything is made for a whole batch at once; :func:`targets_of_sentence` shows it for one sentence. ``role_index``
gives the index of each role that is scored; others are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from headtools.roles._taxonomy.annotation import (
    NOMINAL,
    SPECIAL_TOKENS,
    Annotation,
    Array,
    Vocabulary,
    annotate,
    ragged_index,
)
from headtools.roles._taxonomy.roles import RARE
from headtools.roles._taxonomy.sequences import AttentionSequences
from headtools.roles._taxonomy.spans import Spans
from headtools.roles.conventions import Conventions
from headtools.roles.sentence import Sentence

Antecedent = Callable[[Sentence, int], int | None]
SentenceTargets = dict[str, list[tuple[int, tuple[int, ...]]]]
_NEAR = {"previous": -1, "next": 1, "self": 0}


class Targets(NamedTuple):
    """N queries, each of one role, and P pairs of one of these queries and a key that is a hit.

    role, sentence, query   (N,) index of the role, of the sentence in the batch, and of the span that queries
    owner, key              (P,) which of the N queries the pair belongs to, and the span that is its key
    """

    role: Array
    sentence: Array
    query: Array
    owner: Array
    key: Array

    def n_keys(self) -> Array:
        """How many keys each query has: (N,)."""
        return np.bincount(self.owner, minlength=len(self.query))

    def select_pairs(self, mask: Array) -> "Targets":
        """All queries, with those of their keys for which ``mask`` (P,) is true."""
        return self._replace(owner=self.owner[mask], key=self.key[mask])

    def select_queries(self, mask: Array) -> "Targets":
        """The queries for which ``mask`` (N,) is true, with all their keys."""
        new_index, pairs = np.cumsum(mask) - 1, mask[self.owner]
        return Targets(*(values[mask] for values in self[:3]), new_index[self.owner[pairs]], self.key[pairs])


class Queries:
    """The Q spans of a mask (B, U) that are queries: their ``sentence`` and ``span`` (Q,), sentence by sentence."""

    def __init__(self, mask: Array) -> None:
        self.sentence, self.span = np.nonzero(mask)
        self.count = mask.sum(1)  # (B,) queries of each sentence
        self.first = np.cumsum(self.count) - self.count  # (B,) index of its first one


class WordSpans:
    """The spans of each word of a batch: ``first`` (N,), -1 for a word without any; all by :meth:`spans_of`.

    ``sentence``, ``span`` and ``word`` (S,) are those of all spans that are words, word by word.
    """

    def __init__(self, annotation: Annotation, spans: Spans) -> None:
        word_in_sentence = spans.word.numpy()
        sentence, span = np.nonzero(word_in_sentence >= 0)
        word = annotation.first_word[sentence] + word_in_sentence[sentence, span]
        order = np.argsort(word, kind="stable")
        self.sentence, self.span, self.word = sentence[order], span[order], word[order]
        self.count = np.bincount(self.word, minlength=len(annotation.sentence))
        self.start = np.cumsum(self.count) - self.count
        self.first = np.where(self.count > 0, np.append(self.span, -1)[self.start], -1)

    def spans_of(self, words: Array) -> tuple[Array, Array]:
        """All spans of some words: the position of the word among ``words``, and the span."""
        owner, piece = ragged_index(self.count[words])
        return owner, self.span[self.start[words][owner] + piece]


def argmax_targets(sequences: AttentionSequences, role_index: Mapping[str, int], conventions: Conventions) -> Targets:
    """The targets of the roles that are scored by argmax attention, as far as a query can see them.

    Raises ValueError for an alignment with a word that does not exist.
    """
    if sequences.kind == "cross":
        _check_alignment(sequences.sentences)
        return _alignment(sequences, role_index["alignment"]) if "alignment" in role_index else _concatenate([])
    targets = _argmax_targets(sequences.annotation, sequences.keys, role_index, conventions)
    return _visible(targets, sequences, conventions, self_as_key=conventions.self_as_key)


def weight_targets(sequences: AttentionSequences, role_index: Mapping[str, int], conventions: Conventions) -> Targets:
    """The targets of the roles that are scored by weight; here a query's own weight always counts."""
    if sequences.kind == "cross":
        role_index = {role: i for role, i in role_index.items() if role in (*SPECIAL_TOKENS, "punctuation")}
        queries = Queries(sequences.queries.word.numpy() >= 0)
        return _weight_targets(sequences, role_index, conventions, queries)
    return _visible(_weight_targets(sequences, role_index, conventions), sequences, conventions, self_as_key=True)


def targets_of_sentence(
    sentence: Sentence, spans_of_word: Mapping[int, Sequence[int]], n_spans: int, conventions: Conventions,
    rank: Mapping[str, int],
) -> SentenceTargets:  # fmt: skip
    """The targets by argmax attention of one sentence: {role: [(query, keys), ...]}.

    ``spans_of_word`` {word: its spans} of ``n_spans`` spans; ``rank`` of words, 0 for the most frequent. Words without
    a rank are rarer than all others. With an empty ``rank`` there is no rarest word.

    >>> slept = Sentence(("it", "slept"), (2, 0), ("nsubj", "root"), ("PRON", "VERB"), (0, 0))
    >>> targets = targets_of_sentence(slept, {0: [0], 1: [1]}, 2, Conventions(span=1), {})
    >>> targets["offset -1"], targets["nsubj up"], targets["nsubj down"]
    ([(0, ()), (1, (0,))], [(0, (1,))], [(1, (0,))])
    """
    word = torch.full((1, n_spans), -1)
    for index, own_spans in spans_of_word.items():
        word[0, list(own_spans)] = index
    annotation = annotate([sentence], Vocabulary(rank, {}, 0.0, {}))
    roles = [f"offset {k:+d}" for k in range(-conventions.span, conventions.span + 1)]
    roles += [f"{relation} {way}" for relation in annotation.relations for way in ("up", "down")]
    roles += ["coreference", *RARE]
    exists = torch.ones(1, n_spans, dtype=torch.bool)
    spans = Spans(torch.arange(n_spans)[None], word, exists, torch.full((1, n_spans), -1))
    targets = _argmax_targets(annotation, spans, {role: i for i, role in enumerate(roles)}, conventions)
    keys: list[list[int]] = [[] for _ in targets.query]
    for owner, key in zip(targets.owner.tolist(), targets.key.tolist(), strict=True):
        keys[owner].append(key)
    out: SentenceTargets = {role: [] for role in roles if role.startswith("offset") or role == "coreference"}
    for role, query, own_keys in zip(targets.role, targets.query.tolist(), keys, strict=True):
        out.setdefault(roles[role], []).append((query, tuple(sorted(own_keys))))
    return out


def nearest_nominal(sentence: Sentence, mention: int) -> int | None:
    """Position of the nearest noun, name or pronoun before a word, from 0; None where there is none."""
    return next((j for j in reversed(range(mention)) if sentence.upos[j] in NOMINAL), None)


def earlier_words(annotation: Annotation, mentions: Array) -> tuple[Array, Array, Array]:
    """All words before each mention in its sentence: which mention, the word, whether both corefer."""
    owner, position = ragged_index(annotation.position[mentions])
    earlier = annotation.first_word[annotation.sentence[mentions]][owner] + position
    first_mention = annotation.coreference[mentions][owner]  # counted from 1, the word that names the thing first
    return owner, earlier, (position + 1 == first_mention) | (annotation.coreference[earlier] == first_mention)


def _visible(targets: Targets, sequences: AttentionSequences, conventions: Conventions, self_as_key: bool) -> Targets:
    """The targets that a query can see: in a decoder itself and what precedes it; itself only with ``self_as_key``.

    Queries without any are dropped, or kept without keys where ``edges`` is 'count'.
    """
    query = targets.query[targets.owner]
    visible = (targets.key <= query) | (not sequences.causal)
    targets = targets.select_pairs(visible & ((targets.key != query) | self_as_key))
    return targets if conventions.edges == "count" else targets.select_queries(targets.n_keys() > 0)


def _argmax_targets(
    annotation: Annotation, spans: Spans, role_index: Mapping[str, int], conventions: Conventions
) -> Targets:
    """Targets by argmax attention within the sentences of a batch, whether a query can see them or not."""
    word_spans, (queries, may_be_key) = WordSpans(annotation, spans), _queries_and_keys(spans, conventions)
    offsets = {f"offset {k:+d}": k for k in range(-conventions.span, conventions.span + 1)}
    parts = [_at_offsets(_by_index(offsets, role_index), queries, may_be_key)]
    for way in ("up", "down"):
        roles = np.array([role_index.get(f"{relation} {way}", -1) for relation in annotation.relations])
        parts.append(_relations(annotation, word_spans, way, roles))
    if "coreference" in role_index:
        parts.append(_coreference(annotation, word_spans, role_index["coreference"]))
    return _concatenate([*parts, *_rarest(annotation, word_spans, queries, role_index, conventions.n_frequent)])


def _weight_targets(
    sequences: AttentionSequences, role_index: Mapping[str, int], conventions: Conventions,
    cross_queries: Queries | None = None,
) -> Targets:  # fmt: skip
    """Targets by weight, whether a query can see them or not; ``cross_queries`` are the target's in cross-attention."""
    annotation, spans = sequences.annotation, sequences.keys
    word_spans, (queries, may_be_key) = WordSpans(annotation, spans), _queries_and_keys(spans, conventions)
    parts = []
    if cross_queries is None:
        parts += [_at_offsets(_by_index(_NEAR, role_index), queries, may_be_key)]
        parts += _repeats(annotation, word_spans, role_index)
        if "first" in role_index:
            every_sentence = np.arange(annotation.n_sentences)
            first, _ = _shared_keys(role_index["first"], every_sentence, np.zeros_like(every_sentence), queries)
            parts.append(first.select_queries(first.query > 0))
    special_token = spans.special_token.numpy()
    keys = {name: np.nonzero(special_token == token) for name, token in sequences.vocabulary.special_tokens.items()}
    is_punctuation = annotation.is_punctuation[word_spans.word]
    keys["punctuation"] = word_spans.sentence[is_punctuation], word_spans.span[is_punctuation]
    parts += [_shared_keys(role_index[name], *keys[name], cross_queries or queries)[0]
              for name in keys if name in role_index]  # fmt: skip
    return _concatenate(parts)


def _alignment(sequences: AttentionSequences, role: int) -> Targets:
    """From the first span of each aligned target word to the spans of its source word."""
    sentences, annotation = sequences.sentences, sequences.annotation
    links = np.array([(i, target, source) for i, s in enumerate(sentences)
                      for target, source in enumerate(s.alignment or ()) if source], dtype=np.int64)  # fmt: skip
    links = links.reshape(-1, 3)
    query_word = sequences.queries.word.numpy()
    sentence, span = np.nonzero(query_word >= 0)
    word = query_word[sentence, span]
    no_span = query_word.shape[1]
    first_span = np.full((len(sentences), max([0, *word, *links[:, 1]]) + 1), no_span)
    # Unbuffered, unlike fancy assignment: a word of several spans keeps the least of them.
    np.minimum.at(first_span, (sentence, word), span)
    sentence, target, source = links.T
    query = first_span[sentence, target]
    queried = query < no_span  # the words that a decoder reads may lack the last one
    owner, key = WordSpans(annotation, sequences.keys).spans_of((annotation.first_word[sentence] + source - 1)[queried])
    return Targets(np.full(queried.sum(), role), sentence[queried], query[queried], owner, key)


def _check_alignment(sentences: Sequence[Sentence]) -> None:
    for s in sentences:
        if not 0 <= max(s.alignment or (0,)) <= len(s.words):
            raise ValueError(
                f"got an alignment with word {max(s.alignment)} of {len(s.words)} words: {str(s)[:80]!r}; expected "
                f"1 to {len(s.words)}, or 0 for a target word that translates none"
            )


def _queries_and_keys(spans: Spans, conventions: Conventions) -> tuple[Queries, Array]:
    """The spans that are queries, and which may be keys (B, U)."""
    exists, words = spans.exists.numpy(), spans.word.numpy() >= 0
    return (Queries(exists if conventions.specials_as_queries else words),
            exists if conventions.specials_as_keys else words)  # fmt: skip


def _by_index(offsets: Mapping[str, int], role_index: Mapping[str, int]) -> dict[int, int]:
    return {role_index[role]: offset for role, offset in offsets.items() if role in role_index}


def _concatenate(parts: Sequence[Targets]) -> Targets:
    """The queries of all parts, one part after the other, with their keys; no queries without parts."""
    parts = [Targets(*[np.zeros(0, dtype=np.int64)] * 5), *parts]
    first = np.cumsum([0, *(len(part.query) for part in parts)])
    # ``owner`` is an index of queries: it moves by as many as the parts before have.
    parts = [part._replace(owner=part.owner + n) for part, n in zip(parts, first, strict=False)]
    return Targets(*(np.concatenate(values).astype(np.int64) for values in zip(*parts, strict=True)))


def _at_offsets(offsets: Mapping[int, int], queries: Queries, may_be_key: Array) -> Targets:
    """Every query with the span at an offset, {role index: offset}, where ``may_be_key`` (B, U) is true for that.

    >>> targets = _at_offsets({7: -1}, Queries(np.array([[True, True]])), np.array([[True, True]]))
    >>> targets.query.tolist(), targets.owner.tolist(), targets.key.tolist()
    ([0, 1], [1], [0])
    """
    role, offset = (np.array(list(values), dtype=np.int64) for values in (offsets.keys(), offsets.values()))
    key = queries.span + offset[:, None]  # (role, query)
    inside = (key >= 0) & (key < may_be_key.shape[1])
    # A query has one key or none here, so that its flat index is its pair's owner.
    owner = np.flatnonzero(inside & may_be_key[queries.sentence, np.where(inside, key, 0)])
    sentence, query = (np.tile(values, len(offset)) for values in (queries.sentence, queries.span))
    return Targets(role.repeat(len(queries.span)), sentence, query, owner, key.ravel()[owner])


def _shared_keys(role: int, sentence: Array, key: Array, queries: Queries) -> tuple[Targets, Array]:
    """Every query of a sentence with the same keys: ``sentence`` (ascending) and ``key`` of each of K keys.

    Also returns which of the K keys each pair has (P,). Queries of sentences without keys are left out.

    >>> queries = Queries(np.array([[True, True], [True, False]]))
    >>> targets, _ = _shared_keys(3, np.array([0, 0]), np.array([1, 4]), queries)
    >>> targets.query.tolist(), targets.owner.tolist(), targets.key.tolist()
    ([0, 1], [0, 0, 1, 1], [1, 4, 1, 4])
    """
    n_keys = np.bincount(sentence, minlength=len(queries.count))
    first_key, with_keys = np.cumsum(n_keys) - n_keys, np.flatnonzero(n_keys)
    owner, position = ragged_index(queries.count[with_keys])
    query_sentence = with_keys[owner]
    query = queries.span[queries.first[query_sentence] + position]
    owner, position = ragged_index(n_keys[query_sentence])
    key_index = first_key[query_sentence][owner] + position
    return Targets(np.full(len(query), role), query_sentence, query, owner, key[key_index]), key_index


def _relations(annotation: Annotation, word_spans: WordSpans, way: str, roles: Array) -> Targets:
    """One direction of all relations; ``roles`` has the role index of each relation, -1 for none."""
    role = roles[annotation.relation]
    word = np.flatnonzero((annotation.head >= 0) & (role >= 0))
    head = annotation.head[word]
    query_word, key_word = (word, head) if way == "up" else (head, word)
    return Targets(role[word], annotation.sentence[word], word_spans.first[query_word], *word_spans.spans_of(key_word))


def _coreference(annotation: Annotation, word_spans: WordSpans, role: int) -> Targets:
    mention = np.flatnonzero(annotation.coreference)
    owner, earlier, corefers = earlier_words(annotation, mention)
    pair, key = word_spans.spans_of(earlier[corefers])
    return Targets(np.full(len(mention), role), annotation.sentence[mention], word_spans.first[mention],
                   owner[corefers][pair], key)  # fmt: skip


def _rarest(
    annotation: Annotation, word_spans: WordSpans, queries: Queries, role_index: Mapping[str, int], n_frequent: int
) -> list[Targets]:
    """The roles of the rarest words, in the sentences that have any; words of equal frequency are equally rare.

    Left out are sentences without a rare word, one to which ``n_frequent`` words are more frequent, and those in which
    more than half of the words are rarest, so that attention at random would do.
    """
    if not any(role in role_index for role in RARE) or not annotation.n_ranked:
        return []  # without ranks no word is rare
    # The words of each sentence, rarest first, equal words next to each other.
    order = np.lexsort((annotation.form, -annotation.rank, annotation.sentence))
    index, starts_sentence = np.arange(len(order)), np.zeros(len(order), dtype=bool)
    starts_sentence[annotation.first_word] = True
    new_form, new_rank = (starts_sentence | (np.diff(values[order], prepend=-1) != 0)
                          for values in (annotation.form, annotation.rank))  # fmt: skip
    n_rarer = np.cumsum(new_form) - 1
    n_rarer = n_rarer - n_rarer[annotation.first_word][annotation.sentence]  # different forms before, in the sentence
    n_rarer = n_rarer[np.maximum.accumulate(np.where(new_rank, index, 0))]  # for words of equal rank that of the first
    highest_rank = annotation.rank[order[annotation.first_word]]
    length = np.add.reduceat(np.ones_like(order), annotation.first_word)
    n_rarest = np.add.reduceat((n_rarer == 0).astype(int), annotation.first_word)
    has_rare_words = (highest_rank >= n_frequent) & (2 * n_rarest <= length)
    rare = has_rare_words[annotation.sentence] & (n_rarer < 2)
    word, n_rarer = order[rare], n_rarer[rare]
    pair, span = word_spans.spans_of(word)
    sentence, n_rarer, form = annotation.sentence[word][pair], n_rarer[pair], annotation.form[word][pair]
    out = []
    for role, selected in (("rarest", n_rarer == 0), ("two rarest", n_rarer < 2)):
        if role in role_index:
            out.append(_shared_keys(role_index[role], sentence[selected], span[selected], queries)[0])
    if "rarest other" in role_index:
        targets, key_index = _shared_keys(role_index["rarest other"], sentence, span, queries)
        rarest_form = np.full((annotation.n_sentences, 1 + max([0, *span, *queries.span])), -1)
        rarest_form[sentence[n_rarer == 0], span[n_rarer == 0]] = form[n_rarer == 0]
        own_form = rarest_form[targets.sentence, targets.query][targets.owner]  # -1 where the query is not rarest
        out.append(targets.select_pairs(np.where(own_form < 0, n_rarer[key_index] == 0, form[key_index] != own_form)))
    return out


def _repeats(annotation: Annotation, word_spans: WordSpans, role_index: Mapping[str, int]) -> list[Targets]:
    """Duplicate and induction. Of a word in pieces, each piece has the same piece of the word's other occurrences."""
    if not {"duplicate", "induction"} & role_index.keys():
        return []
    # Spans with the same sentence, form and piece are occurrences of one another: one number for the three.
    piece = np.arange(len(word_spans.span)) - word_spans.start[word_spans.word]
    same = word_spans.sentence * (1 + annotation.form.max()) + annotation.form[word_spans.word]
    same = same * (1 + max([0, *piece])) + piece
    _, group, size = np.unique(same, return_inverse=True, return_counts=True)
    order, start = np.argsort(group, kind="stable"), np.cumsum(size) - size
    repeated = np.flatnonzero(size[group] > 1)
    owner, position = ragged_index(size[group[repeated]])
    other = order[start[group[repeated]][owner] + position]
    sentence, query = word_spans.sentence[repeated], word_spans.span[repeated]
    duplicate = Targets(np.full(len(repeated), role_index.get("duplicate", -1)), sentence, query, owner,
                        word_spans.span[other])  # fmt: skip
    duplicate = duplicate.select_pairs(other != repeated[owner])
    is_word = np.zeros((annotation.n_sentences, 2 + max([0, *word_spans.span])), dtype=bool)
    is_word[word_spans.sentence, word_spans.span] = True
    pair_query, next_span = query[duplicate.owner], duplicate.key + 1
    # Induction reads the token after an earlier copy; the query itself is not one to predict from.
    follows = (duplicate.key < pair_query) & is_word[sentence[duplicate.owner], next_span] & (next_span != pair_query)
    induction = Targets(np.full(len(repeated), role_index.get("induction", -1)), sentence, query,
                        duplicate.owner[follows], next_span[follows])  # fmt: skip
    targets = {"duplicate": duplicate, "induction": induction.select_queries(induction.n_keys() > 0)}
    return [targets[role] for role in targets if role in role_index]
