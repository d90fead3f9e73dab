"""taxonomy() in several processes, and stopped and gone on: the frame of one undisturbed run."""

import pandas as pd
import pytest
import torch
from processes import ended, needs_forks, start, together

import headtools as ht
from headtools._engine.processes import current_process
from headtools.roles import taxonomy as module
from headtools.roles.conventions import Conventions
from headtools.roles.taxonomy import taxonomy

from .test_taxonomy_streaming import NUMBERS, SAID, assert_same, model, tokenizer

pytestmark = pytest.mark.full  # starts processes

GIVEN = {"frequency": {"the": 9}, "conventions": Conventions(n_frequent=1, span=2), "times": 80, "batch_size": 2}


def measured(**more) -> pd.DataFrame:
    return taxonomy(model("bert"), tokenizer("right"), SAID, **(GIVEN | more))


def shared(work):
    def inside():
        with ht.sharded():
            return work()

    return inside


def ran(monkeypatch) -> list[int]:
    """How many sentences each batch had that a model was run on."""
    seen, own = [], module.run_model
    monkeypatch.setattr(
        module,
        "run_model",
        lambda model, batch, **more: (seen.append(len(batch["input_ids"])), own(model, batch, **more)),
    )
    return seen


@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_make_the_frame_of_one(count):
    """Three batches: for four processes one is left without any."""
    needs_forks()
    alone, luck = measured(), measured(shuffle=True)
    assert not alone[NUMBERS].equals(luck[NUMBERS])
    for frame, shuffled in together(count, shared(lambda: (measured(), measured(shuffle=True)))):
        assert_same(alone, frame)
        assert (alone.passes == frame.passes).all()
        assert_same(luck, shuffled)


def test_so_they_do_for_all_three_kinds_of_the_organism():
    needs_forks()
    organism, own = ht.load()
    test, validation = (ht.corpus("organism", split, limit=9) for split in ("test", "validation"))

    def work():
        return taxonomy(organism, own, test, validation, times=40, batch_size=3)

    alone = work()
    assert set(alone.kind) == {"encoder", "decoder", "cross"}
    for frame in together(2, shared(work)):
        assert_same(alone, frame)


def test_other_sentences_are_seen():
    needs_forks()
    work = shared(lambda: taxonomy(model("bert"), tokenizer("right"), SAID[current_process().index :], **GIVEN))
    assert all("different models or batches" in error for _, error in ended(start(2, work)))


def test_a_stopped_run_goes_on(tmp_path, monkeypatch):
    seen = ran(monkeypatch)
    alone = measured()
    batches, seen[:] = list(seen), []
    assert sum(batches) == len(SAID)
    pd.testing.assert_frame_equal(measured(checkpoint=tmp_path), alone)
    files = sorted(tmp_path.glob("0*"))
    assert len(files) == len(batches) == 3
    files[1].unlink()
    seen.clear()
    pd.testing.assert_frame_equal(measured(checkpoint=tmp_path), alone)
    assert seen == batches[:2], "the one that was missing, and the first one, to compare"
    again = measured(checkpoint=tmp_path, times=60)
    assert (again.score == alone.score).all(), "more or fewer draws need no run of the model"
    for change, what in (
        ({"shuffle": True}, "shuffle None, not 0"),
        ({"batch_size": 3}, "batch_size 2, not 3"),
        ({"roles": ["positional"]}, "other roles"),
        ({"frequency": {"dog": 3}}, "other word counts"),
    ):
        with pytest.raises(ValueError, match=f"holds another run.*{what}"):
            measured(checkpoint=tmp_path, **change)
    other = model("bert")
    with ht.ablate(other, {("encoder", 0): [0, 1, 2, 3]}), pytest.raises(ValueError, match=r"encoder\|sums of batch 0"):
        taxonomy(other, tokenizer("right"), SAID, checkpoint=tmp_path, **GIVEN)


def test_several_processes_go_on_from_what_one_has_kept(tmp_path):
    needs_forks()
    alone = measured(checkpoint=tmp_path)
    sorted(tmp_path.glob("0*"))[0].unlink()
    for frame in together(3, shared(lambda: measured(checkpoint=tmp_path))):
        assert_same(alone, frame)
    assert len(list(tmp_path.glob("0*"))) == 3


def test_an_error_in_one_process_ends_all():
    needs_forks()

    def work():
        with torch.no_grad():
            own = module.run_model

            def failing(model, batch, **more):
                if len(batch["input_ids"]) == 1:  # the last batch of five sentences, two at a time
                    raise ValueError("too long")
                return own(model, batch, **more)

            module.run_model = failing
            return measured()

    errors = [error.splitlines()[0] for _, error in ended(start(2, shared(work)))]
    assert errors == ["ValueError: too long", "OtherProcessError: process 0 of 2 failed: ValueError: too long"]
