"""Exercises of lesson 07: gates, slopes of the loss by them, an input for a bug, costs, a slope behind saturation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _len_torch_function_stack, _pop_mode

import headtools as ht
from headtools.course import my_heads
from headtools.course.exercises.exercise import Exercise, Hint, NotTried, article, call, same, show
from headtools.course.exercises.lesson_00 import entered, outputs, restored, restored_after_error, tiny_translator
from headtools.organism.written_models import WrittenModel, write_head, write_induction

Rows = dict[tuple, Tensor]


def _gates(answer: Any) -> str | None:
    """gates(model, values): a context manager inside which each head's z is times its gate, {key: (H,) or (B, H)}."""
    model, batch = _translator()
    clean, on = deepcopy(model), outputs(model, batch)  # which has no hooks, whatever the answer leaves behind
    shared, own = torch.tensor([1.0, 0.5, 0.0, 2.0]), torch.tensor([[1.0, 0.0, 0.5, 1.0], [0.0, 2.0, 1.0, -1.0]])
    cases = [{("encoder", 1): shared}, {("encoder", 0): own}, {("decoder", 1): own, ("cross", 0): shared}]
    for values in cases:
        with entered(answer, model, values=values):
            got = outputs(model, batch)
        if not same(got, _gated(clean, batch, values)):
            return f"{_other_gates(clean, batch, values, got, on)}\nSee it for values = {_short(values)}."
        restored(partial(outputs, model, batch), on, "the gates are still there")
    restored_after_error(answer, model, partial(outputs, model, batch), on, "the gates there", values=values)
    gate = torch.ones(2, 4, requires_grad=True)
    right = gate.detach().clone().requires_grad_()
    values = {("encoder", 1): gate}
    context = call(answer, model=model, values=values)  # without copies: it is this tensor that has the slope
    with context:
        total = model(**batch).logits.square().sum()
    slope = _slope(total, gate)
    if slope is None:
        return (
            "The gates have no slope: the result must depend on the tensor in values itself. Is it detached, copied "
            "with .data or .tolist(), or is the block run under torch.no_grad()?"
        )
    with my_heads.gates(model, {("encoder", 1): right}):
        want = _slope(model(**batch).logits.square().sum(), right)
    if not same(slope, want, 1e-3):
        return "The numbers are right, but their slope by the gates is not. Is the gate multiplied in just once?"
    twice = {("encoder", 1): shared}
    with entered(answer, model, values=twice), entered(answer, model, values=twice):
        got = outputs(model, batch)
    if not same(got, _gated(clean, batch, {("encoder", 1): shared**2})):
        return "One gates inside another: both should multiply. Does one hook undo what the other did?"
    return None


def _slope(total: Tensor, gate: Tensor) -> Tensor | None:
    try:
        return torch.autograd.grad(total, gate, allow_unused=True)[0]
    except RuntimeError:
        return None


def _translator() -> tuple[nn.Module, dict[str, Tensor]]:
    """The random translator of lesson 00 with two sentences, all tokens real, and their translations as labels."""
    model, _ = tiny_translator()
    batch = {"input_ids": torch.tensor([[3, 7, 5, 1], [6, 4, 8, 1]]), "labels": torch.tensor([[4, 9, 1], [5, 3, 1]])}
    return model, batch | {"attention_mask": torch.ones(2, 4, dtype=torch.long)}


def _scaled(model: nn.Module, values: Mapping, example: int) -> nn.Module:
    """A copy whose output projections have each head's columns times its gate: the judge's own way, without hooks."""
    copy = deepcopy(model)
    for key, gate in values.items():
        of_example = gate if gate.dim() == 1 else gate[example]
        site = ht.sites(copy)[key]
        with torch.no_grad():
            site.out.weight *= of_example.repeat_interleave(site.value_dim)
    return copy


def _gated(model: nn.Module, batch: Mapping, values: Mapping) -> Tensor:
    """The logits under gates, example by example."""
    return torch.stack([outputs(_scaled(model, values, i), batch)[i] for i in range(len(batch["input_ids"]))])


