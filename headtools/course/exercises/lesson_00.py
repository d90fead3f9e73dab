"""Exercises of lesson 00: count the heads of the shipped model, switch heads off for real, count right words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headtools.course import my_heads
from headtools.course.exercises.exercise import Exercise, Hint, NotTried, article, call, expect, same, show, tensor

LAYERS, HEADS, WIDTH = 6, 8, 128  # of the shipped model
KINDS = ("encoder", "decoder", "cross")


def _count(answer: Any) -> str | None:
    """The number of heads of the shipped model, as {"encoder": n, "decoder": n, "cross": n}."""
    right = LAYERS * HEADS
    if answer == 3 * right:
        return "That is all of them together. Give the three kinds apart: {'encoder': n, 'decoder': n, 'cross': n}."
    if not isinstance(answer, Mapping):
        raise Hint(f"A dict is asked for, {{'encoder': n, 'decoder': n, 'cross': n}}; this is {article(answer)}.")
    if any(n is None or n is ... for n in answer.values()):
        raise NotTried
    if set(answer) != set(KINDS):
        return f"The keys should be 'encoder', 'decoder' and 'cross'; yours are {', '.join(map(repr, answer))}."
    for kind in KINDS:
        if isinstance(answer[kind], str):
            raise Hint(f"{kind}: a number is asked for, this is a str, {answer[kind]!r}: leave out the quotes.")
    mistakes = {
        2 * right: "Two kinds are taken for one. A decoder layer has two: one to itself, one across to the encoder.",
        3 * right: "That is all three kinds together; each kind has a third of them.",
        LAYERS: "That is the number of layers. Each layer has several heads of this kind.",
        HEADS: "That is the number of heads in one layer. There are several layers.",
        WIDTH: "That is d_model, the width of a token's vector; the heads of a layer share it out.",
        WIDTH // HEADS: "That is d_head, the width of one head.",
        LAYERS * WIDTH: "That is layers times width. Each layer shares its width out over its heads: count the heads.",
    }
    for kind in KINDS:
        if answer[kind] != right:
            hint = mistakes.get(
                answer[kind], "The number of layers times the number of heads in a layer: see ht.sites(model)."
            )
            return f"{kind}: {answer[kind]} is not it. {hint}"
    return None


def _switch_off(answer: Any) -> str | None:
    """switch_off(model, heads): a context manager inside which these heads are off, {("encoder", 2): [0, 5]}."""
    for heads in ({("encoder", 1): [0]}, {("encoder", 0): [3], ("decoder", 1): [1, 2], ("cross", 1): [0]}):
        model, batch = tiny_translator()
        on, off = outputs(model, batch), outputs(_without(model, heads), batch)
        example = f"\nSee it for heads = {heads}."
        with entered(answer, model, heads=heads):
            got = outputs(model, batch)
        if same(got, on):
            return (
                "Every head is on inside the block. A hook is registered before the yield, and a pre-hook returns the "
                f"new arguments, as a tuple.{example}"
            )
        if not same(got, off):
            return _other_heads(model, batch, heads, got) + example
        run = partial(outputs, model, batch)
        restored(run, on, "the heads are still off")
    restored_after_error(answer, model, run, on, "the heads off", heads=heads)
    model.set_attn_implementation("sdpa")
    with entered(answer, model, heads={("encoder", 0): [3]}):
        try:
            model(**batch).logits.sum().backward()
        except RuntimeError:
            return (
                "With a gradient the model stops: the hook writes into a tensor that attention still needs. Change a "
                "copy of it, and return that."
            )
    first, last = {("encoder", 0): [3]}, {("encoder", 0): [1]}
    with entered(answer, model, heads=first), entered(answer, model, heads=last):
        got = outputs(model, batch)
    if not same(got, outputs(_without(model, {("encoder", 0): [1, 3]}), batch)):
        return "One switch_off inside another: the heads of both should be off. Does one hook undo what the other did?"
    return None


@contextmanager
def entered(answer: Any, model: nn.Module, **given: Any) -> Iterator[Any]:
    """Enter the learner's context; errors of its own, on the way in and while the model runs, become hints."""
    context = call(answer, model=model, **deepcopy(given))
    if inspect.isgenerator(context):
        raise Hint("This is a generator. Write @contextmanager above the function, and it works with 'with'.")
    if not hasattr(context, "__enter__"):
        raise Hint(f"A context manager is asked for, with a yield where the block runs; this is {article(context)}.")
    if hasattr(context, "gen") and not inspect.unwrap(answer).__code__.co_names:  # nothing but a yield
        raise NotTried
    try:
        with context as value:
            yield value
    except (ZeroDivisionError, Hint):  # the judge's own
        raise
    except Exception as error:
        example = f"\nfor {show(given)}" if given else ""
        raise Hint(f"Inside the block came {type(error).__name__}: {error}{example}") from error


