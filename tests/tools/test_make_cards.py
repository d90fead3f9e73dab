"""The deck for Anki has what the pages have, shows it as text, and knows its cards again."""

import re
import sqlite3
import zipfile

import make_cards

from headtools.course.claims import ledger


def notes(package, folder):
    """{what Anki knows a card by: (front, back)} of a package."""
    with zipfile.ZipFile(package) as archive:
        archive.extract("collection.anki2", folder)
    with sqlite3.connect(folder / "collection.anki2") as base:
        return {guid: tuple(fields.split("\x1f")) for guid, fields in base.execute("select guid, flds from notes")}


def test_every_word_formula_and_claim_has_its_card(root):
    glossary, sheet = ((root / "notebooks" / f"{name}.md").read_text("utf-8") for name in ("glossary", "cheat_sheet"))
    made = make_cards.cards()
    count = {deck: sum(card.deck == deck for card in made) for deck in make_cards.DECKS}
    assert count["Words"] == len(re.findall(r"^: ", glossary, re.M))
    assert count["Formulas"] == sheet.split("\n## ")[1].count("\n|") - 2
    assert count["Claims"] == len({(one["claim"], one["source"]) for one in ledger().rows})


def test_no_markdown_is_left_and_formulas_are_for_anki():
    for card in make_cards.cards():
        shown = card.front + card.back
        assert not re.search(r"[`$]|\*\*|\]\(", shown), shown
        assert shown.count(r"\(") == shown.count(r"\)")
        assert set(re.findall(r"</?(\w+)", shown)) <= {"b", "br", "code", "em", "small"}


def test_a_card_whose_back_changes_is_the_same_card(tmp_path):
    one, other = (make_cards.Card("Words", "Head", back) for back in ("old", "new & better"))
    found = []
    for number, card in enumerate((one, other)):
        (tmp_path / str(number)).mkdir()
        make_cards.write([card, make_cards.Card("Claims", "Head", "so")], tmp_path / f"{number}.apkg")
        found.append(notes(tmp_path / f"{number}.apkg", tmp_path / str(number)))
    assert found[0].keys() == found[1].keys()
    assert len(found[0]) == 2, "two decks may have the same front"
    assert {back for _, back in found[1].values()} == {"new & better", "so"}
