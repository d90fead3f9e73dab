"""Several processes give the numbers of one, whatever becomes of one of them."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from processes import ended, needs_forks, start, together

import headtools as ht
from headtools.importance import ablation as ablation_module
from headtools.importance import gradient as gradient_module
from headtools.importance import labels as labels_module

from ..heads.zoo import zoo_model

pytestmark = pytest.mark.full  # starts processes

SPLIT = (1, 2, 1, 1)  # examples of each batch: uneven, and more batches than two processes can share evenly


@pytest.fixture(autouse=True)
def _forks():
    needs_forks()


def subject(name="bert", split=SPLIT):
    model, batch = zoo_model(name)
    rows = [torch.tensor([n % len(batch["input_ids"]) for n in range(sum(split))])]
    cuts = rows[0].split(list(split))
    batches = [{key: value[some] for key, value in batch.items()} for some in cuts]
    return model, [{**some, "labels": some.get("decoder_input_ids", some["input_ids"])} for some in batches]


def plain(scores):
    """Scores as what goes through a pipe."""
    parts = (scores.values, scores.low, scores.high)
    return [{key: value.tolist() for key, value in (part or {}).items()} for part in parts] + [dict(scores.notes)]


def measures(name, split=SPLIT):
    model, batches = subject(name, split)
    found = {
        "gradient": ht.gradient(model, batches),
        "by position": ht.gradient(model, iter(batches), per="position", normalise="layer"),
        "relevance": ht.relevance(model, batches, rules="cp"),
        "ablation": ht.ablation(model, batches, progress=False),
        "by mean": ht.ablation(model, batches, replacement="mean", sites=["encoder"], progress=False),
    }
    if name == "bert":
        found["keep one"] = ht.all_but_one(model, batches, progress=False)
        found["confidence"] = ht.confidence(model, batches)
    return {measure: plain(scores) for measure, scores in found.items()}


def shared(work):
    def inside():
        with ht.sharded() as shard:
            return shard.index, work()

    return inside


@pytest.mark.parametrize(("name", "count", "split"), [("bert", 2, SPLIT), ("marian", 4, SPLIT), ("bert", 4, (2, 1))])
def test_several_processes_give_what_one_gives(name, count, split):
    alone = measures(name, split)
    found = together(count, shared(lambda: measures(name, split)))
    assert [index for index, _ in found] == list(range(count))
    for _, measured in found:
        assert measured.keys() == alone.keys()
        for measure, parts in measured.items():
            for one, two in zip(parts[:3], alone[measure][:3], strict=True):
                assert one.keys() == two.keys()
                assert all(one[key] == pytest.approx(two[key], rel=1e-6, abs=1e-6) for key in two), measure
            assert parts[3] == pytest.approx(alone[measure][3], abs=1e-9)


def test_each_batch_is_run_by_one_process_only(monkeypatch):
    model, batches = subject()
    ran, own = [], gradient_module._products
    monkeypatch.setattr(
        gradient_module, "_products", lambda *given: ran.append(len(given[1]["input_ids"])) or own(*given)
    )
    found = together(3, shared(lambda: (ht.gradient(model, batches), list(ran))[1]))
    assert [seen for _, seen in found] == [[1, 1], [2], [1]]


def test_runs_for_the_model_s_own_labels_are_shared(monkeypatch):
    model, tokenizer = ht.load()
    sentences = [replace(sentence, target=None) for sentence in ht.corpus("organism", limit=3)]
    ran, own = [], labels_module._own_words
    monkeypatch.setattr(labels_module, "_own_words", lambda *given: ran.append(1) or own(*given))

    def labels():
        return [batch["labels"].tolist() for batch in ht.label(model, tokenizer, sentences, size=1)]

    alone, ran[:] = labels(), []
    found = [result for _, result in together(2, shared(lambda: (labels(), len(ran))))]
    assert [made for made, _ in found] == [alone, alone]
    assert [n for _, n in found] == [2, 1]


def test_outside_the_context_processes_work_for_themselves():
    model, batches = subject()

    def own():
        mine = batches[: 1 + int(os.environ["RANK"])]
        return len(next(iter(ht.gate_gradients(model, mine).values())))

    assert together(2, own) == [1, 3]


def test_an_error_in_one_process_ends_all():
    model, batches = subject()

    def loss(outputs, batch):
        each = outputs.logits.flatten(1).sum(1)
        return each / 0 if len(each) == 2 else each

    found = ended(start(3, shared(lambda: ht.gradient(model, batches, loss))))
    message = "ValueError: the loss of examples [0, 1] is NaN or infinite: it is no finite number"
    assert [error.splitlines()[0] for _, error in found] == [
        f"OtherProcessError: process 1 of 3 failed: {message}",
        message,
        f"OtherProcessError: process 1 of 3 failed: {message}",
    ]


@pytest.mark.parametrize("measure", [ht.gradient, ht.ablation])
def test_other_batches_or_another_model_are_seen(measure):
    model, batches = subject()

    def own(what):
        mine = list(batches)
        if os.environ["RANK"] == "1":
            if what == "batch":
                mine[0] = {**mine[0], "labels": mine[0]["labels"].flip(1)}
            elif what == "fewer":
                mine = mine[:1]
            else:
                with torch.no_grad():
                    next(model.parameters())[0, 0] += 1  # in this process's copy
        return measure(model, mine)

    for what in ("batch", "model", "fewer"):
        found = ended(start(2, shared(lambda what=what: own(what))))
        wanted = "different models or batches" if what != "fewer" else "ValueError"
        assert all(wanted in error for _, error in found), found


def test_a_launcher_without_accelerate_is_told(monkeypatch):
    import builtins

    own = builtins.__import__

    def without(name, *rest):
        if name.startswith("accelerate"):
            raise ImportError(name)
        return own(name, *rest)

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RuntimeError, match=r'2 processes.*pip install "headtools\[scale\]"'), ht.sharded():
        pass


# --- stopped and gone on --------------------------------------------------------------------------------------------


def slowly(folder: Path, wanted: int, pause: float):
    """Make every process wait before each batch once `wanted` files are there, so that it can be killed on the way."""
    own = ablation_module.AblatedLosses

    class Waiting(own):
        def __init__(self, *given):
            while len(list(folder.glob("*.safetensors"))) >= wanted and pause:
                time.sleep(pause)
            super().__init__(*given)

    ablation_module.AblatedLosses = Waiting


@pytest.mark.full
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_takes_nothing_with_it(tmp_path, killed, monkeypatch):
    model, batches = subject(split=(1,) * 7)
    alone = ht.ablation(model, batches, progress=False)

    def stopped():
        slowly(tmp_path, 3, 0.05)
        return shared(lambda: ht.ablation(model, batches, checkpoint=tmp_path, progress=False))()

    running = start(3, stopped)
    late = time.monotonic() + 60
    while len(list(tmp_path.glob("*.safetensors"))) < 3:
        assert time.monotonic() < late
        time.sleep(0.02)
    os.kill(running[killed][0].pid, signal.SIGKILL)
    for process, _ in running:  # a launcher would end the others
        process.kill()
    assert f"ended with {-signal.SIGKILL}" in [error for _, error in ended(running)]
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    assert 3 <= len(before) < 7
    (tmp_path / "000006.safetensors.1.part").write_bytes(b"half of a fi")

    ran, own = [], ablation_module.AblatedLosses.__init__
    monkeypatch.setattr(
        ablation_module.AblatedLosses, "__init__", lambda self, *given: ran.append(1) or own(self, *given)
    )
    measured = lambda: plain(ht.ablation(model, batches, checkpoint=tmp_path, progress=False))  # noqa: E731
    again = together(2, shared(lambda: (measured(), len(ran))))
    assert sum(count for _, (_, count) in again) == 7 - len(before), "what was kept is not run again"
    assert all(scores == plain(alone) for _, (scores, _) in again)
    assert before.items() <= {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}.items()
    assert plain(ht.ablation(model, batches, checkpoint=tmp_path, progress=False)) == plain(alone)
    assert not ran, "one process goes on from what two have kept"


def test_gradient_goes_on_too(tmp_path, monkeypatch):
    model, batches = subject()
    measure = ht.gradient
    alone = measure(model, batches)
    assert plain(measure(model, batches, checkpoint=tmp_path)) == plain(alone)
    files = sorted(tmp_path.glob("0*"))
    assert [path.name for path in files] == [f"{n:06d}.safetensors" for n in range(4)]
    files[2].unlink()
    ran = []
    hook = model.register_forward_pre_hook(lambda *_: ran.append(1))
    assert plain(measure(model, batches, checkpoint=tmp_path)) == plain(alone)
    hook.remove()
    assert len(ran) == 2, "the batch that was missing, and the first one, to compare"
    with ht.ablate(model, {("encoder", 0): [1]}), pytest.raises(ValueError, match="of batch 0 is"):
        measure(model, batches, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"holds another run.*other batches"):
        measure(model, batches[:2], checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"holds another run.*sites"):
        measure(model, batches, sites=[("encoder", 1)], checkpoint=tmp_path)
    found = together(2, shared(lambda: plain(measure(model, batches, checkpoint=tmp_path))))
    assert all(scores == plain(alone) for _, scores in found)


def test_the_two_measures_do_not_mix(tmp_path):
    model, batches = subject()
    ht.gradient(model, batches, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="per 'example', not 'position'"):
        ht.gradient(model, batches, per="position", checkpoint=tmp_path)
    with pytest.raises(ValueError, match="per 'example', not 'batch'"):
        ht.gradient(model, batches, per="batch", checkpoint=tmp_path)
