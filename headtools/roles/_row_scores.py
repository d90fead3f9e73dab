"""From attention maps to numbers: what every head of a batch scores for every role, beside baseline and chance.

A :class:`Plan` is made once for each kind of attention of a batch: which keys are a hit for which query, and what
baseline and chance score on the same queries. Maps come layer by layer while the model runs; :func:`score` turns those
of one layer into sums over the queries of each sentence, (B, R, head) for R roles, which can be added up and resampled.
All that depends on a map are functions of its rows, (B, head, query, key).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headtools.heads._devices import without_autocast
from headtools.roles import map_classes
from headtools.roles._texts import Text
from headtools.roles.conventions import Conventions
from headtools.roles.role import MAPS, SPECIAL_TOKENS, Frequencies, Key, Role
from headtools.roles.sentence import Sentence
from headtools.roles.spans import group_means, visible_keys

MIN_LENGTH = 4  # words a sentence needs for content similarity and for a class of maps
_MAP_STEPS = 2**16  # between 0 and 1, for classes of maps


@dataclass(frozen=True)
class Plan:
    """What the maps of one kind of attention in one batch are scored for: B sentences, R roles, Q and K spans.

    counts        (B, 3, R) sums over the queries of each sentence: n, what the baseline scores, what chance scores
    hits, weights (4, P) of each pair of a query and a key that is a hit: sentence, role, query, key
    visible       (B, Q, K) what a query can see
    candidates    (B, Q, K) the keys over which the argmax is taken
    scored        (B, Q) which queries are counted
    rarity        (B, K) rarity of each key
    content       pairs (B, Q, K) and cosines of their embeddings, (B, 1, Q, K), or None
    """

    text: Text
    roles: Sequence[Role]
    conventions: Conventions
    counts: Tensor
    hits: Tensor
    weights: Tensor
    visible: Tensor
    candidates: Tensor
    scored: Tensor
    rarity: Tensor
    content: tuple[Tensor, Tensor] | None


# What is asked for, without any map.


def find_targets(
    role: Role, kind: str, sentence: Sentence, spans: Mapping[Key, int], query_spans: Mapping[int, int]
) -> list[tuple[int, list[Key]]]:
    """The queries of a role in a sentence, each with the hits that it can see; queries without any are left out.

    ``spans`` has the span of each key, of words and of special tokens; ``query_spans`` that of each query.

    Raises ValueError for a query or key that is no word of the sentence.
    """
    found = []
    for query, keys in role.targets(sentence):
        own, seen = query_spans.get(query), []
        for key in keys:
            span = spans.get(key)
            if own is None or (span is None and key not in _SPECIAL_KEYS):
                raise ValueError(
                    f"the role {role.name!r} pairs the query {query!r} with the key {key!r} in {str(sentence)[:80]!r}; "
                    f"expected positions of words, from 0, or as a key one of {', '.join(_SPECIAL_KEYS)}"
                )
            if span is None or (kind == "decoder" and span > own):
                continue
            # the first token of all is something to rest on: for that token itself it is "self"
            if span != own or kind == "cross" or key != "first":
                seen.append(key)
        if seen:
            found.append((query, seen))
    return found


def word_targets(role: Role, kind: str, sentence: Sentence) -> list[tuple[int, list[Key]]]:
    """:func:`find_targets` without a tokenizer: positions of words alone, as distances are fitted on."""
    words = dict(enumerate(range(len(sentence.words))))
    queries = dict(enumerate(range(len(sentence.target)))) if kind == "cross" else words
    return find_targets(role, kind, sentence, words, queries)


_SPECIAL_KEYS = ("first", *SPECIAL_TOKENS)


def make_plan(
    text: Text,
    roles: Sequence[Role],
    conventions: Conventions,
    frequencies: Frequencies,
    tokenizer: object,
    best_offsets: Sequence[Mapping[str, int]],
) -> Plan:
    """Plan what a batch is scored for; ``best_offsets`` has the best offset of each role, for each sentence."""
    special_tokens: dict[int, str] = {}
    for name in SPECIAL_TOKENS:  # RoBERTa's BOS token is also its [CLS], and counts as the first
        special_tokens.setdefault(getattr(tokenizer, f"{name}_token_id", None), name)
    queries, keys = text.queries, text.keys
    visible = visible_keys(text.kind, queries.exists, keys.exists)
    candidates = visible & (keys.word >= 0)[:, None]
    scored = (queries.word >= 0) & candidates.any(-1)
    counts = np.zeros((len(text.sentences), 3, len(roles)), dtype=np.float32)
    pairs: dict[str, list[tuple[int, int, int, int]]] = {"argmax": [], "weight": []}
    n_candidates, n_visible = candidates.sum(-1).clamp_min(1).tolist(), visible.sum(-1).clamp_min(1).tolist()
    for b, sentence in enumerate(text.sentences):
        spans: dict[Key, int] = {word: u for u, word in enumerate(keys.word[b].tolist()) if word >= 0}
        own_spans = {word: u for u, word in enumerate(queries.word[b].tolist()) if word >= 0}
        for u, token in enumerate(keys.special_token[b].tolist()):
            if token in special_tokens:
                spans.setdefault(special_tokens[token], u)
        spans["first"] = 0
        for r, role in enumerate(roles):
            if role.targets is None:
                continue
            targets = find_targets(role, text.kind, sentence, spans, own_spans)
            by_baseline = by_chance = 0.0
            offset = best_offsets[b].get(role.name)
            for query, hits in targets:
                q, ks = own_spans[query], [spans[key] for key in hits]
                pairs[role.by] += [(b, r, q, k) for k in ks]
                if role.among is not None:
                    choices = role.among(sentence, query)
                    chance = sum(choice in hits for choice in choices) / max(len(choices), 1)
                elif role.by == "argmax":
                    chance = len(ks) / n_candidates[b][q]
                elif not conventions.renormalise:
                    chance = len(ks) / n_visible[b][q]
                else:  # words share what the row leaves them, special tokens have their part of the whole row
                    chance = sum(1 / (n_candidates if candidates[b, q, k] else n_visible)[b][q] for k in ks)
                by_chance += chance
                if callable(role.baseline):
                    by_baseline += role.baseline(sentence, query) in hits
                else:
                    by_baseline += chance if offset is None else query + offset in hits
            counts[b, :, r] = len(targets), by_baseline, by_chance
    hits, weights = (torch.tensor(pairs[by], dtype=torch.long).view(-1, 4).T for by in ("argmax", "weight"))
    rarity = torch.tensor(
        [
            [frequencies.rarity(sentence.words[word]) if word >= 0 else 0.0 for word in row]
            for sentence, row in zip(text.sentences, keys.word.tolist(), strict=True)
        ]
    )
    content = None
    if text.embeddings is not None and any(role.name == "content" for role in roles):
        of_words = (queries.word >= 0)[:, :, None] & (keys.word >= 0)[:, None] & visible
        of_words = of_words & ~torch.eye(of_words.shape[-1], dtype=torch.bool)  # pairs of different words
        means = group_means(keys.of_token, keys.exists.shape[1]) @ text.embeddings.float()
        content = of_words[:, None], similarity(means, of_words[:, None])
    plan = Plan(
        text, roles, conventions, torch.from_numpy(counts), hits, weights, visible, candidates, scored, rarity, content
    )
    _count_statistics(plan)
    return plan


def _count_statistics(plan: Plan) -> None:
    """Fill in the counts of the roles without targets; baseline and chance are both what uniform attention scores."""
    visible, candidates = plan.visible.float(), plan.candidates.float()
    n_visible, n_candidates = visible.sum(-1).clamp_min(1), candidates.sum(-1).clamp_min(1)
    uniform = {
        "confidence": 1 / (n_candidates if plan.conventions.renormalise else n_visible),
        "entropy": n_visible.log(),
        "distance": (visible * distances(visible)).sum(-1) / n_visible,
        "rarity": (candidates * plan.rarity[:, None]).sum(-1) / n_candidates,
    }
    long_enough = ((plan.text.keys.word >= 0).sum(-1) >= MIN_LENGTH).float()
    for r, role in enumerate(plan.roles):
        if role.name in uniform and role.targets is None:
            plan.counts[:, 0, r] = plan.scored.sum(-1)
            plan.counts[:, 1:, r] = (uniform[role.name] * plan.scored).sum(-1, keepdim=True)
        elif role.name in MAPS or (role.name == "content" and plan.content is not None):
            # One for each sentence, not for each query: chance is one class in five, or no correlation.
            plan.counts[:, 0, r] = long_enough
            plan.counts[:, 1:, r] = (long_enough / len(MAPS) * (role.name in MAPS))[:, None]


# What a map scores. Every function is of the rows of maps (B, head, Q, K).


@without_autocast
def score(maps: Tensor, plan: Plan) -> Tensor:
    """Sums of every role over each sentence: maps between spans (B, head, Q, K), on the CPU, to (B, R, head)."""
    weight, key = maps.masked_fill(~plan.candidates[:, None], -1).max(-1)  # (B, head, Q); of equal weights the first
    words_weight = (maps * plan.candidates[:, None]).sum(-1).clamp_min(1e-12) if plan.conventions.renormalise else None
    out = maps.new_zeros(len(maps) * len(plan.roles), maps.shape[1])
    b, r, q, k = plan.hits
    out.index_add_(0, b * len(plan.roles) + r, (key[b, :, q] == k[:, None]).float())  # (P, head)
    b, r, q, k = plan.weights
    on_target = maps[b, :, q, k]
    if words_weight is not None:  # words share what the row leaves them; special tokens keep their weight
        weight = weight / words_weight
        on_target = torch.where(plan.candidates[b, q, k][:, None], on_target / words_weight[b, :, q], on_target)
    out.index_add_(0, b * len(plan.roles) + r, on_target)
    out = out.view(len(maps), len(plan.roles), -1)
    classes = None
    for r, role in enumerate(plan.roles):
        has_queries = plan.counts[:, 0, r, None] > 0  # (B, 1)
        if role.targets is not None or not has_queries.any():
            continue
        if role.name == "content":  # of whole maps (B, head)
            out[:, r] = has_queries * correlation(maps, *plan.content)
            continue
        if role.name in MAPS:
            if classes is None:
                # Sums of multiples of one step are exact: features of a sharp map that tie do so with any padding.
                classes = map_classes.classify((maps * _MAP_STEPS).round() / _MAP_STEPS, plan.text.keys.exists)
            out[:, r] = has_queries * (classes == MAPS.index(role.name))
            continue
        if role.name == "confidence":  # of rows, (B, head, Q)
            values = weight
        elif role.name == "entropy":
            values = entropy(maps)
        elif role.name == "distance":
            values = (maps * distances(maps)).sum(-1)
        else:
            values = plan.rarity.gather(1, key.flatten(1)).view(key.shape)
        out[:, r] = has_queries * (values * plan.scored[:, None]).sum(-1)
    return out


def entropy(maps: Tensor) -> Tensor:
    """Entropy of each row, over all keys, in nats: (..., K) to (...)."""
    return -(maps * maps.clamp_min(torch.finfo(maps.dtype).tiny).log()).sum(-1)  # 0 log 0 is 0


def distances(maps: Tensor) -> Tensor:
    """How far each key is from each query, |key - query|, for maps (..., Q, K): (Q, K)."""
    queries, keys = map(torch.arange, maps.shape[-2:])
    return (keys - queries[:, None]).abs()


@without_autocast
def similarity(vectors: Tensor, pairs: Tensor) -> Tensor:
    """Cosines of vectors (B, U, d), less their mean at the same offset: (B, 1, U, U), for ``pairs`` (B, 1, U, U)."""
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    return without_offset_means((vectors @ vectors.transpose(1, 2))[:, None], pairs)


def correlation(maps: Tensor, pairs: Tensor, similarity: Tensor) -> Tensor:
    """Correlation in each sentence of weights and similarities, position removed: (B, head).

    ``maps`` (B, head, U, U), ``pairs`` (B, 1, U, U) those that count, ``similarity`` as :func:`similarity` gives it.
    From weights and cosines the mean over the pairs at the same offset of the same sentence is subtracted first, so
    that a map that depends on the offset alone scores 0, as does a constant one.

    >>> vectors = torch.eye(4)[[0, 1, 0, 1, 2]][None]
    >>> cosine, pairs = vectors @ vectors.transpose(1, 2), ~torch.eye(5, dtype=torch.bool)[None, None]
    >>> round(float(correlation(cosine[None], pairs, similarity(vectors, pairs))), 3)
    1.0
    """
    weight = without_offset_means(maps, pairs)
    covariance = (weight * similarity).sum((-2, -1))
    scale = (weight.square().sum((-2, -1)) * similarity.square().sum((-2, -1))).sqrt()
    # What rounding leaves of a constant or a purely positional map is no variation.
    return torch.where(scale > 1e-6, covariance / scale.clamp_min(1e-6), 0.0)


def without_offset_means(values: Tensor, pairs: Tensor) -> Tensor:
    """Values (B, H, U, U) less their mean over the sentence's pairs at the same offset; 0 where there is no pair."""
    size = values.shape[-1]
    offset = (torch.arange(size) - torch.arange(size)[:, None] + size - 1).flatten()  # (U * U,), from 0

    def sums(cells: Tensor) -> Tensor:
        flat = cells.flatten(-2)
        return flat.new_zeros(*flat.shape[:-1], 2 * size - 1).scatter_add_(-1, offset.expand_as(flat), flat)

    mean = sums(values * pairs) / sums(pairs.float()).clamp_min(1)  # (B, H, offset)
    return (values - mean[..., offset].view_as(values)) * pairs
