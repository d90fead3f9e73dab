"""Exercises of lesson 09: a gate that is random and can be trained, its training, a target in place of a penalty."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headtools.course import my_heads
from headtools.course.exercises.exercise import (
    Exercise,
    Hint,
    NotTried,
    article,
    call,
    expect,
    number,
    same,
    show,
    tensor,
)
from headtools.course.exercises.lesson_00 import tiny_translator

LOW, HIGH = -0.1, 1.1


# --- 09.hard_concrete -------------------------------------------------------------------------------------------------


def _hard_concrete(answer: Any) -> str | None:
    """HardConcrete(heads, start, temperature, stretch) with sample(noise), p_open() and forward(), a gate a head."""
    if not inspect.isclass(answer):
        raise Hint(f"The class is asked for, HardConcrete; this is {article(answer)}.")
    u = torch.tensor([[0.1, 0.25, 0.4], [0.5, 0.6, 0.9]])
    settings = (([0.0, 1.0, -0.5], 1.0), ([2.0, -1.5, 0.3], 0.5), ([0.5, 3.0, -3.0], 0.33))
    parts = {"sample": _sample, "p_open": _p_open, "forward": _forward}
    done: list[str] = []
    for name, judge in parts.items():
        for values, temperature in settings:
            gates = _made(answer, torch.tensor(values), temperature)
            try:
                judge(gates, u, temperature)
            except NotTried:
                if not done:
                    raise
                right = " and ".join(done) + (" are" if len(done) > 1 else " is")
                raise Hint(f"{right} right. {name} is still to come.") from None
            except Hint as hint:
                raise Hint(f"{name}: {hint}") from None
        done.append(name)
    return None


def _made(answer: Any, alpha: Tensor, temperature: float) -> Any:
    """Make a learner's gates with these log alphas."""
    try:
        gates = answer(len(alpha), temperature=temperature)
        gates.log_alpha.data = alpha.clone()
    except (AttributeError, TypeError) as error:
        raise Hint(f"{type(error).__name__}: {error}. Leave __init__ as it is.") from error
    return gates


def _sample(gates: Any, u: Tensor, temperature: float) -> None:
    alpha = gates.log_alpha.detach().double()
    given = {"noise": u, "log_alpha": alpha, "temperature": temperature}
    result = call(gates.sample, noise=u)
    got = tensor(result, tuple(u.shape), "the shape of noise", given)
    noise = torch.logit(u.double())
    s = torch.sigmoid((noise + alpha) / temperature)

    def stretched(s: Tensor) -> Tensor:
        return s * (HIGH - LOW) + LOW

    def cut(s: Tensor) -> Tensor:
        return stretched(s).clamp(0, 1)

    mistakes = {
        "The stretch is missing: these numbers never reach 0 or 1. Widen (0, 1) to (-0.1, 1.1), then clip.": s,
        "The clipping is missing: some of these numbers lie below 0 or above 1.": stretched(s),
        "The uniform number goes into the sigmoid as it is. It needs its logit first, log(u) - log(1 - u).": (
            cut(torch.sigmoid((u.double() + alpha) / temperature))
        ),
        "Only log(u) went in; the logit has a second half, log(1 - u), to take away.": (
            cut(torch.sigmoid((u.double().log() + alpha) / temperature))
        ),
        "You multiply by the temperature. A low temperature must push gates to the ends: divide by it.": (
            cut(torch.sigmoid((noise + alpha) * temperature))
        ),
        "The temperature divides the noise alone. It divides the sum of noise and log alpha.": (
            cut(torch.sigmoid(noise / temperature + alpha))
        ),
        "The temperature divides log alpha alone. It divides the sum of noise and log alpha.": (
            cut(torch.sigmoid(noise + alpha / temperature))
        ),
        "The stretched interval is 1.2 wide, from -0.1 to 1.1: here an s of 1 does not become 1.1.": (
            (s * HIGH + LOW).clamp(0, 1)
        ),
        "Log alpha has the wrong sign: the larger it is, the more the gate is open.": (
            cut(torch.sigmoid((noise - alpha) / temperature))
        ),
        "The noise is not used: these are the gates without it, which forward returns.": cut(
            torch.sigmoid(alpha)
        ).expand_as(s),
    }
    rule = "Four steps: logit of u, add log alpha and divide by the temperature, sigmoid, stretch and clip."
    expect(got, cut(s), mistakes, rule, given)
    want = torch.where((stretched(s) > 0) & (stretched(s) < 1), (HIGH - LOW) * s * (1 - s) / temperature, 0).sum(0)
    _sloped(result, gates, want)


