"""What a report measures: each function takes the subject and what was measured before it, and returns numbers.

Nothing here knows of a page: ``sections.py`` and ``heads.py`` turn the results into one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from headtools._report.subject import Subject, halves, size_of
from headtools.course.token_labels import token_labels
from headtools.geometry.circuits import ov, random_like
from headtools.geometry.subspaces import effective_rank, overlap
from headtools.heads._devices import on_device
from headtools.heads.ablate import check_replacement
from headtools.heads.groups import cache_size
from headtools.heads.intervals import bounds
from headtools.heads.scores import Head, HeadScores, head_columns
from headtools.heads.sites import sites
from headtools.importance._inputs import each_batch
from headtools.importance.ablation import loss_rises
from headtools.importance.loss import labels_need_shift, labels_only_loss
from headtools.importance.statistics import Block, entropy, largest, offset, statistics
from headtools.roles._segments import ordinary_tokens
from headtools.roles.attention_sinks import attention_sinks
from headtools.roles.induction import induction_scores
from headtools.roles.taxonomy import taxonomy
from headtools.sparse.cut_cost import cut_cost, repeated_tokens
from headtools.sparse.pruning_curve import curves, random_order

Results = Mapping[str, Any]  # by the name of the measure

ALL_OFF = 160  # up to so many heads, each is switched off on its own; of more, those with the highest gradient
N_OFF, FEW = 12, 16  # so many of them, and on so many examples of each half, give or take a batch
N_REPLACED = 4  # heads whose output is replaced in other ways than by zero
N_WORDS = 6  # words at either end of a direction
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
    name, scores = ranking(results)
    frame = curves(subject.model, ranked := {name: scores}, measure)
    random = {f"random {i}": random_order(sites(subject.model), subject.seed + i) for i in range(orders)}
    if random:  # their mean is smooth: half as many points will do, and all heads and none they share
        ends = frame[frame.kept.isin([0, len(scores)])]
        between = curves(subject.model, random, measure, RANDOM_POINTS)
        frame = pd.concat([frame, *(ends.assign(order=name) for name in random), between])
    frame = frame.drop_duplicates(["order", "kept"])  # with few heads, two fractions are one count
    # With half of the heads: what other draws of the examples that heads are ranked on would have given.
    spread = curves(subject.model, ranked, measure, [0.5], draws=RANKING_DRAWS)
    frame = frame.merge(spread[["order", "kept", "draws_low", "draws_high"]], "left", ["order", "kept"])
    if subject.loss is None:  # neither a cross-entropy nor a change of the output is below 0
        frame["low"] = frame.low.clip(lower=0.0)
    # "cost" and "gradient" come before "random"
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
    _, scores = ranking(results)
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


def cost(subject: Subject, results: Results) -> dict[str, Any]:
    """How much the loss rises without each head, with the head that costs most chosen on the other half.

    Of a model with many heads only those that the gradient ranks first are switched off.
    """
    heads, selection, test = [*results["selection"]], subject.selection, subject.test
    if len(heads) > ALL_OFF:
        heads = results["selection"].top(N_OFF)
        selection, test = _some(selection), _some(test)
    chosen = _without(subject, selection, heads)
    measured = _without(subject, test, heads)
    # Of the dearest heads of one half, the other half tells what they cost. Dearest is what costs much for sure: a mean
    # may be the work of one sentence.
    sure = chosen.flat() if chosen.low is None else chosen.low["heads", 0]
    order = sure.sort(descending=True, stable=True).indices.tolist()
    dearest = [heads[i] for i in order[:N_REPLACED]]
    others = {}
    replacements = ["mean", "resample", "uniform"]
    try:
        check_replacement("uniform", {sites(subject.model).one(head[:-1]) for head in dearest})
    except ValueError:  # attention of a kind that cannot be made uniform
        replacements.remove("uniform")
    for replacement in replacements:
        others[replacement] = _frame(dearest, _without(subject, test, dearest, replacement))
    frame, by_site = _frame(heads, measured), {}
    if len(heads) == len(results["selection"]):
        widths = {key: len(values) for key, values in results["selection"].values.items()}
        rows = chosen.rows["heads", 0].split([*widths.values()], 1)
        by_site = {"ranking": HeadScores.from_rows(dict(zip(widths, rows, strict=True)), "cost")}
    on = sum(map(size_of, test))
    return {
        "table": frame,
        "first": dearest[0],
        "replaced": others,
        "of": len(results["selection"]),
        "on": on,
        **by_site,
    }


def _some(batches: Sequence[Mapping]) -> Sequence[Mapping]:
    """Return batches with some FEW examples, spread over all, which are sorted by length."""
    n = min(len(batches), max(1, round(FEW / size_of(batches[0]))))
    return [batches[round((i + 0.5) * len(batches) / n - 0.5)] for i in range(n)]


def ranking(results: Results) -> tuple[str, HeadScores]:
    """The order in which heads go, of one half: by their cost where each was switched off, else by the gradient."""
    of_cost = results.get("cost", {}).get("ranking")
    return ("gradient", results["selection"]) if of_cost is None else ("cost", of_cost)


def _without(subject: Subject, batches: Sequence[Mapping], heads: Sequence[Head], replacement: str = "zero") -> Any:
    """Return the rise of the loss without each of the heads, alone: scores of one "site" whose heads are these."""
    loss, off = subject.loss_of(batches), [{sites(subject.model).one(head[:-1]): [head[-1]]} for head in heads]
    options = {"seed": subject.seed, "progress": False}
    rises = loss_rises(subject.model, batches, off, loss, replacement, subject.selection, **options)
    return HeadScores.from_rows({("heads", 0): rises}, "cost")


def _frame(heads: Sequence[Head], scores: HeadScores) -> pd.DataFrame:
    """Return the scores of some heads as a table: ``cost`` and its interval, where it has one."""
    columns = ["stack", "kind", "layer", "head"][-len(heads[0]) :]
    frame = pd.DataFrame(heads, columns=columns).assign(cost=scores.flat().tolist())
    for name, ends in (("low", scores.low), ("high", scores.high)):
        frame[name] = math.nan if ends is None else ends["heads", 0].tolist()
    return frame


def chance(subject: Subject, _: Results) -> dict[str, float]:
    """The loss of the model, and that of guessing by how often each label occurs in the other half.

    ``low`` and ``high`` are the interval of how much better the model is, over examples.
    """
    if subject.loss is not None or subject.by_output or not subject.test:
        raise ValueError("there are no labels to guess")
    seen, given = (_labels(subject, half) for half in (subject.selection, subject.test))
    of_tokens = subject.test[0]["labels"].dim() == 2
    known = int(getattr(subject.model.config, "vocab_size" if of_tokens else "num_labels", 0))
    # Every label is counted once more than it occurs, so that none has probability zero.
    counts = torch.bincount(torch.cat(seen), minlength=max(known, int(torch.cat(given).max()) + 1)).double() + 1
    surprise = -(counts / counts.sum()).log()
    guessing = torch.stack([surprise[labels].mean() for labels in given])
    of_model = losses(subject.model, subject.test, None).double()
    low, high = bounds((guessing - of_model)[:, None])
    return {"model": of_model.mean().item(), "guessing": guessing.mean().item(), "low": low.item(), "high": high.item()}


def _labels(subject: Subject, batches: Sequence[Mapping]) -> list[Tensor]:
    """Return the labels that the model has to predict, for each example."""
    found = []
    for batch in batches:
        labels = batch.get("labels")
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dim() not in (1, 2):
            raise ValueError("the labels are no classes")
        if labels.dim() == 2 and labels_need_shift(subject.model, batch):
            labels = labels[:, 1:]  # nothing predicts the first
        found += [row[row >= 0].cpu() for row in labels.reshape(len(labels), -1)]
    return found


def attention(subject: Subject, _: Results) -> dict[str, Any]:
    """Averages over rows of attention: the largest weight, the entropy and, within a text, distances and near keys.

    ``left out`` is why there are none within a text, if so.
    """
    if not subject.test:
        raise ValueError(subject.unlabelled)
    found, reason = statistics(subject.model, subject.test, {"largest weight": largest, "entropy (nats)": entropy}), ""
    own = [site.key for site in sites(subject.model) if site.kind != "cross"]
    within = {"own position": offset(0), "previous token": offset(-1), "distance": distance, "square": squared_distance}
    try:
        found |= statistics(subject.model, subject.test, within, own)
    except ValueError as error:  # keys that are no positions of the text, as in windows and under prefixes
        reason = str(error)
    else:
        mean, square = found["distance"], found.pop("square")
        variance = {key: square.values[key] - of_site**2 for key, of_site in mean.values.items()}
        found["variance of distance"] = HeadScores(variance, "variance of distance")
    return {"scores": found, "left out": reason}


def distance(block: Block) -> Tensor:
    """Return how far each query looks, |query - key| by weight, in tokens."""
    return (block.rows * _apart(block)).sum(-1)


def squared_distance(block: Block) -> Tensor:
    """Return the square of how far each query looks."""
    return (block.rows * _apart(block) ** 2).sum(-1)


def _apart(block: Block) -> Tensor:
    """Return |query - key|, (query, key), where keys are positions of the same text."""
    n_queries, n_keys = block.rows.shape[2:]
    if n_keys != block.real.shape[1]:
        raise ValueError(f"{block.site.label} has {n_keys} keys for {block.real.shape[1]} tokens")
    query = torch.arange(block.first, block.first + n_queries, device=block.rows.device)
    return (query[:, None] - torch.arange(n_keys, device=block.rows.device)).abs().float()


def words(subject: Subject, _: Results) -> dict[str, Any]:
    """The words nearest to what each head reads and writes along the first direction of its W_OV.

    Cosines of centred embeddings; ``chance`` is the mean of the largest for random directions. A decoder writes towards
    its unembedding, an encoder towards the words that it reads.
    """
    model, tokenizer = subject.model, subject.tokenizer
    if tokenizer is None:
        raise ValueError("words need a tokenizer: pass tokenizer=")
    reads = _unit(model.get_input_embeddings().weight)
    head = model.get_output_embeddings()
    tied = head is None or head.weight is model.get_input_embeddings().weight
    writes = reads if tied else _unit(head.weight)
    draw = torch.Generator().manual_seed(subject.seed)
    random = normalize(torch.randn(reads.shape[1], 64, generator=draw), dim=0)
    ahead, names = float((reads @ random.to(reads.device)).amax(0).mean()), {}
    found: dict[Head, dict[str, Any]] = {}
    for key, circuit in ov(model).values.items():
        u, s, v = circuit.svd()
        share = (s[:, 0] ** 2 / (s**2).sum(1)).tolist()
        towards = reads if key[-2] == "encoder" else writes
        if u.shape[1] != reads.shape[1] or v.shape[1] != towards.shape[1]:
            raise ValueError(
                f"heads of width {u.shape[1]} and embeddings of width {reads.shape[1]}: no words to compare"
            )
        for name, table, directions in (("reads", reads, u[:, :, 0]), ("writes", towards, v[:, :, 0])):
            cosines = normalize(directions.float(), dim=1) @ table.T
            for sign in (1, -1):
                best = (sign * cosines).topk(min(N_WORDS, len(table)), 1)
                for h, (values, ids) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
                    of = found.setdefault((*key, h), {"share": share[h]})
                    for i in ids:
                        names.setdefault(i, tokens_of(tokenizer, [i])[0])
                    of[f"{name} {'+' if sign > 0 else '-'}"] = [names[i] for i in ids], values[0]
    return {"words": found, "chance": ahead}


def _unit(weight: Tensor) -> Tensor:
    """Return embeddings of length 1, with their mean taken off."""
    weight = weight.detach().float()
    return normalize(weight - weight.mean(0), dim=1)


def tokens_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return tokens as people read them, or as the tokenizer has them where it cannot be asked for their text."""
    try:
        return token_labels(tokenizer, ids)
    except (TypeError, ValueError, AttributeError, KeyError):
        return list(map(str, tokenizer.convert_ids_to_tokens(list(ids))))
