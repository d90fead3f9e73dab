"""Answers to the exercises of lesson 07: right ones, and wrong ones with what their hint must say."""

import torch


def right_epsilon(x, weight, bias, relevance, epsilon):
    y = weight @ x + bias
    y = y + epsilon * torch.where(y < 0, -1.0, 1.0)
    return x * ((relevance / y) @ weight)


def epsilon_in_loops(x, weight, bias, relevance, epsilon):
    out = [0.0] * len(x)
    for k in range(len(weight)):
        y = sum(x[i] * weight[k, i] for i in range(len(x))) + bias[k]
        for i in range(len(x)):
            out[i] += float(x[i] * weight[k, i] / (y + (epsilon if y >= 0 else -epsilon)) * relevance[k])
    return out


def epsilon_by_sign(x, weight, bias, relevance, epsilon):
    y = torch.nn.functional.linear(x, weight, bias)
    parts = weight * x / (y + epsilon * y.sign())[:, None]
    return (parts * relevance[:, None]).sum(0).double().numpy()


def changed_epsilon(below, times=lambda x: x):
    def answer(x, weight, bias, relevance, epsilon):
        return times(x) * (weight.T @ (relevance / below(weight @ x, bias, epsilon)))

    return answer


def moved(y, epsilon):
    return y + epsilon * torch.where(y < 0, -1.0, 1.0)


def right_signs(terms, relevance, alpha):
    plus, minus = terms.clamp(min=0), terms.clamp(max=0)
    if not (plus > 0).any():
        return minus / minus.sum() * relevance
    if not (minus < 0).any():
        return plus / plus.sum() * relevance
    return (alpha * plus / plus.sum() - (alpha - 1) * minus / minus.sum()) * relevance


def signs_in_a_loop(terms, relevance, alpha):
    plus, minus = sum(t for t in terms if t > 0), sum(t for t in terms if t < 0)
    alpha = (alpha if minus else 1.0) if plus else 0.0
    return [float((alpha * t / plus if t > 0 else (1 - alpha) * t / minus) * relevance) for t in terms]


def no_empty_sign(terms, relevance, alpha, sign=1):
    plus, minus = terms.clamp(min=0), terms.clamp(max=0)
    parts = (plus / plus.sum()).nan_to_num(0.0), (minus / minus.sum()).nan_to_num(0.0)
    return (alpha * parts[0] + sign * (1 - alpha) * parts[1]) * relevance


def right_softmax(scores, relevance):
    return scores * (relevance - scores.softmax(-1) * relevance.sum())


def softmax_by_jacobian(scores, relevance):
    weights = scores.softmax(-1)
    jacobian = torch.diag(weights) - torch.outer(weights, weights)
    return scores * (jacobian @ (relevance / weights))


def softmax_in_a_loop(scores, relevance):
    weights = scores.softmax(-1)
    return [float(scores[i] * (relevance[i] - weights[i] * sum(relevance))) for i in range(len(scores))]


def right_shares(relevance):
    size = relevance.abs()
    return (size / size.sum(1, keepdim=True)).mean(0)


def shares_in_a_loop(relevance):
    rows = [[abs(float(r)) / sum(abs(float(v)) for v in row) for r in row] for row in relevance]
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def shares_by_normalise(relevance):
    return torch.nn.functional.normalize(relevance, p=1, dim=1).abs().mean(0)


