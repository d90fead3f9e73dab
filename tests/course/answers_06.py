"""Answers to the exercises of lesson 06: right ones, and wrong ones with what their hint must say."""

import numpy as np
import torch


def slopes_of(losses, examples, heads, at=1.0):
    gates = torch.full((examples, heads), at, requires_grad=True)
    return torch.autograd.grad(losses(gates).sum(), gates)[0]


def right_importance(losses, examples, heads):
    gates = torch.ones(examples, heads, requires_grad=True)
    losses(gates).sum().backward()
    return gates.grad.abs().mean(0)


def importance_one_by_one(losses, examples, heads):
    total = torch.zeros(heads)
    for example in range(examples):
        gates = torch.ones(heads, requires_grad=True)
        total += torch.autograd.grad(losses(gates.expand(examples, heads))[example], gates)[0].abs()
    return (total / examples).tolist()


def importance_by_differences(losses, examples, heads, step=1e-3):
    found = np.zeros(heads)
    for head in range(heads):
        up = torch.ones(examples, heads, dtype=torch.float64)
        down = up.clone()
        up[:, head] += step
        down[:, head] -= step
        found[head] = ((losses(up) - losses(down)) / (2 * step)).abs().mean()
    return found


def shared_gates(losses, examples, heads):
    gates = torch.ones(heads, requires_grad=True)
    return torch.autograd.grad(losses(gates).mean(), gates)[0].abs()


def left_out(losses, examples, heads):
    whole, found = losses(torch.ones(examples, heads)), []
    for head in range(heads):
        gates = torch.ones(examples, heads)
        gates[:, head] = 0
        found.append((losses(gates) - whole).abs().mean())
    return torch.stack(found)


def right_from_maps(maps, slopes):
    return (maps * slopes).sum((2, 3)).abs().mean(0)


def from_maps_by_einsum(maps, slopes):
    return torch.einsum("bhqk,bhqk->bh", maps, slopes).abs().sum(0) / len(maps)


def from_maps_in_numpy(maps, slopes):
    return np.abs((maps.numpy() * slopes.numpy()).sum((2, 3))).mean(0)


def right_removal(slopes, bends):
    return (bends / 2 - slopes).mean(0)


def removal_by_rows(slopes, bends):
    found = torch.zeros(slopes.shape[1])
    for slope, bend in zip(slopes, bends, strict=True):
        found += (bend / 2 - slope) / len(slopes)
    return found.tolist()


def removal_in_numpy(slopes, bends):
    step = -1.0
    return np.mean(step * slopes.numpy() + step**2 / 2 * bends.numpy(), axis=0)


def right_interaction(whole, without_a, without_b, without_both):
    return ((without_both - whole) - (without_a - whole) - (without_b - whole)).mean()


def interaction_of_means(whole, without_a, without_b, without_both):
    a, b, both = (float((x - whole).mean()) for x in (without_a, without_b, without_both))
    return both - a - b


