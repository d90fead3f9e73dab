"""``course/my_heads.py``, the whole idea in one file, gives the package's numbers."""

import copy
import random
import warnings

import pytest
import torch

import headtools as ht
from headtools import geometry
from headtools.course import my_heads
from headtools.organism.written_models import WrittenModel, write_induction
from headtools.roles.induction import induction

from ..heads.reference import untouched
from ..heads.zoo import fresh, zoo_model

# Architectures of the zoo whose layout the one file understands. The others: layers that run several times (albert), z
# that is not what W_O reads head by head, several stacks of one kind (clip), latent keys and values (deepseek).
SEEN = ["bert", "roberta", "distilbert", "electra", "bert_decoder", "gpt2", "gpt_neox", "opt", "llama", "mistral"]
SEEN += ["qwen2", "qwen3", "gemma2", "gemma3", "gpt_oss", "phi3", "bart", "marian", "t5", "whisper", "vit"]
SCORED = ("bert", "gpt2", "llama", "qwen3", "gemma2", "marian", "t5")  # with labels: one number per example
WRITTEN = ("bert", "gpt2", "llama", "marian")  # whose W_QK and W_OV are what the head computes with


def labelled(name):
    model, batch = zoo_model(name)
    ids = batch.pop("decoder_input_ids", batch["input_ids"])
    labels = ids.masked_fill(batch["attention_mask"] == 0, -100) if ids is batch["input_ids"] else ids
    return model, [batch | {"labels": labels}]


def same(found, expected, tolerance=0.0):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key].double(), value.double(), rtol=0, atol=tolerance, msg=str(key))


@pytest.mark.parametrize("name", SEEN)
def test_sites_and_records(name):
    model, batch = zoo_model(name)
    with untouched(model), torch.no_grad():
        with my_heads.record(model) as mine:
            model(**batch)
        with ht.record(model, want=("maps", "z", "q", "k", "v")) as theirs:
            model(**batch)
    assert {key: site.heads for key, site in my_heads.sites(model).items()} == {s.key: s.heads for s in ht.sites(model)}
    for key, layer in mine.items():
        for quantity in ("maps", "z", "q", "k", "v"):
            assert torch.equal(getattr(layer, quantity), getattr(theirs[key], quantity)), (key, quantity)


@pytest.mark.parametrize("name", SCORED)
def test_changes_and_scores(name):
    model, batches = labelled(name)
    key, site = next(iter(my_heads.sites(model).items()))
    n = len(batches[0]["labels"])
    gate = torch.linspace(0, 1, n * site.heads).view(n, site.heads)
    with torch.no_grad(), ht.record(model, want="z") as other:
        model(**{name: value.flip(0) for name, value in batches[0].items()})
    contexts = (
        (my_heads.gates(model, {key: gate}), ht.gates(model, {key: gate})),
        (my_heads.switch_off(model, {key: [1]}), ht.ablate(model, {key: [1]})),
        (my_heads.patch(model, {key: [0]}, other), ht.patch(model, {key: [0]}, other)),
    )
    with untouched(model):
        for mine, theirs in contexts:
            with torch.no_grad(), mine:
                found = model(**batches[0]).logits
            with torch.no_grad(), theirs:
                assert torch.equal(found, model(**batches[0]).logits)
        same(my_heads.gradient(model, batches), ht.gradient(model, batches, signed=True).rows, 5e-6)
        same(my_heads.ablation(model, batches), ht.ablation(model, batches, progress=False).rows, 5e-6)
        examples = [{name: value[i : i + 1] for name, value in batches[0].items()} for i in range(n)]
        each = [ht.confidence(model, example, exclude=[]).values for example in examples]
        same(my_heads.confidence(model, batches), {k: torch.stack([one[k] for one in each]) for k in each[0]}, 1e-6)


