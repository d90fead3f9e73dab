"""``course/my_heads.py``, the whole idea in one file, gives the package's numbers."""

import warnings

import pytest
import torch

import headtools as ht
from headtools import geometry
from headtools.course import my_heads
from headtools.roles.induction import induction

from ..heads.reference import untouched
from ..heads.zoo import zoo_model

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


def test_roles():
    maps = torch.rand(3, 4, 12, 12, generator=torch.Generator().manual_seed(0)).tril().softmax(-1)
    torch.testing.assert_close(my_heads.induction_score(maps, 6), induction(maps, 6))
    previous = torch.eye(5).roll(-1, 1).expand(2, 3, 5, 5)
    assert my_heads.offset_score(previous, -1).tolist() == [[1.0] * 3] * 2
    assert my_heads.offset_score(previous, 4).tolist() == [[1.0] * 3] * 2  # the first query looks at the last token
    assert my_heads.offset_score(previous, 1).tolist() == [[0.0] * 3] * 2


def test_gates_that_learn():
    mine, theirs = my_heads.HardConcrete(5, start=0.4), ht.HardConcrete({("encoder", 0): 5}, start=0.4)
    noise = torch.rand(1000, 5, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(mine.p_open(), theirs.p_open())
    torch.testing.assert_close(mine(), theirs.test_gates("louizos"))
    torch.testing.assert_close(mine.sample(noise), theirs.draw(noise))
    closed = (mine.sample(noise) == 0).double().mean(0)
    torch.testing.assert_close(closed, (1 - mine.p_open()).double(), atol=0.05, rtol=0)


def test_intervals_and_table():
    rows = torch.rand(20, 3, generator=torch.Generator().manual_seed(1)).exp()
    for mine, theirs in zip(my_heads.bootstrap(rows), ht.bootstrap(rows), strict=True):
        torch.testing.assert_close(mine.float(), theirs)
    lines = my_heads.table({("encoder", 1): rows})
    assert [line[:3] for line in lines] == [("encoder", 1, h) for h in rows.mean(0).argsort(descending=True).tolist()]
    with pytest.raises(ValueError, match="five examples or more, got 4"):
        my_heads.bootstrap(rows[:4])


def test_a_curve():
    model, batches = labelled("bert")
    order = [("encoder", 0, 1), ("encoder", 2, 0), ("encoder", 0, 3)]
    curve = my_heads.pruning_curve(model, order, (0, 2), lambda: my_heads.loss(model, batches[0]).mean().item())
    with ht.ablate(model, {("encoder", 0): [1], ("encoder", 2): [0]}):
        without = my_heads.loss(model, batches[0]).mean().item()
    assert curve == {0: my_heads.loss(model, batches[0]).mean().item(), 2: without}


def test_training_mode_and_models_without_an_interface_are_refused():
    model, _ = zoo_model("bert")
    with pytest.raises(ValueError, match=r"call model.eval\(\) first"), my_heads.record(model.train()):
        pass
    model.eval()
    with pytest.raises(ValueError, match="no layer that calls transformers' AttentionInterface"):
        my_heads.sites(torch.nn.Linear(2, 2))
