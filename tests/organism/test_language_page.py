"""The page that explains the language: every example on it runs and prints what it says."""

import doctest
import re
from pathlib import Path

from headtools.organism import grammar, language, lexicon, translation

PAGE = Path(language.__file__).with_name("LANGUAGE.md")
FLAGS = doctest.NORMALIZE_WHITESPACE


def test_every_example_is_true():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, optionflags=FLAGS, encoding="utf-8")
    assert not failed, "the report is in the captured output"
    assert tried > 25


def test_every_example_is_fenced():
    """So that the page reads well where nothing runs it."""
    outside = re.sub(r"^```python\n.*?^```$", "", PAGE.read_text("utf-8"), flags=re.S | re.M)
    assert ">>>" not in outside


def test_what_it_says_of_numbers_outside_the_examples():
    text = PAGE.read_text("utf-8")
    ambiguous = [
        w
        for part in (lexicon.VERBS, lexicon.ADJECTIVES, lexicon.ADVERBS, lexicon.PREPOSITIONS)
        for w, lexeme in part.items()
        if len(lexeme.roots) > 1
    ]
    assert len(ambiguous) == 17
    assert "Seventeen words have four roots" in text
    assert f"There are {len(lexicon.TOPIC_OF_NAME)} names, {lexicon.NAMES_PER_TOPIC} for each topic" in text
    usual, hard = grammar.USUAL, grammar.HARD
    assert f"up to {usual.longest} words" in text
    assert f"{hard.shortest} to {hard.longest} words" in text
    assert f"| {language.SIZES['train']:,} |" in text
    assert all(f"{name} " in text for name in translation.PHENOMENA)
