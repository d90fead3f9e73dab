"""Answers to the exercises of lesson 07: right ones, and wrong ones with what their hint must say."""

from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

import headtools as ht
from headtools.course import my_heads

mine = ht.my_heads()


# --- gates ------------------------------------------------------------------------------------------------------------


def gating(wrong=""):
    """A right gates, or one with a mistake."""

    @contextmanager
    def gates(model, values):
        sites, hooks = ht.sites(model), []
        last = {}
        for key, gate in values.items():
            site = sites[key]
            last["gate"] = gate

            def multiply(module, args, site=site, gate=gate):
                gate = last["gate"] if wrong == "late" else gate
                gate = gate.detach() if wrong == "detached" else gate
                gate = {"flipped": 1 - gate, "rounded": (gate != 0).float(), "twice": gate**2}.get(wrong, gate)
                if wrong == "first" and gate.dim() == 2:
                    gate = gate[0]
                shape = {"tokens": (-1, 4, 1, 1), "features": (-1, 1, 1, 4)}.get(wrong, (-1, 1, 4, 1))
                z = site.split(args[0]) * gate.view(shape)
                if wrong == "removes" and gate.requires_grad:
                    z = site.split(args[0]) + gate.sum() - gate.sum()
                return site.join(z) if wrong == "bare" else (site.join(z),) if wrong != "looks" else None

            hooks.append(site.out.register_forward_pre_hook(multiply))
        if wrong == "no finally":
            yield
        try:
            if wrong != "no finally":
                yield
        finally:
            for hook in hooks if wrong != "stays" else ():
                hook.remove()

    return gates


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


def package_gates(model, values):
    return ht.gates(model, values)


# --- rows -------------------------------------------------------------------------------------------------------------


def slopes(model, batches, loss=None, shared=False, mean=False, at=1.0):
    loss = loss or mine.loss
    rows = {site.key: [] for site in ht.sites(model)}
    for batch in batches:
        n = len(batch["labels"])
        ones = {s.key: torch.full((1 if shared else n, s.heads), at, requires_grad=True) for s in ht.sites(model)}
        with mine.gates(model, ones):
            each = loss(model, batch)
        total = each.mean() if mean else each.sum()
        for key, slope in zip(ones, torch.autograd.grad(total, list(ones.values())), strict=True):
            rows[key].append(slope.expand(n, -1))
    return {key: torch.cat(parts) for key, parts in rows.items()}


def slopes_one_by_one(model, batches, loss=None):
    """Another style: each example alone, and .grad in place of autograd.grad."""
    found = {site.key: [] for site in ht.sites(model)}
    for batch in batches:
        for i in range(len(batch["labels"])):
            one = {name: value[i : i + 1] for name, value in batch.items()}
            gates = {site.key: torch.ones(site.heads).requires_grad_() for site in ht.sites(model)}
            with my_heads.gates(model, gates):
                (loss or my_heads.loss)(model, one).backward()
            for key, gate in gates.items():
                found[key].append(gate.grad)
    return {key: torch.stack(parts) for key, parts in found.items()}


def slopes_by_z(model, batches, loss=None):
    """Another: z times its gradient, without gates."""
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


def blank_rows(model, batches, loss=None):
    loss = loss or mine.loss
    ...


def package_gradient(model, batches, loss=None):
    return ht.gradient(model, batches, signed=True).rows


@torch.no_grad()
def rises(model, batches, loss=None, kind=""):
    loss = loss or mine.loss
    whole, rows = torch.cat([loss(model, batch) for batch in batches]), {}
    for site in ht.sites(model):
        columns, stay = [], torch.ones(site.heads)
        for head in range(site.heads):
            off = torch.ones(site.heads)
            off[head] = 0
            stay[head] = 0
            off = {"alone": 1 - off, "stay": stay.clone(), "layer": off * 0}.get(kind, off)
            with mine.gates(model, {site.key: off}):
                columns.append(torch.cat([loss(model, batch) for batch in batches]))
        without = torch.stack(columns, 1)
        before = whole.mean() if kind == "mean" else 0 if kind == "loss" else whole[:, None]
        rows[site.key] = without - before
    return rows


