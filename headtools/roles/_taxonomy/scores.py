"""From attention maps to sums: what every head of a batch scores for every role, beside baseline and chance.

What has to be right here:

- Targets are made once for a group of batches (:class:`GroupScorer`), maps come layer by layer while the model runs.
  :class:`BatchScorer` is one batch's part of the targets; :class:`RunningScores` adds up the layers.
- Everything is a sum over the queries of a sentence, so that sentences can be added up and resampled later: n, baseline
  and chance (B, 3, R), which no head changes, and the scores (B, R, head).
- Baseline and chance are counted on the same queries as the scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from headtools.heads._precision import without_autocast
from headtools.heads.sites import Site, SiteKey
from headtools.roles import controls, map_classes
from headtools.roles._taxonomy import statistics
from headtools.roles._taxonomy.annotation import Array
from headtools.roles._taxonomy.roles import MAPS
from headtools.roles._taxonomy.sequences import AttentionSequences
from headtools.roles._taxonomy.spans import Spans, maps_between_spans
from headtools.roles._taxonomy.targets import Antecedent, Targets, argmax_targets, earlier_words, weight_targets
from headtools.roles.baselines import BestOffsets
from headtools.roles.conventions import Conventions

# Cells of maps that are scored at once. One layer of a small model has so few that the calls would take the time.
MIN_CELLS = 2**20
_MAP_STEPS = 2**16  # between 0 and 1, for map classes
_NO_OFFSET = -(10**9)
FlatPairs = tuple[Tensor, Tensor, Tensor]


@dataclass
class GroupScorer:
    """What scoring one kind of attention needs, made at once for some batches; :meth:`batch` is for one of them.

    ``best_offsets`` has the best offset of each role, for each sentence. ``counts`` (B, 3, R) are sums over the queries
    of each sentence: n, what the baseline scores and what chance scores.
    """

    sequences: AttentionSequences
    roles: Sequence[str]
    conventions: Conventions
    best_offsets: Sequence[BestOffsets]
    antecedent: Antecedent
    counts: Tensor = field(init=False)

    def __post_init__(self) -> None:
        sequences = self.sequences
        self._role_index = {role: i for i, role in enumerate(self.roles)}
        self._make_masks()
        by_argmax, by_weight = (make(sequences, self._role_index, self.conventions)
                                for make in (argmax_targets, weight_targets))  # fmt: skip
        counts_by_weight = self._count(by_weight, self.visible, self.conventions.renormalise)
        counts = self._count(by_argmax, self.candidates) + counts_by_weight
        self.counts = torch.from_numpy(counts).float().view(len(sequences.sentences), 3, len(self.roles))
        self._key_rarity = torch.zeros(sequences.keys.word.shape)
        if "rarity" in self._role_index:
            word = sequences.keys.word
            index = torch.from_numpy(sequences.annotation.first_word)[:, None] + word.clamp_min(0)
            self._key_rarity = torch.from_numpy(sequences.annotation.rarity)[index].float() * (word >= 0)
        self._count_statistics()
        self._by_argmax, self._by_weight = _pairs_by_sentence(by_argmax), _pairs_by_sentence(by_weight)

    def batch(self, first: int, last: int) -> "BatchScorer":
        """The scorer of the sentences from ``first`` to before ``last``, cut to the longest of them."""
        sequences = self.sequences
        queries = sequences.queries.slice(first, last)
        keys = queries if sequences.keys is sequences.queries else sequences.keys.slice(first, last)
        q, k = queries.exists.shape[1], keys.exists.shape[1]
        content_pairs = similarity = None
        if sequences.embeddings is not None and "content" in self._role_index:
            both_words = (keys.word >= 0)[:, None] & (queries.word >= 0)[:, :, None] & self.visible[first:last, :q, :k]
            content_pairs = both_words & ~torch.eye(k, dtype=torch.bool)  # of different words
            similarity = statistics.similarity(sequences.embeddings(first, last), content_pairs)
        return BatchScorer(
            kind=sequences.kind,
            role_index=self._role_index,
            conventions=self.conventions,
            queries=queries,
            keys=keys,
            counts=self.counts[first:last],
            visible=self.visible[first:last, :q, :k],
            candidates=self.candidates[first:last, :q, :k],
            scored=self.scored[first:last, :q],
            key_rarity=self._key_rarity[first:last, :k],
            content_pairs=content_pairs,
            similarity=similarity,
            argmax_pairs=self._flat_pairs(self._by_argmax, first, last, q),
            weight_pairs=self._flat_pairs(self._by_weight, first, last, q),
        )

    def _flat_pairs(self, pairs: Array, first: int, last: int, n_queries: int) -> FlatPairs:
        """The pairs of some sentences, as :class:`BatchScorer` has them."""
        # Pairs are sorted by sentence: those of a batch lie side by side.
        sentence, role, query, key = pairs[:, slice(*np.searchsorted(pairs[0], (first, last)))]
        sentence = sentence - first
        sum_index, row = sentence * len(self.roles) + role, sentence * n_queries + query
        return tuple(map(torch.from_numpy, (sum_index, row, key.copy())))

    def _make_masks(self) -> None:
        queries, keys, conventions = self.sequences.queries, self.sequences.keys, self.conventions
        self.visible = queries.exists[:, :, None] & keys.exists[:, None]
        if self.sequences.causal:
            self.visible = self.visible.tril()
        only_words = (keys.word >= 0)[:, None]
        self.candidates = self.visible if conventions.specials_as_keys else self.visible & only_words
        if not conventions.self_as_key and self.sequences.kind != "cross":
            self.candidates = self.candidates & ~torch.eye(self.candidates.shape[-1], dtype=torch.bool)
        specials = conventions.specials_as_queries and self.sequences.kind != "cross"
        self.scored = (queries.exists if specials else queries.word >= 0) & self.candidates.any(-1)

    def _count(self, targets: Targets, keys: Tensor, renormalise: bool = False) -> Array:
        """How many queries each role has in each sentence, and what baseline and chance score on them: (B * 3 * R,).

        ``keys`` (B, Q, K) are those among which chance chooses. With ``renormalise`` words share what the row leaves
        them: chance is then one over the words alone.
        """
        n_targets, n_roles = targets.n_keys(), len(self.roles)
        # With this probability a random key of the row is a target.
        chance = n_targets / np.maximum(keys.sum(-1).numpy()[targets.sentence, targets.query], 1)
        if renormalise:
            row = targets.sentence[targets.owner], targets.query[targets.owner]
            of_words, of_row = (1 / np.maximum(mask.sum(-1).numpy()[row], 1) for mask in (self.candidates, keys))
            is_candidate = self.candidates.numpy()[(*row, targets.key)]
            chance = np.bincount(targets.owner, np.where(is_candidate, of_words, of_row), len(n_targets))
        offset = self._best_offset()[targets.sentence, targets.role]
        at_offset = targets.key == (targets.query + offset)[targets.owner]
        hit = np.bincount(targets.owner, at_offset, len(n_targets)) > 0
        baseline = np.where(offset == _NO_OFFSET, chance, hit)
        mentions = targets.role == self._role_index.get("coreference", -1)
        if mentions.any():
            chance[mentions], baseline[mentions] = self._count_antecedents(
                targets.sentence[mentions], targets.query[mentions]
            )
        # The sums are flat: by sentence, then n, baseline and chance, then role.
        first_sum, size = targets.sentence * 3 * n_roles + targets.role, len(self.sequences.sentences) * 3 * n_roles
        values = (np.ones_like(baseline), baseline, chance)
        return sum(np.bincount(first_sum + i * n_roles, value, size) for i, value in enumerate(values))

    def _best_offset(self) -> Array:
        """The best offset of each role for each sentence, (B, R)."""
        # Nearly all sentences share one dict or one of two: the table has a row for each different one.
        different = {id(offsets): offsets for offsets in self.best_offsets}
        table = np.array([[offsets.get(role, _NO_OFFSET) for role in self.roles] for offsets in different.values()])
        return table[[list(different).index(id(offsets)) for offsets in self.best_offsets]]

    def _count_antecedents(self, sentence: Array, query: Array) -> tuple[Array, Array]:
        """For mentions: the probability that a random earlier noun corefers, and whether ``antecedent``'s does."""
        annotation, word = self.sequences.annotation, self.sequences.keys.word.numpy()[sentence, query]
        owner, earlier, corefers = earlier_words(annotation, annotation.first_word[sentence] + word)
        nouns = annotation.is_nominal[earlier]
        n_nouns, n_coreferent = (np.bincount(owner, mask, len(sentence)) for mask in (nouns, nouns & corefers))
        named = [self.antecedent(self.sequences.sentences[i], int(w)) for i, w in zip(sentence, word, strict=True)]
        predicted = np.array([-1 if position is None else position for position in named])
        hit = np.bincount(owner, corefers & (annotation.position[earlier] == predicted[owner]), len(sentence))
        return n_coreferent / np.maximum(n_nouns, 1), hit

    def _count_statistics(self) -> None:
        """The counts of the roles without targets; baseline and chance are both what uniform attention scores."""
        scored, visible, candidates = self.scored, self.visible.float(), self.candidates.float()
        n_visible = visible.sum(-1).clamp_min(1)
        n_shared = candidates.sum(-1).clamp_min(1) if self.conventions.renormalise else n_visible
        long_enough = (self.sequences.keys.word >= 0).sum(-1) >= self.conventions.min_length
        uniform = {
            "confidence": 1 / n_shared, "entropy": n_visible.log(),
            "distance": (statistics.offsets(visible).abs() * visible).sum(-1) / n_visible,
            "rarity": (candidates * self._key_rarity[:, None]).sum(-1) / candidates.sum(-1).clamp_min(1),
        }  # fmt: skip
        for role, index in self._role_index.items():
            if role in uniform:
                self.counts[:, 0, index] = scored.sum(-1)
                self.counts[:, 1:, index] = (uniform[role] * scored).sum(-1, keepdim=True)
            elif role in MAPS or (role == "content" and self.sequences.embeddings is not None):
                # One for each sentence, not for each query: chance is one class in five, or no correlation.
                self.counts[:, 0, index] = long_enough.float()
                self.counts[:, 1:, index] = (long_enough / len(MAPS) * (role in MAPS))[:, None]


