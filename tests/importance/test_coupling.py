"""Losses that compare examples with each other: seen, refused by example, measured by batch."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import headtools as ht
from headtools.importance.ablation import ablation, ablation_losses
from headtools.importance.all_but_one import all_but_one
from headtools.importance.gradient import gate_gradients, gradient
from headtools.importance.interaction import curvature

from ..heads.zoo import fresh, logits, zoo_model
from .test_gradient import close, labelled

KEY = ("encoder", 1)


def texts(outputs):
    return outputs.logits[:, 0]


def info_nce(outputs, _batch):
    """How well each text is told from the others by its own last word."""
    similar = F.normalize(texts(outputs), dim=-1) @ F.normalize(outputs.logits[:, 1], dim=-1).mT
    return F.cross_entropy(similar, torch.arange(len(similar)), reduction="none")


def padded(outputs, batch):
    return F.pad(info_nce(outputs, batch).mean()[None], (0, len(outputs.logits) - 1))


def padded_in_front(outputs, batch):
    return padded(outputs, batch).flip(0)


def centred(outputs, _batch):
    each = texts(outputs).logsumexp(-1)
    return each - each.mean()


def spread(outputs, batch):
    return info_nce(outputs, batch).mean().expand(len(outputs.logits))


def neighbours(outputs, _batch):
    return (texts(outputs) * texts(outputs).roll(1, 0)).mean(-1)


COUPLED = [info_nce, padded, padded_in_front, centred, spread, neighbours]
MEASURES = {
    "gradient": gradient,
    "per position": lambda *args, **more: gradient(*args, per="position"),
    "gate_gradients": gate_gradients,
    "ablation": lambda *args, **more: ablation(*args, progress=False, **more),
    "all_but_one": lambda *args, **more: all_but_one(*args, progress=False, **more),
    "interaction": lambda model, batch, loss, **more: ht.interaction(
        model, batch, [((*KEY, 0), ("encoder", 0, 2))], loss, progress=False, **more
    ),
}


@pytest.mark.parametrize(
    ("measure", "loss"),
    [(measure, loss) for measure in ("gradient", "ablation") for loss in COUPLED]
    + [(measure, info_nce) for measure in ("per position", "gate_gradients", "all_but_one", "interaction")],
)
def test_examples_that_depend_on_each_other_are_refused(measure, loss):
    model, batch = zoo_model("bert")
    one = {key: value[:1] for key, value in batch.items()}
    for batches in (batch, [one, batch]):
        with pytest.raises(ValueError, match=r'no loss of this example: write per="batch"'):
            MEASURES[measure](model, batches, loss)


def test_one_number_for_all_is_told_how_to_go_on():
    model, batch = zoo_model("bert")
    for measure in MEASURES.values():
        with pytest.raises(ValueError, match=r'for a loss of the whole batch, .* write per="batch"'):
            measure(model, batch, lambda outputs, batch: info_nce(outputs, batch).mean())


def test_a_score_that_has_no_slope_is_refused_as_well():
    """Whether the right partner comes first, of all in the batch."""
    model, batch = zoo_model("bert")

    def wrong(outputs, _batch):
        similar = texts(outputs) @ outputs.logits[:, 1].mT
        return (similar.argsort(descending=True) * torch.arange(1.0, 4)).sum(1)

    with pytest.raises(ValueError, match='write per="batch"'):
        ablation(model, batch, wrong, progress=False)


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "albert", "vit", "fsmt", "bloom", "whisper"])
def test_examples_that_stand_alone_are_not(name):
    model, batch = zoo_model(name)

    def loss(outputs, _batch):
        return F.normalize(logits(outputs).flatten(1), dim=-1)[:, :9].exp().sum(1)

    assert gradient(model, batch, loss).flat().isfinite().all()
    assert ablation(model, batch, loss, progress=False).flat().isfinite().all()
    half, batch = fresh(name)[0].bfloat16(), {k: v.bfloat16() if v.is_floating_point() else v for k, v in batch.items()}
    assert gradient(half, batch, loss).flat().isfinite().all()
    assert ablation(half, batch, loss, progress=False).flat().isfinite().all()


class Pairs(nn.Module):
    """Runs two texts for each example: beside each other, or all the first ones before all the second ones."""

    def __init__(self, interleaved):
        super().__init__()
        self.inner, self.interleaved = zoo_model("bert")[0], interleaved

    def forward(self, input_ids):
        ids = input_ids.flatten(0, 1) if self.interleaved else input_ids.transpose(0, 1).flatten(0, 1)
        made = self.inner(ids).logits[:, 0]
        return made.unflatten(0, (-1, 2)) if self.interleaved else made.unflatten(0, (2, -1)).transpose(0, 1)


@pytest.mark.parametrize("interleaved", [True, False])
def test_several_rows_for_each_example(interleaved):
    model = Pairs(interleaved).eval()
    batch = {"input_ids": torch.randint(3, 90, (3, 2, 5), generator=torch.Generator().manual_seed(0))}

    def alike(pairs, _batch):
        return F.cosine_similarity(pairs[:, 0], pairs[:, 1])

    def contrasted(pairs, _batch):
        return F.cross_entropy(pairs[:, 0] @ pairs[:, 1].mT / 10, torch.arange(len(pairs)), reduction="none")

    rises = ablation_losses(model, batch, alike, progress=False)[KEY]
    with torch.no_grad(), ht.ablate(model, {KEY: [2]}):
        off = alike(model(**batch), None)
    assert torch.allclose(rises[:, 2], (off - alike(model(**batch), None)).double(), atol=1e-5)
    with pytest.raises(ValueError, match='write per="batch"'):
        ablation(model, batch, contrasted, progress=False)
    assert gate_gradients(model, batch, contrasted, per="batch")[KEY].shape == (1, 4)


def two_batches():
    model, batch = zoo_model("bert")
    return model, [batch, {key: value[:2].flip(0) for key, value in batch.items()}]


@pytest.mark.parametrize("scalar", [True, False])
def test_the_slope_of_a_batch_is_that_of_a_gate_of_all_its_examples(scalar):
    model, batches = two_batches()
    loss = (lambda o, b: info_nce(o, b).mean()) if scalar else info_nce
    wanted = {site.key: [] for site in ht.sites(model)}
    for batch in batches:
        gates = {key: torch.ones(4, requires_grad=True) for key in wanted}
        with ht.gates(model, gates):
            slopes = torch.autograd.grad(info_nce(model(**batch), batch).mean(), list(gates.values()))
        for key, slope in zip(wanted, slopes, strict=True):
            wanted[key].append(slope)
    wanted = {key: torch.stack(slopes) for key, slopes in wanted.items()}
    close(gate_gradients(model, batches, loss, per="batch"), wanted)
    scores = gradient(model, batches, loss, per="batch")
    close(scores.values, {key: slopes.abs().mean(0) for key, slopes in wanted.items()})
    assert scores.low is None, "a batch is one example of what is bounded, and two are too few"
    assert gradient(model, batches * 3, loss, per="batch").low is not None


@pytest.mark.parametrize("by", ["zero", "mean"])
@pytest.mark.parametrize("scalar", [True, False])
def test_the_rise_of_a_batch_is_that_without_the_head(scalar, by):
    model, batches = two_batches()
    loss = (lambda o, b: info_nce(o, b).mean()) if scalar else info_nce
    found = ablation_losses(model, batches, loss, replacement=by, per="batch", progress=False)
    one = all_but_one(model, batches, loss, replacement=by, per="batch", progress=False)
    with torch.no_grad():
        base = [info_nce(model(**batch), batch).mean().double() for batch in batches]
        for site in ht.sites(model):
            assert found[site.key].shape == (2, 4)
            for heads in ([1], [0, 1, 2]):
                with ht.ablate(model, {site.key: heads}, replacement=by, reference=batches):
                    off = [info_nce(model(**batch), batch).mean().double() for batch in batches]
                rises = torch.stack(off) - torch.stack(base)
                if heads == [1]:
                    assert torch.allclose(found[site.key][:, 1], rises, atol=1e-5)
                else:
                    assert one[(*site.key, 3)] == pytest.approx(rises.mean().item(), abs=1e-5)
    assert ablation(model, batches, loss, per="batch", progress=False).name == "ablation per batch"


def test_two_heads_of_a_batch():
    model, batches = two_batches()
    pair = ((*KEY, 0), ("encoder", 0, 2))
    frame = ht.interaction(model, batches, [pair], info_nce, per="batch", predict=True, progress=False)
    assert frame["n"].tolist() == [2]
    with torch.no_grad():
        losses = []
        for off in ([], [pair[0]], [pair[1]], list(pair)):
            with ht.ablate(model, off):
                losses.append(sum(info_nce(model(**batch), batch).mean().item() for batch in batches) / 2)
    assert frame["interaction"][0] == pytest.approx(losses[3] - losses[1] - losses[2] + losses[0], abs=1e-5)
    model = fresh("bert")[0].double()
    second = curvature(model, batches, [pair], info_nce, per="batch")
    values = []
    for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        gates = {pair[0][:-1]: torch.ones(4).double(), pair[1][:-1]: torch.ones(4).double()}
        gates[pair[0][:-1]][0] += a * 1e-3
        gates[pair[1][:-1]][2] += b * 1e-3
        with torch.no_grad(), ht.gates(model, gates):
            values.append(info_nce(model(**batches[0]), None).mean().item())
    assert second.shape == (2, 1)
    wanted = (values[0] - values[1] - values[2] + values[3]) / 4e-6
    assert second[0, 0].item() == pytest.approx(wanted, rel=1e-3, abs=1e-6)


def test_the_labels_of_a_batch():
    model, batch = labelled("gpt2")
    for measure in (gate_gradients, functools.partial(ablation_losses, progress=False)):
        mean = {key: row.mean(0, keepdim=True) for key, row in measure(model, batch).items()}
        close(measure(model, batch, per="batch"), mean)


@pytest.mark.parametrize("measure", sorted(set(MEASURES) - {"per position", "gradient"}))
def test_other_ways_to_put_examples_together_are_refused(measure):
    model, batch = zoo_model("bert")
    with pytest.raises(ValueError, match='per is "example" or "batch", got \'token\''):
        MEASURES[measure](model, batch, info_nce, per="token")
