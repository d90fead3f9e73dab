"""What is read from weights has their precision, in whatever autocast region it is read."""

import pytest
import torch

import headtools as ht
from headtools import geometry

from ..heads.zoo import fresh

GEOMETRY = {
    "matrix": lambda model: geometry.ov(model)["encoder", 1].matrix(),
    "singular values": lambda model: geometry.ov(model)["encoder", 1].singular_values(),
    "form": lambda model: geometry.qk(model)["encoder", 1, 0].between(torch.eye(32), torch.eye(32)),
    "effective rank": lambda model: geometry.effective_rank(geometry.ov(model)).values["encoder", 1],
    "overlap": lambda model: geometry.overlap(geometry.ov(model)).values,
    "cosine": lambda model: geometry.cosine(geometry.ov(model)).values,
    "composition": lambda model: geometry.composition(*ht.sites(model).all[:2]).values,
}


@pytest.mark.parametrize("name", GEOMETRY)
def test_what_is_read_from_weights_has_their_precision(name):
    model, _ = fresh("bert")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = GEOMETRY[name](model)
        with ht.edit(model, ("encoder", 1, 1), remove=geometry.ov(model)["encoder", 1, 1].svd()[2][:, 0]):
            assert geometry.ov(model)["encoder", 1, 1].singular_values()[-1] < 1e-5
    assert torch.equal(inside, GEOMETRY[name](model))
