"""The site's pages: what they repeat is taken from where it is told, and every example of the API runs."""

import copy
import json
import re
from pathlib import Path
from urllib.parse import unquote

import honest_minutes
import make_live_page
import make_site
import nbformat
import pytest
import site_card
import site_claims
import site_lessons
import site_reference
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import headtools as ht
from headtools import geometry
from headtools.course.claims import Others


@pytest.fixture(scope="module")
def cards(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards")
    return site_lessons.lessons(root / "notebooks", root / "README.md", folder, "_static/cards"), folder


def test_every_lesson_has_a_card_with_a_picture_of_its_own(cards):
    from PIL import Image

    found, folder = cards
    assert [card.number for card in found] == [f"{n:02}" for n in range(13)]
    pictures = {(folder / f"{card.number}.png").read_bytes() for card in found}
    assert len(pictures) == 13
    for card in found:
        with Image.open(folder / f"{card.number}.png") as image:
            assert image.size == card.size
            assert len(image.getcolors(10**6)) > 20, f"the picture of {card.number} is nearly empty"
        assert card.question.endswith("?")
        assert card.difficulty in (1, 2, 3)


def test_where_a_lesson_was_leads_to_where_it_is(root):
    lessons = {path.stem for path in (root / "notebooks").glob("[0-9][0-9]_*.ipynb")}
    assert set(make_site.MOVED.values()) <= lessons
    assert not make_site.MOVED.keys() & lessons


def test_each_notebook_has_its_doors(root, tmp_path):
    """Binder opens the reader's copy, Colab the file of the repository, the download is the notebook to begin with."""
    make_site.downloads(tmp_path / "notebooks")
    assert len(make_site.notebooks()) >= 26
    for name in make_site.notebooks():
        binder, colab, download = re.findall(r'href="([^"]+)"', make_site.doors(name))
        assert unquote(binder).endswith(f"?urlpath=lab/tree/my-lessons/{name}")
        assert colab.endswith(f"/blob/main/notebooks/{name}")
        file = (tmp_path / Path(name).parent / download).resolve()
        cells = json.loads(file.read_text("utf-8"))["cells"]
        assert not any(cell.get("outputs") for cell in cells)
        text = "".join("".join(cell["source"]) for cell in cells)
        assert f"]({make_site.home()}_static/" in text or name.startswith("more/")
        assert "](_static" not in text
        assert "](../_static" not in text


def test_the_page_of_a_notebook_ends_its_first_cell_with_the_doors(tmp_path):
    make_site.gather(tmp_path / "source")
    for name in make_site.notebooks():
        top = nbformat.read(tmp_path / "source" / name, as_version=4).cells[0].source
        assert top.endswith(f"\n\n{make_site.doors(name)}")


def test_minutes_are_those_of_the_lessons(cards, root):
    measured = json.loads((root / "notebooks" / "measured.json").read_text("utf-8"))["lessons"]
    for card in cards[0]:
        assert abs(card.running * 60 - measured[Path(card.page).stem]["seconds"]) <= 60
        assert 30 <= card.minutes <= 400


def test_an_honest_minute_counts_text_code_predictions_and_exercises():
    text = "one two three " * 100
    exercise = "### Exercise 1 · Do it\n\n*Goal: a thing. Difficulty 2 of 3, about 10 minutes.*"
    investigation = "## Investigation\n\n*About 30 minutes. There is a rubric.*\n\nThis takes about 5 minutes."
    figure = new_output("display_data", {"text/html": f"<figure><figcaption>{'a ' * 100}</figcaption></figure>"})
    cells = [
        new_markdown_cell(f"{text}\n\n```python\n{text}\n```\n<details><summary>Solution</summary>{text}</details>"),
        new_markdown_cell(exercise),
        new_markdown_cell(investigation),
        new_code_cell("if not there:\n    install()\n\nimport torch"),
        new_code_cell("import torch\n\nx = 1\n\ny = (\n    2\n)", outputs=[figure]),
        new_code_cell("def f(x):\n    ..."),
        new_code_cell('ht.predict("00.a")'),
        new_code_cell("x = 1", metadata={"jupyter": {"source_hidden": True}}),
    ]
    notebook = new_notebook(cells=cells)
    assert 2.6 < honest_minutes.text_minutes(notebook) < 3  # 400 words and a few; neither code nor the solution
    assert honest_minutes.exercise_minutes(notebook) == 10
    assert honest_minutes.code_lines(notebook) == 4
    assert honest_minutes.predictions(notebook) == 1
    assert honest_minutes.honest_minutes(notebook, seconds=120) == 15  # 2.8 + 10 + .4 + 1.5 + 2


def test_a_lost_figure_is_told():
    with pytest.raises(ValueError, match=r"has no figure with .* any more: name another one in PICTURES"):
        site_lessons.picture(new_notebook(), "03")


def test_a_lost_difficulty_is_told():
    with pytest.raises(ValueError, match=r"03_a.ipynb lacks its difficulty: write \*\*Difficulty"):
        site_lessons.difficulty("03_a.ipynb", "# 03")


def test_the_claims_page_has_every_row_of_the_ledger(root):
    told = json.loads((root / "notebooks" / site_claims.READ).read_text("utf-8"))["rows"]
    page = make_site.claims()
    assert re.findall(r'<tr id="claim-(\S+)"', page) == sorted(told, key=site_claims.order)
    rows = site_claims.entries(root / "notebooks")
    assert sum(site_claims.counts(rows).values()) == len(told)
    assert {entry["topic"] for entry in rows.values()} <= set(site_claims.TOPICS.values())
    assert page.count("<summary>What was found</summary>") == len(told)


def test_claims_are_escaped(monkeypatch):
    row = {
        "claim": "<img src=x onerror=alert(1)>",
        "source": "a & b",
        "verdict": "right",
        "topic": "Roles",
        "found": [("<script>1</script>", None)],
    }
    monkeypatch.setattr(site_claims, "entries", lambda folder: {"0.1": row})
    for page in (make_site.claims(), make_site.claims_found()):
        assert "<img" not in page
        assert "<script>" not in page
        assert "a &amp; b" in page


def test_a_row_with_two_verdicts_is_refused(tmp_path, monkeypatch):
    (tmp_path / "ledger.json").write_text(json.dumps({"rows": ["3.99"], "read": {}}))
    for name in ("01_a.ipynb", "02_b.ipynb"):
        (tmp_path / name).touch()
    cited = {"01": ["right", "why."], "02": ["wrong", "why."]}
    row = {"row": "3.99", "claim": "c.", "source": "s", "here": ["right", "m."]}
    monkeypatch.setattr(site_claims, "ledger", lambda number: Others((row | {"cited": cited[number]},)))
    with pytest.raises(ValueError, match=r"row 3\.99 is right in one lesson, wrong in 02_b"):
        site_claims.entries(tmp_path)


# ---- the API ---------------------------------------------------------------------------------------------------------


CALLS = [call for calls in site_reference.tasks().values() for call in calls]


def test_every_public_name_has_an_example_and_a_page():
    assert sorted(call.name for call in CALLS if call.room != "geometry") == sorted(ht._WHERE)
    assert {call.name for call in CALLS if call.room == "geometry"} == set(geometry.__all__) - {"untrained"}
    pages = site_reference.pages()
    for call in CALLS:
        page, thing = pages[f"{call.room}.md"], site_reference.home(call)
        example = page.index(site_reference.laid_out(call.example))
        assert example < page.index(f":: {thing.__module__}.{thing.__name__}\n"), f"{call.name}: signature first"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """What the examples begin with, as the overview tells it; models small enough for one core."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=0,
        attn_implementation="eager",
    )
    llm = LlamaForCausalLM(shape).eval()
    model, tokenizer = ht.load()
    sentences, validation = ht.corpus("organism", "test", 12), ht.corpus("organism", "validation", 12)
    batches = ht.label(model, tokenizer, sentences[:2])
    with torch.no_grad(), ht.record(model, want="z") as seen:
        model(**batches[0])
    yield {
        "ht": ht,
        "geometry": geometry,
        "torch": torch,
        "plt": plt,
        "model": model,
        "tokenizer": tokenizer,
        "sentences": sentences,
        "validation": validation,
        "batches": batches,
        "llm": llm,
        "seen": seen,
        "tokens": torch.arange(12)[None],
        "folder": tmp_path_factory.mktemp("examples"),
    }
    plt.close("all")


@pytest.mark.full  # the doctests run the library; these are the short calls that the site shows
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_every_example_runs(call, world, capsys):
    own = world | {name: copy.deepcopy(world[name]) for name in ("model", "llm")}  # some examples cut their model
    exec(site_reference.laid_out(call.example), own)


# ---- the first page --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    (out / "_static").mkdir()
    make_site.landing(out, make_live_page.make(out / "live"))
    return out


def test_the_first_page_is_whole(first):
    page = (first / "index.html").read_text("utf-8")
    own = re.findall(r'(?:src|href)="(_static/[^"#]+|live/[^"#]+)"', page)
    (first / "_static" / "favicon.svg").touch()  # Sphinx copies it
    assert len(own) > 15
    assert not [name for name in own if not (first / name).is_file()]
    assert page.count('class="card lesson"') == 13
    assert 'property="og:image" content="https://' in page
    for far in re.findall(r'(?:src|href)="(https?://[^"]+)"', page):
        assert re.search(r"github\.com|mybinder\.org|colab\.research", far), far


def test_the_first_page_is_light(first):
    """What is needed to see it; weights come when they are wanted."""
    needed = [first / "index.html", first / "_static" / "landing.css", first / "_static" / "hero.js"]
    assert sum(path.stat().st_size for path in needed) < 150_000
    assert sum(path.stat().st_size for path in (first / "_static" / "cards").iterdir()) < 600_000


def test_the_card_has_the_size_that_is_told_and_all_three_kinds(first):
    from PIL import Image

    with Image.open(first / "_static" / "card.png") as image:
        assert image.size == site_card.SIZE == (1200, 630)
        colours = {colour for _, colour in image.getcolors(10**6)}
    assert {tuple(bytes.fromhex(hue[1:])) for hue in site_card.HUES.values()} <= colours
    assert (first / "_static" / "card.png").stat().st_size < 300_000
