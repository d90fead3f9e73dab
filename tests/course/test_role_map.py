"""The role map and scores beside baselines: what is drawn is what the frame says."""

import matplotlib
import pandas as pd
import pytest

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

from headtools.course.role_map import COLOURS, beside_baselines, role_map
from headtools.roles.head_functions import LETTERS, NONE

ROWS = [
    ("encoder", 0, 0, "eos", 0.9, True),
    ("encoder", 0, 0, "obj up", 0.6, True),
    ("encoder", 0, 1, "entropy", 2.0, True),
    ("encoder", 0, 1, "offset -1", 0.5, False),
    ("encoder", 1, 0, "offset +0", 0.95, True),
    ("encoder", 1, 0, "two rarest", 0.7, True),
    ("encoder", 1, 1, "offset +1", 0.95, True),
    ("decoder", 0, 0, "coreference", 0.8, True),
]


@pytest.fixture
def frame():
    return pd.DataFrame(ROWS, columns=["kind", "layer", "head", "role", "score", "passes"])


def test_the_map_has_a_cell_a_head_and_its_letters(frame):
    ax = role_map(plt.subplots()[1], frame)
    cells = {(round(c.get_x() + 0.47), round(c.get_y() + 0.47)): to_hex(c.get_facecolor()).upper() for c in ax.patches}
    assert cells == {
        (0, 0): COLOURS["syntactic"],
        (1, 0): COLOURS[NONE],
        (0, 1): COLOURS["rare"],
        (1, 1): COLOURS["positional"],
    }
    assert {t.get_text(): t.get_position() for t in ax.texts} == {"SE": (0, 0), "RO": (0, 1), "P": (1, 1)}
    named = [t.get_text() for t in ax.get_legend().get_texts()]
    assert named == ["P positional", "S syntactic", "R rare", "none"]
    assert ax.yaxis_inverted()
    plt.close()
    with pytest.raises(ValueError, match="no cross heads in this frame; it has encoder, decoder"):
        role_map(plt.subplots()[1], frame, kind="cross")
    plt.close()


def test_every_function_has_its_letter_and_colour():
    assert set(COLOURS) == {*LETTERS, NONE}
    assert len(set(LETTERS.values())) == len(LETTERS)


def test_scores_that_do_not_hold_have_another_marker():
    rows = pd.DataFrame(
        {"score": [0.9, 0.4, 0.7], "low": [0.8, 0.3, 0.6], "high": [1.0, 0.5, 0.8], "passes": [True, False, True]}
    )
    fig, ax = beside_baselines(rows, [0.5, 0.4, 0.2], [0.6, 0.5, 0.9], ["a", "b", "c"])
    drawn = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines}
    assert drawn["passes"] == ([0.9, 0.7], [0, 2])
    assert drawn["does not pass"] == ([0.4], [1])
    assert drawn["baseline"] == ([0.5, 0.4, 0.2], [0, 1, 2])
    assert [round(bar.get_x() + bar.get_width(), 6) for bar in ax.patches] == [0.6, 0.5, 0.9]
    plt.close(fig)
    with pytest.raises(ValueError, match="3 rows, 1 baselines"):
        beside_baselines(rows, [0.5], [0.6, 0.5, 0.9], ["a", "b", "c"])
