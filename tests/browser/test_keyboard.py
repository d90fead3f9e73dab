"""A lesson without a mouse: run, answer, read the hint, unfold the solution, move a slider, go to the next lesson."""

import lab
import pytest

pytestmark = pytest.mark.full

AT = """() => {
    const notebook = window.jupyterapp.shell.currentWidget.content, focus = document.activeElement;
    const cell = notebook.widgets.findIndex(cell => cell.node.contains(focus));
    return {cell, active: notebook.activeCellIndex, mode: notebook.mode, tag: focus.tagName, text: focus.textContent,
            role: focus.getAttribute('role')};
}"""
RIGHT = "{kind: sites[kind].n_heads for kind in ('encoder', 'decoder', 'cross')}"


@pytest.fixture(autouse=True)
def no_mouse(page, monkeypatch):
    """Whatever a mouse would do fails; keys go where the focus is, as they do for a reader."""

    def refuse(*_, **__):
        raise AssertionError("this test has no mouse")

    for name in ("click", "dblclick", "hover", "tap", "focus", "check", "fill", "select_option", "drag_and_drop"):
        monkeypatch.setattr(page, name, refuse)


def press(page, key, until="true"):
    """Press a key and wait until JupyterLab has followed: the focus is in the active cell, and what is asked for."""
    page.keyboard.press(key)
    page.wait_for_function(f"() => {{ const at = ({AT})(); return at.cell === at.active && ({until}); }}")


def go_to(page, place, key="Shift+Enter"):
    """Press a key, one cell at a time, until the cell is the active one; with Shift+Enter all before it are run."""
    step = -1 if key == "ArrowUp" else 1
    while (at := page.evaluate(AT)["active"]) != place:
        press(page, key, f"at.active === {at + step} && at.mode === 'command'")


def tab_to(page, wanted, most=15):
    """Press Tab until the focus is on what is wanted, which must be within the cell or the next one."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate(f"() => {{ const focus = document.activeElement; return {wanted}; }}"):
            return
    pytest.fail(f"{most} times Tab do not lead to {wanted}, but to {page.evaluate(AT)}")


def write(page, text):
    """Write into the active cell, in place of what stands there, and run it."""
    place = page.evaluate(AT)["active"]
    press(page, "Enter", "at.mode === 'edit' && at.role === 'textbox'")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(text)
    press(page, "Shift+Enter", f"at.active === {place + 1} && at.mode === 'command'")


def output(page, place, words):
    """Wait until the cell's output holds the words, and give its text."""
    find = "window.jupyterapp.shell.currentWidget.content.widgets[place].outputArea.node.innerText"
    page.wait_for_function(f"([place, words]) => {find}.includes(words)", arg=[place, words])
    return page.evaluate(f"place => {find}", place)


def where(page, words):
    """The places of the cells whose source holds the words."""
    return [place for place, cell in enumerate(lab.cells(page)) if words in "".join(cell["source"])]


def open_by_link(page, name):
    """Press Enter on the link that has the focus and wait for the lesson it leads to."""
    page.keyboard.press("Enter")
    page.wait_for_function(
        "name => window.jupyterapp.shell.currentWidget?.context?.path === name"
        " && document.activeElement.closest('.jp-Notebook')",
        arg=name,
    )


def test_a_lesson_without_a_mouse(page, server, course):
    lessons = sorted(path.name for path in course.glob("[0-9][0-9]_*.ipynb"))
    lab.open_notebook(page, server, lessons[0])
    page.wait_for_function(f"() => ({AT})().cell === 0")  # a reader who has opened it is in its first cell

    (check,), (stub, *_) = where(page, 'ht.check("00.count"'), where(page, "count = {")
    go_to(page, stub)
    write(page, "count = {'encoder': 8, 'decoder': 48, 'cross': 48}")
    go_to(page, check + 1)
    assert "not it. That is the number of heads in one layer." in output(page, check, "Not yet")

    tab_to(page, "focus.matches('summary')")
    unfolded = "document.activeElement.closest('details').open"
    assert not page.evaluate(unfolded)
    press(page, "Enter", unfolded)

    go_to(page, stub, "ArrowUp")
    write(page, f"count = {RIGHT}")
    go_to(page, check + 1)
    output(page, check, "Right")

    page.keyboard.press("b")  # a new cell below
    page.wait_for_function(f"() => ({AT})().active === {check + 2}")
    write(page, "ht.check.summary()")
    hint = output(page, check + 2, "1 of ")
    assert "✓ count" in hint
    assert "○ switch_off" in hint
    go_to(page, check + 2, "ArrowUp")
    tab_to(page, "focus.matches('table a') && focus.textContent.startsWith('01')")
    open_by_link(page, lessons[1])  # the progress page leads to the lessons

    lab.open_notebook(page, server, lessons[0])
    (explorer,) = where(page, "ht.explore(")
    go_to(page, explorer + 1)
    output(page, explorer, "the organism gives")
    go_to(page, explorer, "ArrowUp")
    picture = "document.querySelector('.widget-vbox img')"
    page.wait_for_function(f"() => {picture}")
    before = page.evaluate(f"{picture}.src")
    tab_to(page, "focus.matches('.widget-vbox select')")  # all heads, beside their maps
    page.keyboard.press("Home")  # or a head's number; arrow keys go to JupyterLab, from cell to cell
    page.wait_for_function(f"before => {picture}.src !== before", arg=before)

    tab_to(page, "!focus.closest('.widget-vbox')")  # keys belong to the menu while it has the focus
    go_to(page, len(lab.cells(page)) - 1, "ArrowDown")
    tab_to(page, "focus.matches('a') && focus.textContent.startsWith('01')")
    open_by_link(page, lessons[1])
    assert (page.strangers, page.errors, page.failed) == ([], [], [])
