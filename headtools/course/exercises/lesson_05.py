"""Exercises of lesson 05: a linear probe, a control task for what a head reads, an eraser, and erasing in a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headtools.course import my_heads
from headtools.course.exercises.exercise import Exercise, Hint, article, call, same, show, tensor
from headtools.course.exercises.lesson_00 import entered, outputs, restored, restored_after_error, tiny_translator

# --- a probe ----------------------------------------------------------------------------------------------------------

_PROBE_MISTAKES = {
    "all": "It has learned from the words that it is scored on. Fit it to the first n rows alone.",
    "up": "It climbs: the loss rises. Subtract the gradient, X.T @ (P - Y) / n, where P is what the probe says.",
    "no bias": "A column of ones is missing. Without a bias every border between two labels goes through the mean.",
    "leak": "The mean and the deviation that make the columns comparable come from all words. Take them from the first "
    "n, or the words for scoring have a say in the fit.",
    "raw": "Columns of very different size: one large column drowns the others. Subtract each column's mean and divide "
    "by its deviation, both of the first n rows.",
    "uncentred": "The columns are scaled and not centred: one whose mean is large, beside its deviation, makes every "
    "step overshoot. Subtract the mean of the first n rows before dividing.",
}


def _fitted(x: Tensor, y: Tensor, n: int, steps: int = 100, rate: float = 0.3, kind: str = "") -> Tensor:
    """Fit a probe in the lesson's way, or with one mistake; whether it is right about each word after the first n."""
    known = x if kind == "leak" else x[:n]
    if kind != "raw":
        mean = torch.zeros(x.shape[1]) if kind == "uncentred" else known.mean(0)
        x = (x - mean) / known.std(0).clamp(min=1e-6)
    x = x if kind == "no bias" else torch.cat([x, torch.ones(len(x), 1)], 1)
    one_hot = torch.eye(int(y.max()) + 1)[y]
    seen, weight = (len(x) if kind == "all" else n), torch.zeros(x.shape[1], one_hot.shape[1])
    for _ in range(steps):
        gradient = x[:seen].T @ ((x[:seen] @ weight).softmax(-1) - one_hot[:seen]) / seen
        weight += gradient * rate if kind == "up" else -gradient * rate
    return (x[n:] @ weight).argmax(-1) == y[n:]


def _probe_cases() -> Iterator[tuple[str, Tensor, Tensor, int]]:
    """(what it shows, x, y, n): in each the words are far from any border, so every good linear probe agrees."""
    draw = torch.Generator().manual_seed(0)

    def words(centres: list[list[float]], y: Tensor) -> Tensor:
        return torch.tensor(centres)[y] + 0.1 * torch.randn(len(y), len(centres[0]), generator=draw)

    y = torch.tensor([0, 1, 0, 1, 0, 1, 1])  # the last one is labelled 1 and lies among those of label 0
    yield "", torch.tensor([[-2.0], [2], [-3], [3], [-2], [3], [-3]]), y, 4
    y = torch.arange(60) % 2
    x = words([[-1.0, 0.5], [1.0, 0.5]], y)
    yield "all", x, torch.where(torch.arange(60) < 20, y, 1 - y), 20  # later words have the other label
    group = torch.arange(60) % 3
    yield "no bias", words([[-5.0], [0.0], [3.0]], group), (group == 2).long(), 30  # their border is not at the mean
    y = torch.arange(60) % 3
    yield "", words([[0.0, 3.0], [3.0, 0.0], [-3.0, -3.0]], y), y, 30
    y = torch.arange(60) % 2
    x = torch.stack([500 * torch.randn(60, generator=draw), 0.02 * (2.0 * y - 1)], 1)
    yield "raw", x, y, 40
    yield "uncentred", words([[49.0], [51.0]], y), y, 40
    x = words([[-1.0], [1.0]], y)
    x[-10:, 0] = 1e5  # far away, on the side of label 1
    yield "leak", x, torch.where(torch.arange(60) < 50, y, 1), 40


