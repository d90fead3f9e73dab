"""What a translation says, word by word, in English: for readers who do not speak a language that nobody speaks."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from headtools.organism.features import said
from headtools.organism.vocabulary import vocabulary

# How a feature is called where it is worth a word; a singular, a plain neighbour, no case go without saying.
_SHORT = {
    "gender": "gender {}",
    "number": {"plural": "plural"},
    "case": {"agent": "agent", "oblique": "oblique"},
    "family": "{}-verb",
    "object": {"animate": "animate object"},
    "topic": "{}",
    "left": {"accented": "accent before"},
    "right": {"accented": "accent after"},
}


@dataclass(frozen=True, repr=False)
class Gloss:
    """A translation with its meaning: ``lines`` has (word, meaning, features, what is wrong with it) for each word."""

    lines: tuple[tuple[str, str, str, str], ...]

    def __repr__(self) -> str:
        widths = [max(len(line[i]) for line in self.lines) for i in range(3)]
        rows = [[text.ljust(width) for text, width in zip(line, widths, strict=False)] for line in self.lines]
        wrong = [f"  ✗ {line[3]}" if line[3] else "" for line in self.lines]
        return "\n".join(("  ".join(row) + mark).rstrip() for row, mark in zip(rows, wrong, strict=True))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        cells = "".join(_cell(*map(html.escape, line)) for line in self.lines)
        return {"text/html": f'<div style="line-height:1.3">{cells}</div>', "text/plain": repr(self)}


def gloss(translation: str, right: str | None = None) -> Gloss:
    """Say what a translation by the organism says: for each word its English original and what it tells beside that.

    ``right``: the right translation, word by word; where they differ, the gloss says in what. A word that the language
    does not have is said to be unknown.

    >>> gloss("s'guta rvoli", right="s'gute rvoli")
    s'guta  shouted  gender a, accent before  ✗ gender a, should be e
    rvoli   some     gender o, plural, city
    """
    words = translation.split()
    expected = words if right is None else right.split()
    expected = [*expected, *[""] * (len(words) - len(expected))]
    return Gloss(tuple(_line(word, should) for word, should in zip(words, expected, strict=False)))


def _line(word: str, should: str) -> tuple[str, str, str, str]:
    features = said(word)
    short = []
    for name, form in _SHORT.items():
        value = features.get(name, "none")
        text = form.format(value) if isinstance(form, str) else form.get(value, "")
        short += [text] * bool(text and value != "none")
    return word, _meaning(word), ", ".join(short), "" if word == should else _mistake(word, should)


def _meaning(word: str) -> str:
    features = vocabulary().get(word, ())
    return next((f.removeprefix("word ") for f in features if f.startswith("word ")), word if features else "?")


def _mistake(word: str, should: str) -> str:
    if not should:
        return "one word too many"
    if _meaning(word) != _meaning(should):
        return f"should be {_meaning(should)}"
    is_said, wanted = said(word), said(should)
    wrong = [
        f"{name} {is_said.get(name)}, should be {wanted[name]}" for name in wanted if is_said.get(name) != wanted[name]
    ]
    return "; ".join(wrong) or f"should be {should}"


def _cell(word: str, meaning: str, features: str, wrong: str) -> str:
    edge = "#D55E00" if wrong else "transparent"
    last = f"<br><small>✗ {wrong}</small>" if wrong else ""
    return (
        f'<span style="display:inline-block;vertical-align:top;margin:.2em .6em .4em 0;border-left:3px solid {edge};'
        f'padding-left:.3em"><b>{word}</b><br>{meaning}<br><small>{features}</small>{last}</span>'
    )
