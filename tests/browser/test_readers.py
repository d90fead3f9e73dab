"""What lessons show, to readers who cannot see it or see it otherwise: axe-core, in JupyterLab light and dark."""

import lab
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

pytestmark = pytest.mark.full

# One of each thing that a lesson shows.
SHOWN = [
    """import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import display
import headtools as ht
torch.manual_seed(0)
maps = [torch.rand(1, 2, 5, 5).softmax(-1) for _ in range(2)]
tokens = ["the", "old", "dog", "barked", "."]""",
    """fig, ax = plt.subplots()
ax.plot([1, 2])
ht.figure(fig, claim="The line rises by 1.", alt="A line from 1 to 2.")""",
    """def look(power, kind, grid, words):
    fig, ax = plt.subplots()
    ax.plot([x**power for x in range(9)])
    return fig, f"{kind} to the power of {power}"
ht.explore(look, alt="A curve.", power=(1, 5), kind=["x", "y"], grid=True, words="a")""",
    "ht.attention_view(maps, tokens, alt='Five words and lines between them.')",
    """display(ht.ledger("01"), ht.ledger("03"))
ht.ledger()""",
    """display(ht.measured("01.mask", before=1.0, after=0.25), ht.check("01.cost", ...),
        ht.check("01.cost", lambda T, d, H: T),
        ht.check("01.cost", lambda T, d, H: 4 * T * d * d + 2 * T * T * d))""",
    "ht.check.summary()",
    "pd.DataFrame({'head': ['0.1'], 'score': [0.5]})",
    "[n for n in ht.progress(range(3), 'counting')][:1]",
]
WCAG = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "iframes": False}  # each frame is looked at by itself
# Not ours to mend: ipywidgets gives its sliders no name; the word beside them and the number are all there is.
THEIRS = [("aria-input-field-name", "noUi-handle")]


@pytest.fixture(scope="module")
def course(course):
    nb = new_notebook(cells=[new_markdown_cell("# Sample"), *map(new_code_cell, SHOWN)])
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nb, course / "shown.ipynb")
    return course


@pytest.fixture(scope="module")
def shown(page, server):
    """The page after everything is shown, in a window so high that all of it is drawn."""
    lab.open_notebook(page, server, "shown.ipynb", height=12_000)
    lab.run_all(page)
    assert lab.failed_cells(page) == []
    for place in range(1, len(SHOWN) + 1):
        lab.show_cell(page, place)
    lab.show_cell(page, 0)  # what has scrolled out of sight axe-core passes over
    # JupyterLab's body has no height, for which axe-core would take all text in it to be hidden and pass over it.
    page.evaluate("() => { document.body.style.height = '100vh' }")
    return page


def look(page):
    """What axe-core finds wrong in the outputs and in the page of each frame; how many nodes keep each rule there."""
    from axe_playwright_python.sync_playwright import Axe

    axe = Axe()
    results = [axe.run(page, context=".jp-OutputArea-output", options=WCAG).response]
    for frame in page.frames[1:]:
        frame.locator("svg *").nth(19).wait_for(state="attached")
        results.append(axe.run(frame, options=WCAG).response)
    wrong = [
        f"{violation['id']}: {node['html'][:200]} {node['failureSummary']}"
        for result in results
        for violation in result["violations"]
        for node in violation["nodes"]
        if not any(violation["id"] == rule and part in node["html"] for rule, part in THEIRS)
    ]
    return wrong, [{rule["id"]: len(rule["nodes"]) for rule in result["passes"]} for result in results]


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_axe_finds_nothing(shown, theme):
    shown.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    shown.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)
    shown.wait_for_selector("#jupyterlab-splash", state="detached")  # it lies over everything
    wrong, (outputs, *frames) = look(shown)
    assert not wrong, "\n".join(wrong)
    assert {"image-alt", "frame-title", "color-contrast", "label", "select-name"} <= outputs.keys()
    assert outputs["color-contrast"] > 100  # texts
    assert len(frames) == 1
    assert all("color-contrast" in kept for kept in frames)


def test_axe_sees_what_is_wrong(shown):
    shown.evaluate("""() => document.querySelector('.jp-OutputArea-output').insertAdjacentHTML('beforeend',
        '<p style="color:#999;background:#aaa">pale</p><img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">')""")
    wrong, _ = look(shown)
    assert {line.split(":")[0] for line in wrong} == {"color-contrast", "image-alt"}
