"""Which attention function a model runs inside a context, by name, and that every device and type stays what it was."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import headtools as ht
from headtools.heads._attention import attend_uniformly
from headtools.heads.ablate import (
    ablate,
    check_replacement,
    replacement_edit,
    replacement_values,
)

from .homemade import attention
from .reference import untouched
from .zoo import error, fresh, logits, run, zoo_model

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


def test_even_attention_keeps_the_kind_of_kernel():
    for own, inside in (("sdpa", SDPA), ("eager", EAGER)):
        model, _ = fresh("bert")
        model.set_attn_implementation(own)
        with untouched(model), ht.ablate(model, {("encoder", 0): [1]}, replacement="uniform"):
            assert model.config._attn_implementation == inside


def test_configurations_of_no_attention_are_left_alone():
    model, batch = fresh("bert")
    model.note, model.other, model.fixed = nn.Identity(), nn.Identity(), nn.Identity()
    model.note.config = SimpleNamespace(size=3)
    model.other.config = None
    model.fixed.config = SimpleNamespace(_attn_implementation="mine", _attn_implementation_internal="mine")
    model.fixed._can_set_attn_implementation = lambda: False
    model.eval()
    with untouched(model), ht.record(model) as r:
        assert vars(model.note.config) == {"size": 3}
        assert model.fixed.config._attn_implementation_internal == "mine"
        assert model.config._attn_implementation == EAGER
        run(model, batch)
    assert len(r) == 3


def test_even_heads_inside_even_heads():
    model, batch = zoo_model("bert")
    sites = ht.sites(model)

    def even():
        """By layer, the heads that give all the keys they see the same weight."""
        with ht.record(model) as recorded:
            run(model, batch)
        for site in sites:
            maps = recorded[site].maps
            same = (maps == 0) | (maps > maps.amax(-1, keepdim=True) * (1 - 1e-4))
            yield same.transpose(0, 1).flatten(1).all(1).nonzero().flatten().tolist()

    with untouched(model), attend_uniformly(model, {sites["encoder", 0]: [3, 1]}):
        assert list(even()) == [[1, 3], [], []]
        with attend_uniformly(model, {sites["encoder", 0]: [0, 1], sites["encoder", 2]: [2]}):
            assert list(even()) == [[0, 1, 3], [], [2]]
        assert list(even()) == [[1, 3], [], []]


def test_a_file_without_eager_attention_gives_no_maps():
    model, x = attention()
    model[0].config = SimpleNamespace(_attn_implementation_internal="sdpa", _attn_implementation="sdpa")
    forward = type(model[0]).forward

    def named(self, x):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        return forward.__globals__["ALL_ATTENTION_FUNCTIONS"][EAGER](self, x, x, x, None) or ALL_ATTENTION_FUNCTIONS

    type(model[0]).forward = named
    with pytest.raises(ValueError, match="HomeAttention: its file has no eager_attention_forward"), ht.record(model):
        model(x)


# --- on another device: `meta` has shapes and no numbers, and refuses what comes from elsewhere -----------------------


def on_meta(name="gpt2"):
    model, batch = fresh(name)
    return model.to("meta"), {"input_ids": batch["input_ids"].to("meta")}


def test_gates_and_stand_ins_come_where_the_outputs_are():
    model, batch = on_meta()
    sites = ht.sites(model)
    z = torch.zeros(2, 3, 4, 5, device="meta", dtype=torch.bfloat16)
    for given in (torch.ones(4, 5), torch.ones(2, 3, 4, 5, dtype=torch.float64)):
        found = replacement_edit(sites.all[0], [1, 3], "mean", given[None], 0)(z)
        assert (found.device.type, found.dtype, found.shape) == ("meta", torch.bfloat16, z.shape)
    key = ("decoder", 1)
    z = {site.key: torch.zeros(3, 7, 4, 8) for site in sites}
    for context in (
        ht.gates(model, {key: torch.ones(4)}),
        ht.gates(model, {key: torch.ones(3, 7, 4, dtype=torch.float64)}),
        ht.ablate(model, {key: [1]}),
        ht.ablate(model, {key: [1]}, replacement="uniform"),
        ht.patch(model, {key: [1]}, z),
        ht.patch(model, {key: [1]}, z, [0, 2]),
        ht.patch(model, {key: [1]}, z, torch.ones(3, 7, dtype=torch.bool)),
        ht.record(model),
    ):
        with context:
            given = logits(model(**batch))
        assert (given.device.type, given.dtype) == ("meta", torch.float32)


def test_nothing_is_there_for_weights_that_are_nowhere():
    """A weight on `meta` is offloaded: it comes to the CPU, or wherever the model runs, when it is needed."""
    model, _ = on_meta()
    sites = list(ht.sites(model))
    assert {pool.device.type for pool in replacement_values(model, sites, "zero", None).values()} == {"cpu"}


def test_a_model_without_a_configuration_has_one_side():
    model, x = attention()
    model[0].is_causal = True
    model.forward = lambda x, attention_mask: model[0](x)
    (site,) = ht.sites(model)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert site.kind == "decoder"
    assert len(replacement_values(model, [site], "resample", {"x": x, "attention_mask": mask})[site.key]) == 8
    other = mask[:, :4]  # of another length, and it hides something
    with pytest.raises(ValueError, match="does not tell which of the 5 tokens"):
        replacement_values(model, [site], "resample", {"x": x, "attention_mask": other})
    batch = {"x": x, "attention_mask": torch.ones_like(other)}  # it hides nothing
    assert len(replacement_values(model, [site], "resample", batch)[site.key]) == 10


def test_draws_and_means_stay_with_their_pool():
    site = ht.sites(zoo_model("bert")[0]).all[0]
    pool, z = torch.zeros(6, 4, 8, device="meta"), torch.zeros(2, 3, 4, 8, device="meta")
    for by in ("resample", "mean"):
        found = replacement_edit(site, [0, 2], by, pool, 0)(z)
        assert (found.device.type, found.shape) == ("meta", z.shape)


# --- what takes the place of an output --------------------------------------------------------------------------------


def test_pools_hold_what_they_say():
    model, batch = zoo_model("bert")
    sites = list(ht.sites(model))
    site, tokens = sites[0], int(batch["attention_mask"].sum())
    assert replacement_values(model, sites, "uniform", None) == {}
    zero = replacement_values(model, sites, "zero", None)
    assert {key: (tuple(pool.shape), pool.any().item()) for key, pool in zero.items()} == {
        one.key: ((1, 4, 8), False) for one in sites
    }
    drawn = replacement_values(model, [site], "resample", iter([batch, batch]))
    mean = replacement_values(model, [site], "mean", [batch, batch])
    assert list(drawn) == list(mean) == [site.key]
    assert drawn[site.key].shape == (2 * tokens, 4, 8)
    assert mean[site.key].shape == (1, 4, 8)
    assert mean[site.key].dtype == drawn[site.key].dtype == torch.float32
    assert error(mean[site.key], drawn[site.key].double().mean(0, keepdim=True)) <= 1e-6
    assert not mean[site.key].requires_grad


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


def test_the_seed_is_zero_unless_it_is_told():
    model, batch = zoo_model("bert")
    site = ht.sites(model).all[1]
    pools = replacement_values(model, [site], "resample", batch)

    def inside(context):
        with context:
            return run(model, batch)

    selected = {site: [0, 2]}
    plain = inside(ablate(model, selected, "resample", pools))
    assert torch.equal(plain, inside(ablate(model, selected, "resample", pools, 0)))
    assert torch.equal(plain, inside(ht.ablate(model, {site.key: [0, 2]}, replacement="resample", reference=batch)))
    assert not torch.equal(plain, inside(ablate(model, selected, "resample", pools, 1)))
    pool, z = torch.arange(100.0)[:, None, None].expand(100, 4, 8), torch.zeros(2, 3, 4, 8)  # row i holds i
    one, two = (replacement_edit(other, [0, 1, 2, 3], "resample", pool, 0)(z) for other in ht.sites(model).all[:2])
    assert not torch.equal(one, two), "each site has draws of its own"


@pytest.mark.parametrize("by", ["zero", "mean", "resample", "uniform"])
def test_every_way_is_allowed_where_it_can_be(by):
    check_replacement(by, ht.sites(zoo_model("bert")[0]))
    odd = [site for name in ("bloom", "gpt_oss") for site in ht.sites(zoo_model(name)[0])]
    if by != "uniform":
        check_replacement(by, odd)
    with pytest.raises(ValueError, match="replacement must be"):
        check_replacement(by + "s", [])


class Scaled(nn.Linear):
    """An output projection that is told more than the heads' outputs."""

    def forward(self, x, scale):
        return super().forward(x) * scale


def test_what_else_the_output_projection_reads_reaches_it():
    model, x = attention()
    own = model[0].o_proj
    scaled = Scaled(12, 10).eval()
    scaled.load_state_dict(own.state_dict())
    with torch.no_grad():
        plain = model(x)
        scaled.register_forward_pre_hook(lambda module, args: (args[0], 2.0) if len(args) == 1 else None)
        model[0].o_proj = scaled
        for context in (
            ht.gates(model, {("encoder", 0): torch.ones(4)}),
            ht.patch(model, {("encoder", 0): [0]}, {("encoder", 0): torch.zeros(2, 5, 4, 3)}, [4]),
            ht.record(model, want="z", grad=True),
        ):
            with context:
                assert torch.allclose(model(x)[:, :4], plain[:, :4] * 2, atol=1e-6)
