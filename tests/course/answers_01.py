"""Answers to the exercises of lesson 01: right ones, and wrong ones with what their hint must say."""

import math
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

import headtools as ht
from headtools.course import my_heads


def not_implemented(*_):
    raise NotImplementedError


def scores(q, k):
    return q @ k.T / math.sqrt(q.shape[-1])


def right_softmax(q, k, mask):
    return scores(q, k).masked_fill(~mask, -torch.inf).softmax(-1)


def softmax_by_hand(q, k, mask):
    s = torch.where(mask, scores(q, k), torch.tensor(-1e9))
    e = (s - s.max(-1, keepdim=True).values).exp()
    return e / e.sum(-1, keepdim=True)


def softmax_in_numpy(q, k, mask):
    return np.asarray(softmax_by_hand(q, k, mask))


def softmax_in_lists(q, k, mask):
    return right_softmax(q.double(), k.double(), mask).tolist()


def overflowing(q, k, mask):
    e = scores(q, k).exp() * mask
    return e / e.sum(-1, keepdim=True)


def right_split(x, heads):
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def split_by_chunks(x, heads):
    return torch.stack(x.chunk(heads, -1), 1).numpy()


def split_in_lists(x, heads):
    return [[list(map(list, part)) for part in np.split(one.numpy(), heads, -1)] for one in x]


class Attention(nn.Module):
    """The layer, with one mistake where ``wrong`` names one."""

    wrong = ""

    def __init__(self, d, H):
        super().__init__()
        self.H = H
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(d, d))

    def forward(self, X, Y, mask):
        def split(x):
            if self.wrong == "cut":
                return x.reshape(len(x), self.H, x.shape[1], -1)
            return x.unflatten(-1, (self.H, -1)).transpose(1, 2)

        q, k = split(self.q_proj(X)), split(self.k_proj(X if self.wrong == "keys" else Y))
        v = split(self.v_proj(X if self.wrong == "values" else Y))
        s = q @ k.mT / {"plain": 1, "width": X.shape[-1] ** 0.5}.get(self.wrong, q.shape[-1] ** 0.5)
        mask = {"mask": torch.ones_like(mask), "inverted": ~mask}.get(self.wrong, mask)
        A = s.masked_fill(~mask, -math.inf).softmax(-2 if self.wrong == "queries" else -1)
        z = (A @ v).transpose(1, 2)
        flat = (A @ v).reshape(len(X), X.shape[1], -1) if self.wrong == "flat" else z.flatten(2)
        out = flat if self.wrong == "bare" else self.out_proj(flat)
        if self.wrong == "two":
            return out, A
        return out, A, z.transpose(1, 2) if self.wrong == "turned" else z


def layer_with(mistake):
    return type("Attention", (Attention,), {"wrong": mistake})


class ByEinsum(Attention):
    def forward(self, X, Y, mask):
        n = (self.H, -1)
        q, k, v = self.q_proj(X).unflatten(-1, n), self.k_proj(Y).unflatten(-1, n), self.v_proj(Y).unflatten(-1, n)
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        A = torch.where(mask, scores, torch.tensor(-1e9)).softmax(-1)
        z = torch.einsum("bhts,bshd->bthd", A, v)
        return [torch.einsum("btf,of->bto", z.flatten(2), self.out_proj.weight) + self.out_proj.bias, A, z]


class HeadByHead(Attention):
    def forward(self, X, Y, mask):
        parts = zip(*(part.chunk(self.H, -1) for part in (self.q_proj(X), self.k_proj(Y), self.v_proj(Y))), strict=True)
        maps, outs = [], []
        for q, k, v in parts:
            allowed = mask[:, 0]
            maps.append((q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~allowed, -math.inf).softmax(-1))
            outs.append(maps[-1] @ v)
        return self.out_proj(torch.cat(outs, -1)), torch.stack(maps, 1), torch.stack(outs, 2)


class Blank(nn.Module):
    def __init__(self, d, H):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(d, d))

    def forward(self, X, Y, mask): ...


class Renamed(nn.Module):
    def __init__(self, d, H):
        super().__init__()
        self.query = nn.Linear(d, d)


