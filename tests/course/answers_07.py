"""Answers to the exercises of lesson 07: right ones, and wrong ones with what their hint must say."""

from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from edited import of

import headtools as ht
from headtools.course import my_heads

gates, gradient, ablation, secant = map(of, ("gates", "gradient", "ablation", "saturation_proof_gradient"))
PLAIN, EXACT = my_heads.gradient, my_heads.ablation
mine = ht.my_heads()


class GatesByClass:
    """Another style: a class whose hooks are kept by an exit stack."""

    def __init__(self, model, values):
        self.model, self.values, self.stack = model, values, ExitStack()

    def __enter__(self):
        for key, gate in self.values.items():
            site = ht.sites(self.model)[key]
            handle = site.out.register_forward_pre_hook(self.hook(gate, site.value_dim))
            self.stack.callback(handle.remove)

    def hook(self, gate, width):
        rows = gate[None] if gate.dim() == 1 else gate
        return lambda module, args: (args[0] * rows.repeat_interleave(width, 1)[:, None],)

    def __exit__(self, *error):
        self.stack.close()


@contextmanager
def blank_gates(model, values):
    ...
    yield


def blank_rows(model, batches, loss=None):
    loss = loss or mine.loss
    ...


def slopes_by_z(model, batches, loss=None):
    """Another style: z times its gradient, without gates."""
    parts = []
    for batch in batches:
        seen = {}
        keep = {key: (lambda z, key=key, seen=seen: seen.setdefault(key, z) * 1) for key in my_heads.sites(model)}
        with my_heads.edit(model, keep):
            total = (loss or my_heads.loss)(model, batch).sum()
        gradients = torch.autograd.grad(total, list(seen.values()))
        parts.append({k: (z * g).sum((1, 3)).detach() for (k, z), g in zip(seen.items(), gradients, strict=True)})
    return {site.key: torch.cat([part[site.key] for part in parts]) for site in ht.sites(model)}


def changed(rows_of, change):
    """What ``rows_of`` returns, with something done to every tensor."""
    return lambda model, batches, loss=None: {k: change(v) for k, v in rows_of(model, batches, loss).items()}


def rises_by_switch(model, batches, loss=None):
    """Another style: the switch of lesson 00, batch by batch, in numbers of Python."""
    loss, rows = loss or my_heads.loss, {}
    for site in ht.sites(model):
        each = []
        for batch in batches:
            whole, columns = loss(model, batch).detach(), []
            for head in range(site.heads):
                with my_heads.switch_off(model, {site.key: [head]}):
                    columns.append((loss(model, batch) - whole).tolist())
            each += zip(*columns, strict=True)
        rows[site.key] = torch.tensor(each)
    return rows


class Secant(torch.autograd.Function):
    """Another style: a function with a derivative of its own."""

    @staticmethod
    def forward(ctx, scores):
        ctx.save_for_backward(scores)
        return torch.softmax(scores, -1)

    @staticmethod
    def backward(ctx, g):
        (scores,) = ctx.saved_tensors
        seen = scores.isfinite()
        u = seen.double() / seen.sum(-1, keepdim=True)
        p = torch.softmax(scores.double(), -1)
        r = torch.where(seen, scores.double() - scores.double().logsumexp(-1, keepdim=True) - u.log(), 1)
        m = torch.where(r.abs() < 1e-9, u, (p - u) / r) * seen
        return (m * (g - (m * g).sum(-1, keepdim=True) / m.sum(-1, keepdim=True))).float()


def by_function(model, batches, loss=None, after=None):
    before = torch.Tensor.softmax
    torch.Tensor.softmax = lambda scores, *_, **__: Secant.apply(scores)
    try:
        return mine.gradient(model, batches, loss or my_heads.loss)
    finally:
        torch.Tensor.softmax = after or before


def left_replaced(model, batches, loss=None):
    return by_function(model, batches, loss, lambda scores, *_, **__: torch.softmax(scores * 2, -1))


def soft(*changes):
    return secant(*changes, via=("secant_softmax",))


