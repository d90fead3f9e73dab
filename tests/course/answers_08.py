"""Answers to the exercises of lesson 08: right ones, and wrong ones with what their hint must say."""

import torch
from edited import of

import headtools as ht
from headtools.course import my_heads

direct, share, attention, messages = map(of, ("direct_logit", "Share", "attention_rule", "messages"))


def epsilon_in_loops(x, weight, bias, relevance, epsilon):
    out = [0.0] * len(x)
    for k in range(len(weight)):
        y = sum(x[i] * weight[k, i] for i in range(len(x))) + bias[k]
        for i in range(len(x)):
            out[i] += float(x[i] * weight[k, i] / (y + (epsilon if y >= 0 else -epsilon)) * relevance[k])
    return out


def changed_epsilon(below, times=lambda x: x):
    def answer(x, weight, bias, relevance, epsilon):
        return times(x) * (weight.T @ (relevance / below(weight @ x, bias, epsilon)))

    return answer


def moved(y, epsilon):
    return y + epsilon * torch.where(y < 0, -1.0, 1.0)


right_epsilon = changed_epsilon(lambda y, b, e: moved(y + b, e))


def signs_in_a_loop(terms, relevance, alpha):
    plus, minus = sum(t for t in terms if t > 0), sum(t for t in terms if t < 0)
    alpha = (alpha if minus else 1.0) if plus else 0.0
    return [float((alpha * t / plus if t > 0 else (1 - alpha) * t / minus) * relevance) for t in terms]


def signs(*changes):
    """The course's rule for terms of both signs, with changes."""
    rule = messages(*changes)
    return lambda terms, relevance, alpha: rule(terms, torch.as_tensor(relevance), "alpha-beta", alpha)


right_signs = signs()


def direct_by_difference(model, norm, batch, right, wrong):
    """Another style: how much the difference changes when the linear norm reads the stream without the head."""
    kept = {}
    hook = norm.register_forward_hook(lambda module, args, output: kept.update(x=args[0][:, -1], y=output[:, -1]))
    with torch.no_grad(), ht.record(model, want="z") as seen:
        model(**batch)
    hook.remove()
    words = model.get_output_embeddings().weight
    x = kept["x"] - kept["x"].mean(1, keepdim=True)
    over_s = ((kept["y"] - norm.bias) * x).sum(1) / (x * x * norm.weight).sum(1)
    u = torch.einsum("bd,d,b->bd", words[right] - words[wrong], norm.weight, over_s)
    centre = torch.eye(len(norm.weight)) - 1 / len(norm.weight)
    return {
        site.key: torch.einsum("bhw,hwd,de,be->bh", seen[site.key].z[:, -1], site.w_o, centre, u)
        for site in ht.sites(model)
    }


def package_direct(model, norm, batch, right, wrong):
    return ht.direct_logit_attribution(model, batch, right).heads


class TokenByToken(torch.autograd.Function):
    """Another style: one output of one token at a time."""

    @staticmethod
    def forward(ctx, x, W, b, rule, number):
        ctx.save_for_backward(x, W, b)
        ctx.rule, ctx.number = rule, number
        return x @ W.T + b

    @staticmethod
    def backward(ctx, g):
        x, W, b = ctx.saved_tensors
        to_x, to_b = torch.zeros_like(x), torch.zeros_like(b)
        for t in range(len(x)):
            for k in range(len(W)):
                terms = torch.cat([W[k] * x[t], b[k : k + 1]])
                parts = my_heads.messages(terms[None], (terms.sum() * g[t, k])[None], ctx.rule, ctx.number)[0]
                to_x[t] += torch.where(x[t] == 0, 0.0, parts[:-1] / x[t])
                to_b[k] += parts[-1] / b[k]
        return to_x, None, to_b, None, None


class BlankShare(TokenByToken):
    @staticmethod
    def backward(ctx, g): ...


class NotYet(TokenByToken):
    @staticmethod
    def backward(ctx, g):
        raise NotImplementedError


def attention_by_autograd(q, k, v, relevance, fixed):
    """Another style: the gradient of the head as it is, and fractions of it."""
    with torch.enable_grad():
        q, k, v = (part.clone().requires_grad_() for part in (q, k, v))
        A = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], torch.eye(len(k))[None])[0]
        z = (A.detach() if fixed else A) @ v
        g = torch.autograd.grad(z, (q, k, v), relevance / z.detach(), allow_unused=True)
    fractions = (0, 0, 1) if fixed else (0.25, 0.25, 0.5)
    g = [torch.zeros_like(part) if one is None else one for part, one in zip((q, k, v), g, strict=True)]
    return [(part * one * fraction).detach() for part, one, fraction in zip((q, k, v), g, fractions, strict=True)]


def attention_by_rules(q, k, v, relevance, fixed):
    with ht.rules("cp" if fixed else "attnlrp"):
        return q, k, v


