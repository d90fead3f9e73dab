"""Answers to the exercises of lesson 05: right ones, and wrong ones with what their hint must say."""

from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import torch
from edited import of
from sklearn.linear_model import LogisticRegression

import headtools as ht
from headtools.course import my_heads
from headtools.roles.erasure import erasure
from headtools.roles.tasks import control

probe, labels, eraser, erase = map(of, ("probe", "control_labels", "eraser", "erase"))


def probe_by_sklearn(x, y, n, steps=100, rate=0.3):
    x = ((x - x[:n].mean(0)) / (x[:n].std(0) + 1e-9)).numpy()
    if steps == 0:
        return y[n:] == 0
    model = LogisticRegression(max_iter=steps).fit(x[:n], y[:n].numpy())
    return (model.predict(x[n:]) == y[n:].numpy()).tolist()


def nearest(x, y, n, steps=100, rate=0.3):
    """No linear probe: the label of the nearest word."""
    if steps == 0:
        return y[n:] == 0
    x = (x - x[:n].mean(0)) / x[:n].std(0)
    return y[:n][torch.cdist(x[n:], x[:n]).argmin(1)] == y[n:]


def package_probe(x, y, n, steps=100, rate=0.3):
    return ht.probe(x, y, n)


def control_in_numpy(words, maps, y, seed=0):
    read = [s[j] for s, A in zip(words, maps, strict=True) for j in A.numpy().argmax(1)]
    types, place = np.unique(read, return_inverse=True)
    drawn = np.random.default_rng(seed).choice(y[y >= 0].numpy(), len(types))
    return np.where(y >= 0, drawn[place], -1)


def package_control(words, maps, y, seed=0):
    return control([w for s in words for w in s], list(map(str, y.tolist())), len(y))


def by_whitening(x, y):
    """LEACE as its authors write it: an orthogonal projection in the whitened space."""
    x = x.double()
    mean = x.mean(0)
    values, vectors = torch.linalg.eigh((x - mean).T @ (x - mean) / len(x))
    white, back = vectors / values.sqrt(), (vectors * values.sqrt()).T
    means = torch.stack([(x[y == label].mean(0) - mean) @ white for label in y.unique()])
    _, sizes, rows = torch.linalg.svd(means, full_matrices=False)
    rows = rows[sizes > 1e-9]

    def take(z):
        return (z - ((z.double() - mean) @ white @ rows.T @ rows @ back)).to(z)

    return take


def by_label(x, y):
    """Subtracts each label's own mean, which it must know."""
    means = torch.stack([x[y == label].mean(0) for label in y.unique()])
    return lambda z: z - means[y] + x.mean(0) if z.shape == x.shape else z


def package_eraser(x, y):
    return erasure(x, list(map(str, y.tolist())))


@contextmanager
def erase_by_columns(model, erasers):
    """Another style: one hook a head, on columns of the input."""

    def change(module, args, columns, take):
        flat = args[0].clone()
        flat[..., columns] = take(flat[..., columns])
        return (flat,)

    with ExitStack() as stack:
        for (kind, layer, head), take in erasers.items():
            site = ht.sites(model)[kind, layer]
            columns = slice(head * site.value_dim, (head + 1) * site.value_dim)
            hook = partial(change, columns=columns, take=take)
            stack.callback(site.out.register_forward_pre_hook(hook).remove)
        yield


@contextmanager
def blank_erase(model, erasers):
    ...
    yield


