"""Answers to the exercises of lesson 02: right ones, and wrong ones with what their hint must say."""

import math

import numpy as np
import torch

from headtools import geometry
from headtools.course import my_heads


def shares(W):
    s = torch.linalg.svdvals(W)
    return s[s > 1e-6] / s.sum()


def right_rank(W):
    return torch.special.entr(shares(W)).sum().exp()


def rank_in_numpy(W):
    s = np.linalg.svd(W.numpy(), compute_uv=False)
    p = s[s > 0] / s.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def rank_in_bits(W):
    p = shares(W)
    return 2 ** -(p * p.log2()).sum().item()


def nan_rank(W):
    s = torch.linalg.svdvals(W)
    p = s / s.sum()
    return (-(p * p.log()).sum()).exp()


def squared(W):
    p = torch.linalg.svdvals(W).square()
    return torch.special.entr(p / p.sum()).sum().exp()


def blocks(a, b, c, d):
    return torch.cat([torch.cat([a, b], 1), torch.cat([c, d], 1)])


def right_offset(omega, delta):
    c, s = torch.diag((omega * delta).cos()), torch.diag((omega * delta).sin())
    return blocks(c, s, -s, c)


def weighted_offset(omega, delta):
    """Any positive weights of the frequencies do as well."""
    weight = torch.cat([1 + omega, 1 + omega])
    return weight[:, None] * right_offset(omega, delta)


def offset_in_numpy(omega, delta):
    k = len(omega)
    w = np.zeros((2 * k, 2 * k))
    for n, o in enumerate(omega.tolist()):
        w[n, n] = w[k + n, k + n] = math.cos(o * delta)
        w[n, k + n], w[k + n, n] = math.sin(o * delta), -math.sin(o * delta)
    return w


def only_sines(omega, delta):
    s = torch.diag((omega * delta).sin())
    return blocks(0 * s, s, -s, 0 * s)


def in_turns(omega, delta):
    order = torch.arange(2 * len(omega)).view(2, -1).T.flatten()
    return right_offset(omega, delta)[order][:, order]


