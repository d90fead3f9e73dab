"""What every measure means, in the slowest and plainest way: one sentence at a time, one head at a time.

Nothing here uses headtools. Where the heads are is told by a table written by hand: the module that reads the heads'
outputs side by side (the output projection), and how many heads there are. A head's output z is what that module reads.
"""

import contextlib
import copy
import fnmatch
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

NAN, WORD = float("nan"), 3
INDUCTION, PREFIX = "induction (TransformerLens)", "prefix matching (Olsson)"


class NotRunnable(Exception):
    """The model itself, without headtools, cannot run a combination, or a measure says nothing of it."""


# --- where the heads are ----------------------------------------------------------------------------------------------

_BERT, _LLAMA = {("encoder",): "*.attention.output.dense"}, {("decoder",): "*.self_attn.o_proj"}
_BART = {
    ("encoder",): "*encoder.layers.*.self_attn.out_proj",
    ("decoder",): "*decoder.layers.*.self_attn.out_proj",
    ("cross",): "*decoder.layers.*.encoder_attn.out_proj",
}
OUTPUTS = {
    "bert": _BERT,
    "roberta": _BERT,
    "electra": _BERT,
    "deberta_v2": _BERT,
    "albert": {("encoder",): "*.attention.dense"},
    "distilbert": {("encoder",): "*.attention.out_lin"},
    "modernbert": {("encoder",): "*.attn.Wo"},
    "bert_decoder": {("decoder",): "*.attention.output.dense"},
    "gpt2": {("decoder",): "*.attn.c_proj"},
    "gpt_neox": {("decoder",): "*.attention.dense"},
    "opt": {("decoder",): "*.self_attn.out_proj"},
    "gptj": {("decoder",): "*.attn.out_proj"},
    "bloom": {("decoder",): "*.self_attention.dense"},
    "bart": _BART,
    "marian": _BART,
    "whisper": _BART,
    "fsmt": _BART,
    "t5": {
        ("encoder",): "*encoder.block.*.SelfAttention.o",
        ("decoder",): "*decoder.block.*.SelfAttention.o",
        ("cross",): "*decoder.block.*.EncDecAttention.o",
    },
    "encoder_decoder": {
        ("encoder",): "*encoder.layer.*.attention.output.dense",
        ("decoder",): "*decoder.transformer.h.*.attn.c_proj",
        ("cross",): "*decoder.transformer.h.*.crossattention.c_proj",
    },
    "vit": {("encoder",): "*.attention.o_proj"},
    "clip": {
        ("text_model", "decoder"): "*text_model.*.self_attn.out_proj",
        ("vision_model", "encoder"): "*vision_model.*.self_attn.out_proj",
    },
}
SIX_HEADS = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt_oss", "phi3")  # with 2 of keys and values
OUTPUTS |= dict.fromkeys((*SIX_HEADS, "deepseek_v3"), _LLAMA)

# Models whose queries, keys and values are modules of their own: how these are called, beside the output projection.
_Q_PROJ, _SELF = ("q_proj", "k_proj", "v_proj"), ("self.query", "self.key", "self.value")
SEPARATE = {
    "bert": _SELF,
    "roberta": _SELF,
    "electra": _SELF,
    "bert_decoder": _SELF,
    "albert": ("query", "key", "value"),
    "distilbert": ("q_lin", "k_lin", "v_lin"),
    "t5": ("q", "k", "v"),
} | dict.fromkeys(("opt", "llama", "qwen2", "qwen3", "bart", "marian", "whisper", "vit", "clip"), _Q_PROJ)
# Whose score of a pair is a product of queries and keys, and nothing else.
BILINEAR = tuple(name for name in SEPARATE if name not in ("t5", "llama", "qwen2", "qwen3"))


@dataclass(frozen=True)
class Layer:
    """An attention layer: its output projection, that module's path, its heads, and whether z has its tokens first."""

    out: nn.Module
    path: str
    heads: int
    tokens_first: bool

    def split(self, read: Tensor) -> Tensor:
        """Return what the output projection reads as z (B, T, head, width)."""
        z = read.unflatten(-1, (self.heads, -1))
        return z.transpose(0, 1) if self.tokens_first else z

    def join(self, z: Tensor) -> Tensor:
        """Return z as the output projection reads it."""
        return (z.transpose(0, 1) if self.tokens_first else z).flatten(-2)


