"""Activation patching: the right heads at the right tokens, on every architecture, and nothing left behind."""

import pytest
import torch

import headtools as ht

from .reference import naive_gates, some_heads, untouched
from .zoo import MECHANISMS, run, zoo_model


def other(batch):
    """A batch of the same shape that says something else."""
    changed = {name: value.clone() for name, value in batch.items()}
    for name in ("input_ids", "decoder_input_ids", "pixel_values", "input_features"):
        if name in changed:
            changed[name] = changed[name].flip(0) if changed[name].is_floating_point() else _next_word(changed[name])
    return changed


def _next_word(ids):
    return torch.where(ids > 2, 3 + (ids - 2) % 90, ids)


def every_call(model, batch):
    """What each site gave, one z a call."""
    with ht.record(
        model, want="z", accumulate=lambda _site, recorded, before: [*(before or []), recorded.z]
    ) as recorded:
        run(model, batch)
    return recorded


@pytest.mark.parametrize("name", MECHANISMS)
def test_some_heads_at_some_tokens_as_by_hand(name):
    model, batch = zoo_model(name)
    sites = ht.sites(model)
    heads, there = some_heads(sites), every_call(model, other(batch))
    with ht.patch(model, heads, there, positions=[0, 2]):
        patched = run(model, batch)
    calls = dict.fromkeys(heads, 0)

    def by_hand(site):
        def change(z):
            z, new = z.clone(), there[site][calls[site.key] % len(there[site])]
            calls[site.key] += 1
            for head in heads[site.key]:
                for position in (0, 2):
                    z[:, position, head] = new[:, position, head]
            return z

        return change

    with naive_gates([(site, by_hand(site)) for site in sites]):
        naive = run(model, batch)
    assert torch.equal(patched, naive)


def test_a_mask_of_positions_chooses_by_row():
    model, batch = zoo_model("bert")
    with ht.record(model, want="z") as there:
        run(model, other(batch))
    mask = torch.zeros(3, 7, dtype=torch.bool)
    mask[0, 1] = mask[2, 0] = True
    with ht.patch(model, {("encoder", 1): [3]}, there, mask), ht.record(model, want="z") as here:
        run(model, batch)
    with ht.record(model, want="z") as plain:
        run(model, batch)
    changed = (here["encoder", 1].z != plain["encoder", 1].z).any(-1).nonzero().tolist()
    assert changed == [[0, 1, 3], [2, 0, 3]]
    assert torch.equal(here["encoder", 1].z[0, 1, 3], there["encoder", 1].z[0, 1, 3])


def test_a_patched_encoder_translates_and_a_decoder_is_told_apart():
    """In generate the encoder runs once; the decoder reads one token at a time, which no whole-sentence source fits."""
    model, tokenizer = ht.load()
    one, two = (tokenizer([text], return_tensors="pt") for text in ("the old dog slept .", "the old fox slept ."))
    with torch.no_grad(), ht.record(model, want="z") as there:
        model(**one, decoder_input_ids=torch.tensor([[0, 5, 6]]))
    encoder = {site.key: range(8) for site in ht.sites(model)["encoder"]}
    plain = [model.generate(**batch) for batch in (one, two)]
    with ht.patch(model, encoder, there):
        patched = model.generate(**two)
    assert not torch.equal(patched, plain[1])
    with ht.patch(model, {("decoder", 0): [1]}, there), pytest.raises(ValueError, match=r"1 rows of 1 tokens here"):
        model.generate(**two)


GOOD = torch.zeros(3, 7, 4, 8)


@pytest.mark.parametrize(
    ("heads", "source", "positions", "kind", "words"),
    [
        ({("encoder", 0): [4]}, {("encoder", 0): GOOD}, None, IndexError, r"heads 0\.\.3"),
        ({("encoder", 9): [0]}, {("encoder", 0): GOOD}, None, KeyError, "encoder"),
        ([("encoder", 0, 1)] * 2, {("encoder", 0): GOOD}, None, ValueError, "named twice"),
        ({}, {("encoder", 0): GOOD}, None, ValueError, "got no heads"),
        ({("encoder", 1): [0]}, {("encoder", 0): GOOD}, None, KeyError, "nothing for encoder 1; it has"),
        ({("encoder", 0): [0]}, GOOD, None, TypeError, r"got Tensor: with record"),
        ({("encoder", 0): [0]}, {("encoder", 0): 3}, None, TypeError, "got a int as source of .*; expected z"),
        ({("encoder", 0): [0]}, {("encoder", 0): GOOD[..., :4]}, None, ValueError, r"needs z of shape \(B, T, 4, 8\)"),
        ({("encoder", 0): [0]}, {("encoder", 0): GOOD[0]}, None, ValueError, r"shape \(B, T, 4, 8\), got \(7, 4, 8\)"),
        ({("encoder", 0): [0]}, {("encoder", 0): GOOD}, [], ValueError, "got no positions"),
        ({("encoder", 0): [0]}, {("encoder", 0): GOOD}, [-1], ValueError, "from 0, got -1"),
        ({("encoder", 0): [0]}, {("encoder", 0): GOOD}, [True], ValueError, "got True"),
        ({("encoder", 0): [0]}, {("encoder", 0): GOOD}, [7], ValueError, r"position 7.*tokens 0\.\.6"),
        ({("encoder", 0): [0]}, {("encoder", 0): GOOD}, GOOD[:, :6, 0, 0] == 0, ValueError, "got a mask of positions"),
        ({("encoder", 0): [0]}, {("encoder", 0): GOOD[:, :5]}, None, ValueError, "7 tokens here.*5 tokens in the"),
        ({("encoder", 0): [0]}, {("encoder", 0): GOOD[:2]}, None, ValueError, "2 rows of 7 tokens in the source"),
    ],
)
def test_what_cannot_be_patched_is_told(heads, source, positions, kind, words):
    model, batch = zoo_model("bert")
    with untouched(model), pytest.raises(kind, match=words), ht.patch(model, heads, source, positions):
        run(model, batch)
