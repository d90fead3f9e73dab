"""What every head of a model attends to: :func:`taxonomy`, one pass over a corpus, every score beside its baseline.

>>> import headtools as ht
>>> model, tokenizer = ht.load()
>>> sentences = ht.corpus("organism", limit=40)
>>> frame = taxonomy(model, tokenizer, sentences, ht.corpus("organism", "validation", limit=40), roles=["positional"])
>>> top = best(frame).loc["offset -1"]
>>> (top.kind, bool(top.score > 0.9), bool(top.passes))
('encoder', True, True)

The path of one batch, in the order in which to read the code; all modules are in ``roles/_taxonomy``:

    batches        which sentences run together                      batches()  indices of sentences
    vocabulary     how frequent words are, and special tokens        count_words()  Vocabulary
    sequences      the model's batch; by kind, its queries and keys  make_sequences() {kind: AttentionSequences}
    spans          from tokens to words (or single tokens)           make_spans()     Spans: (B, T) and (B, U)
    targets        by role, queries and the keys that are a hit      argmax_targets(), weight_targets()  lists
    scores         what baseline and chance score on them            BatchScorer.counts  (B, 3, R)
                   what the recorded maps of a layer score           BatchScorer.sums()  (B, R, head)
    running_sums   both summed over the corpus, and resampled        RunningSums      (R, head), (times, R, head)
    table          scores, intervals, verdicts                       table()          columns, one row a head and role

``roles`` has the names of the roles and what it takes to hold one, ``statistics`` the scores that need no targets.
The engine (``headtools._engine.run``) calls ``_Taxonomy.per_batch`` for each batch, which goes down to the sums, and
``_Taxonomy.finish`` once, which goes from there to the table.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from headtools._engine.run import function_name, run
from headtools._engine.store import fingerprint
from headtools.heads._devices import on_device
from headtools.heads._tokens import is_encoder_decoder
from headtools.heads.intervals import MIN_EXAMPLES
from headtools.heads.record import Captured, record
from headtools.heads.sites import Site, SiteKey, sites
from headtools.roles._taxonomy.batches import WINDOW, batches, resample_counts
from headtools.roles._taxonomy.roles import OFFSET_BASED, family, role_names
from headtools.roles._taxonomy.running_sums import RunningSums
from headtools.roles._taxonomy.scores import BatchScorer, RunningScores
from headtools.roles._taxonomy.sequences import make_sequences, run_model
from headtools.roles._taxonomy.table import COLUMNS, Columns, table
from headtools.roles._taxonomy.targets import Antecedent, Targets, argmax_targets, nearest_nominal
from headtools.roles._taxonomy.vocabulary import count_words
from headtools.roles.baselines import best_offsets
from headtools.roles.conventions import VOITA, Conventions
from headtools.roles.sentence import Sentence


@torch.no_grad()
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
    than that where fewer have (``headtools.heads.intervals.interval_around``), and NaN where fewer than five have: no
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
    measure = _Taxonomy(
        model,
        tokenizer,
        sentences,
        fitted,
        (shuffle,),
        roles=roles,
        kinds=kinds,
        conventions=conventions,
        frequency=frequency,
        antecedent=antecedent,
        times=times,
        level=level,
        batch_size=batch_size,
        seed=seed,
    )
    return run(measure, model, measure.batches, checkpoint=checkpoint)[0]


@torch.no_grad()
def taxonomy_and_control(
    model: nn.Module,
    tokenizer: object,
    sentences: Sequence[Sentence],
    fitted: Sequence[Sentence] | None = None,
    **options: Any,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what :func:`taxonomy` does, and what it does with ``shuffle=True``, in one pass instead of two.

    ``options``: those of ``taxonomy`` but ``shuffle`` and ``checkpoint``.
    """
    measure = _Taxonomy(model, tokenizer, sentences, fitted, (False, True), **options)
    frame, control = run(measure, model, measure.batches)
    return frame, control


