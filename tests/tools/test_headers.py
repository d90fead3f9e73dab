"""The picture above each lesson: small, of our own data, and described."""

from xml.etree import ElementTree

import make_headers
import nbformat
import pytest

FROM_TABLES = ("03", "04", "06", "07", "10", "11", "12")  # the others run a model, which other machines round otherwise
SVG = "{http://www.w3.org/2000/svg}"


def test_every_lesson_has_its_own(root):
    for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        title, picture, _ = nbformat.read(path, as_version=4).cells[0].source.split("\n\n", 2)
        assert title.startswith(f"# {path.name[:2]} · ")
        assert picture == make_headers.markdown(path.name[:2])
    assert len({caption for _, caption, _ in make_headers.HEADERS.values()}) == 13


@pytest.mark.parametrize("lesson", make_headers.HEADERS)
def test_it_is_small_and_whole(lesson):
    path = make_headers.OUT / f"{lesson}.svg"
    assert path.stat().st_size < 15_000
    drawn = ElementTree.parse(path).getroot()
    assert {node.tag.removeprefix(SVG) for node in drawn.iter()} <= {
        "svg",
        "title",
        "desc",
        "rect",
        "path",
        "polyline",
        "text",
    }
    assert not any("href" in name or name.startswith("on") for node in drawn.iter() for name in node.attrib)
    caption = make_headers.HEADERS[lesson][1]
    assert drawn.find(f"{SVG}title").text == caption
    assert [text.text for text in drawn.iter(f"{SVG}text")][-1] == caption


@pytest.mark.parametrize("lesson", FROM_TABLES)
def test_it_is_what_the_tables_say(lesson):
    svg = (make_headers.OUT / f"{lesson}.svg").read_text("utf-8")
    assert make_headers.header(lesson) == svg, "write make picture"


@pytest.mark.parametrize("lesson", sorted(make_headers.HEADERS.keys() - set(FROM_TABLES)))
def test_it_can_be_drawn_again(lesson):
    svg = (make_headers.OUT / f"{lesson}.svg").read_text("utf-8")
    assert abs(len(make_headers.header(lesson)) - len(svg)) < 0.1 * len(svg), "write make picture"
