"""What lessons show, in a real JupyterLab: live, not trusted, saved and opened again, and with hostile words."""

import os
import socket
import sys
from pathlib import Path
from urllib.request import urlopen

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

sys.path.insert(0, str(Path(__file__).parent))
import lab
from lesson_in_lab import CONTROLS, look, move

pytestmark = pytest.mark.full

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
    "ht.check('01.cost', ...)",
    """attended = {("encoder", layer): maps[layer] for layer in range(2)}
def head_map(head):
    _, layer, h = head
    return ht.plot.maps(maps[layer][0, h], "abc"), f"Encoder {layer}.{h} is looked at."
ht.explore(head_map, alt="A map.", head=ht.explore.heads(attended, at=("encoder", 1, 0)))""",
    "ht.predict('01.cost')",
]
DOT = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
TOP = f"# Sample\n\n![A dot.]({DOT})\n\n> **You will be able to** look.\n\n{'A line of text is read. ' * 20}"


@pytest.fixture(scope="module")
def course(course):
    """With a sample, which was run elsewhere and so is not trusted here."""
    nb = new_notebook(cells=[new_markdown_cell(TOP), *(new_code_cell(source) for source in SAMPLE)])
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    NotebookClient(nb, timeout=600, startup_timeout=lab.PATIENCE, store_widget_state=False).execute()
    nbformat.write(nb, course / "sample.ipynb")
    return course


def opened(page, server, name):
    lab.open_notebook(page, server, name, height=9_000)  # so that JupyterLab draws every cell


def frames(page, number):
    """The attention views: their frames, once each has drawn its lines."""
    page.wait_for_function("n => document.querySelectorAll('.headtools-view iframe').length === n", arg=number)
    found = [node.content_frame() for node in page.query_selector_all(".headtools-view iframe")]
    for frame in found:
        frame.locator("svg *").nth(19).wait_for(state="attached")
    return found


def move_first_control(page):
    """Move the first control; wait until there is another picture, or none."""
    picture = "() => document.querySelector('.widget-vbox img')?.src"
    before = page.evaluate(picture)
    box = page.locator(".widget-vbox").first
    box.scroll_into_view_if_needed()
    move(page, box.locator(CONTROLS).first.element_handle())
    page.wait_for_function(f"before => ({picture})() !== before", arg=before)


@pytest.fixture(scope="module")
def untrusted(page, server, course):
    """The sample as somebody gets it who did not run it."""
    opened(page, server, "sample.ipynb")
    return page


@pytest.fixture(scope="module")
def ran(untrusted):
    """The sample, run once for all tests that look at it."""
    lab.run_all(untrusted)
    assert lab.failed_cells(untrusted) == []
    return untrusted


def test_without_trust_the_pictures_stay(untrusted):
    page = untrusted
    page.wait_for_selector("img[alt^='A curve.']")
    # Cells are drawn one after the other.
    page.wait_for_function("() => [...document.images].filter(i => i.checkVisibility()).length >= 4")
    alts = page.locator("img:visible").evaluate_all("all => all.map(i => i.alt)")
    assert len(alts) == 4
    assert "A map. Here: head encoder 1.0." in alts
    assert page.get_by_text("Run this cell to bring back the controls: power").is_visible()
    assert not page.evaluate("window.PWN")
    assert page.strangers == []


def test_boxes_lines_and_names_of_files_look_as_they_should(untrusted):
    page = untrusted
    box = page.locator(".jp-RenderedMarkdown blockquote")
    assert box.evaluate("box => getComputedStyle(box).borderLeftWidth") == "6px"
    line = page.locator(".jp-RenderedMarkdown p", has_text="A line of text is read.")
    letter = "p => { const c = document.createElement('canvas').getContext('2d'); c.font = getComputedStyle(p).font; "
    assert line.bounding_box()["width"] <= 73 * line.evaluate(f"{letter} return c.measureText('0').width; }}")
    assert page.locator(".jp-DirListing-headerItem:visible").all_inner_texts() == ["Name"]
    names = page.locator(".jp-DirListing-item[title*='.ipynb'] .jp-DirListing-itemText")
    assert names.count() > 13
    assert names.evaluate_all("all => all.filter(name => name.scrollWidth > name.clientWidth)") == []


def test_controls_and_frames_live(ran):
    page = ran
    page.wait_for_selector(".widget-vbox img")
    assert page.locator("img:visible[alt^='A curve.']").count() == 1  # the still picture hides behind the live one
    move_first_control(page)
    assert "power 4" in page.locator(".widget-vbox img[alt^='A curve.']").get_attribute("alt")
    move_first_control(page)
    page.wait_for_selector(".widget-vbox [role=alert]")
    assert "five <b>is</b> too much" in page.locator(".widget-vbox [role=alert]").inner_text()

    (head,) = frames(page, 1)
    assert head.evaluate("document.querySelectorAll('#attention line').length") == 2 * 3 * 3
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


