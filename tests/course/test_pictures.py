"""In a notebook scores, sites, roles and a verification are drawn; hovering a head gives the code that picks it."""

import html
import re
from xml.etree import ElementTree

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from headtools.course.pictures import MOST, roles_html, verified_html
from headtools.heads.scores import HeadScores
from headtools.heads.sites import sites
from headtools.heads.verify import Verification

HOSTILE = "<script>alert(1)</script>&\"'"


def drawings(page):
    """The drawings of a page: (squares or bars by what hovering tells, texts) each. They are well-formed."""
    assert "<script" not in page
    found = []
    for svg in re.findall(r"<svg.*?</svg>", page, re.S):
        root = ElementTree.fromstring(svg)
        assert root.get("aria-label")
        found.append(({box[0].text: box for box in root.iter("rect")}, [text.text for text in root.iter("text")]))
    return found


@pytest.fixture
def scores():
    draw = torch.Generator().manual_seed(0)
    rows = {
        ("encoder", 0): torch.randn(50, 3, generator=draw) + 5,
        ("encoder", 1): torch.randn(50, 2, generator=draw) - 9,
    }
    return HeadScores.from_rows(rows, name=HOSTILE)


def test_hovering_a_head_gives_the_code_that_picks_it(scores):
    (squares, _), (bars, names) = drawings(scores._repr_html_())
    assert len(squares) == len(scores) == len(bars)
    for told in squares:
        code, value, low, high = re.fullmatch(r"(scores\[.*\]): (\S+), (\S+) to (\S+)", told).groups()
        assert eval(code, {"scores": scores}) == pytest.approx(float(value), rel=0.01)
        assert float(low) < float(value) < float(high)
    assert f"encoder 0.{scores.top(1)[0][2]}" == names[0]
    assert html.escape(repr(scores)) in scores._repr_html_()
    assert repr(scores).startswith("<HeadScores")  # the plain text is what it was


def test_scores_without_intervals_of_zero_and_of_very_many_heads():
    zero = HeadScores({("a<b", "encoder", 0): torch.zeros(2)})
    (squares, names), _ = drawings(zero._repr_html_())
    assert list(squares) == [f'scores["a<b", "encoder", 0, {head}]: 0' for head in range(2)]
    assert names == ["a<b encoder 0"]
    assert HeadScores({("encoder", 0): torch.zeros(MOST + 1)})._repr_html_() is None  # then the text is shown


def test_sites_are_drawn_in_groups():
    config = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "vocab_size": 9}
    model = LlamaModel(LlamaConfig(**config, num_attention_heads=4, num_key_value_heads=2))
    ((squares, names),) = drawings(sites(model)._repr_html_())
    assert list(squares)[:2] == ['{("decoder", 0): [0]}', '{("decoder", 0): [1]}']
    assert names == ["decoder 0", "decoder 1"]
    shades = [box.get("fill-opacity") for box in squares.values()]
    assert shades[0] == shades[1] != shades[2] == shades[3]


def test_roles_show_the_best_head_beside_its_baseline():
    row = {"kind": "encoder", "baseline": 0.3, "baseline_rule": HOSTILE, "low": 0.5, "high": 0.9}
    table = pd.DataFrame(
        [
            {**row, "layer": 1, "head": 0, "role": HOSTILE, "score": 0.6},
            {**row, "layer": 2, "head": 3, "role": HOSTILE, "score": 0.7},
            {**row, "layer": 0, "head": 0, "role": "rarity", "score": 6.1},  # in nats
        ]
    )
    ((bars, texts),) = drawings(roles_html(table))
    assert list(bars) == [f'"encoder", 2, 3: 0.7, {HOSTILE} 0.3']
    assert texts == [f"{HOSTILE}: encoder 2.3", "0.7"]


def test_a_verification_marks_what_fails():
    found = {("encoder 0", "kind"): "", ("encoder 0", "sum"): f"is ok  {HOSTILE}"}
    page = verified_html(Verification(found, (), "today", {"torch": "1"}))
    assert page.count(">ok</b>") == page.count(">FAILS</b>") == 1
    assert "<script" not in page
    assert html.escape(HOSTILE) in page


def test_what_is_taken_from_a_table_of_roles_is_a_plain_frame():
    from headtools.roles._role_table import RoleTable

    table = RoleTable({"role": ["x"], "score": [0.5], "baseline": [0.1], "baseline_rule": ["even"]} | KEYS)
    assert "<svg" in table._repr_html_()
    assert "<details><summary>Table</summary>" in table._repr_html_()
    assert type(table[table.score > 0]) is pd.DataFrame


KEYS = {"kind": ["encoder"], "layer": [0], "head": [1], "low": [float("nan")], "high": [float("nan")]}


def test_without_the_guest_that_draws_a_notebook_shows_the_text(scores, monkeypatch):
    from headtools.roles._role_table import RoleTable

    monkeypatch.setattr("headtools.DRAWINGS", "no_such_guest.pictures")
    assert scores._repr_html_() is None
    assert RoleTable({"role": ["x"]})._repr_html_() == pd.DataFrame({"role": ["x"]})._repr_html_()
