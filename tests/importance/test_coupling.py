"""Losses that compare examples with each other: seen, refused by example, measured by batch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import headtools as ht
from headtools.importance.ablation import ablation
from headtools.importance.gradient import gradient

from ..heads.zoo import fresh, logits, zoo_model
from .test_ablation import quietly
from .test_gradient import close, labelled, slopes_of

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
    "ablation": lambda *args, **more: ablation(*args, progress=False, **more),
    "interaction": lambda model, batch, loss: ht.interaction(
        model, batch, [((*KEY, 0), ("encoder", 0, 2))], loss, progress=False
    ),
}


@pytest.mark.parametrize(
    ("measure", "loss"),
    [(measure, loss) for measure in ("gradient", "ablation") for loss in COUPLED]
    + [(measure, info_nce) for measure in ("per position", "interaction")],
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
    """Runs two texts for each example, beside each other."""

    def __init__(self):
        super().__init__()
        self.inner = zoo_model("bert")[0]

    def forward(self, input_ids):
        return self.inner(input_ids.flatten(0, 1)).logits[:, 0].unflatten(0, (-1, 2))


def test_several_rows_for_each_example():
    model = Pairs().eval()
    batch = {"input_ids": torch.randint(3, 90, (3, 2, 5), generator=torch.Generator().manual_seed(0))}

    def alike(pairs, _batch):
        return F.cosine_similarity(pairs[:, 0], pairs[:, 1])

    def contrasted(pairs, _batch):
        return F.cross_entropy(pairs[:, 0] @ pairs[:, 1].mT / 10, torch.arange(len(pairs)), reduction="none")

    rises = quietly(model, batch, alike)[KEY]
    with torch.no_grad(), ht.ablate(model, {KEY: [2]}):
        off = alike(model(**batch), None)
    assert torch.allclose(rises[:, 2], (off - alike(model(**batch), None)).double(), atol=1e-5)
    with pytest.raises(ValueError, match='write per="batch"'):
        ablation(model, batch, contrasted, progress=False)
    assert slopes_of(model, batch, contrasted, per="batch")[KEY].shape == (1, 4)


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
    close(slopes_of(model, batches, loss, per="batch"), wanted)
    scores = gradient(model, batches, loss, per="batch")
    close(scores.values, {key: slopes.abs().mean(0) for key, slopes in wanted.items()})
    assert scores.low is None, "a batch is one example of what is bounded, and two are too few"
    assert gradient(model, batches * 3, loss, per="batch").low is not None


@pytest.mark.parametrize("by", ["zero", "mean"])
@pytest.mark.parametrize("scalar", [True, False])
def test_the_rise_of_a_batch_is_that_without_the_head(scalar, by):
    model, batches = two_batches()
    loss = (lambda o, b: info_nce(o, b).mean()) if scalar else info_nce
    found = ablation(model, batches, loss, by, per="batch", progress=False)
    assert found.name == "ablation per batch" + ("" if by == "zero" else " by mean")
    with torch.no_grad():
        base = [info_nce(model(**batch), batch).mean().double() for batch in batches]
        for site in ht.sites(model):
            assert found.rows[site.key].shape == (2, 4)
            with ht.ablate(model, {site.key: [1]}, replacement=by, reference=batches):
                off = [info_nce(model(**batch), batch).mean().double() for batch in batches]
            assert torch.allclose(found.rows[site.key][:, 1], torch.stack(off) - torch.stack(base), atol=1e-5)


def test_the_labels_of_a_batch():
    model, batch = labelled("gpt2")
    for measure in (slopes_of, quietly):
        mean = {key: row.mean(0, keepdim=True) for key, row in measure(model, batch).items()}
        close(measure(model, batch, per="batch"), mean)