def _probe(answer: Any) -> str | None:
    """probe(x, y, n, steps, rate): fitted on the first n, whether it is right about each of the others."""
    for about, x, y, n in _probe_cases():
        given = {"x": x, "y": y, "n": n}
        result = call(answer, **given)
        want = _fitted(x, y, n)
        got = _right(result, want, y, n, given)
        if same(got, want):
            continue
        kinds = [about, "up", *_PROBE_MISTAKES] if about else ["up", *_PROBE_MISTAKES]
        kind = next((kind for kind in kinds if same(got, _fitted(x, y, n, kind=kind))), "")
        hint = _PROBE_MISTAKES.get(kind) or _PROBE_MISTAKES.get(about, "")
        hint = hint or (
            f"It names {int(got.sum())} of {len(got)} labels; a linear probe names {int(want.sum())} here. Gradient "
            "descent from weights 0: the input times what the probe says minus what it should say."
        )
        return f"{hint}\nSee it for {show(given)}"
    y = torch.arange(200) % 2
    x = torch.randn(200, 12, generator=torch.Generator().manual_seed(1))
    x[:, 0] += 8.0 * y
    after = [tensor(call(answer, x=x, y=y, n=100, steps=k), (100,), "(N - n,)", {}).mean() for k in (0, 100)]
    if same(*after):
        return "With steps=0 it is as good as with 100. Start from weights 0, and take that many steps."
    y = torch.arange(80) % 4
    x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]])[y]  # label by whether the signs agree
    if tensor(call(answer, x=x, y=y % 2, n=40), (40,), "(N - n,)", {}).mean() > 0.9:
        return "It names labels that no linear probe can tell apart. One matrix of weights, and no layer in between."
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(400, 6, generator=draw) + 2 * torch.randn(400, 1, generator=draw)  # columns that go together
    y = (torch.rand(400, generator=draw) < 0.25).long()  # and say nothing about the labels
    right = tensor(call(answer, x=x, y=y, n=200), (200,), "(N - n,)", {}).mean()
    if right < 0.7:
        return (
            f"Where the columns say nothing about labels of which three in four are 0, it is right about {right:.2f} "
            "of the words: its steps overshoot. The gradient is a mean, X.T @ (P - Y) / n, so that a step is no longer "
            "where there are more words."
        )
    return None


def _right(result: Any, want: Tensor, y: Tensor, n: int, given: Mapping) -> Tensor:
    """Read one truth value for each word after the first n; raises Hint for anything else."""
    if not hasattr(result, "__len__") or getattr(result, "shape", None) == ():
        raise Hint(
            f"One truth value for each word after the first n is asked for, this is {article(result)}. Whoever wants "
            "the share takes the mean."
        )
    lengths = {
        (len(y),): "There is a value for every word. Those that it was fitted to do not count: leave out the first n.",
        (n,): "These are the words that it was fitted to. Score it on the others.",
    }
    if len(y) - n == n:
        lengths = {(len(y),): lengths[len(y),]}
    got = tensor(result, tuple(want.shape), "(N - n,)", given, lengths)
    if not set(got.unique().tolist()) <= {0.0, 1.0} or (
        same(got, want.double() * y[n:] + (1 - want.double()) * (1 - y[n:])) and not same(got, want.double())
    ):
        raise Hint(f"These are the labels that it names. Say of each whether it is right.\nSee it for {show(given)}")
    return got


# --- a control task ---------------------------------------------------------------------------------------------------


