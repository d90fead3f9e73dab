"""Answers to the exercises of lesson 05: right ones, and wrong ones with what their hint must say."""

import random
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

import headtools as ht
from headtools.course import my_heads
from headtools.roles.erasure import erasure
from headtools.roles.tasks import control


def descent(x, y, n, steps=100, rate=0.3, wrong=""):
    known = x if wrong == "leak" else x[:n]
    if wrong != "raw":
        x = (x - (0 if wrong == "uncentred" else known.mean(0))) / (known.std(0) + 1e-9)
    X = x if wrong == "no bias" else torch.cat([x, torch.ones(len(x), 1)], 1)
    Y = torch.eye(int(y.max()) + 1)[y]
    W, m = torch.zeros(X.shape[1], Y.shape[1]), len(X) if wrong == "all" else n
    for _ in range(100 if wrong == "steps" else steps):
        error = (X[:m] @ W).softmax(-1) - Y[:m]
        W = W - (-rate if wrong == "up" else rate) * torch.einsum("nd,nc->dc", X[:m], error) / (
            1 if wrong == "sum" else m
        )
    named = (X @ W).argmax(-1)
    if wrong == "named":
        return named[n:]
    right = named == y
    return {"every": right, "seen": right[:n], "share": right[n:].float().mean()}.get(wrong, right[n:])


def wrong_probe(kind):
    return partial(descent, wrong=kind)


def probe_by_sklearn(x, y, n, steps=100, rate=0.3):
    x = ((x - x[:n].mean(0)) / (x[:n].std(0) + 1e-9)).numpy()
    if steps == 0:
        return y[n:] == 0
    model = LogisticRegression(max_iter=steps).fit(x[:n], y[:n].numpy())
    return (model.predict(x[n:]) == y[n:].numpy()).tolist()


def probe_by_autograd(x, y, n, steps=100, rate=0.3):
    x = (x - x[:n].mean(0)) / x[:n].std(0).clamp(min=1e-6)
    layer = torch.nn.Linear(x.shape[1], int(y.max()) + 1)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(layer.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(x[:n]), y[:n]).backward()
        optimizer.step()
    return layer(x[n:]).argmax(-1) == y[n:]


def nearest(x, y, n, steps=100, rate=0.3):
    """No linear probe: the label of the nearest word."""
    if steps == 0:
        return y[n:] == 0
    x = (x - x[:n].mean(0)) / x[:n].std(0)
    return y[:n][torch.cdist(x[n:], x[:n]).argmin(1)] == y[n:]


def package_probe(x, y, n, steps=100, rate=0.3):
    return ht.probe(x, y, n)


def drawn_by(key, keep=True, even=False):
    """Control labels with the key (sentence, map, place) -> word."""

    def control_labels(words, maps, y, seed=0):
        draw, drawn, out = random.Random(seed), {}, []
        answers = y[y >= 0].tolist()
        answers = sorted(set(answers)) if even else answers
        for sentence, A in zip(words, maps, strict=True):
            for i in range(len(sentence)):
                drawn.setdefault(key(sentence, A, i), draw.choice(answers))
                out.append(drawn[key(sentence, A, i)])
        return [label if real >= 0 or not keep else -1 for label, real in zip(out, y.tolist(), strict=True)]

    return control_labels


def attended(sentence, A, i):
    return sentence[A[i].argmax()]


right_control = drawn_by(attended)


def control_in_numpy(words, maps, y, seed=0):
    read = [s[j] for s, A in zip(words, maps, strict=True) for j in A.numpy().argmax(1)]
    types, place = np.unique(read, return_inverse=True)
    drawn = np.random.default_rng(seed).choice(y[y >= 0].numpy(), len(types))
    return np.where(y >= 0, drawn[place], -1)


def control_forgets_seed(words, maps, y, seed=0):
    return right_control(words, maps, y, 0)


def control_shuffled(words, maps, y, seed=0):
    out, answers = y.clone(), y[y >= 0].tolist()
    out[y >= 0] = torch.tensor(random.Random(seed).sample(answers, len(answers)))
    return out


