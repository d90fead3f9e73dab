"""What the course says, measured on a real model. ``python -m recipes.measure_real --model smollm2``

Tables, of a causal language model with every size in its "about":

    model       what the model is, and how many heads, parameters and bytes of cache it has
    heads       each head: previous-token, duplicate-token and induction scores, prefix matching, copying, each with the
                first token left out as well; weight on the first token; gradient, signed gradient and leave-one-out
    agreement   Spearman's correlation of |gradient|, signed gradient and leave-one-out, with intervals
    induction   the strongest induction heads off or windowed, on random tokens that repeat, against random heads of
                the same layers
    streaming   all heads see only the first and the most recent tokens, or the most recent alone
    curve       heads off in the order of a ranking, of chance, and of the ranking without the induction heads, on
                English and on repeated tokens
    roles       the taxonomy's roles on English: every head that holds one, and the three best of each role

    three_heads maps of a previous-token head, an induction head and one that rests on the first token, on a sentence
    own_layers  attention layers computed anew by a class written out, with the model's weights
    circuits    W_OV of each head: effective rank, and whether it raises the word that it reads, beside random weights
    relevance   relevance by three rules, and gradients, beside leave-one-out
    restored    single heads given back what they put out while the text repeated
    names       which heads put the right one of two names into the answer: patched at the last token, both ways
    paths       which earlier head tells the three strongest of these what, through query, keys or values
    cut         a fifth of the heads off on sentences, documents, code and repeated tokens, beside as many others

An encoder (``minilm``) has model, roles, its heads by output change (gradient and leave-one-out), parts_of_speech
(what each head's output says of its own word and of the word it attends to), and gates (what trained gates keep, beside
other choices of as many heads). ``--only roles`` measures one table again and leaves the others as they are.

Loss is in nats a token. English is the course's own corpus, as it is written: rankings are made on its validation
split, curves on its test split. One thread. Result: ``real/NAME.json`` among the organism's assets, which
``headtools.shipped_real`` reads. With ``--quick`` everything is small, to see that it runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from torch import Tensor, nn

import headtools as ht
from headtools._report.objective import objective
from headtools.heads.scores import Head, HeadScores
from headtools.organism.fetch import make_copy
from headtools.organism.real_models import REAL, RESULTS, locate
from headtools.roles.attention_sinks import attention_sinks
from headtools.roles.induction import COPYING, INDUCTION, PREFIX, induction_scores
from headtools.roles.plain_text import TextBatches, natural_text, text_batches
from recipes._real_lessons import TABLES
from recipes._real_measures import compared, losses, rank_correlation, repeated_tokens
from recipes._results import read, write

SIZES = {
    "induction sequences": 20,
    "segment": 25,
    "repeated": 8,
    "repeated segment": 40,
    "random sets": 5,
    "sink texts": 40,
    "ranking texts": 32,
    "leave-one-out texts": 16,
    "curve texts": 40,
    "curve random orders": 3,
    "chunks": 6,
    "chunk": 128,
    "role sentences": 80,
    "probe sentences": 80,
    "relevance texts": 12,
    "gate texts": 160,
    "gate steps": 300,
    "restored sequences": 6,
    "restored segment": 20,
    "circuit words": 200,
    "name pairs": 6,
    "path pairs": 6,
    "path templates": 4,
    "cut sentences": 80,
    "cut chunk": 512,
    "cut documents": 200,
    "cut code": 12,
    "cut ranking": 4,
    "cut draws": 3,
}
QUICK = dict.fromkeys(SIZES, 5) | {
    "segment": 6,
    "repeated segment": 6,
    "chunk": 16,
    "random sets": 1,
    "probe sentences": 30,
    "gate texts": 8,
    "curve random orders": 1,
}
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # of the heads that are off
STRONGEST = 5  # induction heads that are switched off
SPARED = 30  # induction heads that no cut of the third ranking takes
SCORES = {
    "previous-token": "previous_token",
    "duplicate-token": "duplicate_token",
    INDUCTION: "induction",
    PREFIX: "prefix_matching",
    COPYING: "copying",
}


def heads_table(
    model: nn.Module, english: TextBatches, start: int | None, sizes: dict[str, int]
) -> tuple[pd.DataFrame, HeadScores]:
    """Return what each head looks at, and the scores for induction."""
    all_scores = induction_scores(model, n=sizes["induction sequences"], length=sizes["segment"], batch_size=10)
    keys = ["kind", "layer", "head"]
    by_head = all_scores.pivot(index=keys, columns="role", values="score")[list(SCORES)].rename(columns=SCORES)
    without_sink = all_scores.pivot(index=keys, columns="role", values="without_sink")[list(SCORES)[:-1]]
    without_sink = without_sink.rename(columns={role: f"{name}_without_sink" for role, name in SCORES.items()})
    sinks = {"sink": attention_sinks(model, english)}
    if start is not None:
        sinks["sink_start"] = attention_sinks(model, english, start=start)
    columns = [by_head, without_sink]
    for name, frame in sinks.items():
        frame = frame.set_index(keys)
        columns.append(frame[["score", "low", "high"]].set_axis([name, f"{name}_low", f"{name}_high"], axis=1))
    table = pd.concat(columns, axis=1).reset_index()
    values = {site.key: torch.tensor(by_head.induction[site.key].to_numpy()) for site in ht.sites(model)}
    chance = all_scores.groupby("role").chance.first().rename(SCORES).round(4).to_dict()
    table.attrs = {"chance": chance | {name: round(float(frame.chance[0]), 4) for name, frame in sinks.items()}}
    return table, HeadScores(values, "induction")


def agreement(slopes: dict[tuple, Tensor], increases: dict[tuple, Tensor]) -> list[dict[str, Any]]:
    """Return how far the measures name the same heads: |gradient|, minus the signed gradient, |leave-one-out|.

    A head's signed slope is what the loss gains with more of it, so its negative is compared with what it costs to lose
    the head. The absolute value of a leave-one-out is that of its mean: how far the loss moves, whichever way.
    """
    slope, rise = (torch.cat(list(rows.values()), 1).cpu().double() for rows in (slopes, increases))
    pairs = {
        ("|gradient|", "leave-one-out"): (slope.abs(), rise),
        ("|gradient|", "|leave-one-out|"): (slope.abs(), rise, True),
        ("minus signed gradient", "leave-one-out"): (-slope, rise),
    }
    rows = []
    for (first, second), measures in pairs.items():
        value, low, high = rank_correlation(*measures)
        rows.append({"a": first, "b": second, "spearman": value, "low": low, "high": high})
    return rows


def without_induction(
    model: nn.Module, strongest: Sequence[Head], repeated: list[dict], sets: int
) -> list[dict[str, Any]]:
    """Return the loss on both halves of repeated tokens without some heads, and with them in a window."""
    by_layer: dict[tuple, int] = {}
    for head in strongest:
        by_layer[head[:-1]] = by_layer.get(head[:-1], 0) + 1
    sites, generator = ht.sites(model), torch.Generator().manual_seed(0)
    label = f"{len(strongest)} induction heads"
    contexts = {
        "all heads on": nullcontext(),
        f"{label} off": ht.ablate(model, strongest),
        f"{label} windowed": ht.window(model, strongest, first=4, recent=8),
    }
    for index in range(sets):
        random_set = []
        for key, count in by_layer.items():
            others = [h for h in range(sites[key].heads) if (*key, h) not in strongest]
            random_set += [(*key, others[i]) for i in torch.randperm(len(others), generator=generator)[:count].tolist()]
        contexts[f"other heads of these layers off, set {index}"] = ht.ablate(model, random_set)
    rows, intact = [], None
    for name, context in contexts.items():
        with context:
            changed = losses(model, repeated)
        intact = intact or changed
        rows += [compared(name, changed[half], intact[half], half=half) for half in ("first", "second")]
    return rows


def streaming(model: nn.Module, chunks: TextBatches) -> list[dict[str, Any]]:
    """Return the loss on long chunks when all heads see only so many tokens, with and without the first four."""
    every = [(*site.key, head) for site in ht.sites(model) for head in range(site.heads)]
    rows, before = [], None
    for name, first, recent in (("all tokens", 0, 0), ("first 4 and recent 28", 4, 28), ("recent 32", 0, 32)):
        context = nullcontext() if not recent else ht.window(model, every, first=first, recent=recent)
        with context:
            now = losses(model, chunks)["second"]
        before = now if before is None else before
        rows.append(compared(name, now, before, first=first, recent=recent))
    return rows


def curve(
    model: nn.Module, orders: dict[str, Sequence[Head]], texts: dict[str, Sequence[dict]], total: int
) -> list[dict[str, Any]]:
    """Return the loss on each kind of text with growing shares of the heads off: a row for each order and share."""
    rows, before = [], {name: losses(model, batches) for name, batches in texts.items()}
    measured: dict[tuple, Tensor] = {}
    for order, heads in orders.items():
        for share in SHARES:
            off = list(heads[: round(share * total)])
            if len(off) < round(share * total):
                continue  # more than may be cut
            for text, batches in texts.items():
                part = "second" if text == "repeated" else "whole"
                key = (text, frozenset(off))
                if key not in measured:
                    with ht.ablate(model, off):
                        measured[key] = losses(model, batches)[part]
                rows.append(compared(order, measured[key], before[text][part], text=text, off=len(off), share=share))
            print(f"{order}: {len(off)} heads off")
    return rows


def roles_table(model: nn.Module, tokenizer: Any, n: int) -> tuple[pd.DataFrame, str]:
    """Return the heads that hold a role of the taxonomy, and the three best heads of each role; and what that is."""
    test, validation = (ht.corpus("english", split, limit=n) for split in ("test", "validation"))
    frame = ht.taxonomy(model, tokenizer, test, validation)
    best = frame.groupby("role").score.rank(ascending=False, method="first") <= 3
    columns = ["kind", "layer", "head", "family", "role", "score", "low", "high", "baseline", "chance", "n", "passes"]
    about = (
        f"taxonomy of {len(test)} English test sentences, words joined by spaces; best offsets from {len(validation)} "
        "of the validation split. Only heads that hold a role, and the three best of each; special tokens are left "
        "out, the first token is not"
    )
    return frame[frame.passes | best][columns], about


def encoder_heads(model: nn.Module, tokenizer: Any, n: int) -> tuple[pd.DataFrame, str]:
    """Return what each head of an encoder is worth: how far its output moves, by gradient and with the head off."""
    sentences = ht.corpus("english", "validation", limit=n)
    weighed_by = objective(model, tokenizer, sentences, "output")
    batches = weighed_by.batches(sentences)
    table = weighed_by.gradient(batches).to_frame().rename(columns=lambda c: "gradient" if "change" in c else c)
    increases = weighed_by.ablation(batches, progress=False)
    table["leave_one_out"] = increases.flat().tolist()
    table = table.rename(columns={"low": "gradient_low", "high": "gradient_high"})
    return table, f"change of the output, as a share of its norm, on {len(sentences)} English validation sentences"


def measure(name: str, sizes: dict[str, int], only: str | None = None, before: Mapping | None = None) -> dict[str, Any]:
    """Measure all tables of a model, or one of them, beside those measured before."""
    make_copy(name)  # what ships is measured on the copy, which everybody can have
    folder, which = locate(name)
    model, tokenizer = ht.load(name)
    began, sites = time.process_time(), ht.sites(model)
    tables: dict[str, Any] = dict((before or {}).get("tables", {}))

    def keep(table: str, rows: Any, about: str) -> None:
        rows = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else rows
        tables[table] = {"about": about, "rows": [_rounded(row) for row in rows]}
        print(f"{table}: {len(rows)} rows, {time.process_time() - began:.0f} s of CPU time so far")

    for table in [only] if only in TABLES[name] else []:
        keep(table, *TABLES[name][table](model, tokenizer, sizes))
        return {**before, "tables": tables}
    if only == "roles":
        keep("roles", *roles_table(model, tokenizer, sizes["role sentences"]))
        return {**before, "tables": tables}
    causal = set(sites.kinds) == {"decoder"}
    first = sites.all[0]
    keep(
        "model",
        [
            {
                "model": REAL[name].hub,
                "layers": len(sites),
                "heads": sites.n_heads,
                "heads_a_layer": first.heads,
                "key_value_heads": first.kv_heads,
                "head_dim": first.head_dim,
                "parameters": sum(weight.numel() for weight in model.parameters()),
                "cache_bytes_a_token": ht.cache_size(model, number_bytes=2) if causal else 0,
            }
        ],
        "the model; its key-value cache in half precision",
    )
    if causal:
        _measure_causal(model, tokenizer, sizes, keep)
    else:
        keep("heads", *encoder_heads(model, tokenizer, sizes["ranking texts"]))
    keep("roles", *roles_table(model, tokenizer, sizes["role sentences"]))
    for table, measured in TABLES[name].items():
        keep(table, *measured(model, tokenizer, sizes))

    source = folder / "source.json"
    return {
        "about": {
            "model": which,
            "source": json.loads(source.read_text("utf-8")) if source.exists() else REAL[name].hub,
            "command": f"make results MODEL={name}",
            "recipe": "measure_real",
            "dtype": str(model.dtype),
            "threads": 1,
            "torch": torch.__version__,
            "cpu_seconds": round(time.process_time() - began),
            "sizes": sizes,
        },
        "tables": tables,
    }


def _measure_causal(model: nn.Module, tokenizer: Any, sizes: dict[str, int], keep: Callable[..., None]) -> None:
    """Measure the tables of a causal language model."""
    sites = ht.sites(model)
    texts = {"sink": natural_text("english", "test", sizes["sink texts"])}
    sink_batches = text_batches(tokenizer, texts["sink"])
    start = tokenizer.bos_token_id
    table, by_induction = heads_table(model, sink_batches, start, sizes)

    validation = natural_text("english", "validation")
    ranking = ht.gradient(model, text_batches(tokenizer, validation[: sizes["ranking texts"]]))
    loo = text_batches(tokenizer, validation[: sizes["leave-one-out texts"]])
    slopes = ht.gradient(model, loo, signed=True).rows
    increases = ht.ablation(model, loo, progress=False).rows
    keys = [(row.layer, row.head) for row in table.itertuples()]
    for column, values in (
        ("gradient", {key: value.abs().mean(0) for key, value in slopes.items()}),
        ("signed_gradient", {key: value.mean(0) for key, value in slopes.items()}),
        ("leave_one_out", {key: value.mean(0) for key, value in increases.items()}),
        ("ranking_gradient", ranking.values),
    ):
        table[column] = [values["decoder", layer][head].item() for layer, head in keys]
    keep(
        "heads",
        table,
        f"every head. Looking back: {sizes['induction sequences']} sequences of random tokens, "
        f"segments of {sizes['segment']}, twice (prefix matching: four times); *_without_sink: the first token left "
        f"out. sink: mean weight on the first token of {sink_batches.rows} English sentences ({sink_batches.tokens} "
        f"tokens); sink_start: with {tokenizer.bos_token!r} before them. gradient, signed_gradient, leave_one_out: "
        f"nats, {loo.rows} sentences ({loo.tokens} tokens); ranking_gradient: {sizes['ranking texts']} sentences. "
        f"Chance: {table.attrs['chance']}",
    )
    keep(
        "agreement",
        agreement(slopes, increases),
        f"Spearman over {sites.n_heads} heads, 95 % intervals over {loo.rows} English sentences",
    )

    repeated = repeated_tokens(model, sizes["repeated"], sizes["repeated segment"])
    about_repeated = f"{sizes['repeated']} sequences of {sizes['repeated segment']} random tokens, twice"
    strongest = by_induction.top(STRONGEST)
    keep(
        "induction",
        without_induction(model, strongest, repeated, sizes["random sets"]),
        f"{about_repeated}. Off or windowed (first 4, recent 8): {strongest}",
    )

    chunks = text_batches(tokenizer, natural_text("english", "all"), length=sizes["chunk"], separator=" ", batch_size=2)
    chunks = TextBatches(chunks[: -(-sizes["chunks"] // 2)], 0)
    keep(
        "streaming",
        streaming(model, chunks),
        f"{chunks.rows} chunks of {sizes['chunk']} tokens of English, packed, no start token; loss of the second half",
    )

    english = text_batches(tokenizer, natural_text("english", "test", sizes["curve texts"]))
    order, spared = ranking.order(), set(by_induction.top(min(SPARED, sites.n_heads // 2)))
    orders = {"gradient": order, "gradient, induction heads spared": [head for head in order if head not in spared]}
    orders |= {f"random {seed}": ht.random_order(sites, seed) for seed in range(sizes["curve random orders"])}
    keep(
        "curve",
        curve(model, orders, {"English": english, "repeated": repeated}, sites.n_heads),
        f"English: {english.rows} sentences of the test split ({english.tokens} tokens), ranked on "
        f"{sizes['ranking texts']} of the validation split; repeated: the second copy of {about_repeated}; "
        f"{len(spared)} heads with the highest induction scores are spared; rise: against all heads on, with a 95 % "
        "interval over sentences or sequences",
    )


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()}


def main(
    model: Annotated[str, typer.Option(help=" or ".join(TABLES))] = "smollm2",
    quick: Annotated[bool, typer.Option("--quick", help="everything small, to see that it runs")] = False,
    out: Annotated[Path | None, typer.Option(help="the file to write")] = None,
    only: Annotated[str | None, typer.Option(help="this table alone, into the file that is there")] = None,
) -> None:
    """Measure, keep, and print the main numbers."""
    torch.set_num_threads(1)
    if model not in TABLES:
        raise typer.BadParameter(f"got --model {model}; expected {' or '.join(TABLES)}")
    file = out or RESULTS / f"{model}.json"
    if only not in (allowed := [None, "roles", *TABLES[model]]):
        raise typer.BadParameter(f"got --only {only}; expected one of {', '.join(allowed[1:])}")
    results = measure(model, QUICK if quick else SIZES, only, read(file) if only else None)
    file.parent.mkdir(parents=True, exist_ok=True)
    write(results, file, "name")
    for table in {"agreement", "induction", "streaming"} & results["tables"].keys():
        print(pd.DataFrame(results["tables"][table]["rows"]).to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