def _other_gates(model: nn.Module, batch: Mapping, values: Mapping, got: Tensor, on: Tensor) -> str:
    """The hint for logits under other gates."""
    if same(got, on):
        return (
            "The gates change nothing inside the block. A hook is registered before the yield, and a pre-hook returns "
            "the new arguments, as a tuple."
        )
    *_, (last, of_last) = values.items()
    tried = [
        ("Only the last layer's gates are there. Is there a hook for each?", {last: of_last}),
        (
            "Every layer has the gates of the last. A function made in a loop sees the loop's variables as they are "
            "when it runs, which is later: give them to it as defaults, def hook(module, args, gate=gate).",
            dict.fromkeys(values, of_last),
        ),
        (
            "The gates are used upside down: 1 leaves a head as it is, 0 switches it off.",
            {k: 1 - v for k, v in values.items()},
        ),
        (
            "All examples have the gates of the first. Gates (B, H) have one row for each example.",
            {k: v if v.dim() == 1 else v[0] for k, v in values.items()},
        ),
        (
            "All examples have the mean of the gates. Gates (B, H) have one row for each example.",
            {k: v if v.dim() == 1 else v.mean(0) for k, v in values.items()},
        ),
        (
            "The gate is rounded to on and off. It multiplies: 0.5 halves what the head passes on.",
            {k: (v != 0).float() for k, v in values.items()},
        ),
        ("The gate is multiplied in twice.", {k: v.square() for k, v in values.items()}),
    ]
    for hint, others in tried:
        if same(got, _gated(model, batch, others)):
            return hint
    for name, axis in (("Tokens", 1), ("Features", 3)):
        along = _along(model, batch, values, axis)
        if along is not None and same(got, along):
            return (
                f"{name} are multiplied in place of heads. z is (example, token, head, feature): give the gate an axis "
                "of length 1 for tokens and one for features."
            )
    return (
        "This is not the output of the model with these gates. z is (example, token, head, feature): which axes does "
        "a gate need so that it is the same for all tokens and features?"
    )


def _along(model: nn.Module, batch: Mapping, values: Mapping, axis: int) -> Tensor | None:
    """The logits with gates along another axis of z than the heads'; None where they do not fit it."""

    def change(z: Tensor, gate: Tensor) -> Tensor:
        if axis == 3:
            return z * gate.view(-1, 1, 1, gate.shape[-1])
        return z * gate.view(-1, gate.shape[-1], 1, 1)

    try:
        with my_heads.edit(model, {key: partial(change, gate=gate) for key, gate in values.items()}):
            return outputs(model, batch)
    except RuntimeError:
        return None


def _short(values: Mapping) -> str:
    """Write gates out, whole numbers without a point."""
    rows = {key: [[f"{x:g}" for x in row] for row in gate.view(-1, 4).tolist()] for key, gate in values.items()}
    parts = [f"{key}: [{', '.join('[' + ', '.join(row) + ']' for row in some)}]" for key, some in rows.items()]
    return "{" + ", ".join(parts) + "}"


# --- rows ---------------------------------------------------------------------------------------------------------


def _batches() -> list[dict[str, Tensor]]:
    """Two batches, of two sentences and of one, so that what is done per batch shows."""
    _, two = _translator()
    one = {"input_ids": torch.tensor([[9, 2, 1]]), "labels": torch.tensor([[7, 2, 6]])}
    return [two, one | {"attention_mask": torch.ones(1, 3, dtype=torch.long)}]


def _last_word(model: nn.Module, batch: Mapping) -> Tensor:
    """Another loss, of the last word alone: (B,)."""
    return -model(**batch).logits[:, -1].log_softmax(-1).gather(1, batch["labels"][:, -1:])[:, 0]


