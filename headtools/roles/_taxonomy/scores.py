"""From attention maps to sums: what every head of a batch scores for every role, beside baseline and chance.

What has to be right here:

- Targets are made once for a batch (:class:`BatchScorer`); maps come layer by layer while the model runs, and
  :class:`RunningScores` adds up the layers.
- Everything is a sum over the queries of a sentence, so that sentences can be added up and resampled later: n, baseline
  and chance (B, 3, R), which no head changes, and the scores (B, R, head).
- Baseline and chance are counted on the same queries as the scores.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from headtools.heads._devices import without_autocast
from headtools.heads.sites import Site, SiteKey
from headtools.roles import controls, map_classes
from headtools.roles._taxonomy import statistics
from headtools.roles._taxonomy.roles import MAPS
from headtools.roles._taxonomy.sequences import AttentionSequences
from headtools.roles._taxonomy.spans import maps_between_spans
from headtools.roles._taxonomy.targets import (
    NOMINAL,
    Antecedent,
    argmax_targets,
    earlier_mentions,
    weight_targets,
)
from headtools.roles._taxonomy.vocabulary import Vocabulary
from headtools.roles.baselines import BestOffsets
from headtools.roles.conventions import Conventions
from headtools.roles.sentence import Sentence

# Cells of maps that are scored at once. One layer of a small model has so few that the calls would take the time.
MIN_CELLS = 2**20
_MAP_STEPS = 2**16  # between 0 and 1, for map classes


class BatchScorer:
    """Scores the maps of one batch: B sentences with at most Q query and K key spans, R roles, each at its index.

    counts                       (B, 3, R) sums over the queries of each sentence: n, what the baseline scores, and what
                                 chance scores
    visible                      (B, Q, K) what a query can see
    candidates                   (B, Q, K) the keys over which the argmax is taken
    scored                       (B, Q) which queries are counted
    key_rarity                   (B, K) rarity of each key
    content_pairs, similarity    the pairs content similarity is computed on and their cosines; None without
    argmax_pairs, weight_pairs   (3, P), of each pair of a query and a target the sum it adds to (sentence * R + role),
                                 its row of the maps (sentence * Q + query), its key
    """

    def __init__(
        self,
        sequences: AttentionSequences,
        roles: Sequence[str],
        vocabulary: Vocabulary,
        conventions: Conventions,
        best_offsets: Sequence[BestOffsets],
        antecedent: Antecedent,
    ) -> None:
        """``best_offsets`` has the best offset of each role, for each sentence."""
        self.kind, self.queries, self.keys = sequences.kind, sequences.queries, sequences.keys
        self.conventions, self.antecedent = conventions, antecedent
        self.role_index = {role: i for i, role in enumerate(roles)}
        self._make_masks()
        self._make_targets(sequences.sentences, vocabulary, best_offsets)
        words = self.keys.words()
        rarity = [
            [vocabulary.rarity_of(s.words[word]) if word >= 0 else 0.0 for word in row]
            for s, row in zip(sequences.sentences, words, strict=True)
        ]
        self.key_rarity = nn.utils.rnn.pad_sequence(list(map(torch.tensor, rarity)), batch_first=True)
        self.content_pairs = self.similarity = None
        if sequences.embeddings is not None and "content" in self.role_index:
            both_words = (self.keys.word >= 0)[:, None] & (self.queries.word >= 0)[:, :, None] & self.visible
            self.content_pairs = both_words & ~torch.eye(both_words.shape[-1], dtype=torch.bool)  # of different words
            self.similarity = statistics.similarity(sequences.embeddings(), self.content_pairs)
        self._count_statistics()

    def _make_masks(self) -> None:
        queries, keys, conventions = self.queries, self.keys, self.conventions
        self.visible = queries.exists[:, :, None] & keys.exists[:, None]
        if self.kind == "decoder":
            self.visible = self.visible.tril()
        only_words = (keys.word >= 0)[:, None]
        self.candidates = self.visible if conventions.specials_as_keys else self.visible & only_words
        if not conventions.self_as_key and self.kind != "cross":
            self.candidates = self.candidates & ~torch.eye(self.candidates.shape[-1], dtype=torch.bool)
        specials = conventions.specials_as_queries and self.kind != "cross"
        self.scored = (queries.exists if specials else queries.word >= 0) & self.candidates.any(-1)

    def _make_targets(
        self, sentences: Sequence[Sentence], vocabulary: Vocabulary, best_offsets: Sequence[BestOffsets]
    ) -> None:
        """Count the queries of each role, and what baseline and chance score on them; keep the pairs."""
        n_roles, n_queries = len(self.role_index), self.scored.shape[1]
        counts = np.zeros((len(sentences), 3, n_roles))
        argmax_pairs, weight_pairs = [], []
        n_candidates, n_visible = (mask.sum(-1).clamp_min(1).tolist() for mask in (self.candidates, self.visible))
        candidates = self.candidates.numpy()
        rows = zip(sentences, self.queries.words(), self.keys.words(), self.keys.special_tokens(), strict=True)
        for i, (sentence, query_words, words, special_tokens) in enumerate(rows):
            of_sentence = (self.kind, sentence, query_words, words)
            by_argmax = argmax_targets(*of_sentence, vocabulary, self.conventions)
            by_weight = weight_targets(*of_sentence, special_tokens, vocabulary, self.conventions)
            for targets, n_keys, pairs in (
                (by_argmax, n_candidates[i], argmax_pairs),
                (by_weight, n_visible[i], weight_pairs),
            ):
                for role, asked in targets.items():
                    if role not in self.role_index or not asked:
                        continue
                    index, offset = self.role_index[role], best_offsets[i].get(role)
                    if role == "coreference":
                        by_rule = (self._coreference(sentence, words[query]) for query, _ in asked)
                        baseline, chance = zip(*by_rule, strict=True)
                    else:
                        chance = [len(keys) / n_keys[query] for query, keys in asked]
                        if targets is by_weight and self.conventions.renormalise:
                            chance = [
                                _renormalised_chance(keys, candidates[i, q], n_candidates[i][q], n_visible[i][q])
                                for q, keys in asked
                            ]
                        baseline = chance if offset is None else [query + offset in keys for query, keys in asked]
                    counts[i, :, index] = len(asked), sum(baseline), sum(chance)
                    for query, keys in asked:
                        sum_index, row = i * n_roles + index, i * n_queries + query
                        for key in keys:
                            pairs.extend((sum_index, row, key))  # flat: becomes an array faster than tuples do
        self.counts = torch.from_numpy(counts).float()
        self.argmax_pairs, self.weight_pairs = (
            torch.from_numpy(np.array(pairs, dtype=np.int64).reshape(-1, 3).T.copy())
            for pairs in (argmax_pairs, weight_pairs)
        )

    def _coreference(self, sentence: Sentence, mention: int) -> tuple[bool, float]:
        """Whether ``antecedent`` finds an earlier mention, and the probability that a random earlier noun is one."""
        mentions = earlier_mentions(sentence, mention)
        nouns = [word for word in range(mention) if sentence.upos[word] in NOMINAL]
        n_coreferent = sum(word in mentions for word in nouns)
        return self.antecedent(sentence, mention) in mentions, n_coreferent / max(len(nouns), 1)

    def _count_statistics(self) -> None:
        """The counts of the roles without targets; baseline and chance are both what uniform attention scores."""
        scored, visible, candidates = self.scored, self.visible.float(), self.candidates.float()
        n_visible = visible.sum(-1).clamp_min(1)
        n_shared = candidates.sum(-1).clamp_min(1) if self.conventions.renormalise else n_visible
        long_enough = (self.keys.word >= 0).sum(-1) >= self.conventions.min_length
        uniform = {
            "confidence": 1 / n_shared,
            "entropy": n_visible.log(),
            "distance": (statistics.offsets(visible).abs() * visible).sum(-1) / n_visible,
            "rarity": (candidates * self.key_rarity[:, None]).sum(-1) / candidates.sum(-1).clamp_min(1),
        }
        for role, index in self.role_index.items():
            if role in uniform:
                self.counts[:, 0, index] = scored.sum(-1)
                self.counts[:, 1:, index] = (uniform[role] * scored).sum(-1, keepdim=True)
            elif role in MAPS or (role == "content" and self.similarity is not None):
                # One for each sentence, not for each query: chance is one class in five, or no correlation.
                self.counts[:, 0, index] = long_enough.float()
                self.counts[:, 1:, index] = (long_enough / len(MAPS) * (role in MAPS))[:, None]

    def shuffled(self, maps: Tensor, generator: torch.Generator) -> Tensor:
        """Maps between tokens with the weights of each row shuffled among what it can see: the control."""
        visible = (self.queries.of_token >= 0)[:, :, None] & (self.keys.of_token >= 0)[:, None]
        return controls.shuffled(maps, (visible.tril() if self.kind == "decoder" else visible)[:, None], generator)

    def check_maps(self, maps: Tensor) -> None:
        """Raise ValueError for maps of other tokens than the batch's."""
        tokens = (self.queries.of_token.shape[1], self.keys.of_token.shape[1])
        if maps.shape[-2:] != tokens:
            raise ValueError(
                f"got {self.kind} maps between {tuple(maps.shape[-2:])} positions; expected {tokens}, the tokens of "
                "the text: these heads attend to something else (an image?); leave them out, e.g. kinds=['decoder']"
            )

    @without_autocast
    def sums(self, maps: Tensor) -> Tensor:
        """Sums of every role over each sentence: maps between tokens (B, head, T, S), on the CPU, to (B, R, head).

        Heads of several layers may be side by side.
        """
        # (B, Q, K, head): heads last, so that sums and comparisons run along memory for all of them
        maps = maps_between_spans(maps, self.queries, self.keys).permute(0, 2, 3, 1).contiguous()
        n_keys, n_heads = maps.shape[2:]
        key, weight = statistics.argmax_key(maps, self.candidates, self.scored)  # (B, Q, head)
        out = maps.new_zeros(self.counts.shape[0] * len(self.role_index), n_heads)
        sum_index, row, target = self.argmax_pairs
        attended = key.view(-1, n_heads).index_select(0, row)
        hit = torch.from_numpy(attended.numpy() == target.int().numpy()[:, None])  # numpy compares faster than torch
        out.index_add_(0, sum_index, hit.float())
        sum_index, row, target = self.weight_pairs
        target_weight = maps.view(-1, n_heads).index_select(0, row * n_keys + target)
        if self.conventions.renormalise:  # words share what the row leaves them; special tokens keep their weight
            words_weight = (maps * self.candidates[..., None]).sum(2).clamp_min(1e-12)
            weight = weight / words_weight
            is_candidate = self.candidates.flatten()[row * n_keys + target]
            renormalised = target_weight / words_weight.view(-1, n_heads)[row]
            target_weight = torch.where(is_candidate[:, None], renormalised, target_weight)
        out.index_add_(0, sum_index, target_weight)
        out = out.view(-1, len(self.role_index), n_heads)
        has_queries = self.counts[:, 0] > 0
        for role, role_sums in self._statistics(maps, key, weight, has_queries).items():
            index = self.role_index[role]
            out[:, index] = role_sums * has_queries[:, index, None]
        return out

    def _statistics(self, maps: Tensor, key: Tensor, weight: Tensor, has_queries: Tensor) -> dict[str, Tensor]:
        """Sums (B, head) of the roles without targets, of those that some sentence has queries for."""
        measures = {
            "confidence": lambda: weight.sum(1),
            "entropy": lambda: statistics.entropy(maps, self.scored),
            "distance": lambda: statistics.distance(maps, self.scored),
            "rarity": lambda: statistics.rarity(key, self.key_rarity),
            "content": lambda: statistics.correlation(maps, self.similarity, self.content_pairs),
        }
        out = {
            role: measure()
            for role, measure in measures.items()
            if role in self.role_index and has_queries[:, self.role_index[role]].any()
        }
        if any(role in self.role_index for role in MAPS):
            # Sums of multiples of one step are exact: features of a sharp map that tie still tie with other padding.
            rounded = (maps * _MAP_STEPS).round_().div_(_MAP_STEPS)
            classes = map_classes.classify(rounded.permute(0, 3, 1, 2), self.keys.exists)
            out |= {role: (classes == i).float() for i, role in enumerate(MAPS) if role in self.role_index}
        return out


