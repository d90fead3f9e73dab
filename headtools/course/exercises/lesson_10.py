"""Exercises of lesson 10: a pruning curve, an order that is scored again, a smaller layer, survivors against draws."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.course.exercises.exercise import Exercise, Hint, article, call, number, same, show, tensor
from headtools.course.exercises.lesson_00 import tiny_translator

Order = Sequence[tuple]  # heads, (kind, layer, head)
ORDER = [("encoder", 0, 2), ("encoder", 1, 3), ("encoder", 0, 1), ("cross", 1, 0), ("encoder", 2, 2)]


def _quality(model: nn.Module, batch: Mapping[str, Tensor]) -> Callable[[], float]:
    """A metric of a small model: one number that every head moves."""
    with torch.no_grad():
        width = model(**batch).logits.numel()
    weight = torch.randn(width, generator=torch.Generator().manual_seed(3))

    @torch.no_grad()
    def metric() -> float:
        return float(model(**batch).logits.flatten() @ weight)

    return metric


def _without(model: nn.Module, metric: Callable[[], Any], heads: Iterable[tuple]) -> Any:
    with ht.ablate(model, list(dict.fromkeys(heads))):
        return metric()


def _curve(answer: Any) -> str | None:
    """pruning_curve(model, order, counts, metric): {count: metric() with the first count heads of order off}."""
    model, batch = tiny_translator()
    metric = _quality(model, batch)
    full = metric()
    for counts in ([0, 1, 3, 5], [4, 2]):
        shown = show({"order": ORDER, "counts": counts})
        got = call(answer, model=model, order=list(ORDER), counts=list(counts), metric=metric)
        if not same(torch.tensor(metric()), torch.tensor(full), 1e-6):
            return "After your function some heads are still off. A with block switches them on again when it ends."
        if not isinstance(got, Mapping):
            raise Hint(f"A dict is asked for, {{count: metric}}, this is {article(got)}.")
        if set(got) != set(counts):
            return f"The keys are {list(got)}; they should be the counts, {counts}."
        found = [number(got[count]) for count in counts]
        known = {
            "The last heads of the order go here. The first of the list are the first to go.": [
                ORDER[len(ORDER) - n :] for n in counts
            ],
            "As many stay as should go: at count n the first n heads of the order are off.": [
                ORDER[: len(ORDER) - n] for n in counts
            ],
            "Only one head is off at a time. At count n all of the first n are.": [ORDER[n - 1 : n] for n in counts],
            "One head too many is off.": [ORDER[: n + 1] for n in counts],
            "One head too few is off.": [ORDER[: max(n - 1, 0)] for n in counts],
            "Of two heads in one layer only the later one is off: the second entry of a dict replaces the first.": [
                {head[:2]: head for head in ORDER[:n]}.values() for n in counts
            ],
            "Heads pile up from one count to the next. Begin each count with none off.": [
                list(chain.from_iterable(ORDER[:m] for m in counts[: i + 1])) for i in range(len(counts))
            ],
            "Every head is on while the metric is measured. Call metric() inside the block.": [[] for _ in counts],
        }
        want = [_without(model, metric, ORDER[:n]) for n in counts]
        if not _close(found, want):
            for hint, sets in known.items():
                if _close(found, [_without(model, metric, heads) for heads in sets]):
                    return f"{hint}\nSee it for {shown}"
            return f"At count n the first n heads of the order are off, and no others.\nSee it for {shown}"
    return None


def _close(found: Sequence[float], want: Sequence[float]) -> bool:
    return same(torch.tensor(found), torch.tensor(want), 1e-4)


def _greedy(answer: Any) -> str | None:
    """greedy_order(model, heads, score, step): heads in the order in which they go, the rest scored again and again."""
    for step in (1, 2, 3):
        model, batch = tiny_translator()
        score, seen = _backups(model, batch)
        want = _greedily(step)
        heads = sorted(want)
        handed = list(heads)
        got = call(answer, model=model, heads=handed, score=score, step=step)
        if handed != heads:
            return (
                "Your function changes the list that it is given, which the caller still needs. Copy it: list(heads)."
            )
        if not isinstance(got, Sequence) or isinstance(got, str):
            raise Hint(f"A list of heads, (kind, layer, head), is asked for, this is {article(got)}.")
        found = [tuple(head) if isinstance(head, (tuple, list)) else head for head in got]
        if found == want:
            if any(off != frozenset(want[: len(off)]) for off in seen):
                return "The order is right, but score() was called with other heads off than those that had gone."
            continue
        shown = f"\nSee it for step = {step}, where you say {found[:4]} ..., and it is {want[:4]} ..."
        once = _greedily(len(want))
        hints = {
            "All heads are scored once. Score again after every step heads, with those that have gone off.": once,
            "The highest go first here. The lowest go first.": _greedily(step, highest=True),
            "One head goes after each scoring. step heads should.": _greedily(1),
        }
        if len(set(found)) < len(found):
            return f"Some head goes twice. A head that has gone is no candidate any more.{shown}"
        if set(found) != set(want):
            return f"Of {len(want)} heads there are {len(found)} in your list; every head goes in the end.{shown}"
        if not any(seen):
            on = f"Scored {len(seen)} times, always with all heads on. Score with those off that have gone."
            return (next(iter(hints)) if len(seen) == 1 else on) + shown
        if len(seen) > 2 and max(map(len, seen)) <= step:
            return f"Only the heads of the last cut are off when you score. All that have gone should be.{shown}"
        return (
            next((hint for hint, other in hints.items() if found == other), "The lowest of the rest go next.") + shown
        )
    return None


ALONE = {("encoder", 0): [0.5, 0.1, 0.15, 0.9], ("encoder", 1): [0.4, 0.2, 0.3, 0.6]}  # a score of each head
BACKUPS = {("encoder", 0, 1): ("encoder", 0, 2), ("encoder", 0, 2): ("encoder", 0, 1)}  # each does the other's work


def _value(key: tuple, head: int, off: Iterable[tuple]) -> float:
    return 2.0 if BACKUPS.get((*key, head)) in set(off) else ALONE[key][head]


def _greedily(step: int, highest: bool = False) -> list[tuple]:
    order: list[tuple] = []
    while rest := [(*k, h) for k in ALONE for h in range(4) if (*k, h) not in order]:
        values = {head: _value(head[:2], head[2], order) for head in rest}
        order += sorted(rest, key=lambda head: values[head], reverse=highest)[:step]
    return order


def _backups(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Callable[[], dict], list[frozenset]]:
    """A score that depends on which heads are off in the model, and a list of what was off at each call."""
    seen: list[frozenset] = []

    @torch.no_grad()
    def score() -> dict[tuple, Tensor]:
        with ht.record(model, want="z") as run:
            model(**batch)
        off = [(*key, h) for key in ALONE for h in range(4) if run[key].z[:, :, h].abs().max() == 0]
        seen.append(frozenset(off))
        return {key: torch.tensor([_value(key, h, off) for h in range(4)]) for key in ALONE}

    return score, seen


def _attention() -> nn.Module:
    """An attention layer of four heads of width 4, with biases."""
    model, _ = tiny_translator()
    attention = model.get_encoder().layers[0].self_attn
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
            linear.bias.copy_(torch.randn(linear.bias.shape, generator=draw))
    return attention


def _gated(attention: nn.Module, x: Tensor, off: Iterable[int]) -> Tensor:
    """What the layer gives with some heads' z at 0."""
    width = attention.head_dim

    def without(_module: nn.Module, args: tuple) -> tuple:
        flat = args[0].clone()
        for head in off:
            flat[..., head * width : (head + 1) * width] = 0
        return (flat,)

    hook = attention.out_proj.register_forward_pre_hook(without)
    try:
        return attention(x)[0]
    finally:
        hook.remove()


