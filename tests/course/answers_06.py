"""Answers to the exercises of lesson 06: right ones, and wrong ones with what their hint must say."""

from contextlib import contextmanager

import torch
from edited import of
from torch.nn.functional import layer_norm

from headtools.course import my_heads
from headtools.organism import written_models

hide, write = map(of, ("hide_from", "write_head"))
induction = my_heads.induction_score


def induction_in_a_loop(maps, period):
    total = sum(maps[:, :, t, t - period + 1] for t in range(period, 2 * period))
    return (total / period).tolist()


@contextmanager
def hide_in_a_loop(model, writers, path):
    """Subtracts head by head, and changes the projection's output."""
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
        return (args[0] - there + gone) @ module.weight.T

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
def hide_alone(model, writers, path):
    """Takes away the hooks of a block around it."""
    for projection in (model.layers[1].q_proj, model.layers[1].k_proj, model.layers[1].v_proj):
        projection._forward_hooks.clear()
    with hide_in_a_loop(model, writers, path):
        yield


def hide_by_generator(model, writers, path):
    yield


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


def write_a_copy(model, head, omega, delta):
    weight = model.layers[0].q_proj.weight.clone()
    weight[:4, :4] = my_heads.look_back(omega, delta)


def write_with_gradient(model, head, omega, delta):
    model.requires_grad_(True).layers[0].q_proj.weight[:4] = 0


def write_peeks(model, head, omega, delta):
    written_models.write_head(model, 0, head, match=delta, into="before")


def also(line):
    """The head as it should be, and then one line more."""
    return write(NOTE, f"{NOTE}\n    {line}")


PART, CHANGE = 'args[0] - seen["part"]', 'norm.forward(args[0] - seen["part"]) - normed'
Z, READER = "args[0].unflatten(-1, (first.num_heads, -1))[:, :, writers]", "stack.callback(getattr"
NORM = "model.norms[0].weight[place] = model.norms[0].bias[place]"
NOTE = "layer.out_proj.weight[note, own] = torch.eye(w)"
ANSWERS = {
    "06.induction": {
        "right": [induction_in_a_loop, my_heads.induction_score],
        "wrong": [
            (lambda maps, period: maps.diagonal(-period, -2, -1).mean(-1), "duplicate-token score"),
            (lambda maps, period: maps.diagonal(-period - 1, -2, -1).mean(-1), "one place before the earlier copy"),
            (lambda maps, period: maps.diagonal(1 - period, -2, -1).mean(-1), "One query too many"),
            (lambda maps, period: maps.diagonal(-1, -2, -1).mean(-1), "previous-token score"),
            (lambda maps, period: maps.diagonal(0, -2, -1).mean(-1), "each query to itself"),
            (lambda maps, period: induction(maps, period) / 2, "divided by all queries"),
            (lambda maps, period: induction(maps, period) * period, "a sum over queries"),
            (lambda maps, period: maps.diagonal(period - 1, -2, -1).mean(-1), "looks ahead"),
            (lambda maps, period: maps[:, :, period:].max(-1).values.mean(-1), "largest weight"),
            (lambda maps, period: induction(maps, period) + 1, "t - period . 1"),
            (lambda maps, period: induction(maps, period).mean(), "One number came"),
            (lambda maps, period: induction(maps, period).mean(0), "averaged as well"),
            (lambda maps, period: maps, r"The shape is \(1, 2, 6, 6\)"),
            (lambda maps, period: maps.missing, "stopped with AttributeError"),
            (torch.eye(3), "A function is asked for"),
        ],
    },
    "06.hide": {
        "right": [hide_in_a_loop, my_heads.hide_from],
        "wrong": [
            (hide(CHANGE, '-seen["part"]'), "after the normalisation"),
            (hide(PART, 'args[0] + seen["part"]'), "The part is added"),
            (hide(f"norm.forward({PART})", PART), "is not normalised"),
            (hide(" - normed", "", "args[0] + seen", "seen"), "The position is lost"),
            (hide(READER, f"for path in 'qkv': {READER}"), "from queries, keys and values"),
            (hide(f"z = {Z}", f"{Z} = 0\n        z = {Z}"), "as if the head were off"),
            (hide("weight.unflatten", "weight.T.unflatten"), "each head owns columns"),
            (hide("norm.forward", "norm"), "called inside its own hook calls the hook again"),
            (hide("return args", "args"), "what it always does"),
            (hide("list(writers)", "[0, 1, 2, 3]"), "All of layer 0"),
            (hide("{path}", "v"), "hidden from the values; the path is 'k'"),
            (hide("{path}", "k"), "hidden from the keys; the path is 'q'"),
            (hide("return args[0]", "return args[0] / 2"), "something else than expected"),
            (hide("yield", "stack.pop_all()\n        yield"), "After the block"),
            (
                hide("yield", "hooks = stack.pop_all()\n        yield\n        hooks.close()"),
                "An error inside the block",
            ),
            (hide_alone, "One block inside another"),
            (hide_by_generator, "contextmanager"),
            (lambda model, writers, path: 3, "context manager is asked for"),
            (7, "A function is asked for"),
        ],
    },
    "06.write": {
        "right": [write_in_a_loop, my_heads.write_head],
        "wrong": [
            (write_peeks, "the one that you are about to write"),
            (write("angle.sin(), angle.cos()", "angle.cos(), angle.sin()"), "the sines of omega i, then their cosines"),
            (also("model.position.weight[:, w:] = 0"), "Positions keep"),
            (write(f"{NORM} = 0", "pass"), "Symbols still disturb"),
            (write(NORM, "model.norms[0].weight[place]"), "give 0 in the first 4 features, weight and bias"),
            (also("model.norms[0].weight[:] = 0"), "in the first 4 features alone"),
            (write("projection.weight[own] = 0", "pass"), "must be 0"),
            (write("gain *", "0.5 *"), "must be 0, and the gain"),
            (write("delta).T", "delta)"), "turned the other way"),
            (write("look_back(omega, delta).T", "torch.eye(w)"), "looks at its own place"),
            (write("1, 2, head)", "1, 2, (head + 1) % 4)"), "Head 1 looks 1 back, and head 0"),
            (write("[own, read]", "[own, note]"), "what it reads there"),
            (write("[note, own]", "[read, own]"), "does not arrive"),
            (write("[note, own]", "[own, note]"), "owns columns of out_proj"),
            (write("layer.out_proj.weight[:, own] = 0", "pass"), "other features as well"),
            (
                write("projection.weight[own] = 0", "projection.weight[:] = 0"),
                "Weights of other heads have changed, in q_proj",
            ),
            (also("model.symbol.weight[:, note] = 0"), "symbol.weight has changed"),
            (also("model.unembed.weight += 1"), "unembed.weight has changed"),
            (write_a_copy, "as they were"),
            (write_with_gradient, "stopped with RuntimeError"),
            (lambda model: None, "stopped with TypeError"),
            (3, "stopped with TypeError"),
        ],
    },
}