def _rows_of(answer: Any, model: nn.Module, batches: list[dict], loss: Callable | None) -> Rows:
    """Read what the learner's function returns as rows, {key: (n, H)}; NotTried for a stub, Hint for other things."""
    code = getattr(answer, "__code__", None)
    if code is not None and not set(code.co_names) - {"loss", "mine"} and not code.co_freevars:
        raise NotTried  # it uses nothing but what the stub does
    given = {"model": model, "batches": batches} | ({} if loss is None else {"loss": loss})
    found = call(answer, **given)
    if not isinstance(found, Mapping):
        raise Hint(f"Rows are asked for, a dict {{site.key: (n, H)}}; this is {article(found)}.")
    n, rows = sum(len(batch["labels"]) for batch in batches), {}
    for site in ht.sites(model):
        if site.key not in found:
            other = next(iter(found), None)
            named = f"; there is one for {other!r}" if other is not None else ""
            raise Hint(f"There is no entry {site.key}{named}. Is there one for each of ht.sites(model), by site.key?")
        value = found[site.key]
        if not isinstance(value, Tensor):
            raise Hint(f"The entry {site.key} is {article(value)}; a tensor (n, H) is asked for.")
        shape = tuple(value.shape)
        if shape != (n, site.heads):
            raise Hint(_shape_hint(shape, n, site.heads, len(batches)))
        if value.requires_grad:
            raise Hint(
                "The rows keep their graph, and with it every run of the model: several times the memory. No "
                "slope of them is asked for: work under torch.no_grad(), or return detached rows."
            )
        rows[site.key] = value
    return rows


def _shape_hint(shape: tuple, n: int, heads: int, batches: int) -> str:
    hints = {
        (heads,): "These are the means. Rows keep every example apart: one row each, (n, H).",
        (batches, heads): "There is one row for each batch. Every example needs one of its own: (n, H).",
        (heads, n): "Examples go down and heads across: (n, H), not (H, n).",
        (1, heads): "This is the last batch alone, or all examples share a row: put the rows of all batches together.",
    }
    return f"{hints.get(shape, 'The shape is not (n, H).')} There are {n} examples and {heads} heads; got {shape}."


def _told(got: Rows, want: Rows, mistakes: Mapping[str, Rows], rule: str, tolerance: float = 1e-3) -> str | None:
    """Return the hint of the known mistake that gave these rows, or ``rule``, with a layer to see; None if right."""

    def equal(a: Rows, b: Rows) -> bool:
        scale = max(value.abs().max().item() for value in want.values())
        return all((a[key] - value).abs().max() <= tolerance * scale for key, value in b.items())

    if equal(got, want):
        return None
    hint = next((hint for hint, wrong in mistakes.items() if equal(got, wrong)), rule)
    key = next(key for key in want if not equal(got, {key: want[key]}))
    return f"{hint}\nFor {key}, rows are examples: {show({'yours': got[key], 'right': want[key]})}"


def _each(rows: Rows, change: Callable[[Tensor], Tensor]) -> Rows:
    return {key: change(value) for key, value in rows.items()}


def _gradient(answer: Any) -> str | None:
    """gradient(model, batches, loss): the slope of each example's loss by each gate, at gate 1, as rows (n, H)."""
    model, batches = _translator()[0], _batches()
    weights = [weight.detach().clone() for weight in model.parameters()]
    for loss in (None, _last_word):
        got = _rows_of(answer, model, batches, loss)
        want = my_heads.gradient(model, batches, loss or my_heads.loss)
        summed = _each(want, lambda rows: torch.cat([rows[:2].sum(0, keepdim=True).expand(2, -1), rows[2:]]))
        off = {key: torch.zeros(site.heads) for key, site in my_heads.sites(model).items()}
        mistakes = {
            "These have no sign. Rows keep it; who wants the size of a slope takes it later.": _each(want, torch.abs),
            "The slopes have the wrong sign: it is dL/dgate, not what is lost when the gate closes.": _each(
                want, torch.neg
            ),
            "The losses of a batch are averaged before the slope is taken, so each is too small. Add them up.": (
                _each(want, _by_size)
            ),
            "All examples of a batch share a gate, so that their slopes add up. Each needs a row of gates.": summed,
            "All examples of a batch share a gate, and the loss is their mean. Each needs a row of gates.": (
                _each(summed, _by_size)
            ),
            "These are costs, of a gate that goes all the way to 0. The slope at gate 1 is asked for.": (
                my_heads.ablation(model, batches, loss or my_heads.loss)
            ),
            "This is the slope where all gates are 0. It is asked for where all are 1, the model as it is.": _slopes_at(
                model, batches, loss or my_heads.loss, off
            ),
            "The loss is always the same. Where a loss is given, take the slope of that one.": my_heads.gradient(
                model, batches
            ),
        }
        rule = (
            "Gates of 1, one row for each example, at all sites; the losses of the batch added up; their gradient by "
            "the gates."
        )
        if hint := _told(got, want, mistakes, rule):
            return hint
    if any(not torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True)):
        return "The weights of the model have changed. Only the gates need a gradient."
    return None


