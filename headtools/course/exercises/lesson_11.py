"""Exercises of lesson 11: patching, where to patch, a logit difference, a direction taken out, a fact rewritten."""

from __future__ import annotations

import operator
from contextlib import suppress
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.course import my_heads
from headtools.course.exercises.exercise import Exercise, Hint, article, call, expect, same, tensor
from headtools.course.exercises.lesson_00 import entered, outputs, restored, restored_after_error, tiny_translator


def _draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(10).round().div(10)


def _translator(rows: int = 2) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]:
    """A random translator of three layers and four heads of width four, and two batches that differ in the source."""
    model, _ = tiny_translator()
    draw = torch.Generator().manual_seed(3)
    both = []
    for _ in range(2):
        ids = torch.randint(3, 12, (rows, 5), generator=draw)
        both.append({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        both[-1]["decoder_input_ids"] = torch.tensor([[0, 4, 9]]).expand(rows, 3)
    return model, *both


def _patch(answer: Any) -> str | None:
    """patch(model, heads, source, positions=None): heads write what they wrote in another run, at some tokens."""
    model, batch, other = _translator()
    with ht.record(model, want="z") as source:
        outputs(model, other)
    noted = {site.key: SimpleNamespace(z=source[site].z) for site in ht.sites(model)}
    run, plain = partial(outputs, model, batch), outputs(model, batch)
    one, several = {("encoder", 1): [2]}, {("encoder", 0): [3], ("cross", 2): [0, 1]}
    where = torch.tensor([[True, False, True, True, False], [False, False, True, False, True]])
    for heads, positions in ((one, None), (several, None), (one, where), ({("encoder", 0): [0, 3]}, where)):
        example = f"\nSee it for heads = {heads}" + ("." if positions is None else " and a mask of positions.")
        with ht.patch(model, heads, source, positions):
            want = outputs(model, batch)
        with entered(answer, model, heads=heads, source=noted, positions=positions):
            got = outputs(model, batch)
        if same(got, plain, 1e-5):
            return (
                "Inside the block nothing has changed. The hook goes on site.out, before the yield, and returns new "
                f"arguments as a tuple.{example}"
            )
        if not same(got, want, 1e-5):
            return _other_patch(model, batch, heads, source, positions, got) + example
        restored(run, plain, "the heads are still patched")
    given = {"heads": one, "source": noted, "positions": None}
    restored_after_error(answer, model, run, plain, "the heads patched", **given)
    return None


def _other_patch(
    model: nn.Module, batch: dict[str, Tensor], heads: Any, source: Any, positions: Tensor | None, got: Tensor
) -> str:
    """The hint for logits that belong to another patch."""

    def with_patch(others: Any, where: Tensor | None = positions, of: Any = source) -> Tensor:
        with ht.patch(model, others, of, where):
            return outputs(model, batch)

    first, *_, last = [*heads, *heads]
    every = {key: range(4) for key in heads}
    tried = {
        "Every head of the layer is patched. Only those named should be: z[:, :, head] is one of them.": lambda: (
            with_patch(every)
        ),
        "Heads and tokens are exchanged: z is (B, T, head, feature), so a head is z[:, :, head].": lambda: _by_token(
            model, batch, heads, source
        ),
        "The heads named are 0 here; they should write what they wrote in the other run.": lambda: with_patch(
            heads, of={key: torch.zeros_like(source[key].z) for key in heads}
        ),
        "Only the first of a layer's heads is patched; there may be several.": lambda: with_patch(
            {key: list(numbers)[:1] for key, numbers in heads.items()}
        ),
        "Only the first of the layers is patched; there may be several.": lambda: with_patch({first: heads[first]}),
        "Only the last layer is patched. A function made in a loop sees the loop's variables as they are when it runs: "
        "give them to it as defaults.": lambda: with_patch({last: heads[last]}),
    }
    if positions is not None:
        tried = {
            "The positions are not used: every token is patched.": lambda: with_patch(heads, None),
            "The positions are used upside down: True says that a token is patched.": lambda: with_patch(
                heads, ~positions
            ),
            "Each row has its own positions; here the first row's serve both.": lambda: with_patch(
                heads, positions[:1].expand_as(positions)
            ),
        } | tried
    for hint, results in tried.items():
        with suppress(Exception):
            if same(got, results(), 1e-5):
                return hint
    return "This is not the output of the model with these heads patched, and no others."


def _by_token(model: nn.Module, batch: dict[str, Tensor], heads: Any, source: Any) -> Tensor:
    """What comes out where z[:, heads] is patched, tokens in place of heads."""

    def swap(z: Tensor, key: tuple) -> Tensor:
        tokens = torch.tensor(heads[key])
        return z.index_copy(1, tokens, source[key].z[:, tokens])

    with my_heads.edit(model, {key: partial(swap, key=key) for key in heads}):
        return outputs(model, batch)


def _difference(answer: Any) -> None:
    """logit_difference(logits, position, right, wrong): (B, T, V), (B,), (B,), (B,) -> (B,)."""
    for rows, words, seed in ((2, 4, 0), (3, 5, 1)):
        logits = _draw(rows, 3, words, seed=seed)
        position = torch.tensor([2, 0, 1])[:rows]
        right, wrong = torch.tensor([3, 0, 2])[:rows], torch.tensor([1, 2, 0])[:rows]
        given = {"logits": logits, "position": position, "right": right, "wrong": wrong}
        at = logits.double()[torch.arange(rows), position]
        each = [at[torch.arange(rows), word] for word in (right, wrong)]
        chance, log_chance = at.softmax(-1), at.log_softmax(-1)
        want = each[0] - each[1]
        shapes = {
            (): "This is one number; one for each example is asked for, (B,).",
            (rows, 1): "The numbers are there, with an axis too many: drop the last one, [:, 0].",
            (
                rows,
                rows,
            ): "This compares every example with every word. Each example has its own two words, so rows and "
            "words have to be picked in pairs.",
        }
        got = tensor(call(answer, **given), (rows,), "(B,)", given, shapes)
        last, first = (logits.double()[torch.arange(rows), n] for n in (-1, 0))
        pick = torch.arange(rows)
        mistakes = {
            "The sign is the other way round: right minus wrong.": -want,
            "These are probabilities. Take the logits: a probability near 1 can hardly rise.": (
                chance[pick, right] - chance[pick, wrong]
            ),
            "This is the logit of the right word alone: a constant added to all logits would change it.": each[0],
            "The last position is taken for all; each example has its own.": last[pick, right] - last[pick, wrong],
            "The first position is taken for all; each example has its own.": first[pick, right] - first[pick, wrong],
            "This is a log-probability: it falls when any third word rises. Compare the two words alone.": (
                log_chance[pick, right]
            ),
        }
        rule = "At the example's own position: the logit of its right word minus that of its wrong word."
        expect(got, want, mistakes, rule, given)


def _moved(answer: Any) -> None:
    """moved(model, run, other, heads, measure, positions=None): how far patched heads move a run towards the other."""
    model, run, other = _translator()

    def measure(logits: Tensor) -> Tensor:
        return logits[:, -1, 3] - logits[:, -1, 5]

    where = torch.tensor([[True, False, True, True, False], [False, False, True, False, True]])
    everything = {site.key: range(site.heads) for site in ht.sites(model)}
    for heads, positions in (({("encoder", 1): [2, 3]}, None), (everything, None), ({("encoder", 2): [0, 1]}, where)):
        given = {"model": model, "run": run, "other": other, "heads": heads, "measure": measure, "positions": positions}
        with torch.no_grad():
            got = tensor(
                call(answer, **given), (2,), "(B,)", {}, {(): "One share for each example is asked for, (B,)."}
            )
            here, there = (measure(model(**batch).logits) for batch in (run, other))
            with ht.record(model, want="z") as source:
                model(**other)
            with ht.patch(model, heads, source, positions):
                now = measure(model(**run).logits)
            with ht.patch(model, heads, source, None):
                everywhere = measure(model(**run).logits)
            with ht.record(model, want="z") as own:
                model(**run)
            with ht.patch(model, heads, own, positions):
                back = measure(model(**other).logits)
        want = (now - here) / (there - here)
        mistakes = {
            "This is what is left to go, 1 minus the share.": 1 - want,
            "Nothing moves. The record has to be of the other run: make it before the patch, from other.": 0 * want,
            "This is the other direction: `other` patched from `run`.": (back - there) / (here - there),
            "This is not a share yet: divide by the distance between the two runs.": now - here,
            "This is the measure in the patched run; what is asked for is how far it has moved.": now,
            "The sign of the distance is the other way round.": -want,
            "The positions are not used: pass them on to patch.": (everywhere - here) / (there - here),
        }
        rule = "Measure both runs, measure `run` with the heads patched from `other`: how far between the two is it?"
        expect(got, want, mistakes, rule, {"heads": heads})


def _remove(answer: Any) -> str | None:
    """remove_direction(model, head, directions): the head writes nothing along them while it lasts; then as before."""
    model, batch, _ = _translator()
    plain = outputs(model, batch)
    cases = [(("encoder", 1, 2), 1, 3.0), (("cross", 0, 0), 2, 0.5), (("encoder", 2, 3), 3, 1.0)]
    for head, count, length in cases:
        directions = length * _draw(count, 16, seed=count)
        site = ht.sites(model)[head[:2]]
        before = site.w_o.detach().clone()  # (H, d_k, d)
        stored = site.out.weight.detach().clone()
        example = f"\nSee it for head = {head} and directions {tuple(directions.shape)} of length {length} and more."
        with ht.edit(model, head, remove=directions):
            want = site.w_o.detach().clone()
        with entered(answer, model, head=head, directions=directions):
            seen, got = outputs(model, batch), site.w_o.detach().clone()
        if torch.equal(got, before):
            if same(seen, plain, 1e-6):
                return (
                    "Inside the block the head's weights are what they were. Change the weight itself, in place and "
                    f"under torch.no_grad().{example}"
                )
            return f"The weights are to change here, not what the model does with them: edit site.out.weight.{example}"
        if not same(got, want, 1e-5):
            return _other_removal(before, got, want, head[2], directions) + example
        if not torch.equal(site.out.weight, stored):
            off = (site.out.weight - stored).abs().max().item()
            site.out.weight.data.copy_(stored)
            hint = f"After the block the weights are not what they were, bit for bit: they differ by up to {off:.1e}. "
            hint += "Keep a clone of them, and copy it back; adding again what was taken away rounds differently."
            return hint + example
    with suppress(ZeroDivisionError), entered(answer, model, head=head, directions=directions):
        raise ZeroDivisionError
    if not torch.equal(site.out.weight, stored):
        return "An error inside the block leaves the edit in the model. Put the yield into try:, copy back in finally:."
    return None


def _other_removal(before: Tensor, got: Tensor, want: Tensor, head: int, directions: Tensor) -> str:
    """The hint for weights that are not those without the directions."""
    w, v = before[head].double(), directions.double()
    unit = v / v.norm(dim=1, keepdim=True)
    in_turn = w
    for one in unit:
        in_turn = in_turn - (in_turn @ one)[:, None] * one
    count = len(v)
    if count > 1 and same(got[head], in_turn):
        return (
            "The directions are taken out one after the other, and they are not orthogonal: the last brings a part of "
            "the first back. Make an orthonormal basis first, torch.linalg.qr(directions.T)[0]."
        )
    if count > 1 and same(got[head], w - w @ unit.T @ unit):
        return "Directions of length 1 are not orthogonal yet: torch.linalg.qr(directions.T)[0] is a basis."
    if same(got[head], w - w @ v.T @ v):
        return "The directions are not of length 1: use an orthonormal basis of them, torch.linalg.qr(directions.T)[0]."
    basis = torch.linalg.qr(v.T)[0]
    if same(got[head], w @ basis @ basis.T):
        return "What is left is the part along the directions. That part should go."
    if same(got[head], torch.zeros_like(w)):
        return "The head writes nothing at all. Only the part along the directions should go."
    others = [h for h in range(len(before)) if h != head]
    if not same(got[others], before[others]):
        everything = before.double() - before.double() @ basis @ basis.T
        if same(got, everything):
            return "Every head of the layer is edited. A head owns its own d_k columns of site.out.weight."
        return (
            "Another head has changed. nn.Linear computes z @ weight.T, so head h owns the columns h * d_k to "
            "(h + 1) * d_k of the weight, and their transpose is W_O."
        )
    if not same(got[head].double() @ v.T, torch.zeros(len(w), count), 1e-4):
        return "The head still writes along the directions: every row of W_O is to lose its part along them."
    return "The head writes nothing along the directions, but more has gone than that: subtract that part, and no more."


def _rewrite(answer: Any) -> str | None:
    """rewrite(k, r, C): the change of W_V (d, d_k) with k @ change = r that is smallest on inputs with E[x^T x] = C."""
    for d, width, seed in ((2, 1, 0), (4, 2, 1), (5, 3, 2)):
        k, r, x = _draw(d, seed=seed), _draw(width, seed=seed + 5), _draw(3 * d, d, seed=seed + 9)
        given = {"k": k, "r": r, "C": (x.T @ x / len(x) + 0.1 * torch.eye(d)).mul(100).round().div(100)}
        got = tensor(call(answer, **given), (d, width), "(d, d_k)", given, {(width, d): "This is the transpose."})
        k, r, C = (given[name].double() for name in "krC")
        direction = torch.linalg.solve(C, k)
        want = torch.outer(direction, r) / (k @ direction)
        mistakes = {
            "This is the smallest change as a matrix, with C left out. Small on the inputs is asked for.": (
                torch.outer(k, r) / (k @ k)
            ),
            "C stands where its inverse should. An input direction that is common makes a change there costly, so the "
            "change avoids it.": torch.outer(C @ k, r) / (k @ C @ k),
            "k @ change is not r: divide by k C^-1 k.": torch.outer(direction, r),
            "The denominator is that of the other formula; it is k C^-1 k.": torch.outer(direction, r) / (k @ k),
        }
        rule = "It does not turn k into r." if not same(k @ got, r) else "k @ change is r, and it is not the smallest."
        expect(got, want, mistakes, f"{rule} Set the derivative of tr(D^T C D) - (k D - r) mu to zero.", given)
    return None


ONE, TWO, HEAD = "the old dog slept .", "the old fox slept .", ("encoder", 5, 1)


@cache
def _translations() -> tuple:
    """Return a function from positions to the patched translation of ONE, and what both sentences give unpatched."""
    model, tokenizer = ht.load()
    with torch.no_grad(), ht.record(model, want="z", only=[HEAD[:2]]) as there:
        model.get_encoder()(**tokenizer([TWO], return_tensors="pt"))

    def patched(positions: frozenset) -> list[str]:
        with ht.patch(model, [HEAD], there, sorted(positions)):
            return ht.translate(model, tokenizer, [ONE])[0].split()

    return patched, [text.split() for text in ht.translate(model, tokenizer, [ONE, TWO])]


def _position(answer: Any) -> str | None:
    """positions: the tokens of ONE at which the head is patched so that only the word for *old* changes, as in TWO."""
    listed = answer.tolist() if hasattr(answer, "tolist") else answer
    try:
        listed = [operator.index(listed)] if not isinstance(listed, (list, tuple, set, frozenset)) else listed
        positions = frozenset(operator.index(p) for p in listed if not isinstance(p, bool))
    except TypeError:
        raise Hint(f"A list of positions is asked for, such as [4]; this is {article(answer)}.") from None
    words = ONE.split()
    if not positions:
        return "The list is empty, so nothing is patched."
    if not all(0 <= p <= len(words) for p in positions):  # the end mark is a token, too
        return f"The words of {ONE!r} have the positions 0 to {len(words) - 1}."
    patched, (first, second) = _translations()
    old = len(first) - 2  # the other language puts the adjective behind its noun
    if patched(positions) == [*first[:old], second[old], *first[old + 1 :]]:
        return None
    if words.index("dog") in positions:
        return "The noun is where this head looks. It writes what it found where it looks from."
    if words.index("old") not in positions:
        return "The word for 'old' has not changed. Which word does the head look from, when it tells 'old' its gender?"
    return f"Now more than one word is changed: the translation is {' '.join(patched(positions))!r}. Patch fewer."


EXERCISES = (
    Exercise("11.patch", "give a head another run's output", _patch, "patch", ("patch",)),
    Exercise("11.logit_difference", "one word against another", _difference, "logit_difference"),
    Exercise("11.moved", "how far a run moves", _moved, "moved"),
    Exercise("11.remove", "let a head not write a direction", _remove, "remove_direction", ("edit",)),
    Exercise("11.position", "where to patch", _position),
    Exercise("11.rewrite", "rewrite one fact", _rewrite, "rewrite"),
)
