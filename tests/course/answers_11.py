"""Answers to the exercises of lesson 11: right ones, and wrong ones with what their hint must say."""

import numpy as np
import torch
from torch.nn import functional as F


def right_luck(heads, roles, share):
    return heads * (1 - (1 - share) ** roles)


def luck_in_a_loop(heads, roles, share):
    fails = 1.0
    for _ in range(roles):
        fails *= 1 - share
    return torch.tensor(heads * (1 - fails), dtype=torch.double)


def right_honest(chosen_on, measured_on):
    return measured_on[chosen_on.argmax()]


def honest_by_sorting(chosen_on, measured_on):
    return measured_on.tolist()[sorted(range(len(chosen_on)), key=chosen_on.tolist().__getitem__)[-1]]


def right_margin(outputs, batch):
    right = outputs.logits.gather(1, batch["labels"][:, None])
    others = outputs.logits.scatter(1, batch["labels"][:, None], float("-inf"))
    return others.amax(1) - right[:, 0]


def margin_in_a_loop(outputs, batch):
    rows = zip(outputs.logits.tolist(), batch["labels"].tolist(), strict=True)
    return [max(x for i, x in enumerate(row) if i != label) - row[label] for row, label in rows]


def of_logits(change):
    return lambda outputs, batch: change(outputs.logits, batch["labels"])


ANSWERS = {
    "11.luck": {
        "right": [right_luck, luck_in_a_loop, lambda h, r, s: float(h * -np.expm1(r * np.log1p(-s)))],
        "wrong": [
            (lambda h, r, s: h * r * s, "still one head"),
            (lambda h, r, s: h * s, "for a single test"),
            (lambda h, r, s: 1 - (1 - s) ** r, "How many heads are there"),
            (lambda h, r, s: h * (1 - s) ** r, "pass no test at all"),
            (lambda h, r, s: 1 - (1 - s) ** (h * r), "A number of heads"),
            (lambda h, r, s: h * s**r, "One is enough"),
            (lambda h, r, s: h, "First one head"),
            (lambda h, r, s: "few", "A number is asked for, this is a str"),
            (lambda h, r: h, "stopped with TypeError"),
            (3, "A function is asked for"),
        ],
    },
    "11.honest": {
        "right": [right_honest, honest_by_sorting, lambda a, b: b[a == a.max()].sum()],
        "wrong": [
            (lambda a, b: a.max(), "The choice made it look good"),
            (lambda a, b: b.max(), "measures on the second half"),
            (lambda a, b: a[b.argmax()], "halves are exchanged"),
            (lambda a, b: (a[a.argmax()] + b[a.argmax()]) / 2, "averages both halves"),
            (lambda a, b: a.argmax(), "number of the head"),
            (lambda a, b: 0.123, "Find the place"),
            (lambda a, b: b, r"shape is \(3,\)"),
            (lambda a, b: "best", "A tensor of shape"),
        ],
    },
    "11.margin": {
        "right": [right_margin, margin_in_a_loop, lambda o, b: np.array(margin_in_a_loop(o, b))],
        "wrong": [
            (lambda o, b: -right_margin(o, b), "sign is turned"),
            (of_logits(lambda x, y: x.amax(1) - x.gather(1, y[:, None])[:, 0]), "never falls below 0"),
            (
                of_logits(lambda x, y: x.scatter(1, y[:, None], 0.0).amax(1) - x.gather(1, y[:, None])[:, 0]),
                "is set to 0",
            ),
            (of_logits(lambda x, y: x.gather(1, y[:, None])[:, 0]), "the right logit itself"),
            (of_logits(lambda x, y: x.scatter(1, y[:, None], -torch.inf).amax(1)), "best wrong logit alone"),
            (of_logits(lambda x, y: F.cross_entropy(x, y, reduction="none")), "That is the cross-entropy"),
            (of_logits(F.cross_entropy), "One number came"),
            (lambda o, b: right_margin(o, b).mean(), "one for each example"),
            (lambda o, b: right_margin(o, b) + 1, "the largest logit of a wrong class"),
            (of_logits(lambda x, y: x), r"The shape is \(2, 3\)"),
            (of_logits(lambda x, y: x.missing), "stopped with AttributeError"),
        ],
    },
}