def _by_size(rows: Tensor) -> Tensor:
    return rows / torch.tensor([[2.0], [2.0], [1.0]])  # the sizes of the batches


def _slopes_at(model: nn.Module, batches: list[dict], loss: Callable, at: Mapping) -> Rows:
    """The slopes at other gates than 1."""
    parts = []
    for batch in batches:
        n = len(batch["labels"])
        values = {key: gate.expand(n, -1).clone().requires_grad_() for key, gate in at.items()}
        with my_heads.gates(model, values):
            slopes = torch.autograd.grad(loss(model, batch).sum(), list(values.values()), allow_unused=True)
        parts.append([torch.zeros(n, len(at[key])) if s is None else s for key, s in zip(at, slopes, strict=True)])
    return {key: torch.cat(some) for key, some in zip(at, zip(*parts, strict=True), strict=True)}


def _ablation(answer: Any) -> str | None:
    """ablation(model, batches, loss): how much each example's loss rises without each head, as rows (n, H)."""
    model, batches = _translator()[0], _batches()
    rule = "For each head: gates of 1 with a 0 at its place; the loss of each example then, minus its loss before."
    for loss in (None, _last_word):
        got = _rows_of(answer, model, batches, loss)
        want, mistakes = _costs(loss or my_heads.loss)  # of a model of their own, whatever the answer did to this one
        if hint := _told(got, want, mistakes, rule):
            return hint
    return None


@cache
def _costs(used: Callable) -> tuple[Rows, dict[str, Rows]]:
    """What each head costs, and what known mistakes make of it."""
    model, batches = _translator()[0], _batches()
    want = my_heads.ablation(model, batches, used)
    with torch.no_grad():
        whole = torch.cat([used(model, batch) for batch in batches])[:, None]
    without = {key: value + whole for key, value in want.items()}
    mistakes = {
        "The other way round: the loss without the head minus the loss of the whole model.": _each(want, torch.neg),
        "This is the loss without the head. Take off the loss of the whole model, example by example.": without,
        "The loss of the whole model is averaged over the examples before it is taken off.": {
            key: value - whole.mean() for key, value in without.items()
        },
        "These have no sign. Without a head that does harm the loss falls, and its cost is below 0.": _each(
            want, torch.abs
        ),
        "The wrong way round: one head of the layer is on, and the others are off.": _without(
            model, batches, used, lambda heads: torch.eye(heads)
        ),
        "Heads stay off: the second is measured without the first as well. Make new gates of 1 for each head.": (
            _without(model, batches, used, lambda heads: 1 - torch.ones(heads, heads).tril())
        ),
        "The whole layer is off, for every head.": _without(
            model, batches, used, lambda heads: torch.zeros(heads, heads)
        ),
        "These are slopes at gate 1. The cost is what the loss does when the gate goes all the way to 0.": (
            my_heads.gradient(model, batches, used)
        ),
        "The loss is always the same. Where a loss is given, measure that one.": my_heads.ablation(model, batches),
    }
    return want, mistakes


@torch.no_grad()
def _without(model: nn.Module, batches: list[dict], loss: Callable, gates_of: Callable[[int], Tensor]) -> Rows:
    """The rises of the loss under other gates: ``gates_of(heads)`` has a row for each head."""
    whole, rows = torch.cat([loss(model, batch) for batch in batches]), {}
    for key, site in my_heads.sites(model).items():
        columns = []
        for gate in gates_of(site.heads):
            with my_heads.gates(model, {key: gate}):
                columns.append(torch.cat([loss(model, batch) for batch in batches]) - whole)
        rows[key] = torch.stack(columns, 1)
    return rows


