"""Answers to the exercises of lesson 09: right ones, and wrong ones with what their hint must say."""

import math

import torch
from torch import nn

import headtools as ht
from headtools.course import my_heads

# --- 09.hard_concrete -------------------------------------------------------------------------------------------------


class ByHand(nn.Module):
    """Written out with logarithms, and a mistake if one is asked for."""

    wrong = ""

    def __init__(self, heads, start=2.2, temperature=0.33, stretch=0.1):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((heads,), start))
        self.temperature, self.low, self.high = temperature, -stretch, 1 + stretch

    def sample(self, noise):
        alpha, t = self.log_alpha, self.temperature
        logit = noise.log() - (1 - noise).log()
        inner = {
            "as it is": (noise + alpha) / t,
            "half": (noise.log() + alpha) / t,
            "times": (logit + alpha) * t,
            "noise alone": logit / t + alpha,
            "alpha alone": logit + alpha / t,
            "sign": (logit - alpha) / t,
        }.get(self.wrong, (logit + alpha) / t)
        s = 1 / (1 + (-inner).exp())
        if self.wrong == "narrow":
            return s
        if self.wrong == "no noise":
            return (1.2 * torch.sigmoid(alpha) - 0.1).clamp(0, 1).expand_as(noise)
        width = self.high if self.wrong == "one side" else self.high - self.low
        wide = s * width + self.low
        if self.wrong == "uncut":
            return wide
        if self.wrong == "rounded":
            return wide.clamp(0, 1).round()
        if self.wrong == "detached":
            return wide.clamp(0, 1).detach()
        if self.wrong == "wrong shape":
            return wide.clamp(0, 1).mean(0)
        return torch.where(wide < 0, torch.zeros_like(s), torch.where(wide > 1, torch.ones_like(s), wide))

    def p_open(self):
        edge, alpha, t = math.log(1 / 11), self.log_alpha, self.temperature
        inner = {
            "p one": alpha + t * edge,
            "p place": t * alpha - edge,
            "p divides": alpha - edge / t,
            "p cold": alpha - edge,
            "p half": alpha,
            "p same": 0 * alpha - t * edge,
            "p log": alpha - t * math.log(1 / 12),
            "p forwards": (alpha - edge) / t,
            "p two": 2 * alpha,
        }.get(self.wrong, alpha - t * edge)
        p = inner.exp() / (1 + inner.exp())
        if self.wrong == "p zero":
            return 1 - p
        if self.wrong == "p sum":
            return p.sum()
        return p.detach() if self.wrong == "p detached" else p

    def forward(self):
        s = torch.sigmoid(self.log_alpha)
        wide = 1.2 * s - 0.1
        return {
            "f narrow": s,
            "f uncut": wide,
            "f cold": (1.2 * torch.sigmoid(self.log_alpha / self.temperature) - 0.1).clamp(0, 1),
            "f voita": (self.log_alpha > 0).float(),
            "f rounded": wide.clamp(0, 1).round(),
            "f open": self.p_open(),
        }.get(self.wrong, wide.clamp(0, 1))


def wrong_gate(kind):
    return type("HardConcrete", (ByHand,), {"wrong": kind})


class HeadByHead(ByHand):
    """In loops, which keep the gradient too."""

    def sample(self, noise):
        rows = []
        for row in noise:
            odds = (row / (1 - row)) ** (1 / self.temperature) * (self.log_alpha / self.temperature).exp()
            rows.append(torch.stack([(1.2 * o / (1 + o) - 0.1).clamp(0, 1) for o in odds]))
        return torch.stack(rows)

    def p_open(self):
        return torch.stack([11**self.temperature / (11**self.temperature + (-a).exp()) for a in self.log_alpha])


class Blank(ByHand):
    def sample(self, noise): ...

    def p_open(self): ...

    def forward(self): ...


class OneDone(Blank):
    sample = ByHand.sample


class TwoDone(OneDone):
    p_open = ByHand.p_open


class Peeking(ByHand):
    def __init__(self, heads, start=2.2, temperature=0.33, stretch=0.1):
        super().__init__(heads, start, temperature, stretch)
        self.theirs = ht.HardConcrete({("encoder", 0): heads}, temperature=temperature)


class NoTemperature(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.zeros(heads))


# --- 09.fit_gates -----------------------------------------------------------------------------------------------------


LEFT = []  # contexts that are entered and never left