def _control(answer: Any) -> str | None:
    """control_labels(words, maps, y, seed): a random label for each word type that is attended to; -1 where y is."""
    eye = torch.eye(3)
    few = {
        "words": [["the", "dog", "ran"], ["a", "dog", "sat"]],
        "maps": [0.2 + eye.roll(1, 0), 0.2 + eye.roll(1, 0)],  # each word looks at the one before it
        "y": torch.tensor([0, -1, 1, 1, 1, 0]),
    }
    shown = "\nSee it for {}".format(show({"words": few["words"], "y": few["y"]}))
    rows = [
        tensor(call(answer, **few, seed=seed), (6,), "(N,), one for each word of all sentences,", few)
        for seed in range(8)
    ]
    for got in rows:
        if not bool((got[few["y"] < 0] == -1).all()):
            return f"A word without a label, -1 in y, has none in the control task either.{shown}"
        labelled = got[few["y"] >= 0]
        if not set(labelled.unique().tolist()) <= {0.0, 1.0}:
            return f"A label of the control task is one of the task's own labels. These are {labelled.tolist()}.{shown}"
    if all(same(got, few["y"]) for got in rows):
        return f"These are the task's own labels. The control task must have nothing to do with them: draw.{shown}"
    return _many(answer)


def _many(answer: Any) -> str | None:
    """Judge a control task by many words: which words have one label, how often, and what it depends on."""
    draw = torch.Generator().manual_seed(0)
    words, maps = [], []
    for _ in range(400):
        length = int(torch.randint(4, 8, (1,), generator=draw))
        numbers = torch.randint(600, (length,), generator=draw).tolist()
        words.append([f"w{number}" for number in numbers])
        maps.append(torch.rand(length, length, generator=draw).softmax(-1))
    flat = [word for sentence in words for word in sentence]
    y = (torch.rand(len(flat), generator=draw) < 0.2).long()  # one label in five is 1
    read = [sentence[j] for sentence, A in zip(words, maps, strict=True) for j in A.argmax(-1).tolist()]
    columns = [sentence[j] for sentence, A in zip(words, maps, strict=True) for j in A.argmax(0).tolist()]
    given = {"words": words, "maps": maps, "y": y}
    got = tensor(call(answer, **given, seed=0), (len(flat),), "(N,)", {}).tolist()
    if len(set(got)) == 1:
        return "Every word has the same label, so the control task could be solved without any reading."
    if not _one_each(read, got):
        if _one_each(flat, got):
            return (
                "The labels are keyed to the word itself. The head brings something about the word that it attends to, "
                "so a probe could learn its types by heart, and this control would not notice. Key them to that word: "
                "the one with the greatest weight in the row of the map."
            )
        if _one_each(columns, got):
            return "The labels are keyed to the word that looks most at this one. Queries are rows: take each row's."
        return (
            "A word type that is attended to has several labels. Draw once for each type, keep it, and give it "
            "wherever a word attends to that type."
        )
    share = Counter(dict(zip(read, got, strict=True)).values())[1.0] / len(set(read))
    if abs(share - 0.2) > 0.08:
        return (
            f"One label in five is 1, but {share:.0%} of the types drew it. The control task should be as hard to "
            "guess as the real one: draw each label as often as it occurs in y."
        )
    again = [tensor(call(answer, **given, seed=seed), (len(flat),), "(N,)", {}).tolist() for seed in (0, 1)]
    if again[0] != got or again[1] == got:
        return "The same seed should give the same labels, and another seed others: draw with random.Random(seed)."
    return None


def _one_each(keys: list[str], labels: list) -> bool:
    return all(dict(zip(keys, labels, strict=True))[key] == label for key, label in zip(keys, labels, strict=True))


# --- an eraser --------------------------------------------------------------------------------------------------------


def _matrix(x: Tensor, y: Tensor, kind: str = "") -> Tensor:
    """Give what an eraser multiplies z - mean with, or with one mistake, float64."""
    x = x.double()
    x, keep = x - x.mean(0), torch.eye(x.shape[1]).double()
    for label in y.unique()[1:2] if kind == "first" else y.unique()[1:]:
        left = x if kind == "intact" else x @ keep
        delta = left[y == label].mean(0) - left[y != label].mean(0)
        a = torch.linalg.pinv(left.T @ left / len(x), hermitian=True) @ delta
        read, write = {"means": (delta, delta), "probe": (a, a), "swapped": (delta, a)}.get(kind, (a, delta))
        keep = keep - keep @ torch.outer(read, write) / (read @ write)
    return keep


