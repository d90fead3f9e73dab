"""Answers to the exercises of lesson 00: right ones, and wrong ones with what their hint must say."""

from contextlib import contextmanager
from functools import partial

import torch

import headtools as ht
from headtools.course import my_heads


def not_implemented(*_):
    raise NotImplementedError


BLANKS = [not_implemented, lambda *_: None, lambda *_: ...]


@contextmanager
def right(model, heads):
    sites, hooks = ht.sites(model), []
    for key, numbers in heads.items():
        site = sites[key]

        def without(module, args, site=site, numbers=numbers):
            z = site.split(args[0]).clone()
            z[:, :, numbers] = 0
            return (site.join(z),)

        hooks.append(site.out.register_forward_pre_hook(without))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class ByColumns:
    """Another style: a class, and columns of the output projection's input."""

    def __init__(self, model, heads):
        self.model, self.heads = model, heads

    def __enter__(self):
        self.handles = []
        for key, numbers in self.heads.items():
            out, width = ht.sites(self.model)[key].out, ht.sites(self.model)[key].value_dim
            mask = torch.ones(out.in_features)
            for h in numbers:
                mask[width * h : width * (h + 1)] = 0
            self.handles += [out.register_forward_pre_hook(partial(self.times, mask))]

    @staticmethod
    def times(mask, module, args):
        return args[0] * mask

    def __exit__(self, *error):
        for handle in self.handles:
            handle.remove()


@contextmanager
def by_weights(model, heads):
    before = {}
    for key, numbers in heads.items():
        site = ht.sites(model)[key]
        before[site] = site.out.weight.data.clone()
        for h in numbers:
            site.out.weight.data[:, site.value_dim * h : site.value_dim * (h + 1)] = 0
    try:
        yield
    finally:
        for site, weight in before.items():
            site.out.weight.data = weight


def other(change=lambda heads: heads, remove=True, returned=lambda z: (z,), late=False):
    """The right answer with one mistake."""

    @contextmanager
    def switch_off(model, heads):
        hooks, seen = [], {}
        for key, numbers in change(heads).items():
            site, seen["last"] = ht.sites(model)[key], numbers

            def without(module, args, site=site, own=numbers):
                z = site.split(args[0]).clone()
                z[:, :, seen["last"] if late else own] = 0
                return returned(site.join(z))

            hooks.append(site.out.register_forward_pre_hook(without))
        yield
        for hook in hooks if remove else ():
            hook.remove()

    return switch_off


def package(model, heads):
    return ht.ablate(model, heads)


def generator(model, heads):
    yield


@contextmanager
def blank(model, heads):
    ...
    yield


@contextmanager
def by_token(model, heads):
    hooks = []
    for key, numbers in heads.items():
        site = ht.sites(model)[key]

        def without(module, args, site=site, numbers=numbers):
            z = site.split(args[0]).clone()
            z[:, [n for n in numbers if n < z.shape[1]]] = 0
            return (site.join(z),)

        hooks.append(site.out.register_forward_pre_hook(without))
    yield
    for hook in hooks:
        hook.remove()


@contextmanager
def in_place(model, heads):
    hooks = []
    for key, numbers in heads.items():
        site = ht.sites(model)[key]

        def without(module, args, site=site, numbers=numbers):
            site.split(args[0])[:, :, numbers] = 0

        hooks.append(site.out.register_forward_pre_hook(without))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def rows_of_weights(model, heads):
    before = {}
    for key, numbers in heads.items():
        site = ht.sites(model)[key]
        before[site] = site.out.weight.data.clone()
        for h in numbers:
            site.out.weight.data[site.value_dim * h : site.value_dim * (h + 1)] = 0
    yield
    for site, weight in before.items():
        site.out.weight.data = weight


@contextmanager
def typo(model, heads):
    ht.sites(model)["encoder", 7]
    yield


@contextmanager
def too_narrow(model, heads):
    hook = model.model.encoder.layers[0].self_attn.out_proj.register_forward_pre_hook(lambda m, args: args[0][..., :3])
    yield
    hook.remove()


COUNT = {"encoder": 48, "decoder": 48, "cross": 48}