@pytest.mark.parametrize("name", WRITTEN)
def test_circuits_and_contributions(name):
    model, _ = zoo_model(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # with rotary positions W_QK is not the whole score, which the package says
        circuits = {"ov": geometry.ov(model), "qk": geometry.qk(model, anyway=True)}
    for key, site in my_heads.sites(model).items():
        z = torch.randn(2, 3, site.heads, my_heads.weights(site)[2].shape[-1])
        same({key: my_heads.contributions(site, z)}, {key: ht.contributions(ht.sites(model)[key], z)}, 1e-6)
        for which, mine in (("ov", my_heads.ov(site)), ("qk", my_heads.qk(site))):
            theirs = circuits[which][key]
            same({key: mine}, {key: theirs.left @ theirs.right}, 1e-5)
            same({key: my_heads.effective_rank(mine)}, {key: geometry.effective_rank(theirs)}, 1e-3)


def test_an_induction_score():
    maps = torch.rand(3, 4, 12, 12, generator=torch.Generator().manual_seed(0)).tril().softmax(-1)
    torch.testing.assert_close(my_heads.induction_score(maps, 6), induction(maps, 6))


@pytest.mark.parametrize("name", ["bert", "marian"])
def test_gates_are_trained_as_in_the_package(name):
    model, batches = labelled(name)
    keys = [key for key in my_heads.sites(model) if key[0] == "encoder"][:2]
    heads = len(keys) * my_heads.sites(model)[keys[0]].heads
    noise = []
    for step in range(5):  # what the package draws for seed 0
        draw = torch.Generator().manual_seed(random.Random(f"gates 0 {step}").getrandbits(62))
        noise.append(torch.rand(heads, generator=draw))
    gate = my_heads.HardConcrete(heads, start=1.0)
    with untouched(model):
        learning = [p.requires_grad_(False) for p in model.parameters() if p.requires_grad]
        history = my_heads.fit_gates(model, batches * 5, keys, gate, lambda n: 0.3 * n, torch.stack(noise), 0.2)
        for p in learning:
            p.requires_grad_(True)
        settings = {"sites": keys, "weights": None, "start": 1.0, "gate_rate": 0.2, "seed": 0, "progress": False}
        fit = ht.fit_gates(model, batches, 0.3, steps=5, **settings)
    torch.testing.assert_close(history, torch.tensor(fit.history.to_numpy()), atol=1e-3, rtol=0)
    torch.testing.assert_close(gate.log_alpha.detach(), history[-1])


def test_intervals():
    rows = torch.rand(20, 3, generator=torch.Generator().manual_seed(1)).exp()
    for mine, theirs in zip(my_heads.bootstrap(rows), ht.bootstrap(rows), strict=True):
        torch.testing.assert_close(mine.float(), theirs)
    with pytest.raises(ValueError, match="five examples or more, got 4"):
        my_heads.bootstrap(rows[:4])


def test_stories_score_as_the_taxonomy_does():
    model, tokenizer = ht.load()
    test, other = (ht.corpus("organism", split, limit=30) for split in ("test", "validation"))
    frame = ht.taxonomy(model, tokenizer, test, other, kinds="encoder", roles=["positional", "syntactic"])
    frame = frame.sort_values(["layer", "head"]).set_index("role")
    batch, word = ht.align(tokenizer, test)
    with torch.no_grad(), my_heads.record(model) as seen:
        model.get_encoder()(**batch)
    maps = torch.stack([seen["encoder", layer].maps for layer in range(6)], 1)
    attended = maps.masked_fill((word < 0)[:, None, None, None], -1).argmax(-1)
    pairs = {
        "offset -1": [my_heads.offset_pairs(some, -1) for some in (test, other)],
        "obj down": [my_heads.relation_pairs(some, "obj", "down") for some in (test, other)],
        "det up": [my_heads.relation_pairs(some, "det", "up") for some in (test, other)],
    }
    for role, (scored, fitted) in pairs.items():
        found = my_heads.hits(attended, scored)
        assert found.float().mean(0).flatten().tolist() == pytest.approx(frame.score[role].tolist(), abs=1e-6)
        rows = my_heads.sentence_rows(found, scored)
        torch.testing.assert_close(rows.mean(0), found.double().mean(0))
        if role != "offset -1":
            share = my_heads.best_offset(fitted, scored)[1]
            assert share == pytest.approx(frame.baseline[role].iloc[0], abs=1e-6)


@pytest.mark.parametrize("name", ["bart", "marian", "opt", "whisper"])
def test_a_layer_without_some_heads(name):
    model, batch = fresh(name)
    smaller, key = copy.deepcopy(model), next(iter(my_heads.sites(model)))
    place = next(n for n, module in model.named_modules() if module is my_heads.sites(model)[key].module)
    attention = my_heads.slice_layer(model.get_submodule(place), [1])
    ht.prune(smaller, {key: [1]})
    theirs = smaller.get_submodule(place)
    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
        for weight in ("weight", "bias"):
            a, b = getattr(getattr(attention, part), weight), getattr(getattr(theirs, part), weight)
            assert a is b is None or torch.equal(a, b), (part, weight)
    with torch.no_grad(), my_heads.switch_off(model, {key: [1]}):
        expected = model(**batch)[0]
    model.set_submodule(place, attention)
    with untouched(model), torch.no_grad():
        torch.testing.assert_close(model(**batch)[0], expected, atol=1e-5, rtol=1e-5)


def test_what_would_be_silently_wrong():
    model, batches = labelled("marian")
    run, heads = batches[0], {("encoder", 0): [1]}
    with pytest.raises(ValueError, match="both runs measure the same"):
        my_heads.moved(model, run, run, heads, lambda logits: logits[:, 0, 3])
    fused, batch = fresh("llama")
    fused.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match=r"set_attn_implementation\('eager'\)"):
        my_heads.saturation_proof_gradient(fused, [batch | {"labels": batch["input_ids"]}])
    ended = batch | {"attention_mask": torch.ones_like(batch["input_ids"]).index_fill(1, torch.tensor(-1), 0)}
    with pytest.raises(ValueError, match="pass texts of one length"):
        my_heads.direct_logit(fused, fused.model.norm, ended, torch.tensor([1]), torch.tensor([2]))
    assert not fused.model.norm._forward_pre_hooks

    x, y = torch.ones(6, 3), torch.tensor([0, 1] * 3)  # the two labels have the same mean: nothing to read
    assert torch.equal(my_heads.eraser(x, y)(x), x)
    key, head = ("encoder", 0), 1
    one = torch.randn(1, model.config.d_model)
    before = my_heads.weights(my_heads.sites(model)[key])[3][head].clone()
    written = []
    for directions in (one, torch.cat([one, 2 * one])):  # twice the same direction is one direction
        with my_heads.remove_direction(model, (*key, head), directions):
            written.append(my_heads.weights(my_heads.sites(model)[key])[3][head].clone())
    torch.testing.assert_close(*written, atol=1e-6, rtol=0)
    assert torch.equal(my_heads.weights(my_heads.sites(model)[key])[3][head], before)