def recording(wrong=""):
    """A right record, or one with a mistake."""

    @contextmanager
    def record(model):
        seen, hooks, last = {site.key: SimpleNamespace() for site in ht.sites(model)}, [], {}
        for site in ht.sites(model):
            last["site"] = site

            def maps(module, args, output, key=site.key):
                entry = seen[last["site"].key if wrong == "late" else key]
                entry.maps = output[0] if wrong == "output" else output[1].detach()
                if wrong == "late":
                    for each in seen.values():
                        each.maps = output[1].detach()

            def z(module, args, site=site):
                flat = args[0] if wrong == "graph" else args[0].detach() * (2 if wrong == "doubled" else 1)
                seen[site.key].z = flat if wrong == "flat" else site.split(flat)
                return (args[0] * 0,) if wrong == "changes" else None

            hooks.append(site.module.register_forward_hook(maps))
            if wrong != "no z":
                hooks.append(site.out.register_forward_pre_hook(z))
        if wrong == "no finally":
            yield seen
        try:
            if wrong != "no finally":
                yield list(seen) if wrong == "list" else seen
        finally:
            for hook in hooks if wrong != "stays" else ():
                hook.remove()

    return record


class Recorder:
    """Another style: a class, and numbers kept by name."""

    def __init__(self, model):
        self.model, self.seen, self.handles = model, defaultdict(SimpleNamespace), []

    def __enter__(self):
        for site in ht.sites(self.model):
            self.handles += [
                site.module.register_forward_hook(partial(self.keep, site, "maps")),
                site.out.register_forward_hook(partial(self.keep, site, "z")),
            ]
        return self.seen

    def keep(self, site, name, module, args, output):
        value = output[1] if name == "maps" else args[0].unflatten(-1, (site.heads, -1))
        setattr(self.seen[site.key], name, value.clone().detach())

    def __exit__(self, *error):
        for handle in self.handles:
            handle.remove()


@contextmanager
def blank_record(model):
    seen = {site.key: SimpleNamespace() for site in ht.sites(model)}
    ...
    yield seen


def package_record(model):
    return ht.record(model)


def weight(site):
    return site.out.weight.data


def right_sum(site, z):
    w = weight(site)
    return torch.einsum("bthe,mhe->bthm", z, w.view(w.shape[0], *z.shape[2:]))


def sum_in_a_loop(site, z):
    d = z.shape[-1]
    return torch.stack([z[:, :, h] @ weight(site)[:, h * d : (h + 1) * d].T for h in range(z.shape[2])], 2)


def rows_of_w(site, z):
    d = z.shape[-1]
    return torch.stack([z[:, :, h] @ weight(site)[h * d : (h + 1) * d] for h in range(z.shape[2])], 2)


def whole_sum(site, z):
    return z.flatten(2) @ weight(site).T


def for_each_head(site, z):
    return whole_sum(site, z)[:, :, None].expand_as(right_sum(site, z))


def package_sum(site, z):
    return ht.contributions(site, z)


def every_second_column(site, z):
    return torch.stack([z[:, :, h] @ weight(site)[:, h :: z.shape[2]].T for h in range(z.shape[2])], 2)


def right_blocks(q, k, v, size):
    largest = torch.full((len(q), 1), -torch.inf, dtype=q.dtype)
    total, out = torch.zeros_like(largest), q.new_zeros(len(q), v.shape[1])
    for keys, values in zip(k.split(size), v.split(size), strict=True):
        found = scores(q, keys)
        new = torch.maximum(largest, found.amax(1, keepdim=True))
        weights, shrink = (found - new).exp(), (largest - new).exp()
        total, out, largest = total * shrink + weights.sum(1, keepdim=True), out * shrink + weights @ values, new
    return out / total, (largest + total.log())[:, 0]


def blocks_in_two_passes(q, k, v, size):
    log_sum = torch.stack([scores(q, keys).logsumexp(1) for keys in k.split(size)]).logsumexp(0)
    out = sum(
        (scores(q, keys) - log_sum[:, None]).exp() @ values
        for keys, values in zip(k.split(size), v.split(size), strict=True)
    )
    return out, log_sum


def blocks_by_logaddexp(q, k, v, size):
    out, log_sum = 0, torch.full((len(q),), -torch.inf, dtype=q.dtype)
    for start in range(0, len(k), size):
        found = scores(q, k[start : start + size])
        own = found.logsumexp(1)
        after = torch.logaddexp(log_sum, own)
        out = (
            out * (log_sum - after).exp()[:, None]
            + found.softmax(1) @ v[start : start + size] * (own - after).exp()[:, None]
        )
        log_sum = after
    return [out, log_sum]


