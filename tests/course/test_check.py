"""Every exercise takes every right method, calls a blank a blank, and has one fitting hint for each mistake."""

import gc
import importlib.util
import linecache
import re
from functools import cache, partial
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

import headtools as ht
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


EXERCISES = all_exercises()
PACKAGE_DOES_IT = [
    (name, which)
    for name, exercise in EXERCISES.items()
    for which in sorted({exercise.builds, *exercise.instead} & set(ht.__all__))
]


def written(code):
    """A function from its source, which can be read as that of a cell."""
    place, names = f"<{code}>", {"ht": ht}
    linecache.cache[place] = len(code), None, code.splitlines(True), place
    exec(compile(code, place, "exec"), names)
    return names["answer"]


@pytest.mark.parametrize(("name", "which"), PACKAGE_DOES_IT)
def test_the_package_s_own_function_is_no_answer(name, which):
    result = check(name, written(f"def answer(*given, **named):\n    return ht.{which}(*given, **named)\n"))
    assert not result.passed
    assert f"ht.{which} is right, and it is the one that you are about to write" in result.hint


@pytest.mark.parametrize("name", [name for name in EXERCISES if "blank" not in ANSWERS[name]])
def test_a_function_that_stops_is_told_where(name):
    result = check(name, written("def answer(*given, **named):\n    return given + not_there\n"))
    assert (result.status, result.passed) == ("not yet", False)
    assert "NameError" in result.hint
    assert "not_there" in result.hint


@cache  # two tests look at each
def judged(name, number):
    """What the check says to an exercise's wrong answer of this number."""
    return check(name, ANSWERS[name]["wrong"][number][0])


@pytest.mark.parametrize("name", ANSWERS)
def test_right_blank_and_wrong_answers(name):
    answers = ANSWERS[name]
    for answer in answers["right"]:
        result = check(name, answer)
        assert (result.status, result.hint, result.passed) == ("right", "", True), result
    for answer in (None, ..., *answers.get("blank", BLANKS)):
        result = check(name, answer)
        assert (result.status, result.passed) == ("not tried yet", False), result
    for number, (_, hint) in enumerate(answers["wrong"]):
        result = judged(name, number)
        assert (result.status, result.passed) == ("not yet", False), result
        assert re.search(f"(?s){hint}", result.hint), result
    gc.collect()  # one wrong answer leaves a context open, as long as its model is there


@pytest.mark.parametrize("name", ANSWERS)
def test_no_hint_holds_the_solution(name):
    """Hints name the idea; the lines that would pass are nowhere in them."""
    solution = {
        "00.switch_off": r"register_forward_pre_hook\(|\.clone\(\)",
        "00.accuracy": r"& real|\.sum\(1\) /",
        "00.count": r"\b48\b",
        "01.softmax": r"masked_fill|softmax\(-1\)|softmax\(dim",
        "01.attention": r"@ K|softmax\(-1\)|masked_fill",
        "01.record": r"register_forward_hook\(|output\[1\]\.detach",
        "01.split": r"\.transpose\(|\.permute\(|\.chunk\(",
        "01.sum": r"einsum|W_o\[|\.view\(",
        "01.cost": r"4 ?\*? ?T|2 ?\*? ?T",
        "01.blocks": r"@ keys",
        "02.ov": r"transpose\(|\.mT",
        "02.qk": r"transpose\(|\.mT",
        "02.overlap": r"svdvals|square\(",
        "02.map": r"torch\.ones|softmax\(-1\)|x1 @",
        "02.svd": r"linalg\.svd\(R1|, vt",
        "02.apart": r"\(a > b\)|\.mean\(\)",
        "02.composition": r"/ \(W_QK|\(W_QK @",
        "02.rank": r"\.exp\(|entr\(p",
        "02.offset": r"torch\.(cat|diag)\(",
        "03.pairs": r"\[\(b, i|range\(len",
        "03.hits": r"isin|\[b, \.\.\.",
        "03.bootstrap": r"randint|quantile\(|clamp_",
        "03.relation": r"parent - 1\)|\.append",
        "03.offset": r"Counter|most_common|\.count\(",
        "04.swap": r"draw\.(sample|choice|shuffle)",
        "04.rarest": r"\(b, i, keys\)|max\(ranks\)|2 \* len",
        "04.pair": r"torch\.stack|cost\(\[",
        "04.frames": r"\.format\(|draw\.choice",
        "05.probe": r"softmax\(|W -=|argmax",
        "05.control": r"draw\.choice|argmax\(",
        "05.eraser": r"outer|pinv|solve\(|a @ delta",
        "05.erase": r"register_forward_pre_hook\(|\.clone\(\)",
        "06.induction": r"diagonal\(|\.mean\(|\[:, ?length",
        "06.hide": r"einsum|norm\.forward|unflatten",
        "06.write": r"look_back\(|\.sin\(\)|torch\.eye",
        "12.report": r"cat\(|sorted\(|\.sum\(",
        "12.honest": r"argmax|cat\(|max\(",
        "07.gates": r"\.view\(|unflatten|\[:, None",
        "07.gradient": r"autograd\.grad\(|backward\(|torch\.ones\(",
        "07.cancel": r"\[\[1",
        "07.ablation": r"torch\.ones\(|torch\.stack|eye\(",
        "07.saturation_proof_gradient": r"expm1|masked_fill\(|torch\.where\(",
        "08.epsilon": r"@|einsum|\.sign\(|torch\.where",
        "08.signs": r"alpha \* plus|clamp\(",
        "08.direct": r"register_forward|einsum|\[:, -1\]\.var",
        "08.share": r"torch\.cat|ratio\(M|messages\(",
        "08.attention": r"softmax\(-1\)|A\.T|/ 2",
        "09.hard_concrete": r"sigmoid\(|clamp\(|logit\(|math\.log",
        "09.fit_gates": r"optim\.Adam\(|\.view\(|zero_grad\(|backward\(",
        "09.target_size": r"nonlocal begin|gap\*\*2|\+= rate",
        "10.curve": r"order\[:|switch_off\(|ablate\(",
        "10.greedy": r"sorted\(|\.sort\(|not in order",
        "10.slice": r"\[rows\]|\[:, rows\]|arange",
        "10.null": r"argsort|randperm|sample\(",
        "11.patch": r"register_forward_pre_hook\(|where\(|\.clone\(\)",
        "11.position": r"\[1\]|position 1\b",
        "11.logit_difference": r"arange|gather|b, position\[b\]",
        "11.moved": r"\(now - here\)|with .*patch\(",
        "11.remove": r"@ basis|eye\(|pinv",
        "11.rewrite": r"solve\(|outer\(|inv\(",
    }[name]
    for number, (answer, _) in enumerate(ANSWERS[name]["wrong"]):
        hint = judged(name, number).hint
        if "48" not in repr(answer):  # an answer may be repeated to its author
            assert not re.search(solution, hint), hint


def test_a_right_interval_passes_whatever_it_draws():
    right = answers()["03.bootstrap"]["right"][1]
    refused = [seed for seed in range(50) if not check("03.bootstrap", partial(right, seed=seed)).passed]
    assert refused == []


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
