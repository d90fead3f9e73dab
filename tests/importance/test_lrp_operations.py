"""Each operation goes through its rule in whatever form a model or a score writes it, and nothing is lost in any."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headtools.importance._inputs import evaluating
from headtools.importance._lrp.operations import rules
from headtools.importance._lrp.rules import NAMED, degree
from headtools.importance.relevance import relevance

from ..heads.zoo import ALL, error, logits, run, zoo_model
from .test_gradient import close
from .test_lrp import CONSTANT, double, signed
from .test_lrp_rules import back, draw

ELEMENTWISE = "relu relu6 gelu silu leaky_relu elu selu celu softplus mish hardtanh hardswish hardsigmoid logsigmoid"
ACTIVATIONS = {name: getattr(F, name) for name in ELEMENTWISE.split()} | {
    "softsign": F.softsign,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "F.tanh": F.tanh,
    "F.sigmoid": F.sigmoid,
    "torch.relu": torch.relu,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clip": lambda x: torch.clip(x, -0.5, 0.5),
    "clamp_min": lambda x: torch.clamp_min(x, 0.2),
    "clamp_max": lambda x: x.clamp_max(0.2),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_functions_of_every_name(name):
    x = draw(2, 9)
    (found,), kept = back("cp", ACTIVATIONS[name], x)
    assert torch.allclose(found, ACTIVATIONS[name](x))
    assert kept == 0
    (plain,), _ = back("gradient", ACTIVATIONS[name], x)
    leaf = x.clone().requires_grad_()
    assert torch.allclose(plain, x * torch.autograd.grad(ACTIVATIONS[name](leaf).sum(), leaf)[0])


NORMS = {
    "rms_norm": lambda x: F.rms_norm(x, (6,)),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "group_norm": lambda x: F.group_norm(x, 2),
    "instance_norm": lambda x: F.instance_norm(x[None])[0],
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(6).double(), torch.ones(6).double() * 3),
}


@pytest.mark.parametrize("name", NORMS)
def test_normalisations_of_every_name(name):
    x = draw(4, 6)
    (found,), _ = back("cp", NORMS[name], x)
    assert torch.allclose(found, NORMS[name](x))


C = draw(2, 3, seed=7)
SAME = {  # one operation, by all its names, of activations x (2, 3) and something that does not depend on the input
    "add": [lambda x: x + C, lambda x: torch.add(x, C), lambda x: C + x, lambda x: x.add(C)],
    "sub": [lambda x: x - C, lambda x: torch.sub(x, C), lambda x: x.sub(C), lambda x: torch.rsub(C, x)],
    "from": [lambda x: 2 - x, lambda x: torch.rsub(x, 2), lambda x: torch.full_like(C, 2) - x],
    "mul": [lambda x: x * C, lambda x: torch.mul(x, C), lambda x: torch.multiply(x, C), lambda x: C * x],
    "div": [lambda x: x / C, lambda x: torch.div(x, C), lambda x: torch.divide(x, C), lambda x: x.divide(C)],
    "cat": [lambda x: torch.cat([x, C]), lambda x: torch.concat([x, C]), lambda x: torch.cat(tensors=(x, C), dim=0)],
    "map": [
        lambda x: F.linear(x, C),
        lambda x: x @ C.T,
        lambda x: torch.mm(x, C.T),
        lambda x: torch.matmul(x, C.T),
        lambda x: torch.bmm(x[None], C.T[None])[0],
        lambda x: torch.einsum("bi,oi->bo", x, C),
        lambda x: torch.einsum("bi,oi->bo", [x, C]),
    ],
    "one": [
        lambda x: F.linear(x, C[:1])[:, 0],
        lambda x: torch.mv(x, C[0]),
        lambda x: x @ C[0],
        lambda x: torch.stack([torch.dot(row, C[0]) for row in x]),
    ],
    "biased": [
        lambda x: F.linear(x, C, C[:, 0]),
        lambda x: torch.addmm(C[:, 0], x, C.T),
        lambda x: torch.addmm(C[:, 0], mat1=x, mat2=C.T),
        lambda x: torch.addmm(C[:, 0], x, mat2=C.T),
    ],
    "batched": [
        lambda x: torch.baddbmm(C[:, :2][None], x[None], C.T[None]),
        lambda x: torch.baddbmm(C[:, :2][None], batch1=x[None], batch2=C.T[None]),
        lambda x: torch.matmul(x[None], C.T[None]) + C[:, :2][None],
    ],
    "root": [
        lambda x: x * torch.rsqrt(x * x + 1),
        lambda x: x * (x * x + 1).sqrt().reciprocal(),
        lambda x: x * (x * x + 1).pow(-0.5),
        lambda x: x / (x * x + 1).sqrt(),
    ],
}


@pytest.mark.parametrize("rule_set", ["cp", "attnlrp", "epsilon"])
@pytest.mark.parametrize("name", SAME)
def test_one_operation_by_all_its_names(name, rule_set):
    x, start = draw(2, 3), None
    wanted, kept = None, None
    for way in SAME[name]:
        start = draw(*way(x).shape, seed=3)
        (found,), rest = back(rule_set, way, x, start=start)
        if wanted is None:
            wanted, kept = found, rest
        assert torch.allclose(found, wanted)
        assert torch.allclose(torch.as_tensor(rest), torch.as_tensor(kept))
        if rule_set == "cp":
            assert torch.allclose(found.sum() + rest, start.sum()), "nothing is lost"


@pytest.mark.parametrize("rule_set", ["cp", "zplus", "voita", "epsilon", "attnlrp"])
def test_weights_and_constants_get_none_and_numbers_pass(rule_set):
    x = draw(2, 3)
    with rules(rule_set) as seen:
        assert torch.equal(x + C, C + x)
        assert torch.equal(torch.cat([x, C])[2:], C)
        assert F.layer_norm(x, (3,)).shape == x.shape
        assert F.linear(x, C).shape == (2, 2)
    assert seen.constants == []
    assert seen.inputs == []


def test_what_is_looked_up_is_an_input_unless_it_is_a_table():
    words, places = nn.Embedding(5, 3), nn.Embedding(4, 3)
    ids = torch.tensor([[1, 2]])
    with rules("cp") as seen:
        seen.position_tables = {id(places.weight)}
        found = words(ids)
        table = places(ids)
        by_name = F.embedding(ids, weight=words.weight)
        bag = F.embedding_bag(ids, words.weight)
    assert [tuple(one.shape) for one in seen.inputs] == [(1, 2, 3), (1, 2, 3), (1, 3)]
    assert found is seen.inputs[0]
    assert by_name is seen.inputs[1]
    assert bag is seen.inputs[2]
    assert torch.equal(table, places(ids))
    assert all(one.requires_grad and one.is_leaf for one in seen.inputs)


def test_products_are_halved_and_nothing_else_is():
    a, b, c = draw(3), draw(3, seed=1), draw(3, seed=2)
    found, _ = back("cp", lambda a, b: (a * b).sum(), a, b)
    assert all(torch.allclose(part, a * b / 2) for part in found)
    (found,), _ = back("cp", lambda a: (a * c).sum(), a)
    assert torch.allclose(found, a * c)
    (found,), _ = back("cp", lambda a: (a * a).sum(), a)
    assert torch.allclose(found, a * a)
    found, _ = back("cp", lambda a, b: torch.einsum("i,i->", a, b), a, b)
    assert all(torch.allclose(part, a * b / 2) for part in found)
    left, right = draw(2, 3), draw(3, 4, seed=1)
    ways = [
        (lambda a, b: torch.mm(a, b), left, right),
        (lambda a, b: torch.matmul(a, b), left, right),
        (lambda a, b: torch.mv(a, b), left, draw(3, seed=2)),
        (lambda a, b: torch.dot(a, b), draw(3), draw(3, seed=2)),
        (lambda a, b: torch.bmm(a, b), left[None], right[None]),
        (lambda a, b: torch.multiply(a, b), left, draw(2, 3, seed=3)),
    ]
    for way, one, other in ways:  # each factor gets half of what went through it
        (to_one, to_other), _ = back("cp", way, one, other)
        assert torch.allclose(to_one.sum(), way(one, other).sum() / 2)
        assert torch.allclose(to_other.sum(), way(one, other).sum() / 2)
    found, _ = back("gradient", lambda a, b: (a * b).sum(), a, b)
    assert all(torch.allclose(part, a * b) for part in found)


def test_products_that_the_ratio_rule_does_not_know():
    a, b = draw(3), draw(3, seed=1)
    with pytest.raises(ValueError, match="knows products by mul, matmul and bmm, not by dot"):
        back("ratio", torch.dot, a, b)
    for way in (lambda a, b: torch.mul(a, b), lambda a, b: torch.multiply(a, b), lambda a, b: a[None] @ b[:, None]):
        (to_a, to_b), _ = back("ratio", way, a, b)
        assert torch.allclose(to_a.sum() + to_b.sum(), way(a, b).sum())


def test_constants_keep_what_is_theirs():
    x, c = draw(3), draw(3, seed=1)
    ways = (
        (lambda x: x + c, c.sum()),
        (lambda x: c - x, c.sum()),
        (lambda x: x - c, -c.sum()),
        (lambda x: x + 2, 6.0),
        (lambda x: 1 - x, 3.0),
        (lambda x: torch.cat([x, c]), c.sum()),
    )
    for way, kept in ways:
        (found,), rest = back("cp", way, x)
        assert rest.item() == pytest.approx(float(kept))
        assert torch.allclose(found.sum() + rest, way(x).sum())


@pytest.mark.parametrize("rule_set", ["cp", "voita"])
def test_operations_in_place_are_the_same(rule_set):
    a, b = draw(2, 3), draw(2, 3, seed=1)

    def beside(a, b):
        x = a * 1.0
        x = x + b
        x = x * b
        return F.relu(torch.relu(x) / 2 + 1)

    def inside(a, b):
        x = a * 1.0
        x += b
        x.mul_(b)
        x.relu_()
        x /= 2
        x += 1
        F.relu(x, inplace=True)
        return x

    wanted, kept = back(rule_set, beside, a, b)
    found, also = back(rule_set, inside, a, b)
    assert all(torch.allclose(*pair) for pair in zip(found, wanted, strict=True))
    assert torch.allclose(kept, also)


def test_in_place_activations_change_what_they_are_given():
    x = draw(5)
    for way in (lambda x: F.relu(x * 1.0, inplace=True), lambda x: (x * 1.0).relu_(), lambda x: F.relu_(x * 1.0)):
        (found,), _ = back("cp", way, x)
        assert torch.equal(found, F.relu(x))
    with rules("cp"):
        own = x.clone()
        assert F.relu(own, inplace=True) is own
        assert (own >= 0).all()


def test_activations_of_several_steps_are_one():
    from transformers.activations import ACT2FN

    x = draw(2, 10)
    for name in ("gelu_new", "gelu_fast", "quick_gelu", "gelu_10", "relu2", "gelu_pytorch_tanh"):
        module = ACT2FN[name]
        leaf = x.clone().requires_grad_()
        with rules("cp", nn.Sequential(module)):
            y = module(leaf)
        assert torch.equal(y, module(x))
        assert torch.allclose(x * torch.autograd.grad(y.sum(), leaf)[0], y)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_module_that_only_sounds_like_an_activation():
    class GatedRelu(nn.Module):
        def forward(self, x):
            a, b = x.chunk(2, -1)
            return a * F.relu(b)

    x, module = draw(2, 6), GatedRelu()
    leaf = x.clone().requires_grad_()
    with rules("cp", nn.Sequential(module)):
        y = module(leaf)
    assert torch.equal(y, module(x))
    shared = (x * torch.autograd.grad(y.sum(), leaf)[0]).view(2, 2, 3)
    assert torch.allclose(shared, (y / 2)[:, None].expand(2, 2, 3))


@pytest.mark.parametrize("rule_set", list(NAMED))
def test_what_is_explained_is_the_models_own_output(rule_set):
    for name in ALL:
        model, batch = zoo_model(name)
        with evaluating(model):
            with rules(rule_set, model):
                seen = logits(model(**batch))
            assert error(seen.detach(), run(model, batch)) == 0, name


def test_nothing_stays_behind():
    model, _ = zoo_model("gpt2")
    hooks = lambda: sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())  # noqa: E731
    before = hooks()
    with rules("voita", model):
        assert hooks() > before
    assert hooks() == before
    with pytest.raises(ValueError, match="input_ids"), rules("voita", model):
        model()
    assert hooks() == before
    x = draw(3).requires_grad_()
    y = x * x
    assert torch.allclose(torch.autograd.grad(y.sum(), x)[0], 2 * x)


def test_an_attention_that_is_hidden_is_refused():
    layer = nn.MultiheadAttention(4, 2).requires_grad_(False)
    x = draw(3, 1, 4).float().requires_grad_()
    with pytest.raises(ValueError, match="multi_head_attention_forward hides its operations"), rules("cp"):
        layer(x, x, x)


# --- operations without a rule, and scores ----------------------------------------------------------------------------


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


CLASSES = draw(96, seed=5)  # what the last vector is compared with
RULES = ("cp", "voita", "epsilon", "ratio")


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
        _, conserved, absorbed = signed(model, batch, SCORES[name], which)
        assert conserved + absorbed == pytest.approx(1, abs=1e-4), which


def at_constant_length(outputs, _batch):
    return (last(outputs) / last(outputs).detach().norm(dim=-1, keepdim=True)) @ CLASSES


@pytest.mark.parametrize("rule_set", ["cp", "attnlrp"])
@pytest.mark.parametrize("name", ["cosine_similarity", "normalize", "/norm", "* (1 / norm)", "true_divide"])
def test_a_length_is_held_constant(name, rule_set):
    """The same heads as for a score that is linear by hand, its length computed before."""
    model, batch = double("bert")
    size = CLASSES.norm() if name == "cosine_similarity" else 1.0
    (found, conserved, _), (wanted, all_of_it, _) = (
        signed(model, batch, score, rule_set) for score in (SCORES[name], at_constant_length)
    )
    close({key: part * size for key, part in found.items()}, wanted, 1e-8)
    assert conserved == pytest.approx(all_of_it)


@pytest.mark.parametrize("rule_set", ["cp", "attnlrp"])
def test_a_log_probability_is_a_logit_less_those_expected(rule_set):
    """Its tangent, by hand: x_k - sum p_i x_i, and minus the entropy of p, which no input moves."""
    model, batch = double("bert")

    def by_hand(outputs, _batch):
        p = last(outputs).detach().softmax(-1)
        return last(outputs)[:, 3] - (p * last(outputs)).sum(-1)

    wanted = signed(model, batch, by_hand, rule_set)[0]
    for name in ("log_softmax", "logsumexp", "softmax and log", "cross entropy", "gathered"):
        close(signed(model, batch, SCORES[name], rule_set)[0], wanted, 1e-8)


def test_what_scaling_does_not_change_is_named():
    model, batch = double("bert")
    with pytest.warns(UserWarning, match="atan2 gives the same whatever its input is multiplied by"):
        _, conserved, absorbed = signed(model, batch, lambda o, _: torch.atan2(last(o)[:, 3], last(o)[:, 4]))
    assert conserved + absorbed == pytest.approx(1)


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
