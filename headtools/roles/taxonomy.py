"""What every head of a model looks at: :func:`taxonomy`, one pass over a corpus, every score beside its baseline.

>>> import headtools as ht
>>> model, tokenizer = ht.load()
>>> some = ht.corpus("organism", limit=40)
>>> frame = taxonomy(model, tokenizer, some, ht.corpus("organism", "validation", limit=40), roles=["positional"])
>>> top = best(frame).loc["offset -1"]
>>> (top.kind, bool(top.score > 0.9), bool(top.holds))
('encoder', True, True)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import pandas as pd
import torch
from torch import Tensor, nn

from headtools.heads.record import record
from headtools.heads.sites import Site, sites
from headtools.roles import controls
from headtools.roles.baselines import Usual, best_offsets
from headtools.roles.conventions import VOITA, Conventions
from headtools.roles.corpus import Sentence
from headtools.roles.families import MAPS, OFFSET_BASED, RARE, STATISTICS, WEIGHTS, family
from headtools.roles.partners import Antecedent, nearest_nominal
from headtools.roles.plan import Plan, partners
from headtools.roles.rows import table
from headtools.roles.sides import MARKS, Words, count_words, make_sides, run
from headtools.roles.tally import Draws, Tally


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
    rarity (None: in ``fitted``). ``antecedent(sentence, place)`` is the baseline of coreference, a rule that names the
    place of the noun that a mention stands for. ``shuffle`` hands out each row's weights at random among the keys: the
    random-head control; the untrained one is ``taxonomy(untrained(model), ...)``. Memory does not grow with the
    corpus; intervals come from ``times`` bootstrap replicas over sentences, drawn from ``seed``.

    Columns: ``stack`` (where a model has several), ``kind``, ``layer``, ``head``, ``family``, ``role``; ``score``, a
    share of looks, a mean weight or a mean (entropy and rarity in nats, distance in units); ``baseline``, the score of
    the rule named in ``against``, on the same queries; ``chance``, of a random look or an even spread (coreference: a
    random noun before); ``low`` and ``high``, the ``level`` interval of the score; ``gap_low`` and ``gap_high``, the
    paired interval of score - baseline; ``n``, queries counted (sentences for content and map classes; a layer
    that runs several times, as ALBERT's, counts each); ``holds``,
    whether the head has the role: the *lower end* reaches the role's bar, above both baseline and chance where
    the bar is a margin (``families.bar``) in ``fewest`` looks or
    more. Roles without a single query have no rows.

    With hundreds of heads and roles some lower ends pass by luck: run the controls and count theirs.

    Raises ValueError for fewer than two sentences, an unknown role or kind, targets that are missing.

    After Voita et al. 2019 (arXiv:1905.09418), sections 4 and 5; Clark et al. 2019 (arXiv:1906.04341), sections 3 and
    4; Kovaleva et al. 2019 (arXiv:1908.08593), section 4.1; Vig and Belinkov 2019 (arXiv:1906.04284), section 4.
    """
    sentences = list(sentences)
    if len(sentences) < 2:
        raise ValueError(f"{len(sentences)} sentences came, an interval needs two or more; write corpus('organism')")
    if roles is not None:
        roles = [roles] if isinstance(roles, str) else list(roles)
    found = sites(model)
    translated = getattr(model.config, "is_encoder_decoder", False) and all(s.target for s in sentences)
    kinds = _kinds(model, found.kinds, kinds, translated)
    reference = list(fitted) if fitted else sentences
    words = count_words(tokenizer, reference, frequency)
    names = {kind: _names(kind, chain(sentences, reference), translated, conventions, roles) for kind in kinds}
    kinds = [kind for kind in kinds if names[kind]]
    if not kinds:
        raise ValueError(f"roles={roles!r} name nothing that these sentences and this model have; write roles=None")
    usual = [_fit(tokenizer, part, kinds, conventions, words, translated, batch_size)
             for part in ([list(fitted)] * 2 if fitted else [sentences[1::2], sentences[::2]])]  # fmt: skip
    draws, luck = Draws(times, seed), torch.Generator().manual_seed(seed)
    plans: dict[str, Plan] = {}
    drawn = torch.empty(0)

    def fold(site: Site, captured: object, before: tuple[Tally, Tally] | None) -> tuple[Tally, Tally]:
        plan, maps = plans[site.kind], captured.maps.cpu()
        if shuffle:
            maps = controls.shuffled(maps, _visible(plan), luck)
        scores, counts = before or (Tally(), Tally())  # counts at each site: ALBERT's one layer runs several times
        return scores.add(plan.measure(maps), drawn), counts.add(plan.counted, drawn)

    only = [site.key for site in found if site.kind in kinds and not site.empty]
    with record(model, want="maps", reduce=fold, only=only) as recorded:
        for start in range(0, len(sentences), batch_size):
            chosen = sentences[start : start + batch_size]
            batch, sides = make_sides(model, tokenizer, chosen, kinds, conventions, words, translated)
            for kind, side in sides.items():
                known = [usual[(start + i) % 2][kind] for i in range(len(chosen))]
                plans[kind] = Plan(side, names[kind], conventions, known, antecedent)
            drawn = draws(len(chosen))
            run(model, batch.to(model.device), encoder_only=kinds == ["encoder"])
    frames = [table(found[key], *recorded[key], names[found[key].kind], usual, conventions, level, antecedent)
              for key in only]  # fmt: skip
    return pd.concat(frames, ignore_index=True)


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
    kind: str, sentences: Iterable[Sentence], translated: bool, conventions: Conventions, wanted: list[str] | None
) -> list[str]:
    """Roles to score in one kind of attention, in the order of the frame."""
    offsets = [f"offset {k:+d}" for k in range(-conventions.span, conventions.span + 1)]
    own = [*offsets, *WEIGHTS, "confidence", "entropy", "distance", "content", *MAPS]
    relations = dict.fromkeys(r for s in sentences for r in s.relations if r not in ("root", "punct"))
    up_down = [f"{relation} {way}" for relation in relations for way in ("up", "down")]
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
    tokenizer: object, sentences: Sequence[Sentence], kinds: Sequence[str], conventions: Conventions, words: Words,
    translated: bool, batch_size: int,
) -> dict[str, Usual]:  # fmt: skip
    """The best fixed offset of every role, by kind of attention."""
    translated = translated and all(s.target for s in sentences)

    def found(kind: str) -> Iterator[dict]:
        for start in range(0, len(sentences), batch_size):
            chosen = sentences[start : start + batch_size]
            side = make_sides(None, tokenizer, chosen, [kind], conventions, words, translated)[1].get(kind)
            for row in range(len(chosen) if side else 0):
                looks = partners(side, row, conventions)[0]
                yield {role: some for role, some in looks.items() if family(role) in OFFSET_BASED}

    return {kind: best_offsets(found(kind)) for kind in kinds}


def _visible(plan: Plan) -> Tensor:
    """What a query token may see, for the shuffled control: (B, 1, T, S)."""
    queries, keys = plan.side.queries.of_token, plan.side.keys.of_token
    visible = (queries[:, :, None] >= 0) & (keys[:, None] >= 0)
    return (visible.tril() if plan.side.causal else visible)[:, None]
