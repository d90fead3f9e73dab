"""What every head of a model looks at: :func:`taxonomy`, one pass over a corpus, every score beside its baseline.

>>> import headtools as ht
>>> model, tokenizer = ht.load()
>>> some = ht.corpus("organism", limit=40)
>>> frame = taxonomy(model, tokenizer, some, ht.corpus("organism", "validation", limit=40), roles=["positional"])
>>> top = best(frame).loc["offset -1"]
>>> (top.kind, bool(top.score > 0.9), bool(top.holds))
('encoder', True, True)
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from headtools._engine.processes import current_process
from headtools._engine.run import function_name
from headtools._engine.run import run as run_measure
from headtools._engine.store import fingerprint
from headtools._renamed import old_arguments
from headtools.heads._devices import device_of
from headtools.heads.bootstrap import MIN_EXAMPLES
from headtools.heads.record import Captured, record
from headtools.heads.sites import Site, SiteKey, sites
from headtools.roles._taxonomy.annotation import Words
from headtools.roles._taxonomy.batch_sums import Running
from headtools.roles._taxonomy.batches import TOGETHER, Group, drawn_by_batch, prepared
from headtools.roles._taxonomy.families import MAPS, OFFSET_BASED, RARE, STATISTICS, WEIGHTS, family
from headtools.roles._taxonomy.plan import Plan, looks
from headtools.roles._taxonomy.running_sums import Draws, Tally
from headtools.roles._taxonomy.scores import Part
from headtools.roles._taxonomy.sequences import MARKS, count_words, cut, make_sides, word_sides
from headtools.roles._taxonomy.sequences import run as run_model
from headtools.roles._taxonomy.table import COLUMNS, Columns, table
from headtools.roles._taxonomy.targets import Antecedent, nearest_nominal
from headtools.roles.baselines import Usual, commonest, count_offsets
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
    sentences with odd numbers for those with even ones, and the other way round. ``roles`` names roles or families
    (None: all, see ``partners.py`` and ``families.py``); ``kinds`` names kinds of attention. An encoder-decoder model
    runs as a whole where the sentences have a translation (``target``), else only its encoder. Its decoder is scored
    on the target words for the roles that need no grammar, its cross-attention for alignment with the gold source
    word: its score is 1 - AER (Och and Ney 2003), all links being sure. In a decoder a query counts for a role only
    if it can see a partner.

    ``conventions`` hold every other choice (``VOITA``, ``CLARK``). ``frequency`` counts words, for the rarest word and
    rarity (None: in ``fitted``); a word that it does not have as it is written, but in another case, has that one's
    count. ``antecedent(sentence, place)`` is the baseline of coreference, a rule that names the place of the noun that
    a mention stands for. ``shuffle`` hands out each row's weights at random among the keys: the
    random-head control; the untrained one is ``taxonomy(untrained(model), ...)``. Intervals come from ``times``
    bootstrap replicas over sentences, drawn from ``seed``. They are percentiles where 100 sentences or more have a
    query of the role, wider than that where fewer have (``headtools.heads.bootstrap.around``), and NaN where fewer than
    five have: no role holds there, and ``frame.attrs["interval"]`` says so.

    Memory does not grow with the corpus (``tally.py`` says what is held). Scores and intervals depend neither on
    ``batch_size`` nor on the side the tokenizer pads, but for rounding, which decides between equal weights; only what
    ``shuffle`` draws does. Inside ``sharded()`` several processes share the batches. ``checkpoint`` names a folder in
    which the sums of every batch are kept (a number for each sentence, role and head); the same call goes on from
    there.

    Columns: ``stack`` (where a model has several), ``kind``, ``layer``, ``head``, ``family``, ``role``; ``score``, a
    share of looks, a mean weight or a mean (entropy and rarity in nats, distance in units); ``baseline``, the score of
    the rule named in ``against``, on the same queries; ``chance``, of a random look or an even spread (coreference: a
    random noun before); ``low`` and ``high``, the ``level`` interval of the score; ``gap_low`` and ``gap_high``, the
    paired interval of score - baseline; ``n``, queries counted (sentences for content and map classes; a layer that
    runs several times, as ALBERT's, counts each); ``holds``, whether the head has the role: the *lower end* reaches
    the role's bar, above both baseline and chance where the bar is a margin (``families.bar``), in ``fewest`` looks or
    more. Roles without a single query have no rows.

    With hundreds of heads and roles some lower ends pass by luck: run the controls and count theirs.

    Raises ValueError for fewer than two sentences, a ``level`` outside (0, 1), no ``times``, an unknown role or kind,
    targets that are missing, maps that are NaN, and a ``checkpoint`` of something else.

    After Voita et al. 2019 (arXiv:1905.09418), sections 4 and 5; Clark et al. 2019 (arXiv:1906.04341), sections 3 and
    4; Kovaleva et al. 2019 (arXiv:1908.08593), section 4.1; Vig and Belinkov 2019 (arXiv:1906.04284), section 4.
    """
    if not 0 < level < 1 or times < 1:
        raise ValueError(
            f"level={level} and times={times} came: level is a probability, such as 0.95, and times how often "
            "sentences are drawn, such as 500"
        )
    sentences = list(sentences)
    if len(sentences) < 2:
        raise ValueError(
            f"{len(sentences)} sentences came; needed: two or more, since each half is compared with a baseline that "
            "is fitted on the other; write corpus('organism')"
        )
    if roles is not None:
        roles = [roles] if isinstance(roles, str) else list(roles)
    found = sites(model)
    there = [site for site in found if not site.empty]
    translated = getattr(model.config, "is_encoder_decoder", False) and all(s.target for s in sentences)
    kinds = _kinds(model, found.kinds, kinds, translated)
    reference = list(fitted) if fitted else sentences
    words = count_words(tokenizer, reference, frequency)
    relations = dict.fromkeys(chain.from_iterable(s.relations for s in chain(sentences, reference)))
    names = {kind: _names(kind, relations, translated, conventions, roles) for kind in kinds}
    kinds = [kind for kind in kinds if names[kind] and any(site.kind == kind for site in there)]
    names = {kind: names[kind] for kind in kinds}
    if not kinds:
        raise ValueError(f"roles={roles!r} name nothing that these sentences and this model have; write roles=None")
    usual = [_fit(tokenizer, part, names, conventions, words, translated)
             for part in ([list(fitted)] if fitted else [sentences[1::2], sentences[::2]])]  # fmt: skip
    measure = _Taxonomy(
        model, tokenizer, sentences, [site for site in there if site.kind in kinds], names, usual, words, conventions,
        antecedent, translated, batch_size, times, level, seed, shuffle, reference,
        # A group is shared and kept as a whole, so where that matters each batch is one.
        list(prepared(sentences, batch_size, tokenizer, together=checkpoint is None and current_process().count == 1)),
    )  # fmt: skip
    return run_measure(measure, model, measure.groups, checkpoint=checkpoint)