class _Taxonomy:
    """Scores of every head of ``sites`` for the ``roles`` of its kind of attention, sentence by sentence.

    Arguments are those of :func:`taxonomy`. ``shuffles``: for each table to make, whether the rows of the maps are
    shuffled.
    """

    def __init__(
        self,
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
    ) -> None:
        if not 0 < level < 1 or times < 1:
            raise ValueError(
                f"got level={level} and times={times}; expected a probability, such as 0.95, and how often "
                " sentences are resampled, such as 500"
            )
        sentences = list(sentences)
        if len(sentences) < 2:
            raise ValueError(
                f"got {len(sentences)} sentences; expected two or more, since each half is compared with a baseline "
                "that is fitted on the other; write corpus('organism')"
            )
        self.model, self.tokenizer, self.sentences, self.shuffles = model, tokenizer, sentences, shuffles
        self.conventions, self.antecedent, self.batch_size = conventions, antecedent, batch_size
        self.times, self.level, self.seed = times, level, seed
        self.batches = list(enumerate(batches(sentences, batch_size)))
        self.reference = list(fitted) if fitted else sentences
        self.vocabulary = count_words(tokenizer, self.reference, frequency)
        self.translated = is_encoder_decoder(model) and all(s.target for s in sentences)
        model_sites = sites(model)
        with_heads = [site for site in model_sites if not site.empty]
        if roles is not None:
            roles = [roles] if isinstance(roles, str) else list(roles)
        relations = dict.fromkeys(chain.from_iterable(s.relations for s in chain(sentences, self.reference)))
        self.roles: dict[str, list[str]] = {}  # by kind of attention
        for kind in _select_kinds(model, model_sites.kinds, kinds, self.translated):
            names = role_names(kind, relations, self.translated, conventions, roles)
            if names and any(site.kind == kind for site in with_heads):
                self.roles[kind] = names
        if not self.roles:
            raise ValueError(f"roles={roles!r} name nothing that these sentences and this model have; write roles=None")
        self.kinds = list(self.roles)
        self.sites = [site for site in with_heads if site.kind in self.roles]
        # Without ``fitted``, sentence i is compared with offsets that are fitted on the other half.
        references = [self.reference] if fitted else [sentences[1::2], sentences[::2]]
        self.best_offsets = [
            {kind: best_offsets(self._targets_to_fit(kind, half)) for kind in self.kinds} for half in references
        ]  # sentence i has those at i modulo their number

    @property
    def settings(self) -> dict[str, object]:
        """All that determines the sums; intervals are made of them at the end."""
        return {
            "sentences": fingerprint(self.sentences),
            "fitted": fingerprint(self.reference),
            "roles": fingerprint(self.roles),
            "conventions": fingerprint(self.conventions),
            "word counts": fingerprint(self.vocabulary),
            "antecedent": function_name(self.antecedent),
            "shuffle": self.seed if any(self.shuffles) else None,
            "batch_size": self.batch_size,
        }

    def per_batch(self, batch: tuple[int, list[int]]) -> dict[str, Tensor]:
        """Return by kind each sentence's sums (B, table, role, head) and counts, and how often each layer ran."""
        batch_index, indices = batch
        # the same random numbers, whichever process runs this batch
        seed = self.seed if not batch_index else zlib.crc32(f"{self.seed} {batch_index}".encode())
        generator = torch.Generator().manual_seed(seed)
        inputs, sequences = make_sequences(
            self.model,
            self.tokenizer,
            [self.sentences[i] for i in indices],
            self.kinds,
            self.conventions,
            self.translated,
        )
        running = {}
        for kind in self.kinds:
            offsets = [self.best_offsets[i % len(self.best_offsets)][kind] for i in indices]
            scorer = BatchScorer(
                sequences[kind], self.roles[kind], self.vocabulary, self.conventions, offsets, self.antecedent
            )
            running[kind] = RunningScores(scorer, [site for site in self.sites if site.kind == kind], self.shuffles)

        def add_scores(site: Site, captured: Captured, _previous: None) -> None:
            # returns nothing, so that no map is kept
            running[site.kind].add(site, captured.maps.cpu(), generator)

        with record(self.model, want="maps", accumulate=add_scores, only=[site.key for site in self.sites]):
            run_model(self.model, on_device(self.model, inputs), encoder_only=self.kinds == ["encoder"])
        not_run = [site.label for site in self.sites if not running[site.kind].n_runs[site.key]]
        if not_run:
            raise RuntimeError(f"{', '.join(not_run)} did not run; leave out that kind, e.g. write kinds=['encoder']")
        part = {}
        for kind, scores in running.items():
            scores.score()
            # A layer that runs several times (ALBERT) counts as the mean of its runs, as baseline and chance do.
            means = [scores.sums[key] / n_runs for key, n_runs in scores.n_runs.items()]
            part[f"{kind}|sums"] = torch.cat(means, -1)
            part[f"{kind}|counts"] = scores.scorer.counts
            part[f"{kind}|runs"] = torch.tensor(list(scores.n_runs.values()))
        return part

    def finish(self, parts: Iterable[Mapping[str, Tensor]]) -> list[pd.DataFrame]:
        """Add everything up, with as many resampled sums, and make the tables."""
        sums = {kind: [RunningSums() for _ in self.shuffles] for kind in self.kinds}
        counts = {kind: RunningSums() for kind in self.kinds}
        n_sentences = dict.fromkeys(self.kinds, 0)  # how many have a query of each role, (R,)
        resampled = resample_counts(self.sentences, self.batch_size, self.times, self.seed)
        for part, drawn in zip(parts, resampled, strict=True):
            for kind in self.kinds:
                for of_table, values in zip(sums[kind], part[f"{kind}|sums"].unbind(1), strict=True):
                    of_table.add(values, drawn)
                counts[kind].add(part[f"{kind}|counts"], drawn)
                n_sentences[kind] = n_sentences[kind] + (part[f"{kind}|counts"][:, 0] > 0).sum(0)
        n_runs = {kind: part[f"{kind}|runs"].tolist() for kind in self.kinds}
        return [
            self._frame({kind: sums[kind][i] for kind in self.kinds}, counts, n_sentences, n_runs)
            for i in range(len(self.shuffles))
        ]

    def _frame(
        self,
        sums: Mapping[str, RunningSums],
        counts: Mapping[str, RunningSums],
        n_sentences: Mapping[str, Tensor],
        n_runs: Mapping[str, Sequence[int]],
    ) -> pd.DataFrame:
        """Return the table of these sums and counts, by kind."""
        columns: dict[SiteKey, Columns] = {}
        for kind, roles in self.roles.items():
            layers = list(zip([site for site in self.sites if site.kind == kind], n_runs[kind], strict=True))
            columns |= table(
                layers,
                sums[kind],
                counts[kind],
                n_sentences[kind],
                roles,
                self.best_offsets,
                self.conventions,
                self.level,
                self.antecedent,
            )
        names = [name for name in COLUMNS if name != "stack" or any(site.stack for site in self.sites)]
        frame = pd.DataFrame({name: np.concatenate([columns[site.key][name] for site in self.sites]) for name in names})
        if frame.low.isna().any():
            frame.attrs["interval"] = f"none for roles of which fewer than {MIN_EXAMPLES} sentences have a query"
        return frame

    def _targets_to_fit(self, kind: str, sentences: Sequence[Sentence]) -> Iterator[Targets]:
        """Yield each sentence's targets of the roles whose baseline is the best fixed offset."""
        roles = {role for role in self.roles[kind] if family(role) in OFFSET_BASED}
        translated = self.translated and all(s.target for s in sentences)
        if not roles or (kind == "cross" and not translated):
            return
        c = self.conventions
        # Offsets between words need no tokens, unless special tokens are queries or a word queries one position later.
        words_only = c.granularity == "word" and not c.specials_as_queries and c.cross == "writes"
        for start in range(0, len(sentences), WINDOW):
            window = sentences[start : start + WINDOW]
            if words_only:
                rows = ((s, range(len(s.target if kind == "cross" else s.words)), range(len(s.words))) for s in window)
            else:
                _, by_kind = make_sequences(None, self.tokenizer, window, [kind], c, translated)
                queries, keys = by_kind[kind].queries, by_kind[kind].keys
                rows = zip(window, queries.words(), keys.words(), strict=True)
            for sentence, query_words, words in rows:
                targets = argmax_targets(kind, sentence, query_words, words, self.vocabulary, c)
                yield {role: asked for role, asked in targets.items() if role in roles}


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
    if is_encoder_decoder(model) and not translated:
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
