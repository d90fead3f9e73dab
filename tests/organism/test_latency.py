"""Latency: multiplications as torch counts them, models that do what they are timed for, and what ships."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import headtools as ht
from headtools.organism import latency


@pytest.fixture(scope="module")
def model():
    return ht.load()[0]


@pytest.mark.parametrize(("kept", "length"), [(48, 16), (24, 16), (4, 64)])
def test_multiplications_are_those_torch_counts(model, kept, length):
    small = latency.cut(model, kept)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        small.get_encoder()(input_ids=torch.full((3, length), 5), attention_mask=torch.ones(3, length).long())
    sizes = {"length": length, "width": 128, "inner": 256, "head_width": 16}
    heads = [0 if site.empty else site.heads for site in ht.sites(small)["encoder"]]
    assert sum(heads) == kept
    silent = sum(site.empty for site in ht.sites(small)["encoder"])  # its one silent head is run and not counted
    ours = sum(latency.multiplications(n, **sizes) for n in heads)
    ours += silent * (latency.multiplications(1, **sizes) - latency.multiplications(0, **sizes))
    assert counter.get_total_flops() == 2 * 3 * ours  # a multiplication and an addition, three sentences


def test_ideal(model):
    one = {"length": 32, "width": 128, "inner": 256, "head_width": 16}
    assert latency.ideal(model, 48, 32) == 1
    assert latency.ideal(model, 24, 32) == pytest.approx(
        latency.multiplications(4, **one) / latency.multiplications(8, **one)
    )
    assert 0 < latency.ideal(model, 0, 32) < latency.ideal(model, 4, 32) < latency.ideal(model, 4, 8)


def test_turns(model):
    seconds = latency.in_turns([model, latency.cut(model, 4)], length=8, rows=2, turns=3)
    assert [len(some) for some in seconds] == [3, 3]
    assert min(map(min, seconds)) > 0


def test_the_command(tmp_path, monkeypatch, capsys):
    for name, few in (("LENGTHS", (8,)), ("ROWS", (1,)), ("KEPT", (4,))):
        monkeypatch.setattr(latency, name, few)
    monkeypatch.setattr(latency.measure, "__defaults__", ((8,), (1,), (4,), 2))
    latency.main(["--turns", "2", "--file", str(tmp_path / "latency.json")])
    told = json.loads((tmp_path / "latency.json").read_text())
    assert [(row["model"], row["kept"]) for row in told["rows"]] == [("organism", 4), ("Transformer-base", 4)]
    assert "milliseconds" in capsys.readouterr().out


# --- what ships -------------------------------------------------------------------------------------------------------


def test_what_ships():
    rows = latency.latency()["rows"]
    cases = [(n, r) for n in latency.LENGTHS for r in latency.ROWS if n * r <= latency.MOST]
    assert len(rows) == 2 * len(cases) * len(latency.KEPT)
    for row in rows:
        assert row["low"] <= row["high"]
        assert 0 < row["time"] < 1.3
        assert row["ideal"] < 1
    mine = [row for row in rows if row["model"] == "organism" and row["kept"] == 4]
    model = ht.load()[0]
    assert all(row["ideal"] == pytest.approx(latency.ideal(model, 4, row["length"]), abs=1e-3) for row in mine)
