"""Answers to the exercises of lesson 02: right ones, and wrong ones with what their hint must say."""

import math
from functools import partial

import numpy as np
import torch
from edited import of

from headtools import geometry
from headtools.course import my_heads

attend, svd, apart, ov, qk = map(of, ("attention_map", "thin_svd", "told_apart", "ov", "qk"))
overlap, rank, look = map(of, ("overlap", "effective_rank", "look_back"))


def map_from_factors(x, W_Q, b_Q, W_K, b_K):
    scores = torch.einsum("id,jd->ij", x @ W_Q + b_Q, x @ W_K + b_K)
    return (scores / W_Q.shape[1] ** 0.5).softmax(-1)


def svd_in_numpy(W_V, W_O):
    u, s, vt = np.linalg.svd((W_V @ W_O).numpy(), full_matrices=False)
    return -u[:, : len(W_O)], s[: len(W_O)], -vt[: len(W_O)].T


def apart_in_a_loop(value, yes):
    pairs = [(a, b) for a in value[yes].tolist() for b in value[~yes].tolist()]
    return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)


def right_composition(W_OV, W_QK):
    return (W_QK @ W_OV.T).norm() / (W_QK.norm() * W_OV.norm())


def composition_by_einsum(W_OV, W_QK):
    product = torch.einsum("ab,cb->ac", W_QK, W_OV)
    return (product**2).sum() ** 0.5 / ((W_QK**2).sum() * (W_OV**2).sum()) ** 0.5


