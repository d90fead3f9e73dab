"""Answers to the exercises of lesson 08: right ones, and wrong ones with what their hint must say."""

import torch

import headtools as ht
from headtools.course import my_heads


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
    parts = weight * x / (y + epsilon * torch.sign(y + 1e-30))[:, None]
    return (parts * relevance[:, None]).sum(0).double().numpy()


def stuck_at_zero(x, weight, bias, relevance, epsilon):
    y = weight @ x + bias
    return x * (weight.T @ (relevance / (y + epsilon * y.sign())))


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


def direct(mistake=""):
    """A right answer that goes head by head, or one with a mistake."""

    def direct_logit(model, norm, batch, right, wrong):
        read = []
        hook = norm.register_forward_pre_hook(lambda module, args: read.append(args[0]))
        with torch.no_grad(), ht.record(model, want="z") as seen:
            model(**batch)
        if mistake != "hook":
            hook.remove()
        at, words = 0 if mistake == "first" else -1, model.get_output_embeddings().weight
        u = words[right] - (0 if mistake == "right" else words[wrong])
        u = -u if mistake == "turned" else u
        deviation = read[0][:, at].std(-1, unbiased=mistake == "sample")
        parts = {}
        for site in ht.sites(model):
            o, heads = ht.contributions(site, seen[site.key].z), []
            for head in range(site.heads):
                y = o[:, at, head]
                y = y if mistake == "mean" else y - y.mean(-1, keepdim=True)
                y = y if mistake == "gain" else y * norm.weight
                s = o[:, at, head].std(-1, unbiased=False) if mistake in ("alone", "through") else deviation
                y = y if mistake == "scale" else y / s[:, None]
                heads.append(((y + norm.bias if mistake in ("bias", "through") else y) * u).sum(-1))
            parts[site.key] = torch.stack(heads, 1)
            parts[site.key] = o[:, -1] if mistake == "vectors" else parts[site.key]
        if mistake == "one":
            return parts["decoder", 0]
        return {key[1]: value for key, value in parts.items()} if mistake == "keys" else parts

    return direct_logit


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


class Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, W, b, rule, number):
        ctx.save_for_backward(x, W, b)
        ctx.rule, ctx.number = rule, number
        return torch.nn.functional.linear(x, W, b)

    @staticmethod
    def backward(ctx, g):
        x, W, b = ctx.saved_tensors
        terms = torch.cat([b.expand(len(x), -1)[..., None], x[:, None] * W], -1)
        M = my_heads.messages(terms, (x @ W.T + b) * g, ctx.rule, ctx.number)
        return my_heads.ratio(M[..., 1:].sum(1), x), None, my_heads.ratio(M[..., 0].sum(0), b), None, None


class TokenByToken(Share):
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


def sharing(wrong):
    """Share, with one mistake in its backward pass."""

    def backward(ctx, g):
        x, W, b = ctx.saved_tensors
        if wrong == "gradient":
            return g @ W, None, g.sum(0), None, None
        bias = b * 0 if wrong in ("bare", "left out") else b
        terms = torch.cat([x[:, None] * W, bias.expand(len(x), -1)[..., None]], -1)
        M = my_heads.messages(
            terms, {"given": g, "left out": (x @ W.T + b) * g}.get(wrong, terms.sum(-1) * g), ctx.rule, ctx.number
        )
        first, last = (M[..., 1:], M[..., 0]) if wrong == "swapped" else (M[..., :-1], M[..., -1])
        R_x, R_b = first.sum(1), last.sum(0)
        if wrong == "relevance":
            return R_x, None, R_b, None, None
        if wrong == "two":
            return R_x / x, R_b / b
        if wrong == "nothing":
            return my_heads.ratio(R_x, x), None, None, None, None
        if wrong == "nan":
            return R_x / x, None, R_b / b, None, None
        if wrong == "other":
            raise KeyError(wrong)
        factor = 2 if wrong == "twice" else 1
        return factor * my_heads.ratio(R_x, x), None, my_heads.ratio(R_b, b), None, None

    return type("Share", (Share,), {"backward": staticmethod(backward)})


class BlankShare(Share):
    @staticmethod
    def backward(ctx, g): ...


class NotYet(Share):
    @staticmethod
    def backward(ctx, g):
        raise NotImplementedError


