"""Every exercise takes every right method, calls a blank a blank, and has one fitting hint for each mistake."""

import gc
import importlib.util
import re
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from headtools.course.check import CheckResult, all_exercises, check


def answers():
    """The answers in the files answers_NN.py beside this one, by exercise."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("answers_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found |= module.ANSWERS
    return found


def not_implemented(*_):
    raise NotImplementedError


ANSWERS = answers()
# Of every exercise that asks for a function; "blank" in ANSWERS are those of the others.
BLANKS = [not_implemented, lambda *_: None, lambda *_: ...]


def test_every_exercise_has_its_answers():
    assert set(ANSWERS) == set(all_exercises())
    assert all(len(a["right"]) >= 2 and len(a["wrong"]) >= 3 for a in ANSWERS.values())


@pytest.mark.parametrize("name", ANSWERS)
def test_right_blank_and_wrong_answers(name):
    answers = ANSWERS[name]
    for answer in answers["right"]:
        result = check(name, answer)
        assert (result.status, result.hint, result.passed) == ("right", "", True), result
    for answer in (None, ..., *answers.get("blank", BLANKS)):
        result = check(name, answer)
        assert (result.status, result.passed) == ("not tried yet", False), result
    for answer, hint in answers["wrong"]:
        result = check(name, answer)
        assert (result.status, result.passed) == ("not yet", False), result
        assert re.search(f"(?s){hint}", result.hint), result
    gc.collect()  # one wrong answer leaves a context open, as long as its model is there


@pytest.mark.parametrize("name", ANSWERS)
def test_no_hint_holds_the_solution(name):
    """Hints name the idea; the lines that would pass are nowhere in them."""
    solution = {
        "00.switch_off": r"register_forward_pre_hook\(|\.clone\(\)",
        "00.count": r"\b48\b",
        "01.softmax": r"masked_fill|softmax\(-1\)|softmax\(dim",
        "01.attention": r"@ K|softmax\(-1\)|masked_fill",
        "01.record": r"register_forward_hook\(|output\[1\]\.detach",
        "01.split": r"\.transpose\(|\.permute\(|\.chunk\(",
        "01.sum": r"einsum|W_o\[|\.view\(",
        "01.cost": r"4 ?\*? ?T|2 ?\*? ?T",
        "02.ov": r"transpose\(|\.mT",
        "02.qk": r"transpose\(|\.mT",
        "02.overlap": r"svdvals|square\(",
        "02.swap": r"allclose|a\.T|svd|norm",
        "02.rank": r"\.exp\(|entr\(p",
        "02.offset": r"torch\.(cat|diag)\(",
        "03.positional": r"argmax\(-1\)|\.diagonal\(|\.mean\(",
        "03.baseline": r"Counter|most_common|\.count\(",
        "03.aer": r"1 - \(|len\(proposed",
        "03.words": r"one_hot|@|sum\(0\)",
        "03.dies": r"stays.{0,12}4\.3.*dies.{0,12}3\.4",
        "04.gradient": r"softmax\(|X\.T|len\(X",
        "04.control": r"random\.choice",
        "04.remove": r"\(z @ v\)|v @ v",
        "04.attach": r"einsum|argmax",
        "05.induction": r"diagonal\(|\.mean\(|\[:, ?length",
        "05.chance": r"1 / \(|range\(",
        "05.jump": r"argmax|\.diff\(|loss\[:-1\]",
        "11.luck": r"\*\* ?roles|1 - \(1",
        "11.honest": r"argmax",
        "11.margin": r"gather|scatter|amax",
        "06.importance": r"backward\(|autograd|\.abs\(",
        "06.cancel": r"\[\[",
        "06.forms": r"sum\(|einsum|maps \*",
        "06.removal": r"bends / 2|\.mean\(",
        "06.interaction": r"whole \+|- without_|\.mean\(",
        "07.epsilon": r"@|einsum|\.sign\(|torch\.where",
        "07.signs": r"alpha \* plus|clamp\(",
        "07.softmax": r"softmax\(-1\)|\.sum\(",
        "07.shares": r"keepdim|\.abs\(|normalize",
        "08.gate": r"sigmoid\(|clamp\(|logit\(",
        "08.zero": r"math\.log|\b11\b",
        "08.pull": r"p_open \*|1 - p_open",
        "08.fixed": r"log_alpha > 0|clamp\(",
        "09.left": r"argsort|topk|< keep",
        "09.chance": r"comb\(|range\(hit",
        "09.work": r"4 \* length|/ \(8 \* ",
        "10.merge": r"svd\(|eigh",
        "10.remove": r"outer|@ unit|eye\(",
        "10.side": r"svd\(|u\[:, 0\]|vt\[0\]",
        "10.position": r"\[1\]|position 1\b",
    }[name]
    for answer, _ in ANSWERS[name]["wrong"]:
        hint = check(name, answer).hint
        if "48" not in repr(answer):  # an answer may be repeated to its author
            assert not re.search(solution, hint), hint


def test_an_unknown_exercise_lists_those_there_are():
    with pytest.raises(KeyError, match=r"no exercise '01.max'; there are 00.count, .*01.softmax"):
        check("01.max", ...)


def test_the_result_is_the_same_text_each_time_and_escaped():
    def nasty(T, d, H):
        raise ValueError("</div><script>1</script>")

    first, second = check("01.cost", nasty), check("01.cost", nasty)
    assert repr(first) == repr(second)
    assert first == second
    bundle = first._repr_mimebundle_()
    assert bundle["text/plain"] == "01.cost (count the multiplications): not yet\n" + first.hint
    assert "<script" not in bundle["text/html"]
    assert "ValueError: &lt;/div&gt;" in bundle["text/html"]
    for status in ("right", "not yet", "not tried yet"):
        assert status.capitalize() in CheckResult("n", "t", status, "")._repr_mimebundle_()["text/html"]


def test_a_judge_that_stumbles_does_not_raise():
    class Odd:
        def __eq__(self, other):
            raise RuntimeError("no equals")

        __hash__ = None

    result = check("00.count", Odd())
    assert result.status == "not yet"
    assert "RuntimeError: no equals" in result.hint


def test_a_function_without_return_is_told_and_an_empty_one_is_a_blank():
    def forgot(q, k, mask):
        q @ k.T

    def sometimes(q, k, mask):
        if mask is None:
            return q

    def only_words(q, k, mask):
        """Still to come."""

    for answer in (forgot, sometimes):
        assert "returned nothing (None)" in check("01.softmax", answer).hint
    assert check("01.softmax", only_words).status == "not tried yet"


def test_the_type_is_judged_before_the_value():
    assert "this is a str, '48': leave out the quotes" in check("01.cost", lambda T, d, H: "48").hint
    counted = {"encoder": "48", "decoder": 48, "cross": 48}
    assert "this is a str, '48': leave out the quotes" in check("00.count", counted).hint
    assert check("01.cost", lambda T, d, H: "4x").hint.endswith("'4x'.")


def test_hints_come_one_by_one(monkeypatch):
    shown = [check.hint("01.sum") for _ in range(4)]
    assert [text[:11] for text in shown] == ["Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3", "Hint 3 of 3"]
    assert "nn.Linear" in shown[0]._repr_mimebundle_()["text/html"]
    assert 'ht.check.hint("01.sum")' in check("01.sum", lambda z, W_o: z)._repr_mimebundle_()["text/html"].replace(
        "&quot;", '"'
    )
    monkeypatch.setitem(check.hint.__globals__, "hints_of", lambda name: [])
    assert "no hints" in check.hint("01.sum")
    with pytest.raises(KeyError, match="no exercise"):
        check.hint("01.max")


@pytest.mark.full  # a kernel of its own
def test_an_older_version_of_a_function_is_named():
    cells = [
        "import headtools as ht\ndef cost(T, d, H):\n    return T",
        "ht.check('01.cost', cost).note",
        "def cost(T, d, H):\n    return T +",
        "ht.check('01.cost', cost).note",
    ]
    nb = new_notebook(cells=[new_code_cell(source) for source in cells])
    NotebookClient(nb, timeout=300, startup_timeout=300, allow_errors=True).execute()
    assert nb.cells[1].outputs[0]["data"]["text/plain"] == "''"
    note = nb.cells[3].outputs[0]["data"]["text/plain"]
    assert "the version of cost that cell [1] defined. Cell [3], which you ran later, stopped with an error" in note


def test_an_answer_may_change_what_it_is_given():
    def spoils(x, heads):
        split = x.view(*x.shape[:2], heads, -1).transpose(1, 2).clone()
        x.zero_()
        return split

    assert check("01.split", spoils).passed
