"""Answers to the exercises of lesson 11: right ones, and wrong ones with what their hint must say."""

from contextlib import contextmanager

import numpy as np
import torch

import headtools as ht
from headtools.course import my_heads


def hooked(change, model, heads, source, positions):
    """Register one hook a layer, which returns change(z, there, numbers, positions)."""
    hooks = []
    for site in ht.sites(model):
        if site.key in heads:

            def swap(module, args, site=site):
                z, there = site.split(args[0]).clone(), source[site.key].z
                return (site.join(change(z, there, list(heads[site.key]), positions)),)

            hooks.append(site.out.register_forward_pre_hook(swap))
    return hooks


def as_context(change):
    @contextmanager
    def patch(model, heads, source, positions=None):
        hooks = hooked(change, model, heads, source, positions)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    return patch


def of_heads(z, there, numbers, positions):
    if positions is not None:
        there = torch.where(positions[..., None, None], there, z)
    z[:, :, numbers] = there[:, :, numbers]
    return z


@contextmanager
def right_patch(model, heads, source, positions=None):
    sites, hooks = ht.sites(model), []
    for key, numbers in heads.items():

        def swap(module, args, site=sites[key], numbers=numbers):
            z = site.split(args[0]).clone()
            there = source[site.key].z
            if positions is not None:
                there = torch.where(positions[..., None, None], there, z)
            z[:, :, numbers] = there[:, :, numbers]
            return (site.join(z),)

        hooks.append(sites[key].out.register_forward_pre_hook(swap))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def one_by_one(z, there, numbers, positions):
    """Head by head and row by row."""
    for head in numbers:
        for row in range(len(z)):
            for token in range(z.shape[1]):
                if positions is None or positions[row, token]:
                    z[row, token, head] = there[row, token, head]
    return z


def whole_layer(z, there, numbers, positions):
    return of_heads(z, there, range(z.shape[2]), positions)


def by_token(z, there, numbers, positions):
    z[:, numbers] = there[:, numbers]
    return z


def upside_down(z, there, numbers, positions):
    return of_heads(z, there, numbers, None if positions is None else ~positions)


def first_row(z, there, numbers, positions):
    return of_heads(z, there, numbers, None if positions is None else positions[:1].expand_as(positions))


def silent(z, there, numbers, positions):
    return of_heads(z, torch.zeros_like(there), numbers, positions)


@contextmanager
def left_behind(model, heads, source, positions=None):
    hooked(of_heads, model, heads, source, positions)
    yield


@contextmanager
def not_in_finally(model, heads, source, positions=None):
    hooks = hooked(of_heads, model, heads, source, positions)
    yield
    for hook in hooks:
        hook.remove()


@contextmanager
def no_hook(model, heads, source, positions=None):
    for key in heads:
        source[key].z.clone()
    yield


@contextmanager
def last_of_the_loop(model, heads, source, positions=None):
    sites, hooks = ht.sites(model), []
    for key in heads:
        site, numbers = sites[key], heads[key]

        def swap(module, args):
            return (site.join(of_heads(site.split(args[0]).clone(), source[site.key].z, numbers, positions)),)  # noqa: B023

        hooks.append(site.out.register_forward_pre_hook(swap))
        if len(heads) > 1 and key != list(heads)[-1]:
            hooks.pop().remove()
    yield
    for hook in hooks:
        hook.remove()


def package_patch(model, heads, source, positions=None):
    return ht.patch(model, heads, source, positions)


def right_difference(logits, position, right, wrong):
    at = logits[torch.arange(len(logits)), position]
    return (at.gather(1, right[:, None]) - at.gather(1, wrong[:, None]))[:, 0]


def difference_in_a_loop(logits, position, right, wrong):
    return [logits[b, t, r] - logits[b, t, w] for b, (t, r, w) in enumerate(zip(position, right, wrong, strict=True))]