ANSWERS = {
    "06.importance": {
        "right": [right_importance, importance_one_by_one, importance_by_differences],
        "wrong": [
            (shared_gates, "does the absolute value come before the mean"),
            (lambda losses, e, h: slopes_of(losses, e, h).mean(0).abs(), "does the absolute value come before"),
            (lambda losses, e, h: slopes_of(losses, e, h).sum(0).abs(), "so they cancel. Each needs gates"),
            (lambda losses, e, h: slopes_of(losses, e, h).mean(0), "This mean has a sign"),
            (lambda losses, e, h: slopes_of(losses, e, h).abs().sum(0), "sum over the examples"),
            (lambda losses, e, h: slopes_of(losses, e, h, 0.0).abs().mean(0), "slope at gate 0"),
            (left_out, "all the way to 0"),
            (lambda losses, e, h: slopes_of(losses, e, h).square().mean(0), "mean of squares; the score"),
            (lambda losses, e, h: slopes_of(losses, e, h).square().mean(0).sqrt(), "root of a mean"),
            (lambda losses, e, h: slopes_of(losses, e, h).abs(), "numbers of every example"),
            (
                lambda losses, e, h: slopes_of(losses, e, h).abs().mean(1),
                r"should be \(head,\)|one row for each example",
            ),
            (lambda losses, e, h: torch.zeros(h), "Gates of 1, one row for each example"),
            (lambda losses, e, h: losses(torch.ones(5, 7)), "stopped with RuntimeError"),
            (torch.ones(3), "A function is asked for"),
        ],
    },
    "06.cancel": {
        "right": [
            torch.tensor([[1.0, 0.1], [-1.0, 0.1]]),
            [[2, 1], [-2, 1], [2, 1], [-2, 1]],
            np.array([[3.0, -1.0], [-2.0, -1.0]]),
            lambda: torch.tensor([[1.0, 0.2], [-0.9, 0.2]]),
        ],
        "blank": [lambda: None],
        "wrong": [
            (torch.tensor([[1.0, 0.1], [1.0, 0.1]]), "Slopes cancel where their signs differ"),
            (torch.tensor([[1.0, 0.1], [-0.5, 0.1]]), "They cancel, but too little"),
            (torch.tensor([[0.1, 1.0], [-0.1, 1.0]]), "Head 0 should matter more"),
            (torch.tensor([[1.0, 1.0], [-1.0, 1.0]]), "Head 0 should matter more than head 1. Head 0 has 1"),
            (torch.tensor([[1.0, 0.1]]), "With one example nothing can cancel"),
            (torch.tensor([1.0, -1.0]), r"The shape is \(2,\)"),
            (torch.ones(3, 3), r"The shape is \(3, 3\)"),
            (torch.tensor([[float("nan"), 1.0], [1.0, 1.0]]), "NaN"),
            ("1, -1", "this is a str"),
        ],
    },
    "06.forms": {
        "right": [right_from_maps, from_maps_by_einsum, from_maps_in_numpy],
        "wrong": [
            (lambda maps, slopes: slopes.abs().mean((0, 2, 3)), "mean size of dL/dA alone"),
            (lambda maps, slopes: slopes.abs().sum((2, 3)).mean(0), "summed size of dL/dA alone"),
            (lambda maps, slopes: slopes.sum((2, 3)).abs().mean(0), "The attention is missing"),
            (lambda maps, slopes: (maps * slopes).abs().sum((2, 3)).mean(0), "inside the sum over queries and keys"),
            (lambda maps, slopes: (maps * slopes).sum(3).abs().sum(2).mean(0), "taken of every query"),
            (lambda maps, slopes: (maps * slopes).sum((0, 2, 3)).abs(), "examples are added up before"),
            (lambda maps, slopes: (maps * slopes).sum((2, 3)).mean(0).abs(), "mean over examples is taken before"),
            (lambda maps, slopes: (maps * slopes).sum((2, 3)).mean(0), "This has a sign"),
            (lambda maps, slopes: (maps * slopes).sum((2, 3)).abs().sum(0), "sum over the examples"),
            (lambda maps, slopes: (maps * slopes).mean((2, 3)).abs().mean(0), "mean over queries and keys"),
            (lambda maps, slopes: (maps * slopes).sum((2, 3)).abs(), "numbers of every example"),
            (lambda maps, slopes: maps.mean((0, 2, 3)), "Multiply maps and slopes"),
            (lambda maps, slopes: maps @ slopes.missing, "stopped with AttributeError"),
            (0.5, "A function is asked for"),
        ],
    },
    "06.removal": {
        "right": [right_removal, removal_by_rows, removal_in_numpy],
        "wrong": [
            (lambda slopes, bends: (slopes + bends / 2).mean(0), "slope enters with a minus"),
            (lambda slopes, bends: -slopes.mean(0), "first order alone"),
            (lambda slopes, bends: (bends - slopes).mean(0), "The bend counts half: the second term"),
            (lambda slopes, bends: (-slopes - bends / 2).mean(0), "square of the step"),
            (lambda slopes, bends: (slopes + bends).mean(0), "bend counts half, and the slope enters"),
            (lambda slopes, bends: (bends / 2 - slopes).abs().mean(0), "A cost may be negative"),
            (lambda slopes, bends: (slopes.abs() + bends / 2).mean(0), "slopes keep their sign"),
            (lambda slopes, bends: (bends / 2 - slopes).sum(0), "sum over the examples"),
            (lambda slopes, bends: bends / 2 - slopes, "numbers of every example"),
            (lambda slopes, bends: bends.mean(0) * 0, "Take a step of -1"),
            (lambda slopes, bends: slopes.missing, "stopped with AttributeError"),
            (0.5, "A function is asked for"),
        ],
    },
    "06.interaction": {
        "right": [right_interaction, interaction_of_means],
        "wrong": [
            (lambda w, a, b, both: -right_interaction(w, a, b, both), "sign is turned round"),
            (lambda w, a, b, both: (both - a - b).mean(), "loss of the whole model is missing"),
            (lambda w, a, b, both: (both - a - b - w).mean(), "once too often or too rarely"),
            (lambda w, a, b, both: (both - w).mean(), "what both cost together"),
            (lambda w, a, b, both: (a + b - 2 * w).mean(), "what each costs alone"),
            (lambda w, a, b, both: (both - a - b + w).sum(), "sum over the examples; take their mean"),
            (lambda w, a, b, both: both - a - b + w, "numbers of every example"),
            (lambda w, a, b, both: 0.0, "Write down the three costs"),
            (lambda w, a, b, both: "backups", "A number is asked for, this is a str"),
            (lambda w, a, b, both: w.missing, "stopped with"),
        ],
    },
}
