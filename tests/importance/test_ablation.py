"""Ablation by replaying, against a plain loop with `ablate`, on many architectures."""

import copy

import pytest
import torch
from torch import nn

import headtools as ht
from headtools.importance._leave_one_out import LeaveOneOut
from headtools.importance.ablation import ablation
from headtools.importance.loss import label_loss

from ..heads.reference import naive_gates, untouched
from ..heads.zoo import LEGACY, logits, zoo_model
from .test_gradient import labelled


def quietly(model, batches, loss=None, **more):
    """The rise of every example's loss without each head."""
    return ablation(model, batches, loss, progress=False, **more).rows


def scored(outputs, _batch):
    """A loss for any model: each example's own scores, weighted by the place of the class."""
    scores = logits(outputs)
    return (scores * torch.linspace(-1, 1, scores.shape[-1])).flatten(1).sum(1) / 10


def by_loop(model, batches, loss, by="zero", reference=None):
    """The same rises by one full run for each head."""
    batches = batches if isinstance(batches, list) else [batches]
    reference = batches if reference is None else reference
    rises = {}
    with torch.no_grad():
        base = torch.cat([loss(model(**batch), batch) for batch in batches]).double()
        for site in ht.sites(model):
            columns = []
            for head in range(site.heads):
                each = []
                for batch in batches:
                    with ht.ablate(model, [(*site.key, head)], replacement=by, reference=reference):
                        each.append(loss(model(**batch), batch))
                columns.append(torch.cat(each).double() - base)
            rises[site.key] = torch.stack(columns, 1)
    return rises


def close(found, wanted, tolerance=1e-5):
    assert found.keys() == wanted.keys()
    scale = max(1.0, *(value.abs().max() for value in wanted.values()))
    assert scale > 0
    for key, value in wanted.items():
        assert found[key].shape == value.shape, key
        assert (found[key] - value).abs().max() <= tolerance * scale, key


@pytest.fixture
def runs(monkeypatch):
    """Whether each batch was replayed."""
    seen = []
    plain = LeaveOneOut.__init__

    def watched(self, *args):
        plain(self, *args)
        seen.append(self.replays and all(map(self._ran_once, self.measured)))

    monkeypatch.setattr(LeaveOneOut, "__init__", watched)
    return seen


@pytest.mark.parametrize("by", ["mean", "resample", "uniform"])
@pytest.mark.parametrize("name", ["bert", "albert", "llama", "marian", "vit", "bloom"])
def test_every_replacement_is_that_of_ablate(name, by):
    model, batch = zoo_model(name)
    if by == "uniform" and name in LEGACY:
        with pytest.raises(ValueError, match="does not use transformers' AttentionInterface"):
            quietly(model, batch, scored, replacement=by)
        return
    with untouched(model):
        found = quietly(model, batch, scored, replacement=by)
    close(found, by_loop(model, batch, scored, by))


def test_a_reference_of_its_own():
    model, batch = zoo_model("bert")
    other = {"input_ids": batch["input_ids"].flip(1)[:2], "attention_mask": batch["attention_mask"].flip(1)[:2]}
    found = quietly(model, batch, scored, replacement="mean", reference=other)
    close(found, by_loop(model, batch, scored, "mean", other))
    of_the_batch = quietly(model, batch, scored, replacement="mean")
    assert any((found[key] - value).abs().max() > 1e-3 for key, value in of_the_batch.items())


def test_scores_are_means_with_paired_intervals():
    model, batch = labelled("gpt2")
    scores, rows = ablation(model, [batch, batch], progress=False), quietly(model, [batch, batch])
    assert scores.name == "ablation"
    for key, row in rows.items():
        assert row.shape == (6, 4)
        assert torch.allclose(scores.values[key], row.mean(0).float())
        low, high = ht.bootstrap(row)
        assert torch.equal(scores.low[key], low)
        assert torch.equal(scores.high[key], high)
    one = {key: value[:1] for key, value in batch.items()}
    assert ablation(model, one, progress=False).low is None
    assert ablation(model, batch, replacement="mean", progress=False).name == "ablation by mean"


@pytest.mark.parametrize(
    ("name", "layer", "its_own"), [("bert", "bert.encoder.layer.0", 8), ("marian", "model.encoder.layers.1", 33)]
)
def test_what_comes_before_is_not_run_for_every_head(name, layer, its_own):
    """Also where the layers before hold no head that is asked for. Marian's projection runs inside its layer."""
    model, batch = zoo_model(name)
    ht.verify(model, skip=True)  # its passes are not to be counted
    last = list(ht.sites(model))[-1]
    calls = {"before": 0, "its q": 0}

    def count(part):
        return lambda *_: calls.__setitem__(part, calls[part] + 1)

    inside = next(module for module in model.get_submodule(layer).modules() if isinstance(module, nn.Linear))
    hooks = [
        module.register_forward_hook(count(part)) for part, module in (("before", inside), ("its q", last.q.module))
    ]
    try:
        quietly(model, [batch] * 5, scored, sites=[last.key])
    finally:
        for hook in hooks:
            hook.remove()
    # In full run five batches, a trial without any heads and two that look whether the loss couples examples; there are
    # 20 more runs without a head, and five that try whether the model can be run from the middle.
    assert calls == {"before": 8, "its q": its_own}