def fitting(wrong=""):
    """A training in which the gradient is taken by hand, and a mistake if one is asked for."""

    def fit_gates(model, batches, keys, gate, penalty, noise, rate=0.1, also=()):
        groups = [{"params": gate.log_alpha, "lr": 1e-3 if wrong == "rate" else rate}]
        if also and wrong != "frozen":
            groups.append({"params": list(also), "lr": rate if wrong == "fast" else 3e-4})
        optimizer = (torch.optim.SGD if wrong == "descent" else torch.optim.Adam)(groups, lr=rate)
        history = [gate.log_alpha if wrong == "alias" else gate.log_alpha.detach().clone()]
        for step in range(len(noise)):
            drawn = gate() if wrong == "fixed" else gate.sample(noise[0 if wrong == "one draw" else step])
            values = {key: drawn[4 * i : 4 * i + 4] for i, key in enumerate(keys)}
            if wrong == "turned":
                values = {key: drawn[i::2] for i, key in enumerate(keys)}
            count = gate.p_open().mean() if wrong == "mean" else gate.p_open().sum()
            with my_heads.gates(model, {} if wrong == "open" else values):
                task = model(**batches[0 if wrong == "one batch" else step]).loss
            cost = 0 * count if wrong == "free" else penalty(count)
            total = cost if wrong == "price" else task - cost if wrong == "reward" else task + cost
            total.backward()
            if wrong != "idle":
                optimizer.step()
            if wrong != "heap":
                optimizer.zero_grad()
            history.append(gate.log_alpha if wrong == "alias" else gate.log_alpha.detach().clone())
        if wrong == "weights":
            model.lm_head.weight.data += 1
        if wrong == "hook":
            LEFT.append(my_heads.gates(model, {keys[0]: torch.ones(4)}))
            LEFT[-1].__enter__()
        ends = {"no start": lambda: torch.stack(history[1:]), "gate": lambda: gate, "list": lambda: history}
        ends["last"] = lambda: history[-1]
        return ends.get(wrong, lambda: torch.stack(history))()

    return fit_gates


def fit_by_grad(model, batches, keys, gate, penalty, noise, rate=0.1, also=()):
    optimizer = torch.optim.AdamW([{"params": [gate.log_alpha]}, {"params": list(also), "lr": 3e-4}], lr=rate)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    rows = gate.log_alpha.detach().clone()[None]
    for u, batch in zip(noise, batches, strict=True):
        with ht.gates(model, dict(zip(keys, gate.sample(u).chunk(len(keys)), strict=True))):
            total = model(**batch).loss + penalty(gate.p_open().sum())
        parameters = [gate.log_alpha, *also]
        for parameter, slope in zip(parameters, torch.autograd.grad(total, parameters), strict=True):
            parameter.grad = slope
        optimizer.step()
        rows = torch.cat([rows, gate.log_alpha.detach()[None]])
    return rows


def package_fit(model, batches, keys, gate, penalty, noise, rate=0.1, also=()):
    return ht.fit_gates(model, batches, 0.05, steps=len(noise)).history


# --- 09.target_size ---------------------------------------------------------------------------------------------------


def targeting(wrong=""):
    """A target whose state is a dict, and a mistake if one is asked for."""

    def target_size(target, warm_up, rate=0.3):
        state = {"begin": None, "step": 0, "a": 0.0, "b": 0.0}

        def penalty(n):
            if state["begin"] is None:
                state["begin"] = n.item()
            step = state["step"] + (wrong == "late")
            share = step / warm_up if wrong == "beyond" else min(1, step / warm_up)
            goal = target if wrong == "cold" else state["begin"] + (target - state["begin"]) * share
            gap = (n - goal) / (1 if wrong == "gates" else state["begin"])
            gap = gap.abs() if wrong == "positive" else gap
            number = gap if wrong == "graph" else gap.item()
            up = {"still": 0, "down": -rate, "rate": 1}.get(wrong, rate)
            after = state["a"] + up * number, state["b"] + up * (number if wrong == "linear b" else number**2)
            if wrong == "first":
                state["a"], state["b"] = after
            a = 0 if wrong == "square" else state["a"]
            b = 0 if wrong == "line" else state["b"]
            cost = a * gap + b * gap * gap
            state.update(a=after[0], b=after[1], step=state["step"] + 1)
            if wrong == "later" and state["step"] == 3:
                return state["c"]
            return cost.item() if wrong == "item" else 3 * cost if wrong == "thrice" else cost

        return penalty

    return target_size


class TargetSize:
    def __init__(self, target, warm_up, rate=0.3):
        self.goals = lambda begin, i: begin + (target - begin) * min(i / warm_up, 1)
        self.rate, self.gaps, self.begin = rate, [], None

    def __call__(self, n):
        self.begin = self.begin or n.item()
        gap = n / self.begin - self.goals(self.begin, len(self.gaps)) / self.begin
        cost = self.rate * (sum(self.gaps) * gap + sum(g * g for g in self.gaps) * gap * gap)
        self.gaps.append(gap.item())
        return cost