def accuracy_in_a_loop(logits, labels):
    shares = []
    for scores, right in zip(logits, labels, strict=True):
        words = [(s.argmax().item(), r.item()) for s, r in zip(scores, right, strict=True) if r != -100]
        shares.append(sum(said == r for said, r in words) / len(words))
    return shares


def hits(logits, labels):
    return (logits.argmax(-1) == labels).float()


ANSWERS = {
    "00.accuracy": {
        "right": [my_heads.accuracy, accuracy_in_a_loop],
        "wrong": [
            (lambda logits, labels: hits(logits, labels).mean(1), "those of no word among them"),
            (lambda logits, labels: (hits(logits, labels) + (labels == -100)).mean(1), "count as right"),
            (
                lambda logits, labels: hits(logits, labels).sum() / (labels != -100).sum(),
                "one number for all sentences",
            ),
            (lambda logits, labels: hits(logits, labels).sum(0) / (labels != -100).sum(0), "for each place"),
            (hits, "for each word whether it is right"),
            (lambda logits, labels: hits(logits, labels).sum(1), "number of right words"),
            (lambda logits, labels: 1 - my_heads.accuracy(logits, labels), "share of wrong words"),
            (lambda logits, labels: my_heads.accuracy(-logits, labels), "Right words of each sentence"),
            (lambda logits, labels: logits @ labels, "stopped with RuntimeError"),
        ],
    },
    "00.switch_off": {
        "right": [right, ByColumns, by_weights, my_heads.switch_off],
        "blank": [*BLANKS, blank],
        "wrong": [
            (other(lambda h: {(kind, layer - 1): n for (kind, layer), n in h.items()}), "Layers count from 0"),
            (other(lambda h: {site: [n + 1 for n in some] for site, some in h.items()}), "Heads count from 0"),
            (other(lambda h: {s: [n for n in range(4) if n not in some] for s, some in h.items()}), "wrong way round"),
            (other(lambda h: {site: [0, 1, 2, 3] for site in h}), "Whole layers are off"),
            (other(lambda h: dict([next(iter(h.items()))])), "Only the first of the heads"),
            (other(lambda h: {site: some[:1] for site, some in h.items()}), "first head of each layer"),
            (other(lambda h: dict(list(h.items())[-1:])), "Is there a hook for each"),
            (other(late=True), "sees the loop's variables"),
            (other(remove=False), "still off. Remove each hook"),
            (other(), "An error inside the block leaves"),
            (other(returned=lambda z: None), "Every head is on inside the block"),
            (by_token, "Words are off in place of heads"),
            (in_place, "With a gradient the model stops"),
            (rows_of_weights, "Rows of the weight are 0"),
            (package, "ht.ablate is right, and it is the one that you are about to write"),
            (generator, "@contextmanager above the function"),
            (lambda model, heads: model, "context manager is asked for"),
            (typo, r"Inside the block came KeyError.*heads = \{\('encoder', 1\): \[0\]\}"),
            (too_narrow, "Inside the block came"),
            (lambda model: model, "stopped with TypeError"),
            (3, "A function is asked for, this is an int"),
        ],
    },
    "00.count": {
        "right": [COUNT, dict(reversed(COUNT.items())), {k: float(v) for k, v in COUNT.items()}],
        "blank": [None, ..., COUNT | {"cross": None}, COUNT | {"cross": ...}],
        "wrong": [
            (COUNT | {"decoder": 96}, "decoder: 96.*Two kinds are taken for one"),
            (dict.fromkeys(COUNT, 144), "encoder: 144.*three kinds together"),
            (dict.fromkeys(COUNT, 6), "number of layers"),
            (dict.fromkeys(COUNT, 8), "heads in one layer"),
            (dict.fromkeys(COUNT, 128), "d_model"),
            (dict.fromkeys(COUNT, 16), "d_head"),
            (dict.fromkeys(COUNT, 768), "layers times width"),
            (COUNT | {"cross": 47}, "cross: 47"),
            (COUNT | {"cross": "48"}, "cross: a number is asked for"),
            (144, "kinds apart"),
            ({"encoder": 48}, "keys should be"),
            ([48, 48, 48], "A dict is asked for.*a list"),
        ],
    },
}
