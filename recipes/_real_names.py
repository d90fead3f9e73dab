"""A task with names on a real language model: which heads put the right name into the answer.

"When Mary and John went to the station, John gave a book to" ends in Mary: the name that stands there once. The task is
that of Wang et al. (2023), the templates and names are our own. In the corrupted prompt the second John is a third
name, so that nothing tells Mary from John any more. A head's output at the last token is copied from one run into the
other, in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads.scores import Head

TEMPLATES = (  # two names, who acts, and the last word, after which the other name is the answer
    "When {a} and {b} went to the {place}, {s} gave a {thing} to",
    "After {a} and {b} sat down in the {place}, {s} handed a {thing} to",
    "While {a} and {b} were waiting at the {place}, {s} passed a {thing} to",
    "In the morning {a} and {b} met at the {place}, and {s} showed a {thing} to",
    "Last summer {a} and {b} worked at the {place}, and {s} sold a {thing} to",
    "Yesterday {a} had lunch with {b} at the {place}, and then {s} offered a {thing} to",
    "Friends of {a} and {b} say that at the {place} {s} once lent a {thing} to",
    "Because {a} and {b} both liked the {place}, {s} brought a {thing} to",
)
PAIRS = (("Mary", "John"), ("Alice", "Tom"), ("Lucy", "Jack"), ("Paul", "Emma"), ("Peter", "Anna"), ("Kate", "Henry"))
THIRDS = ("Sarah", "James", "Laura", "David", "Helen", "Simon")  # for the corrupted prompt, one for each pair
PLACES = ("station", "library", "garden", "museum", "market", "harbour")
THINGS = ("book", "ticket", "letter", "map", "pen", "camera")
BEST, DRAWS = (5, 10), 10


@dataclass(frozen=True)
class Prompts:
    """Prompts of one template, clean and corrupted, token for token of the same length, and what they are run with."""

    clean: Tensor  # ids (B, T)
    corrupted: Tensor
    right: Tensor  # the name that stands once, (B,)
    wrong: Tensor  # the name that acts
    pair: Tensor  # which pair of names it is, (B,)


def prompts(tokenizer: Any, n_pairs: int) -> list[Prompts]:
    """Return the prompts of each template: each name of a pair acts once; which comes first changes by turns.

    Empty where a name is not one token, so that the two prompts of a pair would not match token for token.
    """
    made = []
    for number, template in enumerate(TEMPLATES):
        rows = []
        for pair, (names, third) in enumerate(zip(PAIRS[:n_pairs], THIRDS, strict=False)):
            a, b = names if (number + pair) % 2 == 0 else names[::-1]
            for acting, other in ((a, b), (b, a)):
                fill = {"a": a, "b": b, "place": PLACES[pair], "thing": THINGS[pair]}
                texts = [template.format(**fill, s=who) for who in (acting, third)]
                rows.append((*texts, f" {other}", f" {acting}", pair))
        clean, corrupted, right, wrong, pairs = zip(*rows, strict=True)
        ids = [tokenizer(list(texts))["input_ids"] for texts in (clean, corrupted, right, wrong)]
        if {len(each) for each in ids[2] + ids[3]} != {1} or len({len(each) for each in ids[0] + ids[1]}) != 1:
            return []  # for this tokenizer a name is not one token
        clean_ids, corrupted_ids, right_ids, wrong_ids = map(torch.tensor, ids)
        made.append(Prompts(clean_ids, corrupted_ids, right_ids[:, 0], wrong_ids[:, 0], torch.tensor(pairs)))
    return made


class Run:
    """Prompts up to their last token, run once; the last token can be run again and again, with heads patched."""

    def __init__(self, model: nn.Module, ids: Tensor, task: Prompts) -> None:
        self.model, self.last, self.task = model, ids[:, -1:], task
        self.cache = model(ids[:, :-1], use_cache=True).past_key_values
        with ht.record(model, want="z") as seen:
            self.logits()
        self.z = {site.key: seen[site.key].z for site in ht.sites(model)}  # (B, 1, H, W)

    def logits(self) -> Tensor:
        """Return the logits of the next word (B, V)."""
        out = self.model(self.last, past_key_values=self.cache, use_cache=True).logits[:, -1].float()
        self.cache.crop(-1)  # the last token comes again
        return out

    def difference(self, heads: Sequence[Head] = (), source: Run | None = None) -> Tensor:
        """Return the logit of the right name minus that of the wrong one (B,), with heads' outputs from another run."""
        if not heads:
            return self._difference()
        with ht.patch(self.model, heads, source.z):
            return self._difference()

    def _difference(self) -> Tensor:
        logits, rows = self.logits(), torch.arange(len(self.last))
        return logits[rows, self.task.right] - logits[rows, self.task.wrong]


