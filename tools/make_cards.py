"""Make cards to learn by heart, a deck for Anki: the course's words, formulas and claims. ``make cards``.

    python tools/make_cards.py                  build/headtools.apkg
    python tools/make_cards.py --out FILE.apkg

In Anki: File, Import. Imported again after the course has changed, a card with the same front keeps its learner's
schedule and gets the new back. Nothing is written for the deck: the pages that learners look things up in have it.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import site_handouts  # noqa: E402

from headtools.course.claims import ledger  # noqa: E402

NOTEBOOKS = ROOT / "notebooks"
# Numbers that Anki knows a deck and a kind of card by: any, but the same for ever.
DECKS = {"Words": 1_930_417_001, "Formulas": 1_930_417_002, "Claims": 1_930_417_003}
KIND = 1_930_417_100
STYLE = (
    ".card { font: 1.25rem/1.5 sans-serif; text-align: center; max-width: 34em; margin: auto } small { opacity: .7 }"
)


@dataclass(frozen=True)
class Card:
    """One card: HTML of both sides, and the deck it is in. No two of a deck have the same front."""

    deck: str
    front: str
    back: str


def html(text: str) -> str:
    r"""Return a line of Markdown as Anki shows it: formulas in ``\(...\)``, code, emphasis; all else is text.

    >>> html("`z` is *after* $A < 1$")
    '<code>z</code> is <em>after</em> \\(A &lt; 1\\)'
    """
    parts = re.split(r"(\$[^$]+\$|`[^`]+`)", " ".join(text.split()))
    for at, part in enumerate(parts):
        if at % 2 == 0:
            part = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", part)  # links lead nowhere on a card
            parts[at] = re.sub(r"\*+([^*]+)\*+", r"<em>\1</em>", escape(part, quote=False))
        elif part[0] == "$":
            parts[at] = rf"\({escape(part[1:-1], quote=False)}\)"
        else:
            parts[at] = f"<code>{escape(part[1:-1], quote=False)}</code>"
    return "".join(parts)


def words(glossary: str) -> list[Card]:
    """Return a card for every word that the glossary explains."""
    found = re.findall(r"^(\S.*)\n: ((?:.+\n?)+)", glossary, re.M)
    return [Card("Words", html(word), html(meaning)) for word, meaning in found]


def formulas(sheet: str) -> list[Card]:
    """Return a card for every formula of the cheat sheet."""
    return [
        Card("Formulas", html(what), f"{html(formula)}<br><small>lesson {lesson}</small>")
        for what, formula, lesson in site_handouts.formulas(sheet)
    ]


def claims() -> list[Card]:
    """Return a card for every claim of others that a lesson weighs: is it so?"""
    cards = {}
    for one in ledger().rows:
        verdict, why = one["cited"]
        back = f"<b>{verdict}</b>: {html(why)}<br>In our models: <b>{one['here'][0]}</b>"
        front = f"{html(one['claim'])}<br><small>{html(one['source'])}</small>"
        cards.setdefault(front, Card("Claims", front, f"{back}<br><small>lesson {one['lesson']}</small>"))
    return list(cards.values())


def cards() -> list[Card]:
    """Return all cards, in the order of the pages. Raises ``ValueError`` where a page gives none or one twice."""
    glossary, sheet = ((NOTEBOOKS / f"{name}.md").read_text("utf-8") for name in ("glossary", "cheat_sheet"))
    found = [*words(glossary), *formulas(sheet), *claims()]
    for deck in DECKS:
        fronts = [card.front for card in found if card.deck == deck]
        if not fronts or len(set(fronts)) < len(fronts):
            raise ValueError(f"{deck}: {len(fronts)} cards, {len(set(fronts))} different fronts")
    return found


def write(made: list[Card], out: Path) -> None:
    """Write the cards as an Anki package."""
    import genanki  # here, as only this needs it

    sides = [{"name": "card", "qfmt": "{{front}}", "afmt": "{{FrontSide}}<hr id=answer>{{back}}"}]
    kind = genanki.Model(KIND, "headtools", fields=[{"name": "front"}, {"name": "back"}], templates=sides, css=STYLE)
    decks = {name: genanki.Deck(number, f"headtools::{name}") for name, number in DECKS.items()}
    for card in made:
        known_by = genanki.guid_for("headtools", card.deck, card.front)
        decks[card.deck].add_note(genanki.Note(kind, [card.front, card.back], guid=known_by))
    out.parent.mkdir(parents=True, exist_ok=True)
    genanki.Package(list(decks.values())).write_to_file(str(out))


def main() -> None:
    """Make the deck and tell where it is."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=ROOT / "build" / "headtools.apkg")
    out, made = options.parse_args().out.resolve(), cards()
    write(made, out)
    print(f"{out}: {len(made)} cards, to import into Anki", file=sys.stderr)


if __name__ == "__main__":
    main()