def _sloped(result: Any, gates: Any, want: Tensor) -> None:
    """Raise Hint where a result has not the slope in log alpha that is wanted."""
    slope = None
    if isinstance(result, Tensor) and result.requires_grad:
        (slope,) = torch.autograd.grad(result.sum(), gates.log_alpha, allow_unused=True)
    if slope is None:
        raise Hint(
            "The numbers are right, but they have no gradient in log_alpha, so that nothing could be trained. Is it "
            "detached, or turned into numbers on the way?"
        )
    if not same(slope, want, 1e-3):
        raise Hint("The numbers are right, but their gradient in log_alpha is not. Is part of it detached?")


def _p_open(gates: Any, _u: Tensor, temperature: float) -> None:
    alpha = gates.log_alpha.detach().double()
    given = {"log_alpha": alpha, "temperature": temperature}
    result = call(gates.p_open)
    got = tensor(result, tuple(alpha.shape), "(heads,)", given)
    edge = math.log(-LOW / HIGH)  # the logit of the s that is stretched to exactly 0
    want = torch.sigmoid(alpha - temperature * edge)
    mistakes = {
        "This is how often the gate is exactly 0. Asked for is how often it is not.": 1 - want,
        "This is how often the gate is exactly 1. A gate between 0 and 1 counts as open, too.": (
            torch.sigmoid(alpha + temperature * edge)
        ),
        "The temperature stands at the wrong place: undo the steps of the gate one by one, the last one first.": (
            torch.sigmoid(temperature * alpha - edge)
        ),
        "You divide by the temperature. Going back, what was divided is multiplied.": (
            torch.sigmoid(alpha - edge / temperature)
        ),
        "The temperature is missing. Try it with temperature 1 and with 0.5.": torch.sigmoid(alpha - edge),
        "This is where the gate before stretching is above one half.": torch.sigmoid(alpha),
        "Log alpha is missing.": torch.sigmoid(torch.full_like(alpha, -temperature * edge)),
        "You take the logarithm of the edge. It is its logit that is needed, log x - log(1 - x).": (
            torch.sigmoid(alpha - temperature * math.log(-LOW / (HIGH - LOW)))
        ),
        "This puts the edge through the gate's own formula. Go backwards: for which u does it come out as 0?": (
            torch.sigmoid((alpha - edge) / temperature)
        ),
    }
    rule = "The gate is 0 when u is small enough. Which u gives exactly 0? That u is the probability of a closed gate."
    expect(got, want, mistakes, rule, given)
    _sloped(result, gates, want * (1 - want))


def _forward(gates: Any, _u: Tensor, temperature: float) -> None:
    alpha = gates.log_alpha.detach().double()
    given = {"log_alpha": alpha, "temperature": temperature}
    got = tensor(call(gates.forward), tuple(alpha.shape), "(heads,)", given)
    s = torch.sigmoid(alpha)
    stretched = s * (HIGH - LOW) + LOW
    mistakes = {
        "This gate is stretched and clipped too, only the noise is left out.": s,
        "The clipping is missing: some of these lie below 0 or above 1.": stretched,
        "The temperature goes with the noise: here neither is left.": (
            (torch.sigmoid(alpha / temperature) * (HIGH - LOW) + LOW).clamp(0, 1)
        ),
        "This is Voita's rule, 0 or 1. Here a gate keeps what lies between.": (alpha > 0).double(),
        "This is rounded. Here a gate keeps what lies between 0 and 1.": stretched.clamp(0, 1).round(),
        "This is the probability of an open gate, not a gate.": (
            torch.sigmoid(alpha - temperature * math.log(-LOW / HIGH))
        ),
    }
    if temperature == 1.0:  # then the gate with and without a temperature are one
        mistakes.pop("The temperature goes with the noise: here neither is left.")
    expect(got, stretched.clamp(0, 1), mistakes, "The sigmoid of log alpha, stretched and clipped.", given)


