"""Exercises of lesson 08: drawing a gate, how often it is 0, the pull of the penalty, two ways to fix a gate."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headtools.course.exercises.exercise import Exercise, Hint, article, call, expect, expect_number, number, tensor

LOW, HIGH = -0.1, 1.1


def _gate(answer: Any) -> None:
    """gate(u, log_alpha, temperature): u (n,) uniform in (0, 1) -> gates (n,) in [0, 1], stretch (-0.1, 1.1)."""
    u = torch.tensor([0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9])
    for log_alpha, temperature in ((0.0, 1.0), (1.0, 0.5), (-0.5, 0.33)):
        given = {"u": u, "log_alpha": log_alpha, "temperature": temperature}
        noise = torch.logit(u.double())

        def stretched(s: Tensor) -> Tensor:
            return s * (HIGH - LOW) + LOW

        s = torch.sigmoid((noise + log_alpha) / temperature)
        got = tensor(call(answer, **given), tuple(u.shape), "(n,)", given)
        rule = "Four steps: logit of u, add log alpha and divide by the temperature, sigmoid, stretch and clip."
        mistakes = {
            "The stretch is missing: these numbers never reach 0 or 1. Widen (0, 1) to (-0.1, 1.1), then clip.": s,
            "The clipping is missing: some of these numbers lie below 0 or above 1.": stretched(s),
            "Stretch first and clip then. The other way round nothing is left for the clipping to do.": (
                stretched(s.clamp(0, 1))
            ),
            "The uniform number goes into the sigmoid as it is. It needs its logit first, log(u) - log(1 - u).": (
                stretched(torch.sigmoid((u.double() + log_alpha) / temperature)).clamp(0, 1)
            ),
            "Only log(u) went in; the logit has a second half, log(1 - u), to take away.": (
                stretched(torch.sigmoid((u.double().log() + log_alpha) / temperature)).clamp(0, 1)
            ),
            "You multiply by the temperature. A low temperature must push gates to the ends: divide by it.": (
                stretched(torch.sigmoid((noise + log_alpha) * temperature)).clamp(0, 1)
            ),
            "The temperature divides the noise alone. It divides the sum of noise and log alpha.": (
                stretched(torch.sigmoid(noise / temperature + log_alpha)).clamp(0, 1)
            ),
            "The temperature divides log alpha alone. It divides the sum of noise and log alpha.": (
                stretched(torch.sigmoid(noise + log_alpha / temperature)).clamp(0, 1)
            ),
            "The stretched interval is 1.2 wide, from -0.1 to 1.1: here an s of 1 does not become 1.1.": (
                (s * HIGH + LOW).clamp(0, 1)
            ),
            "Log alpha has the wrong sign: the larger it is, the more the gate is open.": (
                stretched(torch.sigmoid((noise - log_alpha) / temperature)).clamp(0, 1)
            ),
        }
        expect(got, stretched(s).clamp(0, 1), mistakes, rule, given)


def _p_zero(answer: Any) -> None:
    """p_zero(log_alpha, temperature): the probability that a gate is exactly 0, stretch (-0.1, 1.1)."""
    edge = math.log(-LOW / HIGH)  # the logit of the s that is stretched to exactly 0
    for log_alpha, temperature in ((0.0, 1.0), (2.0, 0.33), (-1.5, 0.5)):
        given = {"log_alpha": log_alpha, "temperature": temperature}
        got = number(call(answer, **given))
        want = _sigmoid(temperature * edge - log_alpha)
        mistakes = {
            "That is how often the gate is not 0. Mind the side.": 1 - want,
            "That is how often the gate is exactly 1. The point mass at 0 shrinks as log alpha grows.": (
                _sigmoid(log_alpha + temperature * edge)
            ),
            "The temperature stands at the wrong place: undo the steps of the gate one by one, the last one first.": (
                _sigmoid(edge - temperature * log_alpha)
            ),
            "You divide by the temperature. Going back, what was divided is multiplied.": (
                _sigmoid(edge / temperature - log_alpha)
            ),
            "The temperature is missing. Try it with temperature 1 and with 0.5.": _sigmoid(edge - log_alpha),
            "Half of the way: this is where the gate before stretching is below 0.5.": _sigmoid(-log_alpha),
            "Log alpha is missing.": _sigmoid(temperature * edge),
            "You take the logarithm of the edge. It is its logit that is needed, log x - log(1 - x).": (
                _sigmoid(temperature * math.log(-LOW / (HIGH - LOW)) - log_alpha)
            ),
            "This puts the edge through the gate's own formula. Go backwards: for which u does it come out as 0?": (
                _sigmoid((edge - log_alpha) / temperature)
            ),
            "That is the edge: the s that is stretched to 0. How often is s below it?": -LOW / (HIGH - LOW),
        }
        rule = "The gate is 0 when u is small enough. Which u gives exactly 0? That u is the probability."
        expect_number(got, want, mistakes, rule, given, rel_tol=1e-4, abs_tol=1e-6)


def _pull(answer: Any) -> None:
    """pull(p_open, penalty): slope in log alpha of penalty * P(gate > 0), where p_open = sigmoid(log alpha + c)."""
    p = torch.tensor([0.01, 0.2, 0.5, 0.9, 0.99])
    for penalty in (1.0, 0.05):
        given = {"p_open": p, "penalty": penalty}
        got = tensor(call(answer, **given), tuple(p.shape), "(n,)", given)
        q = p.double()
        rule = "P(gate > 0) is a sigmoid of log alpha plus a constant. What is the slope of a sigmoid?"
        mistakes = {
            "That is the penalty itself. Its slope is asked for: how fast it changes with log alpha.": q,
            "This has the opposite sign. The penalty grows with log alpha; it is descent that goes down.": -q * (1 - q),
            "The factor, penalty, is left out.": q * (1 - q) / penalty,
            "The penalty is the same for all of them: this slope would never vanish.": torch.ones_like(q),
            "One half is missing: this stays large where the gate is closed.": 1 - q,
            "That is the slope of log P. Here P itself is summed.": penalty * (1 - q),
        }
        expect(got / penalty, q * (1 - q), mistakes, rule, given)


def _fixed(answer: Any) -> None:
    """fixed(log_alpha): (n,) -> two tensors (n,): Voita's gates, 0 or 1, and Louizos', clipped; stretch (-0.1, 1.1)."""
    for values in ([-3.0, -2.0, -0.5, 0.5, 2.0, 3.0], [-2.5, -1.0, -0.1, 0.1, 1.0, 2.5, 9.0]):
        alpha = torch.tensor(values)
        given = {"log_alpha": alpha}
        raw = call(answer, **given)
        if isinstance(raw, Tensor) and raw.shape != (2, len(alpha)):
            raise Hint(f"Two tensors are asked for, Voita's and Louizos'; one of shape {tuple(raw.shape)} came.")
        try:
            first, second = raw
        except (TypeError, ValueError):
            raise Hint(f"Two tensors are asked for, Voita's and Louizos'; this is {article(raw)}.") from None
        voita, louizos = (tensor(part, tuple(alpha.shape), "(n,)", given) for part in (first, second))
        s = torch.sigmoid(alpha.double())
        closed, stretched = (alpha > 0).double(), s * (HIGH - LOW) + LOW
        rule = "Voita: 1 where P(1) > P(0), else 0. Louizos: sigmoid of log alpha, stretched, clipped."
        mistakes = {
            "The second comes first: Voita's gates are 0 or 1, Louizos' may lie between.": stretched.clamp(0, 1),
            "Voita's rule opens the gate where P(1) is the larger one; here it is closed there.": 1 - closed,
            "Voita's gates are 0 or 1. Compare P(1) with P(0), then decide.": s,
            "These open only where log alpha is above 2.4 and Louizos' gate is 1. Voita compares two point masses.": (
                (stretched >= 1).double()
            ),
        }
        expect(voita, closed, mistakes, rule, given)
        mistakes = {
            "Louizos' gate is stretched and clipped too, only the noise is left out.": s,
            "Louizos' gate lacks the clipping: some of these lie below 0 or above 1.": stretched,
            "Louizos' gate has no temperature: the noise and the division by it go together.": (
                (torch.sigmoid(alpha.double() / 0.33) * (HIGH - LOW) + LOW).clamp(0, 1)
            ),
            "Louizos' gate is not rounded; it keeps what lies between 0 and 1.": closed,
        }
        expect(louizos, stretched.clamp(0, 1), mistakes, rule, given)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


EXERCISES = (
    Exercise("08.gate", "a gate from a uniform number", _gate),
    Exercise("08.zero", "how often a gate is exactly 0", _p_zero),
    Exercise("08.pull", "the slope of the penalty", _pull),
    Exercise("08.fixed", "two ways to fix a gate", _fixed),
)
