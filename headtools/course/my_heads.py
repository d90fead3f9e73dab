"""The whole idea of headtools in one file: find, watch, change and score the attention heads of a transformers model.

Read it from top to bottom. It gives the package's numbers: a test compares them on architectures from BERT to Whisper.
The package is longer because it also understands models that are built otherwise, refuses what would be silently
wrong, and says what to do instead.

    0. what a head computes      split_heads, Attention
    1. where the heads are       sites
    2. what they do              record, contributions
    3. what they could do        weights, ov, qk, attention_map, thin_svd, told_apart, effective_rank, overlap,
                                 look_back
    4. what happens without      edit, gates, by_site, switch_off
       what does a head carry    patch, logit_difference, moved, remove_direction, rewrite
       who reads its note        hide_from, write_head
    5. what they look at         confidence, induction_score
       is a story true           offset_pairs, relation_pairs, rarest_pairs, hits, best_offset, sentence_rows
       is the name right         swap_words, pair_cost, counterfactual
       what do they carry        probe, control_labels, eraser, erase
    6. what they are worth       accuracy, loss, gradient, ablation, saturation_proof_gradient
       where an answer came from direct_logit, messages, Share, attention_rule
    7. how many can go           HardConcrete, fit_gates, target_size, pruning_curve, greedy_order, slice_layer
       who survives              survivors_null
    8. how sure we are           bootstrap, honest_choice
    9. all of it, on any model   report

Shapes: B examples, T tokens, H heads, W features of a head's value, D features of the residual stream. Every score is
*rows*, {(kind, layer): (n, H)}: one number per example and head.
"""

import copy
import inspect
import math
import random
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