# --- 09.fit_gates -----------------------------------------------------------------------------------------------------


KEYS = [("encoder", 0), ("encoder", 2)]

_FIT_MISTAKES = {
    "free": "The penalty has no effect: penalty(n), for the expected number of open gates n, is added to the loss.",
    "price": "Only the penalty moves the gates; the model's loss belongs to the sum, computed with the gates in place.",
    "reward": "The penalty is subtracted. It is added: open gates cost something.",
    "open": "The model runs without the gates, so only the penalty moves them. Compute its loss inside the block.",
    "one draw": "Every step has the same draw. Each step takes its own row of noise.",
    "fixed": "The gates are not drawn: sample them with the step's row of noise.",
    "one batch": "Every step sees the same batch. Each step takes the next one.",
    "heap": "Gradients pile up from step to step: set them to zero after each step.",
    "descent": "This is plain gradient descent. Adam divides each gradient by its running size: torch.optim.Adam.",
    "rate": "The rate is not used.",
    "mean": "The penalty is for the number of open gates that we expect: their probabilities summed, not averaged.",
    "drawn": "The penalty is for the expected number of open gates, p_open().sum(), not for what was drawn.",
    "turned": "The gates went to the wrong heads: the first ones are those of the first site, in the order of keys.",
}


def _fit_gates(answer: Any) -> str | None:
    """fit_gates(model, batches, keys, gate, penalty, noise, rate, also) -> log alpha by step, (steps + 1, heads)."""
    model, batches, noise = _fit_case()
    before = [p.detach().clone() for p in model.parameters()]
    gate = my_heads.HardConcrete(8, start=1.0)
    result = call(
        answer, model=model, batches=batches, keys=KEYS, gate=gate, penalty=_costly, noise=noise, rate=0.2, also=()
    )
    if any(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)):
        return "The model's weights have changed. It is log_alpha alone that learns here: give Adam nothing else."
    if _hooked(model):
        return "Gates are left in the model. Use a with block, in which they are, and out of which they are not."
    if isinstance(result, nn.Module):
        raise Hint("Return log alpha at the start and after each step, (steps + 1, heads), not the gate itself.")
    want = _fitted()
    if isinstance(result, list) and result and isinstance(result[0], Tensor):
        raise Hint("This is a list. Put the rows below one another: torch.stack(history).")
    lacks = {
        (len(noise), 8): "One row is missing: begin with log alpha as it is before the first step.",
        (8,): "This is log alpha at one moment. Keep a copy of it at the start and after each step.",
    }
    got = tensor(result, (len(noise) + 1, 8), "(steps + 1, heads)", {}, lacks)
    if same(got, got[-1:].expand_as(got)):
        if not same(got[0], torch.ones(8)):
            return "All rows are the last one: they are log_alpha itself, five times. Keep copies: detach().clone()."
        return "Log alpha has not moved. Does each step end with backward and a step of the optimizer?"
    if not same(got, want, 2e-3):
        kinds = (kind for kind in _FIT_MISTAKES if same(got, _fitted(kind), 2e-3))
        hint = next((_FIT_MISTAKES[kind] for kind in kinds), None)
        hint = hint or "Each step: draw, loss inside the gates, plus penalty(n), backward, a step of Adam, zero_grad."
        ours = "\n".join(f"    step {i}: {_few(got[i])}, here {_few(want[i])}" for i in range(3))
        return f"{hint}\nLog alpha of the first three heads:\n{ours}"
    if not same(gate.log_alpha, got[-1]):
        return "The history is right, but the gate itself is not trained: give Adam gate.log_alpha, not a copy."
    learning = list(model.get_encoder().layers.requires_grad_().parameters())
    call(
        answer,
        model=model,
        batches=batches,
        keys=KEYS,
        gate=my_heads.HardConcrete(8, start=1.0),
        penalty=_costly,
        noise=noise,
        rate=0.2,
        also=learning,
    )
    moved = max((p.detach() - old).abs().max().item() for p, old in zip(model.parameters(), before, strict=True))
    # a step of Adam is about as large as its rate
    if moved == 0:
        return "Right for a frozen model. The parameters in also should learn as well: a second group of Adam."
    if moved > 0.02:
        return "The parameters in also learn at the gates' rate. Give them a group of their own, with a rate of 3e-4."
    return None


