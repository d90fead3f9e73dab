"""A figure is a caption, a description and a small picture on white."""

import base64
import io
import re

import numpy as np
import pytest
from matplotlib import pyplot as plt
from PIL import Image

from headtools.course.figure import LIMIT, figure, figure_html, png, style


def line():
    fig, ax = plt.subplots()
    ax.plot([0, 1, 4])
    return fig


def picture_in(html):
    return Image.open(io.BytesIO(base64.b64decode(re.search(r'base64,([^"]+)"', html)[1])))


def test_html_plain_text_and_closing():
    fig = line()
    bundle = figure(fig, claim="It rises to 4.", alt="A curve that bends upwards.")._repr_mimebundle_()
    assert not plt.fignum_exists(fig.number)
    assert bundle["text/plain"] == "It rises to 4."
    assert bundle["text/html"].startswith("<figure")
    assert 'alt="A curve that bends upwards."' in bundle["text/html"]
    assert "It rises to 4.</figcaption>" in bundle["text/html"]
    image = picture_in(bundle["text/html"])
    width, height = map(int, re.search(r'width="(\d+)" height="(\d+)"', bundle["text/html"]).groups())
    assert (image.width, image.height) == pytest.approx((2 * width, 2 * height), abs=1)  # sharp on a sharp screen
    assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert "Software" not in image.info


@pytest.mark.parametrize(
    ("claim", "alt", "says"),
    [
        ("", "A curve.", "needs claim="),
        ("It rises.", "  ", "needs alt="),
        ("It rises.", None, "needs alt="),
        ("It rises to 4.", "it rises to 4", "alt repeats the claim"),
        ("The curve rises.", "Figure showing the curve rises", "alt repeats the claim"),
    ],
)
def test_claim_and_alt_are_required(claim, alt, says):
    with pytest.raises(ValueError, match=says):
        figure(line(), claim=claim, alt=alt)
    plt.close("all")


def test_a_heavy_picture_is_refused():
    fig, ax = plt.subplots(figsize=(4, 4))
    ax.imshow(np.random.default_rng(0).random((400, 400, 3)))
    with pytest.raises(ValueError, match=r"takes \d+ kB and an output may take 150: draw fewer"):
        figure(fig, claim="Noise is heavy.", alt="Coloured noise.")


def test_a_picture_too_heavy_at_twice_the_pixels_has_them_once():
    fig, ax = plt.subplots(figsize=(3, 3))
    ax.scatter(*np.random.default_rng(0).random((2, 1200)), s=2, c=range(1200))
    html = figure(fig, claim="Noise is heavy.", alt="Grey noise.").html
    image = picture_in(html)
    assert f'width="{image.width}" height="{image.height}"' in html
    assert image.width < 360


def test_no_higher_than_asked():
    data = png(plt.figure(figsize=(4, 4)))
    assert 'width="220" height="220"' in figure_html(data, alt="a", caption="c", highest=220)
    assert figure_html(data, alt="a", caption="c", highest=999) == figure_html(data, alt="a", caption="c")


def test_axes_instead_of_a_figure():
    _, ax = plt.subplots()
    with pytest.raises(TypeError, match=r"got Axes: pass ax\.figure"):
        figure(ax, claim="c", alt="a")
    plt.close("all")


def test_the_palette_keeps_colours():
    """An even ramp of the magnitude colours, and small patches of all the group colours, on one page."""
    with plt.rc_context(style()):
        fig, (left, right) = plt.subplots(1, 2)
        left.imshow(np.linspace(0, 1, 256)[None], aspect="auto")
        for i in range(7):
            right.bar(i, i + 1)
        raw = io.BytesIO()
        fig.savefig(raw, format="png", dpi=220, bbox_inches="tight")
        small = png(fig)
    was, now = (np.asarray(Image.open(f).convert("RGB")).astype(int) for f in (raw, io.BytesIO(small)))
    assert np.abs(was - now).max() <= 12
    assert len(small) < len(raw.getvalue()) * 0.7


def test_house_style():
    settings = style()
    assert min(settings[k] for k in settings if k.endswith("size") and k != "figure.figsize") >= 9
    assert settings["image.cmap"] == "cividis"
    cycle = settings["axes.prop_cycle"].by_key()
    greys = sorted(
        np.dot([int(c[i : i + 2], 16) for i in (1, 3, 5)], [0.299, 0.587, 0.114]) for c in cycle["color"][:2]
    )
    assert greys[1] - greys[0] > 20  # the first two colours differ in grey
    assert len(set(map(str, cycle["linestyle"]))) == len(cycle["linestyle"])
    with plt.rc_context(settings):
        plt.close(plt.figure())
    assert LIMIT == 150_000