_ERASER_MISTAKES = {
    "means": "The means are equal, and more was changed than needed. This reads along delta; read along S^-1 delta, "
    "where the labels are told apart best, and subtract along delta.",
    "probe": "The means still differ. This reads along a and subtracts along a; subtract along delta, the difference "
    "of the means.",
    "swapped": "Reading and subtracting are exchanged: read along a, subtract along delta.",
    "first": "With three labels there are two differences of means. This takes away only the first.",
    "intact": "With three labels, each step has to start from what the one before has left, or the means come apart.",
}


_ONE_NEEDS_NO_STEP = (
    "If a loop runs over all labels: the last one needs no step. When all others have the overall mean, so has it, and "
    "its step divides by a difference of 0."
)


def _eraser(answer: Any) -> str | None:
    """eraser(x, y): a function of vectors (..., d) that makes the means of the labels equal in x, with least change."""
    draw = torch.Generator().manual_seed(0)
    small = torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 0.0], [2.0, 2.0], [3.0, 1.0]])
    cases = [(small, torch.tensor([0, 0, 1, 1, 1]))]
    for d, labels in ((4, 2), (5, 3)):
        y = torch.arange(40) % labels
        mix = torch.randn(d, d, generator=draw)
        x = torch.randn(40, d, generator=draw) @ mix + 3 * torch.randn(labels, d, generator=draw)[y] + 5
        cases.append((x, y))
    for x, y in cases:
        given = {"x": x, "y": y}
        take = call(answer, **given)
        if isinstance(take, Tensor):
            other = (
                "is asked for" if take.shape != x.shape else "is asked for: later it meets vectors that are not in x"
            )
            return f"This is a tensor. A function that takes vectors z and gives what is left of them {other}."
        where = f"\nSee it for {show(given)}"
        got = tensor(call(take, z=x), tuple(x.shape), "(n, d), that of z,", given)
        mean, want = x.double().mean(0), _matrix(x, y)
        right = mean + (x.double() - mean) @ want
        if not same(got, right, 1e-3):
            for kind, hint in _ERASER_MISTAKES.items():
                wrong = _matrix(x, y, kind)
                if same(got, mean + (x.double() - mean) @ wrong, 1e-3):
                    return hint + where
            if same(got, x.double() @ want, 1e-3):
                return f"It reads along z, and not along z - mean, so that vectors at the mean move too.{where}"
            if same(got, right - mean, 1e-3):
                return f"The mean is missing: z - mean loses its direction, and then the mean is added again.{where}"
            return _wrong_means(got, x, y, want) + where
        wider = torch.randn(2, 3, x.shape[1], generator=draw)
        found = tensor(call(take, z=wider), tuple(wider.shape), "(B, T, d), that of z,", {})
        if not same(found, mean + (wider.double() - mean) @ want, 1e-3):
            return (
                "Right for x, and wrong for other vectors. What it takes away may depend on x and y only by their "
                "means and covariance, which are worked out once."
            )
        if getattr(call(take, z=wider), "dtype", None) is not torch.float32:
            return "z comes as float32 and should leave as float32: change the mean and the matrix to z's type, .to(z)."
    return None


def _wrong_means(got: Tensor, x: Tensor, y: Tensor, want: Tensor) -> str:
    """The hint for vectors that are left otherwise than by any known mistake."""
    if same(got, x):
        return "Nothing was taken away."
    means = torch.stack([got[y == label].mean(0) for label in y.unique()])
    apart = (means - means[:1]).norm(dim=-1).max()
    if apart > 1e-3:
        return f"The means of two labels are still {apart:.2f} apart. A probe would find that."
    if same(got, got[:1].expand_as(got)):
        return f"All vectors are equal now. Only what tells the labels apart should go. {_ONE_NEEDS_NO_STEP}"
    centred, moved = x.double() - x.double().mean(0), (got - x.double()).square().sum()
    least = (centred @ want - centred).square().sum()
    if moved < least:  # the least of all affine maps, so this is none
        return "Vectors move by what their own label says. In a running model there are no labels: use z alone."
    return (
        f"The means are equal. But the vectors move by {moved:.2f}, summed and squared; {least:.2f} is enough. "
        f"{_ONE_NEEDS_NO_STEP}"
    )


