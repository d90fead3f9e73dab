"""The drawings of lessons: one call each, names and cells where they belong, no wider than a page of 800 pixels."""

import io

import pytest
import torch
from matplotlib import pyplot as plt
from PIL import Image

from headtools.lesson import plot
from headtools.lesson.figure import png

WORDS = ["the", "$fox$", "saw", "it"]
MAP = torch.tensor([[1.0, 0, 0, 0], [0.9, 0.1, 0, 0], [0, 1.0, 0, 0], [0, 0.5, 0, 0.5]])


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def frames(ax):
    """Where cells are framed, as (row, column)."""
    return [(p.get_y() + 0.5, p.get_x() + 0.5) for p in ax.patches]


def test_maps_of_one_head_and_of_several_and_their_outlines():
    one = plot.maps(MAP, WORDS, outline=-1, title="Previous")
    assert frames(one.axes[0]) == [(1, 0), (2, 1), (3, 2)]
    assert one.get_suptitle() == "Previous"
    several = plot.maps(MAP.expand(8, 4, 4), WORDS, heads=[1, 2, 5], layer="encoder 3", outline=[(0, 0)])
    assert [ax.get_title() for ax in several.axes[:3]] == ["encoder 3.1", "encoder 3.2", "encoder 3.5"]
    assert all(frames(ax) == [(0, 0)] for ax in several.axes[:3])
    with pytest.raises(ValueError, match="pass the tokens that the model saw"):
        plot.maps(MAP, WORDS[:3])


def test_arcs_start_at_the_query_and_leave_out_what_is_weak():
    fig = plot.arcs(MAP, WORDS, title="Where words attend", least=0.3)
    arrows = fig.axes[0].patches
    assert len(arrows) == 3  # from fox, saw and it; "the" and "it" attend to themselves and are framed
    assert [t.get_text() for t in fig.axes[0].texts if t.get_bbox_patch()] == ["the", "it"]
    ahead = plot.arcs(MAP.T, WORDS, least=0.3).axes[0].patches
    assert {a.get_linestyle() for a in arrows} == {"-"}
    assert {a.get_linestyle() for a in ahead} == {"--"}
    with pytest.raises(ValueError, match="there are 2 tokens"):
        plot.arcs(MAP, WORDS[:2])
    plot.arcs(torch.zeros(4, 4), WORDS)  # nothing to draw is no error


def test_heads_write_numbers_or_what_they_are_given_and_frame():
    fig = plot.heads(torch.rand(6, 8), outline=[(2, 3)], title="Sixth layer, third head")
    assert len(fig.axes[0].texts) == 48
    assert frames(fig.axes[0]) == [(2, 3)]
    assert (fig.axes[0].get_ylabel(), fig.axes[0].get_xlabel()) == ("layer", "head")
    assert not plot.heads(torch.zeros(2, 2), values=False).axes[0].texts  # all zero: a scale all the same


def test_lines_have_a_baseline_and_axes_of_their_own():
    fig = plot.lines({"a": ([1, 10], [0.1, 0.2])}, xlabel="step", ylabel="score", baseline=0.5, xscale="log")
    assert fig.axes[0].get_xscale() == "log"
    assert fig.axes[0].lines[-1].get_ydata() == [0.5, 0.5]
    assert fig.axes[0].get_legend() is None  # one curve needs no names
    assert plot.spectrum({"a": [1, 3, 2], "b": [1]}).axes[0].get_legend()


def test_a_flow_writes_its_messages_and_draws_signs_differently():
    ax = plot.flow([["a", "b"], ["c"], ["y"]], [[[6.0, -1.0]], [[5.0]]], title="Where 5 goes").axes[0]
    assert {text.get_text() for text in ax.texts} == {"a", "b", "c", "y", "6", "-1", "5"}
    six, minus_one, five = ax.patches[:3]
    assert (six.get_linestyle(), minus_one.get_linestyle()) == ("-", "--")
    assert six.get_linewidth() > five.get_linewidth() > minus_one.get_linewidth()
    assert len(plot.flow([["a"], ["y"]], [[[0.0]]]).axes[0].texts) == 2  # a message of 0 has no number
    with pytest.raises(ValueError, match=r"\(1, 2\)"):
        plot.flow([["a", "b"], ["y"]], [[[1.0]]])


def test_stacked_parts_stand_on_one_another_and_the_rest_is_grey():
    fig = plot.stacked({"a": [1, 2], "zero": [0, 0], "none": [3, 1]}, ["x", "$y$"], xlabel="x", ylabel="heads",
                       rest="none", title="Parts")  # fmt: skip
    bars = fig.axes[0].patches
    assert [bar.get_y() for bar in bars[-2:]] == [1, 2]
    assert bars[-1].get_hatch() is None
    assert len({round(c, 2) for c in bars[-1].get_facecolor()[:3]}) == 1
    assert [t.get_text() for t in fig.axes[0].get_legend().get_texts()] == ["a", "none"]
    for wrong in ([1], [1, -1]):
        with pytest.raises(ValueError, match="2 sizes of 0 or more"):
            plot.stacked({"a": wrong}, ["x", "y"], xlabel="x", ylabel="y")


@pytest.mark.parametrize("fig", [
    lambda: plot.flow([["a", "b"], ["c", "d"], ["y"]], [[[1, 2], [3, 4]], [[5, 6]]]),
    lambda: plot.maps(MAP.expand(8, 4, 4), WORDS), lambda: plot.arcs(MAP, WORDS, title="Words"),
    lambda: plot.heads(torch.rand(6, 8)), lambda: plot.bars(["a"], [1.0], label="x", title="t"),
    lambda: plot.lines({"a": ([0], [1])}, xlabel="x", ylabel="y"), lambda: plot.matrix(torch.rand(12, 12)),
])  # fmt: skip
def test_a_figure_fits_a_page(fig):
    assert Image.open(io.BytesIO(png(fig()))).width <= 860


def test_cells_of_a_matrix_are_framed_and_long_row_names_are_kept():
    fig = plot.matrix([[0.1, 0.9]], rows=["a name of more than eighteen letters"], outline=[(0, 1)])
    ax = fig.axes[0]
    assert [(patch.get_x(), patch.get_y()) for patch in ax.patches] == [(0.5, -0.5)]
    assert [name.get_text() for name in ax.get_yticklabels()] == ["a name of more than eighteen letters"]
