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

``words`` has the word of each span of a sentence, from 0, and -1 for a special token.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from headtools.roles._taxonomy.roles import NO_RELATION
from headtools.roles._taxonomy.vocabulary import Vocabulary
from headtools.roles.conventions import Conventions
from headtools.roles.sentence import Sentence

Antecedent = Callable[[Sentence, int], int | None]
Targets = dict[str, list[tuple[int, list[int]]]]  # by role, each query with its keys
NOMINAL = ("NOUN", "PROPN", "PRON")
_NEAR = {"previous": -1, "next": 1, "self": 0}


def argmax_targets(
    kind: str,
    sentence: Sentence,
    query_words: Sequence[int],
    words: Sequence[int],
    vocabulary: Vocabulary,
    conventions: Conventions,
) -> Targets:
    """The targets of the roles that are scored by argmax attention, as far as a query can see them.

    ``query_words`` are those of the queries, which in cross-attention are words of the translation.

    Raises ValueError for annotation that does not fit the words.

    >>> slept = Sentence(("it", "slept"), (2, 0), ("nsubj", "root"), ("PRON", "VERB"), (0, 0))
    >>> nothing_counted = Vocabulary({}, {}, 0.0, {})
    >>> targets = argmax_targets("encoder", slept, [0, 1], [0, 1], nothing_counted, Conventions(span=1))
    >>> targets["offset -1"], targets["nsubj up"], targets["nsubj down"]
    ([(1, [0])], [(0, [1])], [(1, [0])])
    """
    _check(sentence)
    spans_of = _spans_of_words(sentence, words)
    if kind == "cross":
        return _alignment(sentence, query_words, spans_of)
    queries, keys = _queries_and_keys(words, conventions)
    targets: Targets = defaultdict(list)
    for offset in range(-conventions.span, conventions.span + 1):
        targets[f"offset {offset:+d}"] = _at_offset(offset, queries, keys)
    for way in ("up", "down"):
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if head and relation not in NO_RELATION:
                query, key = (word, head - 1) if way == "up" else (head - 1, word)
                targets[f"{relation} {way}"].append((spans_of[query][0], spans_of[key]))
    for word, is_mention in enumerate(sentence.coreference):
        if is_mention:
            earlier = [span for other in earlier_mentions(sentence, word) for span in spans_of[other]]
            targets["coreference"].append((spans_of[word][0], earlier))
    targets |= _rarest(sentence, words, queries, vocabulary, conventions.n_frequent)
    return _visible(targets, kind, conventions, self_as_key=conventions.self_as_key)


def weight_targets(
    kind: str,
    sentence: Sentence,
    query_words: Sequence[int],
    words: Sequence[int],
    special_tokens: Sequence[int],
    vocabulary: Vocabulary,
    conventions: Conventions,
) -> Targets:
    """The targets of the roles that are scored by weight; here a query's own weight always counts.

    ``special_tokens`` has the token id of each span that is not a word.
    """
    if kind == "cross":
        queries = [query for query, word in enumerate(query_words) if word >= 0]
        return _marks(sentence, words, special_tokens, queries, vocabulary)
    queries, keys = _queries_and_keys(words, conventions)
    targets = {role: _at_offset(offset, queries, keys) for role, offset in _NEAR.items()}
    targets["first"] = [(query, [0]) for query in queries if query > 0]
    targets |= _marks(sentence, words, special_tokens, queries, vocabulary) | _repeats(sentence, words)
    return _visible(targets, kind, conventions, self_as_key=True)


def nearest_nominal(sentence: Sentence, mention: int) -> int | None:
    """Position of the nearest noun, name or pronoun before a word, from 0; None where there is none."""
    return next((j for j in reversed(range(mention)) if sentence.upos[j] in NOMINAL), None)


def earlier_mentions(sentence: Sentence, mention: int) -> list[int]:
    """Positions of the words before a mention that refer to the same thing."""
    first = sentence.coreference[mention]  # counted from 1, the word that names the thing first
    return [word for word in range(mention) if first in (word + 1, sentence.coreference[word])]


def _check(sentence: Sentence) -> None:
    n = len(sentence.words)
    lengths = [len(values) for values in (sentence.heads, sentence.relations, sentence.upos, sentence.coreference)]
    if not n or set(lengths) != {n}:
        raise ValueError(
            f"got a sentence of {n} words, with heads, relations, upos and coreference of {lengths}: "
            f"{str(sentence)[:80]!r}; expected at least one word, and one of each for every word; correct the sentence "
            "or leave it out"
        )
    for head in sentence.heads:
        if not 0 <= head <= n:
            raise ValueError(
                f"got word {head} as a head in a sentence of {n} words: {str(sentence)[:80]!r}; expected 1 to {n}, "
                "or 0 for the root"
            )


def _spans_of_words(sentence: Sentence, words: Sequence[int]) -> list[list[int]]:
    spans_of: list[list[int]] = [[] for _ in sentence.words]
    for span, word in enumerate(words):
        if word >= 0:
            spans_of[word].append(span)
    return spans_of


def _queries_and_keys(words: Sequence[int], conventions: Conventions) -> tuple[Sequence[int], Collection[int]]:
    """The spans that are queries, and those that may be keys."""
    spans, only_words = range(len(words)), [span for span, word in enumerate(words) if word >= 0]
    return (
        spans if conventions.specials_as_queries else only_words,
        spans if conventions.specials_as_keys else set(only_words),
    )