def package_control(words, maps, y, seed=0):
    return control([w for s in words for w in s], list(map(str, y.tolist())), len(y))


def moments(x, y):
    x = x.double()
    mean = x.mean(0)
    delta = x[y == 1].mean(0) - x[y != 1].mean(0)
    Sigma = (x - mean).T @ (x - mean) / len(x)
    return x, mean, delta, torch.linalg.solve(Sigma, delta)


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


def two_labels(x, y):
    x, mean, delta, a = moments(x, y)
    return lambda z: z - (((z - mean.to(z)) @ a.to(z))[..., None] * delta.to(z) / (a @ delta).to(z))


def along(read, write, base=True):
    """An eraser that reads and subtracts along ("a" or "delta"), for two labels."""

    def eraser(x, y):
        x, mean, delta, a = moments(x, y)
        r, w = ({"a": a, "delta": delta}[name] for name in (read, write))
        mean = mean if base else 0 * mean
        return lambda z: z - (((z - mean.to(z)) @ r.to(z))[..., None] * w.to(z) / (r @ w).to(z))

    return eraser


def each_from_intact(x, y):
    x = x.double()
    mean = x.mean(0)
    Sigma, M = (x - mean).T @ (x - mean) / len(x), torch.eye(x.shape[1], dtype=x.dtype)
    for label in y.unique()[1:]:
        delta = x[y == label].mean(0) - x[y != label].mean(0)
        a = torch.linalg.solve(Sigma, delta)
        M = M - M @ torch.outer(a, delta) / (a @ delta)
    return lambda z: mean.to(z) + (z - mean.to(z)) @ M.to(z)


def for_every_label(x, y):
    x, keep = x.double(), torch.eye(x.shape[1], dtype=torch.float64)
    mean = x.mean(0)
    for label in y.unique():
        left = (x - mean) @ keep
        delta = left[y == label].mean(0) - left[y != label].mean(0)
        a = torch.linalg.pinv(left.T @ left / len(x), hermitian=True) @ delta
        keep = keep - keep @ torch.outer(a, delta) / (a @ delta)
    return lambda z: mean.to(z) + (z - mean.to(z)) @ keep.to(z)


def by_label(x, y):
    """Subtracts each label's own mean, which it must know."""
    means = torch.stack([x[y == label].mean(0) for label in y.unique()])
    return lambda z: z - means[y] + x.mean(0) if z.shape == x.shape else z


def along_another(x, y):
    """Equal means for any direction that is not across delta."""
    x, mean, delta, _ = moments(x, y)
    a = torch.ones(len(delta), dtype=x.dtype)
    return lambda z: z - (((z - mean.to(z)) @ a.to(z))[..., None] * delta.to(z) / (a @ delta).to(z))


def package_eraser(x, y):
    return erasure(x, list(map(str, y.tolist())))


def right_eraser_in_double(x, y):
    take = by_whitening(x, y)
    return lambda z: take(z.double())


def erasing(wrong=""):
    """A right erase, or one with a mistake."""

    @contextmanager
    def erase(model, erasers):
        hooks = []
        last = {}
        for number, (key, f) in enumerate(erasers.items()):
            *where, head = key
            site, last["take"] = ht.sites(model)[tuple(where)], f

            last["head"], last["site"] = head, site

            def change(module, args, head=head, take=f, site=site):
                z = site.split(args[0]).clone()
                take = last["take"] if wrong in ("late", "all late") else take
                if wrong == "all late":
                    head, site = last["head"], last["site"]
                if wrong == "all heads":
                    z = take(z)
                else:
                    z[:, :, head] = take(z[:, :, head])
                return None if wrong == "forgets" else (site.join(z),)

            if not (wrong == "first" and number) and not (wrong == "encoder" and where[0] != "encoder"):
                hooks.append(site.out.register_forward_pre_hook(change))
        if wrong == "no finally":
            yield
        try:
            if wrong != "no finally":
                yield
        finally:
            for hook in hooks if wrong != "stays" else ():
                hook.remove()

    return erase


