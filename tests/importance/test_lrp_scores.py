"""The score is part of what is explained: whatever it is made of, nothing is lost and each head gets its share."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from headtools.importance._lrp.tangent import degree
from headtools.importance.relevance import propagate, relevance

from ..heads.zoo import fresh
from .test_lrp import CONSTANT, OwnModel, close, double, picked
from .test_lrp_rules import back, draw

CLASSES = draw(96, seed=5)  # what the last vector is compared with
RULES = ["cp", "voita", "epsilon", "ratio"]


def last(outputs):
    return outputs.logits[:, 0]


def over_length(outputs, _batch):
    return (last(outputs) / last(outputs).norm(dim=-1, keepdim=True)) @ CLASSES


def written_into(outputs, _batch):
    x = last(outputs) * 1.0
    x[:, 5:] = 2.0
    return x.sum(-1)


SCORES = {
    "logit": lambda o, _: last(o)[:, 3],
    "difference of logits": lambda o, _: last(o)[:, 3] - last(o)[:, 4],
    "less a constant": lambda o, _: last(o)[:, 3] - 5,
    "log_softmax": lambda o, _: last(o).log_softmax(-1)[:, 3],
    "logsumexp": lambda o, _: last(o)[:, 3] - last(o).logsumexp(-1),
    "softmax and log": lambda o, _: last(o).softmax(-1).log()[:, 3],
    "cross entropy": lambda o, _: -F.cross_entropy(last(o), torch.full((len(last(o)),), 3), reduction="none"),
    "probability": lambda o, _: F.softmax(last(o), -1)[:, 3],
    "gathered": lambda o, _: last(o).log_softmax(-1).gather(1, torch.full((len(last(o)), 1), 3))[:, 0],
    "cosine_similarity": lambda o, _: F.cosine_similarity(last(o), CLASSES[None]),
    "cosine of two": lambda o, _: torch.cosine_similarity(last(o), o.logits[:, 1], dim=-1),
    "normalize": lambda o, _: F.normalize(last(o), dim=-1) @ CLASSES,
    "/norm": over_length,
    "* (1 / norm)": lambda o, _: (last(o) * (1 / last(o).norm(dim=-1, keepdim=True))) @ CLASSES,
    "true_divide": lambda o, _: torch.true_divide(last(o), last(o).norm(dim=-1, keepdim=True)) @ CLASSES,
    "length": lambda o, _: last(o).norm(dim=-1),
    "square": lambda o, _: last(o)[:, 3] ** 2,
    "distance": lambda o, _: F.mse_loss(last(o), o.logits[:, 1], reduction="none").mean(-1),
    "stacked": lambda o, _: torch.stack([last(o)[:, 3], torch.ones(len(last(o))).double()], 1).sum(1),
    "where": lambda o, _: torch.where(last(o) > 0, last(o), 2.0).sum(-1),
    "masked_fill": lambda o, _: last(o).masked_fill(last(o) < 0, 1.0).sum(-1),
    "written into": written_into,
    "tensordot": lambda o, _: torch.tensordot(last(o), CLASSES, 1),
    "exponential": lambda o, _: last(o)[:, :3].exp().sum(-1),
}


@pytest.mark.parametrize("name", SCORES)
def test_nothing_is_lost_in_a_score(name):
    model, batch = double("bert")
    for which in RULES:
        found = propagate(model, batch, SCORES[name], which)
        assert found.conserved + found.absorbed == pytest.approx(1, abs=1e-4), which


def at_constant_length(outputs, _batch):
    return (last(outputs) / last(outputs).detach().norm(dim=-1, keepdim=True)) @ CLASSES


@pytest.mark.parametrize("rule_set", ["cp", "attnlrp"])
@pytest.mark.parametrize("name", ["cosine_similarity", "normalize", "/norm", "* (1 / norm)", "true_divide"])
def test_a_length_is_held_constant(name, rule_set):
    """The same heads as for a score that is linear by hand, its length computed before."""
    model, batch = double("bert")
    size = CLASSES.norm() if name == "cosine_similarity" else 1.0
    found, wanted = (propagate(model, batch, score, rule_set) for score in (SCORES[name], at_constant_length))
    close({key: part * size for key, part in found.parts.items()}, wanted.parts, 1e-8)
    assert found.conserved == pytest.approx(wanted.conserved)


@pytest.mark.parametrize("rule_set", ["cp", "attnlrp"])
def test_a_log_probability_is_a_logit_less_those_expected(rule_set):
    """Its tangent, by hand: x_k - sum p_i x_i, and minus the entropy of p, which no input moves."""
    model, batch = double("bert")
    entropy = 0.0

    def by_hand(outputs, _batch):
        nonlocal entropy
        p = last(outputs).detach().softmax(-1)
        entropy = -(p * p.log()).sum(-1)
        return last(outputs)[:, 3] - (p * last(outputs)).sum(-1)

    wanted = propagate(model, batch, by_hand, rule_set)
    for name in ("log_softmax", "logsumexp", "softmax and log", "cross entropy", "gathered"):
        found = propagate(model, batch, SCORES[name], rule_set)
        close(found.parts, wanted.parts, 1e-8)
        assert torch.allclose(found.explained, wanted.explained - entropy)
        whole = found.explained.abs().sum()
        arrived = wanted.conserved * wanted.explained.abs().sum()
        if (wanted.explained < 0).all():  # both are counted by the sign of what is explained
            assert found.conserved == pytest.approx(float(arrived / whole))


def test_the_models_own_head_in_a_score():
    """A map with a bias is the same map inside a score as inside the model."""
    model, batch = double("gpt2")
    plain = propagate(model, batch, SCORES["logit"], "voita")
    again = propagate(
        model, batch | {"output_hidden_states": True}, lambda o, _: model.lm_head(o.hidden_states[-1])[:, 0, 3], "voita"
    )
    close(again.parts, plain.parts, 1e-9)
    assert (again.conserved, again.absorbed) == pytest.approx((plain.conserved, plain.absorbed))


def test_what_scaling_does_not_change_is_named():
    model, batch = double("bert")
    with pytest.warns(UserWarning, match="atan2 gives the same whatever its input is multiplied by"):
        found = propagate(model, batch, lambda o, _: torch.atan2(last(o)[:, 3], last(o)[:, 4]), "cp")
    assert found.conserved + found.absorbed == pytest.approx(1)


def test_probabilities_of_a_model_that_ends_in_softmax():
    class Ends(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.inside, self.config = model, model.config

        def forward(self, **batch):
            return self.inside(**batch).logits[:, 0].softmax(-1)

    model, batch = double("bert")
    with pytest.raises(ValueError, match="ends in a softmax, return its logits"):
        relevance(Ends(model), batch, rules="cp")


OPERATIONS = {  # of two active tensors of shape (3, 4), as a reader's own model may have them
    "square": lambda a, b: a.square() + b,
    "sqrt": lambda a, b: a.abs().sqrt() * b,
    "pow": lambda a, b: a**2 + b.abs() ** 1.5,
    "number to a power": lambda a, b: 2**a + b,
    "product of all": lambda a, b: a.prod(-1) + b.sum(-1),
    "inner": torch.inner,
    "outer": lambda a, b: torch.outer(a[0], b[0]),
    "tensordot": lambda a, b: torch.tensordot(a, b.T, 1),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "bilinear": lambda a, b: F.bilinear(a, b, draw(2, 4, 4, seed=9), draw(2, seed=8)),
    "by hand: swish": lambda a, b: a / (1 + torch.exp(-a)) + b,
    "logarithm": lambda a, b: torch.log1p(a.abs()) * b,
    "sine": lambda a, b: torch.sin(a) + torch.cos(b),
    "padded": lambda a, b: F.pad(a, (1, 1), value=3.0).sum(-1, keepdim=True) + b,
    "put in": lambda a, b: a.index_fill(1, torch.tensor([0, 2]), 2.0) + b,
    "in place": lambda a, b: (a * 1.0).exp_().add_(b),
    "two results": lambda a, b: torch.var_mean(a, -1)[0] + torch.var_mean(b, -1)[1],
    "a convolution's transpose": lambda a, b: F.conv_transpose1d(a, draw(3, 2, 2, seed=7), draw(2, seed=6)) + b.sum(),
    "spectrum": lambda a, b: torch.fft.fft(a).real + b,
    "accumulated": lambda a, b: a.cumsum(-1) + b.diff(dim=-1, prepend=b[:, :1]),
    "einsum with a weight": lambda a, b: torch.einsum("ij,jk->ik", a, draw(4, 4, seed=3)) + b,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_without_a_rule_loses_nothing(name):
    a, b = draw(3, 4), draw(3, 4, seed=1)
    plain = OPERATIONS[name](a, b)
    start = draw(*plain.shape, seed=2)
    for which in CONSTANT:
        found, kept = back(which, OPERATIONS[name], a, b, start=start)
        assert (sum(part.sum() for part in found) + kept).item() == pytest.approx(start.sum().item(), abs=1e-4), which
        assert any(part.abs().sum() > 0 for part in found)


def test_powers_share_as_the_products_they_are():
    a, start = draw(3, 4), draw(3, 4, seed=2)
    ways = (lambda a: a * a, lambda a: a**2, lambda a: a.square(), lambda a: a.pow(2), lambda a: torch.pow(a, 2.0))
    for way in ways:
        (found,), kept = back("cp", way, a, start=start)
        assert torch.allclose(found, start)
        assert kept == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_how_operations_scale(dtype):
    x = draw(3, 4).to(dtype).requires_grad_()
    y = draw(3, 4, seed=1).to(dtype).requires_grad_()
    wanted = [
        (lambda x, y: x.cumsum(-1), 1),
        (lambda x, y: x.logsumexp(-1), None),
        (lambda x, y: x.square(), 2),
        (lambda x, y: torch.outer(x[0], y[0]), 2),
        (lambda x, y: x.abs().sqrt(), 0.5),
        (lambda x, y: x.sign(), 0),
        (lambda x, y: x.reciprocal(), -1),
        (lambda x, y: x.prod(-1), 4),
        (lambda x, y: x + y**2, None),
        (lambda x, y: x.masked_fill(x > 0, -torch.inf), 1),
        (lambda x, y: x.log_softmax(-1), None),
    ]
    for way, n in wanted:
        assert degree(lambda given, way=way: way(*given), [x, y], [way(x, y)]) == n


@pytest.mark.parametrize("name", ["t5", "bert", "marian"])
@pytest.mark.parametrize("rule_set", ["cp", "voita"])
def test_half_precision_loses_next_to_nothing(name, rule_set):
    model, batch = fresh(name)
    plain = propagate(model, batch, picked, rule_set)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = propagate(model, batch, picked, rule_set)
    half = propagate(model.bfloat16(), batch, picked, rule_set)
    for found in (mixed, half):
        assert found.conserved + found.absorbed == pytest.approx(1, abs=0.03)
        close({key: part.float() for key, part in found.parts.items()}, plain.parts, 0.06)


class Checkpointed(OwnModel):
    reentrant = False

    def forward(self, input_ids):
        x = self.words(input_ids) + self.places[: input_ids.shape[1]]
        x = checkpoint(lambda x: x + self.attention(x / x.std(-1, keepdim=True)), x, use_reentrant=self.reentrant)
        return self.answer(x.mean(1))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_ones_own_are_refused(reentrant):
    model, batch = Checkpointed(), {"input_ids": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])}
    model.reentrant = reentrant
    with pytest.raises(ValueError, match=r"the model uses torch\.utils\.checkpoint"):
        relevance(model, batch)
