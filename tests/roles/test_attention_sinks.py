"""Scores of causal models against loops over single sequences; attention sinks with padding and a start token."""

import pytest
import torch

import headtools as ht
from headtools.roles import induction
from headtools.roles._segments import ordinary_tokens, segments
from headtools.roles.attention_sinks import attention_sinks, without_sink
from headtools.roles.induction import induction_scores

from .tiny_llama import tiny_llama


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


def maps_of(model, ids, mask=None):
    """Maps of every layer, (layer, B, head, T, T)."""
    with torch.no_grad(), ht.record(model, want="maps") as seen:
        model(input_ids=ids, attention_mask=mask)
    return torch.stack([seen[site].maps for site in ht.sites(model)])


def test_without_the_sink(model):
    """The first key out, rows scaled: token by token."""
    frame = induction_scores(model, n=6, length=7, seed=3).set_index(["layer", "head", "role"]).without_sink
    ids = segments(6, 7, 2, ordinary_tokens(model), seed=3)
    maps = maps_of(model, ids)
    for layer, head in ((0, 1), (1, 4)):
        weights, previous, matching = maps[layer, :, head], [], []
        for row in weights:
            previous += [(row[t, t - 1] / row[t, 1 : t + 1].sum()).item() if t > 1 else 0.0 for t in range(1, 14)]
            matching += [(row[t, t - 6] / row[t, 1 : t + 1].sum()).item() for t in range(7, 14)]
        assert frame[layer, head, "previous-token"] == pytest.approx(sum(previous) / len(previous), abs=1e-5)
        assert frame[layer, head, induction.INDUCTION] == pytest.approx(sum(matching) / len(matching), abs=1e-5)
    assert frame.xs(induction.COPYING, level="role").isna().all()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("start", [None, 0])
def test_sinks_leave_padding_out(model, side, start):
    rows = [[5, 6, 7, 8, 9], [11, 12, 13], [14, 15], [20, 21, 22, 23], [30, 31, 32]]
    width = max(map(len, rows))
    ids, mask = torch.full((5, width), 1), torch.zeros(5, width, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(len(row)) if side == "right" else slice(width - len(row), None)
        ids[i, place], mask[i, place] = torch.tensor(row), 1
    frame = attention_sinks(model, {"input_ids": ids, "attention_mask": mask}, start=start)
    each, chance = [], []
    for row in rows:
        row = row if start is None else [start, *row]
        maps = maps_of(model, torch.tensor([row]))[:, 0]
        each.append(maps[:, :, 1:, 0].mean(-1))
        chance.append(sum(1 / (t + 1) for t in range(1, len(row))) / (len(row) - 1))
    expected = torch.stack(each).mean(0).flatten()
    assert torch.allclose(torch.tensor(frame.score.to_numpy()).float(), expected, atol=1e-5)
    assert frame.chance[0] == pytest.approx(sum(chance) / 5, abs=1e-6)
    assert ((frame.low <= frame.score) & (frame.score <= frame.high)).all()


def test_few_texts_have_no_interval(model):
    frame = attention_sinks(model, [{"input_ids": torch.tensor([[5, 6, 7]])}])
    assert frame.low.isna().all()
    assert set(frame.n) == {1}


def test_maps_without_the_sink():
    maps = torch.tensor([[[[1.0, 0, 0], [0.5, 0.5, 0], [0.5, 0.125, 0.375]]]])
    assert without_sink(maps)[0, 0].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0.25, 0.75]]
