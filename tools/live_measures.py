"""What the live page knows about the shipped model: roles of its heads, rankings, curves, sentences of the tour.

``site/live/measured.json`` keeps it, with the digest of the weights it belongs to: three minutes on one core, measured
again when the weights change. Every number is that of the weights the page uses, which are rounded to half precision.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads.scores import Head
from headtools.organism._checksums import ASSETS
from headtools.organism.batches import batches
from headtools.organism.evaluate import token_accuracy
from headtools.organism.roles_found import pairs
from headtools.organism.shipped import shipped, shipped_ablation
from headtools.roles.sentence import Sentence

KINDS = ("encoder", "decoder", "cross")
SENTENCES = 100  # test sentences that the page carries
SCORED_ON = 200  # validation sentences for roles and gradient importance
SCOPES = ("encoder", "all")
LEARNED = {"encoder": 0.05, "all": 0.1}  # penalty of the sweep's run whose log alpha is the learned ranking
POINTS = 16  # of a curve, besides its end
HOLDS = 0.9  # as in the model card
CLEAR = 0.5  # of a role's words; the page names no head after a role that is hit less often
SHORT, LONG = 6, 13  # words of a sentence of the tour, and of those that the page offers first
SEVERAL = 4  # heads that break words: more of them make a sentence no more telling

# Roles in the order in which the tour prefers them, and the phenomena that need what they fetch.
NEIGHBOUR = {"offset -1": ["left accent"], "offset +1": ["right accent"]}
RELATION = {"nsubj down": ["subject"], "obj down": ["object"], "det up": ["noun"], "amod up": ["noun"]}
NAME = {"topic": ["topic"], "name": ["topic"]}
REFERENT = {"coreference": ["antecedent"], "obj down": ["object"], "nsubj down": ["subject"], "det up": ["noun"]}


def digest(folder: Path = ASSETS) -> str:
    """Return the SHA-256 of the shipped weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def rounded(model: nn.Module) -> nn.Module:
    """Round the parameters of a model to half precision, in place, as the page stores them."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:  # computed by the page, so not stored
                parameter.copy_(parameter.half().float())
        model.final_logits_bias.copy_(model.final_logits_bias.half().float())
    return model


def heads(model: nn.Module) -> list[Head]:
    """Return all heads in the order in which the page numbers them: by kind, layer and head.

    >>> len(heads(ht.load()[0]))
    144
    """
    sites = ht.sites(model)
    return [(*site.key, head) for kind in KINDS for site in sites[kind] for head in range(site.heads)]


def measure() -> dict[str, Any]:
    """Measure everything that the page knows about the shipped model."""
    model, tokenizer = ht.load()
    rounded(model)
    sentences, validation = ht.corpus("organism", "test", SENTENCES), ht.corpus("organism", "validation", SCORED_ON)
    number = {head: i for i, head in enumerate(heads(model))}
    rankings = {scope: _rankings(model, validation, scope) for scope in SCOPES}
    found = _roles(model, validation)
    return {
        "weights": digest(),
        "sentences": SENTENCES,
        "accuracy": round(token_accuracy(model, sentences).mean().item(), 5),
        "roles": [found.get(head, []) for head in number],
        "rankings": {
            scope: {name: [number[head] for head in order] for name, order in orders.items()}
            for scope, orders in rankings.items()
        },
        "curves": {scope: _curves(model, sentences, orders) for scope, orders in rankings.items()},
        "tour": _tour(model, tokenizer, sentences, found, rankings["encoder"], number),
        **_telling(model, tokenizer, sentences, number),
    }


def read(path: Path) -> dict[str, Any]:
    """Return what the file tells about the shipped model, measured again and written if it is of other weights."""
    if path.exists():
        stored = json.loads(path.read_text("utf-8"))
        if stored["weights"] == digest():
            return stored
    stored = measure()
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in stored.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return stored


# ---- rankings and their curves ---------------------------------------------------------------------------------------


def _rankings(model: nn.Module, validation: Sequence[Sentence], scope: str) -> dict[str, list[Head]]:
    """Return the heads in the order in which each ranking removes them; "learned" only where the sweep has its run."""
    sites = None if scope == "all" else [scope]
    chosen = ht.sites(model) if scope == "all" else ht.sites(model)[scope]
    shown = {site.key for site in chosen}
    orders = {
        "gradient": ht.gradient(model, batches(validation), sites=sites).order(),
        "leave one out": [head for head in shipped_ablation(model).order() if head[:-1] in shown],
    }
    runs = shipped("sweep").query("over == @scope and seed == 0 and penalty == @LEARNED[@scope]")
    if len(runs):
        values = torch.tensor(runs.iloc[0].log_alpha).split([site.heads for site in chosen])
        orders["learned gates"] = ht.HeadScores(dict(zip((s.key for s in chosen), values, strict=True))).order()
    return orders | {"random": ht.random_order(chosen, 0)}


def _curves(
    model: nn.Module, sentences: Sequence[Sentence], orders: dict[str, list[Head]]
) -> dict[str, list[list[float]]]:
    """Return for each ranking a list of [heads kept, token accuracy]."""
    curves = {}
    for name, order in orders.items():
        kept = sorted({round(len(order) * i / POINTS) for i in range(POINTS + 1)}, reverse=True)
        curves[name] = [[k, round(_accuracy(model, sentences, order[: len(order) - k]), 4)] for k in kept]
    return curves


def _accuracy(model: nn.Module, sentences: Sequence[Sentence], off: Sequence[Head]) -> float:
    with ht.ablate(model, list(off)):
        return token_accuracy(model, sentences).mean().item()


# ---- roles -----------------------------------------------------------------------------------------------------------


def _roles(model: nn.Module, validation: Sequence[Sentence]) -> dict[Head, list[str]]:
    """Return the roles of each head: the shipped ones of the encoder, and here measured ones of the other heads."""
    found: dict[Head, list[str]] = {}
    clear = shipped("roles").query("score >= @CLEAR").set_index("role").n  # a head that hits less often goes unnamed
    for name, roles in zip(*(shipped("heads with a role")[key] for key in ("head", "roles")), strict=True):
        layer, head = map(int, name.split("."))
        if kept := [role for role in roles if role in clear]:
            found["encoder", layer, head] = sorted(kept, key=clear.get, reverse=True)  # what is frequent comes first
    for head, role in _simple_roles(model, validation).items():
        found.setdefault(head, [role])
    return found


@torch.no_grad()
def _simple_roles(model: nn.Module, validation: Sequence[Sentence]) -> dict[Head, str]:
    """Return what maps show without a treebank: the word itself, a neighbour, the word to translate, an end, nothing.

    A head has such a role if it hits with nine strongest weights in ten, or rests with nine tenths of its weight, or
    has nine tenths of the greatest entropy.
    """
    sums: dict[str, dict[tuple, Tensor]] = {}
    for sentence, batch in zip(validation, batches(validation, 1), strict=True):
        with ht.record(model, want="maps") as seen:
            model(**batch)
        for kind, spots in _spots(sentence).items():
            for site in ht.sites(model)[kind]:
                maps = seen[site.key].maps[0]  # (head, query, key)
                for role, spot in spots.items():
                    row = sums.setdefault(role, {})
                    row[site.key] = row.get(site.key, 0.0) + _score(maps, spot)
    found: dict[Head, str] = {}
    for role, by_site in sums.items():
        for key, total in by_site.items():
            for head, score in enumerate((total / len(validation)).tolist()):
                if score >= HOLDS:
                    found.setdefault((*key, head), role)
    return found


def _score(maps: Tensor, spot: list[tuple[int, int]] | int | None) -> Tensor:
    """Return one number a head: hits of pairs (query, key), weight on a key, or, for None, entropy over its maximum."""
    if spot is None:
        keys = (maps[0] > 0).sum(-1)  # what a query may attend to: all, or those before it
        return (torch.special.entr(maps).sum(-1)[:, keys > 1] / keys[keys > 1].log()).mean(-1)
    if isinstance(spot, int):
        return maps[..., spot].mean(-1)
    query, key = map(list, zip(*spot, strict=True))
    return (maps[:, query].argmax(-1) == torch.tensor(key)).float().mean(-1)


def _spots(sentence: Sentence) -> dict[str, dict[str, Any]]:
    """Return for each kind and role the pairs (query, key) that make it, or the key that a head rests on."""
    n = len(sentence.words)
    source = [number - 1 for number in sentence.alignment] + [n]  # the source word of each target word, and the end
    own = [(i, i) for i in range(1, n + 1)]
    return {
        "encoder": {"rests on the end": n, "even": None},
        "decoder": {
            "itself": own,
            "before": [(i, i - 1) for i in range(1, n + 1)],
            "rests on the start": 0,
            "even": None,
        },
        "cross": {
            "next source": list(enumerate(source)),
            "last source": [(i + 1, key) for i, key in enumerate(source[:-1])],
            "rests on the end": n,
            "even": None,
        },
    }


# ---- what to press first ---------------------------------------------------------------------------------------------


def _telling(
    model: nn.Module, tokenizer: object, sentences: Sequence[Sentence], number: dict[Head, int]
) -> dict[str, Any]:
    """Return the sentences in the order in which single encoder heads break most, and the first head to press.

    First come short ones that no head makes longer or shorter and several heads break, by the words that one breaks.
    """
    say = _Translations(model, tokenizer, sentences)
    right = say.right([])
    of_head = {head: [len(wrong) for wrong in say.wrong([head])] for head in number if head[0] == "encoder"}

    def worth(i: int) -> tuple:
        broken, n = sorted((counts[i] for counts in of_head.values()), reverse=True), len(sentences[i].words)
        whole = right[i] and SHORT <= n <= LONG and broken[0] < n - 1
        return whole, min(SEVERAL, sum(map(bool, broken))), broken

    telling = sorted(range(len(sentences)), key=worth, reverse=True)
    head = max(of_head, key=lambda one: of_head[one][telling[0]])
    return {"telling": telling, "first": {"sentence": telling[0], "head": number[head]}}


# ---- the tour --------------------------------------------------------------------------------------------------------


def _tour(
    model: nn.Module,
    tokenizer: object,
    sentences: Sequence[Sentence],
    found: dict[Head, list[str]],
    rankings: dict[str, list[Head]],
    number: dict[Head, int],
) -> dict[str, Any]:
    """Return the heads and sentences of the tour's steps, chosen so that what a step says is seen in its sentence."""
    say = _Translations(model, tokenizer, sentences)
    plain = [i for i, right in enumerate(say.right([])) if right]
    shown = sorted(
        plain, key=lambda i: (not SHORT <= len(sentences[i].words) <= LONG, abs(len(sentences[i].words) - 9))
    )

    def holders(roles: dict[str, list[str]]) -> tuple[str, list[Head]]:
        best = {row.role: row.head for row in shipped("roles").itertuples()}
        for role in roles:
            having = [head for head in found if role in found[head] and head[0] == "encoder"]
            having.sort(key=lambda head: f"{head[1]}.{head[2]}" != best.get(role))
            if having:
                return role, having
        raise ValueError(f"no head holds any of {', '.join(roles)}: the tour needs other roles")

    used: set[int] = set()

    def unused(i: int) -> int:
        used.add(i)
        return i

    def breaking(off: list[Head], phenomena: list[str]) -> int:
        """Return the sentence in which most of the words that these heads break need these phenomena."""
        wrong = say.wrong(off)

        def worth(i: int) -> tuple:
            needing = [bool({*phenomena} & {*sentences[i].phenomena[j]}) for j in wrong[i]]
            return sum(needing) in (2, 3, 4) and len(needing) == sum(needing), i not in used

        return unused(max(shown, key=lambda i: (*worth(i), -shown.index(i))))

    def pair(role: str, head: Head) -> tuple[int, list[int]]:
        """Return a sentence and the pair (query, key) furthest apart that the head connects."""
        options = []
        for i in shown:
            for query, key in pairs(sentences[i]).get(role, []):
                options.append((i not in used, min(abs(query - key), 4), -shown.index(i), i, query, key))
        for *_, i, query, key in sorted(options, reverse=True):
            if say.strongest(i, head, query) == key:
                return unused(i), [query, key]
        raise ValueError(f"{head} never fetches {role} in these {len(sentences)} sentences: take more")

    role, having = holders(NEIGHBOUR)
    off = having[:1]
    neighbour = {"role": role, "heads": off, "needs": NEIGHBOUR[role], "sentence": breaking(off, NEIGHBOUR[role])}
    role, having = holders(RELATION)
    i, words = pair(role, having[0])
    relation = {"role": role, "heads": having, "needs": RELATION[role], "sentence": i, "words": words}
    role, having = holders(NAME)
    name = {"role": role, "heads": having, "needs": NAME[role], "sentence": breaking(having, NAME[role])}
    half = len(rankings["random"]) // 2
    best = say.wrong(rankings["gradient"][:half])
    worst = say.wrong(rankings["random"][:half])
    fits = [i for i in shown if not best[i]]

    def shows(i: int) -> tuple:
        return len(worst[i]) >= 3, i not in used, -shown.index(i)

    half_step = {"keep": half, "ranking": "gradient", "sentence": unused(max(fits, key=shows))}
    role, having = holders(REFERENT)
    i, words = pair(role, having[0])
    referent = {"role": role, "heads": having, "needs": REFERENT[role], "sentence": i, "words": words}
    steps = {"neighbour": neighbour, "relation": relation, "name": name, "half": half_step, "referent": referent}
    for step in steps.values():
        if "heads" in step:
            step["heads"] = [number[head] for head in step["heads"]]
    return steps


