"""Answers to the exercises of lesson 11: right ones, and wrong ones with what their hint must say."""

from contextlib import contextmanager

import numpy as np
import torch
from edited import of

import headtools as ht
from headtools.course import my_heads

patch, difference, moved, remove, rewrite = map(
    of, ("patch", "logit_difference", "moved", "remove_direction", "rewrite")
)


@contextmanager
def patch_by_columns(model, heads, source, positions=None):
    """Another style: one hook a layer, head by head and row by row."""
    hooks = []
    for site in ht.sites(model):
        if site.key in heads:

            def swap(module, args, site=site):
                z, there = site.split(args[0]).clone(), source[site.key].z
                for head in heads[site.key]:
                    for row in range(len(z)):
                        where = slice(None) if positions is None else positions[row]
                        z[row, where, head] = there[row, where, head]
                return (site.join(z),)

            hooks.append(site.out.register_forward_pre_hook(swap))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def difference_in_a_loop(logits, position, right, wrong):
    return [logits[b, t, r] - logits[b, t, w] for b, (t, r, w) in enumerate(zip(position, right, wrong, strict=True))]


def moved_with_three_runs_at_once(model, run, other, heads, measure, positions=None):
    """Both runs in one list, the patch by the course's own function."""
    runs = []
    with torch.no_grad():
        for batch in (run, other):
            with my_heads.record(model) as seen:
                runs.append((measure(model(**batch).logits), seen))
        with my_heads.patch(model, heads, runs[1][1], positions):
            now = measure(model(**run).logits)
    return [float((n - a) / (b - a)) for n, a, b in zip(now, runs[0][0], runs[1][0], strict=True)]


@contextmanager
def remove_by_the_pseudoinverse(model, head, directions):
    site = ht.sites(model)[head[:2]]
    weight, stored = site.out.weight, site.out.weight.detach().clone()
    away = torch.eye(directions.shape[1]) - torch.linalg.pinv(directions) @ directions
    with torch.no_grad():
        for column in range(head[2] * site.value_dim, (head[2] + 1) * site.value_dim):
            weight[:, column] = away @ weight[:, column]
    try:
        yield
    finally:
        weight.data = stored


def rewrite_with_a_multiplier(k, r, C):
    """Solve the conditions of the minimum and the constraint as one system, in numpy."""
    d, width = len(k), len(r)
    system = np.block([[2 * C.numpy(), -k.numpy()[:, None]], [k.numpy()[None], np.zeros((1, 1))]])
    return np.linalg.solve(system, np.concatenate([np.zeros((d, width)), r.numpy()[None]]))[:d]


