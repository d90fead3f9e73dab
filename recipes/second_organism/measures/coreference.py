"""Do heads find a pronoun's antecedent, or the noun that a surface rule names? Heads beside four rules.

The rules know the words before the pronoun and no grammar: *nearest* takes the last noun, *nearest fitting* and *first
fitting* the last and the first that may be called by this pronoun, and *look-up* the noun whose word is likeliest with
the pronoun's form in 8,000 training sentences. Two more show how hard it is: *look-up with places* also knows the
distance to the pronoun and to the start, and *grammar* takes the first fitting subject or object.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtools.organism.lexicon import NOUNS, plain
from headtools.organism.roles_found import argmax_keys, observe, wilson
from headtools.organism.second.language import corpus
from headtools.roles.sentence import Sentence
from recipes.second_organism.measures._words import right_words, share, table

SENTENCES, FITTED_ON, MOST = 2_000, 8_000, 12  # MOST: nouns before a pronoun that look-up considers
FORMS = {"she": 0, "her": 0, "it": 1, "they": 2, "them": 2}
RULES = ("nearest", "nearest fitting", "first fitting", "look-up")
BEYOND = ("look-up with places", "grammar")
_FORM_OF = {noun.word: 0 if noun.kind == "person" else 1 for noun in NOUNS.values()}
_FORM_OF |= {noun.plural: 2 for noun in NOUNS.values()}


class Pronoun:
    """A pronoun with the nouns before it; places are counted from 0."""

    def __init__(self, sentence: Sentence, place: int) -> None:
        words = [plain(word) for word in sentence.words]
        self.place, self.form = place, FORMS[words[place]]
        self.noun = sentence.coreference[place] - 1
        self.cell = f"{sentence.relations[place]}, meant: {sentence.relations[self.noun]}"
        self.places = [j for j in range(place) if sentence.upos[j] in ("NOUN", "PROPN")]
        self.types = [None if sentence.upos[j] == "PROPN" else words[j] for j in self.places]
        self.fitting = [
            j
            for j, word in zip(self.places, self.types, strict=True)
            if (0 if word is None else _FORM_OF[word]) == self.form
        ]
        self.grammar = [j for j in self.fitting if sentence.relations[j] in ("nsubj", "obj")]


def pronouns(sentences: Sequence[Sentence]) -> list[tuple[int, int, Pronoun]]:
    """Each pronoun with the numbers of its sentence and of its first word in the corpus.

    >>> [pronoun.cell for _, _, pronoun in pronouns(corpus("test", 3))]
    ['nsubj, meant: nsubj']
    """
    out, start = [], 0
    for sentence_index, sentence in enumerate(sentences):
        out += [(sentence_index, start, Pronoun(sentence, i)) for i, noun in enumerate(sentence.coreference) if noun]
        start += len(sentence.words)
    return out


def features(given: Sequence[Pronoun], types: dict) -> tuple[Tensor, ...]:
    """Of each noun before each pronoun (P, MOST): its type with the form, its places, whether it is there; the noun."""
    kind, there = torch.zeros(len(given), MOST, dtype=torch.long), torch.zeros(len(given), MOST, dtype=torch.bool)
    places, gold = torch.zeros(len(given), MOST, 2, dtype=torch.long), torch.zeros(len(given), dtype=torch.long)
    for row, p in enumerate(given):
        last = p.places[-MOST:]  # the nearest ones, where there are more
        for column, (j, word) in enumerate(zip(last, p.types[-MOST:], strict=True)):
            kind[row, column], there[row, column] = types.get((p.form, word), 0), True
            places[row, column] = torch.tensor([min(j, 29), min(p.place - j, 29)])
            if j == p.noun:
                gold[row] = column
    return kind, places, there, gold


@cache
def look_up(with_places: bool, fitted_on: int = FITTED_ON) -> Callable[[Sequence[Pronoun]], Tensor]:
    """Fit a look-up table by maximum likelihood; returns what chooses a place for each pronoun."""
    given = [p for _, _, p in pronouns(corpus("train", fitted_on))]
    types = {pair: i + 1 for i, pair in enumerate(sorted({(p.form, str(w)) for p in given for w in p.types}))}
    types = {(form, None if word == "None" else word): i for (form, word), i in types.items()}
    by_type, by_place = torch.zeros(len(types) + 1, requires_grad=True), torch.zeros(2, 30, requires_grad=True)

    def score(kind: Tensor, places: Tensor, there: Tensor) -> Tensor:
        values = by_type[kind]
        if with_places:
            values = values + by_place[0][places[..., 0]] + by_place[1][places[..., 1]]
        return values.masked_fill(~there, -1e9)

    *train_inputs, gold = features(given, types)
    optimizer = torch.optim.Adam([by_type, by_place], lr=0.05)
    for _ in range(200):
        loss = F.cross_entropy(score(*train_inputs), gold) + 1e-5 * by_type.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def choose(unresolved: Sequence[Pronoun]) -> Tensor:
        *inputs, _ = features(unresolved, types)
        columns = score(*inputs).argmax(1)
        return torch.tensor([p.places[-MOST:][i] for p, i in zip(unresolved, columns.tolist(), strict=True)])

    return choose


def rule(name: str, given: Sequence[Pronoun], fitted_on: int = FITTED_ON) -> Tensor:
    """The place that a rule names for each pronoun."""
    if name.startswith("look-up"):
        return look_up(name == "look-up with places", fitted_on)(given)
    choose = {
        "nearest": lambda p: p.places[-1],
        "nearest fitting": lambda p: p.fitting[-1],
        "first fitting": lambda p: p.fitting[0],
        "grammar": lambda p: p.grammar[0],
    }[name]
    return torch.tensor([choose(p) for p in given])


def measure(model: nn.Module, tokenizer: object, limit: int | None = None) -> dict:
    """Shares of pronouns whose antecedent rules and heads find; the heads are chosen on validation sentences."""
    n, fitted_on = min(SENTENCES, limit or SENTENCES), min(FITTED_ON, 40 * (limit or FITTED_ON))
    by_split = {}
    for split in ("validation", "test"):
        sentences = corpus(split, n)
        located = pronouns(sentences)
        words = torch.tensor([start + p.place for _, start, p in located])
        gold = torch.tensor([p.noun for _, _, p in located])
        keys = observe(model, tokenizer, sentences, argmax_keys)[:, :, words].flatten(0, 1)  # (head, pronoun)
        by_split[split] = located, gold, keys
    given = {split: [p for _, _, p in located] for split, (located, _, _) in by_split.items()}
    cells = sorted({p.cell for p in given["test"]})
    masks = {
        split: {cell: torch.tensor([p.cell == cell for p in of_split]) for cell in cells}
        for split, of_split in given.items()
    }
    hits = {split: keys == gold for split, (_, gold, keys) in by_split.items()}
    best = {"all": hits["validation"].float().mean(1).argmax().item()}
    for cell in cells:
        best[cell] = hits["validation"][:, masks["validation"][cell]].float().mean(1).argmax().item()
    rules = {name: rule(name, given["test"], fitted_on) == by_split["test"][1] for name in (*RULES, *BEYOND)}
    right = right_words(model, corpus("test", n))
    wrong_first = ~rules["first fitting"]
    starts, position = [], 0
    for sentence in corpus("test", n):
        starts.append({source_word - 1: position + i for i, source_word in enumerate(sentence.alignment)})
        position += len(sentence.target) + 1
    words = right[torch.tensor([starts[source_word][p.place] for source_word, _, p in by_split["test"][0]])]

    def row(name: str, correct: Tensor, head: int | None = None) -> dict:
        values = {cell: share(correct[masks["test"][cell]]) for cell in cells}
        low, high = wilson(correct.float().mean().item(), len(correct))
        return {
            "name": name,
            "head": None if head is None else f"{head // 8}.{head % 8}",
            "all": share(correct),
            "low": round(float(low), 4),
            "high": round(float(high), 4),
            "first fitting wrong": share(correct[wrong_first]),
            **values,
        }

    names = {"all": "best head", **{cell: f"best head for {cell}" for cell in cells}}
    return {
        "pronouns": len(rules["nearest"]),
        "cells": {cell: int(masks["test"][cell].sum()) for cell in cells},
        "rules": [row(name, correct) for name, correct in rules.items()],
        "heads": [row(names[cell], hits["test"][head], head) for cell, head in best.items()],
        "words right": row("the pronoun's own translation", words),
    }


def by_antecedent(row: dict, cells: dict[str, int]) -> dict[str, tuple[float, float, float, int]]:
    """Share, ends of its interval and number of pronouns by the role of the antecedent, whatever the pronoun's is.

    >>> row = {"nsubj, meant: obj": 0.5, "obj, meant: obj": 1.0, "obj, meant: nsubj": None}
    >>> found = by_antecedent(row, {"nsubj, meant: obj": 30, "obj, meant: obj": 10, "obj, meant: nsubj": 0})
    >>> {role: (round(share, 3), n) for role, (share, _, _, n) in found.items()}
    {'obj': (0.625, 40)}
    """
    out = {}
    for role in sorted({cell.split(": ")[1] for cell in cells}):
        counts = {cell: n for cell, n in cells.items() if cell.endswith(f": {role}") and n}
        if n := sum(counts.values()):
            share = sum(round(row[cell] * of_cell) for cell, of_cell in counts.items()) / n
            out[role] = (share, *map(float, wilson(share, n)), n)
    return out


def markdown(results: dict[str, dict]) -> str:
    """By the antecedent's role with intervals; then by the relations of pronoun and antecedent, without them."""
    first = next(iter(results.values()))
    cells = first["cells"]
    lines = [(f"rule: {row['name']}", row) for row in first["rules"]]
    for name, result in results.items():
        heads = {}
        for row in result["heads"]:
            heads.setdefault(row["head"], []).append(row)
        for head, same_head in heads.items():
            cells_won = [row["name"].removeprefix("best head").removeprefix(" for ") or "all" for row in same_head]
            title = "best head" if "all" in cells_won else f"best head for {'; '.join(cells_won)}"
            lines.append((f"{name}: {title}, {head}", same_head[0]))
        lines.append((f"{name}: {result['words right']['name']}", result["words right"]))
    text = "{:.3f} ({:.3f}–{:.3f})".format
    roles = {role: n for role, (*_, n) in by_antecedent(first["rules"][0], cells).items()}
    titles = {"nsubj": "antecedent is a subject", "obj": "antecedent is an object"}
    short = [
        [
            name,
            text(row["all"], row["low"], row["high"]),
            *(text(*by_antecedent(row, cells)[role][:3]) for role in roles),
        ]
        for name, row in lines
    ]
    keys = ["first fitting wrong", *cells]
    long = [[name, *(None if row[key] is None else f"{row[key]:.3f}" for key in keys)] for name, row in lines]
    best = max(row["all"] for row in first["rules"] if row["name"] in RULES)
    ahead = ", ".join(f"{name} {100 * (result['heads'][0]['all'] - best):+.1f}" for name, result in results.items())
    return "\n\n".join(
        [
            table(
                ["", f"all (n {first['pronouns']})", *(f"{titles.get(r, r)} (n {n})" for r, n in roles.items())], short
            ),
            f"Points by which the best single head is ahead of the best of the four surface rules: {ahead}.",
            table(["", "where *first fitting* is wrong", *(f"{c} (n {n})" for c, n in cells.items())], long),
        ]
    )