class RunningScores:
    """Sums of the heads of some layers over one batch: :meth:`add` each layer's maps while the model runs.

    ``shuffles``: for each table to make, whether the rows of the maps are shuffled.
    """

    def __init__(self, scorer: BatchScorer, sites: Sequence[Site], shuffles: Sequence[bool]) -> None:
        self.scorer, self._shuffles = scorer, shuffles
        self.sums: dict[SiteKey, Tensor] = {}  # by layer, (B, table, R, head)
        self.n_runs = {site.key: 0 for site in sites}
        self._pending: list[tuple[SiteKey, list[Tensor]]] = []

    def add(self, site: Site, maps: Tensor, generator: torch.Generator) -> None:
        """Add the maps (B, head, T, S) of one layer. Raises ValueError for maps of other tokens than the batch's."""
        self.scorer.check_maps(maps)
        self.n_runs[site.key] += 1
        of_tables = [self.scorer.shuffled(maps, generator) if shuffle else maps for shuffle in self._shuffles]
        self._pending.append((site.key, of_tables))
        if sum(pending.numel() for _, (pending, *_) in self._pending) >= MIN_CELLS:
            self.score()

    def score(self) -> None:
        """Score the pending maps, the heads of all their layers side by side."""
        if not self._pending:
            return
        keys, maps = zip(*self._pending, strict=True)
        self._pending.clear()
        sums = torch.stack([self.scorer.sums(torch.cat(of_table, 1)) for of_table in zip(*maps, strict=True)], 1)
        for key, layer_sums in zip(keys, sums.split([layer[0].shape[1] for layer in maps], -1), strict=True):
            self.sums[key] = self.sums.get(key, 0) + layer_sums


def _renormalised_chance(keys: Sequence[int], is_candidate: np.ndarray, n_candidates: int, n_visible: int) -> float:
    """What uniform attention gives these keys: candidates share what the row leaves them, others the whole row."""
    return sum(1 / (n_candidates if is_candidate[key] else n_visible) for key in keys)