class _Translations:
    """Translations of a few sentences by a model without some of its heads."""

    def __init__(self, model: nn.Module, tokenizer: object, sentences: Sequence[Sentence]) -> None:
        self.model, self.tokenizer, self.sentences = model, tokenizer, sentences

    def wrong(self, off: Sequence[Head]) -> list[list[int]]:
        """Return the positions of wrong words of each sentence; all positions where the lengths differ."""
        with ht.ablate(self.model, list(off)):
            texts = ht.translate(self.model, self.tokenizer, [sentence.words for sentence in self.sentences])
        found = []
        for sentence, text in zip(self.sentences, texts, strict=True):
            words, n = text.split(), len(sentence.target)
            found.append([i for i in range(n) if len(words) != n or words[i] != sentence.target[i]])
        return found

    def right(self, off: Sequence[Head]) -> list[bool]:
        """Return which sentences are translated without a mistake."""
        return [not wrong for wrong in self.wrong(off)]

    @torch.no_grad()
    def strongest(self, i: int, head: Head, query: int) -> int:
        """Return the key, the end left out, to which a head of the encoder gives most weight."""
        batch = self.tokenizer(str(self.sentences[i]), return_tensors="pt")
        with ht.record(self.model, want="maps", only=[head[:-1]]) as seen:
            self.model.get_encoder()(**batch)
        return int(seen[head[:-1]].maps[0, head[-1], query, :-1].argmax())
