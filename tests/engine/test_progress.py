"""The bar is there while the work goes on and nowhere afterwards."""

import pytest

from headtools._engine.progress import progress

LOOP = "from headtools._engine.progress import progress\nfor i in progress(range(3), 'counting'):\n    {}"


def run(*cells):
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(nb, kernel_name="python3")
    shown = []
    process = client.process_message

    def watch(message, cell, index):
        data = message["content"].get("data", {})
        if message["msg_type"] == "comm_msg" and "value" in data.get("state", {}):
            shown.append(data["state"]["value"])
        return process(message, cell, index)

    client.process_message = watch
    try:
        client.execute()
    except CellExecutionError:
        assert nb.cells[0].outputs
    return nb, shown


def test_shows_each_step_and_leaves_nothing_in_the_notebook():
    nb, shown = run(LOOP.format("pass") + "\nprint('done')")
    assert shown == [1, 2, 3]
    assert [output.output_type for output in nb.cells[0].outputs] == ["stream"]
    assert nb.cells[0].outputs[0].text == "done\n"


def test_vanishes_after_an_error_too():
    nb, shown = run(LOOP.format("1 / (1 - i)"))
    assert shown == [1]
    assert [output.output_type for output in nb.cells[0].outputs] == ["error"]


def test_the_bar_counts_in_a_kernel(monkeypatch):
    """The same without a kernel of its own."""
    import ipywidgets
    from IPython import display as shown

    from headtools._engine import progress as module

    bars, made, cleared = [], [], []
    plain = ipywidgets.IntProgress
    monkeypatch.setattr(ipywidgets, "IntProgress", lambda **given: bars.append(plain(**given)) or bars[-1])
    monkeypatch.setattr(shown, "display", lambda bundle, raw: made.append((bundle, raw)))
    monkeypatch.setattr(shown, "clear_output", lambda: cleared.append(True))
    monkeypatch.setattr(module, "_has_kernel", lambda: True)
    steps = progress("abc", "spelling")
    assert next(steps) == "a"
    (bar,) = bars
    assert (bar.value, bar.max, bar.description) == (0, 3, "spelling")
    assert bar.style.description_width == "initial", "as wide as its words"
    assert list(made[0][0]) == [module._WIDGET_MIME_TYPE]
    assert made[0][1] is True
    next(steps)
    assert bar.value == 1
    assert not cleared
    assert list(steps) == ["c"]
    assert bar.value == 3
    assert cleared == [True]


def test_outside_a_notebook_it_is_a_plain_bar(capsys):
    assert list(progress([4, 5], "adding")) == [4, 5]
    shown = capsys.readouterr().err
    assert "adding" in shown
    assert not shown.endswith("\n"), "the bar's line is wiped, not left"


@pytest.mark.parametrize(("items", "label", "kind"), [(iter([1]), "x", TypeError), ([1], " ", ValueError)])
def test_bad_input(items, label, kind):
    with pytest.raises(kind):
        progress(items, label)
