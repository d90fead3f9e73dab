"""Lessons in a real JupyterLab: they run, their controls work, their frames draw, and nothing leaves the machine."""

import os
import shutil
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

sys.path.insert(0, str(Path(__file__).parent))
import lab

REQUIRED = os.environ.get("HEADTOOLS_REQUIRE_BROWSER") == "1"

# What the lessons may hold, and what could do harm: the driver must see both even while a lesson has only some of it.
SAMPLE = [
    """import matplotlib.pyplot as plt
import torch
import headtools as ht
torch.manual_seed(0)
tokens = ["the", "<img src=x onerror=parent.PWN=1>", "</script><script>parent.PWN=window.PWN=1</script>"]
maps = [torch.rand(1, 2, 3, 3).softmax(-1) for _ in range(2)]""",
    """def look(power):
    fig, ax = plt.subplots()
    ax.plot([x**power for x in range(9)])
    if power == 5:
        raise ValueError("five <b>is</b> too much")
    return fig, f"x to the power of {power} <script>window.PWN=1</script>"
ht.explore(look, alt="A curve.", power=(1, 5))""",
    "ht.attention_view(maps, tokens, alt='</iframe><script>window.PWN=1</script>')",
    "ht.attention_view(maps, tokens, kind='model', alt='Four thumbnails.')",
    "ht.check('01.cost', ...)",
]


@pytest.fixture(scope="module")
def page():
    if lab.CHROMIUM is None:
        why = "no chromium, chromium-browser or google-chrome on the PATH"
        pytest.fail(why) if REQUIRED else pytest.skip(why)
    if not REQUIRED:
        pytest.importorskip("playwright")
    with lab.browser() as page:
        yield page


@pytest.fixture(scope="module")
def server(page, root, tmp_path_factory):
    """JupyterLab over a copy of the notebooks and a sample, which was run elsewhere and so is not trusted here."""
    folder = tmp_path_factory.mktemp("course")
    shutil.copytree(root / "notebooks", folder, dirs_exist_ok=True)
    nb = new_notebook(cells=[new_markdown_cell("# Sample"), *(new_code_cell(source) for source in SAMPLE)])
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    NotebookClient(nb, timeout=120, store_widget_state=False).execute()
    nbformat.write(nb, folder / "sample.ipynb")
    with lab.jupyterlab(folder) as url:
        yield url


def opened(page, server, name):
    page.strangers.clear()
    page.errors.clear()
    page.set_viewport_size({"width": 1300, "height": 20_000})  # so that JupyterLab draws every cell
    lab.open_notebook(page, server, name)


