"""Exercises of lesson 02: circuits, which side is read, effective rank, overlap, a head that looks back."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.course.exercises.exercise import (
    Exercise,
    Hint,
    article,
    call,
    expect,
    expect_number,
    same,
    show,
    tensor,
)
from headtools.course.exercises.lesson_00 import tiny_translator


def _swaps() -> list[tuple[Tensor, Tensor, Tensor, bool]]:
    """(W, a, b, whether a is written and b is read): a small case, then wider ones, with bases turned and signs."""
    one, two = torch.eye(2)[:, :1], torch.eye(2)[:, 1:]
    cases = [(2 * one @ two.T, one, two, False), (2 * one @ two.T, two, one, True)]
    draw = torch.Generator().manual_seed(0)
    for d_model, rank, swap in ((4, 2, True), (5, 2, False), (6, 3, False), (6, 3, True)):
        sides = [torch.linalg.qr(torch.randn(d_model, rank, generator=draw))[0] for _ in range(2)]
        w = sides[0] @ torch.randn(rank, rank, generator=draw) @ sides[1].T
        cases.append((w, *(sides[::-1] if swap else sides), swap))
    return cases


def _swap(answer: Any) -> str | None:
    """swapped(W, a, b): W (d, d) for tokens as rows, a and b (d, r) orthonormal -> whether a is written, b read."""
    cases, replies = _swaps(), []
    for w, a, b, _ in cases:
        result = call(answer, W=w, a=a, b=b)
        try:
            replies.append(bool(result))
        except (TypeError, ValueError, RuntimeError):
            raise Hint(f"True or False is asked for, this is {article(result)} with more than one answer.") from None
    truth = [swap for *_, swap in cases]
    if replies == truth:
        return None
    first = next(i for i, (got, want) in enumerate(zip(replies, truth, strict=True)) if got != want)
    if replies == [not swap for swap in truth]:
        hint = (
            "The other way round, each time. Are True and False exchanged? Or are tokens taken as columns? "
            "Here x stands on the left of W."
        )
    elif len(set(replies)) == 1:
        hint = f"You say {replies[0]} whatever comes. Test it: does the head give the same when x keeps only one set?"
    else:
        hint = (
            "Right for some. The columns of a and b may be turned and have other signs: only the space counts. And the "
            "last digits are rounded: compare with a tolerance."
        )
    w, a, b, _ = cases[first]
    return f"{hint}\nSee it for {show({'W': w, 'a': a, 'b': b})}\nwhere you say {replies[first]}."


def _number(answer: Any, given: dict[str, Any]) -> float:
    """Call the learner's function and read one number; Hint for anything else."""
    result = call(answer, **given)
    try:
        return float(result)
    except (TypeError, ValueError, RuntimeError):
        raise Hint(f"One number is asked for, this is {article(result)}\nfor {show(given)}") from None


def _rank(answer: Any) -> str | None:
    """effective_rank(W): exp of the entropy of the singular values as shares of their sum."""
    turn = torch.tensor([[3.0, -4.0], [4.0, 3.0]]) / 5
    cases = [torch.diag(torch.tensor([4.0, 4.0])), turn @ torch.diag(torch.tensor([3.0, 1.0]))]
    cases += [torch.diag(torch.tensor([8.0, 4.0, 4.0])), torch.tensor([[3.0, 0, 0], [0, 1.0, 0]])]
    cases += [torch.diag(torch.tensor([3.0, 1.0, 0.0]))]  # last: a singular value of 0
    for w in cases:
        given = {"W": w}
        got = _number(answer, given)
        sigma = torch.linalg.svdvals(w.double())
        sigma = sigma[sigma > 1e-9]
        share = sigma / sigma.sum()
        entropy = -(share * share.log()).sum().item()
        square = sigma.square() / sigma.square().sum()
        power = -(square * square.log()).sum().item()
        want = math.exp(entropy)
        if math.isclose(got, want, rel_tol=1e-4):
            continue
        another = "This is one over the sum of squared shares, another measure. Use the entropy."
        raw = math.exp(min(50.0, -(sigma * sigma.log()).sum().item()))
        mistakes = {
            entropy: "This is the entropy. The effective rank is exp of it, so that equal shares of n give n.",
            entropy / math.log(2): "This is the entropy in bits. The effective rank is 2 to that power.",
            math.exp(entropy / math.log(2)): "The entropy is in bits but the power is of e: use log and exp, or log2 "
            "and 2 to the power.",
            math.exp(power): "The shares are of squared singular values. Take the singular values themselves.",
            math.exp(-entropy): "The sign is lost: the entropy is minus the sum of p log p.",
            1 / square.square().sum().item(): another,
            1 / share.square().sum().item(): another,
            float(len(sigma)): "This is the rank, which counts singular values. Here small ones count less.",
            float(sigma.sum()): "This is the sum of the singular values; it only makes them shares.",
            raw: "The singular values are not yet shares: divide them by their sum, so that they sum to 1.",
        }
        if math.isnan(got):
            hint = "0 times log 0 is NaN. A singular value of 0 adds nothing: leave it out, or use torch.special.entr."
        else:
            close = (text for n, text in mistakes.items() if math.isclose(got, n, rel_tol=1e-4, abs_tol=1e-6))
            hint = next(close, None)
            if hint is None and sigma.min() < sigma.max():
                entries = w.double().abs().flatten()
                entries = entries[entries > 0] / entries.sum()
                if math.isclose(got, torch.special.entr(entries).sum().exp().item(), rel_tol=1e-4):
                    hint = "The shares are of the entries of W. Take its singular values: torch.linalg.svdvals(W)."
        hint = hint or "Singular values, their shares p, minus the sum of p ln p, and exp of that."
        return f"{hint}\nSee it for {show(given)}\nwhere you say {got:.4g}."
    return None


