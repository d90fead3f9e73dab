"""Answers to the exercises of lesson 10: right ones, and wrong ones with what their hint must say."""

import copy
import random

import torch
from torch import nn

import headtools as ht
from headtools.course import my_heads

# --- 10.curve ---------------------------------------------------------------------------------------------------------


def right_curve(model, order, counts, metric):
    curve = {}
    for count in counts:
        off = {}
        for kind, layer, head in order[:count]:
            off.setdefault((kind, layer), []).append(head)
        with my_heads.switch_off(model, off):
            curve[count] = metric()
    return curve


def curve_by_ablation(model, order, counts, metric):
    def point(count):
        with ht.ablate(model, order[:count]):
            return torch.tensor(metric())

    return {count: point(count) for count in counts}


def curve_that(heads_off, inside=True):
    """A curve with heads_off(order, count) off in place of the first count."""

    def pruning_curve(model, order, counts, metric):
        curve = {}
        for count in counts:
            with ht.ablate(model, heads_off(order, count)):
                curve[count] = metric()
            if not inside:
                curve[count] = metric()
        return curve

    return pruning_curve


def last_of_each_layer(order, count):
    return [(*key, head) for key, head in {head[:2]: head[2] for head in order[:count]}.items()]


def piled_up(model, order, counts, metric):
    curve, off = {}, []
    for count in counts:
        off = list(dict.fromkeys([*off, *order[:count]]))
        with ht.ablate(model, off):
            curve[count] = metric()
    return curve


def left_off(model, order, counts, metric):
    curve = right_curve(model, order, counts, metric)
    with torch.no_grad():
        model.get_encoder().layers[0].self_attn.out_proj.weight.zero_()
    return curve


def package_curve(model, order, counts, metric):
    table = ht.curve(model, order, lambda model: metric(), [len(order) - n for n in counts])
    return dict(zip(counts, table.metric, strict=True))


# --- 10.greedy --------------------------------------------------------------------------------------------------------


def right_greedy(model, heads, score, step):
    order, rest = [], list(heads)
    while rest:
        with ht.ablate(model, order):
            values = score()
        rest.sort(key=lambda head: values[head[:2]][head[2]])
        order, rest = order + rest[:step], rest[step:]
    return order


def greedy_by_table(model, heads, score, step):
    order, n = [], len(heads)
    while len(order) < n:
        off = {}
        for kind, layer, head in order:
            off.setdefault((kind, layer), []).append(head)
        with my_heads.switch_off(model, off):
            flat = {(*key, h): v for key, each in score().items() for h, v in enumerate(each.tolist())}
        order += [head for head in sorted(flat, key=flat.get) if head not in order][:step]
    return order


def sorted_once(model, heads, score, step):
    values = score()
    return sorted(heads, key=lambda head: values[head[:2]][head[2]])


def never_off(model, heads, score, step):
    """Scores again, but with every head on."""
    order = []
    while len(order) < len(heads):
        order += [head for head in sorted_once(model, heads, score, step) if head not in order][:step]
    return order


def last_cut_off(model, heads, score, step):
    order, rest, last = [], list(heads), []
    while rest:
        with ht.ablate(model, last):
            values = score()
        rest.sort(key=lambda head: values[head[:2]][head[2]])
        last, rest = rest[:step], rest[step:]
        order += last
    return order


def empties(model, heads, score, step):
    order = []
    while heads:
        with ht.ablate(model, order):
            values = score()
        heads.sort(key=lambda head: values[head[:2]][head[2]])
        order += heads[:step]
        del heads[:step]
    return order