@torch.no_grad()
def _slice(answer: Any) -> str | None:
    """slice_layer(attention, heads): a copy of an attention layer without these heads."""
    attention = _attention()
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2))
    before = copy.deepcopy(attention.state_dict())
    full = attention(x)[0]
    for heads in ([1], [3, 0], [], [0, 1, 2]):
        shown = f"\nSee it for heads = {heads} of a layer with 4 heads of width 4, d = 16."
        small = call(answer, attention=attention, heads=list(heads))
        if not isinstance(small, nn.Module):
            raise Hint(f"The smaller layer is asked for, this is {article(small)}.")
        changed = any(not torch.equal(before[name], w) for name, w in attention.state_dict().items() if name in before)
        if small is attention or changed or attention.num_heads != 4:
            return f"The layer that you were given has changed. Cut in a copy of it.{shown}"
        stay = 4 - len(heads)
        shapes = dict.fromkeys(("q_proj", "k_proj", "v_proj"), (4 * stay, 16)) | {"out_proj": (16, 4 * stay)}
        for name, shape in shapes.items():
            linear = getattr(small, name)
            if tuple(linear.weight.shape) != shape:
                return _shape_hint(name, tuple(linear.weight.shape), shape, len(heads)) + shown
            if linear.bias is None or linear.bias.shape != (shape[0],):
                end = "stays: it belongs to no head" if name == "out_proj" else "loses the same rows as its weight"
                return f"The bias of {name} {end}.{shown}"
        if small.num_heads != stay:
            return f"{stay} heads are left, and num_heads says {small.num_heads}.{shown}"
        try:
            got = small(x)[0]
        except Exception as error:
            raise Hint(f"Your layer stopped with {type(error).__name__}: {error}{shown}") from error
        if same(got, _gated(attention, x, heads)):
            continue
        rest = [h for h in range(4) if h not in heads]
        own = torch.tensor([4 * h + i for h in rest for i in range(4)])
        for name in shapes:
            linear, rows = getattr(small, name), slice(None) if name == "out_proj" else own
            kept = before[f"{name}.weight"][:, own] if name == "out_proj" else before[f"{name}.weight"][own]
            if torch.equal(linear.weight, kept) and not torch.equal(linear.bias, before[f"{name}.bias"][rows]):
                return (
                    f"The weight of {name} is right, and its bias is another one than before: take the old one.{shown}"
                )
        if same(got, _gated(attention, x, rest)):
            return f"The wrong way round: the heads named are left, and the others are cut.{shown}"
        if len(heads) == 3 or same(got, full):
            return f"The layer gives another output than with these heads gated off.{shown}"
        return (
            "The layer gives another output than with these heads gated off. Head h owns the features from "
            f"h * head_dim to (h + 1) * head_dim, next to each other, and the same ones in all four matrices.{shown}"
        )
    return None


