"""Exercises of lesson 02: circuits, channels, directions, rank, overlap, a head that looks back, composition."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.course import my_heads
from headtools.course.exercises.exercise import (
    Exercise,
    call,
    expect,
    expect_number,
    number,
    same,
    several,
    show,
    tensor,
)
from headtools.course.exercises.lesson_00 import tiny_translator


def _rank(answer: Any) -> None:
    """effective_rank(W): exp of the entropy of the singular values as shares of their sum."""
    turn = torch.tensor([[3.0, -4.0], [4.0, 3.0]]) / 5
    cases = [torch.diag(torch.tensor([4.0, 4.0])), turn @ torch.diag(torch.tensor([3.0, 1.0]))]
    cases += [torch.diag(torch.tensor([8.0, 4.0, 4.0])), torch.tensor([[3.0, 0, 0], [0, 1.0, 0]])]
    cases += [torch.diag(torch.tensor([3.0, 1.0, 0.0]))]  # last: a singular value of 0
    for w in cases:
        given = {"W": w}
        got = number(call(answer, **given))
        sigma = torch.linalg.svdvals(w.double())
        sigma = sigma[sigma > 1e-9]
        share, square = sigma / sigma.sum(), sigma.square() / sigma.square().sum()
        entries = w.double().abs().flatten()
        entropy, power, of_entries = (
            torch.special.entr(p).sum().item() for p in (share, square, entries / entries.sum())
        )
        rule = "Singular values, their shares p, minus the sum of p ln p, and exp of that."
        if math.isnan(got):
            rule = "0 times log 0 is NaN. A singular value of 0 adds nothing: leave it out, or use torch.special.entr."
        another = "This is one over the sum of squared shares, another measure. Use the entropy."
        mistakes = {
            "This is the entropy. The effective rank is exp of it, so that equal shares of n give n.": entropy,
            "This is the entropy in bits. The effective rank is 2 to that power.": entropy / math.log(2),
            "The entropy is in bits but the power is of e: use log and exp, or log2 and 2 to the power.": (
                math.exp(entropy / math.log(2))
            ),
            "The shares are of squared singular values. Take the singular values themselves.": math.exp(power),
            "The sign is lost: the entropy is minus the sum of p log p.": math.exp(-entropy),
            another: 1 / square.square().sum(),
            f"{another} ": 1 / share.square().sum(),
            "This is the rank, which counts singular values. Here small ones count less.": len(sigma),
            "This is the sum of the singular values; it only makes them shares.": sigma.sum(),
            "The singular values are not yet shares: divide them by their sum, so that they sum to 1.": (
                math.exp(min(50.0, torch.special.entr(sigma).sum()))
            ),
            "The shares are of the entries of W. Take its singular values: torch.linalg.svdvals(W).": (
                math.exp(of_entries)
            ),
        }
        expect_number(got, math.exp(entropy), mistakes, rule, given)


def _encodings(omega: Tensor, length: int) -> Tensor:
    """Rows [sin(omega i), cos(omega i)] for the places 0 to length - 1."""
    angle = torch.arange(length)[:, None] * omega.double()
    return torch.cat([angle.sin(), angle.cos()], 1)


def _looks_at(w: Tensor, omega: Tensor, length: int = 12) -> list[int]:
    """Give, for each query place, how far back the key with the largest score is."""
    encoding = _encodings(omega, length)
    return (torch.arange(length) - (encoding @ w @ encoding.T).argmax(1)).tolist()


_OTHER_WAY = "It looks the other way: the sign of one sine is wrong, or W is transposed."


def _mistakes(omega: Tensor, delta: int) -> dict[str, Tensor]:
    """Give the matrices that known mistakes lead to, by hint."""
    right, cosines = my_heads.look_back(omega, delta), torch.diag(torch.cat([(omega * delta).cos()] * 2))
    in_turns = torch.arange(2 * len(omega)).view(2, -1).T.flatten()  # sine and cosine of one frequency side by side
    return {
        "This ignores delta: every token finds itself. Turn the key by the angle omega * delta.": (
            my_heads.look_back(omega, 0)
        ),
        _OTHER_WAY: right.T,
        "Only the sines are there, so the score is sin(omega delta) sin(omega (i - j)), with its top elsewhere. The "
        "cosines belong to it: cos(a - b - c) has both.": right - cosines,
        "Only the cosines are there, so the head cannot tell left from right. The sines belong to it.": cosines,
        "Sines and cosines are taken in turns. Here a place is all sines, then all cosines.": (
            right[in_turns][:, in_turns]
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


def _map(answer: Any) -> str | None:
    """attention_map(x, W_Q, b_Q, W_K, b_K): softmax of the scores, biases included, (T, T)."""
    draw = torch.Generator().manual_seed(0)
    for tokens, d_model, width in ((2, 3, 4), (4, 5, 3)):
        x, w_q, b_q, w_k, b_k = (
            torch.randn(size, generator=draw)
            for size in ((tokens, d_model), (d_model, width), (width,), (d_model, width), (width,))
        )
        given = {"x": x, "W_Q": w_q, "b_Q": b_q, "W_K": w_k, "b_K": b_k}
        got = tensor(call(answer, **given), (tokens, tokens), "(query, key)", given)
        q, k, root = x @ w_q + b_q, x @ w_k + b_k, math.sqrt(width)
        scores = q @ k.T / root
        mistakes = {
            "The query's bias is left out: how much each key gets, whoever asks.": (x @ w_q @ k.T / root).softmax(-1),
            "The scores are not divided by the root of d_k.": (q @ k.T).softmax(-1),
            "The scores are divided by d_k, not by its root.": (q @ k.T / width).softmax(-1),
            "Divided by the root of d. The width of the head counts, d_k.": (q @ k.T / math.sqrt(d_model)).softmax(-1),
            "Divided by the root of d + 1. The width of the head counts, d_k.": (
                q @ k.T / math.sqrt(d_model + 1)
            ).softmax(-1),
            "Divided by the root of d_k + 1. The row of biases is no feature of the head.": (
                q @ k.T / math.sqrt(width + 1)
            ).softmax(-1),
            "The weights of a key sum to 1 here. Those of a query should: softmax over the last axis.": scores.softmax(
                0
            ),
            "These are the scores. The map is their softmax.": scores,
            "Query and key are exchanged: this is the map of what looks at each token.": scores.T.softmax(-1),
        }
        expect(got, scores.softmax(-1), mistakes, "Rows of 1 and of biases, scores, root of d_k, softmax.", given)
    return None


def _svd(answer: Any) -> str | None:
    """thin_svd(W_V, W_O): U (d, r), s (r,), V (d, r), so that U * s @ V.T is W_V @ W_O."""
    draw = torch.Generator().manual_seed(0)
    for d_model, rank in ((3, 2), (6, 3)):
        w_v, w_o = torch.randn(d_model, rank, generator=draw), torch.randn(rank, d_model, generator=draw)
        given = {"W_V": w_v, "W_O": w_o}
        result = several(call(answer, **given), 3, "U, s and V")
        vectors = {
            (d_model, d_model): f"All d columns are there. The product has rank r = {rank}: r columns do.",
            (rank, d_model): "The vectors are rows here. They should be columns, (d, r): transpose.",
            (
                rank,
                rank,
            ): "These are of the small matrix in the middle. Multiply them by the Q on their side, Q1 or Q2.",
        }
        values = {(d_model,): f"All d values are there. The product has rank r = {rank}: the others are 0."}
        u = tensor(result[0], (d_model, rank), "U, (d, r)", given, vectors)
        s = tensor(result[1], (rank,), "s, (r,)", given, values)
        v = tensor(result[2], (d_model, rank), "V, (d, r)", given, vectors)
        want = torch.linalg.svdvals(w_v.double() @ w_o.double())[:rank]
        product, eye = w_v.double() @ w_o.double(), torch.eye(rank, dtype=torch.float64)
        hint = None
        if not (same(u.T @ u, eye) and same(v.T @ v, eye)):
            hint = "The columns of U or of V are not orthonormal. Is each a Q times an orthonormal matrix?"
        elif same(s, want.square()):
            hint = "These are the squares of the singular values."
        elif not same(s, want):
            hint = "These are not the singular values of W_V @ W_O. The middle matrix is R1 @ R2.T."
        elif same(v * s @ u.T, product):
            hint = "U and V are exchanged: a token comes from the left, so what is read belongs to W_V."
        elif not same(u * s @ v.T, product):
            hint = "U * s @ V.T is not W_V @ W_O. torch.linalg.svd returns V transposed: is it used as V?"
        if hint:
            return f"{hint}\nSee it for {show(given)}"
    return None


def _apart(answer: Any) -> None:
    """told_apart(value, yes): the probability that one with yes lies higher than one without; ties count half."""
    cases = [([1.0, 2.0, 3.0], [0, 0, 1]), ([1.0, 2.0, 3.0, 4.0], [0, 1, 0, 1]), ([5.0, 1.0, 2.0, 3.0], [1, 0, 1, 0])]
    cases += [([2.0, 1.0, 2.0, 2.0, 9.0], [1, 0, 0, 1, 0])]  # last: ties
    for numbers, labels in cases:
        value, yes = torch.tensor(numbers), torch.tensor(labels).bool()
        given = {"value": value, "yes": yes}
        gap = value[yes][:, None] - value[~yes]
        higher, even = (gap > 0).double(), (gap == 0).double()
        want = (higher + even / 2).mean()
        mistakes = {
            "This is the share of the others that lie higher. Is yes the first of the pair?": 1 - want,
            "Pairs with the same value on both sides count half.": higher.mean(),
            "Pairs with the same value on both sides count half, not whole.": (higher + even).mean(),
            "This is a number of pairs. Divide it by how many there are.": (higher + even / 2).sum(),
            "Divided by all pairs of values. There are as many pairs as yes times no.": (
                (higher + even / 2).sum() / len(value) ** 2
            ),
            "This is the difference of two means, which has a scale. Compare pairs, and count.": (
                value[yes].mean() - value[~yes].mean()
            ),
            "This is the share on the right side of one bar, the mean. Compare every yes with every no.": (
                ((value > value.mean()) == yes).double().mean()
            ),
        }
        rule = "Compare each value with yes with each one without."
        expect_number(call(answer, **given), want, mistakes, rule, given)


def _composition(answer: Any) -> None:
    """composition(W_OV, W_QK): the size of what of the earlier head's output reaches the later head's keys."""
    draw = torch.Generator().manual_seed(0)
    cases = [(torch.randn(n, n, generator=draw), torch.randn(n, n, generator=draw)) for n in (2, 4)]
    for w_ov, w_qk in cases:
        given = {"W_OV": w_ov, "W_QK": w_qk}
        a, b = w_ov.double(), w_qk.double()
        product, sizes = (b @ a.T).norm(), a.norm() * b.norm()
        mistakes = {
            "This is the size of the product alone. Relative to the sizes of the two factors, please.": product,
            "This is composition into the query: W_OV stands on the left of W_QK. Keys come from the right.": (
                (a @ b).norm() / sizes
            ),
            "W_OV is not transposed: a key is what the earlier head wrote, and stands on the right as a column.": (
                (b @ a).norm() / sizes
            ),
            "Norms are squared here. They are not in the formula.": (product / sizes) ** 2,
            "This is the largest singular value of the product; the formula has Frobenius norms.": (
                torch.linalg.matrix_norm(b @ a.T, 2) / (torch.linalg.matrix_norm(a, 2) * torch.linalg.matrix_norm(b, 2))
            ),
        }
        rule = "The norm of W_QK W_OV^T, over the product of the norms."
        expect_number(call(answer, **given), product / sizes, mistakes, rule, given)


def _overlap(answer: Any) -> None:
    """overlap(A, B): the mean squared cosine of the principal angles of two spaces of columns."""
    draw = torch.Generator().manual_seed(0)
    flat = torch.tensor([[2.0, 1.0], [0.0, 3.0], [0.0, 0.0]])
    tilted = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    cases = [(flat, tilted), (torch.randn(6, 2, generator=draw), torch.randn(6, 2, generator=draw))]
    for a, b in cases:
        given = {"A": a, "B": b}
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
        rule = "Orthonormal bases of both, the singular values of U_a.T @ U_b, their squares, the mean."
        expect_number(call(answer, **given), cosines.square().mean(), mistakes, rule, given)


EXERCISES = (
    Exercise("02.ov", "what a head moves", _ov, "ov"),
    Exercise("02.qk", "what a head compares", _qk, "qk"),
    Exercise("02.map", "the map, from one matrix", _map, "attention_map"),
    Exercise("02.svd", "the channels of a head", _svd, "thin_svd"),
    Exercise("02.apart", "how well two kinds are told apart", _apart, "told_apart"),
    Exercise("02.rank", "effective rank", _rank, "effective_rank"),
    Exercise("02.overlap", "how much two spaces share", _overlap, "overlap"),
    Exercise("02.offset", "look back by an offset", _offset, "look_back"),
    Exercise("02.composition", "who writes into whose keys", _composition),
)