def attention(mistake=""):
    """A right answer, or one with a mistake."""

    def attention_rule(q, k, v, relevance, fixed):
        fixed = {"free": False, "fixed": True}.get(mistake, fixed)
        root = q.shape[-1] ** 0.5
        A = torch.softmax(q @ k.T / (1 if mistake == "scale" else root), 0 if mistake == "columns" else -1)
        g = relevance if mistake == "given" else relevance / (A @ v)
        R_v = A.T @ relevance if mistake == "weights" else v * (A.T @ g)
        if fixed:
            return 0 * q, 0 * k, R_v / 2 if mistake == "half" else R_v
        halves = {"double": (1, 1), "once": (2, 1)}.get(mistake, (2, 2))
        R_A = A * (g @ v.T) / halves[0]
        taken = A * R_A.sum(0 if mistake == "queries" else -1, keepdim=True)
        R_s = R_A if mistake == "through" else R_A - taken
        g_s = R_s / (1 if mistake in ("back", "scale") else root)
        return q * (g_s @ k) / halves[1], k * (g_s.T @ q) / halves[1], R_v / halves[0]

    return attention_rule


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


ANSWERS = {
    "08.direct": {
        "right": [direct(), direct_by_difference, my_heads.direct_logit],
        "wrong": [
            (direct("scale"), "scale is missing"),
            (direct("alone"), "a scale of its own"),
            (direct("mean"), "mean is not taken off"),
            (direct("gain"), "gain is missing"),
            (direct("right"), "logit of the right word"),
            (direct("turned"), "sign is turned"),
            (direct("first"), "first token"),
            (direct("sample"), "over n - 1"),
            (direct("bias"), "bias is added to every head"),
            (direct("through"), "put through the norm by itself"),
            (direct("hook"), "leaves a hook"),
            (direct("vectors"), "These are vectors"),
            (direct("keys"), "one for each site is asked for"),
            (direct("one"), "A dict is asked for"),
            (package_direct, "ht.direct_logit_attribution is right"),
        ],
    },
    "08.epsilon": {
        "right": [right_epsilon, epsilon_in_loops, epsilon_by_sign],
        "wrong": [
            (changed_epsilon(lambda y, b, e: y + b + e), "added to y as it is"),
            (stuck_at_zero, "y is 0 here, and so is its torch.sign"),
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
    "08.share": {
        "right": [Share, TokenByToken, my_heads.Share],
        "blank": [BlankShare, NotYet],
        "wrong": [
            (sharing("gradient"), "gradient, and so LRP-0"),
            (sharing("relevance"), "This is the relevance. What goes back is g"),
            (sharing("given"), "Make it relevance first"),
            (sharing("bare"), "bias is no term here"),
            (sharing("left out"), "is in y and no term of it"),
            (sharing("swapped"), "are exchanged"),
            (sharing("two"), "one thing for each argument of forward"),
            (sharing("nothing"), "Nothing goes back to b"),
            (sharing("nan"), "NaN.*use ratio"),
            (sharing("twice"), "not the g of x"),
            (sharing("other"), "stopped with KeyError"),
            (Share.backward, "class is asked for"),
        ],
    },
    "08.attention": {
        "right": [attention(), attention_by_autograd, my_heads.attention_rule],
        "wrong": [
            (lambda q, k, v, relevance, fixed: (None, None, v), "A tensor like q is asked for, this is None"),
            (attention("free"), "queries and keys get nothing"),
            (attention("half"), "Values get half"),
            (attention("fixed"), "held fixed all the same"),
            (attention("double"), "Nothing is halved"),
            (attention("once"), "halves once more"),
            (attention("weights"), "share by the weights alone"),
            (attention("scale"), "not divided by the root"),
            (attention("back"), "root is missing on the way back"),
            (attention("through"), "Softmax passes all relevance on"),
            (attention("queries"), "runs over the keys"),
            (attention("given"), "taken for g"),
            (attention("columns"), "not the relevance of v, with the map held fixed"),
            (lambda *given: attention()(*given)[2], "Three things are asked for"),
            (lambda q, k, v, relevance, fixed: (0 * q, 0 * k, v / 0 * 0), "NaN in the relevance of v"),
            (lambda q, k, v, relevance, fixed: (q.T, k, v), "The shape is"),
            (attention_by_rules, "ht.rules is right, and it is the one"),
        ],
    },
}
