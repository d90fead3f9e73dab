"""Answers to the exercises of lesson 00: right ones, and wrong ones with what their hint must say."""

from contextlib import contextmanager

from edited import of

import headtools as ht
from headtools.course import my_heads

accuracy, switch = map(of, ("accuracy", "switch_off"))


def not_implemented(*_):
    raise NotImplementedError


BLANKS = [not_implemented, lambda *_: None, lambda *_: ...]


@contextmanager
def by_weights(model, heads, rows=False):
    """Another style: no hooks, but columns of the weight; or one mistake, its rows."""
    before = {}
    for key, numbers in heads.items():
        site = ht.sites(model)[key]
        weight = site.out.weight.data
        before[site] = weight.clone()
        for h in numbers:
            (weight if rows else weight.T)[site.value_dim * h : site.value_dim * (h + 1)] = 0
    try:
        yield
    finally:
        for site, weight in before.items():
            site.out.weight.data = weight


def package(model, heads):
    return ht.ablate(model, heads)


def generator(model, heads):
    yield


@contextmanager
def blank(model, heads):
    ...
    yield


COUNT = {"encoder": 48, "decoder": 48, "cross": 48}


def accuracy_in_a_loop(logits, labels):
    shares = []
    for scores, right in zip(logits, labels, strict=True):
        words = [(s.argmax().item(), r.item()) for s, r in zip(scores, right, strict=True) if r != -100]
        shares.append(sum(said == r for said, r in words) / len(words))
    return shares


SHARE = "hit.sum(1) / real.sum(1)"
UNTIL = "try:\n        yield\n    finally:\n        "
GATES, HOOK = ("gates",), ("_edit_site", "edit", "gates")  # what switch_off is made of
ANSWERS = {
    "00.accuracy": {
        "right": [my_heads.accuracy, accuracy_in_a_loop],
        "wrong": [
            (accuracy(SHARE, "hit.float().mean(1)"), "those of no word among them"),
            (accuracy("& real", "| ~real", SHARE, "hit.float().mean(1)"), "count as right"),
            (accuracy(SHARE, "hit.sum() / real.sum()"), "one number for all sentences"),
            (accuracy(SHARE, "hit.sum(0) / real.sum(0)"), "for each place"),
            (accuracy(SHARE, "hit"), "for each word whether it is right"),
            (accuracy(SHARE, "hit.sum(1)"), "number of right words"),
            (accuracy(SHARE, "1 - " + SHARE), "share of wrong words"),
            (accuracy("argmax", "argmin"), "Right words of each sentence"),
            (accuracy("logits.argmax(-1) ==", "logits @"), "stopped with RuntimeError"),
        ],
    },
    "00.switch_off": {
        "right": [by_weights, my_heads.switch_off],
        "blank": [*BLANKS, blank],
        "wrong": [
            (
                switch(
                    "key, some in",
                    "(kind, layer), some in",
                    "values[key] =",
                    "key = kind, layer - 1\n        values[key] =",
                ),
                "Layers count from 0",
            ),
            (switch("list(some)", "[head + 1 for head in some]"), "Heads count from 0"),
            (switch("torch.ones", "torch.zeros", "] = 0", "] = 1"), "wrong way round"),
            (switch("[list(some)]", "[:]"), "Whole layers are off"),
            (switch("heads.items()", "list(heads.items())[:1]"), "Only the first of the heads"),
            (switch("list(some)", "list(some)[:1]"), "first head of each layer"),
            (switch("heads.items()", "list(heads.items())[-1:]"), "Is there a hook for each"),
            (switch("gate(value) for", "(lambda z: gate(value)(z)) for", via=GATES), "sees the loop's variables"),
            (switch("hook.remove()", "pass", via=HOOK), "still off. Remove each hook"),
            (switch(UNTIL + "hook", "yield\n    hook", via=HOOK), "An error inside the block leaves"),
            (switch("(model, values)", "(model, {})"), "Every head is on inside the block"),
            (
                switch("(-1, 1, value.shape[-1], 1)", "(-1, value.shape[-1], 1, 1)[:, : z.shape[1]]", via=GATES),
                "Words are off in place of heads",
            ),
            (switch("z * value", "z.mul_(value", "to(z)", "to(z))", via=GATES), "With a gradient the model stops"),
            (lambda model, heads: by_weights(model, heads, rows=True), "Rows of the weight are 0"),
            (package, "ht.ablate is right, and it is the one that you are about to write"),
            (generator, "@contextmanager above the function"),
            (lambda model, heads: model, "context manager is asked for"),
            (
                switch("found[key]", "found['encoder', 7]", via=("edit", "gates")),
                r"Inside the block came KeyError.*heads = \{\('encoder', 1\): \[0\]\}",
            ),
            (switch("z.flatten(-2)", "z", via=HOOK), "Inside the block came"),
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