# --- erasing in a model -----------------------------------------------------------------------------------------------


def _half(z: Tensor) -> Tensor:
    """What the judge's erasers do: enough to tell heads, order and repetition apart."""
    return 0.5 * z + 1.0


def _negative(z: Tensor) -> Tensor:
    return 2.0 - z


_ERASED = (
    {("encoder", 1, 2): _half},
    {("encoder", 0, 0): _half, ("encoder", 0, 3): _negative, ("decoder", 1, 1): _negative, ("cross", 2, 1): _half},
)


def _erase(answer: Any) -> str | None:
    """erase(model, erasers): a context manager in which each eraser changes z of its head, {("encoder", 1, 2): f}."""
    for erasers in _ERASED:
        model, batch = tiny_translator()
        plain = outputs(model, batch)
        with my_heads.erase(model, erasers):
            want = outputs(model, batch)
        names = ", ".join(map(str, erasers))
        example = f"\nSee it for erasers of {names}."
        with entered(answer, model, erasers=erasers):
            got = outputs(model, batch)
            twice = outputs(model, batch)
        if same(got, plain):
            return (
                "Nothing is erased inside the block. A hook is registered before the yield, and a pre-hook returns the "
                f"new arguments, as a tuple.{example}"
            )
        if not same(got, want):
            return _other_erasure(model, batch, erasers, got) + example
        if not same(got, twice):
            return f"The second run inside the block gives something else than the first.{example}"
        run = partial(outputs, model, batch)
        restored(run, plain, "heads are still erased")
    restored_after_error(answer, model, run, plain, "the erasers there", erasers=erasers)
    return None


def _repeated(take: Callable[[Tensor], Tensor], times: int, z: Tensor) -> Tensor:
    for _ in range(times):
        z = take(z)
    return z


def _other_erasure(model: nn.Module, batch: dict[str, Tensor], erasers: Mapping, got: Tensor) -> str:
    """The hint for logits that belong to other erasures."""
    every = {(*key, head): take for (*key, _), take in erasers.items() for head in range(4)}
    last = {tuple(key): (head, take) for (*key, head), take in erasers.items()}
    once = {(*key, head): take for key, (head, take) in last.items()}
    first = dict([next(iter(erasers.items()))])
    (*_, final_head), final = list(erasers.items())[-1]
    encoder = {key: take for key, take in erasers.items() if key[0] == "encoder"}
    tried = {
        "Every head of the layer is changed. An eraser belongs to one head: z[:, :, head].": every,
        "Where two heads of one layer have an eraser, only one of them is changed.": once,
        "Only the first head is changed: a hook for each, before the yield.": first,
        "Only heads of the encoder are changed. The kind is the first part of a key.": encoder,
        "Every head has the same eraser. A hook made in a loop sees the loop's variables as they are when it runs, "
        "which is later: give it its own as default arguments.": dict.fromkeys(erasers, final),
    }
    for hint, others in tried.items():
        with my_heads.erase(model, others):
            if same(got, outputs(model, batch)):
                return hint
    late = Counter((*key, final_head) for *key, _ in erasers)
    with my_heads.erase(model, {place: partial(_repeated, final, times) for place, times in late.items()}):
        if same(got, outputs(model, batch)):
            return (
                "Each projection has the last eraser, on the last head. A hook made in a loop sees the loop's "
                "variables as they are when it runs, which is later: give it its own as default arguments."
            )
    return "This is not the model with these heads' z changed by their erasers, and everything else left alone."


EXERCISES = (
    Exercise("05.probe", "a linear probe", _probe, "probe"),
    Exercise("05.control", "a control task for what a head reads", _control, "control_labels", ("control",)),
    Exercise("05.eraser", "an eraser", _eraser, "eraser", ("erasure",)),
    Exercise("05.erase", "erase in a running model", _erase, "erase"),
)