ANSWERS = {
    "07.epsilon": {
        "right": [right_epsilon, epsilon_in_loops, epsilon_by_sign],
        "wrong": [
            (changed_epsilon(lambda y, b, e: y + b + e), "added to y as it is"),
            (changed_epsilon(lambda y, b, e: y + b), "Epsilon is missing"),
            (changed_epsilon(lambda y, b, e: moved(y, e)), "bias is missing"),
            (changed_epsilon(lambda y, b, e: moved(y + b, e), lambda x: 1), "Multiply by x itself"),
            (changed_epsilon(lambda y, b, e: (y + b).abs() + e), "change their sign"),
            (lambda x, weight, bias, relevance, epsilon: x * relevance.sum(), "x_i w_ki of it"),
            (
                lambda x, weight, bias, relevance, epsilon: x * (relevance / moved(weight @ x + bias, epsilon)).sum(),
                "weights are missing",
            ),
            (lambda x, weight, bias, relevance, epsilon: torch.full_like(x, relevance.sum() / len(x)), "got the same"),
            (
                lambda *all: right_epsilon(*all) * all[3].sum() / right_epsilon(*all).sum(),
                "scaled so that nothing is lost",
            ),
            (lambda x, weight, bias, relevance, epsilon: relevance.repeat(5), r"The shape is \(10,\)"),
            (lambda x, weight, bias, relevance, epsilon: x @ weight.missing, "stopped with AttributeError"),
        ],
    },
    "07.signs": {
        "right": [right_signs, signs_in_a_loop],
        "wrong": [
            (no_empty_sign, "one sign only"),
            (lambda terms, relevance, alpha: terms / terms.sum() * relevance, "where signs cancel"),
            (lambda *all: no_empty_sign(*all, sign=-1), "sign of the second part"),
            (lambda terms, relevance, alpha: terms.clamp(min=0) / terms.clamp(min=0).sum() * relevance, "this is z+"),
            (lambda terms, relevance, alpha: right_signs(terms, relevance, 0.5) * 2 * alpha, "must sum to 1"),
            (lambda terms, relevance, alpha: right_signs(terms, relevance, 1 - alpha), "parts are exchanged"),
            (lambda terms, relevance, alpha: right_signs(terms, 1.0, alpha), "relevance is missing"),
            (lambda terms, relevance, alpha: terms.abs() / terms.abs().sum() * relevance, "whatever their sign"),
            (
                lambda terms, relevance, alpha: right_signs(terms.sign(), relevance, alpha),
                "in proportion to their size",
            ),
            (lambda terms, relevance, alpha: terms, "share alpha of the relevance"),
            (lambda terms, relevance, alpha: terms[:1], r"The shape is \(1,\)"),
        ],
    },
    "07.softmax": {
        "right": [right_softmax, softmax_by_jacobian, softmax_in_a_loop],
        "wrong": [
            (lambda scores, relevance: relevance, "passes relevance on unchanged"),
            (lambda scores, relevance: relevance - scores.softmax(-1) * relevance.sum(), "score itself is missing"),
            (
                lambda scores, relevance: scores * relevance * (1 - scores.softmax(-1)),
                "sum of all relevance is missing",
            ),
            (lambda scores, relevance: scores * (relevance - relevance.sum()), "loses all of the sum"),
            (
                lambda scores, relevance: (
                    scores * scores.softmax(-1) * (relevance - (scores.softmax(-1) * relevance).sum())
                ),
                "multiplied in once more",
            ),
            (lambda scores, relevance: scores * (relevance + scores.softmax(-1) * relevance.sum()), "turned round"),
            (
                lambda scores, relevance: scores.softmax(-1) * (relevance - scores.softmax(-1) * relevance.sum()),
                "not their softmax",
            ),
            (
                lambda scores, relevance: (
                    right_softmax(scores, relevance) * relevance.sum() / right_softmax(scores, relevance).sum()
                ),
                "Leave the leak in",
            ),
            (lambda scores, relevance: right_softmax(scores, relevance).sum(), r"The shape is \(\)"),
            (lambda scores, relevance: scores, "Entry i gets its score times"),
        ],
    },
    "07.shares": {
        "right": [right_shares, shares_in_a_loop, shares_by_normalise],
        "wrong": [
            (lambda relevance: relevance.abs().sum(0) / relevance.abs().sum(), "Divide each step by itself"),
            (lambda relevance: (relevance / relevance.sum(1, keepdim=True)).mean(0), "come near zero"),
            (lambda relevance: (relevance / relevance.abs().sum(1, keepdim=True)).mean(0), "keep their signs"),
            (lambda relevance: relevance.mean(0).abs() / relevance.mean(0).abs().sum(), "signs have cancelled"),
            (lambda relevance: (relevance.abs() / relevance.sum(1, keepdim=True)).mean(0), "signs below it"),
            (lambda relevance: right_shares(relevance) * len(relevance), "a sum over steps"),
            (lambda relevance: (relevance.abs() / relevance.abs().sum(0)).mean(0), "among the heads of one step"),
            (lambda relevance: right_shares(relevance.T), r"The shape is \(2,\), it should be \(head,\) = \(3,\)"),
            (lambda relevance: relevance[0], "divide each head's size"),
        ],
    },
}
