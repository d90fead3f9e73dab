"""Answers to the exercises of lesson 06: right ones, and wrong ones with what their hint must say."""

from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch.nn.functional import layer_norm

from headtools.course import my_heads
from headtools.organism import written_models


def right_induction(maps, period):
    return maps[:, :, period:].diagonal(1, -2, -1).mean(-1)


def induction_in_a_loop(maps, period):
    total = sum(maps[:, :, t, t - period + 1] for t in range(period, 2 * period))
    return (total / period).tolist()


def induction_by_einsum(maps, period):
    target = torch.zeros(maps.shape[-2:])
    for t in range(period, 2 * period):
        target[t, t - period + 1] = 1 / period
    return torch.einsum("bhqk,qk->bh", maps, target)


def induction_by_slice(maps, period):
    return np.diagonal(maps.numpy(), 1 - period, -2, -1)[..., 1:].mean(-1)


def below(k):
    return lambda maps, period: maps.diagonal(-k, -2, -1).mean(-1)


@contextmanager
def hide_in_a_loop(model, writers, readers, path):
    """Subtracts head by head, and changes rows of the projection's output."""
    first, second = model.layers
    width, norm, seen = first.head_dim, model.norms[1], {}

    def note(module, args):
        seen["z"] = args[0]

    def stream(module, args):
        seen["x"] = args[0]

    def read(module, args, output):
        hidden = seen["x"].clone()
        for head in writers:
            own = slice(head * width, head * width + width)
            hidden -= seen["z"][..., own] @ first.out_proj.weight[:, own].T
        there, gone = (layer_norm(x, (x.shape[-1],), norm.weight, norm.bias, norm.eps) for x in (seen["x"], hidden))
        changed = (args[0] - there + gone) @ module.weight.T
        output = output.clone()
        for head in readers:
            own = slice(head * width, head * width + width)
            output[..., own] = changed[..., own]
        return output

    hooks = [
        first.out_proj.register_forward_pre_hook(note),
        norm.register_forward_pre_hook(stream),
        getattr(second, f"{path}_proj").register_forward_hook(read),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def hide(model, writers, readers, path, wrong=""):
    """Right, or with one mistake where ``wrong`` names one."""
    first, second = model.layers
    norm, seen = model.norms[1], {}
    everyone = [0, 1, 2, 3]
    writers, readers = {
        "all writers": (everyone, readers),
        "all readers": (writers, everyone),
        "exchanged": (readers, writers),
    }.get(wrong, (writers, readers))
    path = {"keys": "k", "values": "v", "queries": "q"}.get(wrong, path)
    weight = first.out_proj.weight
    w_o = weight.unflatten(0, (4, -1)).movedim(-1, 0) if wrong == "rows" else weight.unflatten(1, (4, -1))

    def note(module, args):
        z = args[0].unflatten(-1, (4, -1))[:, :, writers]
        seen["part"] = torch.einsum("bthw,dhw->btd", z, w_o[:, writers])

    def stream(module, args, output):
        x, part = args[0], seen["part"]
        seen["change"] = {
            "late": -part,
            "added": module.forward(x + part) - output,
            "raw": x - part - output,
        }.get(wrong, module.forward(x - part) - output)
        seen["placeless"] = module.forward(x - part)
        if wrong == "stream":
            return module.forward(x - part)
        return None

    def read(module, args, output):
        if wrong == "bare":
            return args[0]
        if wrong in ("nothing", "stream"):
            return None
        given = seen["placeless"] if wrong == "placeless" else args[0] + seen["change"]
        changed = module(given) if wrong == "endless" else module.forward(given)
        output, other = (x.unflatten(-1, (4, -1)) for x in (output.clone(), changed))
        output[:, :, readers] = other[:, :, readers]
        return output.flatten(2) if wrong != "half" else output.flatten(2) / 2

    def lose(module, args):
        return (args[0] - seen["part"],)

    hooks = [first.out_proj.register_forward_pre_hook(note), norm.register_forward_hook(stream)]
    for name in "qkv" if wrong == "everywhere" else path:
        hooks.append(getattr(second, f"{name}_proj").register_forward_hook(read))
    if wrong == "stream":
        hooks.append(model.last_norm.register_forward_pre_hook(lose))
    if wrong in ("stays", "no finally"):
        yield
        if wrong == "stays":
            return
    else:
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        return
    for hook in hooks:
        hook.remove()


@contextmanager
def hide_alone(model, writers, readers, path):
    """Takes away the hooks of a block around it."""
    for projection in (model.layers[1].q_proj, model.layers[1].k_proj, model.layers[1].v_proj):
        projection._forward_hooks.clear()
    with hide(model, writers, readers, path):
        yield


def hide_by_generator(model, writers, readers, path):
    yield


def hiding(wrong):
    return lambda model, writers, readers, path: hide(model, writers, readers, path, wrong)


@torch.no_grad()
def write_in_a_loop(model, head, omega, delta, gain=30.0):
    """Turns the keys and not the queries, entry by entry."""
    layer, w = model.layers[0], model.layers[0].head_dim
    n = w // 2
    for i in range(len(model.position.weight)):
        for f in range(n):
            model.position.weight[i, f] = torch.sin(omega[f] * i)
            model.position.weight[i, n + f] = torch.cos(omega[f] * i)
    for part in model.norms[0].parameters():
        part[:w] = 0
    for r in range(head * w, head * w + w):
        layer.q_proj.weight[r] = layer.k_proj.weight[r] = layer.v_proj.weight[r] = 0
        layer.out_proj.weight[:, r] = 0
        layer.q_proj.weight[r, r - head * w] = gain
        layer.v_proj.weight[r, r - head * w + w] = 1
        layer.out_proj.weight[r - head * w + 2 * w, r] = 1
    for f in range(n):
        c, s = torch.cos(omega[f] * delta), torch.sin(omega[f] * delta)
        sine, cosine = head * w + f, head * w + n + f  # sin(a + b) and cos(a + b) for a key moved on by delta
        layer.k_proj.weight[sine, f], layer.k_proj.weight[sine, n + f] = c, s
        layer.k_proj.weight[cosine, f], layer.k_proj.weight[cosine, n + f] = -s, c


@torch.no_grad()
def write(model, head, omega, delta, gain=30.0, wrong=""):
    """Right, or with one mistake where ``wrong`` names one."""
    layer, w = model.layers[0], model.layers[0].head_dim
    head = {"other head": (head + 1) % 4}.get(wrong, head)
    own, place, read, note = (slice(w * i, w * (i + 1)) for i in (head, 0, 1, 2))
    angle = torch.arange(len(model.position.weight))[:, None] * omega
    waves = [angle.sin(), angle.cos()]
    model.position.weight[:, place] = torch.cat(waves[::-1] if wrong == "cosines first" else waves, 1)
    if wrong == "positions":
        model.position.weight[:, w:] = 0
    if wrong != "symbols":
        model.norms[0].weight[place] = 0
        if wrong != "bias":
            model.norms[0].bias[place] = 0
    if wrong == "norm":
        model.norms[0].weight[:] = 0
    if wrong != "rest":
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
            projection.weight[own] = 0
    if wrong == "zeroed":
        layer.q_proj.weight[:] = 0
    turn = my_heads.look_back(omega, delta)
    turn = {"transposed": turn, "unturned": torch.eye(w)}.get(wrong, turn.T)
    layer.q_proj.weight[own, place] = (0.5 if wrong == "weak" else gain) * turn
    layer.k_proj.weight[own, place] = torch.eye(w)
    layer.v_proj.weight[own, note if wrong == "reads" else read] = torch.eye(w)
    if wrong == "rows":
        layer.out_proj.weight[own, note] = torch.eye(w)
        return
    if wrong != "spills":
        layer.out_proj.weight[:, own] = 0
    layer.out_proj.weight[read if wrong == "writes" else note, own] = torch.eye(w)
    if wrong == "adds":
        model.layers[0].out_proj.weight[note, own] = 1 * torch.eye(w)
        model.unembed.weight += 1
    if wrong == "symbol":
        model.symbol.weight[:, note] = 0


def writing(wrong):
    return partial(write, wrong=wrong)


def write_a_copy(model, head, omega, delta):
    weight = model.layers[0].q_proj.weight.clone()
    weight[:4, :4] = my_heads.look_back(omega, delta)


def write_with_gradient(model, head, omega, delta):
    model.requires_grad_(True).layers[0].q_proj.weight[:4] = 0


def write_peeks(model, head, omega, delta):
    written_models.write_head(model, 0, head, match=delta, into="before")


ANSWERS = {
    "06.induction": {
        "right": [
            right_induction,
            induction_in_a_loop,
            induction_by_einsum,
            induction_by_slice,
            my_heads.induction_score,
        ],
        "wrong": [
            (lambda maps, period: maps.diagonal(-period, -2, -1).mean(-1), "duplicate-token score"),
            (lambda maps, period: maps.diagonal(-period - 1, -2, -1).mean(-1), "one place before the earlier copy"),
            (lambda maps, period: maps.diagonal(1 - period, -2, -1).mean(-1), "One query too many"),
            (below(1), "previous-token score"),
            (below(0), "each query to itself"),
            (lambda maps, period: right_induction(maps, period) / 2, "divided by all queries"),
            (lambda maps, period: right_induction(maps, period) * period, "a sum over queries"),
            (lambda maps, period: maps.diagonal(period - 1, -2, -1).mean(-1), "looks ahead"),
            (lambda maps, period: maps[:, :, period:].max(-1).values.mean(-1), "largest weight"),
            (lambda maps, period: right_induction(maps, period) + 1, "t - period . 1"),
            (lambda maps, period: right_induction(maps, period).mean(), "One number came"),
            (lambda maps, period: right_induction(maps, period).mean(0), "averaged as well"),
            (lambda maps, period: maps, r"The shape is \(1, 2, 6, 6\)"),
            (lambda maps, period: maps.missing, "stopped with AttributeError"),
            (torch.eye(3), "A function is asked for"),
        ],
    },
    "06.hide": {
        "right": [hide, hide_in_a_loop, my_heads.hide_from],
        "wrong": [
            (hiding("late"), "after the normalisation"),
            (hiding("added"), "The part is added"),
            (hiding("raw"), "is not normalised"),
            (hiding("placeless"), "The position is lost"),
            (hiding("everywhere"), "from queries, keys and values"),
            (hiding("stream"), "as if the head were off"),
            (hiding("rows"), "each head owns columns"),
            (hiding("endless"), "called inside its own hook calls the hook again"),
            (hiding("nothing"), "what it always does"),
            (hiding("all writers"), "All of layer 0"),
            (hiding("all readers"), "Every head of layer 1"),
            (hiding("exchanged"), "exchanged"),
            (hiding("values"), "hidden from the values; the path is 'k'"),
            (hiding("keys"), "hidden from the keys; the path is 'q'"),
            (hiding("half"), "something else than expected"),
            (hiding("stays"), "After the block"),
            (hiding("no finally"), "An error inside the block"),
            (hide_alone, "One block inside another"),
            (hide_by_generator, "contextmanager"),
            (lambda model, writers, readers, path: 3, "context manager is asked for"),
            (7, "A function is asked for"),
        ],
    },
    "06.write": {
        "right": [write, write_in_a_loop, my_heads.write_head],
        "wrong": [
            (write_peeks, "the one that you are about to write"),
            (writing("cosines first"), "the sines of omega i, then their cosines"),
            (writing("positions"), "Positions keep"),
            (writing("symbols"), "Symbols still disturb"),
            (writing("bias"), "give 0 in the first 4 features, weight and bias"),
            (writing("norm"), "in the first 4 features alone"),
            (writing("rest"), "must be 0"),
            (writing("weak"), "must be 0, and the gain"),
            (writing("transposed"), "turned the other way"),
            (writing("unturned"), "looks at its own place"),
            (writing("other head"), "Head 1 looks 1 back, and head 0"),
            (writing("reads"), "what it reads there"),
            (writing("writes"), "does not arrive"),
            (writing("rows"), "owns columns of out_proj"),
            (writing("spills"), "other features as well"),
            (writing("zeroed"), "Weights of other heads have changed, in q_proj"),
            (writing("symbol"), "symbol.weight has changed"),
            (writing("adds"), "unembed.weight has changed"),
            (write_a_copy, "as they were"),
            (write_with_gradient, "stopped with RuntimeError"),
            (lambda model: None, "stopped with TypeError"),
            (3, "stopped with TypeError"),
        ],
    },
}
