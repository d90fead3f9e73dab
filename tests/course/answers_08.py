"""Answers to the exercises of lesson 08: right ones, and wrong ones with what their hint must say."""

import math

import numpy as np
import torch

from headtools.sparse.hard_concrete import HardConcrete


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def stretched(s):
    return 1.2 * s - 0.1


# --- 08.gate ----------------------------------------------------------------------------------------------------------


def right_gate(u, log_alpha, temperature):
    s = torch.sigmoid((u.log() - (1 - u).log() + log_alpha) / temperature)
    return (s * 1.2 - 0.1).clamp(0, 1)


def gate_by_the_package(u, log_alpha, temperature):
    return HardConcrete({("encoder", 0): 1}, temperature=temperature).draw(u, torch.tensor(log_alpha))


def gate_in_a_loop(u, log_alpha, temperature):
    drawn = []
    for x in u.tolist():
        odds = (x / (1 - x)) ** (1 / temperature) * math.exp(log_alpha / temperature)
        drawn.append(min(1.0, max(0.0, 1.2 * odds / (1 + odds) - 0.1)))
    return np.array(drawn)


def inner(u, log_alpha, temperature):
    return torch.sigmoid((u.logit() + log_alpha) / temperature)


# --- 08.zero ----------------------------------------------------------------------------------------------------------


def right_zero(log_alpha, temperature):
    return sigmoid(temperature * math.log(0.1 / 1.1) - log_alpha)


def zero_as_odds(log_alpha, temperature):
    odds = 11**temperature * math.exp(log_alpha)
    return torch.tensor(1 / (1 + odds))


def zero_by_the_package(log_alpha, temperature):
    return HardConcrete({("encoder", 0): 1}, temperature=temperature, start=log_alpha).p_zero()


EDGE = math.log(1 / 11)


# --- 08.pull ----------------------------------------------------------------------------------------------------------


def right_pull(p_open, penalty):
    return penalty * p_open * (1 - p_open)


def pull_by_autograd(p_open, penalty):
    log_alpha = torch.logit(p_open.double()).requires_grad_()
    (penalty * torch.sigmoid(log_alpha)).sum().backward()
    return log_alpha.grad


def pull_by_differences(p_open, penalty):
    x = torch.logit(p_open.double())
    return penalty * (torch.sigmoid(x + 1e-4) - torch.sigmoid(x - 1e-4)) / 2e-4


# --- 08.fixed ---------------------------------------------------------------------------------------------------------


def louizos(log_alpha):
    return stretched(torch.sigmoid(log_alpha)).clamp(0, 1)


def right_fixed(log_alpha):
    return (log_alpha > 0).float(), louizos(log_alpha)


def fixed_by_the_package(log_alpha):
    gates = HardConcrete({("encoder", 0): len(log_alpha)})
    return [gates.test_gates(by, log_alpha) for by in ("voita", "louizos")]


def fixed_stacked(log_alpha):
    gates = HardConcrete({("encoder", 0): 1})
    return torch.stack([(gates.p_one(log_alpha) > gates.p_zero(log_alpha)).float(), louizos(log_alpha)])


def voita_beside(second):
    return lambda log_alpha: ((log_alpha > 0).float(), second(log_alpha))


