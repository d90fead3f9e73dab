"""Runs kept batch by batch: what comes back, and which folders and files are refused, in which words."""

from functools import partial as bound

import pytest
import torch

from headtools.heads.files import write_whole
from headtools.heads.partial import Partial, name_of

SETTINGS = {"by": "zero", "model": "a" * 64, "seed": 0}
ONES = {"rises": torch.ones(2)}


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Partial(None, SETTINGS)
    run.save(0, ONES)
    assert run.kept == frozenset()
    assert run.first() is None
    assert not list(tmp_path.iterdir())


def test_what_is_saved_is_there_for_the_next_run(tmp_path):
    folder = tmp_path / "a" / "run"
    run = Partial(str(folder), SETTINGS)
    assert run.kept == frozenset()
    assert run.first() is None
    for number in (12, 3):
        run.save(number, {"rises": torch.full((2,), float(number))})
    assert run.kept == frozenset(), "the batches that there were when it began"
    (folder / "notes.txt").write_text("mine")
    (folder / "batch-000004.safetensors.0123.part").write_text("half a file")
    again = Partial(folder, SETTINGS)
    assert again.kept == {3, 12}
    assert again.first() == 3
    assert again.read(12)["rises"].tolist() == [12, 12]
    assert sorted(path.name for path in folder.glob("*.safetensors")) == [
        "batch-000003.safetensors",
        "batch-000012.safetensors",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"by": "mean"}, "(by 'zero', not 'mean')"),
        ({"model": "b" * 64}, "(other model)"),
        ({"model": "b"}, f"(model '{'a' * 64}', not 'b')"),
        ({"model": None}, f"(model '{'a' * 64}', not None)"),
        ({"times": 3}, "(times None, not 3)"),
        ({"seed": 1, "by": "mean"}, "(by 'zero', not 'mean', seed 0, not 1)"),
    ],
)
def test_a_run_with_other_settings_is_refused(tmp_path, change, said):
    Partial(tmp_path, SETTINGS).save(0, ONES)
    with pytest.raises(ValueError, match="use another folder, run='elsewhere'") as found:
        Partial(tmp_path, SETTINGS | change)
    assert f"{tmp_path} holds another run {said}, as {tmp_path}" in str(found.value)
    with pytest.raises(ValueError, match="holds another run"):
        Partial(tmp_path, {name: value for name, value in SETTINGS.items() if name != "seed"})
    assert Partial(tmp_path, SETTINGS).kept == {0}


def test_a_file_for_a_folder(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ValueError, match=r"run='.*run' is a file: name a folder, such as run='ablation'"):
        Partial(tmp_path / "run", SETTINGS)


@pytest.mark.parametrize("told", [None, {}, {"batch": 0}, {"settings": SETTINGS}])
def test_files_that_hold_no_batch_are_named(tmp_path, told):
    path = tmp_path / "batch-000000.safetensors"
    if told is None:
        path.write_bytes(b"half of it")
    else:
        write_whole(path, ONES, told)
    with pytest.raises(ValueError, match="cannot be used: delete it, and its batch is run again") as found:
        Partial(tmp_path, SETTINGS)
    assert str(found.value).startswith(str(path))


def test_a_batch_that_was_changed_or_is_not_there(tmp_path):
    run = Partial(tmp_path, SETTINGS)
    run.save(0, ONES)
    path = tmp_path / "batch-000000.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"000000.safetensors cannot be used: delete it.*was changed after"):
        run.read(0)
    with pytest.raises(FileNotFoundError, match=r"000001.safetensors is there for the main process and not for "
                                                r"process 0: name a folder that all machines see"):  # fmt: skip
        run.read(1)


LONG = torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (LONG, None),
        (LONG.double() * (1 + 5e-4), None),
        (torch.tensor([1.0, 2.0, 3.0, 4.02]), "1, 2, 3, ... there and 1, 2, 3, ... now"),
        (LONG[:3], "1, 2, 3, ... there and 1, 2, 3 now"),
        (LONG[None], "1, 2, 3, ... there and 1, 2, 3, ... now"),  # another shape, although the numbers are the same
        (LONG * 1.23456, "1, 2, 3, ... there and 1.235, 2.469, 3.704, ... now"),
    ],
)
def test_a_batch_that_is_run_again(tmp_path, now, said):
    run = Partial(tmp_path, SETTINGS)
    run.save(2, {"head|rises": LONG.to(now.dtype), "other": torch.zeros(1)})
    if said is None:
        run.check(2, {"head|rises": now}, "head|rises")
        return
    with pytest.raises(ValueError, match="Was a function changed, or a head switched off") as found:
        run.check(2, {"head|rises": now}, "head|rises")
    assert f"{tmp_path} holds another run: the head rises of batch 2 are {said}." in str(found.value)


def test_numbers_near_nothing_may_differ_by_rounding(tmp_path):
    run = Partial(tmp_path, SETTINGS)
    run.save(0, {"x": torch.zeros(2)})
    run.check(0, {"x": torch.tensor([0.0, 5e-5])}, "x")
    with pytest.raises(ValueError, match="holds another run"):
        run.check(0, {"x": torch.tensor([0.0, 5e-3])}, "x")


class Loss:
    """Something to call that has no name of its own."""

    def __call__(self):
        """Nothing."""


def test_functions_are_told_by_module_and_name():
    assert name_of(None) is None
    assert name_of(name_of) == "headtools.heads.partial.name_of"
    assert name_of(Partial.save) == "headtools.heads.partial.Partial.save"
    assert name_of(Loss()) == f"{__name__}.Loss"
    assert name_of(bound(name_of, None)) == "functools.partial"