def _visible(targets: Targets, kind: str, conventions: Conventions, self_as_key: bool) -> Targets:
    """The targets that a query can see: in a decoder itself and what precedes it; itself only with ``self_as_key``.

    Queries without any are dropped, or kept without keys where ``edges`` is 'count'.
    """
    out = {}
    for role, asked in targets.items():
        if kind == "decoder" or not self_as_key:
            asked = [
                (query, [key for key in keys if (key <= query or kind != "decoder") and (key != query or self_as_key)])
                for query, keys in asked
            ]
        out[role] = asked if conventions.edges == "count" else [(query, keys) for query, keys in asked if keys]
    return out


def _at_offset(offset: int, queries: Sequence[int], may_be_key: Collection[int]) -> list[tuple[int, list[int]]]:
    return [(query, [query + offset] if query + offset in may_be_key else []) for query in queries]


def _alignment(sentence: Sentence, query_words: Sequence[int], spans_of: Sequence[list[int]]) -> Targets:
    """From the first span of each aligned target word to the spans of its source word."""
    alignment = sentence.alignment or ()
    if not 0 <= max(alignment, default=0) <= len(sentence.words):
        raise ValueError(
            f"got an alignment with word {max(alignment)} of {len(sentence.words)} words: {str(sentence)[:80]!r}; "
            f"expected 1 to {len(sentence.words)}, or 0 for a target word that translates none"
        )
    first_span = {word: span for span, word in reversed([*enumerate(query_words)])}
    # The words that a decoder reads may lack the last one.
    return {
        "alignment": [
            (first_span[target], spans_of[source - 1])
            for target, source in enumerate(alignment)
            if source and target in first_span
        ]
    }


def _rarest(
    sentence: Sentence, words: Sequence[int], queries: Sequence[int], vocabulary: Vocabulary, n_frequent: int
) -> Targets:
    """The roles of the rarest words, if the sentence has any; words of equal frequency are equally rare.

    It has none without a rare word, one to which ``n_frequent`` words are more frequent, and where more than half of
    its words are rarest, so that attention at random would do.
    """
    rank = {form: vocabulary.rank_of(form) for form in sentence.words}
    highest = max(rank.values())
    rarest_forms = {form for form in rank if rank[form] == highest}
    n_rarest = sum(form in rarest_forms for form in sentence.words)
    if not vocabulary.rank or highest < n_frequent or 2 * n_rarest > len(sentence.words):
        return {}

    form_of = [sentence.words[word] if word >= 0 else None for word in words]

    def spans_of_rarest(n: int, left_out: str | None = None) -> list[int]:
        """The spans of the words to which fewer than ``n`` others are rarer."""
        ranks = sorted((rank[form] for form in rank if form != left_out), reverse=True)
        return [
            span
            for span, form in enumerate(form_of)
            if form is not None and form != left_out and rank[form] >= ranks[:n][-1]
        ]

    rarest, two_rarest = spans_of_rarest(1), spans_of_rarest(2)
    others = {form: spans_of_rarest(1, form) for form in rarest_forms}
    return {
        "rarest": [(query, rarest) for query in queries],
        "two rarest": [(query, two_rarest) for query in queries],
        "rarest other": [(query, others.get(form_of[query], rarest)) for query in queries],
    }


def _marks(
    sentence: Sentence,
    words: Sequence[int],
    special_tokens: Sequence[int],
    queries: Sequence[int],
    vocabulary: Vocabulary,
) -> Targets:
    """Every query with the special tokens and the punctuation that there are."""
    keys = {
        name: [span for span, special in enumerate(special_tokens) if special == token]
        for name, token in vocabulary.special_tokens.items()
    }
    is_punctuation = [
        # a word without a part of speech is punctuation if it has no letter and no digit
        upos == "PUNCT" or (upos in ("_", "") and not any(character.isalnum() for character in word))
        for word, upos in zip(sentence.words, sentence.upos, strict=True)
    ]
    keys["punctuation"] = [span for span, word in enumerate(words) if word >= 0 and is_punctuation[word]]
    return {role: [(query, of_role) for query in queries] for role, of_role in keys.items() if of_role}


def _repeats(sentence: Sentence, words: Sequence[int]) -> Targets:
    """Duplicate and induction. Of a word in pieces, each piece has the same piece of the word's other occurrences."""
    piece_of: dict[int, tuple[str, int]] = {}  # by span, the word's form and which of its spans it is
    occurrences: dict[tuple[str, int], list[int]] = defaultdict(list)
    for word, spans in enumerate(_spans_of_words(sentence, words)):
        for piece, span in enumerate(spans):
            piece_of[span] = (sentence.words[word], piece)
            occurrences[piece_of[span]].append(span)
    duplicate, induction = [], []
    for query, piece in piece_of.items():
        copies = [span for span in occurrences[piece] if span != query]
        # Induction reads the token after an earlier copy; the query itself is not one to predict from.
        following = [span + 1 for span in copies if span < query and span + 1 in piece_of and span + 1 != query]
        duplicate += [(query, copies)] if copies else []
        induction += [(query, following)] if following else []
    return {"duplicate": duplicate, "induction": induction}
