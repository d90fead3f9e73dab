"""Drawings as SVG files: valid XML whatever tokens hold, described, with every weight, written whole or not at all."""

import re
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import headtools as ht
from headtools.course.svg import Drawing, cells

from ..hostile import HOSTILE

NAME = "{http://www.w3.org/2000/svg}"


def view(tokens=("a", "b", "c"), kind="head", **more):
    draw = torch.Generator().manual_seed(0)
    maps = [torch.rand(2, len(tokens), len(tokens), generator=draw).softmax(-1) for _ in range(3)]
    return ht.attention_view(maps, tokens, alt="Drawn at random.", kind=kind, limit=10**6, **more), maps


@pytest.mark.parametrize("kind", ["head", "model"])
def test_every_weight_has_its_line(kind, tmp_path):
    shown, maps = view(kind=kind)
    path = shown.svg(tmp_path / "view.svg")
    root = ElementTree.parse(path).getroot()
    lines = [path for path in root.iter(f"{NAME}path") if "stroke-opacity" in path.get("style", "")]
    drawn = [
        float(re.search(r"stroke-opacity:([\d.]+)", line.get("style"))[1])
        for line in lines
        for _ in range(line.get("d").count("L"))
    ]
    expected = torch.stack(maps).flatten().numpy().round(2)
    assert sorted(drawn) == pytest.approx(sorted(expected[expected >= 0.01].tolist()))
    words = [text.text for text in root.iter(f"{NAME}text")]
    assert all(token in words for token in "abc") is (kind == "head")
    assert [*tmp_path.iterdir()] == [path]


def test_it_is_described_for_those_who_cannot_see_it():
    root = ElementTree.fromstring(view()[0].svg())
    assert root.find(f"{NAME}title").text == "Attention, head view: 3 layers, 2 heads, 3 query tokens, 3 key tokens"
    assert root.find(f"{NAME}desc").text == "Drawn at random."
    named = root.get("aria-labelledby").split()
    assert {root.find(f"{NAME}title").get("id"), root.find(f"{NAME}desc").get("id")} == set(named)


def test_the_layers_and_heads_that_were_chosen():
    words = [text.text for text in ElementTree.fromstring(view(layers=[2], heads=[1])[0].svg()).iter(f"{NAME}text")]
    assert "layer 2" in words
    assert "layer 0" not in words
    assert words[:2] == ["heads", "1"]


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_tokens_hold_the_file_is_xml(name, monkeypatch):
    still = "headtools.course.attention_view.map_grid"  # another picture, that of a page without its frame
    monkeypatch.setattr(still, lambda *args, **options: plt.figure(figsize=(1, 1)))
    bad = HOSTILE[name] + "\ufffe"
    root = ElementTree.fromstring(view(("a", bad))[0].svg())
    assert {element.tag.removeprefix(NAME) for element in root.iter()} <= {
        "svg",
        "title",
        "desc",
        "style",
        "rect",
        "text",
        "path",
    }


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    shown, _ = view()
    with pytest.raises(ValueError, match=r"write 'view\.svg'"):
        shown.svg(tmp_path / "view.png")
    with pytest.raises(FileNotFoundError, match="mkdir -p"):
        shown.svg(tmp_path / "no" / "view.svg")
    (tmp_path / "view.svg").write_text("old")
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        shown.svg(tmp_path / "view.svg")
    assert (tmp_path / "view.svg").read_text() == "old"
    assert len([*tmp_path.iterdir()]) == 1


def test_any_figure_can_be_a_file(tmp_path):
    figures = [ht.plot.maps(torch.eye(3)[None], ["a", "<b>", "c"]) for _ in range(2)]
    one = ht.plot.svg(figures[0], tmp_path / "one.svg", alt="Each word <looks> at itself.")
    two = ht.plot.svg(figures[1], tmp_path / "two.svg", alt="Each word <looks> at itself.", title="one")
    plt.close("all")
    assert one.read_bytes() == two.read_bytes()
    root = ElementTree.parse(one).getroot()
    assert (root[0].text, root[1].text) == ("one", "Each word <looks> at itself.")
    assert "<b>" in [text.text for text in root.iter(f"{NAME}text")]  # text, not outlines
    with pytest.raises(ValueError, match="empty alt"):
        ht.plot.svg(figures[0], tmp_path / "three.svg", alt=" ")


def test_cells_of_a_large_map_are_as_dark_as_those_of_a_small_one():
    table = np.linspace(0, 1, 16).reshape(4, 4)
    small, large = Drawing(40, 40), Drawing(40, 40)
    cells(small, table, 0, 0, 10, 1.0, list("abcd"), list("abcd"))
    cells(large, table, 0, 0, 10, 1.0)
    shade = re.compile(r'fill-opacity="([\d.]+)"')
    first = [float(number) for number in shade.findall(small.inline("alt"))]
    pieces = re.findall(r'<path d="([^"]+)" class="mark" fill-opacity="([\d.]+)"', large.inline("alt"))
    second = [float(number) for d, number in pieces for _ in range(d.count("M"))]
    assert first == pytest.approx([round(value, 2) for value in table.flatten()[1:]])
    assert len(first) == len(second)
    assert all(0 <= b - a < 1 / 16 + 0.01 for a, b in zip(sorted(first), sorted(second), strict=True))
