"""A lesson in JupyterLab: everything runs, everything is drawn, every control is moved, nothing leaves the machine."""

import shutil

import lab
import pytest

WIDGET = "application/vnd.jupyter.widget-view+json"
CONTROLS = "select, input[type=checkbox], input[type=text], button:not(.headtools-thumb), .noUi-handle"  # of ipywidgets
FRAME = 20  # nodes that a drawn attention view has at least


def lesson_test(*numbers):
    """The test of these lessons, a new function for each file."""

    @pytest.mark.parametrize("number", numbers)
    def test_lesson(page, server, root, course, number):
        # As they are stored: JupyterLab may have saved the lesson before, and lesson 12 reads the others.
        shutil.copytree(root / "notebooks", course, dirs_exist_ok=True)
        (path,) = course.glob(f"{number}_*.ipynb")
        lab.open_notebook(page, server, path.name)
        try:
            lab.run_all(page)
            assert lab.failed_cells(page) == []
            wrong = [fault for place, cell in enumerate(lab.cells(page)) for fault in look(page, place, cell)]
            assert wrong == []
            assert (page.strangers, page.errors, page.failed) == ([], [], [])
        finally:
            close(page)

    return test_lesson


def look(page, place, cell):
    """Look at one cell as a reader does who scrolls; gives what is wrong with its outputs."""
    outputs = [out.get("data", {}) for out in cell.get("outputs", [])]
    html = [data.get("text/html", "") for data in outputs]
    if not any(html) and not any(WIDGET in data for data in outputs):
        return []
    node = lab.show_cell(page, place)
    wrong = [f"cell {place}: {fault}" for fault in pictures(page, node)]
    for frame in frames(node):
        frame.locator("svg *").nth(FRAME - 1).wait_for(state="attached")
    if len(frames(node)) != sum("".join(part).count("<iframe") for part in html):
        wrong.append(f"cell {place}: {len(frames(node))} frames")
    if any(WIDGET in data for data in outputs):
        node.wait_for_selector(".jupyter-widgets :is(*)", state="attached")
        moved = move_all(page, node)
        if "explore(" in "".join(cell["source"]) and not moved:
            wrong.append(f"cell {place}: no control")
    return wrong


def pictures(page, node):
    """Wait until all pictures are loaded; gives those that are broken or have no text for who cannot see them.

    Where there is no text, JupyterLab writes "Image".
    """
    page.wait_for_function("node => [...node.querySelectorAll('img')].every(img => img.complete)", arg=node)
    return node.eval_on_selector_all(
        "img",
        """all => all.filter(i => !i.naturalWidth || ['', 'Image'].includes(i.alt.trim()))
                      .map(i => i.naturalWidth ? 'a picture without alt' : `a broken picture: ${i.alt}`)""",
    )


def frames(node):
    """The pages inside the frames of a cell's outputs."""
    return [found.content_frame() for found in node.query_selector_all("iframe")]


def move_all(page, node):
    """Move each control once and wait until the picture is another, if there is one; gives how many there were.

    The line of a prediction has no picture.
    """
    controls = [c for c in node.query_selector_all(CONTROLS) if c.evaluate("c => !!c.closest('.jupyter-widgets')")]
    for control in controls:
        before = node.evaluate("node => node.querySelector('.widget-vbox img')?.src")
        move(page, control)
        if before is None:
            continue
        page.wait_for_function(
            "([node, before]) => (node.querySelector('.widget-vbox img')?.src ?? before) !== before",
            arg=[node, before],
        )
    return len(controls)


def move(page, control):
    """Move a control as a hand would: a slider by an arrow key, a menu to its next entry, a box or a button by a click.

    A line of text gets another letter and Enter.
    """
    if "noUi-handle" in (control.get_attribute("class") or ""):
        control.focus()
        at_the_end = control.get_attribute("aria-valuenow") == control.get_attribute("aria-valuemax")
        page.keyboard.press("ArrowLeft" if at_the_end else "ArrowRight")
    elif control.evaluate("c => c.tagName") == "SELECT":
        control.select_option(index=control.evaluate("m => (m.selectedIndex + 1) % m.options.length"))
    elif control.get_attribute("type") == "text":
        control.fill(control.input_value() + "a")
        control.press("Enter")
    else:
        control.click()


def close(page):
    """End the kernel, which holds up to a gigabyte, and leave the page."""
    page.evaluate("async () => { await window.jupyterapp?.serviceManager.sessions.shutdownAll() }")
    page.goto("about:blank")