def rises_by_switch(model, batches, loss=None):
    """Another style: the switch of lesson 00, batch by batch, in numbers of Python."""
    loss, rows = loss or my_heads.loss, {}
    for site in ht.sites(model):
        each = []
        for batch in batches:
            whole, columns = loss(model, batch).detach(), []
            for head in range(site.heads):
                with mine.switch_off(model, {site.key: [head]}):
                    columns.append((loss(model, batch) - whole).tolist())
            each += zip(*columns, strict=True)
        rows[site.key] = torch.tensor(each)
    return rows


def package_ablation(model, batches, loss=None):
    return ht.ablation(model, batches, progress=False).rows


# --- the secant -------------------------------------------------------------------------------------------------------


class Replaced(TorchFunctionMode):
    def __init__(self, instead):
        super().__init__()
        self.instead = instead

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self.instead(args[0]) if func.__name__ == "softmax" else func(*args, **(kwargs or {}))


def by_secant(wrong=""):
    """A right answer, or one with a mistake in its softmax."""

    def secant_softmax(scores):
        seen = scores >= scores.amax(-1, keepdim=True) - 4000
        n = (seen if wrong != "masked" else torch.ones_like(seen)).sum(-1, keepdim=True)
        s = scores.masked_fill(~seen, 0)
        p, u = scores.softmax(-1), seen / n
        with torch.set_grad_enabled(wrong == "moving"):
            r = (scores.log_softmax(-1) + n.log()).masked_fill(~seen, 0)
            m = torch.where(r.abs() < 1e-4, 1, r.expm1() / r) * u
            if wrong == "rounded":
                m = torch.where(p == u, u, (p - u) / (p.log() - u.log())).masked_fill(~seen, 0)
        m = {"p": p, "u": u, "plain": (p + u) / 2}.get(wrong, m)
        m = m if wrong == "moving" else m.detach()
        mean = ((u if wrong == "unweighted" else m) * s).sum(-1, keepdim=True)
        mean = mean.detach() if wrong == "fixed mean" else mean
        if wrong == "m r":
            return u + m * r
        out = m * (s - (mean if wrong == "unweighted" else mean / m.sum(-1, keepdim=True)))
        if wrong in ("masked", "p", "u", "plain"):  # a right value, and another slope
            return p.detach() + out - out.detach()
        return out if wrong == "bare" else u + out if wrong != "unweighted" else (u + out).masked_fill(~seen, 0)

    def saturation_proof_gradient(model, batches, loss=None):
        replaced = Replaced(secant_softmax)
        if wrong == "stays":
            replaced.__enter__()
            return mine.gradient(model, batches, loss or mine.loss)
        with replaced:
            return mine.gradient(model, batches, loss or mine.loss)

    return saturation_proof_gradient


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


def by_function(model, batches, loss=None):
    before = torch.Tensor.softmax
    torch.Tensor.softmax = lambda scores, *_, **__: Secant.apply(scores)
    try:
        return mine.gradient(model, batches, loss or mine.loss)
    finally:
        torch.Tensor.softmax = before


def left_replaced(model, batches, loss=None):
    found = by_function(model, batches, loss)
    torch.Tensor.softmax = lambda scores, *_, **__: torch.softmax(scores * 2, -1)
    return found


def package_secant(model, batches, loss=None):
    return ht.gradient(model, batches, signed=True, softmax="secant").rows