def _few(row: Tensor) -> str:
    return ", ".join(f"{x:.2f}" for x in row[:3].tolist())


def _hooked(model: nn.Module) -> bool:
    return any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def _costly(n: Tensor) -> Tensor:
    """A penalty that is no multiple of n: four nats for eight open gates."""
    return n**2 / 16


def _fit_case() -> tuple[nn.Module, list[dict[str, Tensor]], Tensor]:
    model, batch = tiny_translator()
    draw = torch.Generator().manual_seed(0)
    batches = [
        batch
        | {
            "input_ids": torch.randint(3, 12, (2, 4), generator=draw),
            "attention_mask": torch.ones(2, 4, dtype=torch.long),
            "decoder_input_ids": torch.randint(3, 12, (2, 3), generator=draw),
            "labels": torch.randint(3, 12, (2, 3), generator=draw),
        }
        for _ in range(4)
    ]
    return model.requires_grad_(False), batches, torch.rand(4, 8, generator=draw)


def _fitted(kind: str = "") -> Tensor:
    """Log alpha by step, or what comes of one mistake."""
    model, batches, noise = _fit_case()
    gate = my_heads.HardConcrete(8, start=1.0)
    history = [gate.log_alpha.detach().clone()]
    rate = 0.001 if kind == "rate" else 0.2
    descent = kind == "descent"
    optimizer = (torch.optim.SGD if descent else torch.optim.Adam)([gate.log_alpha], lr=rate)
    for step, u in enumerate(noise):
        drawn = gate() if kind == "fixed" else gate.sample(noise[0] if kind == "one draw" else u)
        values = drawn.view(4, 2).T if kind == "turned" else drawn.view(2, 4)
        chance = gate.p_open()
        count = {"mean": chance.mean(), "drawn": (drawn > 0).float().sum()}.get(kind, chance.sum())
        with my_heads.gates(model, {} if kind == "open" else dict(zip(KEYS, values, strict=True))):
            task = model(**batches[0 if kind == "one batch" else step]).loss
        cost = 0.0 * count if kind == "free" else _costly(count)
        total = cost if kind == "price" else task - cost if kind == "reward" else task + cost
        total.backward()
        optimizer.step()
        if kind != "heap":
            optimizer.zero_grad()
        history.append(gate.log_alpha.detach().clone())
    return torch.stack(history)


# --- 09.target_size ---------------------------------------------------------------------------------------------------


_TARGET_MISTAKES = {
    "cold": "The goal stands at the target from the first step on. It should move there in warm_up steps.",
    "beyond": "After warm_up steps the goal moves on, beyond the target. It stops there: min(1, step / warm_up).",
    "late": "The goal is one step ahead: in the first step it is where training starts, so that the gap is 0.",
    "gates": "The gap is in gates. Divide it by what is open at the start, so that one rate fits all models.",
    "down": "The multipliers fall while too many gates are open. They rise then: add rate times gap.",
    "line": "The second part is missing, b times the square of the gap.",
    "square": "The first part is missing, a times the gap.",
    "first": "The multipliers are moved before the cost is computed. First the cost, then move them.",
    "linear b": "b rises with the square of the gap, a with the gap.",
    "still": "The multipliers stay at 0, so nothing is ever paid. After each call a and b move (nonlocal a, b).",
    "positive": "The gap has lost its sign. Where too few gates are open it is negative, and a falls.",
    "rate": "The rate is not used.",
}