def wrong_blocks(what, q, k, v, size):
    pieces = [(scores(q, keys), values) for keys, values in zip(k.split(size), v.split(size), strict=True)]
    if what == "softmax in each":
        return sum(s.softmax(1) @ values for s, values in pieces) / len(pieces), right_blocks(q, k, v, size)[1]
    if what == "last":
        return pieces[-1][0].softmax(1) @ pieces[-1][1], right_blocks(q, k, v, size)[1]
    if what == "no shrink":
        own = [(s - s.amax(1, keepdim=True)).exp() for s, _ in pieces]
        total = sum(w.sum(1, keepdim=True) for w in own)
        return sum(w @ values for w, (_, values) in zip(own, pieces, strict=True)) / total, total.log()[:, 0]
    if what == "no subtraction":
        total = sum(s.exp().sum(1, keepdim=True) for s, _ in pieces)
        return sum(s.exp() @ values for s, values in pieces) / total, total.log()[:, 0]
    out, log_sum = right_blocks(q, k, v, size)
    largest = torch.stack([s.amax(1) for s, _ in pieces]).amax(0)
    if what == "not divided":
        return out * (log_sum - largest).exp()[:, None], log_sum
    return out, largest if what == "largest" else log_sum - largest


def whole_map(q, k, v, size):
    found = scores(q, k)
    return found.softmax(1) @ v, found.logsumexp(1)