def ov_by_einsum(site):
    group = site.heads // site.kv_heads
    v, o = site.v.weight(), site.w_o
    return torch.stack([torch.einsum("kd,ke->de", v[h // group], o[h]) for h in range(site.heads)])


def package_ov(site):
    return geometry.ov(site)


def qk_in_a_loop(site):
    group = site.heads // site.kv_heads
    return torch.stack([site.q.weight()[h].T @ site.k.weight()[h // group] for h in range(site.heads)])


def overlap_by_projectors(A, B):
    P, Q = (x @ torch.linalg.pinv(x) for x in (A, B))
    return float((P @ Q).trace() / A.shape[1])


def rank_in_numpy(W):
    s = np.linalg.svd(W.numpy(), compute_uv=False)
    p = s[s > 0] / s.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def offset_in_numpy(omega, delta):
    k = len(omega)
    w = np.zeros((2 * k, 2 * k))
    for n, o in enumerate(omega.tolist()):
        w[n, n] = w[k + n, k + n] = math.cos(o * delta)
        w[n, k + n], w[k + n, n] = math.sin(o * delta), -math.sin(o * delta)
    return w


SCALE, ROOT, SOFTMAX = "W_Q.shape[1]", " / W_Q.shape[1] ** 0.5", ".softmax(-1)"
PARTS, COUNT = "Q1 @ u, s, Q2 @ vt.T", "((a > b).double() + (a == b).double() / 2).mean()"
SHARED = "m.repeat_interleave(site.heads // len(m), 0)", "m.repeat(site.heads // len(m), 1, 1)"  # 0 1 0 1, not 0 0 1 1
OV, QK, BASES = "w_v @ w_o", "w_q @ w_k.mT", "torch.linalg.qr(A)[0], torch.linalg.qr(B)[0]"
VALUES, POWER = "torch.linalg.svdvals(matrices)", "torch.special.entr(shares).sum(-1).exp()"
WEIGHTED = "return (1 + omega).repeat(2)[:, None] * "  # any positive weights of the frequencies do as well
IN_TURNS = "turns = torch.arange(2 * len(omega)).view(2, -1).T.flatten()\n    return "
composition, largest = of(right_composition), partial(torch.linalg.matrix_norm, ord=2)
ANSWERS = {
    "02.map": {
        "right": [map_from_factors, my_heads.attention_map, attend("b_K[None]", "0 * b_K[None]")],  # it shifts a row
        "wrong": [
            (attend("b_Q[None]", "0 * b_Q[None]", "b_K[None]", "0 * b_K[None]"), "query's bias is left out"),
            (attend("b_Q[None]", "0 * b_Q[None]"), "query's bias is left out"),
            (attend(ROOT, ""), "not divided by the root"),
            (attend(ROOT, f" / {SCALE}"), "not by its root"),
            (attend(SCALE, "len(W_Q)"), "the root of d. The width"),
            (attend(SCALE, f"({SCALE} + 1)"), r"root of d_k \+ 1"),
            (attend(SCALE, "(len(W_Q) + 1)"), r"root of d \+ 1"),
            (attend(SOFTMAX, ".softmax(0)"), "weights of a key sum to 1"),
            (attend(SOFTMAX, ""), "These are the scores"),
            (attend("x1 @ W_QK @", "x1 @ W_QK.T @"), "Query and key are exchanged"),
            (lambda x, *_: x, r"\(query, key\)"),
        ],
    },
    "02.svd": {
        "right": [svd_in_numpy, my_heads.thin_svd],
        "wrong": [
            (lambda W_V, W_O: torch.linalg.svd(W_V @ W_O), "All d columns are there"),
            (svd("Q2 @ vt.T", "(Q2 @ vt.T).T"), "vectors are rows here"),
            (svd(PARTS, "u, s, vt.T"), "the Q on their side"),
            (svd("vt.T", "vt"), "returns V transposed"),
            (svd("R1 @ R2.T", "R1 @ R2"), "The middle matrix is"),
            (svd(PARTS, "Q2 @ vt.T, s, Q1 @ u"), "U and V are exchanged"),
            (svd(PARTS, "s"), "Three things are asked for"),
            (svd(PARTS, "W_V, s, W_O.T"), "not orthonormal"),
            (svd(PARTS, "Q1 @ u, s.square(), Q2 @ vt.T"), "squares of the singular values"),
        ],
    },
    "02.apart": {
        "right": [apart_in_a_loop, my_heads.told_apart],
        "wrong": [
            (apart("a > b", "a < b"), "share of the others that lie higher"),
            (apart(" + (a == b).double() / 2", ""), "count half"),
            (apart(" / 2", ""), "count half, not whole"),
            (apart("mean()", "sum()"), "a number of pairs"),
            (apart("mean()", "sum() / len(value) ** 2"), "as many pairs as"),
            (apart(COUNT, "a.mean() - b.mean()"), "difference of two means"),
            (apart(COUNT, "((value > value.mean()) == yes).float().mean()"), "one bar, the mean"),
            (lambda value, yes: value, "A number is asked for"),
        ],
    },
    "02.composition": {
        "right": [right_composition, composition_by_einsum],
        "wrong": [
            (composition(" / (W_QK.norm() * W_OV.norm())", ""), "size of the product alone"),
            (composition("W_QK @ W_OV.T", "W_OV @ W_QK"), "composition into the query"),
            (composition("W_OV.T", "W_OV"), "not transposed"),
            (lambda W_OV, W_QK: right_composition(W_OV, W_QK) ** 2, "Norms are squared"),
            (lambda a, b: largest(b @ a.T) / (largest(a) * largest(b)), "largest singular value"),
            (lambda W_OV, W_QK: W_QK @ W_OV.T, "A number is asked for"),
        ],
    },
    "02.ov": {
        "right": [ov_by_einsum, my_heads.ov],
        "wrong": [
            (ov(OV, f"({OV}).mT"), "This is the transpose"),
            (ov(*SHARED, via=("weights",)), "repeat_interleave repeats each"),
            (ov(OV, f"({OV}).sum(0)"), "each head has its own"),
            (ov(OV, f"{OV}.flip(0)"), "not W_V W_O"),
            (ov(OV, "w_v.mT @ w_o"), "stopped with RuntimeError"),
            (package_ov, "is right, and it is the one"),
        ],
    },
    "02.qk": {
        "right": [qk_in_a_loop, my_heads.qk],
        "wrong": [
            (qk(QK, f"({QK}).mT"), "This is the transpose"),
            (qk(QK, f"{QK} / site.module.head_dim**0.5"), "not divided here"),
            (qk(*SHARED, via=("weights",)), "repeat_interleave repeats each"),
            (qk(QK, f"2 * {QK}"), r"not W_Q W_K\^T"),
            (qk(QK, "w_q @ w_k"), "stopped with RuntimeError"),
        ],
    },
    "02.overlap": {
        "right": [overlap_by_projectors, my_heads.overlap],
        "wrong": [
            (overlap(".square()", ""), "their squares are averaged"),
            (overlap(".mean()", ".sum()"), "This is the sum"),
            (overlap(".mean()", ".max()"), "largest cosine alone"),
            (overlap(BASES, "A, B"), "not orthonormal"),
            (overlap(BASES, "A / A.norm(dim=0), B / B.norm(dim=0)"), "not orthogonal yet"),
            (overlap("torch.linalg.svdvals(U_a.T @ U_b)", "(U_a.T @ U_b)"), "mean over all entries"),
            (overlap(".square().mean()", ""), "A number is asked for"),
            (lambda A, B: 0.5, "Orthonormal bases of both"),
        ],
    },
    "02.rank": {
        "right": [my_heads.effective_rank, rank_in_numpy],
        "wrong": [
            (rank(".exp()", ""), "This is the entropy. The effective rank is exp"),
            (rank(".exp()", " / math.log(2)"), "entropy in bits"),
            (rank(".exp()", ".div(math.log(2)).exp()"), "in bits but the power is of e"),
            (rank(VALUES, f"{VALUES}.square()"), "shares are of squared"),
            (rank(".exp()", ".neg().exp()"), "sign is lost"),
            (rank(POWER, "1 / shares.square().sum()"), "another measure"),
            (rank(VALUES, f"{VALUES}.square()", POWER, "1 / shares.square().sum()"), "another mea"),
            (torch.linalg.matrix_rank, "This is the rank"),
            (rank(" / values.sum(-1, keepdim=True)", ""), "not yet shares"),
            (rank("torch.special.entr(shares)", "(-shares * shares.log())"), "0 times log 0 is NaN"),
            (rank(VALUES, "matrices.abs().flatten()"), "entries of W"),
            (rank(POWER, "values.sum()"), "the sum of the singular values"),
            (rank(".exp()", ".exp() + 1"), "minus the sum of p ln p"),
            (rank(POWER, "shares"), "A number is asked for, this is a Tensor"),
            (lambda W: "high", "A number"),
        ],
    },
    "02.offset": {
        "right": [my_heads.look_back, look("return ", WEIGHTED), offset_in_numpy],
        "wrong": [
            (lambda omega, delta: torch.eye(2 * len(omega)), "ignores delta"),
            (look("[c, s]", "[c, -s]", "[-s, c]", "[s, c]"), "looks the other way"),
            (lambda omega, delta: 3 * my_heads.look_back(omega, -delta), "looks the other way"),
            (look("[c, s]", "[0 * c, s]", "[-s, c]", "[-s, 0 * c]"), "Only the sines"),
            (look("[c, s]", "[c, 0 * s]", "[-s, c]", "[0 * s, c]"), "Only the cosines"),
            (look("return ", IN_TURNS, "c], 1)])", "c], 1)])[turns][:, turns]"), "in turns"),
            (lambda omega, delta: my_heads.look_back(omega, delta + 1), "look back by"),
            (lambda omega, delta: my_heads.look_back(omega, delta) * math.nan, "NaN"),
            (lambda omega, delta: my_heads.look_back(omega, delta)[:3, :3], r"with K = 3"),
            (lambda omega, delta: omega @ torch.ones(7), "stopped with RuntimeError"),
        ],
    },
}
