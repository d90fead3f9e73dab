"""What every head of a model attends to: :func:`taxonomy`, one pass over a corpus, every score beside its baseline.

One batch goes from ``_texts`` (tokens, and the words they are of) through ``_row_scores`` (a plan without any map, then
the scores of each layer's maps) to ``_role_table`` (sums over the corpus, intervals and verdicts).
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from headtools._engine.loop import run
from headtools.heads._devices import on_device
from headtools.heads._tokens import is_encoder_decoder
from headtools.heads.record import Captured, backbone, record
from headtools.heads.sites import Site, SiteKey, sites
from headtools.heads.verify import check_padding_verified, verify_once
from headtools.roles._role_table import add_up, make_table
from headtools.roles._row_scores import Plan, make_plan, score, word_targets
from headtools.roles._texts import make_texts, without_annotation
from headtools.roles.baselines import best_offsets
from headtools.roles.controls import shuffled
from headtools.roles.conventions import VOITA, Conventions
from headtools.roles.role import Frequencies, Role, builtin_roles, check_sentence, select_roles
from headtools.roles.sentence import Sentence
from headtools.roles.spans import between_groups, visible_keys
from headtools.roles.word_alignment import numbered


@torch.no_grad()
def taxonomy(
    model: nn.Module,
    tokenizer: object,
    sentences: Sequence[Sentence],
    fitted: Sequence[Sentence] | None = None,
    *,
    roles: Iterable[str | Role] | str | Role | None = None,
    kinds: Iterable[str] | str | None = None,
    conventions: Conventions = VOITA,
    frequency: Mapping[str, int] | None = None,
    shuffle: bool = False,
    times: int = 500,
    batch_size: int = 32,
    seed: int = 0,
    checkpoint: str | Path | None = None,
) -> pd.DataFrame:
    """Score every head for every role, in one pass: one row a head and role.

    ``sentences`` are scored; the best offset of each role is fitted on ``fitted``, another split (None: on the other
    half of the sentences). ``roles`` names roles or families (None: all), or is a :class:`Role` of your own, or both;
    ``kinds`` names kinds of attention. With translations (``target``) both sides of an encoder-decoder run, and
    cross-attention is scored for alignment with the gold source word, 1 - AER (Och and Ney 2003). A query counts for a
    role only if it can see a target. ``conventions`` say how weights are counted; ``frequency`` counts words (None: in
    ``fitted``); ``shuffle`` permutes each row's weights: the random-head control, beside ``untrained(model)``. Only
    rounding and ``shuffle`` depend on ``batch_size``. Rows come in blocks: of a long text no map between tokens is
    kept, but one between words.

    Columns: ``stack`` (where there are several), ``kind``, ``layer``, ``head``, ``family``, ``role``; ``score``, a
    fraction of queries, a mean weight or a mean (entropy and rarity in nats, distance in words); ``baseline``, the
    score of ``baseline_rule`` on the same queries; ``chance``, of a random key or of uniform attention; ``low`` and
    ``high``, the 95 % interval of the score over ``times`` bootstrap replicas (NaN below five sentences);
    ``difference_low`` and ``difference_high``, that of score - baseline; ``n``, queries counted (sentences for content
    and map classes); ``passes``, whether the *lower end* reaches the role's threshold, with 50 queries or more. With
    hundreds of heads and roles some pass by chance: run the controls and count theirs.

    Raises ValueError for fewer than two sentences, no ``times``, an unknown role or kind, targets that are missing,
    annotation that does not fit, maps that are NaN, and a ``checkpoint`` of something else.

    After Voita et al. 2019 (arXiv:1905.09418), sections 4 and 5; Clark et al. 2019 (arXiv:1906.04341), 3 and 4;
    Kovaleva et al. 2019 (arXiv:1908.08593), 4.1; Vig and Belinkov 2019 (arXiv:1906.04284), 4.

    >>> import headtools as ht
    >>> test, validation = (ht.corpus("organism", split, limit=40) for split in ("test", "validation"))
    >>> top = best(taxonomy(*ht.load(), test, validation, roles="positional")).loc["offset -1"]
    >>> (top.kind, bool(top.score > 0.9), bool(top.passes))
    ('encoder', True, True)
    """
    sentences = [sentences] if isinstance(sentences, str) else list(sentences)
    reference = list(fitted or sentences)
    _check(sentences, reference, times)
    translated = is_encoder_decoder(model) and all(s.target for s in sentences)
    frequencies = Frequencies(Counter(w for s in reference for w in s.words) if frequency is None else frequency)
    roles_of = _roles_by_kind(model, [*sentences, *reference], roles, kinds, translated, frequencies)
    scored_sites = [site for site in sites(model) if not site.empty and site.kind in roles_of]
    verify_once(model, chosen=scored_sites)
    # Without ``fitted``, sentence i is compared with offsets that are fitted on the other half.
    halves = [reference] if fitted else [sentences[1::2], sentences[::2]]
    offsets = [  # sentence i has those at i modulo their number
        {kind: best_offsets(_targets_to_fit(of_kind, kind, half, translated)) for kind, of_kind in roles_of.items()}
        for half in halves
    ]

    def per_batch(batch: tuple[int, list[int]]) -> dict[str, Tensor]:
        index, members = batch
        with numbered(members):
            inputs, texts = make_texts(model, tokenizer, [sentences[i] for i in members], [*roles_of], translated)
        plans = {
            kind: make_plan(
                texts[kind],
                roles_of[kind],
                conventions,
                frequencies,
                tokenizer,
                [offsets[i % len(offsets)][kind] for i in members],
            )
            for kind in roles_of
        }
        # the same random numbers, whichever batches have run before
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {index}".encode()) if index else seed)
        return _score_batch(model, inputs, plans, scored_sites, generator if shuffle else None)

    # Sentences of similar length run together, which leaves little padding.
    lengths = [len(sentence.words) for sentence in sentences]
    order = sorted(range(len(sentences)), key=lengths.__getitem__)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    settings = {
        "sentences": (sentences, reference, frequencies.counts),
        "roles": {kind: [role.name for role in of_kind] for kind, of_kind in roles_of.items()},
        "options": (conventions, batch_size, seed if shuffle else None),
        "model": model,
    }
    # How often each sentence is in each replica: Poisson with mean 1, which for many sentences is the bootstrap (Hanley
    # and MacGibbon 2006), and lets replicas be summed while batches come, without keeping the numbers of any sentence.
    draws = torch.poisson(torch.ones(len(sentences), times), generator=torch.Generator().manual_seed(seed))
    parts = run(per_batch, list(enumerate(batches)), label="roles", checkpoint=checkpoint, settings=settings)
    sums = add_up(parts, [draws[members] for members in batches])
    return make_table(scored_sites, roles_of, sums, offsets)


def _check(sentences: Sequence[Sentence], reference: Sequence[Sentence], times: int) -> None:
    if times < 1:
        raise ValueError(f"got times={times}; expected how often sentences are resampled, such as 500")
    for i, sentence in enumerate(sentences):
        if not isinstance(sentence, Sentence):
            raise TypeError(
                f"sentences[{i}] is {type(sentence).__name__} {sentence!r:.40}; roles need annotated sentences: "
                "corpus('organism'), corpus(path to a .conllu file), or Sentence(words, heads, relations, upos, ...)"
            )
    if len(sentences) < 2:
        raise ValueError(
            f"got {len(sentences)} sentences; expected two or more, since each half is compared with a baseline "
            "that is fitted on the other; write corpus('organism')"
        )
    for sentence in chain(sentences, reference):
        check_sentence(sentence)


def _score_batch(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    plans: Mapping[str, Plan],
    scored_sites: Sequence[Site],
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    """By kind of attention each sentence's sums (B, R, head), counts (B, 3, R), and how often each layer ran.

    With a ``generator`` the weights of each row are shuffled.
    """
    sums: dict[SiteKey, Tensor] = {}
    open_maps: dict[SiteKey, Tensor] = {}  # between words, of a layer whose tokens have not all asked yet
    n_runs = {site.key: 0 for site in scored_sites}

    def add_scores(site: Site, captured: Captured, _previous: None) -> None:
        # returns nothing, so that no row is kept
        plan, rows, first = plans[site.kind], captured.rows.cpu(), captured.first
        queries, keys = plan.text.queries, plan.text.keys
        expected = queries.of_token.shape[1], keys.of_token.shape[1]
        if (captured.n_queries, rows.shape[-1]) != expected:
            raise ValueError(
                f"got {site.kind} maps between {(captured.n_queries, rows.shape[-1])} positions; expected {expected}, "
                "the tokens of the text: these heads attend to something else (an image?); leave them out, e.g. "
                "kinds=['decoder']"
            )
        last = first + rows.shape[2]
        if generator is not None:
            visible = visible_keys(site.kind, queries.of_token >= 0, keys.of_token >= 0)[:, None, first:last]
            rows = shuffled(rows, visible, generator)
        sizes = queries.exists.shape[1], keys.exists.shape[1]
        maps = between_groups(rows, queries.of_token, keys.of_token, *sizes, first)
        maps = maps if first == 0 else open_maps.pop(site.key) + maps
        if last < captured.n_queries:
            open_maps[site.key] = maps
            return
        sums[site.key] = sums.get(site.key, 0) + score(maps, plan)
        n_runs[site.key] += 1

    encoder_only = [*plans] == ["encoder"] and is_encoder_decoder(model)
    with record(model, want="rows", accumulate=add_scores, only=[*n_runs]):
        # the model without its logits, or the encoder alone of a model that has a decoder too
        (model.get_encoder() if encoder_only else backbone(model, inputs))(**on_device(model, inputs))
    check_padding_verified(model, inputs)  # only now: record knows better what else is wrong with a model
    not_run = [site.label for site in scored_sites if not n_runs[site.key]]
    if not_run:
        raise RuntimeError(f"{', '.join(not_run)} did not run; leave out that kind, e.g. write kinds=['encoder']")
    part = {}
    for kind, plan in plans.items():
        keys = [site.key for site in scored_sites if site.kind == kind]
        # A layer that runs several times (ALBERT) counts as the mean of its runs, as baseline and chance do.
        part[f"{kind} sums"] = torch.cat([sums[key] / n_runs[key] for key in keys], -1)
        part[f"{kind} counts"] = plan.counts
        part[f"{kind} runs"] = torch.tensor([n_runs[key] for key in keys])
    return part


def _roles_by_kind(
    model: nn.Module,
    sentences: Sequence[Sentence],
    requested: Iterable[str | Role] | str | Role | None,
    kinds: Iterable[str] | str | None,
    translated: bool,
    frequencies: Frequencies,
) -> dict[str, list[Role]]:
    """The roles to score in each kind of attention that the model has, that was requested, and that can be scored."""
    existing = sites(model).kinds
    possible = [kind for kind in existing if kind != "cross" or translated]
    if is_encoder_decoder(model) and not translated:
        possible = ["encoder"]
    selected = [kinds] if isinstance(kinds, str) else list(kinds or possible)
    for kind in selected:
        if kind not in existing:
            raise ValueError(f"no {kind!r} attention in {type(model).__name__}; it has {', '.join(existing)}")
        if kind not in possible:
            raise ValueError(f"{kind!r} attention needs sentences with a target; corpus('organism') has them")
    relations = dict.fromkeys(chain.from_iterable(s.relations for s in sentences))
    # every kind, so that a role's name is known also where no head of its kind is scored
    builtin = {kind: builtin_roles(kind, relations, frequencies) for kind in ("encoder", "decoder", "cross")}
    if translated:  # target words have no annotation
        builtin["decoder"] = builtin_roles("decoder", (), None)
    if requested is not None:
        requested = [requested] if isinstance(requested, str | Role) else list(requested)
    found = select_roles(builtin, requested)
    roles_of = {kind: found[kind] for kind in selected if found[kind] and any(not s.empty for s in sites(model)[kind])}
    if not roles_of:
        raise ValueError(f"roles={requested!r} name nothing that these sentences and this model have; write roles=None")
    return roles_of


def _targets_to_fit(
    roles: Sequence[Role], kind: str, sentences: Sequence[Sentence], translated: bool
) -> Iterable[dict[str, list]]:
    """Yield each sentence's targets of the roles whose baseline is the best fixed offset."""
    for sentence in sentences:
        if translated and kind != "encoder" and not sentence.target:
            continue  # the sentences have translations, those to fit on need not
        if translated and kind == "decoder":
            sentence = without_annotation(sentence.target)
        yield {
            role.name: word_targets(role, kind, sentence)
            for role in roles
            if role.targets is not None and role.baseline == "best offset"
        }


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """The row of the highest score for each role, by role (the lowest for no role: read entropy as it is).

    The head was chosen on the same sentences that its score is from, so that the score is a little too high; for a
    score to report, choose on one split and read the same head's row on another.
    """
    return frame.loc[frame.groupby("role", sort=False).score.idxmax()].set_index("role")
