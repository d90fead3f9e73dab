"""Which attention function a model runs inside a context, by name, and that every device and type stays what it was."""

import pytest
import torch
from torch import nn

import headtools as ht
from headtools.heads.ablate import (
    replacement_values,
)

from .homemade import attention
from .reference import untouched
from .zoo import fresh, run

EAGER, SDPA = "headtools_eager", "headtools_sdpa"


@pytest.mark.parametrize(
    ("own", "want", "inside"),
    [
        ("sdpa", "maps", EAGER),
        ("eager", "maps", EAGER),
        ("sdpa", ("q", "k"), SDPA),
        ("eager", "v", EAGER),
        ("sdpa", ("z", "q"), SDPA),
        ("sdpa", "z", "sdpa"),
        ("eager", "z", "eager"),
    ],
)
def test_the_name_inside_and_after(own, want, inside):
    model, batch = fresh("bert")
    model.set_attn_implementation(own)
    with untouched(model), ht.record(model, want=want) as r:
        assert model.config._attn_implementation == inside
        with ht.record(model, want="q"):  # within another, the kernel stays what it was
            assert model.config._attn_implementation == (SDPA if "sdpa" in inside else EAGER)
        assert model.config._attn_implementation == inside
        run(model, batch)
    expected = {want} if isinstance(want, str) else set(want)
    assert {name for name in vars(r["encoder", 0]) if not name.startswith("_")} == expected
    assert model.config._attn_implementation == own


# --- on another device: `meta` has shapes and no numbers, and refuses what comes from elsewhere -----------------------


def test_a_model_without_a_configuration_has_one_side():
    model, x = attention()
    model[0].is_causal = True
    model.forward = lambda x, attention_mask=None: model[0](x)
    (site,) = ht.sites(model)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert site.kind == "decoder"
    assert len(replacement_values(model, [site], "resample", {"x": x, "attention_mask": mask})[site.key]) == 8
    other = mask[:, :4]  # of another length, and it hides something
    with pytest.raises(ValueError, match="does not tell which of the 5 tokens"):
        replacement_values(model, [site], "resample", {"x": x, "attention_mask": other})
    with pytest.raises(ValueError, match="does not tell which of the 5 tokens"):  # nor does one of ones
        replacement_values(model, [site], "resample", {"x": x, "attention_mask": torch.ones_like(other)})
    assert len(replacement_values(model, [site], "resample", {"x": x})[site.key]) == 10


# --- what takes the place of an output --------------------------------------------------------------------------------


class OneOfTwo(nn.Module):
    """Two layers, of which the second never runs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = attention()[0][0], attention()[0][0]

    def forward(self, x):
        return self.first(x)


def test_a_reference_that_a_site_does_not_run_on():
    model = OneOfTwo().eval()
    both, batch = list(ht.sites(model)), {"x": torch.randn(2, 5, 10)}
    assert replacement_values(model, both[:1], "mean", batch)["encoder", 0].shape == (1, 4, 3)
    with pytest.raises(ValueError, match=r"^encoder 1 did not run on the reference: pass batches that reach all"):
        replacement_values(model, both, "mean", batch)
    with pytest.raises(ValueError, match=r"^encoder 1 did not run on the reference"):
        replacement_values(model, both[1:], "resample", batch)
