"""Tables of a real model that go with single lessons: what a head's output says of words, where an answer came from,
what gates that are trained keep, and which heads bring a lost answer back.

Each is measured apart from the rest, ``python -m recipes.measure_real --model smollm2 --only relevance``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools._report.objective import output_projection
from headtools.heads.scores import Head
from headtools.roles._segments import ordinary_tokens, segments
from headtools.roles.plain_text import natural_text, text_batches
from headtools.roles.probing import probe
from headtools.roles.sentence import Sentence
from headtools.roles.word_alignment import align, to_words
from recipes._real_cut import cut
from recipes._real_measures import losses, rank_correlation, repeated_tokens
from recipes._real_names import names
from recipes._real_paths import paths
from recipes._real_weights import circuits, own_layers, three_heads
from recipes._results import interval

Table = tuple[list[dict[str, Any]], str]  # rows, and what they are
PENALTIES = (0.001, 0.003, 0.01)  # a gate that is open
COLUMNS = ("accuracy", "low", "high", "majority", "control")


def parts_of_speech(model: nn.Module, tokenizer: Any, sizes: Mapping[str, int]) -> Table:
    """Probe each head's output for the part of speech of its own word, and of the word it attends to most."""
    n = sizes["probe sentences"]
    train = [*ht.corpus("english", "train"), *ht.corpus("english", "validation")][: 3 * n]
    test = ht.corpus("english", "test", limit=n)
    attended = _attended(model, tokenizer, [*train, *test])

    def at_most_attended(layer: int, head: int) -> Callable[[Sentence], list[str]]:
        return lambda sentence: [sentence.upos[j] for j in attended[sentence.words][layer, head].tolist()]

    def probed(task: str | Callable, **where: Any) -> list[dict[str, Any]]:
        frame = probe(model, tokenizer, train, test, [task], solver="discriminant", strengths=[0.03], **where)
        return frame.to_dict("records")

    rows = []
    for site in ht.sites(model):
        for head in range(site.heads):
            these_heads = {"heads": [(*site.key, head)]}
            # A rare label can be missing from all words that a head attends to in a fold; then there is no row.
            (own,), (other,) = probed("upos", **these_heads), probed(at_most_attended(site.layer, head), **these_heads)
            rows.append(
                {"component": "head", "layer": site.layer, "head": head}
                | {f"own_{name}": own[name] for name in COLUMNS}
                | {f"attended_{name}": other[name] for name in COLUMNS}
            )
    for row in probed("upos", component=["residual"]):
        rows.append({"component": "residual", "layer": row["layer"]} | {f"own_{name}": row[name] for name in COLUMNS})
    words = sum(len(sentence.words) for sentence in test)
    return rows, (
        f"linear discriminants fitted on {len(train)} English sentences, tested on the {words} words of {len(test)} "
        "others. own: part of speech of the word itself; attended: of the word with the most attention, special "
        "tokens left out. majority: the most frequent label; control: random labels for each word type"
    )


@torch.no_grad()
def _attended(model: nn.Module, tokenizer: Any, sentences: Sequence[Sentence]) -> dict[tuple, Tensor]:
    """Return for each sentence the word each head attends to most, (layer, head, word)."""
    attended = {}
    for sentence in sentences:
        batch, words = align(tokenizer, [sentence])
        with ht.record(model, want="maps") as r:
            model(**batch)
        maps = [to_words(r[site.key].maps, words)[0, ..., :-1].argmax(-1) for site in ht.sites(model)]
        attended[sentence.words] = torch.stack(maps)[..., : len(sentence.words)]
    return attended