ANSWERS = {
    "07.gates": {
        "right": [gating(), GatesByClass, my_heads.gates],
        "blank": [blank_gates],
        "wrong": [
            (gating("late"), "sees the loop's variables"),
            (gating("detached"), "The gates have no slope"),
            (gating("removes"), "their slope by the gates is not"),
            (gating("flipped"), "upside down"),
            (gating("rounded"), "The gate is rounded"),
            (gating("twice"), "multiplied in twice"),
            (gating("first"), "gates of the first. Gates"),
            (gating("tokens"), "Tokens are multiplied in place of heads"),
            (gating("features"), "Features are multiplied in place of heads"),
            (gating("looks"), "change nothing inside the block"),
            (gating("stays"), "After the block the gates are still there"),
            (gating("no finally"), "An error inside the block leaves the gates"),
            (package_gates, "ht.gates is right, and it is the one"),
            (lambda model, values: model, "context manager is asked for"),
        ],
    },
    "07.gradient": {
        "right": [slopes, slopes_one_by_one, slopes_by_z, my_heads.gradient],
        "blank": [blank_rows],
        "wrong": [
            (changed(slopes, torch.abs), "These have no sign"),
            (changed(slopes, torch.neg), "wrong sign: it is dL/dgate"),
            (lambda m, b, loss=None: slopes(m, b, loss, mean=True), "averaged before the slope"),
            (lambda m, b, loss=None: slopes(m, b, loss, shared=True), "share a gate, so that their slopes add up"),
            (lambda m, b, loss=None: slopes(m, b, loss, shared=True, mean=True), "share a gate, and the loss is"),
            (lambda m, b, loss=None: slopes(m, b, loss, at=0.0), "where all gates are 0"),
            (lambda m, b, loss=None: slopes(m, b), "The loss is always the same"),
            (rises, "These are costs"),
            (changed(slopes, lambda rows: rows.mean(0)), "These are the means"),
            (changed(slopes, lambda rows: rows[-1:]), "This is the last batch alone"),
            (changed(slopes, lambda rows: rows.T), "Examples go down and heads across"),
            (changed(slopes, lambda rows: rows[1:]), "got .2, 4."),
            (changed(slopes, lambda rows: rows + 1), "Gates of 1, one row for each example.*rows are examples"),
            (changed(slopes, lambda rows: rows.tolist()), "is a list; a tensor"),
            (lambda m, b, loss=None: [slopes(m, b)], "Rows are asked for, a dict"),
            (lambda m, b, loss=None: {str(k): v for k, v in slopes(m, b).items()}, "There is no entry"),
            (package_gradient, "ht.gradient is right, and it is the one"),
            (lambda m, b, loss=None: b.nothing, "stopped with AttributeError"),
            (torch.ones(3), "A function is asked for"),
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
        "right": [rises, rises_by_switch, my_heads.ablation],
        "blank": [blank_rows],
        "wrong": [
            (changed(rises, torch.neg), "The other way round: the loss without"),
            (lambda m, b, loss=None: rises(m, b, loss, "loss"), "This is the loss without the head"),
            (lambda m, b, loss=None: rises(m, b, loss, "mean"), "averaged over the examples before"),
            (lambda m, b, loss=None: rises(m, b, loss, "alone"), "one head of the layer is on"),
            (lambda m, b, loss=None: rises(m, b, loss, "stay"), "Heads stay off"),
            (lambda m, b, loss=None: rises(m, b, loss, "layer"), "The whole layer is off"),
            (lambda m, b, loss=None: rises(m, b), "The loss is always the same"),
            (changed(rises, torch.abs), "These have no sign"),
            (slopes, "These are slopes at gate 1"),
            (changed(rises, lambda rows: rows.requires_grad_()), "work under torch.no_grad"),
            (changed(rises, lambda rows: rows.mean(0)), "These are the means"),
            (changed(rises, lambda rows: rows[:2]), "There is one row for each batch"),
            (changed(rises, lambda rows: rows * 2), "gates of 1 with a 0 at its place"),
            (package_ablation, "ht.ablation is right, and it is the one"),
        ],
    },
    "07.saturation_proof_gradient": {
        "right": [by_secant(), by_function, my_heads.saturation_proof_gradient],
        "blank": [blank_rows],
        "wrong": [
            (slopes, "the softmax is as it was"),
            (changed(by_secant(), torch.abs), "These have no sign"),
            (by_secant("bare"), "The uniform part is missing"),
            (by_secant("masked"), "Masked keys are counted"),
            (by_secant("u"), "The weights are u"),
            (by_secant("plain"), "plain mean of u and p"),
            (by_secant("unweighted"), "plain mean of the scores"),
            (by_secant("rounded"), "Take log p from log_softmax"),
            (by_secant("moving"), "NaN among the slopes.*m must be held constant"),
            (by_secant("stays"), "still replaced"),
            (by_secant("fixed mean"), "the mean of the scores has a slope"),
            (by_secant("m r"), "not m times r"),
            (left_replaced, "put it back in finally"),
            (package_secant, "ht.gradient is right, and it is the one"),
        ],
    },
}
