"""Typical wrong submissions of the problem sets: what is written instead of the solution, and what they lose.

What is not named here is as in the solution. ``assignments/instructor/marking.md`` tells the same marks; a test
compares.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrong:
    """One submission: {id of an answer's cell: its code}, and the ids of the test cells it loses."""

    answers: dict[str, str]
    lost: frozenset[str]


def wrong(lost: str, **answers: str) -> Wrong:
    """Name test cells as ``"1b 2b 2c"`` and answers as ``a1=...``, ``a4_loudest=...``, without the set's name."""
    return Wrong({name[1:].replace("_", "-"): code for name, code in answers.items()}, frozenset(lost.split()))


PS1 = {
    "Heads take turns with the groups, and the key's bias stands where the query's belongs": wrong(
        "1b 2b 2c",
        a1="""
def grouped_attention(q, k, v, lengths):
    share = q.shape[1] // k.shape[1]
    k, v = (x.repeat(1, share, 1, 1) for x in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    real = torch.arange(k.shape[2]) < lengths[:, None]
    return scores.masked_fill(~real[:, None, None], -torch.inf).softmax(-1) @ v
""",
        a2="""
def two_terms(W_q, b_q, W_k, b_k):
    root = W_q.shape[1] ** 0.5
    return W_q @ W_k.T / root, W_q @ b_k / root
""",
    ),
    "Padding is forgotten, the whole matrix is made, and the loudest head is that with the longest bias": wrong(
        "1c 3c 4c",
        a1="""
def grouped_attention(q, k, v, lengths):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
""",
        a3="""
def channel_strengths(W_V, W_O):
    return torch.linalg.svdvals(W_V @ W_O)[: W_V.shape[1]]
""",
        a4_loudest="""
lengths = ht.sites(model)["encoder", LAYER].module.v_proj.bias.detach().view(8, 16).norm(dim=1)
loudest = (lengths.argmax().item(), lengths.max().item())
""",
    ),
    "Scores are not divided, strengths are squared, and the output bias is shared out among the heads": wrong(
        "1b 1c 3a 3b 3c 4a 4b 4c",
        a1="""
def grouped_attention(q, k, v, lengths):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    real = torch.arange(k.shape[2]) < lengths[:, None]
    return (q @ k.mT).masked_fill(~real[:, None, None], -torch.inf).softmax(-1) @ v
""",
        a3="""
def channel_strengths(W_V, W_O):
    return torch.linalg.eigvals((W_V.T @ W_V) @ (W_O @ W_O.T)).real.sort(descending=True).values
""",
        a4="""
def constants(module, heads):
    bias = module.v_proj.bias.detach().unflatten(0, (heads, -1))
    blocks = module.out_proj.weight.detach().T.unflatten(0, (heads, -1))
    return torch.einsum("hv,hvd->hd", bias, blocks) + module.out_proj.bias.detach() / heads
""",
    ),
}

PS2 = {
    "Offsets are fitted on the looks they are scored on, and the root counts as a word": wrong(
        "1b 1c 3a 3b 3c",
        a1="""
def tag_baseline(fitted, scored):
    def best(looks):
        offsets = sorted(key - query for _, query, key in looks)
        return max(offsets, key=offsets.count)

    of_tag = {tag: best([look for look in scored if look[0] == tag]) for tag, _, _ in scored}
    return sum(key - query == of_tag[tag] for tag, query, key in scored) / len(scored)
""",
        a3="""
def two_up(heads):
    return [(word, heads[head - 1] - 1) for word, head in enumerate(heads)]


def two_up_shares(maps, sentences):
    right, asked = 0, 0
    for some, sentence in zip(maps, sentences):
        pairs = torch.tensor(two_up(sentence.heads))
        right = right + (some.argmax(-1)[..., pairs[:, 0]] == pairs[:, 1]).sum(-1)
        asked += len(pairs)
    return right / asked
""",
    ),
    "Tags never seen are forgotten, and the sentences' shares are averaged": wrong(
        "1c 2b 2c",
        a1="""
def tag_baseline(fitted, scored):
    def best(looks):
        offsets = sorted(key - query for _, query, key in looks)
        return max(offsets, key=offsets.count)

    of_tag = {tag: best([look for look in fitted if look[0] == tag]) for tag, _, _ in fitted}
    return sum(key - query == of_tag[tag] for tag, query, key in scored) / len(scored)
""",
        a2="""
def share_interval(hits, looks, draws=2000, seed=0):
    shares = hits / looks
    drawn = torch.randint(len(shares), (draws, len(shares)), generator=torch.Generator().manual_seed(seed))
    return tuple(shares[drawn].mean(1).quantile(torch.tensor([0.025, 0.975])).tolist())
""",
    ),
    "Looks are drawn instead of sentences, and only the latest earlier occurrence counts": wrong(
        "2b 4b 4c",
        a2="""
def share_interval(hits, looks, draws=2000, seed=0):
    n, share = int(looks.sum()), float(hits.sum() / looks.sum())
    torch.manual_seed(seed)
    shares = torch.distributions.Binomial(n, torch.tensor(share)).sample((draws,)) / n
    return tuple(shares.quantile(torch.tensor([0.025, 0.975])).tolist())
""",
        a4="""
def repeat_scores(maps, symbols):
    scores, level, last = [], [], {}
    for t, symbol in enumerate(symbols):
        if symbol in last:
            scores.append(maps[:, t, last[symbol] + 1])
            level.append(1 / (t + 1))
        last[symbol] = t
    return torch.stack(scores).mean(0), sum(level) / len(level)
""",
    ),
}

PS3 = {
    "The slope at gate 1 is all, and each head pays what it costs alone": wrong(
        "1b 1c 3a 3b 3c",
        a1="""
def path_cost(losses, examples, heads, head, steps):
    gates = torch.ones(examples, heads, requires_grad=True)
    return -torch.autograd.grad(losses(gates).sum(), gates)[0][:, head]
""",
        a3="""
def shapley(losses, n):
    return [losses[frozenset({head})] - losses[frozenset()] for head in range(n)]
""",
    ),
    "Slopes are averaged before their size is taken, and epsilon is added whatever the sign": wrong(
        "2a 2b 2c 4c",
        a2="""
def word_importance(model, batch, wanted):
    gates = {("encoder", layer): torch.ones(len(wanted), 8, requires_grad=True) for layer in range(6)}
    with ht.gates(model, gates):
        logits = model(**batch).logits
    each = torch.nn.functional.cross_entropy(logits.mT, batch["labels"], reduction="none")
    some = wanted.any(1)
    mean = (each * wanted)[some].sum(1) / wanted[some].sum(1)
    slopes = torch.autograd.grad(mean.sum(), list(gates.values()))
    return torch.stack([slope[some].mean(0).abs() for slope in slopes])
""",
        a4="""
def through_map(maps, v, relevance, epsilon):
    return v * (maps.T @ (relevance / (maps @ v + epsilon)))
""",
    ),
    "Sentences without a wanted word count as zeros, and all sets weigh the same": wrong(
        "2c 3b 3c",
        a2="""
def word_importance(model, batch, wanted):
    gates = {("encoder", layer): torch.ones(len(wanted), 8, requires_grad=True) for layer in range(6)}
    with ht.gates(model, gates):
        logits = model(**batch).logits
    each = torch.nn.functional.cross_entropy(logits.mT, batch["labels"], reduction="none")
    mean = (each * wanted).sum(1) / wanted.sum(1).clamp(min=1)
    slopes = torch.autograd.grad(mean.sum(), list(gates.values()))
    return torch.stack([slope.abs().mean(0) for slope in slopes])
""",
        a3="""
def shapley(losses, n):
    shares = []
    for head in range(n):
        rises = [losses[off | {head}] - losses[off] for off in losses if head not in off]
        shares.append(sum(rises) / len(rises))
    return shares
""",
    ),
}

PS4 = {
    "Every stretch is taken for the usual one, impossible lumps pass, and empty layers are filled on top": wrong(
        "1b 1c 2a 2b 2c",
        a1="""
def gate_with(p_zero, p_one, low=-0.1, high=1.1):
    logits = [math.log(p / (1 - p)) for p in (p_zero, p_one)]
    temperature = -sum(logits) / 2 / math.log(11)
    return -temperature * math.log(11) - logits[0], temperature
""",
        a2="""
def keep_with_floor(scores, keep, floor):
    mask = torch.zeros_like(scores)
    mask.view(-1)[scores.flatten().topk(keep).indices] = 1
    for row, some in zip(mask, scores):
        if row.sum() < floor:
            row[some.topk(floor).indices] = 1
    return mask
""",
    ),
    "The means go with the heads, and directions are taken out one after the other": wrong(
        "3b 3c 4b 4c",
        a3="""
def cut_with_means(weight, bias, means, gone):
    left = [head for head in range(len(means)) if head not in gone]
    return weight.unflatten(1, means.shape)[:, left].flatten(1), bias
""",
        a4="""
def stop_writing_all(W_O, V):
    for v in V:
        W_O = W_O - torch.outer(W_O @ v, v) / (v @ v)
    return W_O
""",
    ),
    "Wishes that contradict each other are not refused, and directions that repeat are counted twice": wrong(
        "2c 4c",
        a2="""
def keep_with_floor(scores, keep, floor):
    layers, heads = scores.shape
    mask = (scores.argsort(1, descending=True).argsort(1) < floor).float()
    left = scores.masked_fill(mask.bool(), -math.inf).flatten()
    chosen = left.topk(max(keep - floor * layers, 0)).indices
    return mask.flatten().index_fill(0, chosen, 1.0).view(scores.shape)
""",
        a4="""
def stop_writing_all(W_O, V):
    return W_O - W_O @ V.T @ torch.linalg.inv(V @ V.T) @ V
""",
    ),
}

WRONG = {"ps1_mathematics": PS1, "ps2_roles": PS2, "ps3_importance": PS3, "ps4_pruning": PS4}