def test_a_head_is_chosen_by_its_map(ran):
    page = ran
    box = page.locator(".widget-vbox:has(> .widget-hbox):has(.headtools-thumb)").first
    picture = box.locator("img[alt^='A map.']")
    picture.wait_for()
    assert box.bounding_box()["height"] <= 420
    thumbs = box.locator(".headtools-thumb")
    heads = [f"encoder {layer}.{head}" for layer in (0, 1) for head in (0, 1)]
    assert [thumb.get_attribute("title") for thumb in thumbs.all()] == heads
    thumbs.nth(1).click()
    page.wait_for_selector("img[alt='A map. Here: head encoder 0.1.']:visible")
    assert box.locator("select").evaluate("menu => menu.selectedOptions[0].text") == "0.1"
    assert "headtools-chosen" in thumbs.nth(1).get_attribute("class")
    assert (
        thumbs.nth(1).evaluate("thumb => getComputedStyle(thumb.parentNode).backgroundImage").startswith('url("data:')
    )
    box.locator("select").select_option("1.0")
    page.wait_for_selector("img[alt='A map. Here: head encoder 1.0.']:visible")
    assert page.errors == []


def test_an_attention_view_has_no_frame_and_is_dark_where_the_page_is(ran):
    page = ran
    frames(page, 1)
    look_of = "frame => [getComputedStyle(frame).borderTopWidth, getComputedStyle(frame).filter]"
    shown = page.locator(".headtools-view iframe")
    assert shown.first.evaluate(look_of) == ["0px", "none"]
    dark = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
    page.evaluate(dark, "JupyterLab Dark")
    page.wait_for_selector("body[data-jp-theme-light=false]", state="attached")
    assert shown.first.evaluate(look_of)[1].startswith("invert")
    page.evaluate(dark, "JupyterLab Light")
    page.wait_for_selector("body[data-jp-theme-light=true]", state="attached")


def test_a_saved_notebook_opened_with_a_new_kernel(ran, server, course):
    page = ran
    line = page.get_by_placeholder("then press Enter")
    line.fill("20 <i>%</i>")
    line.press("Enter")
    noted = page.get_by_text("Noted: 20 <i>%</i>. Run the next cell.")
    noted.wait_for()
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save') }")
    page.evaluate("async () => { await window.jupyterapp.serviceManager.sessions.shutdownAll() }")
    page.goto("about:blank")
    opened(page, server, "sample.ipynb")
    lost = page.locator(".jupyter-widgets", has_text="model not found").first
    lost.wait_for()
    assert lost.evaluate("e => getComputedStyle(e).fontSize") == "0px"  # the error gives way to advice
    assert "Run this cell" in lost.evaluate("e => getComputedStyle(e, '::after').content")
    assert page.locator("img:visible[alt^='A curve.']").count() == 1
    noted.wait_for()  # the prediction is there
    lab.run_all(page)
    page.wait_for_function("document.querySelector('[placeholder=\"then press Enter\"]')?.value === '20 <i>%</i>'")
    (course / "my-predictions.json").unlink()


BROKEN = [
    f"""from ipywidgets import IntSlider, VBox, HTML
from IPython.display import HTML as Raw, display
display(Raw('<img src="data:image/png;base64,AAAA" alt="Nothing."><img src="{DOT}">'))""",
    "display(Raw('<iframe srcdoc=\"<svg><g></g></svg>\"></iframe>'))",
    f"""box = VBox([IntSlider(), HTML('<img alt="Still." src="{DOT}">')])
box.add_class('widget-vbox')
display(box)  # the slider moves nothing; not explore()""",
    "'explore(' and display(box.children[1])",
    "display(Raw('<img alt=Gone. src=/files/none.png>'))\nraise ValueError('broken')",
]


def test_the_driver_sees_what_is_broken(page, server, course):
    nb = new_notebook(cells=[new_code_cell(source) for source in BROKEN])
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nb, course / "broken.ipynb")
    lab.open_notebook(page, server, "broken.ipynb")
    lab.run_all(page)
    assert lab.failed_cells(page) == ["ValueError: broken"]
    cells = lab.cells(page)
    assert look(page, 0, cells[0]) == ["cell 0: a broken picture: Nothing.", "cell 0: a picture without alt"]
    assert look(page, 3, cells[3]) == ["cell 3: no control"]
    assert look(page, 4, cells[4]) == ["cell 4: a broken picture: Gone."]
    assert {failed.split(" http")[0] for failed in page.failed} == {"404"}
    page.set_default_timeout(2_000)
    try:
        for place in (1, 2):  # a frame that draws nothing, a control that changes nothing
            with pytest.raises(Exception, match="Timeout 2000ms exceeded"):
                look(page, place, cells[place])
    finally:
        page.set_default_timeout(lab.PATIENCE * 1000)


def test_the_driver_sees_what_leaves_the_machine(page):
    page.goto("about:blank")
    page.strangers.clear()
    page.set_content("<img src='http://example.invalid/x.png'><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>")
    assert page.strangers == ["http://example.invalid/x.png"]


def test_a_port_that_is_taken_is_left_to_who_has_it(tmp_path, monkeypatch):
    """Between the search for a free port and the server's start another program may take it."""
    serve = (
        "import http.server, sys; port = int(sys.argv[1].partition('=')[2]); (here := sys.argv[2].partition('=')[2])"
    )
    serve += """
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == here + "api" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()"""
    with socket.socket() as other, socket.socket() as free:
        other.bind(("127.0.0.1", 0)), other.listen()
        free.bind(("127.0.0.1", 0))
        ports = [other.getsockname()[1], free.getsockname()[1]]
        free.close()
        monkeypatch.setattr(lab, "free_port", lambda: ports.pop(0))
        server, url = lab.start([sys.executable, "-c", serve], dict(os.environ), tmp_path / "log")
        try:
            assert ports == []
            assert urlopen(f"{url}/api").status == 200
        finally:
            server.kill()
            server.wait()