ANSWERS = {
    "08.gate": {
        "right": [right_gate, gate_by_the_package, gate_in_a_loop],
        "wrong": [
            (inner, "The stretch is missing"),
            (lambda u, a, t: stretched(inner(u, a, t)), "The clipping is missing"),
            (lambda u, a, t: stretched(inner(u, a, t).clamp(0, 1)), "The clipping is missing|Stretch first"),
            (lambda u, a, t: right_gate(torch.sigmoid(u), a, t), "needs its logit first"),
            (lambda u, a, t: stretched(torch.sigmoid((u.log() + a) / t)).clamp(0, 1), r"Only log\(u\) went in"),
            (lambda u, a, t: stretched(torch.sigmoid((u.logit() + a) * t)).clamp(0, 1), "divide by it"),
            (lambda u, a, t: stretched(torch.sigmoid(u.logit() / t + a)).clamp(0, 1), "the sum of noise"),
            (lambda u, a, t: stretched(torch.sigmoid(u.logit() + a / t)).clamp(0, 1), "log alpha alone|sum of noise"),
            (lambda u, a, t: (1.1 * inner(u, a, t) - 0.1).clamp(0, 1), "1.2 wide"),
            (lambda u, a, t: right_gate(u, -a, t), "the wrong sign"),
            (lambda u, a, t: right_gate(u, a, t).round(), "Four steps"),
            (lambda u, a, t: right_gate(u, a, t).mean(), r"should be \(n,\) = \(7,\)"),
            (lambda u, a, t: u.missing, "stopped with AttributeError"),
            (0.5, "A function is asked for"),
        ],
    },
    "08.zero": {
        "right": [right_zero, zero_as_odds, zero_by_the_package],
        "wrong": [
            (lambda a, t: 1 - right_zero(a, t), "not 0|exactly 1"),
            (lambda a, t: right_zero(-a, t), "exactly 1"),
            (lambda a, t: sigmoid(EDGE - t * a), "the wrong place"),
            (lambda a, t: sigmoid(EDGE / t - a), "You divide by the temperature"),
            (lambda a, t: sigmoid(EDGE - a), "The temperature is missing"),
            (lambda a, t: sigmoid(-a), "Half of the way"),
            (lambda a, t: sigmoid(t * math.log(1 / 12) - a), "the logarithm of the edge"),
            (lambda a, t: sigmoid(t * EDGE), "Log alpha is missing"),
            (lambda a, t: sigmoid((EDGE - a) / t), "the gate's own formula"),
            (lambda a, t: 1 / 12, "That is the edge|the probability"),
            (lambda a, t: 2.0, "That u is the probability"),
            (lambda a, t: torch.zeros(2), "A number is asked for"),
            (0.3, "A function is asked for"),
        ],
    },
    "08.pull": {
        "right": [right_pull, pull_by_autograd, pull_by_differences],
        "wrong": [
            (lambda p, x: x * p, "That is the penalty itself"),
            (lambda p, x: -x * p * (1 - p), "opposite sign"),
            (lambda p, x: p * (1 - p), "penalty, is left out"),
            (lambda p, x: x * torch.ones_like(p), "would never vanish"),
            (lambda p, x: x * (1 - p), "One half is missing"),
            (lambda p, x: x * p**2, "slope of a sigmoid"),
            (lambda p, x: (x * p).sum(), r"should be \(n,\) = \(5,\)"),
            (lambda p, x: "steep", "A tensor of shape"),
            (0.25, "A function is asked for"),
        ],
    },
    "08.fixed": {
        "right": [right_fixed, fixed_by_the_package, fixed_stacked],
        "wrong": [
            (lambda a: right_fixed(a)[::-1], "The second comes first"),
            (lambda a: ((a < 0).float(), louizos(a)), "Voita's rule opens the gate"),
            (lambda a: (torch.sigmoid(a), louizos(a)), "Voita's gates are 0 or 1"),
            (lambda a: ((a > 2.398).float(), louizos(a)), "only where log alpha is above 2.4"),
            (voita_beside(torch.sigmoid), "stretched and clipped too"),
            (voita_beside(lambda a: stretched(torch.sigmoid(a))), "lacks the clipping"),
            (voita_beside(lambda a: louizos(a / 0.33)), "no temperature"),
            (voita_beside(lambda a: (a > 0).float()), "not rounded"),
            (voita_beside(lambda a: torch.zeros_like(a)), "Louizos: sigmoid of log alpha"),
            (lambda a: (a > 0).float(), "one of shape"),
            (lambda a: 7, "Two tensors are asked for"),
            (lambda a: right_fixed(a[:2]), r"The shape is \(2,\)"),
        ],
    },
}
