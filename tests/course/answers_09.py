"""Answers to the exercises of lesson 09: right ones, and wrong ones with what their hint must say."""

import torch
from edited import of
from torch import nn

import headtools as ht
from headtools.course import my_heads

gate, fit, target = map(of, ("HardConcrete", "fit_gates", "target_size"))


class Own(my_heads.HardConcrete):
    """A base whose name is not the one that is asked for."""


class HeadByHead(Own):
    """In loops, which keep the gradient too."""

    def sample(self, noise):
        rows = []
        for row in noise:
            odds = (row / (1 - row)) ** (1 / self.temperature) * (self.log_alpha / self.temperature).exp()
            rows.append(torch.stack([(1.2 * o / (1 + o) - 0.1).clamp(0, 1) for o in odds]))
        return torch.stack(rows)

    def p_open(self):
        return torch.stack([11**self.temperature / (11**self.temperature + (-a).exp()) for a in self.log_alpha])


class Blank(Own):
    def sample(self, noise): ...

    def p_open(self): ...

    def forward(self): ...


class OneDone(Blank):
    sample = my_heads.HardConcrete.sample


class TwoDone(OneDone):
    p_open = my_heads.HardConcrete.p_open


class NoTemperature(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.zeros(heads))


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


CUT = "(soft * (self.high - self.low) + self.low).clamp(0, 1)"
INNER = "(noise.logit() + self.log_alpha) / self.temperature"
OPEN = "torch.sigmoid(self.log_alpha - self.temperature * math.log(-self.low / self.high))"
EDGE, LAST = (
    "self.temperature * math.log(-self.low / self.high)",
    "(torch.sigmoid(self.log_alpha) * (self.high - self.low) + self.low).clamp(0, 1)",
)
TOTAL = "model(**batch).loss + penalty(gate.p_open().sum())"
ANSWERS = {
    "09.hard_concrete": {
        "right": [my_heads.HardConcrete, HeadByHead],
        "blank": [Blank],
        "wrong": [
            (gate(CUT, "soft"), "sample: The stretch is missing"),
            (gate(CUT, CUT[:-12]), "sample: The clipping is missing"),
            (gate("noise.logit()", "noise"), "needs its logit first"),
            (gate("noise.logit()", "noise.log()"), r"Only log\(u\) went in"),
            (gate(INNER, INNER.replace("/", "*")), "divide by it|the sum of noise"),
            (gate(INNER, "noise.logit() / self.temperature + self.log_alpha"), "the sum of noise"),
            (gate(INNER, "noise.logit() + self.log_alpha / self.temperature"), "log alpha alone"),
            (gate("() + self.log_alpha)", "() - self.log_alpha)"), "the wrong sign"),
            (gate("(soft * (self.high - self.low)", "(soft * self.high"), "1.2 wide"),
            (gate(CUT, f"{CUT}.round()"), "Four steps"),
            (gate(CUT, "self().expand_as(noise)"), "The noise is not used"),
            (gate(CUT, f"{CUT}.detach()"), "sample: The numbers are right, but they have no gradient"),
            (gate(CUT, f"{CUT}.mean(0)"), r"sample: The shape is \(3,\)"),
            (OneDone, "sample is right. p_open is still to come"),
            (TwoDone, "sample and p_open are right. forward is still to come"),
            (gate(OPEN, f"1 - {OPEN}"), "p_open: This is how often the gate is exactly 0"),
            (gate("_alpha - self", "_alpha + self"), "how often the gate is exactly 1"),
            (
                gate(f"self.log_alpha - {EDGE}", "self.temperature * self.log_alpha - math.log(-self.low / self.high)"),
                "at the wrong place",
            ),
            (gate(EDGE, EDGE.replace("temperature *", "temperature ** -1 *")), "You divide by the temperature"),
            (gate(EDGE, EDGE[19:]), "The temperature is missing"),
            (gate(f" - {EDGE}", ""), "above one half"),
            (gate(f"self.log_alpha - {EDGE}", f"0 * self.log_alpha - {EDGE}"), "Log alpha is missing"),
            (gate("-self.low / self.high)", "1 / 12)"), "the logarithm of the edge"),
            (
                gate(f"self.log_alpha - {EDGE}", f"(self.log_alpha - {EDGE[19:]}) / self.temperature"),
                "the gate's own formula",
            ),
            (gate(f"- {EDGE}", "* 2"), "That u is the probability"),
            (gate(OPEN, f"{OPEN}.sum()"), r"it should be \(heads,\) = \(3,\)"),
            (gate(OPEN, f"{OPEN}.detach()"), "p_open: The numbers are right, but they have no gradient"),
            (gate(LAST, "torch.sigmoid(self.log_alpha)"), "forward: This gate is stretched"),
            (gate(LAST, LAST[:-12]), "forward: The clipping is missing"),
            (
                gate("sigmoid(self.log_alpha)", "sigmoid(self.log_alpha / self.temperature)"),
                "The temperature goes with the noise",
            ),
            (gate(LAST, "(self.log_alpha > 0).float()"), "Voita's rule"),
            (gate(LAST, f"{LAST}.round()"), "Voita's rule|This is rounded"),
            (gate(LAST, "self.p_open()"), "the probability of an open gate"),
            (NoTemperature, "Leave __init__ as it is"),
            (my_heads.HardConcrete(3), "The class is asked for"),
        ],
    },
    "09.fit_gates": {
        "right": [my_heads.fit_gates, fit_by_grad],
        "wrong": [
            (fit(TOTAL, "model(**batch).loss + 0 * penalty(gate.p_open().sum())"), "The penalty has no effect"),
            (fit(TOTAL, "penalty(gate.p_open().sum())"), "Only the penalty moves the gates|runs without the gates"),
            (
                fit("dict(zip(keys, drawn, strict=True))", "{}"),
                "Only the penalty moves the gates|runs without the gates",
            ),
            (fit(".loss + penalty", ".loss - penalty"), "The penalty is subtracted"),
            (fit("sample(u)", "sample(noise[0])"), "the same draw"),
            (fit("gate.sample(u)", "gate()"), "The gates are not drawn"),
            (fit("**batch).loss", "**batches[0]).loss"), "the same batch"),
            (fit("optimizer.zero_grad()", "pass"), "Gradients pile up"),
            (fit("torch.optim.Adam(", "torch.optim.SGD("), "plain gradient descent"),
            (fit('"lr": rate', '"lr": 1e-3'), "The rate is not used"),
            (fit("p_open().sum()", "p_open().mean()"), "summed, not averaged"),
            (fit("view(len(keys), -1)", "view(-1, len(keys)).T"), "the wrong heads"),
            (
                fit(
                    "append(gate.log_alpha.detach().clone())",
                    "append(0)\n        history[:] = [gate.log_alpha] * len(history)",
                ),
                "Keep copies",
            ),
            (fit("optimizer.step()", "pass"), "has not moved"),
            (fit("torch.stack(history)", "torch.stack(history[1:])"), "One row is missing"),
            (fit("torch.stack(history)", "history[-1]"), "log alpha at one moment"),
            (fit("torch.stack(history)", "gate"), "not the gate itself"),
            (fit("torch.stack(history)", "history"), "This is a list"),
            (fit("return torch", "model.lm_head.weight.data += 1\n    return torch"), "weights have changed"),
            (
                fit(
                    "return torch",
                    "model.left = gates(model, {keys[0]: torch.ones(4)})\n    model.left.__enter__()\n    return torch",
                ),
                "Gates are left in the model",
            ),
            (fit('{"params": also, "lr": 3e-4}', ""), "The parameters in also should learn"),
            (fit('"lr": 3e-4', '"lr": rate'), "a group of their own"),
        ],
    },
    "09.target_size": {
        "right": [my_heads.target_size, TargetSize],
        "wrong": [
            (target("begin + (target - begin) * min(1.0, step / warm_up)", "target"), "from the first step on"),
            (target("min(1.0, step / warm_up)", "step / warm_up"), "beyond the target"),
            (target("step / warm_up", "(step + 1) / warm_up"), "one step ahead"),
            (target("(n - goal) / begin", "n - goal"), "The gap is in gates"),
            (
                target("a, b = a + rate * gap.item(), b + rate", "a, b = a - rate * gap.item(), b - rate"),
                "They rise then",
            ),
            (target(" + b * gap**2\n", "\n"), "b times the square"),
            (target("a * gap + b", "b"), "a times the gap"),
            (
                target(
                    "cost = a * gap + b * gap**2\n        a, b = a + rate * gap.item(), b + rate * gap.item() ** 2",
                    "a, b = a + rate * gap.item(), b + rate * gap.item() ** 2\n        cost = a * gap + b * gap**2",
                ),
                "First the cost, then",
            ),
            (target("b + rate * gap.item() ** 2", "b + rate * gap.item()"), "b rises with the square"),
            (target("step += 1", "step, a, b = step + 1, 0.0, 0.0"), "stay at 0"),
            (target("(n - goal) / begin", "((n - goal) / begin).abs()"), "has lost its sign"),
            (
                target("nonlocal begin, step, a, b", "nonlocal begin, step, a, b\n        rate = 1"),
                "The rate is not used",
            ),
            (target("return cost", "return 3 * cost"), "Each call: the goal"),
            (target("return cost", "return cost.item()"), "no slope in n"),
            (
                target(
                    "a, b = a + rate * gap.item(), b + rate * gap.item() ** 2",
                    "a, b = a + rate * gap, b + rate * gap ** 2",
                ),
                "their slopes in n are not|later one stopped",
            ),
            (target("return cost", "return cost if step < 4 else {}['c']"), "a later one stopped with KeyError"),
            (lambda target, warm_up, rate: 16.0, r"A function is asked for, penalty\(n\)"),
        ],
    },
}