def layers(architecture: str, model: nn.Module) -> dict:
    """Return the attention layers of a model of the zoo, {key: Layer}."""
    found = {}
    for prefix, pattern in OUTPUTS[architecture].items():
        paths = [name for name, _ in model.named_modules() if fnmatch.fnmatch("." + name, pattern)]
        heads = 6 if architecture in SIX_HEADS else 2 if prefix[0] == "vision_model" else 4
        for number, path in enumerate(paths):
            found[(*prefix, number)] = Layer(model.get_submodule(path), path, heads, architecture == "fsmt")
    return found


def projections(case, model: nn.Module, key: tuple) -> tuple:
    """Return a layer's modules of queries, keys and values, and how many heads of keys and values there are."""
    layer, architecture = layers(case.combination.architecture, model)[key], case.combination.architecture
    around = layer.path.rpartition(".")[0].removesuffix(".output")
    parts = (model.get_submodule(f"{around}.{name}") for name in SEPARATE[architecture])
    return (*parts, 2 if architecture in SIX_HEADS else layer.heads)


# --- running a model ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def changed(found: dict, changes: dict) -> Iterator[None]:
    """Let output projections read a changed z: ``changes`` is {key: z -> z}."""

    def hook(layer: Layer, change: Callable) -> Callable:
        return lambda _module, read: (layer.join(change(layer.split(read[0]))), *read[1:])

    handles = [found[key].out.register_forward_pre_hook(hook(found[key], change)) for key, change in changes.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def answer(outputs: object) -> Tensor:
    """Return what a model says: logits, or the embeddings of text and image side by side."""
    if hasattr(outputs, "logits"):
        return outputs.logits
    return torch.cat([outputs.text_embeds, outputs.image_embeds], -1)


def loss(case, outputs: object, inputs: dict) -> Tensor:
    """Return the loss of a single example, (): the mean cross-entropy of its labels."""
    if case.kind == "image+text":
        return (outputs.text_embeds * outputs.image_embeds).sum(-1)[0].float()
    logits, labels = outputs.logits[0].float(), inputs["labels"][0]
    if case.kind == "causal":
        real = inputs["attention_mask"][0].bool()
        logits, labels = logits[real][:-1], labels[real][1:]
    return F.cross_entropy(logits, labels)


def quiet(case) -> nn.Module:
    """Return a copy of the case's model without dropout."""
    return copy.deepcopy(case.model).eval()


def attend(model: nn.Module, how: str) -> nn.Module:
    """Let a model and every model inside it use an attention function."""
    for module in list(model.modules()):
        if hasattr(module, "set_attn_implementation"):
            module.set_attn_implementation(how)
    return model


def off(heads: list) -> Callable:
    """Return the change that switches heads off: z -> z."""

    def change(z: Tensor) -> Tensor:
        z = z.clone()
        z[:, :, heads] = 0
        return z

    return change


def outputs_of_heads(case, model: nn.Module, inputs: dict, changes: dict | None = None) -> dict:
    """Return the z that each output projection read in its last call, {key: (B, T, head, width)}."""
    found, seen = layers(case.combination.architecture, model), {}
    keep = {key: lambda z, key=key: seen.__setitem__(key, z.detach()) or z for key in found}
    torch.manual_seed(case.combination.seed)
    with torch.no_grad(), case.setting(), changed(found, changes or {}), changed(found, keep):
        model(**inputs)
    return seen


def spread(case, batch: dict, pieces: list, sides: dict) -> Tensor:
    """Return what units of a batch gave, side by side in the padded batch's shape; NaN where nothing is real.

    ``pieces``: [(unit, (rows, ...))]; ``sides`` says which dimensions are tokens, {1: "source"}.
    """
    shape = [case.size(batch), *pieces[0][1].shape[1:]]
    for dim, side in sides.items():
        padded = {"source": batch.get("attention_mask"), "target": batch.get("labels")}.get(side)
        widest = max(piece.shape[dim] for _, piece in pieces)
        shape[dim] = widest if padded is None or padded.dim() < 2 else padded.shape[1]
    whole = torch.full(shape, NAN)
    for unit, piece in pieces:
        for i, row in enumerate(unit.rows):
            own, place = (
                [_numbers(told[i].get(sides.get(d)), n.shape[d]) for d in range(1, n.dim())]
                for told, n in ((unit.own, piece), (unit.place, whole))
            )
            values = piece[i].detach().float()[torch.meshgrid(*own, indexing="ij")] if own else piece[i].float()
            if own:
                whole[row][torch.meshgrid(*place, indexing="ij")] = values
            else:
                whole[row] = values
    return whole


def _numbers(which: object, size: int) -> Tensor:
    return which if isinstance(which, Tensor) else torch.arange(size)


def told_side(case) -> dict:
    """Return which dimension of what a model says is tokens, and of which side."""
    if case.kind in ("image", "image+text"):
        return {}
    return {1: "target" if case.two_sided else "source"}


# --- seeing ---------------------------------------------------------------------------------------------------------


def maps(case, units: list, call: int = -1) -> dict:
    """Attention maps: what the model itself gives under eager attention with output_attentions=True.

    ``call`` is which run of ALBERT's one layer is meant: the last, of three.
    """
    model, found = attend(copy.deepcopy(case.model), "eager"), {}
    names = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    for number, (batch, some) in enumerate(zip(case.batches, units, strict=True)):
        pieces = {}
        for unit in some:
            torch.manual_seed(case.combination.seed)
            with torch.no_grad(), case.setting():
                outputs = model(**unit.inputs, output_attentions=True)
            for key in case.layers:
                if len(key) == 3:
                    given = outputs[f"{key[0]}_output"].attentions
                else:
                    given = outputs[names[key[0]] if case.two_sided else "attentions"]
                if not given:
                    raise NotRunnable("the model itself gives no maps")  # EncoderDecoderModel, of its encoder
                last = given[call if case.combination.architecture == "albert" else key[-1]]
                pieces.setdefault(key, []).append((unit, last))
        for key, some_pieces in pieces.items():
            query, looked_at = case.sides(key)
            found[f"batch {number} {key}"] = spread(case, batch, some_pieces, {2: query, 3: looked_at})
    return found


def z(case, units: list) -> dict:
    """Heads' outputs: what the output projection reads."""
    found = {}
    for number, (batch, some) in enumerate(zip(case.batches, units, strict=True)):
        seen = [(unit, outputs_of_heads(case, case.model, unit.inputs)) for unit in some]
        for key in case.layers:
            pieces = [(unit, each[key]) for unit, each in seen]
            found[f"batch {number} {key}"] = spread(case, batch, pieces, {1: case.sides(key)[0]})
    return found


def contribution(layer: Layer, outputs: Tensor, head: int) -> Tensor:
    """What a head adds: the output projection of its z, all others being 0, without the projection's bias."""
    alone = torch.zeros_like(outputs)
    alone[:, :, head] = outputs[:, :, head]
    return layer.out(layer.join(alone)) - layer.out(layer.join(torch.zeros_like(outputs)))


# --- switching ------------------------------------------------------------------------------------------------------


def answers(case, units: list, changes: Callable, model: nn.Module | None = None) -> dict:
    """What the model says when heads' outputs are changed: ``changes(batch number, unit)`` gives {key: z -> z}."""
    model, found = model or case.model, {}
    where = layers(case.combination.architecture, model)
    for number, (batch, some) in enumerate(zip(case.batches, units, strict=True)):
        pieces = []
        for unit in some:
            changing = changes(number, unit)
            torch.manual_seed(case.combination.seed)
            with torch.no_grad(), case.setting(), changed(where, changing):
                pieces.append((unit, answer(model(**unit.inputs))))
        found[f"batch {number}"] = spread(case, batch, pieces, told_side(case))
    return found


def pool(case, key: tuple) -> Tensor:
    """The outputs of a layer's heads at every real token of the batches, (n, head, width), without dropout."""
    model, rows = quiet(case), []
    found, side = layers(case.combination.architecture, model), case.sides(key)[0]
    for unit in itertools.chain.from_iterable(case.units):

        def keep(z: Tensor, unit=unit) -> Tensor:  # every call: a shared layer has several
            rows.append(z.detach()[0, unit.own[0][side]].float())
            return z

        with torch.no_grad(), case.setting(), changed(found, {key: keep}):
            model(**unit.inputs)
    return torch.cat(rows)


def put(heads: list, values: Tensor) -> Callable:
    """Return the change that gives heads other outputs: values (..., head, width) of all heads."""

    def change(z: Tensor) -> Tensor:
        z = z.clone()
        z[:, :, heads] = values[..., heads, :].to(z).expand_as(z[:, :, heads])
        return z

    return change


def even(case, model: nn.Module, key: tuple, heads: list, unit) -> dict:
    """Even attention: a head's output is the mean of the values it may look at. Gives {key: z -> z}, and its hook."""
    _, _, value, kv_heads = projections(case, model, key)
    seen, side = [], case.sides(key)[1]
    handle = value.register_forward_hook(lambda _module, _read, given: seen.append(given))

    def change(z: Tensor) -> Tensor:
        values = seen[-1].unflatten(-1, (kv_heads, -1))[0].repeat_interleave(z.shape[2] // kv_heads, 1)
        real = torch.zeros(len(values), dtype=torch.bool)
        real[unit.own[0][side]] = True
        allowed = real.repeat(z.shape[1], 1)
        if key[-2] == "decoder":
            allowed = allowed.tril()
        weights = allowed / allowed.sum(1, keepdim=True).clamp(min=1)
        return put(heads, torch.einsum("qk,khd->qhd", weights.to(values), values)[None])(z)

    return {key: change}, handle


# --- importance -----------------------------------------------------------------------------------------------------


def slopes(case, keys: list, per_token: bool = False, softmax: Callable | None = None) -> dict:
    """dL/dgate of each example and head, {key: (n, head)}; per token [(tokens, head), ...]: Michel et al., eq. 2.

    ``softmax`` stands in for that of the model's eager attention.
    """
    model = quiet(case) if softmax is None else attend(quiet(case), "eager")
    found, rows = layers(case.combination.architecture, model), {key: [] for key in keys}
    for unit in itertools.chain.from_iterable(case.units):
        gates = {}

        def gated(z: Tensor, key: tuple, gates=gates) -> Tensor:
            size = z.shape[1] if per_token else 1
            gates.setdefault(key, torch.ones(size, z.shape[2], 1, requires_grad=True))
            return z * gates[key].to(z.dtype)

        instead = mock.patch.object(F, "softmax", softmax) if softmax else contextlib.nullcontext()
        with case.setting(), instead, changed(found, {key: lambda z, key=key: gated(z, key) for key in keys}):
            loss(case, model(**unit.inputs), unit.inputs).backward()
        for key, gate in gates.items():
            slope = torch.zeros_like(gate) if gate.grad is None else gate.grad
            rows[key].append(slope[unit.own[0][case.sides(key)[0]], :, 0] if per_token else slope[0, :, 0])
    return rows if per_token else {key: torch.stack(part) for key, part in rows.items()}


def by_secant(scores: Tensor, dim: int = -1, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    """Softmax whose derivative is the Jacobian diag(m) - m m^T / sum(m), one row of attention at a time.

    m is the logarithmic mean of the weights p and of even weights u, (p - u) / (log p - log u).
    """
    softmax = torch.softmax
    if scores.dim() < 3:  # a router's, which chooses experts
        return softmax(scores, dim, dtype)
    rows = []
    for row in scores.flatten(0, -2).double():
        p = softmax(row.detach(), -1)
        seen = p > 0
        p = p[seen]
        u = torch.full_like(p, 1 / len(p))
        m = torch.where((p - u).abs() < 1e-9, u, (p - u) / (p.log() - u.log()))
        jacobian = torch.diag(m) - torch.outer(m, m) / m.sum()
        change = row[seen] - row[seen].detach()  # 0, with a slope of 1
        rows.append(torch.zeros_like(row).masked_scatter(seen, p + jacobian @ change))
    return torch.stack(rows).view_as(scores).to(dtype or scores.dtype)


def gradient(case, keys: list, over: str) -> dict:
    """Importance by gradient: what the absolute value is taken of differs, the mean over examples is the same."""
    if over == "position":
        return {key: torch.cat(part).abs().mean(0) for key, part in slopes(case, keys, per_token=True).items()}
    each = slopes(case, keys)
    if over == "example":
        return {key: part.abs().mean(0) for key, part in each.items()}
    if over == "signed":
        return {key: part.mean(0) for key, part in each.items()}
    sizes = [case.size(batch) for batch in case.batches]
    return {key: torch.stack([some.mean(0).abs() for some in part.split(sizes)]).mean(0) for key, part in each.items()}


def losses(case, changes: dict, model: nn.Module) -> Tensor:
    """The loss of every example while heads are changed, (n,)."""
    found = layers(case.combination.architecture, model)
    with torch.no_grad(), case.setting(), changed(found, changes):
        return torch.stack(
            [loss(case, model(**unit.inputs), unit.inputs) for unit in itertools.chain.from_iterable(case.units)]
        )


def ablation(case, keys: list, by: str) -> dict:
    """The rise of every example's loss without each head, {key: (n, head)}."""
    model = quiet(case)
    before, rises = losses(case, {}, model), {}
    for key in keys:
        mean = pool(case, key).mean(0) if by == "mean" else None
        columns = []
        for head in range(case.layers[key].heads):
            change = off([head]) if by == "zero" else put([head], mean)
            columns.append(losses(case, {key: change}, model) - before)
        rises[key] = torch.stack(columns, 1)
    return rises


def interaction(case, pairs: list) -> Tensor:
    """How much more is lost without both heads than without the one and without the other, (pairs,)."""
    model, rows = quiet(case), []
    before = losses(case, {}, model)

    def rise(*heads: tuple) -> Tensor:
        gone = {}
        for *key, head in heads:
            gone.setdefault(tuple(key), []).append(head)
        return (losses(case, {key: off(some) for key, some in gone.items()}, model) - before).mean()

    for a, b in pairs:
        rows.append(rise(a, b) - rise(a) - rise(b))
    return torch.stack(rows)


def second_derivative(case, pairs: list) -> Tensor:
    """d2L / dgate_a dgate_b at gates of 1, the mean over examples, (pairs,)."""
    model, rows = quiet(case), []
    found = layers(case.combination.architecture, model)
    for (*key_a, a), (*key_b, b) in pairs:
        each = []
        for unit in itertools.chain.from_iterable(case.units):
            gates = {key: torch.ones(found[key].heads, 1, requires_grad=True) for key in (tuple(key_a), tuple(key_b))}
            changes = {key: lambda z, gate=gate: z * gate.to(z.dtype) for key, gate in gates.items()}
            with case.setting(), changed(found, changes), sdpa_kernel(SDPBackend.MATH):  # others differentiate once
                value = loss(case, model(**unit.inputs), unit.inputs)
            slope = torch.autograd.grad(value, gates[tuple(key_a)], create_graph=True)[0][a, 0]
            if slope.requires_grad:  # else the loss is linear in this gate
                bend = torch.autograd.grad(slope, gates[tuple(key_b)], allow_unused=True)[0]
            each.append(bend[b, 0] if slope.requires_grad and bend is not None else torch.tensor(0.0))
        rows.append(torch.stack(each).mean())
    return torch.stack(rows)


def confidence(case, keys: list, exclude: list) -> dict:
    """The mean over real queries of a head's greatest weight; excluded tokens neither look nor are looked at."""
    rows = {key: [] for key in keys}
    calls = range(3) if case.combination.architecture == "albert" else [-1]
    for call, (number, batch) in itertools.product(calls, enumerate(case.batches)):
        seen = maps(case, case.units, call)
        for key, row in itertools.product(keys, range(case.size(batch))):
            asking, asked = (
                batch.get("input_ids" if side == "source" else "decoder_input_ids") for side in case.sides(key)
            )
            for query in range(seen[f"batch {number} {key}"].shape[2]):
                weights = seen[f"batch {number} {key}"][row, :, query]
                if weights.isnan().all() or (exclude and int(asking[row, query]) in exclude):
                    continue
                kept = [k for k in range(weights.shape[1]) if not exclude or int(asked[row, k]) not in exclude]
                rows[key].append(weights[:, kept].nan_to_num(0.0).amax(1) if kept else torch.zeros(len(weights)))
    return {key: torch.stack(some).mean(0) for key, some in rows.items()}


def statistics(case, keys: list) -> dict:
    """Means over real queries of what is read off whole maps, row by row."""
    rows: dict = {}
    calls = range(3) if case.combination.architecture == "albert" else [-1]
    for call, (number, batch) in itertools.product(calls, enumerate(case.batches)):
        seen = maps(case, case.units, call)
        for key, row in itertools.product(keys, range(case.size(batch))):
            weights = seen[f"batch {number} {key}"][row]  # (head, query, key), NaN where nothing real stands
            asking = [query for query in range(weights.shape[1]) if not weights[:, query].isnan().all()]
            for query in asking:
                of_row = weights[:, query].nan_to_num(0.0)
                rows.setdefault(("entropy", key), []).append(-torch.xlogy(of_row, of_row).sum(-1))
                if key[-2] != "cross" and query - 1 in asking:
                    rows.setdefault(("previous", key), []).append(of_row[:, query - 1])
    return {f"{name} {key}": torch.stack(some).mean(0) for (name, key), some in rows.items()}


def explained(case, outputs: object, inputs: dict, own: dict) -> Tensor:
    """The numbers that relevance explains where no others are given: the highest logit of every step that counts.

    In half precision rounding decides which is the highest, so there it is the logit of one word.
    """
    if case.kind == "image+text":
        return loss(case, outputs, inputs)[None]
    highest = outputs.logits[0].amax(-1) if case.combination.precision == "float32" else outputs.logits[0][..., WORD]
    if case.kind == "image":
        return highest[None]
    if "labels" not in inputs:
        return highest[own["target" if case.two_sided else "source"]]
    counted = inputs["labels"][0] != -100
    if case.kind == "causal":  # the step before a label writes it; what padding on the left writes does not count
        counted = torch.cat([counted[1:], torch.tensor([False])]) & inputs["attention_mask"][0].bool()
    return highest[counted]


@contextlib.contextmanager
def linearised(model: nn.Module) -> Iterator[None]:
    """Make gradients those of rules "cp": attention weights and norms' divisors are constants, activations f(x)/x too.

    The factors of a gated layer get half each. Only models whose parts are the modules named here.
    """
    attend(model, "eager")

    def norm(module: nn.Module, read: tuple, given: Tensor) -> Tensor:
        x = read[0] - read[0].mean(-1, keepdim=True) if isinstance(module, nn.LayerNorm) else read[0]
        bias = getattr(module, "bias", None)
        divided = (given if bias is None else given - bias).detach()
        return x * (divided / x.detach()).nan_to_num(0.0) + (given.detach() - divided)

    def activation(_module: nn.Module, read: tuple, given: Tensor) -> Tensor:
        return read[0] * (given / read[0]).nan_to_num(0.0).detach()

    def half(_module: nn.Module, _read: tuple, given: Tensor) -> Tensor:
        return (given + given.detach()) / 2

    handles, softmax = [], F.softmax
    for name, module in model.named_modules():
        if type(module).__name__.endswith(("LayerNorm", "RMSNorm")):
            handles.append(module.register_forward_hook(norm))
        if type(module).__name__.endswith(("GELUActivation", "SiLUActivation", "GELU", "SiLU", "ReLU")):
            handles.append(module.register_forward_hook(activation))
        if name.endswith(("mlp.act_fn", "mlp.up_proj")):
            handles.append(module.register_forward_hook(half))
    F.softmax = lambda *args, **how: softmax(*args, **how).detach()
    try:
        yield
    finally:
        F.softmax = softmax
        for handle in handles:
            handle.remove()


def gradient_times_output(case, keys: list, rules: str = "gradient") -> dict:
    """Relevance: how every highest logit leans on each head's gate, the mean of absolute values.

    Under the rules "cp" the gradient is that of the model with its bends taken as constants.
    """
    model = quiet(case).requires_grad_(False)
    linear = linearised if rules == "cp" else contextlib.nullcontext
    found, rows = layers(case.combination.architecture, model), {key: [] for key in keys}
    for unit in itertools.chain.from_iterable(case.units):
        gates = {key: torch.ones(found[key].heads, 1, requires_grad=True) for key in keys}
        changes = {key: lambda z, gate=gate: z * gate.to(z.dtype) for key, gate in gates.items()}
        with case.setting(), changed(found, changes), linear(model):
            numbers = explained(case, model(**unit.inputs), unit.inputs, unit.own[0])
        for number in numbers:
            slope = torch.autograd.grad(number, list(gates.values()), retain_graph=True, allow_unused=True)
            for key, part in zip(gates, slope, strict=True):
                rows[key].append(torch.zeros(found[key].heads) if part is None else part[:, 0].abs())
    return {key: torch.stack(some).mean(0) for key, some in rows.items()}


# --- weights --------------------------------------------------------------------------------------------------------


def circuit(case, key: tuple, head: int, which: str) -> Tensor:
    """W_OV, what a head writes for each direction it reads alone; or W_QK, its score of each pair of directions."""
    query, looked_at, value, kv_heads = projections(case, case.model, key)
    layer = case.layers[key]
    ones = torch.eye(query.in_features).to(next(case.model.parameters()).dtype)

    def linear(module: nn.Module, heads: int, number: int) -> Tensor:
        with torch.no_grad():
            given = module(ones) - module(torch.zeros_like(ones))
        return given.unflatten(-1, (heads, -1))[:, number].float()

    shared = head * kv_heads // layer.heads
    if which == "qk":
        return linear(query, layer.heads, head) @ linear(looked_at, kv_heads, shared).T
    values = linear(value, kv_heads, shared)
    z = torch.zeros(len(values), 1, layer.heads, values.shape[1]).to(ones)
    z[:, 0, head] = values.to(ones)
    with torch.no_grad():
        return (layer.out(z.flatten(-2)) - layer.out(torch.zeros_like(z.flatten(-2))))[:, 0].float()


# --- roles ----------------------------------------------------------------------------------------------------------


def roles(weights: Tensor, first_word: int, words: int) -> dict:
    """Statistics of one sentence's map (tokens, tokens), every word being one token: {role: [a number a query]}."""
    found = {}
    last = first_word + words
    for q in range(first_word, last):
        row = weights[q]
        seen = [k for k in range(len(row)) if not math.isnan(row[k])]
        among = [k for k in range(first_word, last) if not math.isnan(row[k])]
        look = max(among, key=lambda k: row[k])
        note = lambda role, value: found.setdefault(role, []).append(float(value))  # noqa: E731
        note("confidence", row[look])
        note("entropy", -sum(float(row[k]) * math.log(row[k]) for k in seen if row[k] > 0))
        note("distance", sum(float(row[k]) * abs(k - q) for k in seen))
        for shift in (-2, -1, 0, 1, 2):
            if q + shift in among:
                note(f"offset {shift:+d}", look == q + shift)
        for role, key in {"previous": q - 1, "next": q + 1, "self": q}.items():
            if key in among:
                note(role, row[key])
        if q > 0:
            note("first", row[0])
    return found


def looking_back(weights: Tensor, ids: list, length: int) -> dict:
    """Scores of one map (tokens, tokens) over a segment of ``length`` tokens that is repeated: {role: number}.

    The duplicate and the induction score are of the first two copies alone.
    """
    size, roles = len(ids), ("previous-token", "duplicate-token", INDUCTION, PREFIX)
    found: dict[str, list] = {role: [] for role in roles}
    for q in range(size):
        copies = [k for k in range(q) if ids[k] == ids[q]]
        if copies:
            found[PREFIX].append(sum(weights[q, k + 1] for k in copies))
        if q >= 2 * length:
            continue
        if q:
            found["previous-token"].append(weights[q, q - 1])
        if copies:
            found["duplicate-token"].append(weights[q, q - length])
            found[INDUCTION].append(weights[q, q - length + 1])
    return {name: torch.stack(some).mean() for name, some in found.items()}


# --- sparse ---------------------------------------------------------------------------------------------------------


def hard_concrete(log_alpha: Tensor, temperature: float, stretch: tuple, noise: Tensor) -> Tensor:
    """Draws of Hard Concrete gates, Louizos et al. 2018, eq. 10 and 11: ``noise`` (draws, gates) is uniform."""
    s = 1 / (1 + torch.exp(-((noise / (1 - noise)).log() + log_alpha) / temperature))
    return (s * (stretch[1] - stretch[0]) + stretch[0]).clamp(0, 1)
