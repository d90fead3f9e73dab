"""Each operation goes through its rule under whatever name and in whatever form a model writes it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headtools.importance._lrp.rule_set import NAMED, Rules
from headtools.importance._lrp.rules import rules

from .test_lrp_rules import back, draw

ACTIVATIONS = {
    function.__name__: function
    for function in (
        F.relu,
        F.relu6,
        F.gelu,
        F.silu,
        F.leaky_relu,
        F.elu,
        F.selu,
        F.celu,
        F.softplus,
        F.mish,
        F.hardtanh,
        F.hardswish,
        F.hardsigmoid,
        F.logsigmoid,
        F.softsign,
    )
} | {
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
    with rules("cp", tables={id(places.weight)}) as seen:
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


@pytest.mark.parametrize("n_rows", [2, 24])
@pytest.mark.parametrize("rule_set", list(NAMED))
def test_wide_maps_are_as_narrow_ones(rule_set, n_rows):
    x, weight, bias = draw(4, 3), draw(n_rows, 3, seed=1), draw(n_rows, seed=2)
    start = draw(4, n_rows, seed=3)
    (found,), kept = back(rule_set, lambda x: F.linear(x, weight, bias), x, start=start)
    columns = [
        back(rule_set, lambda x, i=i: F.linear(x, weight[i : i + 1], bias[i : i + 1]), x, start=start[:, i : i + 1])
        for i in range(n_rows)
    ]
    assert torch.allclose(found, sum(part[0][0] for part in columns))
    assert torch.allclose(torch.as_tensor(kept), torch.as_tensor(sum(part[1] for part in columns)))


def test_an_attention_that_is_hidden_is_refused():
    layer = nn.MultiheadAttention(4, 2).requires_grad_(False)
    x = draw(3, 1, 4).float().requires_grad_()
    with pytest.raises(ValueError, match="multi_head_attention_forward hides its operations"), rules("cp"):
        layer(x, x, x)


def test_products_that_the_ratio_rule_does_not_know():
    a, b = draw(3), draw(3, seed=1)
    with pytest.raises(ValueError, match="knows products by mul, matmul and bmm, not by dot"):
        back("ratio", torch.dot, a, b)
    for way in (lambda a, b: torch.mul(a, b), lambda a, b: torch.multiply(a, b), lambda a, b: a[None] @ b[:, None]):
        (to_a, to_b), _ = back("ratio", way, a, b)
        assert torch.allclose(to_a.sum() + to_b.sum(), way(a, b).sum())


@pytest.mark.parametrize("bad", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"alpha": float("inf")}, {"alpha": float("nan")}])
def test_numbers_that_make_no_rule(bad):
    with pytest.raises(ValueError, match="epsilon must be positive and alpha finite"):
        Rules(**bad)


def test_in_place_activations_change_what_they_are_given():
    x = draw(5)
    for way in (lambda x: F.relu(x * 1.0, inplace=True), lambda x: (x * 1.0).relu_(), lambda x: F.relu_(x * 1.0)):
        (found,), _ = back("cp", way, x)
        assert torch.equal(found, F.relu(x))
    with rules("cp"):
        own = x.clone()
        assert F.relu(own, inplace=True) is own
        assert (own >= 0).all()
