"""The whole idea of headtools in one file: find, watch, change and score the attention heads of a transformers model.

Read it from top to bottom. It gives the package's numbers: a test compares them on architectures from BERT to Whisper.
The package is longer because it also understands models that are built otherwise, refuses what would be silently
wrong, and says what to do instead.

    0. what a head computes      split_heads, Attention
    1. where the heads are       sites
    2. what they do              record, contributions
    3. what they could do        weights, ov, qk, effective_rank, overlap, look_back
    4. what happens without      edit, gates, switch_off, patch
    5. what they look at         head_means, confidence, offset_score, induction_score
    6. what they are worth       loss, gradient, ablation
    7. how many can go           HardConcrete, pruning_curve
    8. how sure we are           bootstrap, table

Shapes: B examples, T tokens, H heads, W features of a head's value, D features of the residual stream. Every score is
*rows*, {(kind, layer): (n, H)}: one number per example and head.
"""

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
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


def switch_off(model: nn.Module, heads: Mapping[tuple, Iterable[int]]):
    """Switch heads off while the context lasts: {("encoder", 2): [0, 5]}."""
    found, values = sites(model), {}
    for key, some in heads.items():
        values[key] = torch.ones(found[key].heads)
        values[key][list(some)] = 0
    return gates(model, values)


def patch(model: nn.Module, heads: Mapping[tuple, Iterable[int]], source: Mapping):
    """Give heads the outputs that they had in another run, ``source`` (what ``record`` recorded), while it lasts."""

    def replace(key, some):
        def change(z):
            z = z.clone()
            z[:, :, some] = source[key].z[:, :, some].to(z)
            return z

        return change

    return edit(model, {key: replace(key, list(some)) for key, some in heads.items()})


# --- 5. What they look at ---------------------------------------------------------------------------------------------


@torch.no_grad()
def head_means(model: nn.Module, batches: Iterable[Mapping], score: Callable[[Tensor], Tensor]) -> dict[tuple, Tensor]:
    """Return the mean of ``score(maps)`` (B, H, query) over the queries that are no padding, as rows {key: (n, H)}."""
    parts = []
    for batch in batches:
        with record(model) as seen:
            model(**batch)
        part = {}
        for key, layer in seen.items():
            value = score(layer.maps)
            real = _real_queries(model, batch, key[0], value).to(value)[:, None]  # (B, 1, query)
            part[key] = (value * real).sum(-1) / real.sum(-1)
        parts.append(part)
    return _joined(parts)


def _real_queries(model: nn.Module, batch: Mapping, kind: str, value: Tensor) -> Tensor:
    """Return which queries are no padding, (B, query)."""
    if model.config.is_encoder_decoder and kind != "encoder":  # the decoder's tokens are those of the labels
        return batch["labels"] != -100
    return batch.get("attention_mask", torch.ones(len(value), value.shape[-1]))


def confidence(model: nn.Module, batches: Iterable[Mapping]) -> dict[tuple, Tensor]:
    """Return each head's largest weight, averaged over queries, as rows (Voita et al. 2019, section 4)."""
    return head_means(model, batches, lambda maps: maps.amax(-1))


def offset_score(maps: Tensor, offset: int) -> Tensor:
    """Return how often a head looks most at the token ``offset`` places away: maps (B, H, T, T) -> (B, H).

    -1 is the previous token. Queries that have no such token do not count.
    """
    hits = (maps.argmax(-1) - torch.arange(maps.shape[-1])) == offset  # (B, H, query)
    has_target = slice(max(0, -offset), maps.shape[-1] - max(0, offset))
    return hits[..., has_target].double().mean(-1)


def induction_score(maps: Tensor, period: int) -> Tensor:
    """Return the mean weight on the token after the last copy of the query's own: maps (B, H, T, T) -> (B, H).

    For text that repeats after ``period`` tokens: that token lies period - 1 places back (Olsson et al. 2022).
    """
    return maps.diagonal(1 - period, -2, -1)[..., 1:].mean(-1)


# --- 6. What they are worth -------------------------------------------------------------------------------------------


def loss(model: nn.Module, batch: Mapping) -> Tensor:
    """Return each example's mean cross-entropy over its labels that are not -100, in nats: (B,)."""
    logits, labels = model(**batch).logits.float(), batch["labels"]
    if not model.config.is_encoder_decoder and {kind for kind, _ in sites(model)} == {"decoder"}:
        logits, labels = logits[:, :-1], labels[:, 1:]  # a causal model predicts the next token
    each = F.cross_entropy(logits.transpose(1, -1), labels, reduction="none")  # 0 where a label is -100
    return each.sum(-1) / (labels != -100).sum(-1)


def gradient(model: nn.Module, batches: Iterable[Mapping]) -> dict[tuple, Tensor]:
    """Return the slope of each example's loss by each head's gate, at gate 1, as rows with their sign.

    The mean of its absolute value is a head's importance (Michel et al. 2019, equation 2). One forward and one backward
    pass give all heads: examples do not see each other, so the gradient of the summed loss holds each one's own.
    """
    parts = []
    for batch in batches:
        n = len(batch["labels"])
        ones = {key: torch.ones(n, site.heads, requires_grad=True) for key, site in sites(model).items()}
        with gates(model, ones):
            slopes = torch.autograd.grad(loss(model, batch).sum(), list(ones.values()))
        parts.append(dict(zip(ones, slopes, strict=True)))
    return _joined(parts)


@torch.no_grad()
def ablation(model: nn.Module, batches: Iterable[Mapping]) -> dict[tuple, Tensor]:
    """Return how much each example's loss rises without each head, one head off at a time, as rows.

    All heads of a layer share one pass: copy h of the batch runs without head h.
    """
    parts = []
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


def pruning_curve(
    model: nn.Module, order: list[tuple], counts: Iterable[int], metric: Callable[[], float]
) -> dict[int, float]:
    """Return ``metric()`` with the first 0, 1, ... heads of ``order`` off: {how many are off: metric}.

    ``order`` names heads, (kind, layer, head), the first to go first. A curve means something beside that of a random
    order only.
    """
    curve = {}
    for count in counts:
        off: dict[tuple, list[int]] = {}
        for *key, head in order[:count]:
            off.setdefault(tuple(key), []).append(head)
        with switch_off(model, off):
            curve[count] = metric()
    return curve


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


def table(rows: Mapping[tuple, Tensor]) -> list[tuple]:
    """Return one line a head, the highest mean first: (kind, layer, head, mean, low, high)."""
    lines = []
    for key, site_rows in rows.items():
        low, high = bootstrap(site_rows)
        ends = zip(site_rows.mean(0).tolist(), low.tolist(), high.tolist(), strict=True)
        lines += [(*key, head, *numbers) for head, numbers in enumerate(ends)]
    return sorted(lines, key=lambda line: -line[-3])
