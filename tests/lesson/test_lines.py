"""Lines: every point where it belongs, intervals where given, nothing told by colour alone."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from headtools.lesson.lines import lines

CURVES = {f"order {i}": ([0, 50, 100], [98, 80 - i, 1]) for i in range(8)}


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def test_points_labels_and_looks(ax):
    lines(ax, CURVES, xlabel="heads pruned (%)", ylabel="BLEU")
    drawn = {line.get_label(): line for line in ax.lines}
    assert drawn["order 3"].get_xydata().tolist() == [[0, 98], [50, 77], [100, 1]]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("heads pruned (%)", "BLEU")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(CURVES)
    assert len({line.get_marker() for line in drawn.values()}) == 8


def test_intervals_are_bars_or_a_band(ax):
    curve = ([0, 1], [5.0, 4.0], [4.5, 4.5], [6.0, 5.0])  # the second point lies under its interval: no bar downwards
    lines(ax, {"found": curve, "random": curve}, xlabel="x", ylabel="y", band=["random"], legend=False)
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
def test_refusals(ax, curves, band, message):
    with pytest.raises(ValueError, match=message):
        lines(ax, curves, xlabel="x", ylabel="y", band=band)
