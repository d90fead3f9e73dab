"""Exercises of lesson 06: the induction score, hiding a head from one path, a head whose weights are written."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headtools.course.exercises.exercise import (
    Exercise,
    Hint,
    NotTried,
    _empty,
    call,
    expect,
    same,
    show,
    tensor,
)
from headtools.course.exercises.lesson_00 import entered, restored, restored_after_error
from headtools.organism.toy_decoder import ToyDecoder


def _induction(answer: Any) -> None:
    """induction_score(maps, period): maps (B, head, T, T) of a segment that occurs twice -> (B, head)."""
    for period, batch, heads in ((3, 1, 2), (4, 2, 3)):
        draw = torch.Generator().manual_seed(period)
        maps = torch.randn(batch, heads, 2 * period, 2 * period, generator=draw)
        causal = torch.ones(2 * period, 2 * period).tril().bool()
        maps = maps.masked_fill(~causal, -torch.inf).softmax(-1).mul(100).round().div(100)
        given = {"maps": maps, "period": period}
        below = {k: maps.diagonal(-k, -2, -1).double() for k in range(2 * period)}
        want = below[period - 1][..., 1:].mean(-1)
        example = f"\nSee it for {show({'maps[0, 0]': maps[0, 0], 'period': period})}"
        few = {
            (): f"One number came: take the mean over queries alone, for each sequence and head.{example}",
            (heads,): f"The sequences are averaged as well: keep one number for each of them.{example}",
        }
        got = tensor(call(answer, **given), (batch, heads), "(sequence, head)", given, few)
        second = maps[..., period:, :].double()
        rule = "Query t of the second copy should look at key t - period + 1; average that attention over t."
        mistakes = {
            "This is the attention to the earlier copy of the query itself, a duplicate-token score. Induction "
            "looks one place after that copy.": below[period].mean(-1),
            "This looks one place before the earlier copy; induction looks one place after it.": (
                below[min(period + 1, 2 * period - 1)].mean(-1)
            ),
            "One query too many: the last one of the first copy has seen nothing twice. Start at the second copy.": (
                below[period - 1].mean(-1)
            ),
            "This is the attention to the token just before, a previous-token score.": below[1].mean(-1),
            "This is the attention of each query to itself.": below[0].mean(-1),
            "The sum is divided by all queries, but only those of the second copy have somewhere to look.": (
                below[period - 1][..., 1:].sum(-1) / (2 * period)
            ),
            "This is a sum over queries; the score is their mean.": below[period - 1][..., 1:].sum(-1),
            "This looks ahead, where a decoder sees nothing: query and key are exchanged.": torch.zeros_like(want),
            "This counts the largest weight of each query, wherever it is.": second.max(-1).values.mean(-1),
        }
        expect(got, want, mistakes, rule, {"maps[0, 0]": maps[0, 0], "period": period})


def _small_model(seed: int, length: int = 8) -> ToyDecoder:
    """Return an untrained decoder of two layers of four heads of width 4, with weights large enough to matter."""
    model = ToyDecoder(layers=2, heads=4, width=16, symbols=6, length=length, seed=seed)
    for layer in model.layers:
        for weight in layer.parameters():
            weight.data *= 3
    return model.requires_grad_(False)


@torch.no_grad()
def _hidden(model: ToyDecoder, ids: Tensor, writers: list[int], path: str, kind: str = "") -> Tensor:
    """Return the logits when ``path`` of layer 1 does not see ``writers``, or what comes of one mistake."""
    first, second = model.layers
    length, x = ids.shape[1], model.symbol(ids)
    position, mask = model.position.weight[:length], torch.ones(length, length).tril().bool()[None, None]
    kept = {}
    hook = first.out_proj.register_forward_pre_hook(lambda _, args: kept.update(z=args[0].unflatten(-1, (4, -1))))
    x = x + first(model.norms[0](x), position, mask)
    hook.remove()
    axis, formula = (0, "bthw,hwd->btd") if kind == "rows" else (1, "bthw,dhw->btd")
    w_o = first.out_proj.weight.unflatten(axis, (4, -1))
    w_o = w_o[writers] if kind == "rows" else w_o[:, writers]
    part = torch.einsum(formula, kept["z"][:, :, writers], w_o)
    sees, norm = model.norms[1](x), model.norms[1]
    without = {"late": sees - part, "added": norm(x + part), "raw": x - part}.get(kind, norm(x - part))
    read = {"q": sees + position, "k": sees + position, "v": sees}
    for name in "qkv" if kind in ("everywhere", "stream") else path:
        read[name] = without + (position if name != "v" and kind != "placeless" else 0)
    q, k, v = (getattr(second, f"{name}_proj")(x).unflatten(-1, (4, -1)).transpose(1, 2) for name, x in read.items())
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    z = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return model.unembed(model.last_norm((x - part if kind == "stream" else x) + second.out_proj(z)))


_HIDE_MISTAKES = {
    "late": "The part is subtracted after the normalisation. The stream is a sum before it: subtract there, and then "
    "normalise.",
    "added": "The part is added. Subtract it.",
    "raw": "The stream without the part is not normalised, but the layer reads normalised vectors.",
    "placeless": "The position is lost: queries and keys read the normalised stream plus the position.",
    "everywhere": "It is hidden from queries, keys and values; one of them was asked for.",
    "stream": "It is hidden from everything that comes later, as if the head were off. Leave the stream as it is, and "
    "change what one projection reads.",
    "rows": "These are rows of out_proj.weight. nn.Linear computes z @ weight.T, so each head owns columns.",
}


def _hide(answer: Any) -> str | None:
    """hide_from(model, writers, path): a context manager; path is "q", "k" or "v"."""
    ids = torch.randint(6, (2, 8), generator=torch.Generator().manual_seed(0))
    for seed, (writers, path) in enumerate((([0], "k"), ([1], "q"), ([0, 2], "v"))):
        model, apart = _small_model(seed), _small_model(seed)  # hooks of an answer stay out of what it is compared with
        plain = model(ids)
        case = {"writers": writers, "path": path}
        example = f"\nSee it for {', '.join(f'{name} = {value!r}' for name, value in case.items())}."
        with entered(answer, model, **case):
            try:
                got = model(ids)
            except RecursionError:
                return (
                    "The model never comes to an end: a module that is called inside its own hook calls the hook "
                    "again. module.forward(x) computes without hooks."
                )
        if not isinstance(got, Tensor) or got.shape != plain.shape:
            return f"Inside the block the model no longer gives logits for each symbol.{example}"
        if same(got, plain, 1e-5):
            return (
                "Inside the block the model computes what it always does. A pre-hook returns the new arguments, as a "
                f"tuple, and a hook the new output.{example}"
            )
        if not same(got, _hidden(apart, ids, writers, path)):
            return _hide_mistake(apart, ids, case, got) + example
        restored(partial(model, ids), plain, "the head is still hidden")
    restored_after_error(answer, model, partial(model, ids), plain, "the head hidden", **case)
    with ExitStack() as both:
        for path in "qkv":
            both.enter_context(entered(answer, model, writers=[3], path=path))
        got = model(ids)
    if not same(got, _hidden(apart, ids, [3], "qkv")):
        return "Right for one block. One block inside another, for another path, should hide the head from both paths."
    return None


def _hide_mistake(model: ToyDecoder, ids: Tensor, case: dict[str, Any], got: Tensor) -> str:
    """The hint for logits that belong to another intervention."""
    tried = {text: _hidden(model, ids, **case, kind=kind) for kind, text in _HIDE_MISTAKES.items()}
    tried["All of layer 0 is hidden; only the writers should be."] = _hidden(model, ids, [0, 1, 2, 3], case["path"])
    for name, other in (("queries", "q"), ("keys", "k"), ("values", "v")):
        if other != case["path"]:
            tried[f"It is hidden from the {name}; the path is {case['path']!r}."] = _hidden(
                model, ids, **case | {"path": other}
            )
    rule = (
        "Layer 1 computes something else than expected. What the writers add is z_h times their columns of W_O; only "
        "what one projection reads changes."
    )
    return next((text for text, logits in tried.items() if same(got, logits)), rule)


def _write(answer: Any) -> str | None:
    """write_head(model, head, omega, delta): weights of layer 0, in place."""
    omega = 2 * torch.pi * torch.tensor([1.0, 3.0]) / 8
    ids = torch.randint(6, (2, 8), generator=torch.Generator().manual_seed(0))
    for head, delta in ((0, 1), (2, 1), (3, 2)):
        model = _small_model(head)
        model.norms[0].bias.fill_(0.5)  # as after training: of a fresh model it is 0, and need not be set
        before = deepcopy(model)
        given = {"head": head, "omega": omega, "delta": delta}
        example = f"\nSee it for a model of 8 places, W = 4, with {show(given)}"
        try:
            result = answer(model, head, omega.clone(), delta)
        except NotImplementedError:
            raise NotTried from None
        except Exception as error:
            raise Hint(f"Your function stopped with {type(error).__name__}: {error}{example}") from error
        if all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True)):
            if result is ... or (result is None and _empty(inspect.unwrap(answer))):
                raise NotTried
            return "The model's weights are as they were. Write into them in place: weight[rows, columns] = ..."
        hint = _written(model, before, head, omega, delta, ids)
        if hint:
            return hint + example
        again = deepcopy(model)
        answer(again, head, omega.clone(), delta)
        if not all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)):
            return "Written a second time, the weights change once more. Set them, do not add to them."
    return None


def _written(model: ToyDecoder, before: ToyDecoder, head: int, omega: Tensor, delta: int, ids: Tensor) -> str | None:
    """The hint for a head that does not look back, reads or writes something else, or changes what it should not."""
    w, layer = 4, model.layers[0]
    own, place, read, note = (slice(w * i, w * (i + 1)) for i in (head, 0, 1, 2))
    places = torch.arange(8)[:, None] * omega
    if not same(model.position.weight[:, place], torch.cat([places.sin(), places.cos()], 1)):
        return (
            f"The first {w} features of the positions should be the sines of omega i, then their cosines, for each "
            "place i."
        )
    if not same(model.position.weight[:, w:], before.position.weight[:, w:], 1e-6):
        return f"Positions keep their own features from {w} on."
    reads = model.norms[0](model.symbol(ids))
    if reads[..., place].abs().max() > 1e-6:
        return (
            f"Symbols still disturb the place: let the first layer's norm give 0 in the first {w} features, weight and "
            "bias."
        )
    norms = model.norms[0].parameters(), before.norms[0].parameters()
    if any(not torch.equal(a[w:], b[w:]) for a, b in zip(*norms, strict=True)):
        return f"The first layer's norm is to change in the first {w} features alone."
    maps, z = _layer(layer, reads, model.position.weight)
    looks = maps[:, head, delta:].diagonal(0, -2, -1)  # (B, T - delta)
    if looks.min() < 0.99:
        ahead = _layer(layer, reads, model.position.weight, causal=False)[0]
        return _looks(maps, ahead, head, delta)
    if not same(z[:, delta:, head], reads[:, :-delta, read], 1e-2):
        return (
            f"The head looks where it should, but what it reads there is not the symbol's features {w} to {2 * w - 1}."
        )
    w_o = layer.out_proj.weight[:, own]
    if not same(w_o[note], torch.eye(w)):
        turned = same(layer.out_proj.weight[own, note], torch.eye(w))
        why = "A head owns columns of out_proj.weight, because nn.Linear multiplies by the transpose." if turned else ""
        return f"What the head has read does not arrive in the features {2 * w} to {3 * w - 1} of the stream. {why}"
    if w_o.abs().sum() > w + 1e-4:
        return f"The head writes into other features as well. It should write into {2 * w} to {3 * w - 1} alone."
    untouched = torch.ones(16, dtype=torch.bool)
    untouched[own] = False
    for name, axis in (("q_proj", 0), ("k_proj", 0), ("v_proj", 0), ("out_proj", 1)):
        new, old = (getattr(one.layers[0], name).weight.movedim(axis, 0)[untouched] for one in (model, before))
        if not torch.equal(new, old):
            own_part = "columns" if name == "out_proj" else "rows"
            return f"Weights of other heads have changed, in {name}. Each head has its own {w} {own_part}."
    for name, old in before.state_dict().items():
        if name.startswith(("symbol", "norms.1", "layers.1", "last_norm", "unembed")) and not torch.equal(
            model.state_dict()[name], old
        ):
            return f"{name} has changed, and it belongs to no head of layer 0."
    return None


def _looks(maps: Tensor, ahead: Tensor, head: int, delta: int) -> str:
    """The hint for a head that looks elsewhere than ``delta`` places back; ``ahead`` are maps that see the future."""

    def strength(which: int, back: int) -> float:
        return float(maps[:, which, back:].diagonal(0, -2, -1).mean())

    others = [other for other in range(maps.shape[1]) if other != head and strength(other, delta) > 0.99]
    if others:
        return f"Head {others[0]} looks {delta} back, and head {head} was to: a head's rows begin at {4}·head."
    if strength(head, 0) > 0.9:
        return "The head looks at its own place. The matrix that turns the place is missing."
    if ahead[:, head, :-delta].diagonal(delta, -2, -1).mean() > 0.9:
        return (
            f"The place is turned the other way: the head would look {delta} ahead, where a decoder sees nothing. "
            "nn.Linear multiplies by the transpose of its weight."
        )
    most = max(range(8), key=lambda back: strength(head, back))
    if most == delta or strength(head, delta) > 0.3:
        return (
            f"The head prefers the right place, but gives it {strength(head, delta):.2f} only. The other weights of "
            "its rows must be 0, and the gain make its scores large."
        )
    return f"The head gives {strength(head, delta):.2f} of its attention to the place {delta} back."


@torch.no_grad()
def _layer(layer: nn.Module, x: Tensor, position: Tensor, causal: bool = True) -> tuple[Tensor, Tensor]:
    """Return a layer's maps (B, H, T, T) and z (B, T, H, W)."""
    q, k, v = (
        part.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for part in (layer.q_proj(x + position), layer.k_proj(x + position), layer.v_proj(x))
    )
    future = torch.ones(x.shape[1], x.shape[1]).triu(1).bool() & causal
    maps = (q @ k.mT / layer.head_dim**0.5).masked_fill(future, -torch.inf).softmax(-1)
    return maps, (maps @ v).transpose(1, 2)


EXERCISES = (
    Exercise("06.induction", "the induction score", _induction, "induction_score", ("induction",)),
    Exercise("06.hide", "hide a head from one path", _hide, "hide_from"),
    Exercise("06.write", "write a head", _write, "write_head"),
)
