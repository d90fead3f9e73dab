"""Answers to the exercises of lesson 10: right ones, and wrong ones with what their hint must say."""

import copy
import random

import torch
from edited import of
from torch import nn

import headtools as ht
from headtools.course import my_heads

curve, greedy, cut, null = map(of, ("pruning_curve", "greedy_order", "slice_layer", "survivors_null"))


def curve_by_ablation(model, order, counts, metric):
    def point(count):
        with ht.ablate(model, order[:count]):
            return torch.tensor(metric())

    return {count: point(count) for count in counts}


def greedy_by_table(model, heads, score, step):
    order, n = [], len(heads)
    while len(order) < n:
        with ht.ablate(model, order):
            flat = {(*key, h): v for key, each in score().items() for h, v in enumerate(each.tolist())}
        order += [head for head in sorted(flat, key=flat.get) if head not in order][:step]
    return order


def slice_by_views(attention, heads):
    """New linear layers, filled from a view with one axis for the head."""
    small, n = copy.deepcopy(attention), attention.num_heads
    stay = torch.tensor([h not in heads for h in range(n)])
    for name in ("q_proj", "k_proj", "v_proj"):
        old = getattr(attention, name)
        new = nn.Linear(old.in_features, int(stay.sum()) * attention.head_dim)
        new.weight.data = old.weight.unflatten(0, (n, -1))[stay].flatten(0, 1).detach()
        new.bias.data = old.bias.unflatten(0, (n, -1))[stay].flatten().detach()
        setattr(small, name, new)
    out = nn.Linear(int(stay.sum()) * attention.head_dim, attention.out_proj.out_features)
    out.weight.data = attention.out_proj.weight.unflatten(1, (n, -1))[:, stay].flatten(1).detach()
    out.bias.data = attention.out_proj.bias.detach()
    small.out_proj, small.num_heads = out, int(stay.sum())
    return small


def null_by_loop(has_role, kept, times=2000):
    draw, counts = random.Random(1), []
    sizes = kept.sum(-1).tolist()
    for _ in range(times):
        sets = [draw.sample(role, n) for role, n in zip(has_role.tolist(), sizes, strict=True)]
        counts.append(sum(map(sum, sets)))
    return counts