def test_other_heads_may_be_off_and_gates_closed_around_it():
    model, batch = zoo_model("bert")
    with (
        ht.ablate(model, {("encoder", 0): [1], ("encoder", 2): [3]}),
        ht.gates(model, {("encoder", 1): torch.ones(4) / 2}),
    ):
        close(quietly(model, batch, scored), by_loop(model, batch, scored))
        assert (quietly(model, batch, scored)["encoder", 2][:, 3] == 0).all()


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_hooks_of_others_see_and_change_what_they_did(name):
    model, batch = copy.deepcopy(zoo_model(name)[0]), zoo_model(name)[1]
    layers = model.bert.encoder.layer if name == "bert" else model.transformer.h
    second = list(ht.sites(model))[1]
    hooks = [
        layers[0].register_forward_hook(lambda _m, _i, out: out * 1.5),
        second.out.register_forward_hook(lambda _m, _i, out: out / 2),
        second.module.register_forward_hook(lambda _m, _i, out: (out[0] * 3, *out[1:])),
    ]
    close(quietly(model, batch, scored), by_loop(model, batch, scored))
    assert all(hook.id in hook.hooks_dict_ref() for hook in hooks)


def test_a_pruned_model():
    model, batch = copy.deepcopy(zoo_model("t5")[0]), zoo_model("t5")[1]
    ht.prune(model, {("encoder", 1): [0, 2], ("cross", 0): [1], ("decoder", 1): [0, 1, 2, 3]})
    found = quietly(model, batch, scored)
    wanted = by_loop(model, batch, scored)
    close(found, {key: wanted[key] for key in found})
    assert ("decoder", 1) not in found
    assert found["encoder", 1].shape == (3, 2)


class Layers(nn.Module):
    """A home-made model of attention layers, with something odd about it."""

    def __init__(self, odd):
        super().__init__()
        torch.manual_seed(0)
        self.odd = odd
        self.layers = nn.ModuleList([Attention() for _ in range(3)])
        self.memory = None

    def forward(self, x):
        x, kept = x.clone(), []
        for number, layer in enumerate(self.layers):
            if self.odd.startswith("memory") and number == 2:
                x = x + self.layers[int(self.odd[-1])].seen  # kept beside what the layer returns
            made = layer(x)
            x = x.add_(made) if self.odd == "in place" else x + made
            kept.append(x)
        if self.odd == "row":
            x = x * torch.arange(1.0, len(x) + 1)[:, None, None]
        return torch.stack(kept).mean(0) if self.odd == "all layers" else x


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8) for _ in range(4))
        self.num_heads, self.head_dim = 2, 4

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (2, 4)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        self.seen = x.clone()
        return self.o_proj(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ("nothing", True),
        ("in place", True),
        ("all layers", True),
        ("memory of 0", True),
        ("memory of 1", False),
        ("row", True),
    ],
)
def test_odd_models(odd, expected, runs):
    model = Layers(odd).eval()
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))

    def loss(outputs, _batch):
        return outputs.flatten(1).sin().sum(1)

    found = quietly(model, {"x": x}, loss)
    assert runs == [expected]
    base = loss(model(x), None).double()
    for site in ht.sites(model):
        for head in range(2):

            def zeroed(z, head=head):
                return z.index_fill(2, torch.tensor([head]), 0.0)

            with torch.no_grad(), naive_gates([(site, zeroed)]):
                wanted = loss(model(x), None).double() - base
            assert torch.allclose(found[site.key][:, head], wanted, atol=1e-5), (site.label, head)


def test_a_loss_that_depends_on_the_run_itself_is_computed_in_full_runs(runs):
    model, batch = zoo_model("bert")
    queries, seen = next(iter(ht.sites(model))).q.module, []
    hook = queries.register_forward_hook(lambda *_: seen.append(1))

    def loss(outputs, _batch):  # it depends on whether the first layer ran
        ran, seen[:] = len(seen), []
        return scored(outputs, None) * (2 if ran else 1)

    close(quietly(model, batch, loss), by_loop(model, batch, loss))
    hook.remove()
    assert runs == [False]


