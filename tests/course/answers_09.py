"""Answers to the exercises of lesson 09: right ones, and wrong ones with what their hint must say."""

import math
import random

import numpy as np
import torch


def right_left(scores, keep):
    rank = scores.flatten().argsort(descending=True).argsort().view(scores.shape)
    return rank < keep


def left_by_loop(scores, keep):
    flat = sorted(((s, i, j) for i, row in enumerate(scores.tolist()) for j, s in enumerate(row)), reverse=True)
    stays = {(i, j) for _, i, j in flat[:keep]}
    return [[int((i, j) in stays) for j in range(scores.shape[1])] for i in range(scores.shape[0])]


def left_by_topk(scores, keep):
    mask = np.zeros(scores.numel())
    mask[torch.topk(scores.flatten(), keep).indices.numpy()] = 1
    return mask.reshape(scores.shape)


def by_layer(scores, keep):
    return torch.stack([right_left(row, keep // len(scores)) for row in scores])


def by_one_argsort(scores, keep):
    return (scores.flatten().argsort(descending=True) < keep).view(scores.shape)


def right_chance(n, r, k, hit):
    return sum(math.comb(r, i) * math.comb(n - r, k - i) for i in range(hit, k + 1)) / math.comb(n, k)


def chance_by_steps(n, r, k, hit):
    """Draw one head after the other; keep the chance of each number of hits."""
    odds = {0: 1.0}
    for drawn in range(k):
        new = {}
        for hits, p in odds.items():
            good = (r - hits) / (n - drawn)
            new[hits + 1] = new.get(hits + 1, 0) + p * good
            new[hits] = new.get(hits, 0) + p * (1 - good)
        odds = new
    return sum(p for hits, p in odds.items() if hits >= hit)


def exactly(n, r, k, hit):
    return math.comb(r, hit) * math.comb(n - r, k - hit) / math.comb(n, k)


def with_replacement(n, r, k, hit):
    return sum(math.comb(k, i) * (r / n) ** i * (1 - r / n) ** (k - i) for i in range(hit, k + 1))


def count(heads, length, width, inner, project=4, look=2, feed=2, size=8):
    one = width // size
    return heads * (project * length * width * one + look * length**2 * one) + feed * length * width * inner


def share(**other):
    def work(heads, length, width, inner):
        return count(heads, length, width, inner, **other) / count(8, length, width, inner, **other)

    return work


def work_from_flops_of_tensors(heads, length, width, inner):
    """The same from the shapes of the matrices that are multiplied."""

    def layer(h):
        d = width // 8
        shapes = [(length, width, h * d)] * 3 + [(length, d, length)] * h + [(length, length, d)] * h
        shapes += [(length, h * d, width), (length, width, inner), (length, inner, width)]
        return sum(a * b * c for a, b, c in shapes)

    return torch.tensor(layer(heads) / layer(8), dtype=torch.double)


ANSWERS = {
    "09.left": {
        "right": [right_left, left_by_loop, left_by_topk],
        "wrong": [
            (lambda scores, keep: ~right_left(scores, keep), "the heads that go"),
            (lambda scores, keep: right_left(-scores, keep), "lowest scores stay"),
            (by_layer, "Each layer keeps as many"),
            (by_one_argsort, "the rank of each head"),
            (lambda scores, keep: right_left(scores.abs(), keep), "A score below 0"),
            (lambda scores, keep: right_left(scores, keep + 1), "One head too many"),
            (lambda scores, keep: right_left(scores, keep - 1), "One head too few"),
            (lambda scores, keep: scores, "The 2 highest scores of the whole table"),
            (lambda scores, keep: scores.flatten(), r"The shape is \(6,\)"),
            (lambda scores, keep: scores.missing, "stopped with AttributeError"),
            (torch.ones(2, 3), "A function is asked for"),
        ],
    },
    "09.chance": {
        "right": [right_chance, chance_by_steps, lambda *given: torch.tensor(right_chance(*given))],
        "wrong": [
            (exactly, "exactly as many"),
            (lambda n, r, k, hit: right_chance(n, r, k, hit + 1), "the chance of more"),
            (lambda n, r, k, hit: 1 - right_chance(n, r, k, hit), "the chance of fewer"),
            (lambda n, r, k, hit: 1 - right_chance(n, r, k, hit + 1), "as many or fewer"),
            (with_replacement, "without putting it back"),
            (lambda n, r, k, hit: k * r / n, "how many are expected"),
            (lambda n, r, k, hit: right_chance(n, r, k, hit) * math.comb(n, k), "counts the draws"),
            (lambda n, r, k, hit: random.Random(0).random() / 7, "Of all ways to draw k heads"),
            (lambda n, r, k, hit: "small", "A number is asked for, this is a str"),
            (0.1, "A function is asked for"),
        ],
    },
    "09.work": {
        "right": [share(), work_from_flops_of_tensors, lambda *given: np.float32(share()(*given)).astype(float)],
        "wrong": [
            (lambda heads, *_: heads / 8, "leaves out the feed-forward part"),
            (share(look=0), "leaves out scores and weighted sums"),
            (share(project=0), "leaves out the four projections"),
            (share(project=3), "A head has four projections"),
            (share(look=1), "are two products"),
            (share(feed=1), "two matrices, in and out"),
            (share(project=32), "not to the whole width"),
            (share(look=16), "only width / 8 wide"),
            (share(project=32, look=16), "in its projections and in its products"),
            (lambda *given: 1 - share()(*given), "the share that is saved"),
            (lambda *given: 1 / share()(*given), "how much faster"),
            (lambda *given: 0.3, "Count one head and the feed-forward part"),
            (lambda *given: given, "A number is asked for, this is a tuple"),
            (7, "A function is asked for"),
        ],
    },
}