def restored(run: Callable[[], Tensor], before: Tensor, left: str) -> None:
    """Raise Hint where a model no longer gives after a block what it gave before; ``left`` as "heads are still off"."""
    if not same(run(), before, 1e-6):
        raise Hint(f"After the block {left}. Remove each hook after the yield: hook.remove()")


def restored_after_error(
    answer: Any, model: nn.Module, run: Callable[[], Tensor], before: Tensor, left: str, **given: Any
) -> None:
    """Raise Hint where an error inside the learner's context leaves a changed model; ``left`` as "heads off"."""
    with suppress(ZeroDivisionError), entered(answer, model, **given):
        raise ZeroDivisionError
    if not same(run(), before, 1e-6):
        raise Hint(
            f"An error inside the block leaves {left} for good. Put the yield into try: and the removing into "
            "finally:, which runs in any case."
        )


def _other_heads(model: nn.Module, batch: dict[str, Tensor], heads: Mapping, got: Tensor) -> str:
    """The hint for logits that belong to other heads."""

    def shifted(up: int, along: int) -> dict:
        return {(kind, layer + up): [h + along for h in numbers] for (kind, layer), numbers in heads.items()}

    first, *_, last = [*heads, *heads]
    tried = [
        ("Another layer is off. Layers count from 0: ('encoder', 1) is the second.", shifted(1, 0)),
        ("Another layer is off. Layers count from 0: ('encoder', 1) is the second.", shifted(-1, 0)),
        ("Another head is off. Heads count from 0.", shifted(0, 1)),
        ("Another head is off. Heads count from 0.", shifted(0, -1)),
        ("Another layer and head are off. Both count from 0.", shifted(1, 1)),
        ("Another layer and head are off. Both count from 0.", shifted(-1, -1)),
        (
            "The wrong way round: the heads named are on, the rest of their layer is off.",
            {site: [h for h in range(4) if h not in numbers] for site, numbers in heads.items()},
        ),
        ("Whole layers are off; only the heads named should be.", {site: range(4) for site in heads}),
        ("Only the first of the heads is off; there may be several, in several layers.", {first: heads[first][:1]}),
        ("Only the first head of each layer is off; there may be several.", {site: heads[site][:1] for site in heads}),
        (
            "Every layer loses the heads of the last. A function made in a loop sees the loop's variables as they are "
            "when it runs, which is later: give them to it as defaults, def hook(module, args, numbers=numbers).",
            dict.fromkeys(heads, heads[last]),
        ),
        ("Only the last layer's heads are off. Is there a hook for each?", {last: heads[last]}),
    ]
    by_token = _without_tokens(model, batch, heads)
    if same(got, by_token):
        return "Words are off in place of heads: z is (sentence, word, head, feature), so a head is z[:, :, head]."
    rows = _without(model, heads, rows=True)
    if same(got, outputs(rows, batch)):
        return "Rows of the weight are 0. z meets its columns: nn.Linear computes z @ weight.T, so a head owns columns."
    for hint, others in tried:
        there = all(0 <= layer < 3 for _, layer in others) and all(0 <= h < 4 for n in others.values() for h in n)
        if there and same(got, outputs(_without(model, others), batch)):
            return hint
    return "This is not the output of the model with these heads off."