def difference_by_one_hot(logits, position, right, wrong):
    words = logits.shape[-1]
    one = torch.nn.functional.one_hot(right, words) - torch.nn.functional.one_hot(wrong, words)
    when = torch.nn.functional.one_hot(position, logits.shape[1])
    return torch.einsum("btv,bt,bv->b", logits, when.float(), one.float())


def picked(at, words):
    return at[torch.arange(len(at)), words]


def at_place(logits, position):
    return logits[torch.arange(len(logits)), position]


@torch.no_grad()
def right_moved(model, run, other, heads, measure, positions=None):
    with ht.record(model, want="z") as source:
        there = measure(model(**other).logits)
    here = measure(model(**run).logits)
    with ht.patch(model, heads, source, positions):
        now = measure(model(**run).logits)
    return (now - here) / (there - here)


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


@torch.no_grad()
def parts(model, run, other, heads, measure, positions):
    here, there = (measure(model(**batch).logits) for batch in (run, other))
    with ht.record(model, want="z") as source:
        model(**other)
    with ht.patch(model, heads, source, positions):
        return here, there, measure(model(**run).logits)


def from_parts(change):
    return lambda model, run, other, heads, measure, positions=None: change(
        *parts(model, run, other, heads, measure, positions)
    )


def exchanged(model, run, other, heads, measure, positions=None):
    return right_moved(model, other, run, heads, measure, positions)


def own_record(model, run, other, heads, measure, positions=None):
    here, there, _ = parts(model, run, other, heads, measure, positions)
    return (parts(model, run, run, heads, measure, positions)[2] - here) / (there - here)


def without_positions(model, run, other, heads, measure, positions=None):
    return right_moved(model, run, other, heads, measure)


def edited(change, restore=True, no_grad=True):
    """A context that sets the head's columns to change(W_O, directions)."""

    @contextmanager
    def remove_direction(model, head, directions):
        kind, layer, h = head
        site = ht.sites(model)[kind, layer]
        own = slice(h * site.value_dim, (h + 1) * site.value_dim)
        weight = site.out.weight.data
        before = weight.clone()
        weight[:, own] = change(weight[:, own].T, directions).T
        try:
            yield
        finally:
            if restore:
                weight.copy_(before)

    return remove_direction


def projected(W_O, directions):
    basis = torch.linalg.qr(directions.T)[0]
    return W_O - W_O @ basis @ basis.T


def in_turn(W_O, directions):
    for v in directions:
        W_O = W_O - torch.outer(W_O @ v, v) / (v @ v)
    return W_O


def each_of_length_one(W_O, directions):
    unit = directions / directions.norm(dim=1, keepdim=True)
    return W_O - W_O @ unit.T @ unit


@contextmanager
def right_remove(model, head, directions):
    kind, layer, h = head
    site = ht.sites(model)[kind, layer]
    own = slice(h * site.value_dim, (h + 1) * site.value_dim)
    basis = torch.linalg.qr(directions.T)[0]
    with torch.no_grad():
        columns = site.out.weight[:, own]
        before = columns.clone()
        columns -= basis @ basis.T @ columns
    try:
        yield
    finally:
        with torch.no_grad():
            columns.copy_(before)


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


@contextmanager
def added_back(model, head, directions):
    site = ht.sites(model)[head[:2]]
    own = slice(head[2] * site.value_dim, (head[2] + 1) * site.value_dim)
    basis = torch.linalg.qr(directions.T)[0]
    part = basis @ basis.T @ site.out.weight.data[:, own]
    site.out.weight.data[:, own] -= part
    try:
        yield
    finally:
        site.out.weight.data[:, own] += part


@contextmanager
def removed_until_an_error(model, head, directions):
    site = ht.sites(model)[head[:2]]
    before = site.out.weight.data.clone()
    own = slice(head[2] * site.value_dim, (head[2] + 1) * site.value_dim)
    site.out.weight.data[:, own] = projected(before[:, own].T, directions).T
    yield
    site.out.weight.data.copy_(before)