@dataclass
class _Taxonomy:
    """Scores of every head of ``sites`` for the roles ``names`` of its kind of attention, sentence by sentence."""

    model: nn.Module
    tokenizer: object
    sentences: Sequence[Sentence]
    sites: Sequence[Site]
    names: Mapping[str, Sequence[str]]
    usual: Sequence[Mapping[str, Mapping[str, Usual]]]  # the best fixed offsets; sentence i is compared with i modulo
    words: Words
    conventions: Conventions
    antecedent: Antecedent
    translated: bool
    batch_size: int
    times: int
    level: float
    seed: int
    shuffle: bool
    reference: Sequence[Sentence]
    groups: Sequence[Group]

    @property
    def settings(self) -> dict[str, object]:
        """All that determines the sums; intervals are made of them at the end."""
        return {
            "sentences": fingerprint(self.sentences), "fitted": fingerprint(self.reference),
            "roles": fingerprint(self.names), "conventions": fingerprint(self.conventions),
            "words": fingerprint(self.words), "antecedent": function_name(self.antecedent),
            "shuffle": self.seed if self.shuffle else None, "batch_size": self.batch_size,
        }  # fmt: skip

    def per_batch(self, group: Group) -> dict[str, Tensor]:
        """Return the sums of each sentence (B, role, head), the queries counted, and how often each layer ran."""
        running = {kind: Running([site for site in self.sites if site.kind == kind]) for kind in self.kinds}
        rows: dict[str, list[dict[str, Tensor]]] = {kind: [] for kind in running}
        generator = torch.Generator()

        def accumulate(site: Site, captured: Captured, _before: None) -> None:
            running[site.kind].take(site, captured.maps.cpu(), generator if self.shuffle else None)

        with record(self.model, want="maps", accumulate=accumulate, only=[site.key for site in self.sites]):
            for number, (batch, parts) in zip((number for number, _ in group), self._prepare(group), strict=True):
                # the same numbers, whichever process measures this batch
                generator.manual_seed(self.seed if not number else zlib.crc32(f"{self.seed} {number}".encode()))
                for kind, part in parts.items():
                    running[kind].begin(part)
                batch = {name: value.to(device_of(self.model)) for name, value in batch.items()}
                run_model(self.model, batch, encoder_only=self.kinds == ["encoder"])
                for kind in parts:
                    rows[kind].append(running[kind].finish())
        return {f"{kind}|{name}": torch.cat([row[name] for row in parts])
                for kind, parts in rows.items() for name in parts[0]}  # fmt: skip

    def finish(self, parts: Iterable[Mapping[str, Tensor]]) -> pd.DataFrame:
        """Add everything up, with as many resampled sums, and make the table."""
        drawn = drawn_by_batch(self.sentences, self.batch_size, Draws(self.times, self.seed))
        sums = {kind: (Tally(), Tally()) for kind in self.kinds}
        with_query = dict.fromkeys(self.kinds, 0)  # how many sentences have a query of each role, (R,)
        runs: dict[SiteKey, int] = {}
        for group, part in zip(self.groups, parts, strict=True):
            ends = list(accumulate(len(indices) for _, indices in group))
            for number, (end, (_, indices)) in enumerate(zip(ends, group, strict=True)):
                rows, weights = slice(end - len(indices), end), next(drawn)
                for kind, (scores, counts) in sums.items():
                    scores.add(part[f"{kind}|sums"][rows], weights)
                    counts.add(part[f"{kind}|counted"][rows], weights)
                    with_query[kind] = with_query[kind] + (part[f"{kind}|counted"][rows, 0] > 0).sum(0)
                    layers = [site.key for site in self.sites if site.kind == kind]
                    runs |= dict(zip(layers, part[f"{kind}|runs"][number].tolist(), strict=True))
        columns: dict[SiteKey, Columns] = {}
        for kind, (scores, counts) in sums.items():
            layers = [(site, runs[site.key]) for site in self.sites if site.kind == kind]
            columns |= table(layers, scores, counts, with_query[kind], self.names[kind], self.usual, self.conventions,
                             self.level, self.antecedent)  # fmt: skip
        shown = [name for name in COLUMNS if name != "stack" or any(site.stack for site in self.sites)]
        frame = pd.DataFrame({name: np.concatenate([columns[site.key][name] for site in self.sites]) for name in shown})
        if frame.low.isna().any():
            frame.attrs["interval"] = f"none for roles of which fewer than {MIN_EXAMPLES} sentences have a query"
        return frame

    @property
    def kinds(self) -> list[str]:
        """The kinds of attention that are scored, in the order of the model."""
        return list(self.names)

    def _prepare(self, group: Group) -> Iterator[tuple[dict[str, Tensor], dict[str, Part]]]:
        """Give the batches of a group and what is measured in them; annotation costs least for all of them at once."""
        indices = [i for _, some in group for i in some]
        batch, sides = make_sides(self.model, self.tokenizer, [self.sentences[i] for i in indices], self.kinds,
                                  self.conventions, self.words, self.translated)  # fmt: skip
        plans = {kind: Plan(side, self.names[kind], self.conventions,
                            [self.usual[i % len(self.usual)][kind] for i in indices], self.antecedent)
                 for kind, side in sides.items()}  # fmt: skip
        last = 0
        for _, some in group:
            first, last = last, last + len(some)
            yield cut(batch, first, last), {kind: plan.part(first, last) for kind, plan in plans.items()}


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """The row of the highest score for each role, by role (the lowest for no role: read entropy as it is).

    The head was chosen on the same sentences that its score is from, so that the score is a little too high; for a
    score to report, choose on one split and read the same head's row on another.
    """
    return frame.loc[frame.groupby("role", sort=False).score.idxmax()].set_index("role")


