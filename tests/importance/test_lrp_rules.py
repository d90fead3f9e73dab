"""The rules of relevance against their formulas, written out as loops."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headtools.importance._lrp.operations import rules
from headtools.importance._lrp.rules import Rules, named

ALPHA_BETA = Rules(linear="alphabeta", alpha=2.0, attention="constant")


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def back(which, function, *tensors, start=None):
    """R of each tensor and of all constants, when ``start`` (or the output itself) is the relevance of the output."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    with rules(which) as seen:
        y = function(*leaves)
    g = torch.ones_like(y) if start is None else start / y.detach()
    gradients = torch.autograd.grad(y, [*leaves, *seen.constants], g, allow_unused=True)
    shared = [x.detach() * (0 if g is None else g) for x, g in zip([*leaves, *seen.constants], gradients, strict=True)]
    return shared[: len(leaves)], sum(part.sum() for part in shared[len(leaves) :])


def by_formula(x, weight, bias, relevance, rule, alpha=1.0, epsilon=0.0):
    """R(x) of y = weight x + bias, one number at a time, and what the bias keeps."""
    out, kept = torch.zeros_like(x), 0.0
    for k in range(len(weight)):
        parts = [*(x[i] * weight[k, i] for i in range(len(x))), bias[k]]
        if rule == "ratio":
            y = sum(parts)
            shares = [part / (y + epsilon * (1 if y >= 0 else -1)) for part in parts]
        else:
            plus, minus = sum(p for p in parts if p > 0), sum(p for p in parts if p < 0)
            a = alpha if plus and minus else float(plus > 0)
            shares = [a * p / plus if p > 0 else (1 - a) * p / minus if p < 0 else 0.0 for p in parts]
        for i in range(len(x)):
            out[i] += shares[i] * relevance[k]
        kept += shares[-1] * relevance[k]
    return out, kept