@contextmanager
def one_a_layer(model, erasers):
    last = {tuple(key): (head, take) for (*key, head), take in erasers.items()}
    with erasing()(model, {(*key, head): take for key, (head, take) in last.items()}):
        yield


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


ANSWERS = {
    "05.probe": {
        "right": [my_heads.probe, descent, probe_by_autograd, probe_by_sklearn],
        "wrong": [
            (wrong_probe("all"), "learned from the words that it is scored on"),
            (wrong_probe("up"), "It climbs"),
            (wrong_probe("no bias"), "column of ones is missing"),
            (wrong_probe("raw"), "one large column drowns the others"),
            (wrong_probe("leak"), "come from all words"),
            (wrong_probe("sum"), "its steps overshoot. The gradient is a mean"),
            (wrong_probe("uncentred"), "scaled and not centred"),
            (wrong_probe("steps"), "With steps=0 it is as good as with 100"),
            (wrong_probe("named"), "labels that it names"),
            (wrong_probe("every"), "a value for every word"),
            (wrong_probe("seen"), "words that it was fitted to"),
            (wrong_probe("share"), "One truth value for each word"),
            (nearest, "no linear probe can tell apart"),
            (lambda x, y, n, steps=100, rate=0.3: y[n:] == 0, r"It names \d+ of \d+ labels"),
            (package_probe, "ht.probe is right, and it is the one that you are about to write"),
            (lambda x, y: x, "stopped with TypeError"),
        ],
    },
    "05.control": {
        "right": [my_heads.control_labels, right_control, control_in_numpy],
        "wrong": [
            (drawn_by(lambda sentence, A, i: sentence[i]), "keyed to the word itself"),
            (drawn_by(lambda sentence, A, i: sentence[A[:, i].argmax()]), "Queries are rows"),
            (drawn_by(attended, keep=False), "A word without a label, -1 in y"),
            (drawn_by(attended, even=True), "One label in five is 1.*as often as it occurs"),
            (control_shuffled, "several labels. Draw once for each type"),
            (control_forgets_seed, "same seed should give the same labels"),
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
            (along("delta", "delta"), "This reads along delta; read along S"),
            (along("a", "a"), "reads along a and subtracts along a"),
            (along("delta", "a"), "Reading and subtracting are exchanged"),
            (along("a", "delta", base=False), "not along z - mean"),
            (for_every_label, "the last one needs no step"),
            (lambda x, y: lambda z: my_heads.eraser(x, y)(z) - x.mean(0), "The mean is missing"),
            (two_labels, "two differences of means. This takes away only the first"),
            (each_from_intact, "start from what the one before has left"),
            (by_label, "there are no labels: use z alone"),
            (along_another, "But the vectors move by"),
            (right_eraser_in_double, "should leave as float32"),
            (lambda x, y: x, "This is a tensor. A function"),
            (lambda x, y: lambda z: z, "Nothing was taken away"),
            (lambda x, y: lambda z: z - 0.5 * y[:, None] if z.shape == x.shape else z, "still .* apart"),
            (lambda x, y: lambda z: x.mean(0).expand_as(z), "All vectors are equal now"),
            (lambda x, y: lambda z: my_heads.eraser(x, y)(z) if z.shape == x.shape else z, "wrong for other vectors"),
            (package_eraser, "erasure is right, and it is the one that you are about to write"),
        ],
    },
    "05.erase": {
        "right": [my_heads.erase, erasing(), erase_by_columns],
        "blank": [blank_erase, lambda model, erasers: ...],
        "wrong": [
            (erasing("forgets"), "Nothing is erased inside the block"),
            (erasing("all heads"), "Every head of the layer is changed"),
            (erasing("first"), "Only the first head"),
            (erasing("encoder"), "Only heads of the encoder"),
            (erasing("late"), "sees the loop's variables as they are when it runs"),
            (erasing("all late"), "Each projection has the last eraser, on the last head"),
            (one_a_layer, "only one of them is changed"),
            (erasing("stays"), "still erased. Remove each hook"),
            (erasing("no finally"), "An error inside the block leaves the erasers"),
            (lambda model, erasers: model, "context manager is asked for"),
        ],
    },
}