def test_a_site_no_batch_comes_by_is_refused():
    model, batch = zoo_model("clip")
    text = {key: batch[key] for key in ("input_ids", "attention_mask")}
    tower = model.text_model

    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.text, self.other = tower, zoo_model("vit")[0]

        def forward(self, **inputs):
            return self.text(**inputs).pooler_output

    def loss(outputs, _batch):
        return outputs.sum(-1)

    with pytest.raises(ValueError, match="did not run on any batch"):
        quietly(Text(), text, loss)
    kinds = [site.key for site in ht.sites(Text()) if site.kind == "decoder"]
    assert len(quietly(Text(), text, loss, sites=kinds)) == 3


# ---- batches of several sizes and forms ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t5", "marian", "gpt2"])
def test_batches_with_and_without_padding(name, runs):
    """T5 hands on a position bias for all examples, which has one row for each as soon as there is padding."""
    model, batch = zoo_model(name)
    plain = {key: value for key, value in batch.items() if key != "attention_mask"}
    full = batch | {"attention_mask": torch.ones_like(batch["attention_mask"])}
    one = {key: value[1:2] for key, value in batch.items()}
    for several in ([plain, batch], [full, batch, one], [one, full, batch], [batch, plain]):
        close(quietly(model, several, scored), by_loop(model, several, scored))
    assert all(runs)


def test_masks_and_positions_of_all_examples_at_once(runs):
    model, batch = zoo_model("llama")
    ids = batch["input_ids"]
    causal = torch.ones(7, 7).tril().bool()[None, None]
    places = torch.arange(7)[None]
    several = [
        {"input_ids": ids[:1], "position_ids": places, "attention_mask": causal},
        {"input_ids": ids, "position_ids": places, "attention_mask": causal},
        {"input_ids": ids[:2], "position_ids": places.repeat(2, 1), "attention_mask": causal.repeat(2, 1, 1, 1)},
    ]
    close(quietly(model, several, scored), by_loop(model, several, scored))
    assert runs == [True] * 3


# ---- copies of a small batch that share a run ------------------------------------------------------------------------


@pytest.fixture
def copies(monkeypatch):
    """How many copies of each batch shared a run."""
    counted, plain = [], LeaveOneOut.__init__

    def watched(self, *args):
        plain(self, *args)
        counted.append(self.copies)

    monkeypatch.setattr(LeaveOneOut, "__init__", watched)
    return counted


def check_label_loss(model, batches):
    close(quietly(model, batches), by_loop(model, batches, lambda outputs, batch: label_loss(model, outputs, batch)))


def test_a_batch_with_as_many_rows_as_tokens_is_not_copied(copies):
    model, batch = labelled("gpt2")
    square = {key: value.repeat(3, 1)[:7] for key, value in batch.items()}
    assert square["input_ids"].shape == (7, 7)
    check_label_loss(model, square)
    assert copies == [1]


def test_other_losses_are_of_the_batch_as_it_is(copies):
    model, batch = labelled("bert")
    seen = set()

    def loss(outputs, given):
        seen.add(len(given["labels"]))
        return label_loss(model, outputs, given)

    close(quietly(model, batch, loss), quietly(model, batch))
    assert seen == {len(batch["labels"])}
    assert copies[0] == 1 < copies[1]


class Crowded(nn.Module):
    """A model whose outputs depend on how many texts, or which other texts, are in the batch."""

    def __init__(self, model, crowd):
        super().__init__()
        self.model, self.crowd, self.config = model, crowd, model.config

    def forward(self, **inputs):
        outputs = self.model(**inputs)
        outputs.logits = outputs.logits * self.crowd(outputs.logits)
        return outputs


@pytest.mark.parametrize(
    "crowd", [lambda logits: 1 + 1 / len(logits), lambda logits: 1 + logits[-1].mean() * (len(logits) > 3)]
)
def test_a_model_that_notices_other_copies_gets_none(crowd, copies, runs):
    model, batch = labelled("bert")
    assert len(batch["labels"]) <= 3
    check_label_loss(Crowded(model, crowd).eval(), batch)
    assert copies == [1]
    assert runs == [True]


class Weighted(nn.Module):
    """A model that also takes numbers which all examples share, as many as a batch has rows."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, w, **inputs):
        outputs = self.model(**inputs)
        outputs.logits = outputs.logits * w.sum()
        return outputs


def test_what_makes_no_difference_in_the_first_batch_may_make_one_later(copies):
    """A shared tensor of zeros can be copied or not; that of the next batch cannot."""
    model, batch = labelled("bert")
    several = [batch | {"w": torch.arange(3.0) * number} for number in (0, 1, 2)]
    check_label_loss(Weighted(model).eval(), several)
    assert copies[0] > 1
    assert copies[1:] == [1, 1]


@pytest.mark.parametrize("by", ["mean", "resample"])
def test_each_copy_has_its_own_replacement(by, copies):
    model, batch = labelled("marian")
    own = by_loop(model, batch, lambda outputs, given: label_loss(model, outputs, given), by=by, reference=batch)
    close(quietly(model, batch, replacement=by, reference=batch), own)
    assert copies[0] > 1