def _shape_hint(name: str, got: tuple, want: tuple, gone: int) -> str:
    text = f"{name}.weight has shape {got}, it should be {want}."
    if gone and got == (16, 16):
        return f"{text} Zeros in a matrix save no work: the matrix has to become smaller."
    if got == want[::-1]:
        owns = "columns of out_proj" if name == "out_proj" else "rows of q_proj, k_proj and v_proj"
        return f"{text} nn.Linear stores (out, in), so that a head owns {owns}."
    if got in ((4 * gone, 16), (16, 4 * gone)):
        return f"{text} Are those the heads that go? Those that stay should be left."
    return text


# (has_role, kept) of some layers of four and five heads
SURVIVORS = (
    ([[1, 1, 1, 0], [0, 0, 1, 0]], [[1, 1, 0, 1], [0, 0, 0, 0]]),
    ([[1, 1, 1, 1, 0], [0, 0, 0, 1, 0], [1, 0, 0, 0, 0]], [[1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [1, 1, 0, 0, 0]]),
    ([[1, 1, 1, 1], [0, 0, 0, 0]], [[0, 1, 1, 0], [1, 0, 0, 0]]),
    ([[1, 1, 0, 0], [1, 1, 0, 0]], [[1, 0, 1, 0], [0, 1, 1, 0]]),
)
TIMES = 3000


def _null(answer: Any) -> str | None:
    """survivors_null(has_role, kept, times): heads with a role in random sets with as many heads in each layer."""
    for role, stays in SURVIVORS:
        given = {"has_role": torch.tensor(role).bool(), "kept": torch.tensor(stays).bool(), "times": TIMES}
        observed = int((given["has_role"] & given["kept"]).sum())
        got = tensor(
            call(answer, **given),
            (TIMES,),
            "(times,)",
            given,
            {
                (): "One number for each random set is asked for, (times,), not what they come to.",
                tuple(given["kept"].shape): "One number for each random set is asked for, (times,), not a set.",
            },
        )
        own = [(int(sum(r)), len(r), int(sum(s))) for r, s in zip(role, stays, strict=True)]  # of each layer
        size, n_role, n_kept = sum(n for _, n, _ in own), sum(r for r, _, _ in own), sum(k for *_, k in own)
        share = n_kept // len(own)
        mistakes = {
            "You draw from all layers at once. Draw in each layer as many heads as survive there.": _drawn(
                [(n_role, size, n_kept)]
            ),
            "You draw the same number in each layer. Draw in each layer as many heads as survive there.": _drawn(
                [(r, n, share) for r, n, _ in own]
            ),
            "The same head can be drawn twice here. Draw without putting it back.": _convolved(
                [_binomial(r / n, k) for r, n, k in own]
            ),
            "You count the heads without a role.": _drawn([(n - r, n, k) for r, n, k in own]),
            "You draw the heads that go. The set holds as many as survive.": _drawn([(r, n, n - k) for r, n, k in own]),
            "Every set is the one that survived. Draw other heads, as many in each layer.": {observed: 1.0},
        }
        if len({len(r) for r in role}) == 1:
            one_order = "One order of heads serves all layers, so that they go together. Draw anew in each layer."
            mistakes[one_order] = _drawn_together(role, stays)
        if len(set(got.tolist())) == 1 and got[0] != observed:
            return f"One set, drawn {TIMES} times over. Draw another one each time."
        want = _drawn(own)
        if _distance(got, want) > 0.08:
            close = min(mistakes, key=lambda hint: _distance(got, mistakes[hint]))
            rule = "In each layer draw as many heads as survive there, and count those with a role, over all layers."
            hint = close if _distance(got, mistakes[close]) < 0.08 else rule
            expected = sum(x * p for x, p in want.items())
            shown = show({"has_role": given["has_role"].int(), "kept": given["kept"].int()})
            return f"{hint}\nSee it for {shown}\nwhere your mean is {got.mean():.2f}, and it should be {expected:.2f}."
    return None


Shares = dict[int, float]  # {number: its share}


def _drawn(layers: Iterable[tuple[int, int, int]]) -> Shares:
    """The number of heads with a role among k of n heads of which r have one, summed over layers (r, n, k)."""
    return _convolved(
        {i: math.comb(r, i) * math.comb(n - r, k - i) / math.comb(n, k) for i in range(min(r, k) + 1)}
        for r, n, k in layers
    )


def _drawn_together(role: Sequence[Sequence[int]], stays: Sequence[Sequence[int]]) -> Shares:
    """The same where one random order of the heads serves all layers."""
    orders = list(itertools.permutations(range(len(role[0]))))
    found = Counter(
        sum(sum(r[i] for i in order[: sum(s)]) for r, s in zip(role, stays, strict=True)) for order in orders
    )
    return {x: n / len(orders) for x, n in found.items()}


def _binomial(p: float, k: int) -> Shares:
    return {i: math.comb(k, i) * p**i * (1 - p) ** (k - i) for i in range(k + 1)}


def _convolved(parts: Iterable[Shares]) -> Shares:
    total: Shares = {0: 1.0}
    for part in parts:
        total = {x: sum(p * part.get(x - a, 0.0) for a, p in total.items()) for x in range(max(total) + max(part) + 1)}
    return total


def _distance(found: Tensor, shares: Shares) -> float:
    """Half of the sum of all differences between the shares of each number."""
    seen = {x: float((found == x).double().mean()) for x in {*found.tolist(), *shares}}
    return sum(abs(p - shares.get(int(x) if float(x).is_integer() else -1, 0.0)) for x, p in seen.items()) / 2


EXERCISES = (
    Exercise("10.curve", "draw a pruning curve", _curve, "pruning_curve", ("curve", "curves")),
    Exercise("10.greedy", "score again after every cut", _greedy, "greedy_order", ("greedy_order",)),
    Exercise("10.slice", "cut heads out of a layer", _slice, "slice_layer", ("prune",)),
    Exercise("10.null", "survivors against draws", _null, "survivors_null"),
)