@torch.no_grad()
def names(model: nn.Module, tokenizer: Any, sizes: Mapping[str, int]) -> tuple[list[dict[str, Any]], str]:
    """Copy each head's output at the last token from the clean run into the corrupted one, and the other way round."""
    tasks = prompts(tokenizer, sizes["name pairs"])
    if not tasks:
        return [], "not measured: for this tokenizer a name is not one token"
    pair = torch.cat([task.pair for task in tasks])
    runs = [(Run(model, task.clean, task), Run(model, task.corrupted, task)) for task in tasks]

    def restored(heads: Sequence[Head]) -> Tensor:
        return torch.cat([corrupted.difference(heads, clean) for clean, corrupted in runs])

    def kept(heads: Sequence[Head]) -> Tensor:
        return torch.cat([clean.difference(heads, corrupted) for clean, corrupted in runs])

    high = torch.cat([clean.difference() for clean, _ in runs])
    low = torch.cat([corrupted.difference() for _, corrupted in runs])

    def shares(heads: Sequence[Head], rows: Tensor) -> dict[str, float]:
        return _shares(restored(heads)[rows], kept(heads)[rows], high[rows], low[rows])

    sites = ht.sites(model)
    looks = _looks(model, tasks)
    all_heads = [(*site.key, head) for site in sites for head in range(site.heads)]
    # The best are chosen on the first half of the pairs of names and measured on the other half.
    chosen_on = pair < sizes["name pairs"] // 2
    rows, choice = [], {"restored": [], "lost": []}
    for head in all_heads:
        up, down = restored([head]), kept([head])
        row = {"name": "head", "layer": head[1], "head": head[2], **_shares(up, down, high, low)}
        row |= {"to_right": looks["right"][head].item(), "to_wrong": looks["wrong"][head].item()}
        for by, gain in (("restored", up - low), ("lost", high - down)):
            half, other = (gain[some].mean() / (high - low)[some].mean() for some in (chosen_on, ~chosen_on))
            choice[by].append((half.item(), other.item(), head))
        rows.append(row)
        if head[2] == 0:
            print(f"names: layer {head[1]}", flush=True)
    for by, found in choice.items():
        ranked = sorted(found, key=lambda one: -one[0])
        for count in BEST:
            best = [head for *_, head in ranked[:count]]
            label = {"by": by, "count": count, "heads": [f"{layer}.{head}" for _, layer, head in best]}
            alone = sum(share for _, share, _ in ranked[:count])
            rows.append({"name": "best", **label, **shares(best, ~chosen_on), "sum": alone})
            others = [head for head in all_heads if head not in best]
            rows.append({"name": "all others", **label, **shares(others, ~chosen_on)})
            draws = [shares(_of_same_layers(best, sites, seed), ~chosen_on) for seed in range(DRAWS)]
            for seed, share in enumerate(draws):
                rows.append({"name": "random", "by": by, "count": count, "draw": seed, **share})
    best = [head for *_, head in sorted(choice["lost"], key=lambda one: -one[0])[: BEST[0]]]
    others = all_names(tokenizer)
    parts = _direct_parts(runs, best, others)
    for row, head in zip(rows, all_heads, strict=False):  # the heads come first
        row |= parts[head]
    top = torch.cat([(clean.logits().argmax(-1) == task.right) for (clean, _), task in zip(runs, tasks, strict=True)])
    rows.append(
        {
            "name": "task",
            "prompts": len(pair),
            "templates": len(tasks),
            "difference": high.mean().item(),
            "corrupted": low.mean().item(),
            "positive": (high > 0).double().mean().item(),
            "first": top.double().mean().item(),
        }
    )
    tokens = sum(task.clean.numel() for task in tasks)
    return rows, (
        f"{len(pair)} prompts of {len(tasks)} templates ({tokens} tokens), such as "
        f"{tokenizer.decode(tasks[0].clean[0])!r}; corrupted: the second mention is a third name. Logit of the name "
        "that stands once minus that of the name that stands twice. A head's output at the last token comes from the "
        "other run. restored: the share of the difference that comes back in the corrupted run; lost: the share that "
        "goes in the clean run; 95 % intervals over prompts. to_right, to_wrong: weight from the last token on the "
        "name that stands once, and on both mentions of the other. best: chosen on half of the pairs of names, by the "
        f"one or the other, measured on the other half; sum: the shares of the same heads one by one; random: {DRAWS} "
        "draws of as many other heads of the same layers. direct_right, direct_wrong: what a head adds by itself "
        "to the logits of the two names, against the mean of all names used; direct_without_best: right minus wrong "
        "when the five best by lost are patched"
    )


