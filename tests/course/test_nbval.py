"""A notebook with everything the lessons show passes strict nbval, and fails when a word is stale."""

import os
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

pytestmark = pytest.mark.full  # the lessons themselves are compared in each run
CELLS = [
    """import torch
import headtools as ht
torch.manual_seed(0)
tokens = ["the", "quick", "</script>", "$fox$"]
maps = [torch.rand(1, 2, 4, 4).softmax(-1) for _ in range(2)]""",
    'ht.measured("01.mask", before=1.0, after=0.2521)',
    """fig = ht.plot.maps(maps[0], tokens, layer="encoder 0")
ht.figure(fig, claim="Two random heads look everywhere.", alt="Two grids of four by four middling cells.")""",
    """def look(layer, head):
    fig = ht.plot.matrix(maps[layer][0, head], rows=tokens, columns=tokens)
    return fig, f"encoder {layer}.{head}"
ui = ht.explore(look, layer=(0, 1), head=[0, 1])
ui""",
    'ui.controls["layer"].value = 1\nui.text',
    'ht.attention_view(maps, tokens, alt="Grey lines of equal weight.")',
    'ht.ledger("01")',
    "ht.ledger()",
    'ht.check("01.cost", ...)',
    'ht.check("01.split", lambda x, heads: x)',
]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    nb = new_notebook(cells=[new_code_cell(source, id=f"cell-{i}") for i, source in enumerate(CELLS)])
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    NotebookClient(nb, timeout=120, store_widget_state=False).execute()
    path = tmp_path_factory.mktemp("nbval") / "shown.ipynb"
    nbformat.write(nb, path)
    return path


def nbval(folder, root):
    """Run strict nbval over a folder; gives its summary line and all it printed."""
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", f"--rootdir={folder}", "-p", "no:cacheprovider", "-q"]
    command += [
        "--nbval",
        "--nbval-current-env",
        f"--nbval-sanitize-with={root / 'tests' / 'sanitize.cfg'}",
        str(folder),
    ]
    alone = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout.strip().splitlines()[-1], done.stdout


def test_strict_nbval_passes_and_sees_a_stale_word(notebook, root):
    stale = notebook.parent / "stale" / "stale.ipynb"
    stale.parent.mkdir()
    text = notebook.read_text("utf-8")
    assert text.count("Two grids of four by four") == 2  # in the source and in the stored alt text
    at = text.rindex("Two grids of four by four")
    stale.write_text(text[:at] + text[at:].replace("Two grids", "Ten grids", 1), "utf-8")
    last, output = nbval(stale.parent, root)
    assert last.startswith(f"1 failed, {len(CELLS) - 1} passed"), output
    assert "stale.ipynb::Cell 2" in output


def test_sizes_and_plain_texts(notebook):
    nb = nbformat.read(notebook, as_version=4)
    outputs = [output for cell in nb.cells for output in cell.outputs]
    assert len(outputs) == len(CELLS)  # the first cell shows nothing, explore shows two
    assert all(len(str(output)) < 150_000 for output in outputs)
    assert all(output.data["text/plain"].strip() for output in outputs)
    assert not any(output.output_type in ("error", "stream") for output in outputs)