def _target_size(answer: Any) -> str | None:
    """target_size(target, warm_up, rate) -> penalty(n): a gap + b gap^2, whose multipliers rise with the gap."""
    for target, warm_up, rate, counts in _TARGETS:
        penalty = call(answer, target=target, warm_up=warm_up, rate=rate)
        if not callable(penalty):
            raise Hint(
                f"A function is asked for, penalty(n), which fit_gates calls in each step; this is {article(penalty)}."
            )
        costs, slopes, before = [], [], []
        for n in counts:
            one = torch.tensor(n, requires_grad=True)
            cost = call(penalty, n=one) if not costs else _again(penalty, one)
            costs.append(number(cost))
            slopes.append(_slope(cost, one, before))
            before.append(one)
        want, want_slopes = _costs(target, warm_up, rate, counts)
        if not same(torch.tensor(costs), torch.tensor(want), 1e-4):
            kinds = {kind: _costs(target, warm_up, rate, counts, kind)[0] for kind in _TARGET_MISTAKES}
            hints = (
                _TARGET_MISTAKES[kind]
                for kind, wrong in kinds.items()
                if same(torch.tensor(costs), torch.tensor(wrong), 1e-4)
            )
            hint = next(hints, "Each call: the goal, the gap, the cost a gap + b gap^2, and then a and b move.")
            given = show({"target": target, "warm_up": warm_up, "rate": rate})
            lines = f"for n = {', '.join(f'{n:g}' for n in counts)}\nyou ask {_list(costs)}\nit is   {_list(want)}"
            return f"{hint}\nSee it for {given}, {lines}"
        if not same(torch.tensor(slopes), torch.tensor(want_slopes), 1e-3):
            if not any(slopes):  # NaN counts as one
                return "The cost has no slope in n, so no gate would move. Compute it from the tensor n, not n.item()."
            return (
                "The costs are right, but their slopes in n are not. The multipliers, the goal and what is open at the "
                "start are numbers: gap.item() and n.item(), so that no gradient runs through earlier steps."
            )
    return None


_TARGETS = (
    (4.0, 2, 0.5, (8.0, 7.0, 6.5, 6.0, 4.5, 3.0, 2.0)),
    (16.0, 4, 0.3, (40.0, 38.0, 36.0, 30.0, 20.0, 12.0)),  # and nothing is left of the first
)


def _again(penalty: Callable, n: Tensor) -> Any:
    """Call a learner's penalty once more; what was stopped by is a hint."""
    try:
        return penalty(n)
    except Exception as error:
        raise Hint(f"The first call went well, a later one stopped with {type(error).__name__}: {error}") from error


def _slope(cost: Any, n: Tensor, before: list[Tensor]) -> float:
    """Return the slope of a cost in n; NaN where it also has one in the n of an earlier call."""
    if not isinstance(cost, Tensor) or not cost.requires_grad:
        return 0.0
    slope, *earlier = torch.autograd.grad(cost, [n, *before], allow_unused=True, retain_graph=True)
    if any(each is not None for each in earlier):
        return math.nan
    return 0.0 if slope is None else slope.item()


def _costs(
    target: float, warm_up: int, rate: float, counts: Iterable[float], kind: str = ""
) -> tuple[list[float], list[float]]:
    """What each call costs, and its slope, or what comes of one mistake."""
    begin, a, b, costs, slopes = next(iter(counts)), 0.0, 0.0, [], []
    for step, n in enumerate(counts):
        share = (step + (kind == "late")) / warm_up
        share = 1.0 if kind == "cold" else share if kind == "beyond" else min(1.0, share)
        gap = n - (begin + (target - begin) * share)
        unit = 1.0 if kind == "gates" else begin
        gap = abs(gap / unit) if kind == "positive" else gap / unit
        rise = 0.0 if kind == "still" else 1.0 if kind == "rate" else -rate if kind == "down" else rate
        moved = a + rise * gap, b + rise * (gap if kind == "linear b" else gap**2)
        if kind == "first":
            a, b = moved
        line, square = (0.0 if kind == "square" else a), (0.0 if kind == "line" else b)
        costs.append(line * gap + square * gap**2)
        slopes.append((line + 2 * square * gap) / unit)
        a, b = moved
    return costs, slopes


def _list(values: list[float]) -> str:
    return ", ".join(f"{x:.4f}" for x in values)


EXERCISES = (
    Exercise(
        "09.hard_concrete", "a gate that is random and trained", _hard_concrete, "HardConcrete", ("HardConcrete",)
    ),
    Exercise("09.fit_gates", "the training of the gates", _fit_gates, "fit_gates", ("fit_gates",)),
    Exercise("09.target_size", "a target in place of a penalty", _target_size, "target_size", ()),
)
