"""How well a model translates: BLEU by split, accuracy by what a word needs to know, and a grid of length and depth."""

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from itertools import islice

import torch
from torch import nn

import headtools as ht
from headtools.organism.evaluate import corpus_bleu
from headtools.organism.second.grammar import HARD
from headtools.organism.second.language import corpus, sentences
from headtools.organism.second.translation import PHENOMENA
from headtools.roles.sentence import Sentence
from recipes._results import interval
from recipes.second_organism.measures._words import by_sentence, right_words, share, table

SPLITS = {"validation": 1_000, "test": 1_000, "hard": 1_000}
LENGTHS = ((8, 13), (14, 19), (20, 26), (27, 35), (36, 44))
SEEN = 26  # words of the longest training sentence; its depth is at most 1
CELL, DRAWN = 100, 12_000  # sentences in a cell of the grid, and sentences drawn to fill it
NESTED = ("nmod", "acl")


def depth(sentence: Sentence) -> int:
    """How many noun phrases and relative clauses stand one inside the other, at most.

    >>> [depth(sentence) for sentence in corpus("test", 3)]
    [1, 1, 1]
    """

    def above(word: int) -> int:
        head = sentence.heads[word]
        return (sentence.relations[word] in NESTED) + (above(head - 1) if head else 0)

    return max(map(above, range(len(sentence.words))))


@cache
def grid(cell: int = CELL, n_drawn: int = DRAWN) -> dict[tuple[tuple[int, int], int], list[Sentence]]:
    """Sentences by length and depth, from 0 or 1 to 3, all drawn in one style that the model was not trained on."""
    style = replace(HARD, shortest=LENGTHS[0][0], longest=LENGTHS[-1][1], depth=3, two_clauses=0.5)
    cells = defaultdict(list)
    for sentence in islice(sentences("test", style, stream=1), n_drawn):
        length = next(bounds for bounds in LENGTHS if len(sentence.words) <= bounds[1])
        sentences_of_cell = cells[length, max(1, depth(sentence))]
        if len(sentences_of_cell) < cell:
            sentences_of_cell.append(sentence)
    return dict(cells)


def measure(model: nn.Module, tokenizer: object, limit: int | None = None) -> dict:
    """BLEU and whole sentences right by split, accuracy by phenomenon and by role of a noun, and the grid."""
    splits = {}
    for split, n in SPLITS.items():
        given = corpus(split, min(n, limit or n))
        translations = ht.translate(model, tokenizer, [s.words for s in given])
        references = [" ".join(s.target) for s in given]
        exact = torch.tensor([a == b for a, b in zip(translations, references, strict=True)]).double()
        bleu = [round(x, 2) for x in corpus_bleu(translations, references)]
        accuracy = interval(by_sentence(right_words(model, given), given))
        splits[split] = {"sentences": len(given), "bleu": bleu, "whole": interval(exact), "accuracy": accuracy}
    test = corpus("test", min(1_000, limit or 1_000))
    right = right_words(model, test)
    needs = [needed for s in test for needed in (*s.phenomena, ())]
    nouns = [
        (s.relations[n - 1] if s.upos[n - 1] == "NOUN" else "") if n else "" for s in test for n in (*s.alignment, 0)
    ]
    cells = []
    for (length, deep), given in sorted(grid(min(CELL, limit or CELL), DRAWN if limit is None else 20 * limit).items()):
        accuracy = interval(by_sentence(right_words(model, given), given)) if len(given) >= 5 else None
        cells.append({"length": list(length), "depth": deep, "sentences": len(given), "accuracy": accuracy})
    return {
        "splits": splits,
        "phenomena": {name: share(right[[name in needed for needed in needs]]) for name in PHENOMENA},
        "nouns": {r: share(right[[r == noun for noun in nouns]]) for r in ("nsubj", "obj", "obl", "nmod")},
        "grid": cells,
    }


def bleu_of(row: dict) -> str:
    """BLEU and its interval as the card writes them."""
    return "{:.1f} ({:.1f}–{:.1f})".format(*row["bleu"])


def markdown(results: dict[str, dict]) -> str:
    """Tables of splits, of phenomena, and of the grid of the first model."""
    rows = [
        [name, split, f"{row['sentences']:,}", bleu_of(row), f"{row['whole'][0]:.1%}", f"{row['accuracy'][0]:.3f}"]
        for name, result in results.items()
        for split, row in result["splits"].items()
    ]
    out = [table(["model", "split", "sentences", "BLEU (95 %)", "whole sentences right", "word accuracy"], rows)]
    out += ["Accuracy on the test words that need to know something, given the right words so far:"]
    rows = [[p, *(f"{result['phenomena'][p]:.3f}" for result in results.values())] for p in PHENOMENA]
    rows += [
        [f"nouns that are {r}", *(f"{result['nouns'][r]:.3f}" for result in results.values())]
        for r in ("nsubj", "obj", "obl", "nmod")
    ]
    out += [table(["the word needs", *results], rows)]
    name, result = next(iter(results.items()))
    cells = {(tuple(cell["length"]), cell["depth"]): cell for cell in result["grid"]}
    depths = sorted({deep for _, deep in cells})
    count = Counter(deep for _, deep in cells)
    out += [
        f"*Hard* taken apart, {name}: word accuracy by length and by depth (how many noun phrases and relative "
        f"clauses stand one inside the other), up to {CELL} sentences a cell. In training: at most {SEEN} words, depth "
        "at most 1.",
        table(
            ["words", *(f"depth {'0 or 1' if d == 1 else d}" for d in depths if count[d])],
            [[f"{a} to {b}", *(cell_text(cells.get(((a, b), d))) for d in depths)] for a, b in LENGTHS],
        ),
    ]
    return "\n\n".join(out)


def cell_text(cell: dict | None) -> str | None:
    """Accuracy and its interval in a cell of the grid."""
    return None if not cell or cell["accuracy"] is None else "{:.3f} ({:.3f}–{:.3f})".format(*cell["accuracy"])
