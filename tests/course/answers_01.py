"""Answers to the exercises of lesson 01: right ones, and wrong ones with what their hint must say."""

import math

import numpy as np
import torch


def scores(q, k):
    return q @ k.T / math.sqrt(q.shape[-1])


def right_softmax(q, k, mask):
    return scores(q, k).masked_fill(~mask, -torch.inf).softmax(-1)


def softmax_by_hand(q, k, mask):
    s = torch.where(mask, scores(q, k), torch.tensor(-1e9))
    e = (s - s.max(-1, keepdim=True).values).exp()
    return e / e.sum(-1, keepdim=True)


def softmax_in_numpy(q, k, mask):
    return np.asarray(softmax_by_hand(q, k, mask))


def softmax_in_lists(q, k, mask):
    return right_softmax(q.double(), k.double(), mask).tolist()


def overflowing(q, k, mask):
    e = scores(q, k).exp() * mask
    return e / e.sum(-1, keepdim=True)


def right_split(x, heads):
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def split_by_chunks(x, heads):
    return torch.stack(x.chunk(heads, -1), 1).numpy()


def split_in_lists(x, heads):
    return [[list(map(list, part)) for part in np.split(one.numpy(), heads, -1)] for one in x]


def right_sum(z, W_o):
    return torch.einsum("bthe,mhe->bthm", z, W_o.view(W_o.shape[0], *z.shape[2:]))


def sum_in_a_loop(z, W_o):
    d = z.shape[-1]
    return torch.stack([z[:, :, h] @ W_o[:, h * d : (h + 1) * d].T for h in range(z.shape[2])], 2)


def rows_of_w(z, W_o):
    d = z.shape[-1]
    return torch.stack([z[:, :, h] @ W_o[h * d : (h + 1) * d] for h in range(z.shape[2])], 2)


def whole_sum(z, W_o):
    return z.flatten(2) @ W_o.T


def every_second_column(z, W_o):
    return torch.stack([z[:, :, h] @ W_o[:, h :: z.shape[2]].T for h in range(z.shape[2])], 2)


ANSWERS = {
    "01.softmax": {
        "right": [right_softmax, softmax_by_hand, softmax_in_numpy, softmax_in_lists],
        "wrong": [
            (lambda q, k, mask: right_softmax(2 * q, k, mask), "too peaked: divide.*square root"),
            (lambda q, k, mask: right_softmax(q / 2, k, mask), "square root of d"),
            (lambda q, k, mask: right_softmax(q * 2**0.5, k, mask), "root of the number of queries"),
            (lambda q, k, mask: (scores(q, k) - 1e9 * mask).softmax(-1), "same weight.*upside down"),
            (lambda q, k, mask: scores(q, k).masked_fill(~mask, -torch.inf).softmax(0), "Each column sums to 1"),
            (lambda q, k, mask: scores(q, k).softmax(-1) * mask, "mask comes too late"),
            (lambda q, k, mask: scores(q, k).softmax(-1), "mask is not used"),
            (lambda q, k, mask: right_softmax(q, k, ~mask), "NaN|upside down"),
            (lambda q, k, mask: right_softmax(q, k, mask if mask.all() else ~mask), "upside down"),
            (lambda q, k, mask: scores(q, k).masked_fill(~mask, -torch.inf), "softmax is missing"),
            (lambda q, k, mask: q @ k.T, "products of queries and keys"),
            (overflowing, "exp of a large score is infinite"),
            (lambda q, k, mask: right_softmax(q, k, mask) * 0.9, "must sum to 1; yours sum to 0.90, 0.90"),
            (lambda q, k, mask: right_softmax(q, k, mask).flip(1), "differ from softmax"),
            (lambda q, k, mask: right_softmax(q, k, mask).T, r"shape is \(3, 2\), it should be \(query, key\)"),
            (lambda q, k, mask: q @ k, r"stopped with RuntimeError.*for \n    q = \[\[2, 0, 0, 0\]"),
            (lambda q, k, mask: "weights", "a str"),
            (torch.eye(3), "A function is asked for"),
        ],
    },
    "01.split": {
        "right": [right_split, split_by_chunks, split_in_lists],
        "wrong": [
            (lambda x, heads: x.reshape(x.shape[0], heads, x.shape[1], -1), "numbers are shuffled"),
            (lambda x, heads: x.view(*x.shape[:2], heads, -1), r"\(batch, token, head, d\).*exchange two axes"),
            (lambda x, heads: x.view(*x.shape[:2], -1, heads).permute(0, 3, 1, 2), "every second number"),
            (lambda x, heads: right_split(x, heads).flip(1), "wrong order"),
            (lambda x, heads: right_split(x, heads) + 1, "Head 0 of the first token"),
            (lambda x, heads: right_split(x, 2), "x = a tensor of shape|x = "),
            (lambda x, heads: x, "The shape is"),
            (lambda x, heads: x.view(9, 9), "RuntimeError.*x = .*heads = 2"),
        ],
    },
    "01.sum": {
        "right": [right_sum, sum_in_a_loop, lambda z, W_o: sum_in_a_loop(z, W_o).double().numpy()],
        "wrong": [
            (rows_of_w, "uses rows of W_o"),
            (whole_sum, "This is the sum of the heads"),
            (lambda z, W_o: whole_sum(z, W_o)[:, :, None].expand_as(right_sum(z, W_o)), "Each head has the whole sum"),
            (lambda z, W_o: whole_sum(z, W_o)[:, :, None].expand_as(right_sum(z, W_o)) / z.shape[2], "equal share"),
            (every_second_column, "every second column"),
            (lambda z, W_o: right_sum(z, W_o).flip(2), "sum over heads is right"),
            (lambda z, W_o: right_sum(z, W_o) * 2, "should be z.flatten"),
            (lambda z, W_o: right_sum(z, W_o).transpose(1, 2), "The shape is"),
        ],
    },
    "01.cost": {
        "right": [
            lambda T, d, H: 4 * T * d**2 + 2 * T**2 * d,
            lambda T, d, H: 4 * T * d * d + H * 2 * T * T * (d / H),
            lambda T, d, H: torch.tensor(4 * T * d * d + 2 * T * T * d),
        ],
        "wrong": [
            (lambda T, d, H: H * (4 * T * d * d + 2 * T * T * d), "every head the full width"),
            (lambda T, d, H: 3 * T * d * d + 2 * T * T * d, "There is a fourth"),
            (lambda T, d, H: 4 * T * d * d + T * T * d, "scores or the averages are missing"),
            (lambda T, d, H: 4 * T * d * d, "Only the projections"),
            (lambda T, d, H: 2 * T * T * d, "Only scores and averages"),
            (lambda T, d, H: 8 * T * d * d + 4 * T * T * d, "Twice the number"),
            (lambda T, d, H: 4 * T * d * d + 2 * T * T * (d // H), "counted for one head"),
            (lambda T, d, H: 4 * T * d * (d // H) + 2 * T * T * d, "projections are counted for one head"),
            (lambda T, d, H: T * d, r"\(b, c\).*See it for T = 3, d = 4, H = 1, where you say 12"),
            (lambda T, d, H: "many", "A number is asked for, this is a str"),
            (lambda T, d: 4, "stopped with TypeError"),
            (192, "A function is asked for, this is an int"),
        ],
    },
}