def _cancel(answer: Any) -> str | None:
    """Slopes (example, head) for which abs after the sum ranks head 1 above head 0, and abs before it head 0."""
    if callable(answer):
        answer = call(answer)
    if answer is None or answer is ...:
        raise NotTried
    try:
        slopes = torch.as_tensor(answer).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise Hint(f"A tensor of slopes is asked for, this is {article(answer)}.") from None
    if slopes.dim() != 2 or slopes.shape[1] != 2:
        return f"The shape is {tuple(slopes.shape)}, it should be (example, head) with two heads."
    if not slopes.isfinite().all():
        return "There is a NaN or an infinity among the slopes."
    if len(slopes) < 2:
        return "With one example nothing can cancel. Write two or more."
    right, buggy = slopes.abs().mean(0).tolist(), slopes.mean(0).abs().tolist()
    correct = f"Head 0 has {right[0]:.3g} and head 1 has {right[1]:.3g}"
    bug = f"the colleague's code gives them {buggy[0]:.3g} and {buggy[1]:.3g}"
    if not right[0] > right[1]:
        turned = slopes.shape[0] == 2 and slopes.abs().mean(1)[0] > slopes.abs().mean(1)[1]
        rows = " Rows are examples and columns are heads: has the table been turned?" if turned else ""
        return f"Head 0 should matter more than head 1. {correct} by the mean of absolute values.{rows}"
    if buggy[0] == buggy[1]:
        return f"{correct}, as asked, but {bug}: a tie. Head 1 should come first."
    if not buggy[1] > buggy[0]:
        mixed = (slopes[:, 0] > 0).any() and (slopes[:, 0] < 0).any()
        how = "They cancel, but too little." if mixed else "Slopes cancel where their signs differ."
        return f"{correct}, as asked, but {bug}: it still ranks head 0 first. {how}"
    return None


# --- the slope behind a saturated softmax -----------------------------------------------------------------------------


_OWNERS = (torch.Tensor, torch, nn.functional)  # where a softmax is looked up


def _saturation(answer: Any) -> str | None:
    """saturation_proof_gradient(model, batches, loss): slopes with the secant of every softmax, as rows (n, H)."""
    for gain in (3.0, 100.0):
        model, batches = _written(gain), [_repeats(3, seed=1), _repeats(2, seed=2)]
        depth, before = _len_torch_function_stack(), [owner.softmax for owner in _OWNERS]
        got = _rows_of(answer, model, batches, None)
        stays = _len_torch_function_stack() > depth
        while _len_torch_function_stack() > depth:  # or the learner's kernel would go on with it
            _pop_mode()
        for owner, softmax in zip(_OWNERS, before, strict=True):
            if owner.softmax is not softmax:
                owner.softmax, stays = softmax, True
        if stays:
            return "After the call softmax is still replaced. Use a with block, or put it back in finally:"
        if any(rows.isnan().any() for rows in got.values()):
            return (
                "There is NaN among the slopes. Where a masked score is minus infinity, 0 times it is NaN: put 0 in "
                "its place. And m must be held constant: compute it under torch.no_grad()."
            )
        want = my_heads.saturation_proof_gradient(model, batches)
        plain = my_heads.gradient(model, batches)
        mistakes = {
            "These are the slopes of lesson 07's gradient: the softmax is as it was, or m is not held constant.": plain,
            "These have no sign. Rows keep it.": _each(want, torch.abs),
        } | {hint: _with_softmax(model, batches, instead) for hint, instead in _SOFTMAXES.items()}
        rule = (
            "The softmax is another one. Its value must be p, and the weights are m = (p - u) / log(p / u), constant, "
            "1/n where p and u are equal, and 0 at masked keys."
        )
        if hint := _told(got, want, mistakes, rule):
            return hint
    return None


def _written(gain: float) -> nn.Module:
    """A written induction circuit beside a decoy."""
    model = WrittenModel(layers=2)
    write_induction(model, gain)
    write_head(model, 0, 2, match=2, into="answer", size=0.4)
    return model


def _repeats(examples: int, seed: int, period: int = 5) -> dict[str, Tensor]:
    """Sequences that repeat after ``period`` letters; what is to be predicted is the second copy but its first."""
    draw = torch.Generator().manual_seed(seed)
    half = torch.stack([torch.randperm(14, generator=draw)[:period] + 2 for _ in range(examples)])
    ids = nn.functional.pad(torch.cat([half, half], 1), (1, 0))
    return {"input_ids": ids, "labels": ids.where(torch.arange(2 * period + 1) > period + 1, -100)}