def relevance(model: nn.Module, tokenizer: Any, sizes: Mapping[str, int]) -> Table:
    """Compare relevance by three rules, and gradients, with what it costs to switch each head off."""
    texts = natural_text("english", "validation")[: sizes["relevance texts"]]
    batches = text_batches(tokenizer, texts, batch_size=1)
    increases = _flat(ht.ablation(model, batches, progress=False).rows)
    slopes = _flat(ht.gradient(model, batches).rows)
    measures, conserved = {"|gradient|": slopes}, {}
    for rules in ("attnlrp", "cp", "gradient"):
        scores = [ht.relevance(model, batch, score=_right_tokens, rules=rules) for batch in batches]
        measures[rules] = torch.stack([score.flat() for score in scores]).cpu()
        conserved[rules] = [score.notes["conserved"] for score in scores]
    rows: list[dict[str, Any]] = []
    for name, values in measures.items():
        signed, low, high = rank_correlation(values, increases)
        size, size_low, size_high = rank_correlation(values, increases, True)
        row = {
            "measure": name,
            "spearman": signed,
            "low": low,
            "high": high,
            "spearman_size": size,
            "size_low": size_low,
            "size_high": size_high,
        }
        if name in conserved:
            row["conserved"] = sum(conserved[name]) / len(conserved[name])
        rows.append(row)
    each = {name: values.mean(0) for name, values in measures.items()} | {"leave_one_out": increases.mean(0)}
    heads = [(site.layer, head) for site in ht.sites(model) for head in range(site.heads)]
    rows += [
        {"measure": "head", "layer": layer, "head": head, **{name: values[i].item() for name, values in each.items()}}
        for i, (layer, head) in enumerate(heads)
    ]
    return rows, (
        f"{len(texts)} English sentences ({batches.tokens} tokens). What is explained: the logit of each right next "
        "token. First a row for each measure: Spearman over all heads with leave-one-out, and with its absolute value, "
        "95 % intervals over sentences; conserved: share of the logit that arrived at the input. Then a row a head"
    )


def _flat(values: Mapping[tuple, Tensor]) -> Tensor:
    """Put values for each text and head (n, heads of a layer) side by side: (n, all heads)."""
    return torch.cat(list(values.values()), 1).cpu()


