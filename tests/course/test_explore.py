"""Controls redraw the picture; the same picture stands in the notebook without them."""

import io
import re

import ipywidgets as widgets
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from PIL import Image

from headtools.course.explore import HIGHEST, explore


def draw(**values):
    fig, ax = plt.subplots(figsize=(2, 2))
    ax.bar(0, len(str(values)))
    ax.set_title(str(sorted(values.items())))
    return fig, ", ".join(f"{k}={v}" for k, v in sorted(values.items()))


@pytest.fixture
def displayed(monkeypatch):
    """A function that gives the mime bundles that a cell ending in ``ui`` would show."""

    def show(ui):
        shown = []
        with monkeypatch.context() as patch:
            patch.setattr("IPython.display.display", lambda bundle, **how: shown.append(bundle))
            ui._ipython_display_()
        return shown

    return show


def test_a_control_changes_picture_text_and_description():
    ui = explore(draw, alt="One bar.", layer=(0, 5), head=["a", "b"], on=True, text="hi", scale=(0.0, 1.0, 0.25))
    assert ui.values == {"layer": 2, "head": "a", "on": True, "text": "hi", "scale": 0.5}
    was = ui.png, ui.view.value
    ui.controls["layer"].value = 4
    assert "layer=4" in ui.text
    assert (ui.png, ui.view.value) != was
    assert ui.alt == "One bar. Here: layer 4, head a, on True, text hi, scale 0.5."
    assert ui.alt in ui.view.value
    assert not plt.get_fignums()


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        ((0, 5), widgets.IntSlider, 2),
        ((0, 10, 5), widgets.IntSlider, 5),
        ((0.0, 1.0), widgets.FloatSlider, 0.5),
        ((0, 1, 0.1), widgets.FloatSlider, 0.5),
        (["x", "y"], widgets.Dropdown, "x"),
        ({"one": 1, "two": 2}, widgets.Dropdown, 1),
        (False, widgets.Checkbox, False),
        ("words", widgets.Text, "words"),
        (widgets.IntText(7), widgets.IntText, 7),
    ],
)
def test_short_hand(given, kind, value):
    made = explore(draw, my_control=given).controls["my_control"]
    assert type(made) is kind
    assert made.value == pytest.approx(value)
    assert made.description == "my control"
    assert made.style.description_width == "initial"
    if kind is widgets.Text:
        assert made.continuous_update is False


@pytest.mark.parametrize("given", [3, (5, 0), (0, 5, 0), (1,), [], None, ("a", "b")])
def test_other_controls_are_refused(given):
    with pytest.raises(ValueError, match="control x must be a widget"):
        explore(draw, x=given)


def test_what_fn_must_give():
    with pytest.raises(ValueError, match="at least one control"):
        explore(draw)
    with pytest.raises(TypeError, match=r"must return \(matplotlib Figure, text\)"):
        explore(lambda x: None, x=(0, 1))
    with pytest.raises(TypeError, match="a matplotlib Figure is needed"):
        explore(lambda x: (x, "text"), x=(0, 1))


def test_an_error_is_raised_at_first_and_shown_later():
    def fragile(x):
        if x == 3:
            raise RuntimeError("<b>three</b>")
        return draw(x=x)

    with pytest.raises(RuntimeError, match="three"):
        explore(fragile, x=[3, 1])
    ui = explore(fragile, x=(0, 4))
    ui.controls["x"].value = 3
    assert ui.text == "No picture for {'x': 3}: RuntimeError: <b>three</b>"
    assert isinstance(ui.error, RuntimeError)
    assert "&lt;b&gt;three" in ui.view.value
    assert "<img" not in ui.view.value
    ui.controls["x"].value = 1
    assert (ui.error, ui.text) == (None, "x=1")


MAPS = {("encoder", layer): torch.rand(1, 3, 5, 5) for layer in range(2)}


def pressed(control, head):
    """Press the map of a head."""
    control._thumbs[head].click()


def test_a_map_pressed_chooses_its_head_and_so_does_the_menu():
    ui = explore(lambda head: draw(head=head), alt="One bar.", head=explore.heads(MAPS, at=("encoder", 1, 2)))
    control = ui.controls["head"]
    assert ui.text == "head=('encoder', 1, 2)"
    assert ui.alt == "One bar. Here: head encoder 1.2."
    assert [name for name, _ in control.options] == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    pressed(control, ("encoder", 0, 1))
    assert (control.value, ui.text) == (("encoder", 0, 1), "head=('encoder', 0, 1)")
    control.value = ("encoder", 1, 0)
    chosen = [head for head, thumb in control._thumbs.items() if "headtools-chosen" in thumb._dom_classes]
    assert chosen == [("encoder", 1, 0)]


def test_maps_of_several_kinds_with_fewer_heads_in_a_layer():
    control = explore.heads(
        {**MAPS, ("cross", 0): torch.rand(2, 4, 7), ("cross", 1): torch.rand(1, 4, 7)}, ("cross", 0, 1)
    )
    assert [name for name, _ in control.options][-3:] == ["cross 0.0", "cross 0.1", "cross 1.0"]
    assert {thumb.tooltip for thumb in control._thumbs.values()} == {name for name, _ in control.options}
    with pytest.raises(ValueError, match=r"no head .*2, 0.* go from .*0, 0.* to .*1, 2"):
        explore.heads(MAPS, at=("encoder", 2, 0))


def test_even_attention_is_no_black_square():
    from headtools.course.thumbnails import GAP, SIDE, _sheet

    image = np.asarray(Image.open(io.BytesIO(_sheet([np.full((1, 9, 9), 1 / 9)]))))
    assert image.shape == (SIDE + GAP, SIDE + GAP, 4)
    assert image[SIDE // 2, SIDE // 2, :2].min() > 200  # yellow, as the largest weight of any other map
    assert image[0, 0, 3] == 0


def test_a_picture_beside_maps_fits_a_small_screen():
    def tall(head):
        return plt.figure(figsize=(5, 9)), "tall"

    ui = explore(tall, alt="Nothing.", head=explore.heads(MAPS, at=("encoder", 0, 0)))
    assert int(re.search(r'height="(\d+)"', ui.view.value)[1]) <= HIGHEST <= 340
    rows = ui.box.children
    assert ui.view in rows[-1].children
    assert ui.controls["head"].maps in rows[-1].children


def test_two_outputs_the_picture_and_the_controls(displayed):
    still, live = displayed(explore(draw, alt="One bar.", x=(0, 4)))
    assert "application/vnd.jupyter.widget-view+json" in live
    assert "application/vnd.jupyter.widget-view+json" not in still
    assert 'alt="One bar. Here: x 2."' in still["text/html"]
    assert still["text/plain"] == "x=2"
    assert live["text/plain"] == "Run this cell to bring back the controls: x"


def test_the_output_is_the_same_each_time_but_for_the_model_number(displayed):
    def words(ui):
        return [{k: v for k, v in bundle.items() if "widget" not in k} for bundle in displayed(ui)]

    assert words(explore(draw, x=(0, 4))) == words(explore(draw, x=(0, 4)))
    names = [re.search(r"headtools-\w+", words(explore(draw, x=(0, n)))[0]["text/html"])[0] for n in (4, 9)]
    assert names[0] != names[1]  # one picture's controls must not hide another picture