def _shares(up: Tensor, down: Tensor, high: Tensor, low: Tensor) -> dict[str, float]:
    """Return the shares restored and lost, with the ends of their 95 % intervals over prompts."""
    return share("restored", up - low, high - low) | share("lost", high - down, high - low)


def share(name: str, gain: Tensor, span: Tensor) -> dict[str, float]:
    """Return the mean gain (B,) as a share of the mean span (B,), with the ends of its 95 % interval over prompts."""
    ends = ht.bootstrap(torch.stack([gain, span], 1).double(), statistic=lambda means: means[..., :1] / means[..., 1:])
    return {name: (gain.mean() / span.mean()).item(), f"{name}_low": float(ends[0]), f"{name}_high": float(ends[1])}


def _of_same_layers(heads: Sequence[Head], sites: Any, seed: int) -> list[Head]:
    """Draw as many other heads from the same layers."""
    draw, drawn = torch.Generator().manual_seed(seed), []
    for key in sorted({head[:-1] for head in heads}):
        taken = [head[-1] for head in heads if head[:-1] == key]
        free = [head for head in range(sites[key].heads) if head not in taken]
        drawn += [(*key, free[i]) for i in torch.randperm(len(free), generator=draw)[: len(taken)].tolist()]
    return drawn


def _looks(model: nn.Module, tasks: Sequence[Prompts]) -> dict[str, dict[Head, Tensor]]:
    """Return each head's mean weight from the last token on the right name, and on the wrong one."""
    totals: dict[str, dict[Head, Tensor]] = {"right": {}, "wrong": {}}
    count = sum(len(task.right) for task in tasks)
    for task in tasks:
        with ht.record(model, want="maps") as seen:
            model(task.clean)
        for site in ht.sites(model):
            last = seen[site.key].maps[:, :, -1]  # (B, H, key)
            for which, name in (("right", task.right), ("wrong", task.wrong)):
                weight = (last * (task.clean == name[:, None])[:, None]).sum((0, 2)) / count
                for head, value in enumerate(weight):
                    key = (*site.key, head)
                    totals[which][key] = totals[which].get(key, 0) + value
    return totals


def _direct_parts(
    runs: Sequence[tuple[Run, Run]], best: Sequence[Head], others: Tensor
) -> dict[Head, dict[str, float]]:
    """Return what each head adds by itself, through the last norm, to the logits of the right and the wrong name.

    Each against the mean of ``others``, names as well; and right minus wrong with the best heads patched.
    """
    parts = []
    for heads in ((), best):
        each = [direct(clean, corrupted, heads, others) for clean, corrupted in runs]
        parts.append({head: torch.cat([one[head] for one in each]).mean(0) for head in each[0]})
    found = {}
    for head, (right, wrong) in parts[0].items():
        without = (parts[1][head][0] - parts[1][head][1]).item()
        found[head] = {"direct_right": right.item(), "direct_wrong": wrong.item(), "direct_without_best": without}
    return found


def all_names(tokenizer: Any) -> Tensor:
    """Return the ids of all names that prompts may have."""
    return torch.tensor([tokenizer(f" {name}")["input_ids"][0] for name in (*sum(PAIRS, ()), *THIRDS)])


def direct(clean: Run, corrupted: Run, heads: Sequence[Head], others: Tensor) -> dict[Head, Tensor]:
    """Return each head's parts of the two logits (B, 2); the last norm is taken as it was in that run."""
    model, at_norm = clean.model, {}
    hook = model.model.norm.register_forward_pre_hook(lambda _module, args: at_norm.update(x=args[0][:, -1]))
    try:
        with ht.record(model, want="z") as seen:
            clean.difference(heads, corrupted)
    finally:
        hook.remove()
    root = (at_norm["x"].square().mean(-1, keepdim=True) + model.model.norm.variance_epsilon).sqrt()
    words = model.lm_head.weight
    towards = words[torch.stack([clean.task.right, clean.task.wrong], 1)] - words[others].mean(0)  # (B, 2, d)
    reader = model.model.norm.weight * towards / root[:, None]
    parts = {}
    for site in ht.sites(model):
        written = ht.contributions(site, seen[site.key].z)[:, -1]  # (B, H, d)
        for head, part in enumerate(torch.einsum("bhd,bnd->hbn", written, reader)):
            parts[*site.key, head] = part
    return parts
