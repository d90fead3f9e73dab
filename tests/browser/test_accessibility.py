"""What jupyterlab-a11y-checker says of a lesson in JupyterLab: nothing. axe-core looks at the site in test_site.py."""

import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook

sys.path.insert(0, str(Path(__file__).parent))
import lab

pytestmark = pytest.mark.full

MISTAKES = """# Sample

#### A heading that skips two levels

![](_static/model.svg)

[Click here](https://example.org), or do it later:

- [ ] a box without a label

<table><tr><td>a table without a header</td></tr></table>"""


@pytest.fixture(scope="module")
def server(course):
    """JupyterLab with the checker, which asks a server of fonts and so is off in all other tests."""
    nb = new_notebook(cells=[new_markdown_cell(MISTAKES)])
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nb, course / "mistakes.ipynb")
    with lab.jupyterlab(course, checker=True) as url:
        yield url


def findings(page, server, name):
    page.goto(f"{server}/lab/workspaces/w{time.monotonic_ns()}/tree/{name}?reset", wait_until="domcontentloaded")
    # A panel has an empty cell before it has its notebook, and in that nothing would be found but a missing heading.
    page.wait_for_selector(".jp-NotebookPanel .jp-RenderedMarkdown h1")
    page.wait_for_function("() => window.jupyterapp.shell.currentWidget?.context?.isReady")
    page.locator(".analyze-control-button").first.click()
    page.wait_for_selector(".no-issues, .issue-header", state="attached")
    titles = [found.text_content().strip() for found in page.query_selector_all(".issue-header")]
    return titles + [found.text_content().strip() for found in page.query_selector_all(".offending-snippet")]


def test_mistakes_are_found(page, server):
    found = findings(page, server, "mistakes.ipynb")
    for title in ("Missing Alt Text", "Wrong Heading Order", "Missing Table Header", "Link Text Not Descriptive"):
        assert title in found
    assert any("checkbox" in snippet for snippet in found)


@pytest.mark.parametrize("name", ["03_what_do_heads_look_at.ipynb", "more/08_voita_appendix_a.ipynb"])
def test_nothing_is_found_in(page, server, name):
    assert findings(page, server, name) == []


@pytest.mark.weekly  # five minutes
def test_nothing_is_found_in_any_lesson(page, server, course):
    names = sorted(str(path.relative_to(course)) for path in course.rglob("[01]*.ipynb"))
    assert {name: found for name in names if (found := findings(page, server, name))} == {}