def _right_tokens(outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the logit of each right next token (B, steps)."""
    return outputs.logits[:, :-1].gather(-1, batch["input_ids"][:, 1:, None])[..., 0]


def trained_gates(model: nn.Module, tokenizer: Any, sizes: Mapping[str, int]) -> Table:
    """Train gates to keep the vectors of sentences, the weights frozen, and try other choices of as many heads."""

    def batches(split: str) -> list[dict[str, Tensor]]:
        texts = natural_text("english", split, sizes["gate texts"])
        return [{**tokenizer(texts[i : i + 16], return_tensors="pt", padding=True)} for i in range(0, len(texts), 16)]

    def vectors(outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:  # the mean over a sentence's tokens, as in use
        real = batch["attention_mask"][..., None].to(outputs.last_hidden_state)
        return (outputs.last_hidden_state * real).sum(1) / real.sum(1)

    before: dict[tuple, Tensor] = {}  # a sentence's tokens: its vector with all heads on

    def cosine_loss(outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:  # (B,)
        rows = zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True)
        goal = torch.stack([before[tuple(ids[real].tolist())] for ids, real in rows])
        return 1 - nn.functional.cosine_similarity(vectors(outputs, batch), goal, dim=-1)

    @torch.no_grad()
    def measured(test: Sequence[Mapping[str, Tensor]]) -> Tensor:
        return torch.cat([cosine_loss(model(**batch), batch) for batch in test])

    training, ranking, test = batches("train"), batches("validation"), batches("test")
    with torch.no_grad():
        for batch in [*training, *ranking, *test]:
            for ids, real, vector in zip(
                batch["input_ids"], batch["attention_mask"].bool(), vectors(model(**batch), batch), strict=True
            ):
                before[tuple(ids[real].tolist())] = vector
    fits = ht.fit_gates(
        model,
        training,
        PENALTIES,
        steps=sizes["gate steps"],
        weights=None,
        loss=cosine_loss,
        per="batch",
        gate_rate=0.05,
        decay=0.3,
        progress=False,
    )
    by_gradient = ht.gradient(model, ranking, output_projection(model)).order()
    by_cost = ht.ablation(model, ranking, cosine_loss, progress=False).order()
    rows = []
    for penalty, fit in zip(PENALTIES, fits, strict=True):
        closed = fit.closed_heads
        choices = {
            "trained gates": closed,
            "gradient": by_gradient[: len(closed)],
            "leave-one-out": by_cost[: len(closed)],
        }
        for seed in range(sizes["curve random orders"]):
            choices[f"random {seed}"] = ht.random_order(ht.sites(model), seed)[: len(closed)]
        for choice, off in choices.items():
            with ht.ablate(model, off):
                loss, low, high = interval(measured(test))
            row = {"name": choice, "penalty": penalty, "off": len(off), "loss": loss, "low": low, "high": high}
            row["off_heads"] = [f"{layer}.{head}" for _, layer, head in off]
            rows.append(row)
    return rows, (
        f"gates trained for {sizes['gate steps']} steps of 16 English sentences, all weights frozen, rounded at the "
        "end; beside them as many heads off in other rankings, made on the validation split. loss: 1 minus the cosine "
        f"of the vector of a sentence and that with all heads on, mean over {len(measured(test))} test sentences, with "
        "a 95 % interval; the vector is the mean of the last layer's outputs"
    )


@torch.no_grad()
def restored(model: nn.Module, tokenizer: Any, sizes: Mapping[str, int]) -> Table:
    """Give single heads back what they put out when the text still repeated, and see how far the loss falls."""
    n, length = sizes["restored sequences"], sizes["restored segment"]
    clean = repeated_tokens(model, n, length)[0]
    # The same second copy, after other tokens: nothing in the text predicts it any more.
    other = segments(n, length, 2, ordinary_tokens(model), seed=2)[:, :length]
    corrupted = clean | {"input_ids": torch.cat([other, clean["input_ids"][:, length:]], 1)}
    corrupted["labels"] = corrupted["input_ids"]
    second = range(length, 2 * length)
    with ht.record(model, want="z") as there:
        model(input_ids=clean["input_ids"])
    high, low = (losses(model, [batch])["second"] for batch in (corrupted, clean))

    def gain(name: str, heads: Sequence[Head], **more: Any) -> dict[str, Any]:
        with ht.patch(model, heads, there, positions=second):
            now = losses(model, [corrupted])["second"]
        share, ends = (
            (high - now).mean() / (high - low).mean(),
            ht.bootstrap(torch.stack([high - now, high - low], 1), statistic=_ratio),
        )
        return {"name": name, **more, "share": share.item(), "low": float(ends[0]), "high": float(ends[1])}

    sites = ht.sites(model)
    rows = [
        gain("head", [(*site.key, head)], layer=site.layer, head=head) for site in sites for head in range(site.heads)
    ]
    ranked = sorted(rows, key=lambda row: -row["share"])
    for count in (5, 20):
        best = [("decoder", row["layer"], row["head"]) for row in ranked[:count]]
        rows.append(gain(f"the {count} best", best))
        rows.append(gain(f"{count} at random", ht.random_order(sites, 0)[:count]))
    loss_clean, loss_corrupted = interval(low)[0], interval(high)[0]
    return rows, (
        f"{n} sequences of {length} random tokens, twice: {loss_clean:.2f} nats a token in the second copy. With "
        f"another first part, {loss_corrupted:.2f}. share: how much of the difference returns when a head's output in "
        "the second copy is taken from the text that repeats; 95 % intervals over sequences; the best were chosen on "
        "these sequences"
    )


def _ratio(means: Tensor) -> Tensor:
    return means[..., :1] / means[..., 1:]


TABLES: dict[str, dict[str, Callable[..., Table]]] = {
    "smollm2": {
        "three_heads": three_heads,
        "own_layers": own_layers,
        "circuits": circuits,
        "relevance": relevance,
        "restored": restored,
        "names": names,
        "paths": paths,
        "cut": cut,
    },
    "minilm": {"parts_of_speech": parts_of_speech, "gates": trained_gates},
}
