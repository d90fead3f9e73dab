"""Answers to the exercises of lesson 01: right ones, and wrong ones with what their hint must say."""

import math
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import torch
from edited import of
from torch import nn

import headtools as ht
from headtools.course import my_heads

split, layer, record, contributions = map(of, ("split_heads", "Attention", "record", "contributions"))
Attention = my_heads.Attention


def not_implemented(*_):
    raise NotImplementedError


def scores(q, k):
    return q @ k.T / math.sqrt(q.shape[-1])


def right_softmax(q, k, mask):
    return scores(q, k).masked_fill(~mask, -torch.inf).softmax(-1)


def softmax_by_hand(q, k, mask):
    s = torch.where(mask, scores(q, k), torch.tensor(-1e9))
    e = (s - s.max(-1, keepdim=True).values).exp()
    return (e / e.sum(-1, keepdim=True)).tolist()


def overflowing(q, k, mask):
    e = scores(q, k).exp() * mask
    return e / e.sum(-1, keepdim=True)


def split_by_chunks(x, heads):
    return torch.stack(x.chunk(heads, -1), 1).numpy()


class ByEinsum(Attention):
    def forward(self, X, Y, mask):
        n = (self.H, -1)
        q, k, v = self.q_proj(X).unflatten(-1, n), self.k_proj(Y).unflatten(-1, n), self.v_proj(Y).unflatten(-1, n)
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        A = torch.where(mask, scores, torch.tensor(-1e9)).softmax(-1)
        z = torch.einsum("bhts,bshd->bthd", A, v)
        return [torch.einsum("btf,of->bto", z.flatten(2), self.out_proj.weight) + self.out_proj.bias, A, z]


class Blank(Attention):
    def forward(self, X, Y, mask): ...


class Renamed(nn.Module):
    def __init__(self, d, H):
        super().__init__()
        self.query = nn.Linear(d, d)


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


def sum_in_a_loop(site, z):
    d, weight = z.shape[-1], site.out.weight.data.double()
    return torch.stack([z[:, :, h].double() @ weight[:, h * d : (h + 1) * d].T for h in range(z.shape[2])], 2).numpy()


def package_sum(site, z):
    return ht.contributions(site, z)


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
    return [out, log_sum]


def whole_map(q, k, v, size):
    found = scores(q, k)
    return found.softmax(1) @ v, found.logsumexp(1)


