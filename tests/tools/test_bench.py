"""The benchmarks measure what they say, see a cost that is there, and count operations as torch counts them."""

import json
import sys
from contextlib import contextmanager
from typing import ClassVar

import ablation
import comparison
import counts
import gates
import gradient
import long_texts
import overhead
import pruned
import pytest
import recording
import relevance
import results
import run
import scaling
import subjects
import taxonomy
import timing
import torch
import transformers
import verify
from torch.utils.flop_counter import FlopCounterMode

import headtools as ht

SMALL = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
SIZE = subjects.Size(3, 32, 4, 48, 2, 6)
IDS = torch.arange(8).view(2, 4)


def tiny(what: str) -> tuple:
    """The function of a benchmark that measures, and what it measures here."""
    if what == "overhead":
        model = transformers.BertModel(transformers.BertConfig(**SMALL, vocab_size=20), add_pooling_layer=False).eval()
        return overhead.measure, overhead.Subject("tiny", model, {"input_ids": IDS}, {"busy": 2.0})
    if what == "gates":
        model = transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, vocab_size=20)).eval()
        subject = overhead.Subject("tiny", model, {"input_ids": IDS, "labels": IDS}, {gates.CONDITION: 2.0})
        return lambda subject, rounds: [gates.measure(subject, rounds)], subject
    if what in ("ablation", "relevance"):
        config = transformers.BertConfig(**{**SMALL, "num_hidden_layers": 2}, vocab_size=20, num_labels=3)
        model = transformers.BertForSequenceClassification(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.normal_()
        if what == "ablation":
            batch = {"input_ids": IDS, "labels": torch.ones(2).long()}
            subject = ablation.Subject("tiny", model, batch)
            return lambda subject, rounds: [ablation.measure(subject, rounds)], subject
        subject = relevance.Subject("tiny", model, {"input_ids": IDS}, lambda out, _batch: out.logits.amax(-1))
        return lambda subject, rounds: relevance.measure(subject, rounds, {"attnlrp": 1.08, "zplus": None}), subject
    if what == "taxonomy":
        test, validation = taxonomy.sentences(3)
        tokenizer = taxonomy.word_pieces({word for s in (*test, *validation) for word in s.words})
        config = transformers.BertConfig(**SMALL, vocab_size=len(tokenizer))
        model = transformers.BertModel(config, add_pooling_layer=False).eval()
        return taxonomy.measure, taxonomy.Subject("tiny", model, tokenizer, [2, 3], bound=1.5)
    measures = {
        "gradient": lambda subject, rounds: gradient.measure("bert", subject, rounds),
        "recording": recording.measure,
        "verify": verify.measure,
        "pruned": lambda subject, rounds: pruned.measure("bert", subject, rounds),
        "long_texts": lambda _subject, rounds: long_texts.measure(rounds, 300),
        "scaling": lambda subject, rounds: scaling.one(subject, rounds, "so many layers", ablated=True),
    }
    return measures[what], subjects.make("bert", subjects.TINY)


@pytest.mark.parametrize("what", run.SCRIPTS)
def test_rows_name_their_bound_and_spread_and_the_model_stays_as_it_was(what: str):
    measure, subject = tiny(what)
    training, attention = subject.model.training, subject.model.config._attn_implementation
    rows = measure(subject, rounds=2)
    assert rows
    for row in rows:
        assert row["why"]
        assert row["low"] <= row["ratio"] <= row["high"]
        assert min(row["s"], row["unit_s"]) > 0
        assert row["rounds"] == 2
        assert row["counted"] is None or row["counted"] > 0
    assert timing.markdown(rows).count("\n") == len(rows) + 1
    assert json.loads(json.dumps(rows)) == rows
    assert subject.model.training == training
    assert all(weight.grad is None and weight.requires_grad for weight in subject.model.parameters())
    if what in ("recording", "gradient"):
        assert subject.model.config._attn_implementation == attention


@contextmanager
def busy(_model):
    """A context that costs as much as many passes."""
    yield
    for _ in range(200):
        torch.randn(100, 100) @ torch.randn(100, 100)


def test_a_cost_over_its_bound_and_a_wrong_number_are_seen(monkeypatch: pytest.MonkeyPatch):
    measure, subject = tiny("overhead")
    monkeypatch.setattr(overhead, "CONDITIONS", (overhead.Condition("busy", busy, "sdpa"),))
    (line,) = timing.over(measure(subject, 2))
    assert line.startswith("busy, tiny: ")

    measure, subject = tiny("gates")
    step = gates.plain_step(subject.model, subject.batch)
    monkeypatch.setattr(gates, "gated_step", lambda *_: lambda: [step() for _ in range(20)])
    (line,) = timing.over(measure(subject, 2))
    assert line.startswith("step with gates, tiny: ")

    measure, subject = tiny("relevance")
    monkeypatch.setattr(relevance, "plain", lambda _subject: None)
    assert [line.split(":")[0] for line in timing.over(measure(subject, 2))] == ["rules"]

    measure, subject = tiny("ablation")
    ours = ablation.ours

    def slow_and_wrong(subject):
        for _ in range(20):
            ablation.naive(subject)
        return {key: value * 1.01 for key, value in ours(subject).items()}

    monkeypatch.setattr(ablation, "ours", slow_and_wrong)
    slow, wrong = timing.over(measure(subject, 1))
    assert "the bound is 0.52" in slow
    assert "differs by" in wrong


def test_the_plain_pass_runs_what_the_taxonomy_runs():
    for kinds, whole in (("encoder", False), (None, True)):
        subject, ran = taxonomy.organism(kinds, [2]), []
        hook = subject.model.get_decoder().register_forward_hook(lambda *_: ran.append(1))  # noqa: B023
        taxonomy.plain_pass(subject, taxonomy.sentences(2)[0])()
        hook.remove()
        assert bool(ran) == whole


def counted(work) -> float:
    """Multiplications with their additions, by torch; attention as plain products, which it can count."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops() / 2


@pytest.mark.parametrize("kind", subjects.MAKERS)
def test_operations_are_those_that_torch_counts(kind: str):
    subject = subjects.make(kind, SIZE)
    ht.verify(subject.model)  # once for each model, and no part of what is counted
    subject.model.set_attn_implementation("eager")
    passed = counted(lambda: gradient.plain(subject))
    assert passed == pytest.approx(SIZE.rows * SIZE.tokens * counts.forward(kind, SIZE), rel=0.001)
    both = counted(lambda: gradient.activations(subject)) / passed
    assert both == pytest.approx(counts.gradient(kind, SIZE), rel=0.001)
    assert counted(lambda: gradient.ours(subject)) / passed < both + 0.8  # back to the last heads, to test the loss
    smaller = subjects.Subject(subject.name, pruned.without(subject, 0.5), subject.batch, subject.labels, SIZE)
    left = counted(lambda: gradient.plain(smaller)) / passed
    assert left == pytest.approx(counts.pruned(kind, SIZE, 0.5), rel=0.001)
    again = subjects.make(kind, SIZE)
    again.model.set_attn_implementation("eager")
    assert torch.equal(again.model(**again.batch).logits, subject.model(**subject.batch).logits)


@pytest.mark.parametrize("kind", ["bert", "marian"])
def test_exact_ablation_needs_what_is_counted_and_a_few_passes_that_check_it(kind: str):
    size = subjects.Size(6, 32, 4, 128, 1, 4)
    subject = subjects.make(kind, size)
    ht.verify(subject.model)
    passed = counted(lambda: gradient.plain(subject))
    needed, bound = counted(lambda: scaling.ablation(subject)) / passed, counts.ablation(kind, size)
    assert 0.98 * bound < needed < bound + 6.5


# The comparison with peers: two processes, the same model, honest about what a peer cannot do.

PEER = '''"""A peer that is headtools under another name, and one of whose works fails."""
import with_headtools


def works(kind, size):
    found = with_headtools.works(kind, size) | {"relevance": lambda: 1 / 0}
    return {name: found[name] for name in ("plain", "plain, 2 rows", "gradient", "relevance")}
'''


@pytest.mark.weekly  # starts two processes
@pytest.mark.full
def test_a_peer_that_is_the_same_agrees_and_one_that_cannot_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(comparison.PEERS, "twin", "torch")
    (tmp_path / "with_twin.py").write_text(PEER)
    rows = comparison.measure("twin", "bert", "tiny", 1, {"twin": sys.executable})
    same, failed = rows
    assert (same["work"], same["difference"], same["rounds"]) == ("gradient", 0.0, 1)
    assert "ZeroDivisionError" in failed["said"]
    assert "cannot: ZeroDivisionError" in comparison.markdown(rows)


class Pretended:
    """A side that answers what the test wants; the first that is made is ours."""

    answers: ClassVar[list] = []

    def __init__(self, *_: object) -> None:
        self.told, self.numbers = self.answers.pop(0)

    def run(self, work: str) -> dict:
        return {"seconds": 1.0, "numbers": self.numbers}

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_another_model_is_not_compared_and_what_a_peer_cannot_do_is_told(monkeypatch):
    def compare(ours: tuple, its: tuple) -> list[dict]:
        monkeypatch.setattr(Pretended, "answers", [ours, its])
        return comparison.measure("lxt", "bert", "tiny", 2, {"lxt": "python"})

    monkeypatch.setattr(comparison, "Side", Pretended)
    told = {"works": ["plain", "relevance", "leave-one-out"], "versions": {"lxt": "2.1"}}
    lrp, exact = compare((told, {"0 0": 2.0}), (told, {"0 0": 2.0}))
    assert (lrp["version"], lrp["rounds"], lrp["ratio"], lrp["difference"]) == ("2.1", 2, 1.0, 0.0)
    assert exact["rounds"] == 1  # it takes long, so it is run less often
    with pytest.raises(RuntimeError, match="the plain passes differ"):
        compare((told, {"0 0": 2.0}), (told, {"0 0": 2.1}))
    with pytest.raises(RuntimeError, match="own side failed: no memory"):
        compare(({"error": "no memory"}, {}), (told, {}))
    (row,) = compare(({"works": []}, {}), ({"error": "ValueError: no map"}, {}))
    assert row["said"] == "ValueError: no map"
    (row,) = comparison.measure("lxt", "bert", "tiny", 1, {})
    assert row["said"] == "not installed"


# The results that are kept.


def test_every_kept_row_names_its_bound_and_the_pages_are_written_from_them():
    kept = results.read()
    for name, section in kept["sections"].items():
        assert name in (*run.SCRIPTS, run.COMPARISON)
        assert section["date"]
        assert {"torch", "transformers"} <= section["versions"].keys()
        for row in section["rows"]:
            assert row.get("said") or row["why"], row
            assert row.get("said") or row["low"] <= row["ratio"] <= row["high"]
    for row in kept["sections"]["comparison"]["rows"]:
        if row.get("difference") is not None:  # a comparison of different numbers would be none
            exact = row["work"] == "leave-one-out"  # differences of losses near 7, in single precision
            assert row["difference"] < (2e-3 if exact else 1e-5), (row["peer"], row["kind"], row["work"])
    assert results.MARKDOWN.read_text(encoding="utf-8") == results.markdown(kept)
    table = results.PAGE.read_text(encoding="utf-8").split(results.BEGIN)[1].split(results.END)[0]
    assert table == results.short(kept)
    assert 0 < sum(line.startswith("| ") for line in table.splitlines()) - 1 <= results.LIMIT


def test_a_section_replaces_its_last_one_only(tmp_path, monkeypatch):
    for name, file in (("JSON", "results.json"), ("MARKDOWN", "results.md"), ("PAGE", "benchmarks.md")):
        monkeypatch.setattr(results, name, tmp_path / file)
    results.PAGE.write_text(f"a\n{results.BEGIN}{results.END}\nb\n")
    measured = {"model": "m", "work": "gradient", "counted": 1.99, "why": "because", "rounds": 3, "difference": 1e-7}
    spreads = {f"{side}{end}": 2.0 for side in ("", "ours_", "peer_") for end in ("ratio", "low", "high", "s")}
    row = {"peer": "captum", "kind": "bert", "version": "0.9.0", **measured, **spreads}
    refused = {"peer": "captum", "kind": "marian", "model": "m", "work": "all", "said": "no map"}
    found = {"sections": {"comparison": run.section([row, refused])}}
    results.save(found)
    found["sections"]["gates"] = run.section([])
    results.save(found)
    assert list(json.loads(results.JSON.read_text())["sections"]) == ["comparison", "gates"]
    page = results.PAGE.read_text()
    assert "| captum 0.9.0 | 2.00 ± 0.00 |  | refuses |" in page
    assert page.endswith("\nb\n")
    assert "cannot: no map" in results.MARKDOWN.read_text()