FIRST, OFF = "order[:count]", "    with switch_off(model, by_site(order)):\n            values = score()\n"
NEXT = "order, rest = order + rest[:step], rest[step:]"
DONE, OUT = "return small", "small.out_proj.weight = nn.Parameter(small.out_proj.weight[:, rows])"
ANSWERS = {
    "10.curve": {
        "right": [curve_by_ablation, my_heads.pruning_curve],
        "wrong": [
            (curve(FIRST, "order[len(order) - count:]"), "The last heads of the order go"),
            (curve(FIRST, "order[:len(order) - count]"), "As many stay as should go"),
            (curve(FIRST, "order[count - 1:count] if count else []"), "Only one head is off at a time"),
            (curve(FIRST, "order[:count + 1]"), "One head too many"),
            (curve(FIRST, "order[:max(count - 1, 0)]"), "One head too few"),
            (
                curve(f"by_site({FIRST})", "{h[:2]: [h[2]] for h in order[:count]}"),
                "Of two heads in one layer only the",
            ),
            (
                curve(f"by_site({FIRST})", "by_site(dict.fromkeys(h for n in [*curve, count] for h in order[:n]))"),
                "Heads pile up",
            ),
            (
                curve("            curve[count]", "            pass\n        curve[count]"),
                "Every head is on while the metric",
            ),
            (curve(FIRST, "order[1:count + 1]"), "the first n heads of the order are off, and no others"),
            (
                curve(
                    "return curve",
                    "model.get_encoder().layers[0].self_attn.out_proj.weight.data.zero_()\n    return curve",
                ),
                "still off",
            ),
            (curve("return curve", "return list(curve.values())"), "A dict is asked for.*this is a list"),
            (curve("return curve", "return {0: curve[0]}"), "they should be the counts"),
            (curve("= metric()", "= 'low'"), "A number is asked for"),
        ],
    },
    "10.greedy": {
        "right": [greedy_by_table, my_heads.greedy_order],
        "wrong": [
            (greedy("while rest:", "step = len(rest)\n    while rest:"), "All heads are scored once"),
            (greedy("by_site(order)", "{}"), "always with all heads on"),
            (greedy("by_site(order)", "by_site(order[-step:])"), "Only the heads of the last cut are off"),
            (greedy("return order", "heads.clear()\n    return order"), "changes the list that it is given"),
            (greedy("rest.sort(", "rest.sort(reverse=True, "), "The highest go first"),
            (greedy(NEXT, NEXT.replace("step", "1")), "One head goes after each scoring"),
            (greedy(NEXT, f"{NEXT}\n    order[-1] = order[0]"), "Some head goes twice"),
            (greedy("return order", "return order[:-1]"), "there are 7 in your list; every head goes"),
            (greedy("return order", "return order[::-1]"), "The lowest of the rest go next"),
            (greedy("return order", "return values"), "A list of heads.*this is a dict"),
        ],
    },
    "10.slice": {
        "right": [slice_by_views, my_heads.slice_layer],
        "wrong": [
            (
                cut(
                    DONE,
                    "attention.q_proj, attention.num_heads = small.q_proj, small.num_heads\n    return small",
                ),
                "The layer that you were given has changed",
            ),
            (cut("copy.deepcopy(attention)", "attention"), "has changed. Cut in a copy"),
            (
                cut("stay = [", "small.out_proj.weight.data[:, :width] = 0\n    return small\n    stay = ["),
                "Zeros in a matrix save no work",
            ),
            (cut("weight[:, rows]", "weight[:len(rows)]"), "a head owns columns of out_proj"),
            (
                cut(DONE, "small.v_proj.bias = attention.v_proj.bias\n    return small"),
                "bias of v_proj loses the same rows",
            ),
            (cut(DONE, "small.out_proj.bias = None\n    return small"), "bias of out_proj stays"),
            (cut(DONE, "small.out_proj.bias.data *= 0\n    return small"), "and its bias is another one than before"),
            (cut(", small.num_heads = len(rows), len(stay)", " = len(rows)"), "3 heads are left, and num_heads says 4"),
            (cut("weight[:, rows]", "weight[:, rows.roll(1)]"), "the same ones in all four matrices"),
            (
                cut("torch.arange(head * width, (head + 1) * width)", "torch.arange(head, 4 * width, 4)"),
                "next to each other",
            ),
            (cut("not in set(heads)", "in heads"), "Are those the heads that go"),
            (cut("not in set(heads)", "not in {(h + 1) % 4 for h in heads}"), "another output"),
            (cut(DONE, "return heads"), "The smaller layer is asked for, this is a list"),
        ],
    },
    "10.null": {
        "right": [null_by_loop, my_heads.survivors_null],
        "wrong": [
            (
                null(
                    "counts, draw", "has_role, kept = has_role.flatten()[None], kept.flatten()[None]\n    counts, draw"
                ),
                "from all layers at once",
            ),
            (null(".argsort(-1)", ".mul(len(stays)).long()"), "The same head can be drawn twice"),
            (null("role[drawn]", "(~role)[drawn]"), "heads without a role"),
            (null("stays.sum()", "(~stays).sum()"), "You draw the heads that go"),
            (null("stays.sum()", "kept.sum()) // len(kept"), "the same number in each layer"),
            (
                null(
                    "torch.rand(times, len(stays), generator=draw)",
                    "torch.rand(times, len(stays), generator=torch.Generator().manual_seed(0))",
                ),
                "One order of heads serves all layers",
            ),
            (null("return counts", "return 0 * counts + 1"), "One set, drawn 3000 times over"),
            (
                null("return counts", "return (has_role & kept).sum().expand(times)"),
                "Every set is the one that survived",
            ),
            (
                null("return counts", "return (counts >= (has_role & kept).sum()).double().mean()"),
                "One number for each random set",
            ),
            (null("return counts", "return has_role & kept"), "One number for each random set is asked for.*not a set"),
            (null("return counts", "return counts + 1"), "as many heads as survive there, and count"),
            (null("return counts", "return counts[:10]"), r"The shape is \(10,\)"),
        ],
    },
}