MINUS, READ, WRITTEN = "words[right] - words[wrong]", "written, u)", 'torch.einsum("bhd,bd->bh", written, u)'
TO_X, TO_B = "ratio(M[..., :-1].sum(1), x)", "ratio(M[..., -1].sum(0), b)"
TO_Q, TO_K, ROOT = "q * (g_scores @ k)", "k * (g_scores.T @ q)", " / math.sqrt(q.shape[-1])"
ALPHA = "torch.where((P > 0) & (N < 0), number, (P > 0).float())"
ANSWERS = {
    "08.direct": {
        "right": [direct_by_difference, my_heads.direct_logit],
        "wrong": [
            (direct("weight / s", "weight"), "scale is missing"),
            (
                direct(READ, "s[:, None] * written / written.std(-1, unbiased=False, keepdim=True), u)"),
                "a scale of its own",
            ),
            (direct("u = u - u.mean(-1, keepdim=True)", "pass"), "mean is not taken off"),
            (direct(" * norm.weight", ""), "gain is missing"),
            (direct(MINUS, "words[right]"), "logit of the right word"),
            (direct(MINUS, "words[wrong] - words[right]"), "sign is turned"),
            (direct("value[:, -1:]", "value[:, :1]", "args[0][:, -1]", "args[0][:, 0]"), "first token"),
            (direct("x.square().mean(-1, keepdim=True)", "x.var(-1, keepdim=True)"), "over n - 1"),
            (direct(READ, f"{READ}.add((({MINUS}) @ norm.bias)[:, None])"), "bias is added to every head"),
            (direct(READ, f"norm(written), {MINUS})"), "put through the norm by itself"),
            (direct("stack.callback(hook.remove)", "pass"), "leaves a hook"),
            (direct(WRITTEN, "written"), "These are vectors"),
            (direct("return {key:", "return {key[1]:"), "one for each site is asked for"),
            (direct("rows.items()}", "rows.items()}['decoder', 0]"), "A dict is asked for"),
            (package_direct, "ht.direct_logit_attribution is right"),
        ],
    },
    "08.epsilon": {
        "right": [right_epsilon, epsilon_in_loops],
        "wrong": [
            (changed_epsilon(lambda y, b, e: y + b + e), "added to y as it is"),
            (changed_epsilon(lambda y, b, e: y + b + e * (y + b).sign()), "y is 0 here, and so is its torch.sign"),
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
    "08.signs": {
        "right": [right_signs, signs_in_a_loop],
        "wrong": [
            (signs(ALPHA, "number"), "one sign only"),
            (lambda terms, relevance, alpha: terms / terms.sum() * relevance, "where signs cancel"),
            (signs(ALPHA, "number", "+ (1 - alpha)", "- (1 - alpha)"), "sign of the second part"),
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
    "08.share": {
        "right": [TokenByToken, my_heads.Share],
        "blank": [BlankShare, NotYet],
        "wrong": [
            (share(TO_X, "g @ W", TO_B, "g.sum(0)"), "gradient, and so LRP-0"),
            (
                share(TO_X, "M[..., :-1].sum(1)", TO_B, "M[..., -1].sum(0)"),
                "This is the relevance. What goes back is g",
            ),
            (share("terms.sum(-1) * g", "g"), "Make it relevance first"),
            (share("b.expand", "(0 * b).expand"), "bias is no term here"),
            (
                share("b.expand", "(0 * b).expand", "terms.sum(-1) * g", "(x @ W.T + b) * g"),
                "is in y and no term of it",
            ),
            (share("M[..., :-1]", "M[..., 1:]", "M[..., -1]", "M[..., 0]"), "are exchanged"),
            (share(f"None, {TO_B}, None, None", TO_B), "one thing for each argument of forward"),
            (share(TO_B, "None"), "Nothing goes back to b"),
            (share(TO_X, "M[..., :-1].sum(1) / x"), "NaN.*use ratio"),
            (share(TO_X, f"2 * {TO_X}"), "not the g of x"),
            (share("terms = ", "raise KeyError\n        terms = "), "stopped with KeyError"),
            (my_heads.Share.backward, "class is asked for"),
        ],
    },
    "08.attention": {
        "right": [attention_by_autograd, my_heads.attention_rule],
        "wrong": [
            (lambda q, k, v, relevance, fixed: (None, None, v), "A tensor like q is asked for, this is None"),
            (attention("if fixed", "if False"), "queries and keys get nothing"),
            (attention("zeros_like(k), R_v", "zeros_like(k), R_v / 2"), "Values get half"),
            (attention("if fixed", "if True"), "held fixed all the same"),
            (
                attention("(g @ v.T) / 2", "(g @ v.T)", f"{TO_Q} / 2, {TO_K} / 2, R_v / 2", f"{TO_Q}, {TO_K}, R_v"),
                "Nothing is halved",
            ),
            (attention(f"{TO_Q} / 2, {TO_K} / 2", f"{TO_Q}, {TO_K}"), "halves once more"),
            (attention("v * (A.T @ g)", "A.T @ relevance"), "share by the weights alone"),
            (attention(f"k.T{ROOT}", "k.T", f"True)){ROOT}", "True))"), "not divided by the root"),
            (attention(f"True)){ROOT}", "True))"), "root is missing on the way back"),
            (attention("R_A - A * R_A.sum(-1, keepdim=True)", "R_A"), "Softmax passes all relevance on"),
            (attention("R_A.sum(-1", "R_A.sum(0"), "runs over the keys"),
            (attention("ratio(relevance, A @ v)", "relevance"), "taken for g"),
            (attention("softmax(-1)", "softmax(0)"), "not the relevance of v, with the map held fixed"),
            (lambda *given: my_heads.attention_rule(*given)[2], "Three things are asked for"),
            (lambda q, k, v, relevance, fixed: (0 * q, 0 * k, v / 0 * 0), "NaN in the relevance of v"),
            (lambda q, k, v, relevance, fixed: (q.T, k, v), "The shape is"),
            (attention_by_rules, "ht.rules is right, and it is the one"),
        ],
    },
}