@pytest.mark.parametrize(
    ("rule_set", "given"),
    [
        ("cp", {"rule": "ratio"}),
        (Rules(linear="epsilon", epsilon=0.3), {"rule": "ratio", "epsilon": 0.3}),
        ("zplus", {"rule": "signs", "alpha": 1.0}),
        ("voita", {"rule": "signs", "alpha": 0.5}),
        (ALPHA_BETA, {"rule": "signs", "alpha": 2.0}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_net_of_two_layers_by_hand(rule_set, given, seed):
    first, second = nn.Linear(3, 4).double().requires_grad_(False), nn.Linear(4, 2).double().requires_grad_(False)
    for i, p in enumerate([*first.parameters(), *second.parameters()]):
        p.copy_(draw(*p.shape, seed=10 * seed + i))
    x = draw(3, seed=seed + 100)
    (found,), at_biases = back(rule_set, lambda x: second(F.relu(first(x))), x)
    hidden = first(x)
    upper, kept_above = by_formula(F.relu(hidden), second.weight, second.bias, second(F.relu(hidden)), **given)
    lower, kept_below = by_formula(x, first.weight, first.bias, upper, **given)  # a ReLU passes R on unchanged
    assert torch.allclose(found, lower)
    assert torch.allclose(at_biases, kept_above + kept_below)


def test_the_numbers_of_the_lesson():
    """Inputs 2 and 1; one hidden unit 3*2 - 1*1 = 5, another 1*2 - 4*1 = -2, cut off; answer 2*5 = 10."""
    x = torch.tensor([2.0, 1.0])
    first, second = torch.tensor([[3.0, -1.0], [1.0, -4.0]]), torch.tensor([[2.0, 1.0]])
    net = lambda x: F.linear(F.relu(F.linear(x, first)), second)  # noqa: E731
    assert back("cp", net, x)[0][0].tolist() == pytest.approx([12.0, -2.0])
    assert back("zplus", net, x)[0][0].tolist() == pytest.approx([10.0, 0.0])
    assert back("voita", net, x)[0][0].tolist() == pytest.approx([5.0, 5.0])
    assert back(Rules(linear="epsilon", epsilon=5.0), net, x)[0][0].tolist() == pytest.approx([4.0, -2 / 3])


@pytest.mark.parametrize("rule_set", ["cp", "epsilon", "zplus", "voita", ALPHA_BETA], ids=str)
def test_convolutions_are_linear_maps(rule_set):
    x, weight, bias = draw(1, 2, 5), draw(3, 2, 2, seed=1), draw(3, seed=2)
    matrix = torch.zeros(3 * 4, 2 * 5, dtype=torch.double)
    for out in range(3):
        for place in range(4):
            for inside in range(2):
                matrix[out * 4 + place, inside * 5 + place : inside * 5 + place + 2] = weight[out, inside]
    (found,), kept = back(rule_set, lambda x: F.conv1d(x, weight, bias).flatten(), x)
    (wanted,), also = back(rule_set, lambda x: F.linear(x, matrix, bias.repeat_interleave(4)), x.flatten())
    assert torch.allclose(found.flatten(), wanted)
    assert torch.allclose(kept, also)
    (flat,), _ = back(rule_set, lambda x: F.conv2d(x[:, :, None], weight[:, :, None], bias).flatten(), x)
    assert torch.allclose(flat, found)


@pytest.mark.parametrize("rule_set", ["cp", "epsilon", "voita", ALPHA_BETA], ids=str)
def test_rows_without_relevance_cost_nothing_and_change_nothing(rule_set):
    """A map to a vocabulary, explained at two of six places: the others get nothing, these what they get alone."""
    x, weight, bias = draw(2, 3, 2), draw(20, 2, seed=1), draw(20, seed=2)
    start = torch.zeros(2, 3, 20, dtype=torch.double)
    start[0, 1, 4], start[1, 2, 7] = 3.0, -2.0
    (found,), kept = back(rule_set, lambda x: F.linear(x, weight, bias), x, start=start)
    parts, also = torch.zeros_like(x), 0.0
    for row, place in ((0, 1), (1, 2)):
        (part,), some = back(
            rule_set, lambda x: F.linear(x, weight[:9], bias[:9]), x[row, place], start=start[row, place, :9]
        )
        parts[row, place] = part
        also += some
    assert torch.allclose(found, parts)
    assert torch.allclose(kept, also)


def attend(q, k, v):
    return F.softmax(q @ k.T / math.sqrt(q.shape[1]), -1) @ v


def fused(q, k, v):
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]


def loops(q, k, v, relevance, constant, alpha=None):
    """The rules of attention, entry by entry: R of q, k and v for R of the output."""
    n, m, width = len(q), len(k), q.shape[1]
    scores = torch.tensor([[float(q[i] @ k[j]) / math.sqrt(width) for j in range(m)] for i in range(n)])
    maps, out = scores.double().softmax(-1), attend(q, k, v)
    to_v, to_maps = torch.zeros_like(v), torch.zeros(n, m, dtype=torch.double)
    for i in range(n):
        for c in range(v.shape[1]):
            parts = [maps[i, j] * v[j, c] for j in range(m)]
            for j in range(m):
                if alpha is not None:
                    plus, minus = sum(p for p in parts if p > 0), sum(p for p in parts if p < 0)
                    a = alpha if plus and minus else float(plus > 0)
                    part = a * parts[j] / plus if parts[j] > 0 else (1 - a) * parts[j] / minus
                    to_v[j, c] += part * relevance[i, c]
                else:
                    part = parts[j] / out[i, c] * relevance[i, c]
                    to_v[j, c] += part if constant else part / 2
                    to_maps[i, j] += 0 if constant else part / 2
    to_scores = torch.zeros_like(to_maps)
    for i in range(n):
        for j in range(m):
            to_scores[i, j] = scores[i, j] * (to_maps[i, j] - maps[i, j] * to_maps[i].sum())
    to_q, to_k = torch.zeros_like(q), torch.zeros_like(k)
    for i in range(n):
        for j in range(m):
            for c in range(width):
                part = q[i, c] * k[j, c] / math.sqrt(width) / scores[i, j] * to_scores[i, j] / 2
                to_q[i, c] += part
                to_k[j, c] += part
    return to_q, to_k, to_v


@pytest.mark.parametrize("way", [attend, fused])
@pytest.mark.parametrize(
    ("rule_set", "constant", "alpha"),
    [
        ("attnlrp", False, None),
        ("cp", True, None),
        ("alphabeta", True, None),
        ("zplus", True, 1.0),
        ("voita", True, 0.5),
    ],
)
def test_attention_by_loops(rule_set, constant, alpha, way):
    q, k, v = draw(3, 4), draw(5, 4, seed=1), draw(5, 2, seed=2)
    start = draw(3, 2, seed=3)
    found, _ = back(rule_set, way, q, k, v, start=start)
    for ours, wanted in zip(found, loops(q, k, v, start, constant, alpha), strict=True):
        assert torch.allclose(ours, wanted, atol=1e-6)
    if constant:
        assert torch.allclose(found[2].sum(), start.sum())


def ratio_loops(q, k, v, relevance):
    """The same by the printed rule: sums by their parts, factors by their size, softmax left out."""
    n, m, width = len(q), len(k), q.shape[1]
    scores = q @ k.T / math.sqrt(width)
    maps = scores.softmax(-1)
    out, to_scores = maps @ v, torch.zeros(n, m, dtype=torch.double)
    to_q, to_k, to_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for i in range(n):
        for j in range(m):
            for c in range(v.shape[1]):
                part = maps[i, j] * v[j, c] / out[i, c] * relevance[i, c]
                to_scores[i, j] += maps[i, j] / (maps[i, j] + v[j, c]) * part
                to_v[j, c] += v[j, c] / (maps[i, j] + v[j, c]) * part
    for i in range(n):
        for j in range(m):
            for c in range(width):
                part = q[i, c] * k[j, c] / (q[i] @ k[j]) * to_scores[i, j]
                to_q[i, c] += q[i, c] / (q[i, c] + k[j, c]) * part
                to_k[j, c] += k[j, c] / (q[i, c] + k[j, c]) * part
    return to_q, to_k, to_v


@pytest.mark.parametrize("way", [attend, fused])
def test_the_printed_rule_by_loops(way):
    q, k, v, start = draw(3, 4), draw(5, 4, seed=1), draw(5, 2, seed=2), draw(3, 2, seed=3)
    found, _ = back("ratio", way, q, k, v, start=start)
    for ours, wanted in zip(found, ratio_loops(q, k, v, start), strict=True):
        assert torch.allclose(ours, wanted, rtol=1e-6)
    assert sum(part.sum() for part in found).item() == pytest.approx(start.sum().item())


def test_the_printed_rule_gives_a_bias_nothing_and_bursts_where_parts_cancel():
    layer = nn.Linear(3, 4).double().requires_grad_(False)
    x = draw(3, seed=5)
    (found,), at_biases = back("ratio", layer, x)
    parts = x * layer.weight  # (4, 3)
    assert torch.allclose(found, (parts / parts.sum(1, keepdim=True) * layer(x)[:, None]).sum(0))
    assert at_biases == 0
    a, b = torch.tensor(1.0, dtype=torch.double), torch.tensor(-0.99, dtype=torch.double)
    found, _ = back("ratio", lambda a, b: a * b, a, b, start=torch.tensor(1.0))
    assert [round(part.item(), 6) for part in found] == [100, -99]
    with pytest.raises(ValueError, match="mul, matmul and bmm, not by einsum"):
        back("ratio", lambda a, b: torch.einsum("i,i->", a, b), draw(3), draw(3, seed=1))


def test_softmax_leaks():
    """Two scores: what arrives at them is x_i (R_i - s_i sum R), which is no whole."""
    scores, start = torch.tensor([1.0, 0.0], dtype=torch.double), torch.tensor([1.0, 0.0], dtype=torch.double)
    (found,), _ = back("attnlrp", lambda x: x.softmax(-1), scores, start=start)
    share = 1 / (1 + math.exp(-1))
    assert found.tolist() == pytest.approx([1 - share, 0.0])


def test_layer_norm_by_its_jacobian():
    x, norm = draw(2, 5), nn.LayerNorm(5).double().requires_grad_(False)
    norm.weight.copy_(draw(5, seed=1))
    norm.bias.copy_(draw(5, seed=2))
    y, start = norm(x), draw(2, 5, seed=3)
    (found,), kept = back("cp", norm, x, start=start)
    wanted = torch.zeros_like(x)
    for row in range(2):
        deviation = (x[row].var(unbiased=False) + norm.eps).sqrt()
        for k in range(5):
            for i in range(5):
                slope = norm.weight[k] / deviation * ((i == k) - 1 / 5)  # the deviation is held constant
                wanted[row, i] += x[row, i] * slope / y[row, k] * start[row, k]
    assert torch.allclose(found, wanted)
    assert torch.allclose(kept, (norm.bias / y * start).sum())
    (found,), kept = back("voita", norm, x, start=start)
    assert torch.allclose(found, start)
    assert kept == 0


def test_a_zero_hands_its_relevance_to_its_neighbours():
    norm = nn.LayerNorm(4).double().requires_grad_(False)
    x, start = torch.tensor([0.0, 1.0, -3.0, 4.0], dtype=torch.double), torch.tensor([8.0, 1, 1, 1]).double()
    (found,), _ = back("zplus", norm, x, start=start)
    assert found.tolist() == pytest.approx([0.0, 2.0, 4.0, 5.0])


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_sums_by_loops(alpha):
    a, b, c, start = draw(2, 3), draw(3, seed=1), draw(2, 3, seed=2), draw(2, 3, seed=3)
    which = Rules(linear="alphabeta", alpha=alpha, sums=True, attention="constant")
    (to_a, to_b), _ = back(which, lambda a, b: a + b, a, b, start=start)
    (alone,), kept = back(which, lambda a: c + a, a, start=start)
    wanted_a, wanted_b, wanted = torch.zeros_like(a), torch.zeros_like(b), torch.zeros_like(a)
    for i in range(2):
        for j in range(3):
            for out, x, other in ((wanted_a, a[i, j], b[j]), (wanted_b, b[j], a[i, j]), (wanted, a[i, j], c[i, j])):
                share = 1.0 if x * other > 0 else alpha if x > 0 else 1 - alpha
                part = share * x / (x + other if x * other > 0 else x) * start[i, j]
                out[(j,) if out is wanted_b else (i, j)] += part
    assert torch.allclose(to_a, wanted_a)
    assert torch.allclose(to_b, wanted_b)
    assert torch.allclose(alone, wanted)
    assert torch.allclose(alone.sum() + kept, start.sum())
    plain = back("cp", lambda a, b: a + b, a, b.expand(2, 3), start=start)[0]
    assert torch.allclose(plain[0], a / (a + b) * start)


def test_where_all_parts_have_one_sign_they_get_all():
    x, weight = torch.tensor([1.0, 3.0]), torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    for which in ("zplus", "voita", ALPHA_BETA):
        (found,), _ = back(which, lambda x: F.linear(x, weight), x, start=torch.tensor([4.0, 8.0]))
        assert found.tolist() == pytest.approx([3.0, 9.0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: named("lrp"), "rules is one of attnlrp"),
        (lambda: Rules(linear="gamma"), 'linear is "zero"'),
        (lambda: Rules(attention="none"), 'attention "through", "constant" or "ratio"'),
        (lambda: Rules(epsilon=0.0), "epsilon must be positive and alpha finite"),
        (lambda: Rules(alpha=float("nan")), "epsilon must be positive and alpha finite"),
    ],
)
def test_rules_that_are_none(make, words):
    with pytest.raises(ValueError, match=words):
        make()