NAMED, SCALED = "(X[n:] @ W).argmax(-1) == y[n:]", "(x - x[:n].mean(0)) / x[:n].std(0)"
READ = "torch.linalg.pinv(left.T @ left / len(x), hermitian=True) @ delta"
ALONG, ERASED = "torch.outer(a, delta) / (a @ delta)", "mean.to(z) + (z - mean.to(z)) @ keep.to(z)"
UNTIL, HOOK = "try:\n        yield\n    finally:\n        ", ("_edit_site", "edit")
ANSWERS = {
    "05.probe": {
        "right": [my_heads.probe, probe_by_sklearn],
        "wrong": [
            (
                probe("(X[:n] @ W)", "(X @ W)", "X[:n].T @ (P - Y[:n]) / n", "X.T @ (P - Y) / len(X)"),
                "learned from the words that it is scored on",
            ),
            (probe("W -=", "W +="), "It climbs"),
            (probe("torch.cat([x, torch.ones(len(x), 1)], 1)", "x"), "column of ones is missing"),
            (probe(SCALED + ".clamp(min=1e-6)", "x"), "one large column drowns the others"),
            (probe(SCALED, "(x - x.mean(0)) / x.std(0)"), "come from all words"),
            (probe("(P - Y[:n]) / n", "(P - Y[:n])"), "its steps overshoot. The gradient is a mean"),
            (probe("(x - x[:n].mean(0))", "x"), "scaled and not centred"),
            (probe("range(steps)", "range(100)"), "With steps=0 it is as good as with 100"),
            (probe(" == y[n:]", ""), "labels that it names"),
            (probe(NAMED, "(X @ W).argmax(-1) == y"), "a value for every word"),
            (probe(NAMED, "(X[:n] @ W).argmax(-1) == y[:n]"), "words that it was fitted to"),
            (probe(NAMED, f"({NAMED}).float().mean()"), "One truth value for each word"),
            (nearest, "no linear probe can tell apart"),
            (lambda x, y, n, steps=100, rate=0.3: y[n:] == 0, r"It names \d+ of \d+ labels"),
            (package_probe, "ht.probe is right, and it is the one that you are about to write"),
            (lambda x, y: x, "stopped with TypeError"),
        ],
    },
    "05.control": {
        "right": [my_heads.control_labels, control_in_numpy],
        "wrong": [
            (labels("A.argmax(-1).tolist()", "range(len(sentence))"), "keyed to the word itself"),
            (labels("argmax(-1)", "argmax(0)"), "Queries are rows"),
            (labels("torch.where(y >= 0, torch.tensor(control), -1)", "control"), "A word without a label, -1 in y"),
            (labels("y[y >= 0]", "y[y >= 0].unique()"), "One label in five is 1.*as often as it occurs"),
            (labels("if sentence[j] not in drawn", "if True"), "several labels. Draw once for each type"),
            (labels("Random(seed)", "Random(0)"), "same seed should give the same labels"),
            (lambda words, maps, y, seed=0: y, "task's own labels"),
            (lambda words, maps, y, seed=0: torch.where(y >= 0, 1, -1), "Every word has the same label"),
            (lambda words, maps, y, seed=0: torch.where(y >= 0, y + 5, -1), "one of the task's own labels"),
            (lambda words, maps, y, seed=0: y[:2], "The shape is"),
            (package_control, "control is right, and it is the one that you are about to write"),
        ],
    },
    "05.eraser": {
        "right": [my_heads.eraser, by_whitening],
        "wrong": [
            (eraser(READ, "delta"), "This reads along delta; read along S"),
            (eraser(ALONG, "torch.outer(a, a) / (a @ a)"), "reads along a and subtracts along a"),
            (eraser(ALONG, "torch.outer(delta, a) / (a @ delta)"), "Reading and subtracting are exchanged"),
            (eraser(ERASED, "z @ keep.to(z)"), "not along z - mean"),
            (eraser("y.unique()[1:]", "y.unique()", "if a @ delta > 1e-12", "if True"), "the last one needs no step"),
            (eraser("mean.to(z) + ", ""), "The mean is missing"),
            (eraser("[1:]", "[1:2]"), "two differences of means. This takes away only the first"),
            (eraser("(x - mean) @ keep", "x - mean"), "start from what the one before has left"),
            (by_label, "there are no labels: use z alone"),
            (eraser(READ, "torch.ones_like(delta)"), "But the vectors move by"),
            (eraser(ERASED, "mean + (z.double() - mean) @ keep"), "should leave as float32"),
            (lambda x, y: x, "This is a tensor. A function"),
            (lambda x, y: lambda z: z, "Nothing was taken away"),
            (lambda x, y: lambda z: z - 0.5 * y[:, None] if z.shape == x.shape else z, "still .* apart"),
            (lambda x, y: lambda z: x.mean(0).expand_as(z), "All vectors are equal now"),
            (lambda x, y: lambda z: my_heads.eraser(x, y)(z) if z.shape == x.shape else z, "wrong for other vectors"),
            (package_eraser, "erasure is right, and it is the one that you are about to write"),
        ],
    },
    "05.erase": {
        "right": [my_heads.erase, erase_by_columns],
        "blank": [blank_erase, lambda model, erasers: ...],
        "wrong": [
            (erase("return z", "return None"), "Nothing is erased inside the block"),
            (erase("z[:, :, head] = take(z[:, :, head])", "z = take(z)"), "Every head of the layer is changed"),
            (erase("by_site(erasers)", "by_site(list(erasers)[:1])"), "Only the first head"),
            (erase("(erasers)", "(key for key in erasers if key[0] == 'encoder')"), "Only heads of the encoder"),
            (
                erase("erasers[*key, h]", "list(erasers.values())[-1]"),
                "sees the loop's variables as they are when it runs",
            ),
            (
                erase("head, take in own.items()", "(*_, head), take in [*erasers.items()][-1:] * len(own)"),
                "Each projection has the last eraser, on the last head",
            ),
            (erase("own.items()", "list(own.items())[-1:]"), "only one of them is changed"),
            (erase("hook.remove()", "pass", via=HOOK), "still erased. Remove each hook"),
            (erase(UNTIL + "hook", "yield\n    hook", via=HOOK), "An error inside the block leaves the erasers"),
            (lambda model, erasers: model, "context manager is asked for"),
        ],
    },
}
