"""Which keys a query can see, against the maps of eager attention and against what is known of each model."""

import pytest
import torch

import headtools as ht

from .zoo import INTERFACE, PADDED, run, zoo_model


@pytest.mark.parametrize(("name", "side"), [(name, side) for name, side in PADDED if name in INTERFACE])
def test_weights_are_where_keys_are_visible(name, side):
    """Every visible key has some weight, and no other has any; the same keys are visible with the model's kernel."""
    model, batch = zoo_model(name, side)
    with ht.record(model, want=("maps", "visible")) as seen:
        run(model, batch)
    with ht.record(model, want="visible") as fused:
        run(model, batch)
    for site in ht.sites(model):
        maps, visible = seen[site].maps, seen[site].visible
        assert visible.dtype == torch.bool
        assert visible.shape[0] == len(maps)
        assert visible.shape[1] in (1, site.heads)
        assert visible.shape[2:] == maps.shape[2:]
        real = visible.any(-1, keepdim=True)  # a query that is padding may see nothing
        assert torch.equal((maps.amax(1, keepdim=True) > 0) & real, visible.any(1, keepdim=True))
        both = real & fused[site].visible.any(-1, keepdim=True)
        assert torch.equal(fused[site].visible & both, visible & both)


def test_a_window_counts():
    model, batch = zoo_model("llama")
    with ht.window(model, {("decoder", 0): [1]}, first=1, recent=2), ht.record(model, want="visible") as seen:
        run(model, {"input_ids": batch["input_ids"]})
    visible = seen["decoder", 0].visible
    assert visible[0, 1].sum(-1).tolist() == [1, 2, 3, 3, 3, 3, 3]
    assert visible[0, 0].sum(-1).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert seen["decoder", 1].visible.shape == (3, 1, 7, 7)
