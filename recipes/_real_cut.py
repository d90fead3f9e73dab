"""What a cut of a fifth of the heads costs on four kinds of text, beside cuts that take as many other heads.

The heads are those with the lowest gradient on short sentences. Beside them are cut: those with the lowest gradient on
documents; the same cut with the induction heads spared; with as many other heads of the cut spared instead; as many
random heads of the same layers; as many random heads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads._tokens import model_inputs
from headtools.heads.scores import Head
from headtools.roles.induction import INDUCTION, induction_scores
from headtools.roles.plain_text import natural_text, text_batches
from recipes._real_measures import compared, repeated_tokens

SHARE, INDUCTION_SHARE = 1 / 5, 1 / 9  # of the heads that are cut, and that count as induction heads

Texts = dict[str, list[dict[str, Tensor]]]  # {kind of text: batches}
Losses = dict[str, Tensor]  # {kind of text, or part of it: one loss a row}


def cut(
    model: nn.Module, tokenizer: Any, sizes: Mapping[str, int], start: bool = False
) -> tuple[list[dict[str, Any]], str]:
    """Return the loss with each of the cuts on each kind of text: a row for each cut, draw and text.

    ``start``: every text begins with the tokenizer's start token, without which some models are not themselves.
    """
    texts, cuts = texts_of(model, tokenizer, sizes, start), cuts_of(model, tokenizer, sizes, start)
    with torch.no_grad():
        before = losses_of(model, texts)
        found = [(name, draw, heads, measured(model, texts, heads)) for name, draw, heads in cuts]
    return table_of(found, before, sizes, texts, start)


def table_of(
    found: Sequence[tuple[str, int, Sequence[Head], Losses]],
    before: Losses,
    sizes: Mapping[str, int],
    texts: Texts,
    start: bool,
) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of all cuts, and what they are."""
    first = set(found[0][2])
    rows = []
    for name, draw, heads, now in [("none", 0, [], before), *found]:
        common = {"draw": draw, "off": len(heads), "shared": len(first & set(heads))}
        rows += [compared(name, now[text], before[text], text=text, **common) for text in before]
    n = {name: sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches) for name, batches in texts.items()}
    length, edges = sizes["cut chunk"], edges_of(sizes["cut chunk"])
    return rows, (
        f"loss without a fifth of the heads, in nats a token, and its rise, with 95 % intervals over rows. sentences: "
        f"{sizes['cut sentences']} English sentences of the test split ({n['sentences']} predicted tokens); documents: "
        f"{sizes['cut documents']} chunks of {length} tokens ({n['documents']}), the first of "
        f"{natural_text('documents', 'all').about}; code: {sizes['cut code']} such chunks ({n['code']}) of "
        f"{natural_text('code', 'all').about}; repeated: the second copy of {sizes['repeated']} sequences of "
        f"{sizes['repeated segment']} random tokens, twice. {'A' if start else 'No'} start token. "
        f"'documents, near', 'middle' and 'far' are their tokens {edges[0]} to {edges[1] - 1}, to {edges[2] - 1} "
        f"and to {edges[3] - 1}. Cuts: 'sentences' and 'documents' are the lowest gradients on "
        f"{sizes['ranking texts']} sentences of the validation split and on {sizes['cut ranking']} other "
        "chunks of help texts; 'induction spared': ranked on sentences, the ninth of all heads with the highest "
        "induction scores cannot go; 'others spared': as many other heads of the cut are spared at random, for the "
        "same heads in their place; 'same layers': random, as many in each layer as 'sentences' has; 'random': "
        "anywhere. shared: heads that are in the cut 'sentences', too"
    )


def texts_of(model: nn.Module, tokenizer: Any, sizes: Mapping[str, int], start: bool) -> Texts:
    """Return the four kinds of text on which cuts are measured."""
    length = sizes["cut chunk"]
    repeated = repeated_tokens(model, sizes["repeated"], sizes["repeated segment"])
    return {
        "sentences": text_batches(tokenizer, natural_text("english", "test", sizes["cut sentences"]), start=start),
        "documents": chunks(tokenizer, "documents", length, start)[: sizes["cut documents"]],
        "code": chunks(tokenizer, "code", length, start)[: sizes["cut code"]],
        "repeated": [_after(tokenizer.bos_token_id, batch) for batch in repeated] if start else repeated,
    }


