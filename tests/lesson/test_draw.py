"""Drawings: query down, key across, one scale, names that can be read, and no picture of a NaN."""

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from headtools.lesson.draw import bars, head_grid, heatmap, layer_grid, subplots
from headtools.lesson.figure import png


@pytest.fixture
def ax():
    yield plt.subplots()[1]
    plt.close("all")


def labels(axis):
    return [t.get_text() for t in axis.get_ticklabels()]


def test_heatmap_rows_go_down(ax):
    heatmap(ax, torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]]), rows=["q0", "q1"], columns=["k0", "k1", "k2"])
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert (labels(ax.yaxis), labels(ax.xaxis)) == (["q0", "q1"], ["k0", "k1", "k2"])
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("query", "key")
    assert ax.images[0].get_clim() == (0, 1)
    assert [t.get_text() for t in ax.texts] == ["1.00", ".00", ".00", ".20", ".30", ".50"]
    assert len(ax.figure.axes) == 2  # the colour bar


def test_differences_diverge_around_zero(ax):
    heatmap(ax, [[-0.5, 0.5]], vmin=-1, label="difference")
    assert ax.images[0].get_cmap().name == "PuOr"
    assert [t.get_text() for t in ax.texts] == ["-.50", ".50"]


def test_many_names_are_thinned_and_never_parsed_as_mathematics(ax):
    tokens = ["$\\frac$", "w1", "a" * 30] + [f"w{i}" for i in range(3, 50)]
    heatmap(ax, torch.eye(50), rows=tokens, columns=tokens)
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
def test_heatmap_refuses(ax, matrix, more, says):
    with pytest.raises(ValueError, match=says):
        heatmap(ax, matrix, **more)


def test_head_grid_names_heads():
    maps = torch.rand(1, 6, 3, 5).softmax(-1)
    fig = head_grid(maps, "abc", key_tokens="vwxyz", heads=[5, 2, 0], layer="cross 1")
    assert [ax.get_title() for ax in fig.axes[:3]] == ["cross 1.5", "cross 1.2", "cross 1.0"]
    assert np.allclose(fig.axes[1].images[0].get_array(), maps[0, 2])
    plt.close(fig)
    fig = head_grid(maps[0], "abc", key_tokens="vwxyz")
    assert [ax.get_title() for ax in fig.axes if ax.images][:6] == [f"head {h}" for h in range(6)]
    plt.close(fig)
    with pytest.raises(ValueError, match=r"key 5.*3 query tokens and 3 key tokens"):
        head_grid(maps, "abc")
    with pytest.raises(ValueError, match="among 0 to 5"):
        head_grid(maps, "abc", key_tokens="vwxyz", heads=[6])
    with pytest.raises(ValueError, match="needed 3 dimensions"):
        head_grid(maps.expand(2, -1, -1, -1), "abc")


def test_layer_grid_shows_every_head_at_its_place():
    maps = torch.rand(2, 3, 4, 4).softmax(-1)
    fig = layer_grid(maps, layers=[0, 5], heads=[1, 2, 7])
    drawn = [ax for ax in fig.axes if ax.get_label() != "<colorbar>"]
    assert np.allclose(drawn[4].images[0].get_array(), maps[1, 1])
    assert [ax.get_title() for ax in drawn[:3]] == ["1", "2", "7"]
    assert drawn[3].get_ylabel() == "5"
    plt.close(fig)


def test_bars(ax):
    bars(
        ax, ["a", "b"], torch.tensor([1.0, 3.0]), label="BLEU", low=[0.5, 2], high=[1.5, 3.5], baseline=2, highlight=[1]
    )
    assert [p.get_width() for p in ax.patches] == [1, 3]
    assert ax.patches[1].get_hatch()
    assert [t.get_text() for t in ax.texts] == ["1", "3"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    with pytest.raises(ValueError, match="1 names but 2 values"):
        bars(ax, ["a"], [1, 2], label="BLEU")


def test_an_interval_beside_its_value_is_not_drawn_to_the_other_side(ax):
    bars(ax, ["a"], [1.0], label="BLEU", low=[1.5], high=[2.0])
    (line,) = ax.collections[0].get_segments()
    assert line[:, 0].tolist() == [1.0, 2.0]


def test_subplots_are_in_the_house_style_and_leave_the_settings_alone():
    was = dict(plt.rcParams)
    fig, axes = subplots(1, 2, figsize=(4, 2))
    lines = [axes[1].plot([0, i])[0] for i in range(2)]
    assert [line.get_color() for line in lines] == ["#0072B2", "#D55E00"]
    assert fig.get_layout_engine() is not None
    assert dict(plt.rcParams) == was
    plt.close(fig)
