"""What every head of a model attends to: :func:`taxonomy`, one pass over a corpus, every score beside its baseline.

>>> import headtools as ht
>>> model, tokenizer = ht.load()
>>> sentences = ht.corpus("organism", limit=40)
>>> frame = taxonomy(model, tokenizer, sentences, ht.corpus("organism", "validation", limit=40), roles=["positional"])
>>> top = best(frame).loc["offset -1"]
>>> (top.kind, bool(top.score > 0.9), bool(top.passes))
('encoder', True, True)

The path of one batch, in the order in which to read the code; all modules are in ``roles/_taxonomy``:

    batches        which sentences run together                      group_batches()  indices of sentences
    annotation     heads, relations, mentions, frequencies           annotate()       Annotation: arrays (N,), N words
    spans          from tokens to words (or single tokens)           make_spans()     Spans: (B, T) and (B, U)
    sequences      the model's batch; by kind, its queries and keys  make_sequences() {kind: AttentionSequences}
    targets        by role, queries and the keys that are a hit      argmax_targets(), weight_targets()  Targets
    scores         what baseline and chance score on them            GroupScorer      counts (B, 3, R)
                   what the recorded maps of a batch score           BatchScorer      sums (B, R, head)
                   the layers of a batch, while the model runs       RunningScores
    running_sums   both summed over the corpus, and resampled        RunningSums      (R, head), (times, R, head)
    table          scores, intervals, verdicts                       table()          columns, one row a head and role

``roles`` has the names of the roles and what it takes to hold one, ``statistics`` the scores that need no targets.
The engine (``headtools._engine.run``) calls ``_Taxonomy.per_batch`` for each group of batches, which goes down to the
sums, and ``_Taxonomy.finish`` once, which goes from there to the table.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from headtools._engine.processes import current_process
from headtools._engine.run import function_name, run
from headtools._engine.store import fingerprint
from headtools._renamed import old_arguments
from headtools.heads._devices import device_of
from headtools.heads.bootstrap import MIN_EXAMPLES
from headtools.heads.record import Captured, record
from headtools.heads.sites import Site, SiteKey, sites
from headtools.roles._taxonomy.annotation import Vocabulary, count_words
from headtools.roles._taxonomy.batches import WINDOW, Group, group_batches, resample_counts_by_batch
from headtools.roles._taxonomy.roles import OFFSET_BASED, family, role_names
from headtools.roles._taxonomy.running_sums import ResampleCounts, RunningSums
from headtools.roles._taxonomy.scores import BatchScorer, GroupScorer, RunningScores
from headtools.roles._taxonomy.sequences import make_sequences, make_word_sequences, run_model, slice_batch
from headtools.roles._taxonomy.table import COLUMNS, Columns, table
from headtools.roles._taxonomy.targets import Antecedent, argmax_targets, nearest_nominal
from headtools.roles.baselines import BestOffsets, OffsetCounts, count_offsets, most_frequent
from headtools.roles.conventions import VOITA, Conventions
from headtools.roles.sentence import Sentence


@torch.no_grad()
@old_arguments(run="checkpoint")
def taxonomy(
    model: nn.Module,
    tokenizer: object,
    sentences: Sequence[Sentence],
    fitted: Sequence[Sentence] | None = None,
    *,
    roles: Iterable[str] | None = None,
    kinds: Iterable[str] | None = None,
    conventions: Conventions = VOITA,
    frequency: Mapping[str, int] | None = None,
    antecedent: Antecedent = nearest_nominal,
    shuffle: bool = False,
    times: int = 500,
    level: float = 0.95,
    batch_size: int = 32,
    seed: int = 0,
    checkpoint: str | Path | None = None,
) -> pd.DataFrame:
    """Score every head for every role, in one pass: one row a head and role.

    ``sentences`` are scored; the best offset of each role is fitted on ``fitted``, another split. Without it, on the
    sentences with odd indices for those with even ones, and the other way round. ``roles`` names roles or families
    (None: all, see ``_taxonomy/targets.py`` and ``_taxonomy/roles.py``); ``kinds`` names kinds of attention. Of an
    encoder-decoder model both sides run where the sentences have a translation (``target``), else only the encoder.
    Its decoder is scored on the target words for the roles that need no grammar, its cross-attention for alignment
    with the gold source word: its score is 1 - AER (Och and Ney 2003), all links being sure. In a decoder a query
    counts for a role only if it can see a target.

    ``conventions`` hold every other choice (``VOITA``, ``CLARK``). ``frequency`` counts words, for the rarest word and
    rarity (None: in ``fitted``); a word that was counted in another case only has that one's count.
    ``antecedent(sentence, position)`` is the baseline of coreference, a rule that gives the position of the noun that a
    mention stands for. ``shuffle`` permutes each row's weights at random among the keys: the random-head control; the
    untrained one is ``taxonomy(untrained(model), ...)``. Intervals come from ``times`` bootstrap replicas over
    sentences, drawn from ``seed``. They are percentiles where 100 sentences or more have a query of the role, wider
    than that where fewer have (``headtools.heads.bootstrap.interval_around``), and NaN where fewer than five have: no
    role holds there, and ``frame.attrs["interval"]`` says so.

    Memory does not grow with the corpus (``_taxonomy/running_sums.py`` says what is kept). Scores and intervals depend
    neither on ``batch_size`` nor on the side the tokenizer pads, but for rounding, which decides between equal weights;
    only what ``shuffle`` draws does. Inside ``sharded()`` several processes share the batches. ``checkpoint`` names a
    folder in which the sums of every batch are kept (a number for each sentence, role and head); the same call resumes
    from there.

    Columns: ``stack`` (where a model has several), ``kind``, ``layer``, ``head``, ``family``, ``role``; ``score``, a
    fraction of queries, a mean weight or a mean (entropy and rarity in nats, distance in words or tokens);
    ``baseline``, the score of the rule named in ``baseline_rule``, on the same queries; ``chance``, of a random key or
    of uniform attention (coreference: a random earlier noun); ``low`` and ``high``, the ``level`` interval of the
    score; ``difference_low`` and ``difference_high``, the paired interval of score - baseline; ``n``, queries counted
    (sentences for content and map classes; a layer that runs several times, as ALBERT's, counts each); ``passes``,
    whether the head has the role: the *lower end* reaches the role's threshold, above both baseline and chance where
    the threshold is a margin (``_taxonomy.roles.threshold``), with ``min_queries`` queries or more. Roles without a
    single query have no rows.

    With hundreds of heads and roles some lower ends pass by chance: run the controls and count theirs.

    Raises ValueError for fewer than two sentences, a ``level`` outside (0, 1), no ``times``, an unknown role or
    kind, targets that are missing, maps that are NaN, and a ``checkpoint`` of something else.

    After Voita et al. 2019 (arXiv:1905.09418), sections 4 and 5; Clark et al. 2019 (arXiv:1906.04341), sections 3 and
    4; Kovaleva et al. 2019 (arXiv:1908.08593), section 4.1; Vig and Belinkov 2019 (arXiv:1906.04284), section 4.
    """
    measure = _measure(
        model, tokenizer, sentences, fitted, (shuffle,), roles=roles, kinds=kinds, conventions=conventions,
        frequency=frequency, antecedent=antecedent, times=times, level=level, batch_size=batch_size, seed=seed,
        together=checkpoint is None,
    )  # fmt: skip
    return run(measure, model, measure.groups, checkpoint=checkpoint)[0]


@torch.no_grad()
def taxonomy_and_control(
    model: nn.Module, tokenizer: object, sentences: Sequence[Sentence], fitted: Sequence[Sentence] | None = None,
    **options: Any,
) -> tuple[pd.DataFrame, pd.DataFrame]:  # fmt: skip
    """Return what :func:`taxonomy` does, and what it does with ``shuffle=True``, in one pass instead of two.

    ``options``: those of ``taxonomy`` but ``shuffle`` and ``checkpoint``.
    """
    measure = _measure(model, tokenizer, sentences, fitted, (False, True), **options)
    frame, control = run(measure, model, measure.groups)
    return frame, control


def _measure(
    model: nn.Module,
    tokenizer: object,
    sentences: Sequence[Sentence],
    fitted: Sequence[Sentence] | None,
    shuffles: Sequence[bool],
    *,
    roles: Iterable[str] | None = None,
    kinds: Iterable[str] | None = None,
    conventions: Conventions = VOITA,
    frequency: Mapping[str, int] | None = None,
    antecedent: Antecedent = nearest_nominal,
    times: int = 500,
    level: float = 0.95,
    batch_size: int = 32,
    seed: int = 0,
    together: bool = True,
) -> "_Taxonomy":
    """Return what is to be run, for arguments of :func:`taxonomy`; ``shuffles``: of which maps, in which order."""
    if not 0 < level < 1 or times < 1:
        raise ValueError(
            f"got level={level} and times={times}; expected a probability, such as 0.95, and how often "
            " sentences are resampled, such as 500"
        )
    sentences = list(sentences)
    if len(sentences) < 2:
        raise ValueError(
            f"got {len(sentences)} sentences; expected two or more, since each half is compared with a baseline that "
            "is fitted on the other; write corpus('organism')"
        )
    if roles is not None:
        roles = [roles] if isinstance(roles, str) else list(roles)
    model_sites = sites(model)
    with_heads = [site for site in model_sites if not site.empty]
    translated = getattr(model.config, "is_encoder_decoder", False) and all(s.target for s in sentences)
    kinds = _select_kinds(model, model_sites.kinds, kinds, translated)
    reference = list(fitted) if fitted else sentences
    vocabulary = count_words(tokenizer, reference, frequency)
    relations = dict.fromkeys(chain.from_iterable(s.relations for s in chain(sentences, reference)))
    names = {kind: role_names(kind, relations, translated, conventions, roles) for kind in kinds}
    names = {kind: names[kind] for kind in kinds if names[kind] and any(site.kind == kind for site in with_heads)}
    if not names:
        raise ValueError(f"roles={roles!r} name nothing that these sentences and this model have; write roles=None")
    # Without ``fitted``, sentence i is compared with offsets that are fitted on the other half.
    references = [reference] if fitted else [sentences[1::2], sentences[::2]]
    # A group is what processes share and a checkpoint keeps, so where there are any, each batch is a group.
    together = together and current_process().count == 1
    return _Taxonomy(
        model=model,
        tokenizer=tokenizer,
        sentences=sentences,
        sites=[site for site in with_heads if site.kind in names],
        roles=names,
        best_offsets=[_fit_offsets(tokenizer, half, names, conventions, vocabulary, translated) for half in references],
        vocabulary=vocabulary,
        conventions=conventions,
        antecedent=antecedent,
        translated=translated,
        batch_size=batch_size,
        times=times,
        level=level,
        seed=seed,
        shuffles=shuffles,
        reference=reference,
        groups=list(group_batches(sentences, batch_size, tokenizer, together)),
    )


@dataclass
class _Taxonomy:
    """Scores of every head of ``sites`` for the ``roles`` of its kind of attention, sentence by sentence.

    ``shuffles``: for each table to make, whether the rows of the maps are shuffled.
    """

    model: nn.Module
    tokenizer: object
    sentences: Sequence[Sentence]
    sites: Sequence[Site]
    roles: Mapping[str, Sequence[str]]
    best_offsets: Sequence[Mapping[str, BestOffsets]]  # by kind; sentence i has those at i modulo their number
    vocabulary: Vocabulary
    conventions: Conventions
    antecedent: Antecedent
    translated: bool
    batch_size: int
    times: int
    level: float
    seed: int
    shuffles: Sequence[bool]
    reference: Sequence[Sentence]
    groups: Sequence[Group]

    @property
    def settings(self) -> dict[str, object]:
        """All that determines the sums; intervals are made of them at the end."""
        return {
            "sentences": fingerprint(self.sentences), "fitted": fingerprint(self.reference),
            "roles": fingerprint(self.roles), "conventions": fingerprint(self.conventions),
            "word counts": fingerprint(self.vocabulary), "antecedent": function_name(self.antecedent),
            "shuffle": self.seed if any(self.shuffles) else None, "batch_size": self.batch_size,
        }  # fmt: skip

    def per_batch(self, group: Group) -> dict[str, Tensor]:
        """Return the sums of each sentence (B, role, head), the counts, and how often each layer ran, by kind."""
        running = {(kind, i): RunningScores([site for site in self.sites if site.kind == kind])
                   for kind in self.kinds for i in range(len(self.shuffles))}  # fmt: skip
        results: dict[tuple[str, int], list[dict[str, Tensor]]] = {key: [] for key in running}
        generator = torch.Generator()

        def add_scores(site: Site, captured: Captured, _previous: None) -> None:
            # returns nothing, so that no map is kept
            maps = captured.maps.cpu()
            for i, shuffle in enumerate(self.shuffles):
                running[site.kind, i].add(site, maps, generator if shuffle else None)

        with record(self.model, want="maps", accumulate=add_scores, only=[site.key for site in self.sites]):
            for (batch_index, _), (batch, scorers) in zip(group, self._prepare(group), strict=True):
                # the same random numbers, whichever process runs this batch
                seed = self.seed if not batch_index else zlib.crc32(f"{self.seed} {batch_index}".encode())
                generator.manual_seed(seed)
                current = [key for key in running if key[0] in scorers]
                for key in current:
                    running[key].begin(scorers[key[0]])
                batch = {name: value.to(device_of(self.model)) for name, value in batch.items()}
                run_model(self.model, batch, encoder_only=self.kinds == ["encoder"])
                for key in current:
                    results[key].append(running[key].finish())
        return {_part_name(*key, name): torch.cat([result[name] for result in by_batch])
                for key, by_batch in results.items() for name in by_batch[0]}  # fmt: skip

    def finish(self, parts: Iterable[Mapping[str, Tensor]]) -> list[pd.DataFrame]:
        """Add everything up, with as many resampled sums, and make the tables."""
        resample_counts = resample_counts_by_batch(
            self.sentences, self.batch_size, ResampleCounts(self.times, self.seed)
        )
        n_tables = range(len(self.shuffles))
        totals = {(kind, i): (RunningSums(), RunningSums()) for i in n_tables for kind in self.kinds}  # sums and counts
        n_sentences = dict.fromkeys(self.kinds, 0)  # how many have a query of each role, (R,)
        n_runs: dict[SiteKey, int] = {}
        for group, part in zip(self.groups, parts, strict=True):
            ends = list(accumulate(len(indices) for _, indices in group))
            for batch_index, (end, (_, indices)) in enumerate(zip(ends, group, strict=True)):
                batch, resampled = slice(end - len(indices), end), next(resample_counts)
                for key, (sums, counts) in totals.items():
                    sums.add(part[_part_name(*key, "sums")][batch], resampled)
                    counts.add(part[_part_name(*key, "counts")][batch], resampled)
                for kind in self.kinds:
                    n_sentences[kind] = n_sentences[kind] + (part[f"{kind}|counts"][batch, 0] > 0).sum(0)
                    layers = [site.key for site in self.sites if site.kind == kind]
                    n_runs |= dict(zip(layers, part[f"{kind}|runs"][batch_index].tolist(), strict=True))
        return [self._frame({kind: totals[kind, i] for kind in self.kinds}, n_sentences, n_runs) for i in n_tables]

    def _frame(
        self, totals: Mapping[str, tuple[RunningSums, RunningSums]], n_sentences: Mapping[str, Tensor],
        n_runs: Mapping[SiteKey, int],
    ) -> pd.DataFrame:  # fmt: skip
        """Return the table of these sums and counts, by kind."""
        columns: dict[SiteKey, Columns] = {}
        for kind, (sums, counts) in totals.items():
            layers = [(site, n_runs[site.key]) for site in self.sites if site.kind == kind]
            columns |= table(layers, sums, counts, n_sentences[kind], self.roles[kind], self.best_offsets,
                             self.conventions, self.level, self.antecedent)  # fmt: skip
        names = [name for name in COLUMNS if name != "stack" or any(site.stack for site in self.sites)]
        frame = pd.DataFrame({name: np.concatenate([columns[site.key][name] for site in self.sites]) for name in names})
        if frame.low.isna().any():
            frame.attrs["interval"] = f"none for roles of which fewer than {MIN_EXAMPLES} sentences have a query"
        return frame

    @property
    def kinds(self) -> list[str]:
        """The kinds of attention that are scored, in the order of the model."""
        return list(self.roles)

    def _prepare(self, group: Group) -> Iterator[tuple[dict[str, Tensor], dict[str, BatchScorer]]]:
        """Yield the batches of a group with their scorers; what they need is made for all of them at once."""
        indices = [i for _, batch_indices in group for i in batch_indices]
        group_batch, sequences = make_sequences(
            self.model, self.tokenizer, [self.sentences[i] for i in indices], self.kinds, self.conventions,
            self.vocabulary, self.translated,
        )  # fmt: skip
        scorers = {kind: GroupScorer(sequences[kind], self.roles[kind], self.conventions,
                                     [self.best_offsets[i % len(self.best_offsets)][kind] for i in indices],
                                     self.antecedent)
                   for kind in sequences}  # fmt: skip
        last = 0
        for _, batch_indices in group:
            first, last = last, last + len(batch_indices)
            yield slice_batch(group_batch, first, last), {kind: s.batch(first, last) for kind, s in scorers.items()}


def _part_name(kind: str, table_index: int, name: str) -> str:
    """Return under which name a part holds something; that of the first table is the one in older checkpoints."""
    return f"{kind}|{name}" if not table_index else f"{kind}|{name}|{table_index}"


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """The row of the highest score for each role, by role (the lowest for no role: read entropy as it is).

    The head was chosen on the same sentences that its score is from, so that the score is a little too high; for a
    score to report, choose on one split and read the same head's row on another.
    """
    return frame.loc[frame.groupby("role", sort=False).score.idxmax()].set_index("role")


def _select_kinds(
    model: nn.Module, existing: Mapping[str, int], requested: Iterable[str] | None, translated: bool
) -> list[str]:
    """The kinds of attention to score: those requested, or all that the sentences allow."""
    possible = [kind for kind in existing if kind != "cross" or translated]
    if getattr(model.config, "is_encoder_decoder", False) and not translated:
        possible = ["encoder"]
    if requested is None:
        return possible
    selected = [requested] if isinstance(requested, str) else list(requested)
    for kind in selected:
        if kind not in existing:
            raise ValueError(f"no {kind!r} attention in {type(model).__name__}; it has {', '.join(existing)}")
        if kind not in possible:
            raise ValueError(f"{kind!r} attention needs sentences with a target; corpus('organism') has them")
    return selected


def _fit_offsets(
    tokenizer: object, sentences: Sequence[Sentence], roles: Mapping[str, Sequence[str]], conventions: Conventions,
    vocabulary: Vocabulary, translated: bool,
) -> dict[str, BestOffsets]:  # fmt: skip
    """The best fixed offset of every role, by kind of attention."""
    translated = translated and all(s.target for s in sentences)
    role_index = {kind: {role: i for i, role in enumerate(names) if family(role) in OFFSET_BASED}
                  for kind, names in roles.items()}  # fmt: skip
    kinds = [kind for kind in roles if role_index[kind]]
    counts: dict[str, OffsetCounts] = {kind: {} for kind in roles}
    # Offsets between words need no tokens, unless special tokens are queries or a word queries one position later.
    words_only = (
        conventions.granularity == "word" and not conventions.specials_as_queries and conventions.cross == "writes"
    )
    for start in range(0, len(sentences) if kinds else 0, WINDOW):
        window = sentences[start : start + WINDOW]
        if words_only:
            sequences = make_word_sequences(window, kinds, vocabulary, translated)
        else:
            _, sequences = make_sequences(None, tokenizer, window, kinds, conventions, vocabulary, translated)
        for kind in sequences:
            targets = argmax_targets(sequences[kind], role_index[kind], conventions)
            count_offsets(targets, roles[kind], counts[kind])
    return {kind: most_frequent(offsets) for kind, offsets in counts.items()}