ANSWERS = {
    "09.hard_concrete": {
        "right": [my_heads.HardConcrete, ByHand, HeadByHead],
        "blank": [Blank],
        "wrong": [
            (wrong_gate("narrow"), "sample: The stretch is missing"),
            (wrong_gate("uncut"), "sample: The clipping is missing"),
            (wrong_gate("as it is"), "needs its logit first"),
            (wrong_gate("half"), r"Only log\(u\) went in"),
            (wrong_gate("times"), "divide by it|the sum of noise"),
            (wrong_gate("noise alone"), "the sum of noise"),
            (wrong_gate("alpha alone"), "log alpha alone"),
            (wrong_gate("sign"), "the wrong sign"),
            (wrong_gate("one side"), "1.2 wide"),
            (wrong_gate("rounded"), "Four steps"),
            (wrong_gate("no noise"), "The noise is not used"),
            (wrong_gate("detached"), "sample: The numbers are right, but they have no gradient"),
            (wrong_gate("wrong shape"), r"sample: The shape is \(3,\)"),
            (OneDone, "sample is right. p_open is still to come"),
            (TwoDone, "sample and p_open are right. forward is still to come"),
            (wrong_gate("p zero"), "p_open: This is how often the gate is exactly 0"),
            (wrong_gate("p one"), "how often the gate is exactly 1"),
            (wrong_gate("p place"), "at the wrong place"),
            (wrong_gate("p divides"), "You divide by the temperature"),
            (wrong_gate("p cold"), "The temperature is missing"),
            (wrong_gate("p half"), "above one half"),
            (wrong_gate("p same"), "Log alpha is missing"),
            (wrong_gate("p log"), "the logarithm of the edge"),
            (wrong_gate("p forwards"), "the gate's own formula"),
            (wrong_gate("p two"), "That u is the probability"),
            (wrong_gate("p sum"), r"it should be \(heads,\) = \(3,\)"),
            (wrong_gate("p detached"), "p_open: The numbers are right, but they have no gradient"),
            (wrong_gate("f narrow"), "forward: This gate is stretched"),
            (wrong_gate("f uncut"), "forward: The clipping is missing"),
            (wrong_gate("f cold"), "The temperature goes with the noise"),
            (wrong_gate("f voita"), "Voita's rule"),
            (wrong_gate("f rounded"), "Voita's rule|This is rounded"),
            (wrong_gate("f open"), "the probability of an open gate"),
            (Peeking, "ht.HardConcrete is right, and it is the one"),
            (NoTemperature, "Leave __init__ as it is"),
            (ByHand(3), "The class is asked for"),
        ],
    },
    "09.fit_gates": {
        "right": [my_heads.fit_gates, fitting(), fit_by_grad],
        "wrong": [
            (fitting("free"), "The penalty has no effect"),
            (fitting("price"), "Only the penalty moves the gates|runs without the gates"),
            (fitting("open"), "Only the penalty moves the gates|runs without the gates"),
            (fitting("reward"), "The penalty is subtracted"),
            (fitting("one draw"), "the same draw"),
            (fitting("fixed"), "The gates are not drawn"),
            (fitting("one batch"), "the same batch"),
            (fitting("heap"), "Gradients pile up"),
            (fitting("descent"), "plain gradient descent"),
            (fitting("rate"), "The rate is not used"),
            (fitting("mean"), "summed, not averaged"),
            (fitting("turned"), "the wrong heads"),
            (fitting("alias"), "Keep copies"),
            (fitting("idle"), "has not moved"),
            (fitting("no start"), "One row is missing"),
            (fitting("last"), "log alpha at one moment"),
            (fitting("gate"), "not the gate itself"),
            (fitting("list"), "This is a list"),
            (fitting("weights"), "weights have changed"),
            (fitting("hook"), "Gates are left in the model"),
            (fitting("frozen"), "The parameters in also should learn"),
            (fitting("fast"), "a group of their own"),
            (package_fit, "ht.fit_gates is right, and it is the one"),
            (lambda *given: given[0].missing, "stopped with AttributeError"),
            (0.05, "A function is asked for"),
        ],
    },
    "09.target_size": {
        "right": [my_heads.target_size, targeting(), TargetSize],
        "wrong": [
            (targeting("cold"), "from the first step on"),
            (targeting("beyond"), "beyond the target"),
            (targeting("late"), "one step ahead"),
            (targeting("gates"), "The gap is in gates"),
            (targeting("down"), "They rise then"),
            (targeting("line"), "b times the square"),
            (targeting("square"), "a times the gap"),
            (targeting("first"), "First the cost, then"),
            (targeting("linear b"), "b rises with the square"),
            (targeting("still"), "stay at 0"),
            (targeting("positive"), "has lost its sign"),
            (targeting("rate"), "The rate is not used"),
            (targeting("thrice"), "Each call: the goal"),
            (targeting("item"), "no slope in n"),
            (targeting("graph"), "their slopes in n are not|later one stopped"),
            (targeting("later"), "a later one stopped with KeyError"),
            (lambda target, warm_up, rate: lambda n: n.missing, "stopped with AttributeError"),
            (lambda target, warm_up, rate: 16.0, r"A function is asked for, penalty\(n\)"),
            (16, "A function is asked for"),
        ],
    },
}