@contextmanager
def the_rows(model, head, directions):
    site = ht.sites(model)[head[:2]]
    before = site.out.weight.data.clone()
    own = slice(head[2] * site.value_dim, (head[2] + 1) * site.value_dim)
    site.out.weight.data[own] = projected(before[own], directions)
    try:
        yield
    finally:
        site.out.weight.data.copy_(before)


@contextmanager
def every_head(model, head, directions):
    site = ht.sites(model)[head[:2]]
    before = site.out.weight.data.clone()
    site.out.weight.data.copy_(projected(before.T, directions).T)
    try:
        yield
    finally:
        site.out.weight.data.copy_(before)


@contextmanager
def a_copy_of_the_weights(model, head, directions):
    w_o = ht.sites(model)[head[:2]].w_o.clone()
    projected(w_o[head[2]], directions)
    yield


def package_remove(model, head, directions):
    return ht.edit(model, head, remove=directions)


def right_rewrite(k, r, C):
    direction = torch.linalg.solve(C, k)
    return torch.outer(direction, r) / (k @ direction)


def rewrite_by_the_root(k, r, C):
    """Turn the inputs so that C is the identity, solve there, and turn back."""
    values, vectors = torch.linalg.eigh(C)
    root = vectors * values.sqrt()
    turned = torch.linalg.solve(root, k)
    return torch.linalg.solve(root.T, torch.outer(turned, r) / (turned @ turned))


def rewrite_with_a_multiplier(k, r, C):
    """Solve the conditions of the minimum and the constraint as one system, in numpy."""
    d, width = len(k), len(r)
    system = np.block([[2 * C.numpy(), -k.numpy()[:, None]], [k.numpy()[None], np.zeros((1, 1))]])
    return np.linalg.solve(system, np.concatenate([np.zeros((d, width)), r.numpy()[None]]))[:d]


