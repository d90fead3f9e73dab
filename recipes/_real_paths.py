"""Who tells a head where to look: path patching on the task with names.

Noising one head shows what the answer loses without what it says, by whatever way. Here the way is part of the
question: one earlier head, the **sender**, says what it says in the corrupted prompt, and only one later head, the
**receiver**, hears it, through its query, its keys or its values. All other heads put out what they put out in the
clean prompt; MLPs and norms, which carry nothing from one token to another, are computed (Wang et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads.scores import Head
from recipes._real_names import Prompts, Run, all_names, direct, prompts, share

WAYS = ("query", "key", "value")
RECEIVERS = 3


class Pair:
    """A clean and a corrupted run of the same prompts, with all that each head puts out at every token before the last.

    The last token reads the cache of those before it, so what reaches a receiver there is a matter of two runs: one of
    the last token, with its query, its own key and its own value, and one of all others, with their keys and values.
    """

    def __init__(self, model: nn.Module, task: Prompts) -> None:
        self.model, self.task = model, task
        self.clean, self.corrupted = Run(model, task.clean, task), Run(model, task.corrupted, task)
        self.before = {}  # {run: {site: z (B, T - 1, H, W)}}
        for run, ids in ((self.clean, task.clean), (self.corrupted, task.corrupted)):
            with ht.record(model, want="z") as seen:
                model.model(ids[:, :-1])
            self.before[run] = {site.key: seen[site.key].z for site in ht.sites(model)}

    def last(self, senders: Iterable[Head], receivers: Iterable[Head]) -> dict[tuple[Head, str], Tensor]:
        """Return each receiver's query, key and value of the last token, had it heard the senders' corrupted output."""
        sites, heard, hooks = ht.sites(self.model), {}, []
        for receiver in receivers:
            for way in WAYS:
                module, rows = _projection(sites.one(receiver[:-1]), way, receiver[-1])

                def keep(
                    _: nn.Module, _args: tuple, output: Tensor, key: Any = (receiver, way), own: Any = rows
                ) -> None:
                    heard[key] = output[..., own].clone()

                hooks.append(module.register_forward_hook(keep))
        try:
            self._frozen(self.clean.z, self.corrupted.z, senders, self.clean.logits)
        finally:
            for hook in hooks:
                hook.remove()
        return heard

    def cache(self, senders: Iterable[Head]) -> Any:
        """Return the keys and values of all tokens before the last, had they heard the senders' corrupted output."""
        ids = self.task.clean[:, :-1]
        return self._frozen(
            self.before[self.clean],
            self.before[self.corrupted],
            senders,
            lambda: self.model.model(ids, use_cache=True).past_key_values,
        )

    def _frozen(self, clean: Mapping, corrupted: Mapping, senders: Iterable[Head], run: Callable) -> Any:
        """Run with every head's clean output, but for the senders', which is the corrupted run's."""
        given = {key: z.clone() for key, z in clean.items()}
        for *key, head in senders:
            given[tuple(key)][:, :, head] = corrupted[tuple(key)][:, :, head]
        with ht.patch(self.model, {key: range(z.shape[2]) for key, z in given.items()}, given):
            return run()

    def heard(self, receiver: Head, way: str, last: Tensor | None = None, cache: Any = None) -> Tensor:
        """Return the difference of the logits (B,) when a receiver, and it alone, has this query, these keys or values.

        ``last``: those of the last token, ``cache``: those of the tokens before it, which a query is not concerned
        with. Keys and values are shared by several heads: the others of the layer keep their clean output.
        """
        site = ht.sites(self.model).one(receiver[:-1])
        others = {site.key: [head for head in range(site.heads) if head != receiver[-1]]}
        module, rows = _projection(site, way, receiver[-1])

        def give(_module: nn.Module, _args: tuple, output: Tensor) -> Tensor:
            output = output.clone()
            output[..., rows] = last
            return output

        with ExitStack() as undo:
            if last is not None:
                undo.callback(module.register_forward_hook(give).remove)
            if way != "query":
                own, name = self.clean.cache.layers[site.layer], f"{way}s"
                undo.callback(setattr, own, name, getattr(own, name))
                setattr(own, name, getattr(cache.layers[site.layer], name))
            undo.enter_context(ht.patch(self.model, others, self.clean.z))
            return self.clean.difference()