def tiny_translator() -> tuple[nn.Module, dict[str, Tensor]]:
    """A random translation model of three layers and four heads, and one batch."""
    from transformers import MarianConfig, MarianMTModel

    size = {"d_model": 16, "vocab_size": 12, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    for stack in ("encoder", "decoder"):
        size |= {f"{stack}_layers": 3, f"{stack}_attention_heads": 4, f"{stack}_ffn_dim": 16}
    # Large random weights, so that one head more or less shows in every output.
    size |= {"attn_implementation": "eager"}  # whose layers return their maps
    config = MarianConfig(**size, max_position_embeddings=16, init_std=0.5, dropout=0.0, forced_eos_token_id=None)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MarianMTModel(config).eval()
    ids = {"input_ids": torch.tensor([[3, 7, 5, 1]]), "decoder_input_ids": torch.tensor([[0, 4, 9]])}
    return model, ids | {"attention_mask": torch.ones(1, 4, dtype=torch.long)}


def _without_tokens(model: nn.Module, batch: dict[str, Tensor], heads: Mapping) -> Tensor:
    """What comes out where z[:, heads] is 0, words in place of heads."""

    def without(z: Tensor, numbers: list[int]) -> Tensor:
        return z.index_fill(1, torch.tensor([number for number in numbers if number < z.shape[1]]), 0)

    with my_heads.edit(model, {key: partial(without, numbers=numbers) for key, numbers in heads.items()}):
        return outputs(model, batch)


def _without(model: nn.Module, heads: Mapping, rows: bool = False) -> nn.Module:
    """A copy with the heads' columns of the output projection zeroed: the judge's own way, apart from ht.ablate."""
    copy = deepcopy(model)
    for (kind, layer), numbers in heads.items():
        block = (copy.model.encoder if kind == "encoder" else copy.model.decoder).layers[layer]
        attention = block.encoder_attn if kind == "cross" else block.self_attn
        with torch.no_grad():
            for head in numbers:
                own = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
                attention.out_proj.weight[own if rows else (slice(None), own)] = 0
    return copy


@torch.no_grad()
def outputs(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Run a model without gradients; return its logits."""
    return model(**batch).logits


def _accuracy(answer: Any) -> str | None:
    """accuracy(logits, labels): the share of right words of each sentence, (B,); -100 is no word."""
    draw = torch.Generator().manual_seed(0)
    for sentences, words, vocabulary in ((3, 4, 5), (4, 6, 7)):
        logits = torch.randn(sentences, words, vocabulary, generator=draw)
        labels = logits.argmax(-1)
        labels[::2, 1] = (labels[::2, 1] + 1) % vocabulary  # some words are wrong,
        labels[0, 0] = (labels[0, 0] + 1) % vocabulary
        labels[1:, -1], labels[0, -2:] = -100, -100  # and sentences differ in length
        given = {"logits": logits, "labels": labels}
        real, hit = labels != -100, logits.argmax(-1) == labels
        want = hit.sum(1) / real.sum(1)
        shapes = {
            (): "This is one number for all sentences. Give one for each: sum over the words, the last axis of labels.",
            (words,): "This is a number for each place in the sentence. Sum over the words, not over the sentences.",
            (sentences, words): "This says for each word whether it is right. Give the share of each sentence.",
        }
        got = tensor(call(answer, **given), (sentences,), "one number per sentence", given, shapes)
        mistakes = {
            "Divided by all places, those of no word among them. -100 is no word: leave it out of the count.": (
                hit.float().mean(1)
            ),
            "Places of no word count as right. -100 is no word: leave it out of both counts.": (
                (hit | ~real).float().mean(1)
            ),
            "This is the number of right words. Divide by the number of words of the sentence.": hit.sum(1),
            "This is the share of wrong words.": 1 - want,
        }
        expect(got, want, mistakes, "Right words of each sentence, over its words that are not -100.", given)
    return None


EXERCISES = (
    Exercise("00.count", "count the heads", _count),
    Exercise("00.switch_off", "write the switch", _switch_off, "switch_off", ("ablate", "gates")),
    Exercise("00.accuracy", "right words", _accuracy, "accuracy"),
)