ANSWERS = {
    "11.patch": {
        "right": [right_patch, as_context(one_by_one), my_heads.patch],
        "wrong": [
            (as_context(whole_layer), "Every head of the layer is patched"),
            (as_context(by_token), "Heads and tokens are exchanged"),
            (as_context(upside_down), "used upside down"),
            (as_context(first_row), "Each row has its own positions"),
            (as_context(lambda z, there, n, p: of_heads(z, there, n, None)), "positions are not used"),
            (as_context(lambda z, there, n, p: of_heads(z, there, n[:1], p)), "Only the first of a layer's heads"),
            (as_context(silent), "heads named are 0 here"),
            (last_of_the_loop, "Only the last layer is patched"),
            (as_context(lambda z, there, n, p: of_heads(z, 2 * there, n, p)), "and no others"),
            (left_behind, "After the block the heads are still patched"),
            (not_in_finally, "An error inside the block leaves the heads patched"),
            (no_hook, "Inside the block nothing has changed"),
            (lambda model, heads, source, positions=None: 3, "A context manager is asked for"),
            (package_patch, "is right, and it is the one"),
        ],
    },
    "11.position": {
        "right": [[1], (1,), {1}, 1, torch.tensor([1]), np.array([1]), [1, 5]],
        "blank": [],
        "wrong": [
            ([2], "The noun is where this head looks"),
            ([1, 2], "The noun is where this head looks"),
            ([0], "has not changed"),
            ([3], "has not changed"),
            ([0, 1], "more than one word is changed"),
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
        "right": [right_difference, difference_in_a_loop, difference_by_one_hot, my_heads.logit_difference],
        "wrong": [
            (
                lambda logits, position, right, wrong: right_difference(logits, position, wrong, right),
                "other way round",
            ),
            (lambda logits, p, right, wrong: right_difference(logits.softmax(-1), p, right, wrong), "probabilities"),
            (lambda logits, p, right, wrong: picked(at_place(logits, p), right), "of the right word alone"),
            (lambda logits, p, right, wrong: right_difference(logits, 0 * p - 1, right, wrong), "last position"),
            (lambda logits, p, right, wrong: right_difference(logits, 0 * p, right, wrong), "first position"),
            (lambda logits, p, right, wrong: picked(at_place(logits, p).log_softmax(-1), right), "log-probability"),
            (
                lambda logits, p, right, wrong: at_place(logits, p)[:, right] - at_place(logits, p)[:, wrong],
                "compares every example with every word",
            ),
            (lambda logits, p, right, wrong: right_difference(logits, p, right, wrong).mean(), "This is one number"),
            (lambda logits, p, right, wrong: 2 * right_difference(logits, p, right, wrong), "own position: the logit"),
            (lambda logits, p, right, wrong: "more", "A tensor of shape"),
            (torch.eye(3), "A function is asked for"),
        ],
    },
    "11.moved": {
        "right": [right_moved, moved_with_three_runs_at_once, my_heads.moved],
        "wrong": [
            (exchanged, "This is the other direction"),
            (own_record, "Nothing moves"),
            (without_positions, "positions are not used"),
            (from_parts(lambda here, there, now: (there - now) / (there - here)), "what is left to go"),
            (from_parts(lambda here, there, now: now - here), "not a share yet"),
            (from_parts(lambda here, there, now: now), "measure in the patched run"),
            (from_parts(lambda here, there, now: (now - here) / (here - there)), "sign of the distance"),
            (from_parts(lambda here, there, now: now / there), "Measure both runs"),
            (from_parts(lambda here, there, now: ((now - here) / (there - here)).mean()), "One share for each example"),
        ],
    },
    "11.remove": {
        "right": [right_remove, remove_by_the_pseudoinverse, edited(projected), my_heads.remove_direction],
        "wrong": [
            (edited(in_turn), "one after the other"),
            (edited(each_of_length_one), "not orthogonal yet"),
            (edited(lambda W_O, v: W_O - W_O @ v.T @ v), "not of length 1"),
            (edited(lambda W_O, v: W_O - projected(W_O, v)), "That part should go"),
            (edited(lambda W_O, v: 0 * W_O), "writes nothing at all"),
            (edited(lambda W_O, v: 0.5 * projected(W_O, v)), "more has gone than that"),
            (edited(lambda W_O, v: 0.5 * W_O), "still writes along"),
            (edited(projected, restore=False), "not what they were, bit for bit"),
            (added_back, "not what they were, bit for bit"),
            (removed_until_an_error, "An error inside the block leaves the edit"),
            (the_rows, "Another head has changed"),
            (every_head, "Every head of the layer is edited"),
            (a_copy_of_the_weights, "the head's weights are what they were"),
            (package_remove, "is right, and it is the one"),
        ],
    },
    "11.rewrite": {
        "right": [right_rewrite, rewrite_by_the_root, rewrite_with_a_multiplier, my_heads.rewrite],
        "wrong": [
            (lambda k, r, C: torch.outer(k, r) / (k @ k), "smallest change as a matrix"),
            (lambda k, r, C: torch.outer(C @ k, r) / (k @ C @ k), "where its inverse should"),
            (lambda k, r, C: torch.outer(torch.linalg.solve(C, k), r), "divide by k C"),
            (lambda k, r, C: torch.outer(torch.linalg.solve(C, k), r) / (k @ k), "that of the other formula"),
            (lambda k, r, C: right_rewrite(k, r, C).T, "This is the transpose"),
            (lambda k, r, C: torch.outer(torch.ones_like(k), r) / k.sum(), "it is not the smallest"),
            (lambda k, r, C: 0 * torch.outer(k, r), "It does not turn k into r"),
            (lambda k, r, C: r, "The shape is"),
            (lambda k, r, C: C @ r[:0], "stopped with RuntimeError"),
        ],
    },
}
