"""Expected numbers: printed on every machine, compared with what this one measures, and updated for review."""

import json

import expected
import pytest
import torch

from headtools.course import catalogue
from headtools.course import predict as predict_module
from headtools.course.catalogue import entry, lesson
from headtools.course.claims import VERDICTS, ledger
from headtools.course.figure import figure
from headtools.course.measured import NotAsExpected, measured, unit
from headtools.course.predict import predicted, remember

ABOUT = {
    "a": {
        "caption": "{n} of 48 heads reach {top:.2f}.",
        "alt": "A grid of cells.",
        "expect": {"n": 3, "top": 0.98},
        "predict": "How many?",
    },
    "b": {"caption": "The error is {e}.", "expect": {"e": 0}, "tolerance": {"e": 1e-6}},
    "others": [
        {
            "row": "3.1",
            "claim": "More < less.",
            "source": "a page",
            "cited": ["right", "It says so."],
            "here": ["wrong", "Here {a[top]:.1f} of {a[n]}."],
        }
    ],
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A catalogue of two entries in place of lesson 99's."""
    for module in ("catalogue", "claims"):
        monkeypatch.setattr(f"headtools.course.{module}.lesson", lambda number: ABOUT)
    monkeypatch.delenv("HEADTOOLS_STRICT", raising=False)


def test_the_sentence_prints_what_is_expected_or_what_this_run_found():
    close, far = measured("99.a", n=3, top=torch.tensor(0.9851)), measured("99.a", n=4, top=0.95)
    assert str(close) == close.sentence == far.usual == "3 of 48 heads reach 0.98."
    assert far.sentence == "4 of 48 heads reach 0.95."
    assert far.off == ("n is 4, expected 3", "top is 0.95, expected 0.98 to within 0.01")
    assert str(far) == "4 of 48 heads reach 0.95. That is your run. Our run: 3 of 48 heads reach 0.98."
    assert "That is your run." in far._repr_mimebundle_()["text/html"]
    assert measured("99.a", n=4.0, top=0.98).sentence.startswith("4 of 48")
    assert measured("99.b", e=-9e-7).off == ()
    assert measured("99.b", e=float("nan")).off


def test_a_caption_is_evaluated_in_the_names_of_the_notebook(monkeypatch):
    scores = torch.tensor([0.99, 0.2, 0.985, 0.98])
    monkeypatch.setitem(ABOUT["a"], "values", {"n": "sum(s > scores[1] for s in scores)", "top": "scores[2]"})
    assert measured("99.a").sentence == "3 of 48 heads reach 0.98."
    assert measured("99.a", n=5).off == ("n is 5, expected 3",)  # what is given goes before
    monkeypatch.setitem(ABOUT["a"], "values", {"n": "len(names)", "top": "scores[2]"})
    with pytest.raises(NameError, match=r"99\.a needs names, which is not defined: run the cells above first"):
        measured("99.a")
    # a cell of a notebook has its names as globals
    cell = {"measured": measured, "names": [1, 2, 3], "scores": scores}
    exec('found = measured("99.a")', cell)
    assert cell["found"].off == ()


def test_what_was_loaded_says_so(monkeypatch):
    monkeypatch.setitem(ABOUT["b"], "loaded", "the shipped tables")
    assert measured("99.b", e=0).check == "Loaded from the shipped tables."
    monkeypatch.setitem(ABOUT["a"], "partly_loaded", "the shipped tables")
    assert measured("99.a", n=3, top=0.98).check.endswith("except for what was loaded from the shipped tables.")


def test_a_number_that_is_off_fails_where_the_course_is_tested(monkeypatch):
    monkeypatch.setenv("HEADTOOLS_STRICT", "1")
    with pytest.raises(NotAsExpected, match="n is 4, expected 3"):
        measured("99.a", n=4, top=0.98)


@pytest.mark.parametrize(
    ("caption", "value", "step"),
    [
        ("{x:.2f}", 0.5, 0.01),
        ("{x:.0%}", 0.5, 0.01),
        ("{x:.1%}", 0.5, 0.001),
        ("{x}", 3, 0),
        ("{x:,}", 30_000, 0),
        ("{x:.0f}", 16.2, 1),
        ("{x:.1e}", 3.2e-5, 1e-6),
        ("{x:.0f} {x:.3f}", 1.0, 0.001),
        ("no number", 0.25, 0.01),
        ("{x:.2f} and", -0.5, 0.01),
    ],
)
def test_the_tolerance_is_one_unit_of_the_last_digit(caption, value, step):
    assert unit(caption, "x", value) == pytest.approx(step)


def test_names_must_be_those_of_the_catalogue():
    with pytest.raises(ValueError, match=r"99\.a expects n, top; got n"):
        measured("99.a", n=3)
    with pytest.raises(KeyError, match="no entry 'c'; it has a, b"):
        measured("99.c")


def test_a_figure_takes_caption_and_description_from_its_entry():
    from matplotlib import pyplot as plt

    remember("99.a", "10")
    picture = figure(plt.figure(), "99.a", n=3, top=0.98)
    assert 'alt="A grid of cells."' in picture.html
    assert "3 of 48 heads reach 0.98. <b>You predicted: 10.</b> <small>Measured in this run" in picture.html
    assert repr(figure(None, "99.b", e=0)) == "The error is 0."
    remember("99.a", "")
    assert predicted("99.a") == ""


def test_what_others_write_has_two_verdicts_and_expected_numbers():
    table = ledger("99")
    html = table._repr_mimebundle_()["text/html"]
    assert "Here 1.0 of 3." in html
    assert "More &lt; less." in html
    assert "wrong" in html
    assert "right" in html
    assert "right. It says so." in repr(table)


def test_the_shipped_catalogues_are_whole(monkeypatch):
    monkeypatch.undo()
    for file in catalogue.files(catalogue.__name__).iterdir():
        if not file.name.endswith(".toml"):
            continue
        number = file.name[:2]
        for name, about in lesson(number).items():
            if isinstance(about, dict) and "caption" in about:
                measured(f"{number}.{name}", **about.get("expect", {}))  # every field of the caption has a number
                assert about.get("alt") != about["caption"]
                assert about.get("tolerance", {}).keys() <= about.get("expect", {}).keys()
        for row in ledger(number).rows:
            assert all(row[part][0] in VERDICTS and row[part][1] for part in ("cited", "here"))
    assert entry("01.weights")["predict"]


def test_differences_are_found_rounded_and_told(tmp_path):
    changed, lines, off = expected.differences({"99.a": {"n": 4, "top": 0.98499}, "99.b": {"e": 1e-8}})
    assert (changed, off) == ({"99.a": {"n": 4, "top": 0.98}}, True)
    assert lines == ["99.a n: 3 -> 4"]
    changed, lines, off = expected.differences({"99.a": {"n": 3, "top": 0.9851}})
    assert (changed, off) == ({"99.a": {"n": 3, "top": 0.99}}, False)  # near, but it would print another digit
    assert expected.differences({"99.a": {"n": 3, "top": 0.98}}) == ({}, [], False)


def test_only_the_expectation_is_rewritten(tmp_path):
    text = '# about\n[a]\nalt = "x"\nexpect = { n = 3 }\ntolerance = { n = 1 }\n\n[b]\nexpect = { e = 0 }\n'
    (tmp_path / "99.toml").write_text(text)
    expected.write({"99.a": {"n": 4, "top": 0.5}}, tmp_path)
    assert (tmp_path / "99.toml").read_text() == text.replace("{ n = 3 }", "{ n = 4, top = 0.5 }")
    with pytest.raises(ValueError, match=r"no entry \[c\]"):
        expected.write({"99.c": {"n": 4}}, tmp_path)


@pytest.mark.full  # a kernel of its own
def test_a_reader_types_a_prediction_that_is_kept_and_shown_again(tmp_path, monkeypatch):
    """JupyterLab names the cell that it runs: then there is a line to type in, and the caption repeats it.

    What is typed comes in a message of the widget, which names no cell; it is kept all the same.
    """
    from jupyter_client.manager import start_new_kernel

    monkeypatch.setenv("HEADTOOLS_PROGRESS", "")
    monkeypatch.delenv("HEADTOOLS_STRICT", raising=False)
    cells = [
        "import headtools as ht; from headtools.course import predict as p; ht.predict('01.cost')",
        "p._given.clear()",
        "ht.measured('01.cost', one=2359296, sixteen=2359296)",
        "p._given.clear(); ht.predict('01.cost')",
    ]
    manager, client = start_new_kernel(cwd=str(tmp_path))
    try:
        outputs = [_run(client, cells[0], {"cellId": "a"})]
        replaced = _type(client, outputs[0][1], "16 <b>%")
        outputs += [_run(client, cell, {"cellId": "a"}) for cell in cells[1:]]
        unseen = _run(client, "p._given.clear(); ht.predict('01.cost')", {})
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert ["application/vnd.jupyter.widget-view+json" in data for data in outputs[0]] == [False, True]
    assert "Noted: 16 &lt;b&gt;%. Run the next cell." in replaced["text/html"]
    assert json.loads((tmp_path / "my-predictions.json").read_text()) == {"01.cost": "16 <b>%"}
    assert "You predicted: 16 <b>%." in outputs[2][0]["text/plain"]
    assert "Noted" not in outputs[0][0]["text/html"]
    assert "Noted: 16 &lt;b&gt;%. Run the next cell." in outputs[3][0]["text/html"]  # opened another day
    assert [set(data) for data in unseen] == [{"text/html", "text/plain"}]


def _type(client, shown, answer):
    """Type an answer into a line as JupyterLab's widget does; gives what replaces the question."""
    model = shown["application/vnd.jupyter.widget-view+json"]["model_id"]
    data = {"method": "update", "state": {"value": answer}, "buffer_paths": []}
    client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": model, "data": data}))
    while (reply := client.get_iopub_msg(timeout=120))["msg_type"] != "update_display_data":
        pass
    return reply["content"]["data"]


def _run(client, code, metadata):
    """Run code as a front end does that sends this metadata; gives what is displayed."""
    message = client.session.msg(
        "execute_request", {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    )
    message["metadata"] = metadata
    client.shell_channel.send(message)
    shown = []
    while True:
        reply = client.get_iopub_msg(timeout=120)
        if reply["parent_header"].get("msg_id") != message["header"]["msg_id"]:
            continue
        if reply["msg_type"] in ("display_data", "execute_result"):
            shown.append(reply["content"]["data"])
        assert reply["msg_type"] != "error", reply["content"]
        if reply["content"].get("execution_state") == "idle":
            return shown


@pytest.mark.parametrize("held", ["[]", "null", '{"01.cost": 1}', "{", "\x00"])
def test_a_file_of_predictions_that_holds_something_else_stops_no_lesson(held, tmp_path, monkeypatch):
    monkeypatch.setattr(predict_module, "attended", lambda: True)
    monkeypatch.setenv("HEADTOOLS_PROGRESS", str(tmp_path / "my-progress.json"))
    monkeypatch.setattr(predict_module, "_given", {})
    file = tmp_path / "my-predictions.json"
    file.write_text(held)
    assert predicted("01.cost") == ""
    remember("01.cost", "16", keep=True)
    assert predicted("01.cost") == "You predicted: 16."
    assert file.read_text() == held  # not ours to overwrite