def right_ov(site):
    w = site.v.weight().transpose(-1, -2)
    return w.repeat_interleave(site.heads // len(w), 0) @ site.w_o


def ov_by_einsum(site):
    group = site.heads // site.kv_heads
    v, o = site.v.weight(), site.w_o
    return torch.stack([torch.einsum("kd,ke->de", v[h // group], o[h]) for h in range(site.heads)])


def right_qk(site):
    q, k = site.q.weight(), site.k.weight()
    return q.mT @ k.repeat_interleave(site.heads // len(k), 0)


def qk_in_a_loop(site):
    group = site.heads // site.kv_heads
    return torch.stack([site.q.weight()[h].T @ site.k.weight()[h // group] for h in range(site.heads)])


def ov_repeated(site):
    w = site.v.weight().mT
    return w.repeat(site.heads // len(w), 1, 1) @ site.w_o


def qk_repeated(site):
    k = site.k.weight()
    return site.q.weight().mT @ k.repeat(site.heads // len(k), 1, 1)


def package_ov(site):
    return geometry.ov(site)


def cosines(A, B):
    return torch.linalg.svdvals(torch.linalg.qr(A)[0].T @ torch.linalg.qr(B)[0])


def overlap_by_projectors(A, B):
    P, Q = (x @ torch.linalg.pinv(x) for x in (A, B))
    return float((P @ Q).trace() / A.shape[1])


def normed(A):
    return A / A.norm(dim=0)


def map_from_factors(x, W_Q, b_Q, W_K, b_K):
    scores = torch.einsum("id,jd->ij", x @ W_Q + b_Q, x @ W_K + b_K)
    return (scores / W_Q.shape[1] ** 0.5).softmax(-1)


def scaled(by, axis=-1, q=1, k=1):
    """Maps with another scale, another axis, or without one of the biases."""

    def answer(x, W_Q, b_Q, W_K, b_K):
        scores = (x @ W_Q + q * b_Q) @ (x @ W_K + k * b_K).T
        return (scores / by(W_Q)).softmax(axis)

    return answer


def root(W):
    return W.shape[1] ** 0.5


def svd_of_product(W_V, W_O):
    u, s, vt = torch.linalg.svd(W_V @ W_O)
    r = len(W_O)
    return u[:, :r], s[:r], vt[:r].T


def svd_in_numpy(W_V, W_O):
    u, s, vt = np.linalg.svd((W_V @ W_O).numpy(), full_matrices=False)
    return -u[:, : len(W_O)], s[: len(W_O)], -vt[: len(W_O)].T


def not_turned_back(W_V, W_O):
    (Q1, R1), (Q2, R2) = torch.linalg.qr(W_V), torch.linalg.qr(W_O.T)
    u, s, vt = torch.linalg.svd(R1 @ R2.T)
    return Q1 @ u, s, Q2 @ vt


def middle_turned(W_V, W_O):
    (Q1, R1), (Q2, R2) = torch.linalg.qr(W_V), torch.linalg.qr(W_O.T)
    u, s, vt = torch.linalg.svd(R1 @ R2)
    return Q1 @ u, s, Q2 @ vt.T


def without_q(W_V, W_O):
    (_, R1), (_, R2) = torch.linalg.qr(W_V), torch.linalg.qr(W_O.T)
    u, s, vt = torch.linalg.svd(R1 @ R2.T)
    return u, s, vt.T


def apart_in_a_loop(value, yes):
    pairs = [(a, b) for a in value[yes].tolist() for b in value[~yes].tolist()]
    return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)


def apart_by_ranks(value, yes):
    ranks = torch.tensor([((value < v).sum() + ((value == v).sum() + 1) / 2).item() for v in value])
    n = yes.sum()
    return (ranks[yes].sum() - n * (n + 1) / 2) / (n * (~yes).sum())


def higher(value, yes, ties=0.0):
    gap = value[yes][:, None] - value[~yes]
    return (gap > 0).float() + ties * (gap == 0).float()


def right_composition(W_OV, W_QK):
    return (W_QK @ W_OV.T).norm() / (W_QK.norm() * W_OV.norm())


def composition_by_einsum(W_OV, W_QK):
    product = torch.einsum("ab,cb->ac", W_QK, W_OV)
    return (product**2).sum() ** 0.5 / ((W_QK**2).sum() * (W_OV**2).sum()) ** 0.5


ANSWERS = {
    "02.map": {
        "right": [map_from_factors, scaled(root, k=0), my_heads.attention_map],  # the key's bias shifts a whole row
        "wrong": [
            (scaled(root, q=0, k=0), "query's bias is left out"),
            (scaled(root, q=0), "query's bias is left out"),
            (scaled(lambda W: 1), "not divided by the root"),
            (scaled(lambda W: W.shape[1]), "not by its root"),
            (scaled(lambda W: len(W) ** 0.5), "the root of d. The width"),
            (scaled(lambda W: (W.shape[1] + 1) ** 0.5), r"root of d_k \+ 1"),
            (scaled(lambda W: (len(W) + 1) ** 0.5), r"root of d \+ 1"),
            (scaled(root, axis=0), "weights of a key sum to 1"),
            (lambda x, W_Q, b_Q, W_K, b_K: (x @ W_Q + b_Q) @ (x @ W_K + b_K).T / root(W_Q), "These are the scores"),
            (lambda x, W_Q, b_Q, W_K, b_K: map_from_factors(x, W_K, b_K, W_Q, b_Q), "Query and key are exchanged"),
            (lambda x, W_Q, b_Q, W_K, b_K: x, r"\(query, key\)"),
        ],
    },
    "02.svd": {
        "right": [svd_of_product, svd_in_numpy, my_heads.thin_svd],
        "wrong": [
            (lambda W_V, W_O: torch.linalg.svd(W_V @ W_O), "All d columns are there"),
            (lambda W_V, W_O: (*svd_of_product(W_V, W_O)[:2], svd_of_product(W_V, W_O)[2].T), "vectors are rows here"),
            (without_q, "the Q on their side"),
            (not_turned_back, "returns V transposed"),
            (middle_turned, "The middle matrix is"),
            (lambda W_V, W_O: svd_of_product(W_V, W_O)[::-1], "U and V are exchanged"),
            (lambda W_V, W_O: svd_of_product(W_V, W_O)[1], "Three things are asked for"),
            (lambda W_V, W_O: (W_V, svd_of_product(W_V, W_O)[1], W_O.T), "not orthonormal"),
            (
                lambda W_V, W_O: (lambda u, s, v: (u, s.square(), v))(*svd_of_product(W_V, W_O)),
                "squares of the singular values",
            ),
        ],
    },
    "02.apart": {
        "right": [apart_in_a_loop, apart_by_ranks, my_heads.told_apart],
        "wrong": [
            (lambda value, yes: 1 - apart_in_a_loop(value, yes), "share of the others that lie higher"),
            (lambda value, yes: higher(value, yes).mean(), "count half"),
            (lambda value, yes: higher(value, yes, 1.0).mean(), "count half, not whole"),
            (lambda value, yes: higher(value, yes, 0.5).sum(), "a number of pairs"),
            (lambda value, yes: higher(value, yes, 0.5).sum() / len(value) ** 2, "as many pairs as"),
            (lambda value, yes: value[yes].mean() - value[~yes].mean(), "difference of two means"),
            (lambda value, yes: ((value > value.mean()) == yes).float().mean(), "one bar, the mean"),
            (lambda value, yes: value, "A number is asked for"),
        ],
    },
    "02.composition": {
        "right": [right_composition, composition_by_einsum],
        "wrong": [
            (lambda W_OV, W_QK: (W_QK @ W_OV.T).norm(), "size of the product alone"),
            (lambda W_OV, W_QK: (W_OV @ W_QK).norm() / (W_QK.norm() * W_OV.norm()), "composition into the query"),
            (lambda W_OV, W_QK: (W_QK @ W_OV).norm() / (W_QK.norm() * W_OV.norm()), "not transposed"),
            (lambda W_OV, W_QK: right_composition(W_OV, W_QK) ** 2, "Norms are squared"),
            (
                lambda W_OV, W_QK: (
                    torch.linalg.matrix_norm(W_QK @ W_OV.T, 2)
                    / (torch.linalg.matrix_norm(W_QK, 2) * torch.linalg.matrix_norm(W_OV, 2))
                ),
                "largest singular value",
            ),
            (lambda W_OV, W_QK: W_QK @ W_OV.T, "A number is asked for"),
        ],
    },
    "02.ov": {
        "right": [right_ov, ov_by_einsum, my_heads.ov],
        "wrong": [
            (lambda site: right_ov(site).mT, "This is the transpose"),
            (ov_repeated, "repeat_interleave repeats each"),
            (lambda site: right_ov(site).sum(0), "each head has its own"),
            (lambda site: site.v.weight().mT @ site.w_o.flip(0)[: len(site.v.weight())], "not W_V W_O"),
            (lambda site: site.v.weight() @ site.w_o, "stopped with RuntimeError"),
            (package_ov, "is right, and it is the one"),
        ],
    },
    "02.qk": {
        "right": [right_qk, qk_in_a_loop, my_heads.qk],
        "wrong": [
            (lambda site: right_qk(site).mT, "This is the transpose"),
            (lambda site: right_qk(site) / site.head_dim**0.5, "not divided here"),
            (qk_repeated, "repeat_interleave repeats each"),
            (lambda site: right_qk(site) * 2, r"not W_Q W_K\^T"),
            (lambda site: site.q.weight() @ site.k.weight(), "stopped with RuntimeError"),
        ],
    },
    "02.overlap": {
        "right": [lambda A, B: cosines(A, B).square().mean(), overlap_by_projectors, my_heads.overlap],
        "wrong": [
            (lambda A, B: cosines(A, B).mean(), "their squares are averaged"),
            (lambda A, B: cosines(A, B).square().sum(), "This is the sum"),
            (lambda A, B: cosines(A, B).square().max(), "largest cosine alone"),
            (lambda A, B: torch.linalg.svdvals(A.T @ B).square().mean(), "not orthonormal"),
            (lambda A, B: torch.linalg.svdvals(normed(A).T @ normed(B)).square().mean(), "not orthogonal yet"),
            (lambda A, B: (torch.linalg.qr(A)[0].T @ torch.linalg.qr(B)[0]).square().mean(), "mean over all entries"),
            (lambda A, B: cosines(A, B), "A number is asked for"),
            (lambda A, B: 0.5, "Orthonormal bases of both"),
        ],
    },
    "02.rank": {
        "right": [right_rank, rank_in_numpy, rank_in_bits],
        "wrong": [
            (lambda W: right_rank(W).log(), "This is the entropy. The effective rank is exp"),
            (lambda W: right_rank(W).log2(), "entropy in bits"),
            (lambda W: right_rank(W).log2().exp(), "in bits but the power is of e"),
            (squared, "shares are of squared"),
            (lambda W: 1 / right_rank(W), "sign is lost"),
            (lambda W: 1 / shares(W).square().sum(), "another measure"),
            (
                lambda W: torch.linalg.svdvals(W).square().sum() ** 2 / torch.linalg.svdvals(W).pow(4).sum(),
                "another mea",
            ),
            (lambda W: torch.linalg.matrix_rank(W), "This is the rank"),
            (lambda W: torch.special.entr(torch.linalg.svdvals(W)).sum().exp(), "not yet shares"),
            (nan_rank, "0 times log 0 is NaN"),
            (lambda W: torch.special.entr(W.abs().flatten() / W.abs().sum()).sum().exp(), "entries of W"),
            (lambda W: torch.linalg.matrix_norm(W, "nuc"), "the sum of the singular values"),
            (lambda W: right_rank(W) + 1, "minus the sum of p ln p"),
            (lambda W: torch.linalg.svdvals(W), "A number is asked for, this is a Tensor"),
            (lambda W: "high", "A number"),
        ],
    },
    "02.offset": {
        "right": [right_offset, weighted_offset, offset_in_numpy],
        "wrong": [
            (lambda omega, delta: torch.eye(2 * len(omega)), "ignores delta"),
            (lambda omega, delta: right_offset(omega, delta).T, "looks the other way"),
            (lambda omega, delta: 3 * right_offset(omega, -delta), "looks the other way"),
            (only_sines, "Only the sines"),
            (lambda omega, delta: torch.diag(torch.cat([(omega * delta).cos()] * 2)), "Only the cosines"),
            (in_turns, "in turns"),
            (lambda omega, delta: right_offset(omega, delta + 1), "look back by"),
            (lambda omega, delta: right_offset(omega, delta) * math.nan, "NaN"),
            (lambda omega, delta: right_offset(omega, delta)[:3, :3], r"with K = 3"),
            (lambda omega, delta: omega @ torch.ones(7), "stopped with RuntimeError"),
        ],
    },
}
