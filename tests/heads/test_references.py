"""Gates and pruning against transformers 4.57, its ``head_mask`` and its ``prune_heads`` (references/make.py)."""

import json
from pathlib import Path

import pytest
import torch

import headtools as ht
from headtools.importance.gradient import gradient

from .references.subjects import CAN_PRUNE, KINDS, PRUNED, losses, scores, subject

STORED = json.loads((Path(__file__).parent / "references" / "transformers_4_57.json").read_text())


def relative(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", KINDS)
def test_gradients_of_gates_are_those_of_head_masks(name):
    model, batch = subject(name)
    sites = ht.sites(model)

    def loss(outputs, batch):
        return losses(lambda **_: outputs, batch)

    found = gradient(model, batch, loss, signed=True).rows
    leaves = {site.key: torch.ones(2, site.heads, requires_grad=True) for site in sites}
    with ht.gates(model, leaves):
        by_gate = dict(zip(leaves, torch.autograd.grad(losses(model, batch).sum(), [*leaves.values()]), strict=True))
    assert set(STORED["gradients"][name]) == set(sites.kinds)
    for kind, stored in STORED["gradients"][name].items():
        stored = torch.tensor(stored)  # (B, layers, heads)
        assert stored.abs().min() > 0
        for slopes in (found, by_gate):
            mine = torch.stack([slopes[kind, layer] for layer in range(stored.shape[1])], 1)
            assert relative(mine, stored) < 1e-5


@pytest.mark.parametrize("name", KINDS)
def test_slopes_of_the_loss_by_differences(name):
    """The stored numbers once more without any backward pass: a central difference of one head's gate."""
    model, batch = subject(name)
    model.double()
    step = 1e-3
    for site in list(ht.sites(model))[:2]:
        stored = torch.tensor(STORED["gradients"][name][site.kind])[:, site.layer]
        for head in (0, site.heads - 1):
            ends = []
            for move in (step, -step):
                gate = torch.ones(site.heads, dtype=torch.float64)
                gate[head] += move
                with torch.no_grad(), ht.gates(model, {site.key: gate}):
                    ends.append(losses(model, batch))
            slope = (ends[0] - ends[1]) / (2 * step)
            assert (slope - stored[:, head]).abs().max() < 1e-3 * stored.abs().max()  # norms in float32


@pytest.mark.parametrize("name", CAN_PRUNE)
def test_a_pruned_model_says_what_prune_heads_leaves(name):
    model, batch = subject(name)
    kind = next(iter(KINDS[name]))
    stored = torch.tensor(STORED["pruned"][name])
    with torch.no_grad():
        full = scores(model, batch)
        ht.prune(model, {(kind, layer): heads for layer, heads in PRUNED.items()})
        cut = scores(model, batch)
    assert relative(cut, stored) < 1e-5
    assert relative(full, stored) > 1e-2