def _projection(site: Any, way: str, head: int) -> tuple[nn.Module, Tensor]:
    """Return the module that makes a head's query, key or value, and its rows there."""
    part = {"query": site.q, "key": site.k, "value": site.v}[way]
    return part.module, part.rows[head if way == "query" else head // (site.heads // site.kv_heads)]


@torch.no_grad()
def second_mention(
    model: nn.Module, tasks: Iterable[Prompts], receivers: Iterable[Head], others: Tensor
) -> list[dict[str, Any]]:
    """Return how much heads look, from the last token, at the name that acts, and what they add to its logit.

    That name is another one in the corrupted prompts. Its logit is taken against the mean of ``others``.
    """
    found: dict[tuple[str, Head], list[Tensor]] = {}
    for task in tasks:
        each = torch.arange(len(task.right))
        place = (task.clean != task.corrupted).int().argmax(1)  # the prompts differ there alone
        for prompt, ids in (("clean", task.clean), ("corrupted", task.corrupted)):
            run = Run(model, ids, replace(task, wrong=ids[each, place]))
            with ht.record(model, want="maps") as seen:
                run.logits()
            parts = direct(run, run, (), others)
            for head in receivers:
                weight = seen[head[:-1]].maps[each, head[-1], -1, place]
                found.setdefault((prompt, head), []).append(torch.stack([weight, parts[head][:, 1]], 1))
    rows = []
    for (prompt, head), values in found.items():
        both = torch.cat(values).double()  # (prompts, 2)
        low, high = ht.bootstrap(both)
        row = {"name": "second mention", "to": f"{head[1]}.{head[2]}", "prompt": prompt}
        for column, name in enumerate(("weight", "adds")):
            row |= {name: both[:, column].mean().item()}
            row |= {f"{name}_low": low[column].item(), f"{name}_high": high[column].item()}
        rows.append(row)
    return rows


@torch.no_grad()
def paths(model: nn.Module, tokenizer: Any, sizes: Mapping[str, int]) -> tuple[list[dict[str, Any]], str]:
    """Noise every path from an earlier head to one of the three heads without which most is lost."""
    tasks = prompts(tokenizer, sizes["path pairs"])[: sizes["path templates"]]
    if not tasks:
        return [], "not measured: for this tokenizer a name is not one token"
    pairs = [Pair(model, task) for task in tasks]
    sites = ht.sites(model)
    all_heads = [(*site.key, head) for site in sites for head in range(site.heads)]
    high = torch.cat([pair.clean.difference() for pair in pairs])
    span = high - torch.cat([pair.corrupted.difference() for pair in pairs])

    def lost(parts: Iterable[Tensor]) -> dict[str, float]:
        return share("lost", high - torch.cat(list(parts)), span)

    alone = {head: lost(pair.clean.difference([head], pair.corrupted) for pair in pairs) for head in all_heads}
    receivers = sorted(all_heads, key=lambda head: -alone[head]["lost"])[:RECEIVERS]
    rows = []

    def heard(senders: list[Head], some: list[Head], name: str, **more: Any) -> None:
        at_last = [pair.last(senders, some) for pair in pairs]
        caches = [pair.cache(senders) for pair in pairs]
        for receiver in some:
            for way in WAYS:
                parts = (
                    pair.heard(receiver, way, last[receiver, way], cache)
                    for pair, last, cache in zip(pairs, at_last, caches, strict=True)
                )
                to = {"to": f"{receiver[1]}.{receiver[2]}", "way": way}
                rows.append({"name": name, **more, **to, **lost(parts)})

    for receiver in receivers:
        label = f"{receiver[1]}.{receiver[2]}"
        rows.append({"name": "all it says", "to": label, "way": "output", **alone[receiver]})
        heard([head for head in all_heads if head[1] < receiver[1]], [receiver], "all earlier heads")
        for way in WAYS[1:]:  # the last token is the same in both prompts, and hears of the difference from heads alone
            parts = (pair.heard(receiver, way, cache=pair.corrupted.cache) for pair in pairs)
            rows.append({"name": "corrupted prompt", "to": label, "way": way, **lost(parts)})
    rows += second_mention(model, tasks, receivers, all_names(tokenizer))
    for sender in all_heads:
        later = [receiver for receiver in receivers if receiver[1] > sender[1]]
        if later:
            heard([sender], later, "path", layer=sender[1], head=sender[2])
        if sender[2] == 0:
            print(f"paths: layer {sender[1]}", flush=True)
    rows.append({"name": "task", "prompts": len(high), "templates": len(tasks)})
    return rows, (
        f"{len(high)} prompts of {len(tasks)} templates, as in the table names. path: the share of the difference that "
        "goes when one receiver (to) hears one earlier head's (layer, head) output of the corrupted prompt, through "
        "its query, keys or values (way), while all other heads put out what they do in the clean prompt. all earlier "
        "heads: when it hears that of all of them; corrupted prompt: when its keys or values before the last token are "
        "that prompt's, whose second mention is another word; all it says: when its own output is the corrupted one. "
        "second mention: a receiver's weight on the name that acts, and what it adds to the logit of that name, "
        "against the mean of all names used. Intervals of 95 % over prompts. Receivers: the three heads of highest "
        "lost, on these prompts"
    )