ANSWERS = {
    "01.softmax": {
        "right": [right_softmax, softmax_by_hand, softmax_in_numpy, softmax_in_lists],
        "wrong": [
            (lambda q, k, mask: right_softmax(2 * q, k, mask), "too peaked: divide.*square root"),
            (lambda q, k, mask: right_softmax(q / 2, k, mask), "square root of d"),
            (lambda q, k, mask: right_softmax(q * 2**0.5, k, mask), "root of the number of queries"),
            (lambda q, k, mask: (scores(q, k) - 1e9 * mask).softmax(-1), "same weight.*upside down"),
            (lambda q, k, mask: scores(q, k).masked_fill(~mask, -torch.inf).softmax(0), "Each column sums to 1"),
            (lambda q, k, mask: scores(q, k).softmax(-1) * mask, "mask comes too late"),
            (lambda q, k, mask: scores(q, k).softmax(-1), "mask is not used"),
            (lambda q, k, mask: right_softmax(q, k, ~mask), "NaN.*upside down"),
            (lambda q, k, mask: (scores(q, k) * mask).softmax(-1), "The mask multiplies the scores"),
            (lambda q, k, mask: right_softmax(q, k, mask if mask.all() else ~mask), "upside down"),
            (lambda q, k, mask: scores(q, k).masked_fill(~mask, -torch.inf), "softmax is missing"),
            (lambda q, k, mask: q @ k.T, "products of queries and keys"),
            (overflowing, "exp of a large score is infinite"),
            (lambda q, k, mask: right_softmax(q, k, mask) * 0.9, "must sum to 1; yours sum to 0.90, 0.90"),
            (lambda q, k, mask: right_softmax(q, k, mask).flip(1), "differ from softmax"),
            (lambda q, k, mask: right_softmax(q, k, mask).T, r"shape is \(3, 2\), it should be \(query, key\)"),
            (lambda q, k, mask: q @ k, r"stopped with RuntimeError.*for \n    q = \[\[2, 0, 0, 0\]"),
            (lambda q, k, mask: "weights", "a str"),
            (torch.eye(3), "A function is asked for"),
        ],
    },
    "01.split": {
        "right": [right_split, split_by_chunks, split_in_lists],
        "wrong": [
            (lambda x, heads: x.reshape(x.shape[0], heads, x.shape[1], -1), "numbers are shuffled"),
            (lambda x, heads: x.view(*x.shape[:2], heads, -1), r"\(batch, token, head, d\).*exchange two axes"),
            (lambda x, heads: x.view(*x.shape[:2], -1, heads).permute(0, 3, 1, 2), "every second number"),
            (lambda x, heads: right_split(x, heads).flip(1), "wrong order"),
            (lambda x, heads: right_split(x, heads) + 1, "Head 0 of the first token"),
            (lambda x, heads: right_split(x, 2), "x = a tensor of shape|x = "),
            (lambda x, heads: x, "The shape is"),
            (lambda x, heads: x.view(9, 9), "RuntimeError.*x = .*heads = 2"),
        ],
    },
    "01.attention": {
        "right": [Attention, ByEinsum, HeadByHead, my_heads.Attention],
        "blank": [Blank],
        "wrong": [
            (layer_with("width"), "root of d; it is the root of d/H"),
            (layer_with("plain"), "not divided by the root"),
            (layer_with("mask"), "mask is not used"),
            (layer_with("inverted"), "NaN.*upside down|upside down"),
            (layer_with("queries"), "softmax runs over the queries"),
            (layer_with("keys"), "keys come from X"),
            (layer_with("values"), "values come from X"),
            (layer_with("cut"), "memory order"),
            (layer_with("flat"), "flattened with its heads before its tokens"),
            (layer_with("bare"), "output projection is still to come"),
            (layer_with("turned"), "heads before its tokens: exchange"),
            (layer_with("two"), "Three things are asked for"),
            (Renamed, "leave __init__ as it is"),
            (Attention(8, 2), "The class is asked for"),
        ],
    },
    "01.record": {
        "right": [recording(), Recorder, my_heads.record],
        "blank": [blank_record, not_implemented],
        "wrong": [
            (recording("late"), "what another site computed"),
            (recording("output"), r"maps has the shape .*\(B, H, T, S\)"),
            (recording("flat"), "heads side by side"),
            (recording("no z"), r"z is not there, or None"),
            (recording("doubled"), "is not what this site computed. z is what enters site.out"),
            (recording("changes"), "computes something else"),
            (recording("stays"), "still recorded. Remove each hook"),
            (recording("no finally"), "An error inside the block leaves hooks behind"),
            (recording("list"), "Yield seen, the dict"),
            (package_record, "ht.record is right, and it is the one that you are about to write"),
            (lambda model: model, "context manager is asked for"),
        ],
    },
    "01.sum": {
        "right": [right_sum, sum_in_a_loop, lambda site, z: sum_in_a_loop(site, z).double().numpy()],
        "wrong": [
            (rows_of_w, "uses rows of the weight"),
            (whole_sum, "This is the sum of the heads"),
            (
                lambda site, z: whole_sum(site, z)[:, :, None].expand_as(right_sum(site, z)),
                "Each head has the whole sum",
            ),
            (lambda site, z: whole_sum(site, z)[:, :, None].expand_as(right_sum(site, z)) / z.shape[2], "equal share"),
            (every_second_column, "every second column"),
            (lambda site, z: right_sum(site, z) + site.out.bias.detach(), "bias is added to every head"),
            (lambda site, z: right_sum(site, z).flip(2), "sum over heads is right"),
            (lambda site, z: right_sum(site, z) * 2, "should be z.flatten"),
            (lambda site, z: right_sum(site, z).transpose(2, 3), "The shape is"),
            (package_sum, "ht.contributions is right"),
        ],
    },
    "01.blocks": {
        "right": [right_blocks, blocks_in_two_passes, blocks_by_logaddexp],
        "wrong": [
            (partial(wrong_blocks, "softmax in each"), "weights that sum to 1 by themselves"),
            (partial(wrong_blocks, "last"), "Only the last block counts"),
            (partial(wrong_blocks, "no shrink"), "what was summed so far shrinks"),
            (partial(wrong_blocks, "no subtraction"), "is not finite"),
            (lambda q, k, v, size: right_blocks(2 * q, k, v, size), "The root of d is missing"),
            (partial(wrong_blocks, "not divided"), "divide by the sum of the weights"),
            (lambda q, k, v, size: right_blocks(q, k, v, size)[0], "Two things are asked for"),
            (partial(wrong_blocks, "log of the sum"), "add the largest"),
            (partial(wrong_blocks, "largest"), "This is the largest score"),
            (whole_map, "that is the map"),
            (lambda q, k, v, size: (v, v), "The shape is"),
        ],
    },
    "01.cost": {
        "right": [
            lambda T, d, H: 4 * T * d**2 + 2 * T**2 * d,
            lambda T, d, H: 4 * T * d * d + H * 2 * T * T * (d / H),
            lambda T, d, H: torch.tensor(4 * T * d * d + 2 * T * T * d),
        ],
        "wrong": [
            (lambda T, d, H: H * (4 * T * d * d + 2 * T * T * d), "every head the full width"),
            (lambda T, d, H: 3 * T * d * d + 2 * T * T * d, "There is a fourth"),
            (lambda T, d, H: 4 * T * d * d + T * T * d, "scores or the averages are missing"),
            (lambda T, d, H: 4 * T * d * d, "Only the projections"),
            (lambda T, d, H: 2 * T * T * d, "Only scores and averages"),
            (lambda T, d, H: 8 * T * d * d + 4 * T * T * d, "Twice the number"),
            (lambda T, d, H: 4 * T * d * d + 2 * T * T * (d // H), "counted for one head"),
            (lambda T, d, H: 4 * T * d * (d // H) + 2 * T * T * d, "projections are counted for one head"),
            (lambda T, d, H: T * d, r"\(b, c\).*See it for T = 3, d = 4, H = 1, where you say 12"),
            (lambda T, d, H: "many", "A number is asked for, this is a str"),
            (lambda T, d: 4, "stopped with TypeError"),
            (192, "A function is asked for, this is an int"),
        ],
    },
}