def test_training_gates_leaves_no_gradient_behind():
    model, batches = labelled("marian")
    gate = my_heads.HardConcrete(4)
    my_heads.fit_gates(model, batches, [("encoder", 0)], gate, lambda n: 0.1 * n, torch.full((1, 4), 0.4))
    assert all(weight.grad is None for weight in model.parameters())


def test_training_mode_and_models_without_an_interface_are_refused():
    model, _ = zoo_model("bert")
    with pytest.raises(ValueError, match=r"call model.eval\(\) first"), my_heads.record(model.train()):
        pass
    model.eval()
    with pytest.raises(ValueError, match="no layer that calls transformers' AttentionInterface"):
        my_heads.sites(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
def test_what_heads_write_of_a_difference(name):
    model, batch = zoo_model(name)
    batch = {"input_ids": batch["input_ids"]}  # no padding: the last token is the last one
    norm = model.transformer.ln_f if name == "gpt2" else model.model.norm
    right, wrong = torch.tensor([3, 5, 4, 6])[: len(batch["input_ids"])], torch.tensor([7, 2, 2, 3])
    wrong = wrong[: len(right)]
    with untouched(model):
        mine = my_heads.direct_logit(model, norm, batch, right, wrong)
        theirs = [ht.direct_logit_attribution(model, batch, words).heads for words in (right, wrong)]
    same(mine, {key: value - theirs[1][key] for key, value in theirs[0].items()}, 1e-5)


@pytest.mark.parametrize("name", SCORED)
def test_a_slope_that_sees_behind_sharp_maps(name):
    model, batches = labelled(name)
    model = copy.deepcopy(model)  # the zoo's is shared
    model.set_attn_implementation("eager")  # which calls a softmax that can be replaced
    theirs = ht.gradient(model, batches, signed=True, softmax="secant").rows
    with untouched(model):
        same(my_heads.saturation_proof_gradient(model, batches), theirs, 5e-6)


def test_a_written_head_that_no_slope_sees():
    model = WrittenModel(layers=2)
    write_induction(model, gain=100.0)
    ids = torch.tensor([[0, 5, 3, 7, 5, 3, 7], [0, 9, 2, 4, 9, 2, 4]])
    batch = {"input_ids": ids, "labels": ids.where(torch.arange(7) > 4, -100)}
    plain, secant = my_heads.gradient(model, [batch]), my_heads.saturation_proof_gradient(model, [batch])
    theirs = ht.gradient(model, batch, signed=True, softmax="secant").rows
    same(secant, theirs, 1e-6)
    assert plain["decoder", 0][:, 0].abs().max() < 1e-6 < 1e-2 < secant["decoder", 0][:, 0].abs().min()
    assert (my_heads.ablation(model, [batch])["decoder", 0][:, 0] > 1).all()
