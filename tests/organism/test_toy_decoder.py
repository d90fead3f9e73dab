"""The toy decoder: its heads are found and switched as any model's, its language repeats, it trains the same twice."""

import pytest
import torch

import headtools as ht
from headtools.organism.toy_decoder import ToyDecoder, losses, repeats, train


def some_ids(n=4, seed=0):
    return repeats(n, torch.Generator().manual_seed(seed))[0]


def test_recording_changes_nothing_and_sees_what_attention_is():
    model, ids = ToyDecoder(), some_ids()
    assert ht.sites(model).kinds == {"decoder": 8}
    plain = model(ids)
    for want in ("z", ("q", "k", "v"), ("maps", "z", "q", "k", "v")):
        with ht.record(model, want=want) as r:
            torch.testing.assert_close(model(ids), plain)
    for site in ht.sites(model):
        seen = r[site]
        scores = seen.q @ seen.k.mT / 4
        own = scores.masked_fill(~torch.ones(48, 48).tril().bool(), -torch.inf).softmax(-1)
        torch.testing.assert_close(seen.maps, own)
        torch.testing.assert_close(seen.z, (own @ seen.v).transpose(1, 2))


def test_no_symbol_sees_what_comes_after_it():
    model, ids = ToyDecoder(), some_ids()
    other = ids.clone()
    other[:, 30:] = (other[:, 30:] + 1) % 64
    assert torch.equal(model(ids)[:, :30], model(other)[:, :30])
    assert not torch.equal(model(ids)[:, 30:], model(other)[:, 30:])


def test_positions_are_read_by_queries_and_keys_alone():
    """With even attention in the one layer, where a symbol stands leaves no trace."""
    model = ToyDecoder(layers=1)
    with torch.no_grad():
        model.layers[0].q_proj.weight.zero_()
    one, swapped = torch.tensor([[3, 5, 7, 9]]), torch.tensor([[5, 7, 3, 9]])
    torch.testing.assert_close(model(one)[:, -1], model(swapped)[:, -1])


def test_ablated_gated_and_pruned_agree():
    model, ids = ToyDecoder(), some_ids()
    heads = {("decoder", 0): [1, 2], ("decoder", 1): [0]}
    plain = model(ids)
    with ht.ablate(model, heads):
        off = model(ids)
    with ht.gates(model, {("decoder", 0): torch.tensor([1.0, 0, 0, 1]), ("decoder", 1): torch.tensor([0.0, 1, 1, 1])}):
        assert torch.equal(model(ids), off)
    assert torch.equal(model(ids), plain)
    assert not torch.allclose(off, plain)
    ht.prune(model, heads)
    torch.testing.assert_close(model(ids), off)


def test_the_language_repeats_where_it_says():
    ids, known = repeats(300, torch.Generator().manual_seed(1))
    assert ids.shape == known.shape == (300, 48)
    assert (ids.min(), ids.max()) == (0, 63)
    for row, can in zip(ids.tolist(), known.tolist(), strict=True):
        first = can.index(True) if any(can) else 48
        assert all(can[first:])
        fits = [p for p in range(6, 25) if 0 <= first - 1 - p < 12 and row[first - 1 :] == row[first - 1 - p : 48 - p]]
        assert fits, (row, first)
    assert len(known.float().argmax(1).unique()) > 20  # periods and beginnings differ, so no fixed offset fits


def test_losses_are_those_of_the_next_symbol():
    model, ids = ToyDecoder(), some_ids()
    loss = losses(model, ids)
    assert loss.shape == (4, 47)
    log = model(ids).log_softmax(-1)
    assert loss[2, 10].item() == pytest.approx(-log[2, 10, ids[2, 11]].item(), abs=1e-5)


def test_training_is_the_same_twice_and_watched():
    def watch(model):
        return {"norm": model.unembed.weight.norm().item()}

    random_state = torch.get_rng_state()
    one, two, other = ToyDecoder(), ToyDecoder(), ToyDecoder(seed=1)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not torch.equal(one.unembed.weight, other.unembed.weight)
    history = train(one, steps=4, every=2, watch=watch)
    assert history.equals(train(two, steps=4, every=2, watch=watch))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert history.step.tolist() == [0, 2, 4]
    assert history.norm.nunique() == 3
    assert not one.training
    train(one, steps=1, seed=5)
    train(two, steps=1, seed=6)
    assert not torch.equal(one.unembed.weight, two.unembed.weight)


def test_one_layer_learns_in_a_few_steps_that_symbols_come_again():
    history = train(ToyDecoder(layers=1), steps=40, every=40)
    assert history.loss.iloc[-1] < history.loss.iloc[0] - 0.15
    assert history.unpredictable.iloc[-1] > 4