SHARE, PART = "(now - here) / (there - here)", "w_o -= w_o @ basis @ basis.T"
UNTIL = "try:\n        yield\n    finally:\n        "
ANSWERS = {
    "11.patch": {
        "right": [my_heads.patch, patch_by_columns],
        "wrong": [
            (patch("z[:, :, some] = there[:, :, some]", "z = there"), "Every head of the layer is patched"),
            (patch("z[:, :, some] = there[:, :, some]", "z[:, some] = there[:, some]"), "Heads and tokens are exch"),
            (patch("None], there, z)", "None], z, there)"), "used upside down"),
            (patch("positions[...", "positions[:1, ..."), "Each row has its own positions"),
            (patch("if positions is not None", "if False"), "positions are not used"),
            (patch("list(some)", "list(some)[:1]"), "Only the first of a layer's heads"),
            (patch("z.to(z)", "z.to(z) * 0"), "heads named are 0 here"),
            (patch("in heads.items()", "in list(heads.items())[-1:]"), "Only the last layer is patched"),
            (patch("z.to(z)", "z.to(z) * 2"), "and no others"),
            (patch("hook.remove()", "pass", via=("_edit_site", "edit")), "After the block the heads are still patched"),
            (
                patch(UNTIL + "hook", "yield\n    hook", via=("_edit_site", "edit")),
                "An error inside the block leaves the",
            ),
            (patch("edit(model, {", "edit(model, {} and {"), "Inside the block nothing has changed"),
        ],
    },
    "11.position": {
        "right": [[1], (1,), {1}, 1, torch.tensor([1]), np.array([1]), [1, 5]],
        "blank": [],
        "wrong": [
            ([2], "The noun is where this head looks"),
            ([1, 2], "The noun is where this head looks"),
            ([0], "has not changed"),
            ([0, 1, 3], "more than one word is changed: the translation is 'gove le bizo kode"),
            ([], "nothing is patched"),
            ([7], "positions 0 to 4"),
            ([-1], "positions 0 to 4"),
            ("one", "A list of positions"),
            ([1.0], "A list of positions"),
            (lambda: [1], "A list of positions"),
        ],
    },
    "11.logit_difference": {
        "right": [difference_in_a_loop, my_heads.logit_difference],
        "wrong": [
            (difference("return (", "return -("), "other way round"),
            (difference("= logits[", "= logits.softmax(-1)["), "probabilities"),
            (difference(" - at.gather(1, wrong[:, None])", ""), "of the right word alone"),
            (difference(", position]", ", -1]"), "last position"),
            (difference(", position]", ", 0]"), "first position"),
            (
                difference("position]", "position].log_softmax(-1)", " - at.gather(1, wrong[:, None])", ""),
                "log-probability",
            ),
            (
                difference(
                    "(at.gather(1, right[:, None]) - at.gather(1, wrong[:, None]))[:, 0]", "at[:, right] - at[:, wrong]"
                ),
                "compares every example with every word",
            ),
            (difference("[:, 0]", "[:, 0].mean()"), "This is one number"),
            (difference("[:, 0]", "[:, 0] * 2"), "own position: the logit"),
            (lambda logits, p, right, wrong: "more", "A tensor of shape"),
        ],
    },
    "11.moved": {
        "right": [moved_with_three_runs_at_once, my_heads.moved],
        "wrong": [
            (
                moved(
                    "heads: Mapping, measure: Callable, positions=None) -> Tensor:",
                    "heads, measure, positions=None):\n    run, other = other, run",
                ),
                "This is the other direction",
            ),
            (
                moved("with patch(", "with record(model) as source:\n        model(**run)\n    with patch("),
                "Nothing moves",
            ),
            (moved("source, positions)", "source)"), "positions are not used"),
            (moved(SHARE, "(there - now) / (there - here)"), "what is left to go"),
            (moved(SHARE, "now - here"), "not a share yet"),
            (moved(SHARE, "now"), "measure in the patched run"),
            (moved(SHARE, "(now - here) / (here - there)"), "sign of the distance"),
            (moved(SHARE, "now / there"), "Measure both runs"),
            (moved(SHARE, "((now - here) / (there - here)).mean()"), "One share for each example"),
        ],
    },
    "11.remove": {
        "right": [remove_by_the_pseudoinverse, my_heads.remove_direction],
        "wrong": [
            (
                remove(PART, "for v in directions:\n        w_o -= torch.outer(w_o @ v, v) / (v @ v)"),
                "one after the other",
            ),
            (
                remove(
                    PART, "unit = directions / directions.norm(dim=1, keepdim=True)\n    w_o -= w_o @ unit.T @ unit"
                ),
                "not orthogonal yet",
            ),
            (remove(PART, "w_o -= w_o @ directions.T @ directions"), "not of length 1"),
            (remove(PART, "w_o.copy_(w_o @ basis @ basis.T)"), "That part should go"),
            (remove(PART, "w_o *= 0"), "writes nothing at all"),
            (remove(PART, f"{PART}\n    w_o *= 0.5"), "more has gone than that"),
            (remove(PART, "w_o *= 0.5"), "still writes along"),
            (remove("w_o.copy_(before)", "pass"), "not what they were, bit for bit"),
            (remove("w_o.copy_(before)", "w_o += before @ basis @ basis.T"), "not what they were, bit for bit"),
            (remove(UNTIL, "yield\n    if True:\n        "), "An error inside the block leaves the edit"),
            (remove("[h]  #", "[h - 1]  #"), "Another head has changed"),
            (remove("[h]  #", "  #"), "Every head of the layer is edited"),
            (remove(PART, "w_o = w_o.clone()"), "the head's weights are what they were"),
        ],
    },
    "11.rewrite": {
        "right": [rewrite_with_a_multiplier, my_heads.rewrite],
        "wrong": [
            (lambda k, r, C: torch.outer(k, r) / (k @ k), "smallest change as a matrix"),
            (lambda k, r, C: torch.outer(C @ k, r) / (k @ C @ k), "where its inverse should"),
            (lambda k, r, C: torch.outer(torch.linalg.solve(C, k), r), "divide by k C"),
            (lambda k, r, C: torch.outer(torch.linalg.solve(C, k), r) / (k @ k), "that of the other formula"),
            (lambda k, r, C: my_heads.rewrite(k, r, C).T, "This is the transpose"),
            (lambda k, r, C: torch.outer(torch.ones_like(k), r) / k.sum(), "it is not the smallest"),
            (lambda k, r, C: 0 * torch.outer(k, r), "It does not turn k into r"),
            (lambda k, r, C: r, "The shape is"),
        ],
    },
}