VIEW, UNTIL = "z * value.view(-1, 1, value.shape[-1], 1).to(z)", "try:\n        yield\n    finally:\n        "
OFF, ONES = "(1 - torch.eye(site.heads))", "torch.ones(n, site.heads, requires_grad=True)"
END, MEAN = "seen / n + m * (s - (m * s)", "(m * s).sum(-1, keepdim=True) / m.sum(-1, keepdim=True)"
M = "torch.where(r.abs() < 1e-4, 1, r.expm1() / r) * seen / n"
VALUE = "return seen / n + m * (s - (m * s).sum(-1, keepdim=True) / m.sum(-1, keepdim=True))"


def slope_of(m):
    """A right value, and the slope of other weights."""
    mean = f"(({m}) * s).sum(-1, keepdim=True) / ({m}).sum(-1, keepdim=True)"
    return VALUE, f"p = scores.softmax(-1).detach()\n    out = ({m}) * (s - {mean})\n    return p + out - out.detach()"


ANSWERS = {
    "07.gates": {
        "right": [GatesByClass, my_heads.gates],
        "blank": [blank_gates],
        "wrong": [
            (
                gates("gate(value) for key, value", "gate([*values.values()][-1]) for key, value"),
                "sees the loop's variables",
            ),
            (gates("value.view", "value.detach().view"), "The gates have no slope"),
            (gates(VIEW, "z + 0 * value.sum() if value.requires_grad else " + VIEW), "their slope by the gates is not"),
            (gates("value.view", "(1 - value).view"), "upside down"),
            (gates("value.view", "(value != 0).float().view"), "The gate is rounded"),
            (gates("value.view", "(value**2).view"), "multiplied in twice"),
            (gates("value.view", "value.view(-1, value.shape[-1])[0].view"), "gates of the first. Gates"),
            (
                gates("(-1, 1, value.shape[-1], 1)", "(-1, value.shape[-1], 1, 1)"),
                "Tokens are multiplied in place of heads",
            ),
            (
                gates("(-1, 1, value.shape[-1], 1)", "(-1, 1, 1, value.shape[-1])"),
                "Features are multiplied in place of heads",
            ),
            (gates("lambda z: ", "lambda z: None and "), "change nothing inside the block"),
            (gates("hook.remove()", "pass", via=("_edit_site", "edit")), "After the block the gates are still there"),
            (
                gates(UNTIL + "hook", "yield\n    hook", via=("_edit_site", "edit")),
                "An error inside the block leaves the gates",
            ),
        ],
    },
    "07.gradient": {
        "right": [slopes_by_z, PLAIN],
        "blank": [blank_rows],
        "wrong": [
            (changed(PLAIN, torch.abs), "These have no sign"),
            (changed(PLAIN, torch.neg), "wrong sign: it is dL/dgate"),
            (gradient("batch).sum()", "batch).mean()"), "averaged before the slope"),
            (
                gradient("dict(zip(ones, slopes", "dict(zip(ones, [s.sum(0).expand(n, -1) for s in slopes]"),
                "share a gate, so that their slopes add up",
            ),
            (
                gradient("dict(zip(ones, slopes", "dict(zip(ones, [s.mean(0).expand(n, -1) for s in slopes]"),
                "share a gate, and the loss is",
            ),
            (gradient("torch.ones(", "torch.zeros("), "where all gates are 0"),
            (gradient("loss or _LOSS", "_LOSS"), "The loss is always the same"),
            (EXACT, "These are costs"),
            (changed(PLAIN, lambda rows: rows.mean(0)), "These are the means"),
            (changed(PLAIN, lambda rows: rows[-1:]), "This is the last batch alone"),
            (changed(PLAIN, lambda rows: rows.T), "Examples go down and heads across"),
            (changed(PLAIN, lambda rows: rows[1:]), "got .2, 4."),
            (changed(PLAIN, lambda rows: rows + 1), "Gates of 1, one row for each example.*rows are examples"),
            (changed(PLAIN, lambda rows: rows.tolist()), "is a list; a tensor"),
            (lambda m, b, loss=None: [PLAIN(m, b)], "Rows are asked for, a dict"),
            (lambda m, b, loss=None: {str(k): v for k, v in PLAIN(m, b).items()}, "There is no entry"),
        ],
    },
    "07.cancel": {
        "right": [
            torch.tensor([[1.0, 0.1], [-1.0, 0.1]]),
            [[2, 1], [-2, 1], [2, 1], [-2, 1]],
            np.array([[3.0, -1.0], [-2.0, -1.0]]),
            lambda: torch.tensor([[1.0, 0.2], [-0.9, 0.2]]),
        ],
        "blank": [lambda: None],
        "wrong": [
            (torch.tensor([[1.0, 0.1], [1.0, 0.1]]), "Slopes cancel where their signs differ"),
            (torch.tensor([[1.0, 0.1], [-0.5, 0.1]]), "They cancel, but too little"),
            (torch.tensor([[0.1, 1.0], [-0.1, 1.0]]), "Head 0 should matter more"),
            (torch.tensor([[1.0, 1.0], [-1.0, 1.0]]), "Head 0 should matter more than head 1. Head 0 has 1"),
            (torch.tensor([[1.0, 0.1]]), "With one example nothing can cancel"),
            (torch.tensor([1.0, -1.0]), r"The shape is \(2,\)"),
            (torch.ones(3, 3), r"The shape is \(3, 3\)"),
            (torch.tensor([[float("nan"), 1.0], [1.0, 1.0]]), "NaN"),
            ("1, -1", "this is a str"),
        ],
    },
    "07.ablation": {
        "right": [rises_by_switch, EXACT],
        "blank": [blank_rows],
        "wrong": [
            (changed(EXACT, torch.neg), "The other way round: the loss without"),
            (ablation(" - full[:, None]", ""), "This is the loss without the head"),
            (
                ablation("full[:, None]", "torch.cat([loss(model, one) for one in batches]).mean()"),
                "averaged over the examples before",
            ),
            (ablation(OFF, "torch.eye(site.heads)"), "one head of the layer is on"),
            (ablation(OFF, "(1 - torch.ones(site.heads, site.heads).tril())"), "Heads stay off"),
            (ablation(OFF, "torch.zeros(site.heads, site.heads)"), "The whole layer is off"),
            (ablation("loss or _LOSS", "_LOSS"), "The loss is always the same"),
            (changed(EXACT, torch.abs), "These have no sign"),
            (PLAIN, "These are slopes at gate 1"),
            (changed(EXACT, lambda rows: rows.requires_grad_()), "work under torch.no_grad"),
            (changed(EXACT, lambda rows: rows.mean(0)), "These are the means"),
            (changed(EXACT, lambda rows: rows[:2]), "There is one row for each batch"),
            (changed(EXACT, lambda rows: rows * 2), "gates of 1 with a 0 at its place"),
        ],
    },
    "07.saturation_proof_gradient": {
        "right": [by_function, my_heads.saturation_proof_gradient],
        "blank": [blank_rows],
        "wrong": [
            (PLAIN, "the softmax is as it was"),
            (changed(my_heads.saturation_proof_gradient, torch.abs), "These have no sign"),
            (soft("return seen / n + m", "return m"), "The uniform part is missing"),
            (soft("n = seen.sum", "n = torch.ones_like(seen).sum", *slope_of("m")), "Masked keys are counted"),
            (soft(*slope_of("seen / n")), "The weights are u"),
            (soft(*slope_of("(p + seen / n) / 2")), "plain mean of u and p"),
            (soft(MEAN, "(seen / n * s).sum(-1, keepdim=True)"), "plain mean of the scores"),
            (
                soft(
                    M,
                    # not where r == 0: r may round to something else where p equals u
                    "torch.where(scores.softmax(-1).log() == (seen / n).log(), 1, (scores.softmax(-1) - seen / n) "
                    "/ (scores.softmax(-1).log() - (seen / n).log()) / seen * n).masked_fill(~seen, 0) / n",
                ),
                "Take log p from log_softmax",
            ),
            (soft("torch.no_grad()", "torch.enable_grad()"), "NaN among the slopes.*m must be held constant"),
            (
                secant(
                    "with _Softmax(secant_softmax) as mode:",
                    "mode = _Softmax(secant_softmax)\n    mode.__enter__()\n    if True:",
                ),
                "still replaced",
            ),
            (soft(MEAN, f"({MEAN}).detach()"), "the mean of the scores has a slope"),
            (soft(VALUE, "return seen / n + m * r"), "not m times r"),
            (left_replaced, "put it back in finally"),
        ],
    },
}