def frames(page, nodes=1, seconds=60):
    """The attention views: their frames, once each has drawn at least that many SVG nodes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = [frame for frame in page.frames if frame.url == "about:srcdoc"]
        drawn = [frame.evaluate("document.querySelectorAll('svg *').length") for frame in found]
        if found and min(drawn) >= nodes:
            return found
        time.sleep(0.2)
    pytest.fail(f"the attention views did not draw: {drawn} SVG nodes")


def live_picture(page):
    return page.locator(".widget-vbox img").first.get_attribute("src")


def move_first_control(page):
    """Move the first slider, or choose the next entry of the first menu, as a hand would."""
    box = page.locator(".widget-vbox").first
    box.scroll_into_view_if_needed()
    if box.locator(".noUi-handle").count():
        handle = box.locator(".noUi-handle").first
        handle.focus()
        at_the_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
        page.keyboard.press("ArrowLeft" if at_the_end else "ArrowRight")
    else:
        menu = box.locator("select").first
        menu.select_option(index=(menu.evaluate("m => m.selectedIndex") + 1) % menu.locator("option").count())


def changes(page, before, seconds=60):
    end = time.monotonic() + seconds
    while live_picture(page) == before and time.monotonic() < end:
        time.sleep(0.1)
    return live_picture(page) != before


@pytest.mark.parametrize("number", ["00", "01"])
def test_a_lesson_runs_and_answers(page, server, root, number):
    found = sorted((root / "notebooks").glob(f"{number}_*.ipynb"))
    if not found:
        pytest.fail(f"lesson {number} is missing") if REQUIRED else pytest.skip(f"there is no lesson {number} yet")
    code = "\n".join(cell.source for cell in nbformat.read(found[0], as_version=4).cells if cell.cell_type == "code")
    opened(page, server, found[0].name)
    lab.run_all(page)
    assert lab.failed_cells(page) == []
    assert "explore(" in code or number != "00"  # the first lesson has a control to move
    if "explore(" in code:
        before = live_picture(page)
        move_first_control(page)
        assert changes(page, before)
    if "attention_view(" in code:
        frames(page, nodes=20)
    assert page.strangers == []
    assert page.errors == []


def test_controls_and_frames_live(page, server):
    opened(page, server, "sample.ipynb")
    lab.run_all(page)
    assert lab.failed_cells(page) == []
    page.wait_for_selector(".widget-vbox img")
    assert page.locator("img:visible[alt^='A curve.']").count() == 1  # the still picture hides behind the live one
    before = live_picture(page)
    move_first_control(page)
    assert changes(page, before)
    assert "power 4" in page.locator(".widget-vbox img").get_attribute("alt")
    move_first_control(page)
    page.wait_for_selector(".widget-vbox [role=alert]")
    assert "five <b>is</b> too much" in page.locator(".widget-vbox [role=alert]").inner_text()

    head, model = frames(page, nodes=20)
    assert head.evaluate("document.querySelectorAll('#attention line').length") == 2 * 3 * 3
    assert model.evaluate("document.querySelectorAll('svg line').length") == 2 * 2 * 3 * 3
    words = head.evaluate("[...document.querySelectorAll('#left text')].map(t => t.textContent)")
    assert words[1] == "<img src=x onerror=parent.PWN=1>"  # hostile tokens are words
    strongest = (
        "Math.max(...[...document.querySelectorAll('#attention line')].map(l => l.getAttribute('stroke-opacity')))"
    )
    was = head.evaluate(strongest)
    head.locator("svg > g:last-child rect").first.dblclick()
    assert head.evaluate(strongest) > was  # one head alone: its weights are no longer halved
    head.locator("select").select_option("1")
    assert head.evaluate("document.querySelectorAll('#attention line').length") == 2 * 3 * 3
    assert not any(frame.evaluate("window.PWN") for frame in page.frames)
    assert page.strangers == []
    assert page.errors == []


def test_without_trust_the_pictures_stay(page, server):
    opened(page, server, "sample.ipynb")
    page.wait_for_selector("img[alt^='A curve.']")
    # Cells are drawn one after the other.
    page.wait_for_function("() => [...document.images].filter(i => i.checkVisibility()).length >= 3")
    alts = page.locator("img:visible").evaluate_all("all => all.map(i => i.alt)")
    assert len(alts) == 3
    assert "Four thumbnails." in alts
    assert page.get_by_text("Run this cell to bring back the controls: power").is_visible()
    assert not page.evaluate("window.PWN")
    assert page.strangers == []


def test_a_saved_notebook_opened_with_a_new_kernel(page, server):
    opened(page, server, "sample.ipynb")
    lab.run_all(page)
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save') }")
    page.evaluate("async () => { await window.jupyterapp.serviceManager.sessions.shutdownAll() }")
    page.goto("about:blank")
    opened(page, server, "sample.ipynb")
    lost = page.locator(".jupyter-widgets", has_text="model not found")
    lost.wait_for()
    assert lost.evaluate("e => getComputedStyle(e).fontSize") == "0px"  # the error gives way to advice
    assert "Run this cell" in lost.evaluate("e => getComputedStyle(e, '::after').content")
    assert page.locator("img:visible[alt^='A curve.']").count() == 1


def test_the_driver_sees_what_leaves_the_machine(page):
    page.goto("about:blank")
    page.strangers.clear()
    page.set_content("<img src='http://example.invalid/x.png'><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>")
    assert page.strangers == ["http://example.invalid/x.png"]