def _after(token: int, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch of random tokens in which each row begins with this token."""
    ids = nn.functional.pad(batch["input_ids"], (1, 0), value=token)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def chunks(tokenizer: Any, name: str, length: int, start: bool) -> list[dict[str, Tensor]]:
    """Return the texts of a corpus, packed: batches of one chunk each."""
    return list(text_batches(tokenizer, natural_text(name, "all"), length=length, batch_size=1, start=start))


def induction_heads(model: nn.Module, sizes: Mapping[str, int]) -> list[Head]:
    """Return the ninth of all heads with the highest induction scores, the highest first."""
    n = round(INDUCTION_SHARE * ht.sites(model).n_heads)
    scores = induction_scores(model, n=sizes["induction sequences"], length=sizes["segment"], batch_size=10)
    scores = scores[scores.role == INDUCTION].nlargest(n, "score")
    return [(row.kind, row.layer, row.head) for row in scores.itertuples()]


def cuts_of(
    model: nn.Module, tokenizer: Any, sizes: Mapping[str, int], start: bool
) -> list[tuple[str, int, list[Head]]]:
    """Return the cuts, (name, number of the draw, heads)."""
    every = [(*site.key, head) for site in ht.sites(model) for head in range(site.heads)]
    n, induction = round(SHARE * len(every)), induction_heads(model, sizes)
    validation = natural_text("english", "validation", sizes["ranking texts"])
    order = ht.gradient(model, text_batches(tokenizer, validation, start=start)).order()
    first = sizes["cut documents"]  # those before are measured on
    unseen = chunks(tokenizer, "documents", sizes["cut chunk"], start)[first : first + sizes["cut ranking"]]
    by_documents = ht.gradient(model, unseen).order()

    lowest = order[:n]
    spared = [head for head in order if head not in induction][:n]
    instead = [head for head in spared if head not in lowest]  # what goes in place of the induction heads
    others = [head for head in lowest if head not in induction]
    cuts = [("sentences", 0, lowest), ("documents", 0, by_documents[:n]), ("induction spared", 0, spared)]
    draw = torch.Generator().manual_seed(0)

    def some(heads: Sequence[Head], count: int) -> list[Head]:
        return [heads[i] for i in torch.randperm(len(heads), generator=draw)[:count].tolist()]

    for number in range(sizes["cut draws"]):
        stay = some(others, len(instead))
        cuts.append(("others spared", number, [head for head in lowest if head not in stay] + instead[: len(stay)]))
    for number in range(sizes["cut draws"]):
        each = Counter(head[:2] for head in lowest)
        drawn = [some([head for head in every if head[:2] == key], count) for key, count in each.items()]
        cuts.append(("same layers", number, list(chain.from_iterable(drawn))))
    cuts += [("random", number, some(every, n)) for number in range(sizes["cut draws"])]
    return cuts


def measured(model: nn.Module, texts: Texts, heads: Sequence[Head]) -> Losses:
    """Return the losses without these heads."""
    with ht.ablate(model, heads):
        return losses_of(model, texts)


@torch.no_grad()
def losses_of(model: nn.Module, texts: Texts) -> Losses:
    """Return each row's loss, and for documents that of three parts of the row: near its beginning, middle and far."""
    found: Losses = {}
    for name, batches in texts.items():
        each = [_each(model, batch) for batch in batches]
        start = each[0][0].shape[1] // 2 if name == "repeated" else 0  # of random tokens, only the second copy
        found[name] = torch.cat([(loss[:, start:].sum(1) / counted[:, start:].sum(1)) for loss, counted in each])
        if name == "documents":
            edges = edges_of(each[0][0].shape[1] + 1)
            for part, low, high in zip(("near", "middle", "far"), edges, edges[1:], strict=False):
                found[f"documents, {part}"] = torch.cat([loss[:, low - 1 : high - 1].mean(1) for loss, _ in each])
    return found


def _each(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the loss of every token but the first, and which of them count."""
    logits, labels = model(**model_inputs(model, batch)).logits[:, :-1].float(), batch["labels"][:, 1:]
    each = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
    return each, labels != -100


def edges_of(length: int) -> list[int]:
    """Return where the three parts of a chunk begin, and where the last one ends: 1, a sixteenth, a quarter, all.

    >>> edges_of(512)
    [1, 32, 128, 512]
    """
    return [1, max(2, length // 16), max(3, length // 4), length]