def _with_softmax(model: nn.Module, batches: list[dict], instead: Callable[[Tensor], Tensor]) -> Rows:
    with my_heads._Softmax(instead):
        return _each(my_heads.gradient(model, batches), torch.nan_to_num)


def _linear(scores: Tensor, m: Tensor, base: Tensor) -> Tensor:
    """What a softmax gives that is base + m (s - mean of s), with m held constant."""
    m, s = m.detach(), scores.masked_fill(scores.isinf(), 0)
    return base.detach() + m * (s - (m * s).sum(-1, keepdim=True) / m.sum(-1, keepdim=True))


def _parts(scores: Tensor, masked: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The softmax p, the uniform weights u (on masked keys, too, if asked) and the logarithmic mean m."""
    seen = ~scores.isinf()
    u = seen / seen.sum(-1, keepdim=True) if masked else torch.full_like(scores, 1 / scores.shape[-1])
    p = scores.softmax(-1)
    ratio = (scores.log_softmax(-1) - u.log()).masked_fill(~seen, 0)
    m = torch.where(ratio.abs() < 1e-4, 1, ratio.expm1() / ratio) * u * seen
    return p, u, m


def _exact(scores: Tensor, m: Tensor) -> Tensor:
    """A softmax with the right value and the slope that weights m give."""
    line = _linear(scores, m, torch.zeros_like(scores))
    return scores.softmax(-1).detach() + line - line.detach()


def _unweighted(scores: Tensor) -> Tensor:
    _, u, m = _parts(scores)
    s = scores.masked_fill(scores.isinf(), 0)
    return (u + m.detach() * (s - (u * s).sum(-1, keepdim=True))).masked_fill(scores.isinf(), 0)


def _fixed_mean(scores: Tensor) -> Tensor:
    """What turns the secant into one whose mean of the scores is held constant: 0, with a slope."""
    m, s = _parts(scores)[2].detach(), scores.masked_fill(scores.isinf(), 0)
    mean = (m * s).sum(-1, keepdim=True) / m.sum(-1, keepdim=True)
    return m * (mean - mean.detach())


def _rounded(s: Tensor) -> Tensor:
    p, u, m = _parts(s)
    return _linear(s, m.masked_fill(p == 0, 0), u)


_SOFTMAXES: dict[str, Callable[[Tensor], Tensor]] = {
    "The uniform part is missing: the new softmax is u + m (s - mean), so that its value is p.": lambda s: _linear(
        s, _parts(s)[2], torch.zeros_like(s)
    ),
    "Masked keys are counted among the n. The uniform weights go to keys that the query may attend to.": lambda s: (
        _exact(s, _parts(s, masked=False)[2])
    ),
    "The weights are u, so this is the slope at equal scores. Take m, between u and p.": lambda s: _exact(
        s, _parts(s)[1]
    ),
    "The weights are the plain mean of u and p. m is the logarithmic one, with which the value comes out as p.": (
        lambda s: _exact(s, (_parts(s)[0] + _parts(s)[1]) / 2)
    ),
    "The plain mean of the scores is taken off. It must be their mean weighted with m.": _unweighted,
    "The value is right, the slope is not: the mean of the scores has a slope, too. Only m is constant.": lambda s: (
        _linear(s, _parts(s)[2], _parts(s)[1]) + _fixed_mean(s)
    ),
    "The value is right, but nothing has a slope: it is m times the scores less their mean, not m times r.": (
        lambda s: s.softmax(-1).detach() + 0 * s.masked_fill(s.isinf(), 0)
    ),
    "Where p rounds to 0, its logarithm is -inf and m vanishes. Take log p from log_softmax.": _rounded,
}


EXERCISES = (
    Exercise("07.gates", "a gate on every head", _gates, "gates", ("ablate",)),
    Exercise("07.gradient", "all slopes from one pass", _gradient, "gradient"),
    Exercise("07.ablation", "what each head costs", _ablation, "ablation"),
    Exercise(
        "07.saturation_proof_gradient",
        "a slope that sees behind a sharp map",
        _saturation,
        "saturation_proof_gradient",
        ("gradient",),
    ),
    Exercise("07.cancel", "an input that shows the bug", _cancel),
)