def _kinds(model: nn.Module, present: Mapping[str, int], wanted: Iterable[str] | None, translated: bool) -> list[str]:
    can = [kind for kind in present if kind != "cross" or translated]
    if getattr(model.config, "is_encoder_decoder", False) and not translated:
        can = ["encoder"]
    chosen = can if wanted is None else [wanted] if isinstance(wanted, str) else list(wanted)
    for kind in chosen:
        if kind not in present:
            raise ValueError(f"no {kind!r} attention in {type(model).__name__}; it has {', '.join(present)}")
        if kind not in can:
            raise ValueError(f"{kind!r} attention needs sentences with a target; corpus('organism') has them")
    return chosen


def _names(
    kind: str, relations: Iterable[str], translated: bool, conventions: Conventions, wanted: list[str] | None
) -> list[str]:
    """Roles to score in one kind of attention, in the order of the frame."""
    offsets = [f"offset {k:+d}" for k in range(-conventions.span, conventions.span + 1)]
    own = [*offsets, *WEIGHTS, "confidence", "entropy", "distance", "content", *MAPS]
    up_down = [f"{name} {way}" for name in relations if name not in ("root", "punct") for way in ("up", "down")]
    if kind == "cross":
        names = ["alignment", *MARKS, "punctuation", "confidence", "entropy"]
    elif kind == "decoder" and translated:
        names = own
    else:
        names = [*own, "rarity", *up_down, "coreference", *RARE]
    known = {*own, *RARE, *STATISTICS, *up_down, "coreference", "alignment"}
    families = {family(name) for name in known}
    for name in wanted or ():
        if name not in known and name not in families:
            raise ValueError(f"no role or family {name!r}; there is {', '.join(sorted(families))}, and roles such as "
                             f"{', '.join([*own[:2], *up_down[:2], 'confidence'])}")  # fmt: skip
    return [name for name in names if wanted is None or name in wanted or family(name) in wanted]


def _fit(
    tokenizer: object, sentences: Sequence[Sentence], names: Mapping[str, Sequence[str]], conventions: Conventions,
    words: Words, translated: bool,
) -> dict[str, Usual]:  # fmt: skip
    """The best fixed offset of every role, by kind of attention."""
    translated = translated and all(s.target for s in sentences)
    places = {kind: {role: i for i, role in enumerate(some) if family(role) in OFFSET_BASED}
              for kind, some in names.items()}  # fmt: skip
    kinds = [kind for kind in names if places[kind]]
    count: dict[str, dict] = {kind: {} for kind in names}
    # Between words there are only words: where marks do not ask, nothing has to be tokenized.
    bare = conventions.level == "word" and not conventions.specials_as_queries and conventions.cross == "writes"
    for start in range(0, len(sentences) if kinds else 0, TOGETHER):
        chosen = sentences[start : start + TOGETHER]
        sides = (word_sides(chosen, kinds, words, translated) if bare else
                 make_sides(None, tokenizer, chosen, kinds, conventions, words, translated)[1])  # fmt: skip
        for kind, side in sides.items():
            count_offsets(looks(side, places[kind], conventions), names[kind], count[kind])
    return {kind: commonest(some) for kind, some in count.items()}