def _encodings(omega: Tensor, length: int) -> Tensor:
    """Rows [sin(omega i), cos(omega i)] for the places 0 to length - 1."""
    angle = torch.arange(length)[:, None] * omega.double()
    return torch.cat([angle.sin(), angle.cos()], 1)


def _turned(omega: Tensor, delta: int, sign: float = 1.0, diagonal: bool = True) -> Tensor:
    """Give the matrix that turns each key by omega * delta; without the diagonal, the recipe that looks elsewhere."""
    c, s = torch.diag((omega * delta).cos()), sign * torch.diag((omega * delta).sin())
    c = c if diagonal else 0 * c
    return torch.cat([torch.cat([c, s], 1), torch.cat([-s, c], 1)]).double()


def _looks_at(w: Tensor, omega: Tensor, length: int = 12) -> list[int]:
    """Give, for each query place, how far back the key with the largest score is."""
    encoding = _encodings(omega, length)
    return (torch.arange(length) - (encoding @ w @ encoding.T).argmax(1)).tolist()


_OTHER_WAY = "It looks the other way: the sign of one sine is wrong, or W is transposed."


def _mistakes(omega: Tensor, delta: int) -> dict[str, Tensor]:
    """Give the matrices that known mistakes lead to, by hint."""
    in_turns = torch.arange(2 * len(omega)).view(2, -1).T.flatten()  # sine and cosine of one frequency side by side
    return {
        "This ignores delta: every token finds itself. Turn the key by the angle omega * delta.": _turned(omega, 0),
        _OTHER_WAY: _turned(omega, delta, -1.0),
        "Only the sines are there, so the score is sin(omega delta) sin(omega (i - j)), with its top elsewhere. The "
        "cosines belong to it: cos(a - b - c) has both.": _turned(omega, delta, diagonal=False),
        "Only the cosines are there, so the head cannot tell left from right. The sines belong to it.": (
            torch.diag(torch.cat([(omega * delta).cos()] * 2)).double()
        ),
        "Sines and cosines are taken in turns. Here a place is all sines, then all cosines.": (
            _turned(omega, delta)[in_turns][:, in_turns]
        ),
    }


def _offset(answer: Any) -> str | None:
    """look_back(omega, delta) -> (2K, 2K) so that place_i @ W @ place_j is largest at j = i - delta."""
    few, many = torch.tensor([1.0, 0.5, 0.1]), 10000 ** (-torch.arange(16) / 16)
    for omega, delta in ((few, 1), (few, 0), (few, 3), (few, -1), (many, 2)):
        given = {"omega": omega, "delta": delta}
        count = 2 * len(omega)
        got = tensor(call(answer, **given), (count, count), f"(2K, 2K), with K = {len(omega)}", given)
        if bool(got.isnan().any()):
            return f"There is a NaN in the matrix.\nSee it for {show(given)}"
        back = _looks_at(got, omega)
        queried = [b for i, b in enumerate(back) if 0 <= i - delta < len(back)]
        if set(queried) == {delta}:
            continue
        other = {b for i, b in enumerate(back) if 0 <= i + delta < len(back)}
        hint = next((text for text, wrong in _mistakes(omega, delta).items() if same(got, wrong)), None)
        if hint is None and other == {-delta}:
            hint = _OTHER_WAY
        if hint is None:
            hint = "Write cos(a - b - c) as sines and cosines of a and of b, with c = omega * delta, and read off W."
        return f"{hint}\nSee it for {show(given)}\nwhere the places 0 to 11 look back by {back}."
    return None