CUT, PARTS = "(heads, -1)).transpose(1, 2)", "weights(site)[3])"
DETACHED = "SimpleNamespace(**{name: tensor.detach() for name, tensor in tensors.items()})"
UNTIL = "try:\n        yield\n    finally:\n        "
LARGEST, EACH = "torch.maximum(largest, found.amax(1, keepdim=True))", "(found - new).exp(), (largest - new).exp()"
LOG_SUM, blocks = "(largest + total.log())[:, 0]", of(right_blocks)
ANSWERS = {
    "01.softmax": {
        "right": [right_softmax, softmax_by_hand],
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
        "right": [my_heads.split_heads, split_by_chunks],
        "wrong": [
            (lambda x, heads: x.reshape(x.shape[0], heads, x.shape[1], -1), "numbers are shuffled"),
            (split(CUT, "(heads, -1))"), r"\(batch, token, head, d\).*exchange two axes"),
            (split(CUT, "(-1, heads)).permute(0, 3, 1, 2)"), "every second number"),
            (split(CUT, CUT + ".flip(1)"), "wrong order"),
            (split(CUT, CUT + " + 1"), "Head 0 of the first token"),
            (split("(heads, -1)", "(2, -1)"), "x = a tensor of shape|x = "),
            (lambda x, heads: x, "The shape is"),
            (lambda x, heads: x.view(9, 9), "RuntimeError.*x = .*heads = 2"),
        ],
    },
    "01.attention": {
        "right": [ByEinsum, my_heads.Attention],
        "blank": [Blank],
        "wrong": [
            (layer("Q.shape[-1]", "X.shape[-1]"), "root of d; it is the root of d/H"),
            (layer(" / math.sqrt(Q.shape[-1])", ""), "not divided by the root"),
            (layer(".masked_fill(~mask, -math.inf)", ""), "mask is not used"),
            (layer("~mask", "mask"), "NaN.*upside down|upside down"),
            (layer("softmax(-1)", "softmax(-2)"), "softmax runs over the queries"),
            (layer("k_proj(Y)", "k_proj(X)"), "keys come from X"),
            (layer("v_proj(Y)", "v_proj(X)"), "values come from X"),
            (layer("split_heads(part, self.H)", "part.reshape(len(part), self.H, part.shape[1], -1)"), "memory order"),
            (layer("z.flatten(2)", "(A @ V).reshape(X.shape)"), "flattened with its heads before its tokens"),
            (layer("self.out_proj(z.flatten(2))", "z.flatten(2)"), "output projection is still to come"),
            (layer(", A, z", ", A, A @ V"), "heads before its tokens: exchange"),
            (layer(", A, z", ", A"), "Three things are asked for"),
            (Renamed, "leave __init__ as it is"),
            (my_heads.Attention(8, 2), "The class is asked for"),
        ],
    },
    "01.record": {
        "right": [Recorder, my_heads.record],
        "blank": [blank_record, not_implemented],
        "wrong": [
            (
                record(
                    "= {}, ",
                    "= dict.fromkeys(sites(model), SimpleNamespace()), ",
                    "seen[key] = " + DETACHED,
                    "seen[key].maps = tensors['maps'].detach()",
                ),
                "what another site computed",
            ),
            (record("tensor.detach() for", "tensor.detach().mean(1) for"), r"maps has the shape .*\(B, H, T, S\)"),
            (record("z.detach()", "z.detach().flatten(2)"), "heads side by side"),
            (record("seen[key].z = z.detach()", "pass"), r"z is not there, or None"),
            (record("z.detach()", "z.detach() * 2"), "is not what this site computed. z is what enters site.out"),
            (record("seen[key].z = z.detach()", "return z * 0"), "computes something else"),
            (record("hook.remove()", "pass", via=("_edit_site",)), "still recorded. Remove each hook"),
            (
                record(UNTIL + "hook", "yield\n    hook", via=("_edit_site",)),
                "An error inside the block leaves hooks behind",
            ),
            (record("yield seen", "yield list(seen)"), "Yield seen, the dict"),
            (package_record, "ht.record is right, and it is the one that you are about to write"),
            (lambda model: model, "context manager is asked for"),
        ],
    },
    "01.sum": {
        "right": [my_heads.contributions, sum_in_a_loop],
        "wrong": [
            (contributions(PARTS, "site.out.weight.unflatten(0, (site.heads, -1)))"), "uses rows of the weight"),
            (contributions(PARTS, PARTS + ".sum(2)"), "This is the sum of the heads"),
            (
                contributions(PARTS, PARTS + ".sum(2, keepdim=True).expand(-1, -1, site.heads, -1)"),
                "Each head has the whole sum",
            ),
            (contributions(PARTS, PARTS + ".mean(2, keepdim=True).expand(-1, -1, site.heads, -1)"), "equal share"),
            (
                contributions(PARTS, "site.out.weight.T.unflatten(0, (-1, site.heads)).transpose(0, 1))"),
                "every second column",
            ),
            (contributions(PARTS, PARTS + " + site.out.bias"), "bias is added to every head"),
            (contributions(PARTS, PARTS + ".flip(2)"), "sum over heads is right"),
            (contributions(PARTS, PARTS + " * 2"), "should be z.flatten"),
            (contributions(PARTS, PARTS + ".transpose(2, 3)"), "The shape is"),
            (package_sum, "ht.contributions is right"),
        ],
    },
    "01.blocks": {
        "right": [right_blocks, blocks_in_two_passes],
        "wrong": [
            (blocks(EACH, "found.softmax(1), 1"), "weights that sum to 1 by themselves"),
            (blocks("(largest - new).exp()", "0"), "Only the last block counts"),
            (
                blocks(LARGEST, "found.amax(1, keepdim=True)", EACH, "(found - new).exp(), 1"),
                "what was summed so far shrinks",
            ),
            (blocks(LARGEST, "torch.zeros_like(largest)"), "is not finite"),
            (blocks("scores(q, keys)", "scores(2 * q, keys)"), "The root of d is missing"),
            (blocks("out / total", "out"), "divide by the sum of the weights"),
            (blocks(", " + LOG_SUM, ""), "Two things are asked for"),
            (blocks(LOG_SUM, "total.log()[:, 0]"), "add the largest"),
            (blocks(LOG_SUM, "largest[:, 0]"), "This is the largest score"),
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
