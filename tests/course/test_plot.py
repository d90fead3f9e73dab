"""The drawings of lessons: one call each, names and cells where they belong, no wider than a page of 800 pixels."""

import io

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from PIL import Image

from headtools.course import plot
from headtools.course.figure import png

WORDS = ["the", "$fox$", "saw", "it"]
MAP = torch.tensor([[1.0, 0, 0, 0], [0.9, 0.1, 0, 0], [0, 1.0, 0, 0], [0, 0.5, 0, 0.5]])

CURVES = {f"order {i}": ([0, 50, 100], [98, 80 - i, 1]) for i in range(8)}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture
def ax():
    return plt.subplots()[1]


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
    fig = plot.stacked(
        {"a": [1, 2], "zero": [0, 0], "none": [3, 1]},
        ["x", "$y$"],
        xlabel="x",
        ylabel="heads",
        rest="none",
        title="Parts",
    )
    bars = fig.axes[0].patches
    assert [bar.get_y() for bar in bars[-2:]] == [1, 2]
    assert bars[-1].get_hatch() is None
    assert len({round(c, 2) for c in bars[-1].get_facecolor()[:3]}) == 1
    assert [t.get_text() for t in fig.axes[0].get_legend().get_texts()] == ["a", "none"]
    for wrong in ([1], [1, -1]):
        with pytest.raises(ValueError, match="2 sizes of 0 or more"):
            plot.stacked({"a": wrong}, ["x", "y"], xlabel="x", ylabel="y")


@pytest.mark.parametrize(
    "fig",
    [
        lambda: plot.flow([["a", "b"], ["c", "d"], ["y"]], [[[1, 2], [3, 4]], [[5, 6]]]),
        lambda: plot.maps(MAP.expand(8, 4, 4), WORDS),
        lambda: plot.arcs(MAP, WORDS, title="Words"),
        lambda: plot.heads(torch.rand(6, 8)),
        lambda: plot.bars(["a"], [1.0], label="x", title="t"),
        lambda: plot.lines({"a": ([0], [1])}, xlabel="x", ylabel="y"),
        lambda: plot.matrix(torch.rand(12, 12)),
    ],
)
def test_a_figure_fits_a_page(fig):
    assert Image.open(io.BytesIO(png(fig()))).width <= 2 * 860


def labels(axis):
    return [t.get_text() for t in axis.get_ticklabels()]


def test_matrix_rows_go_down(ax):
    plot.matrix(torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]]), rows=["q0", "q1"], columns=["k0", "k1", "k2"], ax=ax)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert (labels(ax.yaxis), labels(ax.xaxis)) == (["q0", "q1"], ["k0", "k1", "k2"])
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("query", "key")
    assert ax.images[0].get_clim() == (0, 1)
    assert [t.get_text() for t in ax.texts] == ["1.00", ".00", ".00", ".20", ".30", ".50"]
    assert len(ax.figure.axes) == 2  # the colour bar


def test_many_names_are_thinned_and_never_parsed_as_mathematics(ax):
    tokens = ["$\\frac$", "w1", "a" * 30] + [f"w{i}" for i in range(3, 50)]
    plot.matrix(torch.eye(50), rows=tokens, columns=tokens, ax=ax)
    assert labels(ax.yaxis)[0] == "$\\frac$"
    assert max(map(len, labels(ax.yaxis))) <= 18
    assert len(labels(ax.yaxis)) <= 24
    assert not ax.texts
    png(ax.figure)


@pytest.mark.parametrize(
    ("matrix", "more", "says"),
    [
        ([[0.1, float("nan")]], {}, "NaN"),
        ([[0.1, 2.0]], {}, "from 0.1 to 2, outside the scale 0 to 1: pass vmin="),
        ([[0.1, -0.2]], {}, "outside the scale"),
        ([0.1], {}, "needed 2 dimensions"),
        ([[]], {}, "needed 2 dimensions"),
        ([[0.1]], {"rows": ["a", "b"]}, "rows has 2 names but the matrix has 1"),
    ],
)
def test_matrix_refuses(ax, matrix, more, says):
    with pytest.raises(ValueError, match=says):
        plot.matrix(matrix, ax=ax, **more)


def test_maps_name_heads():
    maps = torch.rand(1, 6, 3, 5).softmax(-1)
    fig = plot.maps(maps, "abc", key_tokens="vwxyz", heads=[5, 2, 0], layer="cross 1")
    assert [ax.get_title() for ax in fig.axes[:3]] == ["cross 1.5", "cross 1.2", "cross 1.0"]
    assert np.allclose(fig.axes[1].images[0].get_array(), maps[0, 2])
    fig = plot.maps(maps[0], "abc", key_tokens="vwxyz")
    assert [ax.get_title() for ax in fig.axes if ax.images][:6] == [f"head {h}" for h in range(6)]
    with pytest.raises(ValueError, match=r"key 5.*3 query tokens and 3 key tokens"):
        plot.maps(maps, "abc")
    with pytest.raises(ValueError, match="among 0 to 5"):
        plot.maps(maps, "abc", key_tokens="vwxyz", heads=[6])
    with pytest.raises(ValueError, match="needed 3 dimensions"):
        plot.maps(maps.expand(2, -1, -1, -1), "abc")


def test_bars_have_intervals_and_highlights(ax):
    plot.bars(
        ["a", "b"],
        torch.tensor([1.0, 3.0]),
        label="BLEU",
        low=[0.5, 2],
        high=[1.5, 3.5],
        baseline=2,
        highlight=[1],
        ax=ax,
    )
    assert [p.get_width() for p in ax.patches] == [1, 3]
    assert ax.patches[1].get_hatch()
    assert [t.get_text() for t in ax.texts] == ["1", "3"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    with pytest.raises(ValueError, match="1 names but 2 values"):
        plot.bars(["a"], [1, 2], label="BLEU", ax=ax)


def test_subplots_are_in_the_house_style_and_leave_the_settings_alone():
    was = dict(plt.rcParams)
    fig, axes = plot.subplots(1, 2, figsize=(4, 2))
    lines = [axes[1].plot([0, i])[0] for i in range(2)]
    assert [line.get_color() for line in lines] == ["#0072B2", "#D55E00"]
    assert fig.get_layout_engine() is not None
    assert dict(plt.rcParams) == was


def test_intervals_are_bars_or_a_band(ax):
    curve = ([0, 1], [5.0, 4.0], [4.5, 4.5], [6.0, 5.0])  # the second point lies under its interval: no bar downwards
    plot.lines({"found": curve, "random": curve}, xlabel="x", ylabel="y", band=["random"], legend=False, ax=ax)
    (bar,) = ax.containers
    segments = bar[2][0].get_segments()
    assert np.allclose(segments[0], [[0, 4.5], [0, 6.0]])
    assert np.allclose(segments[1], [[1, 4.0], [1, 5.0]])
    band = [c for c in ax.collections if c not in bar[2]]
    assert len(band) == 1
    assert ax.get_legend() is None


@pytest.mark.parametrize(
    ("curves", "band", "message"),
    [
        ({"a": ([0, 1], [1])}, [], r"'a' needs \(x, y\)"),
        ({"a": ([0, 1], [1, 2], [0, 1])}, [], "of one length"),
        ({"a": ([0, 1], [1, 2])}, ["a"], "no interval"),
    ],
)
def test_curves_that_cannot_be_drawn(ax, curves, band, message):
    with pytest.raises(ValueError, match=message):
        plot.lines(curves, ax=ax, xlabel="x", ylabel="y", band=band)