@dataclass(frozen=True)
class BatchScorer:
    """Scores the maps of one batch: B sentences with at most Q query and K key spans, R roles, each at its index.

    counts                       (B, 3, R) sums over each sentence of n, baseline and chance
    visible                      (B, Q, K) what a query can see
    candidates                   (B, Q, K) the keys over which the argmax is taken
    scored                       (B, Q) which queries are counted
    key_rarity                   (B, K) rarity of each key
    content_pairs, similarity    the pairs content similarity is computed on and their cosines; None without
    argmax_pairs, weight_pairs   of each pair of a query and a target (P,): the sum it adds to (sentence * R + role),
                                 its row of the maps (sentence * Q + query), its key
    """

    kind: str
    role_index: Mapping[str, int]
    conventions: Conventions
    queries: Spans
    keys: Spans
    counts: Tensor
    visible: Tensor
    candidates: Tensor
    scored: Tensor
    key_rarity: Tensor
    content_pairs: Tensor | None
    similarity: Tensor | None
    argmax_pairs: FlatPairs
    weight_pairs: FlatPairs

    def visible_tokens(self) -> Tensor:
        """Which tokens a token can see, (B, 1, T, S): for the control that shuffles its row."""
        queries, keys = self.queries.of_token, self.keys.of_token
        visible = (queries[:, :, None] >= 0) & (keys[:, None] >= 0)
        return (visible.tril() if self.kind == "decoder" else visible)[:, None]

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

        Heads of several layers may be side by side. Raises ValueError for maps of other tokens than the batch's.
        """
        self.check_maps(maps)
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
        }  # fmt: skip
        out = {role: measure() for role, measure in measures.items()
               if role in self.role_index and has_queries[:, self.role_index[role]].any()}  # fmt: skip
        if any(role in self.role_index for role in MAPS):
            # Sums of multiples of one step are exact: features of a sharp map that tie still tie with other padding.
            rounded = (maps * _MAP_STEPS).round_().div_(_MAP_STEPS)
            classes = map_classes.classify(rounded.permute(0, 3, 1, 2), self.keys.exists)
            out |= {role: (classes == i).float() for i, role in enumerate(MAPS) if role in self.role_index}
        return out


class RunningScores:
    """Sums of all heads of some layers while the model runs on one batch, heads in the order of ``sites``.

    :meth:`begin` a batch, :meth:`add` each layer's maps, :meth:`finish` the batch.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = list(sites)
        self._n_runs: dict[SiteKey, int] = {}  # how often each layer ran in this batch
        ends = list(accumulate(site.heads for site in sites))
        self._heads = {site.key: slice(end - site.heads, end) for site, end in zip(sites, ends, strict=True)}
        self._pending: list[tuple[SiteKey, Tensor]] = []

    def begin(self, scorer: BatchScorer) -> None:
        """Start a batch."""
        self._scorer = scorer
        self._n_runs = {site.key: 0 for site in self.sites}
        n_sentences, _, n_roles = scorer.counts.shape
        self._sums = torch.zeros(n_sentences, n_roles, sum(site.heads for site in self.sites))

    def add(self, site: Site, maps: Tensor, shuffle: torch.Generator | None) -> None:
        """Add the maps (B, head, T, S) of one layer; with a generator their rows are shuffled first."""
        self._scorer.check_maps(maps)
        if shuffle is not None:
            maps = controls.shuffled(maps, self._scorer.visible_tokens(), shuffle)
        self._n_runs[site.key] += 1
        self._pending.append((site.key, maps))
        if sum(pending.numel() for _, pending in self._pending) >= MIN_CELLS:
            self._score()

    def finish(self) -> dict[str, Tensor]:
        """End the batch; return the sums (B, role, head), the counts, and how often each layer ran.

        Raises RuntimeError for a layer that did not run.
        """
        if self._pending:
            self._score()
        not_run = [site.label for site in self.sites if not self._n_runs[site.key]]
        if not_run:
            raise RuntimeError(f"{', '.join(not_run)} did not run; leave out that kind, e.g. write kinds=['encoder']")
        # A layer that runs several times (ALBERT) counts as the mean of its runs, as baseline and chance do.
        n_runs = torch.cat([torch.full((site.heads,), float(self._n_runs[site.key])) for site in self.sites])
        runs = torch.tensor([[self._n_runs[site.key] for site in self.sites]])
        return {"sums": self._sums / n_runs, "counts": self._scorer.counts, "runs": runs}

    def _score(self) -> None:
        """Score the pending maps, the heads of all their layers side by side."""
        keys, maps = zip(*self._pending, strict=True)
        self._pending.clear()
        sums = self._scorer.sums(torch.cat(maps, 1))
        for key, layer_sums in zip(keys, sums.split([layer.shape[1] for layer in maps], -1), strict=True):
            self._sums[..., self._heads[key]] += layer_sums


def _pairs_by_sentence(targets: Targets) -> Array:
    """The sentence, role, query and key of each pair, (4, P), sorted by sentence."""
    owner = targets.owner
    columns = np.stack([targets.sentence[owner], targets.role[owner], targets.query[owner], targets.key])
    return columns[:, np.argsort(columns[0], kind="stable")]
