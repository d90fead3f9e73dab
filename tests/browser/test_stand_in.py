"""The views' stand-in for d3 draws node for node what d3 5.7.0 draws, at first and after everything a hand can do.

Compared is what stands in for d3. What stands in for require.js and jQuery runs on both sides, and is not.
"""

import html
import os
import re
from importlib.util import find_spec
from itertools import pairwise, zip_longest
from pathlib import Path

import numpy as np
import pytest

from headtools.course.frame import View, view_html, view_script

pytestmark = pytest.mark.full

REQUIRED = os.environ.get("HEADTOOLS_REQUIRE_BROWSER") == "1"

# (query tokens, key tokens, layers, heads). Twelve heads: d3's ten colours begin again, and each is also lightened.
VIEWS = {
    "self": (["the", "<b>quick</b>", "brown", "&amp;"], None, 2, 12),
    "cross": (["le", "renard", "brun"], ["the", "quick", "brown", "fox", "."], 2, 3),
}

# What a hand does, in order: what, where, and which of the nodes there (or, in a menu, which entry).
LEFT, RIGHT, TILE, AWAY = "#left text", "#right text", "svg > g:last-child > rect", "body > p"
STEPS = [
    ("hover", LEFT, 1),
    ("hover", LEFT, 2),
    ("hover", RIGHT, 0),
    ("hover", AWAY, 0),
    ("click", TILE, 2),
    ("hover", LEFT, 1),
    ("dblclick", TILE, 1),  # this head alone
    ("select_option", "#layer", "1"),
    ("hover", RIGHT, 1),
    ("dblclick", TILE, 1),  # all heads again
    ("click", TILE, 0),
]

# The drawing as lines of text: namespace, name, attributes and text of each node, children indented. Two things are
# made alike: the order of a node's attributes, and the notation of a colour (d3 computes rgb(), the stand-in writes
# hsl(); Chromium tells which of 256 levels of red, green and blue it paints). Everything else is compared as it is.
SNAPSHOT = """() => {
    const probe = document.body.appendChild(document.createElement('i'));
    const colour = written => {
        probe.style.color = '';
        probe.style.color = written;
        return probe.style.color ? getComputedStyle(probe).color : `no colour: ${written}`;
    };
    const lines = [];
    const visit = (node, indent) => {
        if (node.nodeType !== Node.ELEMENT_NODE) { lines.push(indent + JSON.stringify(node.nodeValue)); return; }
        const attributes = [...node.attributes]
            .map(a => [a.name, ['fill', 'stroke'].includes(a.name) ? colour(a.value) : a.value])
            .sort((a, b) => a[0] < b[0] ? -1 : 1)
            .map(([name, value]) => ` ${name}=${JSON.stringify(value)}`);
        lines.push(`${indent}${node.namespaceURI} ${node.localName}${attributes.join('')}`);
        node.childNodes.forEach(child => visit(child, indent + '  '));
    };
    visit(document.querySelector('#vis'), '');
    probe.remove();
    return lines;
}"""


def missing(why):
    pytest.fail(why) if REQUIRED else pytest.skip(why)


@pytest.fixture(scope="module")
def d3():
    """The source of d3 5.7.0, read from the package that carries it; importing that would take a second."""
    package = find_spec("mpld3")
    if package is None:
        missing("d3 is not here to compare with; mpld3 carries it: pip install mpld3==0.5.12")
    source = Path(package.origin).with_name("js").joinpath("d3.v5.min.js").read_text("utf-8")
    assert "</script" not in source.lower()
    return source


def view(shape):
    queries, keys, layers, heads = VIEWS[shape]
    keys = keys or queries
    maps = np.random.default_rng(0).dirichlet(np.ones(len(keys)), (layers, heads, len(queries)))
    view = View(maps, queries, keys, range(layers), "Lines.")
    return view_html(view, view_script(view), still=b"", caption="Lines.")


def replaced(view, pattern, new):
    """Change the one place of the framed page that ``pattern`` finds."""
    framed = html.unescape(re.search(r'srcdoc="([^"]*)"', view)[1])
    framed, times = re.subn(pattern, lambda _: new, framed, flags=re.S)
    assert times == 1, f"{pattern} is found {times} times in the page: has the stand-in changed?"
    return re.sub(r'srcdoc="[^"]*"', lambda _: f'srcdoc="{html.escape(framed)}"', view)


def drawings(page, view, version):
    """Give (step, drawing) at first and after each step, made by a mouse in the sandboxed frame a learner has."""
    page.strangers.clear()
    page.errors.clear()
    page.set_content(view)
    frame = page.query_selector("iframe").content_frame()
    frame.wait_for_selector("#vis svg")
    assert frame.evaluate("d3.version") == version
    yield "drawn", frame.evaluate(SNAPSHOT)
    for number, (act, where, which) in enumerate(STEPS, 1):
        nodes = frame.locator(where)
        nodes.select_option(which) if act == "select_option" else getattr(nodes.nth(which), act)()
        yield f"{number}. {act} {where} {which}", frame.evaluate(SNAPSHOT)
    assert page.errors == []
    assert page.strangers == []


@pytest.fixture(scope="module")
def expected(page, d3):
    """What d3 draws: a function of the view, which draws each once."""
    done = {}

    def of(shape):
        if shape not in done:
            with_d3 = replaced(view(shape), r"class Selection \{.*\n(?=const requirejs = )", f"{d3}\n")
            done[shape] = dict(drawings(page, with_d3, "5.7.0"))
        return done[shape]

    return of


def first_difference(ours, theirs):
    """Name the first step after which the drawings differ, and the first lines that do; "" where none does."""
    for step, lines in ours:
        for number, (a, b) in enumerate(zip_longest(lines, theirs[step], fillvalue="(the end)")):
            if a != b:
                return f"{step}, line {number}\nstand-in: {a.strip()}\nd3 5.7.0: {b.strip()}"
    return ""


@pytest.mark.parametrize("shape", VIEWS)
def test_it_draws_what_d3_draws(page, expected, shape):
    theirs = expected(shape)
    assert len(theirs) == 1 + len(STEPS)
    assert first_difference(drawings(page, view(shape), "stand-in"), theirs) == ""
    # A step that changes nothing would compare nothing.
    assert [after for before, after in pairwise(theirs) if theirs[before] == theirs[after]] == []
