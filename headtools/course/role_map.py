"""What a taxonomy found, drawn: the role map of a model, and scores beside the rules they have to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headtools.course.figure import OKABE_ITO
from headtools.course.plot import subplots
from headtools.roles.head_functions import LETTERS, NONE, head_functions

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Light enough for black letters, and of unlike lightness, so that the map can be read in grey.
COLOURS = {
    "positional": "#E69F00",
    "syntactic": "#56B4E9",
    "rare": "#009E73",
    "coreference": "#CC79A7",
    "alignment": "#F0E442",
    "self": "#D55E00",
    "mark": "#F6E8C3",
    NONE: "#D9D9D9",
}


def role_map(ax: Axes, frame: pd.DataFrame, *, kind: str = "encoder", legend: bool = True) -> Axes:
    """Draw which head has which function: layers down, heads across, a colour and letters, grey for none.

    frame: what ``taxonomy`` made
    kind: whose heads: 'encoder', 'decoder' or 'cross'
    legend: name the functions that occur, below the map

    A head with several functions has the colour of the first and a letter for each. Raises ValueError where the frame
    has no heads of that kind.

    >>> import matplotlib; matplotlib.use("agg")
    >>> import pandas as pd
    >>> from matplotlib import pyplot as plt
    >>> frame = pd.DataFrame({"kind": "encoder", "layer": 0, "head": [0, 1], "role": "obj up", "score": [0.9, 0.2],
    ...                       "passes": [True, False]})
    >>> [t.get_text() for t in role_map(plt.subplots()[1], frame, legend=False).texts]
    ['S']
    >>> plt.close()
    """
    from matplotlib.patches import Patch

    heads = head_functions(frame[frame.kind == kind])
    if heads.empty:
        raise ValueError(f"no {kind} heads in this frame; it has {', '.join(frame.kind.unique())}")
    for row in heads.itertuples():
        ax.add_patch(_cell(row.head, row.layer, COLOURS[row.function]))
        if row.letters:
            ax.text(row.head, row.layer, row.letters, ha="center", va="center", fontsize=11, color="black")
    ax.set(
        xlim=(-0.5, heads["head"].max() + 0.5),
        ylim=(heads.layer.max() + 0.5, -0.5),
        xlabel="head",
        ylabel="layer",
        xticks=sorted(heads["head"].unique()),
        yticks=sorted(heads.layer.unique()),
    )
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if legend:
        shown = [name for name in (*LETTERS, NONE) if (heads.function == name).any()]
        names = [f"{LETTERS[name]} {name}" if name != NONE else name for name in shown]
        ax.legend(
            [Patch(color=COLOURS[name]) for name in shown],
            names,
            loc="upper center",
            ncols=3,
            bbox_to_anchor=(0.5, -0.14),
        )
    return ax


def beside_baselines(
    rows: pd.DataFrame, baselines: Sequence[float], needed: Sequence[float], labels: Sequence[str]
) -> tuple[Figure, Axes]:
    """Draw one score a row with its interval, beside its baseline, with another marker where it does not pass.

    rows: rows of a taxonomy's frame: score, low, high, passes
    baselines: a tick each, such as ``rows.baseline``
    needed: where the lower end has to lie for the row to pass, the end of a grey bar from the tick
    labels: names of the rows

    Raises ValueError where they are not equally many.

    >>> import matplotlib; matplotlib.use("agg")
    >>> import pandas as pd
    >>> rows = pd.DataFrame({"score": [0.9, 0.4], "low": [0.8, 0.3], "high": [1.0, 0.5], "passes": [True, False]})
    >>> fig, ax = beside_baselines(rows, [0.5, 0.4], [0.6, 0.5], ["obj up", "obj down"])
    >>> [t.get_text() for t in ax.get_yticklabels()]
    ['obj up', 'obj down']
    """
    if len({len(rows), len(baselines), len(needed), len(labels)}) > 1:
        raise ValueError(
            f"{len(rows)} rows, {len(baselines)} baselines, {len(needed)} needed values and {len(labels)} labels came; "
            "one of each a row is needed"
        )
    position = np.arange(len(rows))
    fig, ax = subplots(figsize=(6.4, 1.2 + 0.27 * len(rows)))
    baselines, needed = np.asarray(baselines), np.asarray(needed)
    ax.barh(position, needed - baselines, left=baselines, height=0.6, color="0.85", label="needed above it")
    reach = np.clip([rows.score - rows.low, rows.high - rows.score], 0, None)
    ax.errorbar(rows.score, position, xerr=reach, fmt="none", ecolor="black", capsize=3)
    for passes, marker, text in ((True, "o", "passes"), (False, "X", "does not pass")):
        selected = rows.passes.to_numpy() == passes
        colour = OKABE_ITO[0 if passes else 1]
        ax.plot(rows.score[selected], position[selected], marker, markersize=8, color=colour, label=text)
    ax.plot(baselines, position, "|", color="black", markersize=15, label="baseline")
    ax.set(
        yticks=position, yticklabels=labels, ylim=(len(rows) - 0.5, -0.5), xlim=(-0.02, 1.04), xlabel="share of queries"
    )
    ax.legend(loc="lower center", bbox_to_anchor=(0.35, 1), ncols=4, columnspacing=1, handletextpad=0.4)
    return fig, ax


def _cell(x: float, y: float, colour: str) -> object:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, facecolor=colour, edgecolor="none")
