"""The loop over batches: in order, one at a time, and with a folder each batch once."""

import pytest
import torch

from headtools._engine.loop import run


def square(batch):
    return {"square": torch.tensor([batch**2])}


def values(parts):
    return [part["square"].item() for part in parts]


def test_parts_come_in_order_and_one_at_a_time():
    measured = []

    def measure(batch):
        measured.append(batch)
        return square(batch)

    for number, part in enumerate(run(measure, iter(range(5)))):
        assert part["square"].item() == number**2
        assert measured == list(range(number + 1))  # a measure that sums holds one batch


def test_a_stopped_run_goes_on(tmp_path):
    measured = []

    def measure(batch):
        if measured == [0, 1, 2]:
            measured.append("stop")
            raise KeyboardInterrupt
        measured.append(batch)
        return square(batch)

    with pytest.raises(KeyboardInterrupt):
        values(run(measure, range(5), checkpoint=tmp_path / "run", settings={"seed": 1}))
    assert values(run(measure, range(5), checkpoint=tmp_path / "run", settings={"seed": 1})) == [0, 1, 4, 9, 16]
    assert measured == [0, 1, 2, "stop", 2, 3, 4]  # the last stored batch is tried once more
    assert not list((tmp_path / "run").glob("*.part"))


def test_a_folder_of_another_run_is_refused(tmp_path):
    options = {"checkpoint": tmp_path, "settings": {"seed": 1, "loss": square}}
    assert values(run(square, [1, 2], **options)) == [1, 4]
    with pytest.raises(ValueError, match=r"holds another run \(other batches\): use another folder"):
        values(run(square, [1, 3], **options))
    with pytest.raises(ValueError, match=r"holds another run \(other loss, seed\)"):
        values(run(square, [1, 2], checkpoint=tmp_path, settings={"seed": 2, "loss": values}))
    with pytest.raises(ValueError, match=r"square in 000001.safetensors is not what it is now.*or a head switched off"):
        values(run(lambda batch: square(batch + 1), [1, 2], **options))
    (tmp_path / "000000.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"000000.safetensors is damaged"):
        values(run(square, [1, 2], **options))
