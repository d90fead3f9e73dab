"""Answers to the exercises of lesson 02: right ones, and wrong ones with what their hint must say."""

import math

import numpy as np
import torch

from headtools import geometry
from headtools.course import my_heads


def right_swap(W, a, b):
    return not torch.allclose(a @ a.T @ W, W, atol=1e-4)


def swap_by_svd(W, a, b):
    u, s, _ = torch.linalg.svd(W)
    read = u[:, s > 1e-4]
    return torch.linalg.matrix_norm(read.T @ a) < torch.linalg.matrix_norm(read.T @ b)


def swap_in_numpy(W, a, b):
    x = np.random.default_rng(0).standard_normal((3, len(W)))
    return np.abs(x @ W.numpy() @ b.numpy() @ b.numpy().T - x @ W.numpy()).max() > 1e-3


def first_column(W, a, b):
    """Compares columns, which may be turned, instead of spaces."""
    u = torch.linalg.svd(W)[0]
    return (u[:, 0] * a[:, 0]).sum().abs() < 0.999


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


ANSWERS = {
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
            (lambda A, B: cosines(A, B), "One number is asked for"),
            (lambda A, B: 0.5, "Orthonormal bases of both"),
        ],
    },
    "02.swap": {
        "right": [right_swap, swap_by_svd, swap_in_numpy, lambda W, a, b: (a.T @ W @ b).norm() < 0.999 * W.norm()],
        "wrong": [
            (lambda W, a, b: not right_swap(W, a, b), "other way round, each time"),
            (lambda W, a, b: right_swap(W.T, a, b), "other way round.*tokens taken as columns"),
            (lambda W, a, b: not torch.allclose(a @ a.T @ W, W, atol=0, rtol=0), "Right for some.*tolerance"),
            (lambda W, a, b: right_swap(W, b, a), "other way round"),
            (lambda W, a, b: True, "You say True whatever comes"),
            (lambda W, a, b: False, "You say False whatever comes.*keeps only one set"),
            (first_column, "only the space counts"),
            (lambda W, a, b: a @ b.T, "True or False is asked for, this is a Tensor"),
            (lambda W, a, b: W @ torch.ones(99), "stopped with RuntimeError"),
            (torch.eye(3), "A function is asked for"),
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
            (lambda W: torch.linalg.svdvals(W), "One number is asked for, this is a Tensor"),
            (lambda W: "high", "One number"),
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
