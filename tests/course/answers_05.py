"""Answers to the exercises of lesson 05: right ones, and wrong ones with what their hint must say."""

import numpy as np
import torch


def right_induction(maps, length):
    return maps[:, length:].diagonal(1, 1, 2).mean(-1)


def induction_in_a_loop(maps, length):
    return [sum(m[t, t - length + 1].item() for t in range(length, 2 * length)) / length for m in maps]


def induction_by_slice(maps, length):
    return np.diagonal(maps.numpy(), 1 - length, 1, 2)[:, 1:].mean(-1)


def below(k):
    return lambda maps, length: maps.diagonal(-k, 1, 2).mean(-1)


def right_chance(length):
    return sum(1 / (t + 1) for t in range(length, 2 * length)) / length


def chance_from_a_map(length):
    even = torch.ones(2 * length, 2 * length, dtype=torch.double).tril()
    return right_induction((even / even.sum(-1, keepdim=True))[None], length)[0]


def right_jump(steps, loss):
    rate = (loss[:-1] - loss[1:]) / (steps[1:] - steps[:-1])
    return steps[rate.argmax()]


def jump_in_numpy(steps, loss):
    return int(steps[int(np.argmin(np.diff(loss.numpy()) / np.diff(steps.numpy())))])


ANSWERS = {
    "05.induction": {
        "right": [right_induction, induction_in_a_loop, induction_by_slice],
        "wrong": [
            (lambda maps, length: maps.diagonal(-length, 1, 2).mean(-1), "duplicate-token score"),
            (lambda maps, length: maps.diagonal(-length - 1, 1, 2).mean(-1), "one place before the earlier copy"),
            (lambda maps, length: maps.diagonal(1 - length, 1, 2).mean(-1), "One query too many"),
            (below(1), "previous-token score"),
            (below(0), "each query to itself"),
            (lambda maps, length: right_induction(maps, length) / 2, "divided by all queries"),
            (lambda maps, length: right_induction(maps, length) * length, "a sum over queries"),
            (lambda maps, length: maps.diagonal(length - 1, 1, 2).mean(-1), "looks ahead"),
            (lambda maps, length: maps[:, length:].max(-1).values.mean(-1), "largest weight"),
            (lambda maps, length: right_induction(maps, length) + 1, "t - length . 1"),
            (lambda maps, length: right_induction(maps, length).mean(), "there are 2 heads"),
            (lambda maps, length: maps, r"The shape is \(2, 6, 6\)"),
            (lambda maps, length: maps.missing, "stopped with AttributeError"),
            (torch.eye(3), "A function is asked for"),
        ],
    },
    "05.chance": {
        "right": [right_chance, chance_from_a_map, lambda length: np.mean(1 / np.arange(length + 1, 2 * length + 1))],
        "wrong": [
            (lambda length: 1 / (2 * length), "one over the whole sequence"),
            (lambda length: 1 / length, "one over the segment"),
            (lambda length: sum(1 / t for t in range(length, 2 * length)) / length, r"t \+ 1 of them"),
            (lambda length: sum(1 / (t + 1) for t in range(2 * length)) / (2 * length), "queries of the first copy"),
            (lambda length: right_chance(length) * length, "a sum over queries"),
            (lambda length: 1 / (1.5 * length + 0.5), "Average the chances"),
            (lambda length: 0.5, "one over the segment"),
            (lambda length: np.log(2) / length, "That is the integral"),
            (lambda length: 7, "gives each of the tokens it sees the same weight"),
            (lambda length: "small", "A number is asked for, this is a str"),
            (0.1, "A function is asked for"),
        ],
    },
    "05.jump": {
        "right": [right_jump, jump_in_numpy, lambda steps, loss: float(right_jump(steps, loss))],
        "wrong": [
            (lambda steps, loss: steps[(loss[:-1] - loss[1:]).argmax()], "not equally far apart"),
            (lambda steps, loss: ((loss[:-1] - loss[1:]) / (steps[1:] - steps[:-1])).argmax(), "of the measurement"),
            (lambda steps, loss: steps[1:][((loss[:-1] - loss[1:]) / steps.diff()).argmax()], "where the fall ends"),
            (lambda steps, loss: steps[loss.argmin()], "where the loss is lowest"),
            (lambda steps, loss: steps[(loss.diff() / steps.diff()).argmax()], "mind the sign"),
            (lambda steps, loss: steps[(loss.diff().abs() / steps.diff()).argmax()], "mind the sign"),
            (lambda steps, loss: -5, "Divide each fall by the steps"),
            (lambda steps, loss: loss.diff(), "A number is asked for"),
            (lambda steps, loss: steps.missing, "stopped with"),
        ],
    },
}
