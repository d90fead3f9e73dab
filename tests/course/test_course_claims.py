"""The claims of all lessons in one table: complete, filtered by verdict, topic and word, readable without a kernel."""

import configparser
import re
from pathlib import Path

import pytest

import headtools as ht
from headtools.course import catalogue
from headtools.course.course_claims import TOPICS, CourseClaim, CourseClaims

A = CourseClaim("Heads <b>fly</b>.", "a page", "wrong", "They do not.", "contradicted", "gates", "09")
B = CourseClaim("Heads attend.", "a paper", "right", "Section 1.", "right", "pruning", "10")


def test_every_claim_of_every_catalogue_is_there():
    written = [row["claim"] for number in TOPICS for row in rows(number)]
    assert [claim.claim for claim in ht.ledger()] == written
    assert len(written) > 50


def rows(number):
    try:
        return catalogue.lesson(number).get("others", [])
    except KeyError:
        return []


def test_filters_are_joined():
    claims = CourseClaims([A, B])
    assert list(claims.filtered("wrong")) == [A]
    assert list(claims.filtered("contradicted")) == [A], "the verdict here counts as well"
    assert list(claims.filtered(topic="pruning")) == [B]
    assert list(claims.filtered("wrong", "pruning")) == []
    assert list(claims.filtered(word="ATTEND")) == [B]
    assert list(claims.filtered(word="they do")) == [A]
    with pytest.raises(ValueError, match="got verdict 'false'; expected 'all' or one of 'right'"):
        claims.filtered("false")
    with pytest.raises(ValueError, match="got topic 'cooking'"):
        claims.filtered(topic="cooking")


def test_text_of_claims_is_escaped_and_counted():
    claims = CourseClaims([A, B])
    assert "&lt;b&gt;fly" in claims.table()
    assert "<b>fly" not in claims.table() + claims.by_topic() + claims.counts()
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", claims.counts())
    assert cells[:3] == ["gates", "0", "0"]
    assert cells[-6:] == ["all topics", "1", "0", "1", "0", "0"]


def test_the_controls_filter_what_is_shown():
    widget = CourseClaims([A, B]).widget()
    verdict, topic, word, shown = widget.children
    assert "attend" in shown.value
    verdict.value = "wrong"
    assert "fly" in shown.value
    assert "attend" not in shown.value
    topic.value = "pruning"
    assert "No claim passes" in shown.value
    verdict.value, word.value = "all", "attend"
    assert "attend" in shown.value
    assert 'aria-live="polite"' in shown.value


def test_another_lessons_catalogue_does_not_change_what_is_compared(monkeypatch):
    """What is displayed before and after a change of a claim is the same for strict nbval."""
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[1] / "sanitize.cfg")
    section = config["course-claims"]
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **how: shown.append(data))
    for claims in ([A, B], [A]):
        CourseClaims(claims)._ipython_display_()
    first, _, second, _ = shown
    assert first["text/html"] != second["text/html"]
    assert first["text/plain"] == second["text/plain"]
    cut = [re.sub(section["regex"], section["replace"], data["text/html"]) for data in (first, second)]
    assert cut[0] == cut[1]
    assert "fly" not in cut[0]