# --- 0. What a head computes ------------------------------------------------------------------------------------------


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Cut the features of each token into heads: (B, T, H * W) -> (B, H, T, W)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Attention(nn.Module):
    """A layer of attention with H heads: softmax(Q K^T / sqrt(W)) V for each, and one matrix that mixes them."""

    def __init__(self, d: int, H: int) -> None:
        super().__init__()
        self.H = H
        self.q_proj = nn.Linear(d, d)
        self.k_proj = nn.Linear(d, d)
        self.v_proj = nn.Linear(d, d)
        self.out_proj = nn.Linear(d, d)

    def forward(self, X: Tensor, Y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Let tokens X (B, T, d) read tokens Y (B, S, d) where the mask (B, H, T, S) is true: output, maps and z."""
        Q, K, V = (split_heads(part, self.H) for part in (self.q_proj(X), self.k_proj(Y), self.v_proj(Y)))
        scores = Q @ K.mT / math.sqrt(Q.shape[-1])  # (B, H, T, S)
        A = scores.masked_fill(~mask, -math.inf).softmax(-1)
        z = (A @ V).transpose(1, 2)  # (B, T, H, W)
        return self.out_proj(z.flatten(2)), A, z


# --- 1. Where the heads are -------------------------------------------------------------------------------------------

# Model files give the output projection, and the width of a head, one of these names.
OUTPUTS = ("o_proj", "out_proj", "c_proj", "proj", "dense", "o", "out_lin")
WIDTHS = ("head_dim", "attention_head_size", "key_value_proj_dim", "head_size")


@dataclass(frozen=True, eq=False)
class Site:
    """One attention layer. ``out``, its output projection, reads z: the heads' outputs, side by side."""

    key: tuple  # ("encoder", 2): the kind of attention, and the layer, from 0
    module: nn.Module
    out: nn.Module
    heads: int

    def split(self, flat: Tensor) -> Tensor:
        """Return what ``out`` reads, (B, T, H * W), head by head: z (B, T, H, W)."""
        return flat.unflatten(-1, (self.heads, -1))


def sites(model: nn.Module) -> dict[tuple, Site]:
    """Return every attention layer, {(kind, layer): Site}; kinds are "encoder", "decoder" (causal) and "cross"."""
    found = {}
    for name, module in model.named_modules():
        # All attention modules of transformers look their attention function up in this table; no other module does.
        if "ALL_ATTENTION_FUNCTIONS" not in inspect.unwrap(type(module).forward).__code__.co_names:
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        places = [getattr(module, n, None) for n in OUTPUTS]
        places.append(getattr(getattr(parent, "output", None), "dense", None))  # BERT keeps it one level higher
        out = next(place for place in places if isinstance(place, nn.Module))
        width = next(getattr(module, n) for n in WIDTHS if isinstance(getattr(module, n, None), int))
        kind = _kind(name, module)
        layer = sum(key[0] == kind for key in found)
        # The weight's shape, not the configuration, says how many heads there are: it stays true after pruning.
        found[kind, layer] = Site((kind, layer), module, out, len(_rows(out)) // width)
    if not found:
        raise ValueError(f"{type(model).__name__} has no layer that calls transformers' AttentionInterface")
    return found


def _kind(name: str, module: nn.Module) -> str:
    if getattr(module, "is_cross_attention", False) is True or re.search("cross|encoder_attn|EncDec", name):
        return "cross"
    causal = getattr(module, "is_causal", None)
    causal = ".decoder." in f".{name}." if causal is None else causal
    return "decoder" if causal or getattr(module, "is_decoder", False) is True else "encoder"


def _rows(projection: nn.Module) -> Tensor:
    """Return a projection's weight so that x @ weight projects x: nn.Linear stores it transposed, Conv1D does not."""
    return projection.weight if type(projection).__name__ == "Conv1D" else projection.weight.T


# --- 2. What they do --------------------------------------------------------------------------------------------------


def _watched(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options) -> tuple:
    """Run the attention function of the model's own file, and show its inputs and its maps to whoever listens."""
    files = [sys.modules[owner.__module__] for owner in type(module).__mro__]
    own = next(file.eager_attention_forward for file in files if hasattr(file, "eager_attention_forward"))
    output, maps = own(module, query, key, value, mask, **options)
    if listener := module.__dict__.get("_my_listener"):
        listener(q=query, k=key, v=value, maps=maps.float())
    return output, maps


AttentionInterface.register("my_heads", _watched)
AttentionMaskInterface.register("my_heads", eager_mask)  # without it no mask would be made, and padding would be seen


@contextmanager
def record(model: nn.Module):
    """Record every site that runs while the context lasts: {key: .maps, .z, .q, .k, .v}.

    ``maps`` (B, H, query, key): each row sums to 1. ``z`` (B, T, H, W): what a head passes on, before W_O.
    """
    if model.training:
        raise ValueError("in training mode dropout changes the maps: call model.eval() first")
    seen, before = {}, model.config._attn_implementation
    with ExitStack() as stack:
        model.set_attn_implementation("my_heads")
        stack.callback(model.set_attn_implementation, before)
        for key, site in sites(model).items():

            def listen(key=key, **tensors):
                seen[key] = SimpleNamespace(**{name: tensor.detach() for name, tensor in tensors.items()})

            def keep_z(z, key=key):
                seen[key].z = z.detach()

            site.module.__dict__["_my_listener"] = listen
            stack.callback(site.module.__dict__.pop, "_my_listener")
            stack.enter_context(_edit_site(site, keep_z))
        yield seen


def contributions(site: Site, z: Tensor) -> Tensor:
    """Return what each head adds to the residual stream: z (B, T, H, W) -> (B, T, H, D).

    Concatenating heads and projecting is the same as projecting each one and adding up (Elhage et al. 2021).
    """
    return torch.einsum("bthw,hwd->bthd", z, weights(site)[3])


# --- 3. What they could do --------------------------------------------------------------------------------------------


def weights(site: Site) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return W_Q, W_K, W_V (H, D, W) and W_O (H, W, D) of a layer, one matrix a head."""
    fused = getattr(site.module, "c_attn", None)  # GPT-2 keeps queries, keys and values in one matrix, side by side
    if fused is not None:
        flat = list(_rows(fused).chunk(3, dim=1))
    else:
        names = (("q_proj", "query", "q", "q_lin"), ("k_proj", "key", "k", "k_lin"), ("v_proj", "value", "v", "v_lin"))
        flat = [_rows(next(getattr(site.module, n) for n in some if hasattr(site.module, n))) for some in names]
    w_o = _rows(site.out).unflatten(0, (site.heads, -1))
    head_width = flat[0].shape[1] // site.heads
    q, k, v = (matrix.unflatten(1, (-1, head_width)).movedim(1, 0) for matrix in flat)
    # With grouped queries (Llama) several query heads read the same keys and values: repeat these.
    return q, *(m.repeat_interleave(site.heads // len(m), 0) for m in (k, v)), w_o


def ov(site: Site) -> Tensor:
    """Return W_OV = W_V W_O of each head, (H, D, D): what it moves from a token to one that attends to it."""
    _, _, w_v, w_o = weights(site)
    return w_v @ w_o


def qk(site: Site) -> Tensor:
    """Return W_QK = W_Q W_K^T of each head, (H, D, D): x W_QK y is the score of query x and key y, up to a scale."""
    w_q, w_k, _, _ = weights(site)
    return w_q @ w_k.mT


def attention_map(x: Tensor, W_Q: Tensor, b_Q: Tensor, W_K: Tensor, b_K: Tensor) -> Tensor:
    """The map of one head, (T, T), from what it reads, (T, d): biases are one more row, met by a 1 behind each x."""
    W_QK = torch.cat([W_Q, b_Q[None]]) @ torch.cat([W_K, b_K[None]]).T  # (d + 1, d + 1)
    x1 = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    return (x1 @ W_QK @ x1.T / W_Q.shape[1] ** 0.5).softmax(-1)


def thin_svd(W_V: Tensor, W_O: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U (d, r), s (r,), V (d, r) with ``U * s @ V.T`` = ``W_V @ W_O``, from the factors: no d x d matrix is needed."""
    (Q1, R1), (Q2, R2) = torch.linalg.qr(W_V), torch.linalg.qr(W_O.T)
    u, s, vt = torch.linalg.svd(R1 @ R2.T)
    return Q1 @ u, s, Q2 @ vt.T


def told_apart(value: Tensor, yes: Tensor) -> Tensor:
    """The probability that one with ``yes`` lies above one without; ties count half (the area under the ROC curve)."""
    a, b = value[yes][:, None], value[~yes]
    return ((a > b).double() + (a == b).double() / 2).mean()


def effective_rank(matrices: Tensor) -> Tensor:
    """Return the exponential of the entropy of the singular values, as shares: (..., D, D) -> (...).

    Between 1, where one direction does it all, and the matrix's rank, where all are equal (Roy and Vetterli 2007).
    """
    values = torch.linalg.svdvals(matrices)
    shares = values / values.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


def overlap(A: Tensor, B: Tensor) -> Tensor:
    """Return the mean squared cosine of the principal angles between the spaces of two matrices' columns, (d, r).

    0 for orthogonal spaces, 1 for the same, r / d for two at random (Björck and Golub 1973).
    """
    U_a, U_b = torch.linalg.qr(A)[0], torch.linalg.qr(B)[0]
    return torch.linalg.svdvals(U_a.T @ U_b).square().mean()


def look_back(omega: Tensor, delta: int) -> Tensor:
    """Return W_QK (2K, 2K) of a head that looks ``delta`` places back, for positions [sin(omega i), cos(omega i)].

    cos(omega (i - j - delta)) is largest at j = i - delta, and the addition theorem makes a rotation of it.
    """
    c, s = torch.diag(torch.cos(omega * delta)), torch.diag(torch.sin(omega * delta))
    return torch.cat([torch.cat([c, s], 1), torch.cat([-s, c], 1)])


# --- 4. What happens without ------------------------------------------------------------------------------------------


@contextmanager
def _edit_site(site: Site, change: Callable[[Tensor], Tensor | None]):
    """Let a site's output projection read change(z) instead of z; None leaves z as it is."""

    def before_output(_module, args):
        z = change(site.split(args[0]))
        return None if z is None else (z.flatten(-2), *args[1:])

    hook = site.out.register_forward_pre_hook(before_output)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def edit(model: nn.Module, changes: Mapping[tuple, Callable[[Tensor], Tensor]]):
    """Change z (B, T, H, W) at some sites while the context lasts: {key: function of z}.

    Every change of what heads do is one of these, whatever kernel computed the attention.
    """
    found = sites(model)
    with ExitStack() as stack:
        for key, change in changes.items():
            stack.enter_context(_edit_site(found[key], change))
        yield


def gates(model: nn.Module, values: Mapping[tuple, Tensor]):
    """Multiply each head's output by its gate, {key: (H,) or (B, H)}: 1 changes nothing, 0 is a head that is off."""

    def gate(value):
        # (H,) or (B, H) becomes (1 or B, 1, H, 1), so that it multiplies z (B, T, H, W)
        return lambda z: z * value.view(-1, 1, value.shape[-1], 1).to(z)

    return edit(model, {key: gate(value) for key, value in values.items()})


def by_site(heads: Iterable[tuple]) -> dict[tuple, list[int]]:
    """Return heads, (kind, layer, head), as interventions take them: {(kind, layer): [head, ...]}."""
    found: dict[tuple, list[int]] = {}
    for *key, head in heads:
        found.setdefault(tuple(key), []).append(head)
    return found


def switch_off(model: nn.Module, heads: Mapping[tuple, Iterable[int]]):
    """Switch heads off while the context lasts: {("encoder", 2): [0, 5]}."""
    found, values = sites(model), {}
    for key, some in heads.items():
        values[key] = torch.ones(found[key].heads)
        values[key][list(some)] = 0
    return gates(model, values)


def patch(model: nn.Module, heads: Mapping[tuple, Iterable[int]], source: Mapping, positions: Tensor | None = None):
    """Give heads the outputs that they had in another run, ``source`` (what ``record`` recorded), while it lasts.

    ``positions`` (B, T): true where they are given; left out, everywhere (Vig et al. 2020).
    """

    def replace(key, some):
        def change(z):
            there = source[key].z.to(z)
            if positions is not None:
                there = torch.where(positions[..., None, None], there, z)
            z = z.clone()
            z[:, :, some] = there[:, :, some]
            return z

        return change

    return edit(model, {key: replace(key, list(some)) for key, some in heads.items()})


def logit_difference(logits: Tensor, position: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
    """Return how far the logit of word ``right`` (B,) lies above that of ``wrong`` at ``position``: (B, T, V) -> (B,).

    A constant added to all logits changes no probability and does not change this (Wang et al. 2023).
    """
    at = logits[torch.arange(len(logits)), position]  # (B, V)
    return (at.gather(1, right[:, None]) - at.gather(1, wrong[:, None]))[:, 0]


@torch.no_grad()
def moved(model: nn.Module, run: Mapping, other: Mapping, heads: Mapping, measure: Callable, positions=None) -> Tensor:
    """Return how far heads alone, patched from ``other``, move ``run`` towards it: 0 not at all, 1 all the way, (B,).

    ``measure`` makes (B,) of logits. From a corrupted run towards the clean one this is denoising, the other way round
    noising (Heimersheim and Nanda 2024).
    """
    with record(model) as source:
        there = measure(model(**other).logits)
    here = measure(model(**run).logits)
    if torch.isclose(here, there, rtol=1e-4, atol=1e-6).any():
        raise ValueError("in some examples both runs measure the same, so nothing can move: leave these out")
    with patch(model, heads, source, positions):
        now = measure(model(**run).logits)
    return (now - here) / (there - here)


@contextmanager
def remove_direction(model: nn.Module, head: tuple, directions: Tensor):
    """Let a head, (kind, layer, head), write nothing along ``directions`` (n, D) while it lasts.

    The smallest change of W_O that does it is a projection (Bolukbasi et al. 2016). Afterwards the weights are what
    they were, bit for bit.
    """
    *key, h = head
    site = sites(model)[tuple(key)]
    w_o = _rows(site.out).detach().unflatten(0, (site.heads, -1))[h]  # (W, D), in the memory of the weight
    u, sizes, _ = torch.linalg.svd(directions.to(w_o).T, full_matrices=False)
    basis = u[:, sizes > 1e-5 * sizes.max()]  # orthonormal columns, as many as there are independent directions
    before = w_o.clone()
    w_o -= w_o @ basis @ basis.T
    try:
        yield
    finally:
        w_o.copy_(before)


# The next two are for a model of two layers of nothing but attention: ToyDecoder, or one like it.


@contextmanager
def hide_from(model: nn.Module, writers: Iterable[int], path: str):
    """Hide what heads of layer 0 write from the queries, the keys or the values ("q", "k", "v") of layer 1.

    The residual stream (B, T, D) is a sum: their part is subtracted, for this path alone (Elhage et al. 2021 call such
    links Q-, K- and V-composition). Hide several heads in one block: blocks for one path add up changes of the norm.
    """
    (first, second), writers, seen = model.layers, list(writers), {}
    w_o = first.out_proj.weight.unflatten(1, (first.num_heads, -1))[:, writers]  # (D, writers, W)

    def keep_part(_module, args):
        z = args[0].unflatten(-1, (first.num_heads, -1))[:, :, writers]  # (B, T, writers, W)
        seen["part"] = torch.einsum("bthw,dhw->btd", z, w_o)

    def compare(norm, args, normed):
        seen["change"] = norm.forward(args[0] - seen["part"]) - normed

    def read_without(_projection, args):
        return args[0] + seen["change"]  # with the position or without it, the change is the same

    with ExitStack() as stack:
        stack.callback(first.out_proj.register_forward_pre_hook(keep_part).remove)
        stack.callback(model.norms[1].register_forward_hook(compare).remove)
        stack.callback(getattr(second, f"{path}_proj").register_forward_pre_hook(read_without).remove)
        yield


@torch.no_grad()
def write_head(model: nn.Module, head: int, omega: Tensor, delta: int, gain: float = 30.0) -> None:
    """Write into layer 0 a head of width W that looks ``delta`` places back, and notes a part of the symbol there.

    Of the D features, the first W become the place, [sin(omega i), cos(omega i)]; the next W of the symbol are read,
    and written into the W after these. ``gain`` makes the softmax sharp.
    """
    layer, w = model.layers[0], model.layers[0].head_dim
    place, read, note, own = (slice(w * i, w * (i + 1)) for i in (0, 1, 2, head))
    angle = torch.arange(len(model.position.weight))[:, None] * omega  # (T, W / 2)
    model.position.weight[:, place] = torch.cat([angle.sin(), angle.cos()], 1)
    model.norms[0].weight[place] = model.norms[0].bias[place] = 0  # no symbol disturbs the place
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
        projection.weight[own] = 0
    layer.q_proj.weight[own, place] = gain * look_back(omega, delta).T  # nn.Linear multiplies by the transpose
    layer.k_proj.weight[own, place] = torch.eye(w)
    layer.v_proj.weight[own, read] = torch.eye(w)
    layer.out_proj.weight[:, own] = 0
    layer.out_proj.weight[note, own] = torch.eye(w)


def rewrite(k: Tensor, r: Tensor, C: Tensor) -> Tensor:
    """Return the change of W_V, (D, W), that adds r (W,) at k (D,) and least elsewhere: C (D, D) is E[x^T x].

    A matrix of rank one (Meng et al. 2022, equation 2, for an MLP). With C = I it is the smallest as a matrix.
    """
    direction = torch.linalg.solve(C, k)
    return torch.outer(direction, r) / (k @ direction)


# --- 5. What they look at ---------------------------------------------------------------------------------------------


@torch.no_grad()
def confidence(model: nn.Module, batches: Iterable[Mapping]) -> dict[tuple, Tensor]:
    """Return each head's largest weight, averaged over the queries that are no padding, as rows {key: (n, H)}.

    All keys count. Voita et al. (2019, section 4) leave out the EOS token, as ``ht.confidence`` does.
    """
    parts = []
    for batch in batches:
        with record(model) as seen:
            model(**batch)
        part = {}
        for key, layer in seen.items():
            largest = layer.maps.amax(-1)  # (B, H, query)
            real = _real_queries(model, batch, key[0], largest).to(largest)[:, None]  # (B, 1, query)
            part[key] = (largest * real).sum(-1) / real.sum(-1)
        parts.append(part)
    return _joined(parts)


def _real_queries(model: nn.Module, batch: Mapping, kind: str, value: Tensor) -> Tensor:
    """Return which queries are no padding, (B, query)."""
    if model.config.is_encoder_decoder and kind != "encoder":  # the decoder's tokens are those of the labels
        return batch["labels"] != -100
    return batch.get("attention_mask", torch.ones(len(value), value.shape[-1]))


def induction_score(maps: Tensor, period: int) -> Tensor:
    """Return the mean weight on the token after the last copy of the query's own: maps (B, H, T, T) -> (B, H).

    For text that repeats after ``period`` tokens: that token lies period - 1 places back (Olsson et al. 2022).
    """
    return maps.diagonal(1 - period, -2, -1)[..., 1:].mean(-1)


# A story about a head is a list of pairs (sentence, query, keys): from this word, it should look at one of those.
# A sentence has .words, and for each word .heads (the word that it depends on, from 1; 0 is the root) and .relations.


def offset_pairs(sentences: Sequence, offset: int) -> list[tuple]:
    """Return the pairs (sentence, query, {key}) of words ``offset`` places apart: -1 is the previous word."""
    pairs = []
    for b, sentence in enumerate(sentences):
        length = len(sentence.words)
        pairs += [(b, i, {i + offset}) for i in range(length) if 0 <= i + offset < length]
    return pairs


def relation_pairs(sentences: Sequence, relation: str, way: str) -> list[tuple]:
    """Return the pairs from each word "up" to the word that it depends on by a relation, or "down" from there."""
    pairs = []
    for b, sentence in enumerate(sentences):
        for i, (parent, name) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if name == relation and parent > 0:
                query, key = (i, parent - 1) if way == "up" else (parent - 1, i)
                pairs.append((b, query, {key}))
    return pairs


def rarest_pairs(sentences: Sequence, rank: Callable[[str], int], least: int) -> list[tuple]:
    """Return the pairs from every word to the rarest of its sentence, the one with the highest rank by frequency.

    Sentences count whose highest rank is at least ``least`` and held by half of the words at most (Voita et al. 2019).
    """
    pairs = []
    for b, sentence in enumerate(sentences):
        ranks = [rank(word) for word in sentence.words]
        keys = {i for i, r in enumerate(ranks) if r == max(ranks)}
        if max(ranks) >= least and 2 * len(keys) <= len(ranks):
            pairs += [(b, i, keys) for i in range(len(ranks))]
    return pairs


def hits(attended: Tensor, pairs: list[tuple]) -> Tensor:
    """Return whether each head's strongest key is among those of a pair: (B, ..., query) -> (pair, ...).

    The share of hits is a head's score for the story (Voita et al. 2019, section 5).
    """
    rows = [torch.isin(attended[b, ..., i], torch.tensor(sorted(keys))) for b, i, keys in pairs]
    return torch.stack(rows)


def best_offset(fitted: list[tuple], scored: list[tuple]) -> tuple[int, float]:
    """Return the most frequent offset of the pairs ``fitted``, and the share of ``scored`` that have it.

    What a syntactic head has to beat (Voita et al. 2019, section 5.2).
    """
    offsets = [key - query for _, query, keys in fitted for key in keys]
    best = max(set(offsets), key=offsets.count)
    return best, sum(query + best in keys for _, query, keys in scored) / len(scored)


def sentence_rows(found: Tensor, pairs: list[tuple]) -> Tensor:
    """Return one row a sentence whose mean is the share of hits over all pairs: (pair, ...) -> (sentence, ...).

    The share plus what a sentence adds to it, to first order: a bootstrap of these rows is one of the sentences.
    """
    places = torch.tensor([b for b, _, _ in pairs]).unique(return_inverse=True)[1]
    n = torch.bincount(places).double().view(-1, *[1] * (found.dim() - 1))
    sums = torch.zeros(len(n), *found.shape[1:], dtype=torch.double).index_add_(0, places, found.double())
    share = sums.sum(0) / n.sum()
    return share + (sums - n * share) / n.mean()


# Is the name right? A name is a prediction about sentences that nobody has looked at yet.


def swap_words(words: Sequence[str], how: str, vocabulary: Sequence[str], draw: random.Random) -> list[str]:
    """Return as many words without their grammar: the same ones "shuffled", "random" ones, or one "repeated"."""
    if how == "shuffled":
        return draw.sample(words, len(words))
    if how == "random":
        return [draw.choice(vocabulary) for _ in words]
    return [draw.choice(words)] * len(words)


def pair_cost(cost: Callable[[list], Tensor], a: tuple, b: tuple) -> Tensor:
    """Return rows (n, 4): what an example loses without head a, without b, without both, and beyond their sum.

    ``cost`` gives one number an example for a list of heads that are off. The last column is above 0 where one head
    does the other's work once that is gone.
    """
    off = [cost(heads) for heads in ([], [a], [b], [a, b])]
    without_a, without_b, without_both = (each - off[0] for each in off[1:])
    return torch.stack([without_a, without_b, without_both, without_both - without_a - without_b], -1)


def counterfactual(frames: Mapping[str, str], slots: Mapping[str, Sequence[str]], n: int, seed: int = 0) -> dict:
    """Return n sentences a frame, {name: [words, ...]}, which differ from frame to frame in the frame alone.

    A frame is a text with named gaps, "the {who} saw it ."; each gap is filled from its slot, and no word twice in one
    sentence. Sentence i has the same words in every frame.
    """
    draw, sentences = random.Random(seed), {name: [] for name in frames}
    for _ in range(n):
        chosen: dict[str, str] = {}
        for gap, words in slots.items():
            chosen[gap] = draw.choice([word for word in words if word not in chosen.values()])
        for name, frame in frames.items():
            sentences[name].append(frame.format(**chosen).split())
    return sentences


# What do they carry? A probe reads a label off each word's vector; an eraser takes away what a probe could read.


def probe(x: Tensor, y: Tensor, n: int, steps: int = 100, rate: float = 0.3) -> Tensor:
    """Return whether a linear probe that is fitted on the first n vectors names the label of each other one: (N - n,).

    ``x`` (N, d), and labels ``y`` (N,) from 0 on: multinomial logistic regression by gradient descent.
    """
    x = (x - x[:n].mean(0)) / x[:n].std(0).clamp(min=1e-6)
    X = torch.cat([x, torch.ones(len(x), 1)], 1)  # the column of ones is for the bias
    Y = F.one_hot(y).to(X)
    W = torch.zeros(X.shape[1], Y.shape[1])
    for _ in range(steps):
        P = (X[:n] @ W).softmax(-1)  # (n, label)
        W -= rate * X[:n].T @ (P - Y[:n]) / n
    return (X[n:] @ W).argmax(-1) == y[n:]


def control_labels(words: Sequence[Sequence[str]], maps: Sequence[Tensor], y: Tensor, seed: int = 0) -> Tensor:
    """Return random labels that depend on nothing but the word that a head attends to: (N,), -1 where ``y`` is.

    One map (query, key) and one list of words a sentence, one label a word. What a probe scores on them, it has
    memorised: a control task (Hewitt and Liang 2019), keyed to the word that the head reads instead of the word itself.
    """
    draw, answers = random.Random(seed), y[y >= 0].tolist()  # as frequent as in the task
    drawn: dict[str, int] = {}
    control = []
    for sentence, A in zip(words, maps, strict=True):
        for j in A.argmax(-1).tolist():
            if sentence[j] not in drawn:
                drawn[sentence[j]] = draw.choice(answers)
            control.append(drawn[sentence[j]])
    return torch.where(y >= 0, torch.tensor(control), -1)


def eraser(x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the smallest affine change of vectors (..., d) after which no linear probe can read ``y`` off x (n, d).

    For each label read along a = S^-1 delta, where it is told from the rest best, and subtract along delta, the
    difference of the means: LEACE (Belrose et al. 2023). One label needs no step of its own.
    """
    x = x.double()
    mean, keep = x.mean(0), torch.eye(x.shape[1], dtype=x.dtype)
    for label in y.unique()[1:]:
        left = (x - mean) @ keep  # what earlier labels have left
        delta = left[y == label].mean(0) - left[y != label].mean(0)
        a = torch.linalg.pinv(left.T @ left / len(x), hermitian=True) @ delta
        if a @ delta > 1e-12:  # where the means are the same, there is nothing to read, and nothing to erase
            keep = keep - keep @ torch.outer(a, delta) / (a @ delta)
    return lambda z: mean.to(z) + (z - mean.to(z)) @ keep.to(z)


def erase(model: nn.Module, erasers: Mapping[tuple, Callable[[Tensor], Tensor]]):
    """Change the outputs z of single heads while the context lasts: {("encoder", 4, 2): eraser}."""

    def change(own):
        def erased(z):
            z = z.clone()  # (B, T, H, W)
            for head, take in own.items():
                z[:, :, head] = take(z[:, :, head])
            return z

        return erased

    heads = by_site(erasers)
    return edit(model, {key: change({h: erasers[*key, h] for h in some}) for key, some in heads.items()})


# --- 6. What they are worth -------------------------------------------------------------------------------------------


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the share of right words of each example, (B,): logits (B, T, V), labels (B, T), -100 where none is."""
    real = labels != -100
    hit = (logits.argmax(-1) == labels) & real
    return hit.sum(1) / real.sum(1)


def loss(model: nn.Module, batch: Mapping) -> Tensor:
    """Return each example's mean cross-entropy over its labels that are not -100, in nats: (B,)."""
    labels = batch["labels"]
    # Only a model with a decoder beside its encoder reads the labels: shifted, they are its decoder's input.
    inputs = {name: value for name, value in batch.items() if name != "labels" or model.config.is_encoder_decoder}
    logits = model(**inputs).logits.float()
    if not model.config.is_encoder_decoder and {kind for kind, _ in sites(model)} == {"decoder"}:
        logits, labels = logits[:, :-1], labels[:, 1:]  # a causal model predicts the next token
    each = F.cross_entropy(logits.transpose(1, -1), labels, reduction="none")  # 0 where a label is -100
    return each.sum(-1) / (labels != -100).sum(-1)


_LOSS = loss  # measures below have a parameter of that name


def gradient(model: nn.Module, batches: Iterable[Mapping], loss: Callable | None = None) -> dict[tuple, Tensor]:
    """Return the slope of each example's loss by each head's gate, at gate 1, as rows with their sign.

    The mean of its absolute value is a head's importance (Michel et al. 2019, equation 2). One forward and one backward
    pass give all heads: examples do not see each other, so the gradient of the summed loss holds each one's own.
    """
    loss, parts = loss or _LOSS, []
    for batch in batches:
        n = len(batch["labels"])
        ones = {key: torch.ones(n, site.heads, requires_grad=True) for key, site in sites(model).items()}
        with gates(model, ones):
            slopes = torch.autograd.grad(loss(model, batch).sum(), list(ones.values()))
        parts.append(dict(zip(ones, slopes, strict=True)))
    return _joined(parts)


@torch.no_grad()
def ablation(model: nn.Module, batches: Iterable[Mapping], loss: Callable | None = None) -> dict[tuple, Tensor]:
    """Return how much each example's loss rises without each head, one head off at a time, as rows.

    All heads of a layer share one pass: copy h of the batch runs without head h.
    """
    loss, parts = loss or _LOSS, []
    for batch in batches:
        n, full, part = len(batch["labels"]), loss(model, batch), {}
        for key, site in sites(model).items():
            off = (1 - torch.eye(site.heads)).repeat_interleave(n, 0)  # (H * n, H): rows h * n to h * n + n lack head h
            copies = {name: value.repeat(site.heads, *[1] * (value.dim() - 1)) for name, value in batch.items()}
            with gates(model, {key: off}):
                without = loss(model, copies)  # (H * n,)
            part[key] = without.view(site.heads, n).T - full[:, None]
        parts.append(part)
    return _joined(parts)


class _Softmax(TorchFunctionMode):
    """While it lasts, every softmax over the last dimension, whoever calls it, is ``instead(scores)``."""

    def __init__(self, instead: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.instead, self.called = instead, False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ != "softmax":
            return func(*args, **(kwargs or {}))
        self.called = True
        return self.instead(args[0])


def secant_softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last dimension, with its slope averaged over the whole way from equal scores.

    With p the softmax, u the uniform weights on keys that are not masked, and m = (p - u) / log(p / u), the change
    p - u is m times what the scores exceed their mean by, weighted with m. The slope has p in the place of m, and is 0
    where one key has all the weight; m is never 0.
    """
    seen = scores >= scores.amax(-1, keepdim=True) - 4000  # what lies further below is masked
    n = seen.sum(-1, keepdim=True)
    with torch.no_grad():
        r = (scores.log_softmax(-1) + n.log()).masked_fill(~seen, 0)  # log(p / u)
        m = torch.where(r.abs() < 1e-4, 1, r.expm1() / r) * seen / n
    s = scores.masked_fill(~seen, 0)
    return seen / n + m * (s - (m * s).sum(-1, keepdim=True) / m.sum(-1, keepdim=True))


def saturation_proof_gradient(
    model: nn.Module, batches: Iterable[Mapping], loss: Callable | None = None
) -> dict[tuple, Tensor]:
    """Return ``gradient`` with a softmax whose slope does not vanish where a head looks at one key only, as rows.

    So heads that write the queries and keys of such a head are seen, too.
    """
    with _Softmax(secant_softmax) as mode:
        rows = gradient(model, batches, loss)
    if not mode.called:
        raise ValueError("attention is fused and calls no softmax: model.set_attn_implementation('eager')")
    return rows


# Where did an answer come from? Directly, as a sum of what heads write; and through everything else, by a rule.


def direct_logit(
    model: nn.Module, norm: nn.Module, batch: Mapping, right: Tensor, wrong: Tensor
) -> dict[tuple, Tensor]:
    """Return what each head writes itself of a difference of two logits, at the last token, as rows.

    ``norm`` is the model's final norm, a LayerNorm or an RMSNorm; with its scale s kept at what this run gave it, it is
    linear, so heads, embedding, MLPs and biases add up to logit(right) - logit(wrong) (Elhage et al. 2021). For models
    that norm what a layer reads and leave the stream alone. ``right`` and ``wrong`` are tokens, (B,).
    """
    z, read = {}, []

    def keep(key):
        return lambda value: z.update({key: value[:, -1:]})  # None: nothing is changed

    if "attention_mask" in batch and not batch["attention_mask"][:, -1].all():
        raise ValueError("some texts end in padding, and the last token is read: pass texts of one length")
    with ExitStack() as stack:
        hook = norm.register_forward_pre_hook(lambda _module, args: read.append(args[0][:, -1]))
        stack.callback(hook.remove)
        stack.enter_context(torch.no_grad())
        stack.enter_context(edit(model, {key: keep(key) for key in sites(model)}))
        model(**batch)
    x, centres = read[0], isinstance(norm, nn.LayerNorm)  # an RMSNorm takes no mean off
    if centres:
        x = x - x.mean(-1, keepdim=True)
    eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
    s = (x.square().mean(-1, keepdim=True) + eps).sqrt()
    words = model.get_output_embeddings().weight
    u = (words[right] - words[wrong]) * norm.weight / s  # (B, D): what of the stream is read, and how strongly
    if centres:
        u = u - u.mean(-1, keepdim=True)
    rows = {key: contributions(site, z[key])[:, 0] for key, site in sites(model).items()}  # (B, H, D)
    return {key: torch.einsum("bhd,bd->bh", written, u).detach() for key, written in rows.items()}


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """Return a / b, and 0 where there is nothing to divide by."""
    return (a / b).nan_to_num(0.0, 0.0, 0.0)


def messages(z: Tensor, R: Tensor, rule: str, number: float) -> Tensor:
    """Return what each term z (..., k, i) gets of the relevance R (..., k) of its unit k (Bach et al. 2015).

    "epsilon": in proportion, with ``number`` added to the size of the sum; "alpha-beta": ``number`` of it to the
    positive terms, the rest to the negative ones.
    """
    y, R = z.sum(-1, keepdim=True), R[..., None]
    if rule == "epsilon":
        return ratio(z, y + number * torch.where(y < 0, -1.0, 1.0)) * R
    plus, minus = z.clamp(min=0), z.clamp(max=0)
    P, N = plus.sum(-1, keepdim=True), minus.sum(-1, keepdim=True)
    alpha = torch.where((P > 0) & (N < 0), number, (P > 0).float())  # terms of one sign get everything
    return (alpha * ratio(plus, P) + (1 - alpha) * ratio(minus, N)) * R


class Share(torch.autograd.Function):
    """A linear layer whose "gradient" g carries relevance, R = x g: what goes back is shared among terms by a rule."""

    @staticmethod
    def forward(ctx, x: Tensor, W: Tensor, b: Tensor, rule: str, number: float) -> Tensor:
        """Return W x + b for tokens x (T, in), W (out, in) and b (out,)."""
        ctx.save_for_backward(x, W, b)
        ctx.rule, ctx.number = rule, number
        return F.linear(x, W, b)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple:
        """Turn the g of the output into that of x and b; nothing goes to the weights, which are no activations."""
        x, W, b = ctx.saved_tensors
        terms = torch.cat([x[:, None] * W, b.expand(len(x), -1)[..., None]], -1)  # (T, out, in + 1)
        M = messages(terms, terms.sum(-1) * g, ctx.rule, ctx.number)
        return ratio(M[..., :-1].sum(1), x), None, ratio(M[..., -1].sum(0), b), None, None


def attention_rule(q: Tensor, k: Tensor, v: Tensor, relevance: Tensor, fixed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the relevance of a head's queries, keys and values, from that of its output z (T, W).

    ``fixed``: the map is held constant, and all goes to the values (Ali et al. 2022). Otherwise each product gives half
    to each factor, and softmax passes relevance on by its gradient, not all of it (Achtibat et al. 2024).
    """
    A = (q @ k.T / math.sqrt(q.shape[-1])).softmax(-1)
    g = ratio(relevance, A @ v)
    R_v = v * (A.T @ g)
    if fixed:
        return torch.zeros_like(q), torch.zeros_like(k), R_v
    R_A = A * (g @ v.T) / 2
    g_scores = (R_A - A * R_A.sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
    return q * (g_scores @ k) / 2, k * (g_scores.T @ q) / 2, R_v / 2


# --- 7. How many can go -----------------------------------------------------------------------------------------------


class HardConcrete(nn.Module):
    """One gate per head that is exactly 0 or 1 much of the time and still has a gradient (Louizos et al. 2018).

    A sigmoid with noise inside, stretched to (-.1, 1.1) and cut off at 0 and 1: what lies outside is exactly 0 or 1.
    """

    def __init__(self, heads: int, start: float = 2.2, temperature: float = 0.33, stretch: float = 0.1) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((heads,), start))
        self.temperature, self.low, self.high = temperature, -stretch, 1 + stretch

    def sample(self, noise: Tensor) -> Tensor:
        """Return gates for ``noise``, uniform in (0, 1): equation 10, then the hard cut of equation 11."""
        soft = torch.sigmoid((noise.logit() + self.log_alpha) / self.temperature)
        return (soft * (self.high - self.low) + self.low).clamp(0, 1)

    def p_open(self) -> Tensor:
        """Return the probability that each gate is not 0; their sum is what a penalty makes small (equation 12)."""
        return torch.sigmoid(self.log_alpha - self.temperature * math.log(-self.low / self.high))

    def forward(self) -> Tensor:
        """Return the gates without noise, for use after training."""
        return (torch.sigmoid(self.log_alpha) * (self.high - self.low) + self.low).clamp(0, 1)


def fit_gates(
    model: nn.Module,
    batches: Iterable[Mapping],
    keys: list[tuple],
    gate: nn.Module,
    penalty: Callable[[Tensor], Tensor],
    noise: Tensor,
    rate: float = 0.1,
    also: Iterable[nn.Parameter] = (),
) -> Tensor:
    """Train a gate for each head of the sites ``keys``, one step a row of ``noise`` (steps, heads): log alpha by step.

    The loss is the model's own plus ``penalty(n)``, nats for n gates that are expected to be open (Voita et al. 2019,
    section 6.1). The model is frozen, but for the parameters ``also``. Gives (steps + 1, heads), the start first.
    """
    also = list(also)
    optimizer = torch.optim.Adam([{"params": [gate.log_alpha], "lr": rate}, {"params": also, "lr": 3e-4}])
    history = [gate.log_alpha.detach().clone()]
    for batch, u in zip(batches, noise, strict=False):  # batches may have no end
        drawn = gate.sample(u).view(len(keys), -1)  # (site, head)
        with gates(model, dict(zip(keys, drawn, strict=True))):
            total = model(**batch).loss + penalty(gate.p_open().sum())
            total.backward(inputs=[gate.log_alpha, *also])  # no gradient is left in other weights
        optimizer.step()
        optimizer.zero_grad()
        history.append(gate.log_alpha.detach().clone())
    return torch.stack(history)


def target_size(target: float, warm_up: int, rate: float = 0.3) -> Callable[[Tensor], Tensor]:
    """Return a penalty for ``fit_gates`` that makes the expected number of open gates go to ``target``.

    A Lagrangian with two multipliers, which rise as long as too many are open: a gap + b gap^2. The goal moves from
    where training starts to the target in ``warm_up`` steps (Xia et al. 2022, section 3.2).
    """
    begin, step, a, b = 0.0, 0, 0.0, 0.0

    def penalty(n: Tensor) -> Tensor:
        nonlocal begin, step, a, b
        begin = begin or n.item()
        goal = begin + (target - begin) * min(1.0, step / warm_up)
        gap = (n - goal) / begin
        cost = a * gap + b * gap**2
        a, b = a + rate * gap.item(), b + rate * gap.item() ** 2
        step += 1
        return cost

    return penalty


def pruning_curve(
    model: nn.Module, order: list[tuple], counts: Iterable[int], metric: Callable[[], float]
) -> dict[int, float]:
    """Return ``metric()`` with the first 0, 1, ... heads of ``order`` off: {how many are off: metric}.

    ``order`` names heads, (kind, layer, head), the first to go first. A curve means something beside that of a random
    order only.
    """
    curve = {}
    for count in counts:
        with switch_off(model, by_site(order[:count])):
            curve[count] = metric()
    return curve


def greedy_order(
    model: nn.Module, heads: Iterable[tuple], score: Callable[[], Mapping[tuple, Tensor]], step: int
) -> list[tuple]:
    """Return the order in which heads go when those that are left are scored again after every ``step`` of them.

    ``score()`` gives {(kind, layer): (H,)}, and is called while the heads that have gone are off. So a head shows what
    it is worth without its backup.
    """
    order, rest = [], list(heads)
    while rest:
        with switch_off(model, by_site(order)):
            values = score()
        rest.sort(key=lambda head: values[head[:-1]][head[-1]])
        order, rest = order + rest[:step], rest[step:]
    return order


def slice_layer(attention: nn.Module, heads: Iterable[int]) -> nn.Module:
    """Return a copy of an attention layer without some heads: smaller matrices, and the same sum over the rest.

    ``nn.Linear`` stores (out, in), so a head owns rows of q_proj, k_proj and v_proj (with their biases), and columns of
    out_proj, whose bias belongs to no head (Michel et al. 2019). At least one head has to stay.
    """
    small, width = copy.deepcopy(attention), attention.head_dim
    stay = [head for head in range(attention.num_heads) if head not in set(heads)]
    rows = torch.cat([torch.arange(head * width, (head + 1) * width) for head in stay])
    for linear in (small.q_proj, small.k_proj, small.v_proj):
        linear.weight = nn.Parameter(linear.weight[rows])
        linear.bias = None if linear.bias is None else nn.Parameter(linear.bias[rows])
        linear.out_features = len(rows)
    small.out_proj.weight = nn.Parameter(small.out_proj.weight[:, rows])
    small.out_proj.in_features, small.num_heads = len(rows), len(stay)
    return small


def survivors_null(has_role: Tensor, kept: Tensor, times: int = 2000) -> Tensor:
    """Return how many heads with a role random sets have that keep as many heads in each layer as ``kept``: (times,).

    ``has_role`` and ``kept`` are true or false, (layer, head). Heads with a role and heads that survive both gather in
    some layers; a draw from all layers at once would take that for a choice of heads.
    """
    counts, draw = torch.zeros(times), torch.Generator().manual_seed(0)
    for role, stays in zip(has_role, kept, strict=True):
        drawn = torch.rand(times, len(stays), generator=draw).argsort(-1)[:, : int(stays.sum())]
        counts += role[drawn].sum(-1)
    return counts


# --- 8. How sure we are -----------------------------------------------------------------------------------------------


def _joined(parts: list[dict[tuple, Tensor]]) -> dict[tuple, Tensor]:
    """Return the rows of all batches, one below the other."""
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def bootstrap(rows: Tensor, times: int = 1000) -> tuple[Tensor, Tensor]:
    """Return the ends of a 95 % interval of the mean of rows (n, H), by the studentised bootstrap: low, high (H,).

    Resampled means alone give too narrow an interval where examples are few or skewed. So each is measured in standard
    errors of its own resample, t = (mean* - mean) / error*, and the quantiles of t, not of the means, bound the mean
    (Efron and Tibshirani 1993, chapter 12). For five rows or more.
    """
    rows, n = rows.double(), len(rows)
    if n < 5:
        raise ValueError(f"an interval needs five examples or more, got {n}: fewer do not show how much they vary")
    mean, error = rows.mean(0), rows.std(0) / math.sqrt(n)
    draws = torch.randint(n, (times, n), generator=torch.Generator().manual_seed(0))
    resampled = rows[draws]  # (times, n, H)
    # A resample of nearly equal rows has hardly any error; a floor keeps t finite.
    its_error = (resampled.std(1) / math.sqrt(n)).maximum(error / 4)
    t = ((resampled.mean(1) - mean) / its_error).nan_to_num(0, 0, 0)  # 0 / 0 where all rows are equal
    below, above = t.quantile(torch.tensor([0.025, 0.975], dtype=t.dtype), dim=0)
    student = stats.t.ppf(0.975, n - 1)  # never narrower than Student's t
    return mean - above.clamp_min(student) * error, mean - below.clamp_max(-student) * error


def honest_choice(choosing: Mapping[tuple, Tensor], measuring: Mapping[tuple, Tensor]) -> dict:
    """Choose the best head by some rows {key: (n, H)}, and say what it scores by others, which had no say in it.

    "promised" is its mean where it was chosen; "score", "low" and "high" its mean and interval where it was not, and
    "any" what a head drawn at random would score there. The best of many is partly the luckiest (Efron 2011).
    """
    means = {key: rows.mean(0) for key, rows in choosing.items()}
    key = max(means, key=lambda site: means[site].max())
    head = int(means[key].argmax())
    rows = measuring[key][:, [head]]
    low, high = bootstrap(rows)
    everyone = torch.cat(list(measuring.values()), 1)  # (n, all heads)
    return {
        "head": (*key, head),
        "promised": means[key][head].item(),
        "score": rows.mean().item(),
        "low": low.item(),
        "high": high.item(),
        "any": everyone.mean().item(),
    }


# --- 9. All of it, on any model ---------------------------------------------------------------------------------------


def report(model: nn.Module, texts: Sequence[Mapping], roles: Mapping[str, tuple]) -> list[dict]:
    """Return one line a head, the costliest first: what it looks at, and what it is worth, each with an interval.

    ``texts`` are batches with labels. ``roles`` is {name: (batches, score)}, with ``score(maps)`` (B, H) and batches
    without padding. A role's baseline, "even", is its score for maps that share each query's weight evenly among the
    keys that it may see; its "gain" is what the head has beyond that, example by example.
    """
    slopes = gradient(model, texts)
    measured = {
        "importance": {key: rows.abs() for key, rows in slopes.items()},
        "cost": ablation(model, texts),
        "confidence": confidence(model, texts),
    }
    plain = {}  # means alone: their interval is that of the gain
    for name, (batches, score) in roles.items():
        own, even = [], []
        for batch in batches:
            with torch.no_grad(), record(model) as seen:
                model(**batch)
            visible = {key: (layer.maps > 0).float() for key, layer in seen.items()}
            own.append({key: score(layer.maps) for key, layer in seen.items()})
            even.append({key: score(one / one.sum(-1, keepdim=True)) for key, one in visible.items()})
        plain[name], plain[f"{name} even"] = _joined(own), _joined(even)
        measured[f"{name} gain"] = {key: rows - plain[f"{name} even"][key] for key, rows in plain[name].items()}
    lines = []
    for key, site in sites(model).items():
        ends = {name: bootstrap(rows[key]) for name, rows in measured.items()}
        for head in range(site.heads):
            line = {"kind": key[0], "layer": key[1], "head": head}
            line |= {name: rows[key][:, head].mean().item() for name, rows in {**plain, **measured}.items()}
            line |= {f"{name} low": low[head].item() for name, (low, _) in ends.items()}
            line |= {f"{name} high": high[head].item() for name, (_, high) in ends.items()}
            lines.append(line)
    return sorted(lines, key=lambda line: -line["cost"])