def twice(model, heads, score, step):
    order = []
    for _ in range(8 // step):
        with ht.ablate(model, list(dict.fromkeys(order))):
            order += sorted_once(model, heads, score, step)[:step]
    return order


def one_at_a_time(model, heads, score, step):
    return right_greedy(model, heads, score, 1)


def highest_first(model, heads, score, step):
    def minus():
        return {key: -value for key, value in score().items()}

    return right_greedy(model, heads, minus, step)


def package_greedy(model, heads, score, step):
    from headtools.heads.scores import HeadScores

    return ht.greedy_order(model, lambda model: HeadScores(score()), step)


# --- 10.slice ---------------------------------------------------------------------------------------------------------


def right_slice(attention, heads):
    small, d = copy.deepcopy(attention), attention.head_dim
    stay = [h for h in range(attention.num_heads) if h not in heads]
    rows = torch.cat([torch.arange(h * d, (h + 1) * d) for h in stay])
    for linear in (small.q_proj, small.k_proj, small.v_proj):
        linear.weight, linear.bias = nn.Parameter(linear.weight[rows]), nn.Parameter(linear.bias[rows])
    small.out_proj.weight = nn.Parameter(small.out_proj.weight[:, rows])
    small.num_heads = len(stay)
    return small


def new_biases(attention, heads):
    small = right_slice(attention, heads)
    small.out_proj.bias = nn.Parameter(torch.zeros_like(small.out_proj.bias))
    return small


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


def slice_that(change):
    """A right slice, changed afterwards: change(small, attention, heads)."""

    def slice_layer(attention, heads):
        small = right_slice(attention, heads)
        return change(small, attention, heads) or small

    return slice_layer


def in_place(attention, heads):
    small = right_slice(attention, heads)
    attention.q_proj, attention.k_proj, attention.num_heads = small.q_proj, small.k_proj, small.num_heads
    return small


def zeros(attention, heads):
    small = copy.deepcopy(attention)
    for h in heads:
        small.out_proj.weight.data[:, 4 * h : 4 * h + 4] = 0
    return small


def rows_of_out(small, attention, heads):
    small.out_proj.weight = nn.Parameter(attention.out_proj.weight[: small.out_proj.weight.shape[1]])


def no_biases(small, attention, heads):
    small.v_proj.bias = nn.Parameter(attention.v_proj.bias.clone())


def no_out_bias(small, attention, heads):
    small.out_proj.bias = None


def old_count(small, attention, heads):
    small.num_heads = attention.num_heads


def shuffled_columns(small, attention, heads):
    small.out_proj.weight = nn.Parameter(small.out_proj.weight.roll(1, 1))


def in_turns(attention, heads):
    """As if the features of heads took turns."""
    small, n = copy.deepcopy(attention), attention.num_heads
    rows = torch.tensor([i for i in range(n * attention.head_dim) if i % n not in heads])
    for linear in (small.q_proj, small.k_proj, small.v_proj):
        linear.weight, linear.bias = nn.Parameter(linear.weight[rows]), nn.Parameter(linear.bias[rows])
    small.out_proj.weight, small.num_heads = nn.Parameter(small.out_proj.weight[:, rows]), n - len(heads)
    return small


def complement(attention, heads):
    return right_slice(attention, [h for h in range(attention.num_heads) if h not in heads])


def cut_by_package(attention, heads):
    ht.prune(copy.deepcopy(attention), heads)


# --- 10.null ----------------------------------------------------------------------------------------------------------


def right_null(has_role, kept, times=2000):
    counts = torch.zeros(times)
    for role, stays in zip(has_role, kept, strict=True):
        drawn = torch.rand(times, len(stays)).argsort(-1)[:, : stays.sum()]
        counts += role[drawn].sum(-1)
    return counts


def one_order(has_role, kept, times=2000):
    order = torch.rand(times, has_role.shape[1]).argsort(-1)
    return sum(role[order[:, : stays.sum()]].sum(-1) for role, stays in zip(has_role, kept, strict=True))


def null_by_loop(has_role, kept, times=2000):
    draw, counts = random.Random(1), []
    sizes = kept.sum(-1).tolist()
    for _ in range(times):
        sets = [draw.sample(role, n) for role, n in zip(has_role.tolist(), sizes, strict=True)]
        counts.append(sum(map(sum, sets)))
    return counts


def null_by_shuffling(has_role, kept, times=2000):
    """Shuffle the roles in each layer, and leave the survivors where they are."""
    order = torch.rand(times, *kept.shape).argsort(-1)
    shuffled = has_role.expand(times, *kept.shape).gather(-1, order)
    return (shuffled & kept).sum((1, 2))


def all_layers(has_role, kept, times=2000):
    return right_null(has_role.flatten()[None], kept.flatten()[None], times)


def put_back(has_role, kept, times=2000):
    counts = torch.zeros(times)
    for role, stays in zip(has_role, kept, strict=True):
        counts += role[torch.randint(len(role), (times, int(stays.sum())))].sum(-1)
    return counts


def observed(has_role, kept, times=2000):
    return (has_role & kept).sum().expand(times)


def p_value(has_role, kept, times=2000):
    return (right_null(has_role, kept, times) >= (has_role & kept).sum()).double().mean()


def even(has_role, kept, times=2000):
    share = int(kept.sum()) // len(kept)
    same_number = torch.zeros_like(kept)
    same_number[:, :share] = True
    return right_null(has_role, same_number, times)


ANSWERS = {
    "10.curve": {
        "right": [right_curve, curve_by_ablation, my_heads.pruning_curve],
        "wrong": [
            (curve_that(lambda order, n: order[len(order) - n :]), "The last heads of the order go"),
            (curve_that(lambda order, n: order[: len(order) - n]), "As many stay as should go"),
            (curve_that(lambda order, n: order[n - 1 : n] if n else []), "Only one head is off at a time"),
            (curve_that(lambda order, n: order[: n + 1]), "One head too many"),
            (curve_that(lambda order, n: order[: max(n - 1, 0)]), "One head too few"),
            (curve_that(last_of_each_layer), "Of two heads in one layer only the later one"),
            (piled_up, "Heads pile up"),
            (curve_that(lambda order, n: order[:n], inside=False), "Every head is on while the metric"),
            (curve_that(lambda order, n: order[1 : n + 1]), "the first n heads of the order are off, and no others"),
            (left_off, "still off"),
            (lambda *given: list(right_curve(*given).values()), "A dict is asked for.*this is a list"),
            (lambda model, order, counts, metric: {0: metric()}, "they should be the counts"),
            (lambda model, order, counts, metric: dict.fromkeys(counts, "low"), "A number is asked for"),
            (lambda model, order, counts, metric: model.missing, "stopped with AttributeError"),
            (package_curve, "is right, and it is the one"),
        ],
    },
    "10.greedy": {
        "right": [right_greedy, greedy_by_table, my_heads.greedy_order],
        "wrong": [
            (sorted_once, "All heads are scored once"),
            (never_off, "always with all heads on"),
            (last_cut_off, "Only the heads of the last cut are off"),
            (empties, "changes the list that it is given"),
            (highest_first, "The highest go first"),
            (one_at_a_time, "One head goes after each scoring"),
            (twice, "Some head goes twice"),
            (lambda *given: right_greedy(*given)[:-1], "there are 7 in your list; every head goes"),
            (lambda *given: right_greedy(*given)[::-1], "The lowest of the rest go next"),
            (lambda model, heads, score, step: score(), "A list of heads.*this is a dict"),
            (lambda model, heads, score, step: score().missing, "stopped with AttributeError"),
            (package_greedy, "is right, and it is the one"),
        ],
    },
    "10.slice": {
        "right": [right_slice, slice_by_views, my_heads.slice_layer],
        "wrong": [
            (in_place, "The layer that you were given has changed"),
            (lambda attention, heads: attention, "has changed. Cut in a copy"),
            (zeros, "Zeros in a matrix save no work"),
            (slice_that(rows_of_out), "a head owns columns of out_proj"),
            (slice_that(no_biases), "bias of v_proj loses the same rows"),
            (slice_that(no_out_bias), "bias of out_proj stays"),
            (new_biases, "and its bias is another one than before"),
            (slice_that(old_count), "3 heads are left, and num_heads says 4"),
            (slice_that(shuffled_columns), "the same ones in all four matrices"),
            (in_turns, "next to each other"),
            (complement, "Are those the heads that go"),
            (lambda attention, heads: right_slice(attention, [(h + 1) % 4 for h in heads]), "another output"),
            (lambda attention, heads: heads, "The smaller layer is asked for, this is a list"),
            (lambda attention, heads: attention.missing, "stopped with AttributeError"),
            (cut_by_package, "is right, and it is the one"),
        ],
    },
    "10.null": {
        "right": [right_null, null_by_loop, null_by_shuffling, my_heads.survivors_null],
        "wrong": [
            (all_layers, "from all layers at once"),
            (put_back, "The same head can be drawn twice"),
            (lambda r, k, times: right_null(~r, k, times), "heads without a role"),
            (lambda r, k, times: right_null(r, ~k, times), "You draw the heads that go"),
            (even, "the same number in each layer"),
            (one_order, "One order of heads serves all layers"),
            (lambda r, k, times: torch.ones(times), "One set, drawn 3000 times over"),
            (observed, "Every set is the one that survived"),
            (p_value, "One number for each random set"),
            (lambda r, k, times: r & k, "One number for each random set is asked for.*not a set"),
            (lambda r, k, times: right_null(r, k, times) + 1, "as many heads as survive there, and count"),
            (lambda r, k, times: right_null(r, k, 10), r"The shape is \(10,\)"),
            (lambda r, k, times: r.missing, "stopped with AttributeError"),
        ],
    },
}
