"""What a report measures: each function takes the subject and what was measured before it, and returns numbers.

Nothing here knows of a page: ``sections.py`` turns the results into one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from headtools._report.subject import Subject, halves
from headtools.geometry.circuits import ov, random_like
from headtools.geometry.subspaces import effective_rank, overlap
from headtools.heads._devices import on_device
from headtools.heads.groups import cache_size
from headtools.heads.record import record
from headtools.heads.scores import Head, HeadScores, head_columns
from headtools.heads.sites import sites
from headtools.importance._inputs import each_batch
from headtools.importance.loss import labels_only_loss
from headtools.roles._segments import ordinary_tokens
from headtools.roles.attention_sinks import attention_sinks
from headtools.roles.head_functions import function
from headtools.roles.induction import induction_scores
from headtools.roles.taxonomy import taxonomy
from headtools.roles.token_labels import token_labels
from headtools.sparse.cut_cost import cut_cost, repeated_tokens
from headtools.sparse.pruning_curve import curves, random_order

Results = Mapping[str, Any]  # by the name of the measure

N_MAPS = 8  # heads whose maps are drawn
EXAMPLE_WORDS = (5, 14)  # fewest and most words of the sentence whose maps are drawn
RANDOM_POINTS = (0.75, 0.5, 0.25)  # shares of heads kept at which random orders are measured
SINK_FROM = 0.5  # a share of weight on the first token from which on a head is counted
N_SEQUENCES, LENGTH, REPEATS = 12, 25, 4  # random segments, their tokens, and how often each stands in a sequence
RANKING_DRAWS = 5
CUT = 0.2  # share of heads that are switched off to check a ranking
CACHED = 4096  # tokens of the text for which the saving of a smaller cache is computed


def selection(subject: Subject, _: Results) -> HeadScores:
    """Gradient importance on the half on which heads are selected."""
    if not subject.selection:
        raise ValueError(subject.unlabelled)
    return subject.gradient(subject.selection)


def roles(subject: Subject, _: Results) -> dict[str, pd.DataFrame]:
    """The taxonomy (``table``), and the same verdicts on maps whose rows are shuffled: what holds by chance."""
    if not subject.sentences or subject.tokenizer is None:
        raise ValueError("roles are measured on sentences and need a tokenizer: pass sentences and tokenizer=")
    fitted, test = halves(subject.sentences)
    # The control: the same verdicts on maps whose rows are shuffled, so that what holds there holds by chance.
    frame, control = (
        taxonomy(subject.model, subject.tokenizer, test, fitted, times=300, seed=subject.seed, shuffle=shuffle)
        for shuffle in (False, True)
    )
    return {"table": frame, "control": control}


def importance(subject: Subject, _: Results) -> dict[str, Any]:
    """Importance by gradient, and the rise of the loss without each head, to first order: both come of one pass.

    There is no rise for the change of the output, which has no sign.
    """
    scores, rises = subject.gradient(subject.test, signed=True), None
    if not subject.by_output:
        rises = HeadScores.from_rows({key: -rows for key, rows in scores.rows.items()}, "rise without")
        scores = HeadScores.from_rows({key: rows.abs() for key, rows in scores.rows.items()}, "gradient", minimum=0.0)
    frame = scores.to_frame()
    if rises is not None:
        signed = rises.to_frame()
        frame["rise without"] = signed["rise without"]
        if rises.low is not None:
            frame["rise low"], frame["rise high"] = signed.low, signed.high
    return {"table": frame, "scores": scores, "rises": rises}


def geometry(subject: Subject, _: Results) -> dict[str, Any]:
    """The effective rank of W_OV and the overlap of what heads write, by kind, compared with random heads."""
    rows, left_out, ranks = [], [], {}
    for kind in sites(subject.model).kinds:
        try:
            circuits = ov(sites(subject.model)[kind])
            of_kind, of_random = (effective_rank(some) for some in (circuits, random_like(circuits, subject.seed)))
            overlaps = overlap(circuits)
        except ValueError as error:
            left_out.append(f"{kind}: {error}")
            continue
        between = overlaps.values[~torch.eye(len(overlaps.values), dtype=torch.bool)]  # of different heads
        shared = float(between.mean()) if len(between) else 0.0
        rows.append((kind, float(of_kind.flat().mean()), float(of_random.flat().mean()), shared, overlaps.chance))
        ranks |= of_kind.values
    if not rows:
        raise ValueError("; ".join(left_out))
    columns = ["kind", "effective rank", "of random heads", "write overlap of two heads", "chance"]
    frame = pd.DataFrame(rows, columns=columns)
    return {"table": frame, "ranks": HeadScores(ranks, "effective rank"), "left out": left_out}


def pruning(subject: Subject, results: Results, orders: int) -> dict[str, pd.DataFrame]:
    """The loss against the number of heads kept, least important heads first, and in random orders."""
    loss = subject.loss_of(subject.test)  # now, before any head is off: it may compare with the full model's outputs
    measure = partial(losses, batches=subject.test, loss=loss)
    frame = curves(subject.model, ranked := {"gradient": results["selection"]}, measure)
    random = {f"random {i}": random_order(sites(subject.model), subject.seed + i) for i in range(orders)}
    if random:  # their mean is smooth: half as many points will do, and all heads and none they share
        ends = frame[frame.kept.isin([0, len(results["selection"])])]
        between = curves(subject.model, random, measure, RANDOM_POINTS)
        frame = pd.concat([frame, *(ends.assign(order=name) for name in random), between])
    frame = frame.drop_duplicates(["order", "kept"])  # with few heads, two fractions are one count
    # With half of the heads: what other draws of the examples that heads are ranked on would have given.
    spread = curves(subject.model, ranked, measure, [0.5], draws=RANKING_DRAWS)
    frame = frame.merge(spread[["order", "kept", "draws_low", "draws_high"]], "left", ["order", "kept"])
    # "gradient" comes before "random"
    return {"table": frame.sort_values(["order", "kept"], ascending=[True, False], ignore_index=True)}


def losses(model: nn.Module, batches: Sequence[Mapping], loss: Callable | None) -> Tensor:
    """Return the loss of each example, (n,)."""
    by_batch = [
        labels_only_loss(model, batch) if loss is None else loss(model(**batch), batch)
        for batch in each_batch(model, batches)
    ]
    return torch.cat([each.cpu() for each in by_batch])


def sinks(subject: Subject, _: Results) -> dict[str, Any]:
    """How much weight heads rest on the first token, with a start token before the text and without."""
    if not subject.test:
        raise ValueError(subject.unlabelled)
    frame = attention_sinks(subject.model, subject.test)
    start = getattr(subject.tokenizer, "bos_token_id", None)
    started = start is not None and all(bool((_first(batch) == start).all()) for batch in subject.test)
    if start is not None and not started:
        names = ("input_ids", "attention_mask")
        texts = [{name: batch[name] for name in names if name in batch} for batch in subject.test]
        frame["with start token"] = attention_sinks(subject.model, texts, start=start).score
    return {"table": frame, "started": started}


def _first(batch: Mapping) -> Tensor:
    """Return the first real token of each row, (B,)."""
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    first = torch.zeros(len(ids), dtype=torch.long) if mask is None or mask.dim() != 2 else mask.long().argmax(-1)
    return ids[torch.arange(len(ids)), first.to(ids.device)]


def induction(subject: Subject, _: Results) -> dict[str, Any]:
    """The scores of heads that look back, on random tokens that repeat."""
    length = _length(subject.model)
    options = {"n": N_SEQUENCES, "length": length, "repeats": REPEATS, "seed": subject.seed}
    # six sequences at once, since their maps are kept
    return {"table": induction_scores(subject.model, **options, batch_size=6), "length": length}


def _length(model: nn.Module) -> int:
    """Return how many different random tokens fit into the model, repeated."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    limit = limit if isinstance(limit, int) else LENGTH * REPEATS
    length = min(LENGTH, limit // REPEATS, len(ordinary_tokens(model)))
    if length < 3:
        raise ValueError(
            f"random tokens that repeat need 3 different tokens and 12 positions or more; {type(model).__name__} has "
            f"{len(ordinary_tokens(model))} and {limit}"
        )
    return length


def check(subject: Subject, results: Results, second: tuple[str, Sequence, Sequence[Mapping]] | None) -> dict[str, Any]:
    """What the least important heads are worth on the corpus of the ranking and on others.

    ``second``: the name of another corpus and its sentences or batches. A causal language model also gets random tokens
    that repeat.
    """
    scores = results["selection"]
    heads = scores.order()[: max(1, round(CUT * len(scores)))]
    corpora = {"the corpus of the ranking": subject.test}
    if second is not None:
        name, sentences, batches = second
        if sentences and subject.objective is None:
            raise ValueError("check has sentences and the report has batches: pass batches as check, too")
        batches = subject.batched(sentences) if sentences else batches
        corpora[name] = [on_device(subject.model, batch) for batch in batches]
    corpus_losses = {name: subject.loss_of(batches) for name, batches in corpora.items()}
    if subject.causal and subject.loss is None and (subject.objective is None or subject.objective.name == "lm"):
        repeated = repeated_tokens(subject.model, length=_length(subject.model), seed=subject.seed)
        corpora["repeated random tokens"] = on_device(subject.model, repeated)
    if len(corpora) == 1:
        raise ValueError("there is no second corpus to check the ranking on: pass check=")
    return {"table": cut_cost(subject.model, heads, corpora, corpus_losses), "off": len(heads), "of": len(scores)}


def cache(subject: Subject, results: Results) -> dict[str, Any]:
    """What the key-value cache holds for each layer and head, and what heads that rest on one token could save."""
    model, rows = subject.model, []
    width = next(model.parameters()).element_size()
    for site in sites(model):
        if site.kind != "decoder":
            continue
        if site.latent:
            raise ValueError(
                f"{site.label} keeps one compressed vector for all heads, so that no head has a cache of its own; "
                f"all layers keep {cache_size(model):,} bytes a token"
            )
        one = (site.head_dim + site.value_dim) * width  # bytes of a token's key and value
        shared = round(one * site.kv_heads / site.heads)
        heads = 0 if site.empty else site.heads  # the silent head of a layer without heads is cached all the same
        rows.append((site.layer, heads, site.kv_heads, one, shared, one * site.kv_heads))
    each = ["bytes a token and key-value head", "bytes a token and query head", "bytes a token"]
    frame = pd.DataFrame(rows, columns=["layer", "query heads", "key-value heads", *each])
    found = results.get("sinks", {}).get("table")
    resting = [] if found is None else found[found.score > SINK_FROM][head_columns(found)].values.tolist()
    saved = 0.0
    if resting:
        streaming = cache_size(model, CACHED, streaming=list(map(tuple, resting)))
        saved = 1 - streaming / (int(frame["bytes a token"].sum()) * CACHED)
    return {"table": frame, "resting": len(resting), "saved": saved, "bits": 8 * width}


def maps(subject: Subject, results: Results) -> dict[str, Any]:
    """The attention maps, on one example, of heads that have a role or are important, with the reason."""
    reasons: dict[Head, str] = {}
    if "roles" in results:
        frame = results["roles"]["table"]
        # Roles that are functions: a class of maps, a distance or an entropy names no head worth a look, and under a
        # causal mask "map diagonal" says nothing at all.
        frame = frame[frame.passes & frame.role.isin([role for role in frame.role.unique() if function(role)])]
        best = frame.loc[frame.groupby("family").low.idxmax()] if len(frame) else frame
        reasons = dict(zip(best[head_columns(best)].itertuples(index=False, name=None), best.role, strict=True))
    if "selection" in results:
        for head in results["selection"].top(min(N_MAPS, len(results["selection"]))):
            reasons.setdefault(head, "important")
    if not reasons:
        raise ValueError("no head has a role and importance could not be measured, so there are no maps to show")
    reasons = dict(list(reasons.items())[:N_MAPS])
    batch, queries, keys = example(subject)
    with torch.no_grad(), record(subject.model, want="maps", only=[*{head[:-1] for head in reasons}]) as captured:
        subject.model(**batch)
    found = {head: captured[head[:-1]].maps[0, head[-1]].float().cpu().numpy() for head in reasons}  # (query, key)
    return {"maps": found, "reasons": reasons, "decoder tokens": queries, "input tokens": keys}


def example(subject: Subject) -> tuple[dict, Sequence[str] | None, Sequence[str] | None]:
    """Return one example whose maps are drawn, the tokens of its decoder and those of its input, where it has any."""
    if not subject.sentences:
        batch = next(each_batch(subject.model, subject.batches[0]))
        batch = {name: value[:1] if isinstance(value, Tensor) else value for name, value in batch.items()}
    else:
        fewest, most = EXAMPLE_WORDS
        suitable = [sentence for sentence in subject.sentences if fewest <= len(sentence.words) <= most]
        sentence = suitable[0] if suitable else min(subject.sentences, key=lambda sentence: len(sentence.words))
        if subject.objective is not None:
            batch = next(each_batch(subject.model, subject.objective.batches([sentence])))
        else:
            batch = dict(subject.tokenizer([" ".join(sentence.words)], return_tensors="pt"))
    inputs = on_device(subject.model, {name: value for name, value in batch.items() if name != "labels"})
    if not subject.sentences:
        return inputs, None, None
    names = [_names(subject.tokenizer, batch.get(part)) for part in ("decoder_input_ids", "input_ids")]
    return inputs, *names


def _names(tokenizer: Any, ids: Tensor | None) -> list[str] | None:
    """Return tokens as people read them, or as the tokenizer has them where it cannot be asked for their text."""
    if ids is None:
        return None
    try:
        return token_labels(tokenizer, ids[0])
    except (TypeError, ValueError, AttributeError, KeyError):
        return tokenizer.convert_ids_to_tokens(ids[0].tolist())