def _circuit_models() -> list[tuple[nn.Module, Any]]:
    """A translator, and a language model in which two query heads share keys and values; a site of each."""
    from transformers import LlamaConfig, LlamaModel

    sizes = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        grouped = LlamaModel(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.5))
    translator = tiny_translator()[0]
    return [(translator, ht.sites(translator)["encoder", 1]), (grouped, ht.sites(grouped)["decoder", 0])]


def _circuit(answer: Any, kind: str) -> str | None:
    """ov(site) or qk(site): (heads, d, d)."""
    for _model, site in _circuit_models():
        with torch.no_grad():
            result = call(answer, site=site)
            first, second = (site.v.weight(), site.w_o) if kind == "ov" else (site.q.weight(), site.k.weight())
            first = first.repeat_interleave(site.heads // len(first), 0).transpose(-1, -2)
            shared = second.repeat_interleave(site.heads // len(second), 0)
            want = first @ shared
            again = site.v.weight() if kind == "ov" else site.k.weight()
            wrong_order = again.repeat(site.heads // len(again), 1, 1)  # 0 1 0 1 where it is 0 0 1 1
            other = wrong_order.transpose(-1, -2) @ site.w_o if kind == "ov" else first @ wrong_order
        got = tensor(result, tuple(want.shape), "(heads, d, d)", {}, {tuple(want[0].shape): _ALL_HEADS})
        mistakes = {
            "This is the transpose: a token stands as a row on the left, so what is read comes first.": want.mT,
            "The scores are not divided here; that comes later.": want / math.sqrt(site.head_dim),
            "Shared heads come in the wrong order: with two to a group, heads 0 and 1 share the first. "
            "repeat_interleave repeats each, repeat the whole.": other,
        }
        formula = "W_V W_O" if kind == "ov" else "W_Q W_K^T"
        shared_note = " Here two query heads share keys and values." if site.kv_heads != site.heads else ""
        expect(got, want, mistakes, f"This is not {formula} of each head.{shared_note}", {})
    return None


_ALL_HEADS = "This is one matrix; each head has its own: (heads, d, d)."


def _ov(answer: Any) -> str | None:
    """ov(site): W_V W_O of each head."""
    return _circuit(answer, "ov")


def _qk(answer: Any) -> str | None:
    """qk(site): W_Q W_K^T of each head."""
    return _circuit(answer, "qk")


def _overlap(answer: Any) -> str | None:
    """overlap(A, B): the mean squared cosine of the principal angles of two spaces of columns."""
    draw = torch.Generator().manual_seed(0)
    flat = torch.tensor([[2.0, 1.0], [0.0, 3.0], [0.0, 0.0]])
    tilted = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    cases = [(flat, tilted), (torch.randn(6, 2, generator=draw), torch.randn(6, 2, generator=draw))]
    for a, b in cases:
        given = {"A": a, "B": b}
        got = _number(answer, given)
        bases = [torch.linalg.qr(x.double())[0] for x in (a, b)]
        cosines = torch.linalg.svdvals(bases[0].T @ bases[1])
        unit = [x.double() / x.double().norm(dim=0) for x in (a, b)]
        mistakes = {
            "These are the cosines; their squares are averaged.": cosines.mean(),
            "This is the sum; take the mean over the angles.": cosines.square().sum(),
            "This is the largest cosine alone; take the mean over all of them.": cosines.square().max(),
            "The columns are not orthonormal: take bases first, torch.linalg.qr(A)[0].": (
                torch.linalg.svdvals(a.double().T @ b.double()).square().mean()
            ),
            "Columns of length 1 are not orthogonal yet: torch.linalg.qr(A)[0].": (
                torch.linalg.svdvals(unit[0].T @ unit[1]).square().mean()
            ),
            "This is the mean over all entries; the squares of the singular values are r times fewer.": (
                (bases[0].T @ bases[1]).square().mean()
            ),
        }
        want = cosines.square().mean().item()
        rule = "Orthonormal bases of both, the singular values of U_a.T @ U_b, their squares, the mean."
        expect_number(got, want, {h: float(v) for h, v in mistakes.items()}, rule, given, rel_tol=1e-4, abs_tol=1e-6)
    return None


EXERCISES = (
    Exercise("02.ov", "what a head moves", _ov, "ov"),
    Exercise("02.qk", "what a head compares", _qk, "qk"),
    Exercise("02.swap", "what is read, what is written", _swap),
    Exercise("02.rank", "effective rank", _rank, "effective_rank"),
    Exercise("02.overlap", "how much two spaces share", _overlap, "overlap"),
    Exercise("02.offset", "look back by an offset", _offset, "look_back"),
)
