"""Typical wrong submissions of the problem sets: what is written instead of the solution, and what they lose.

What is not named here is as in the solution. ``assignments/instructor/marking.md`` has the same marks; a test compares.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrong:
    """One submission: {id of an answer's cell: its code}, and {id of a test cell: the points it loses there, or None}.

    None stands for all points of the cell.
    """

    answers: dict[str, str]
    lost: dict[str, float | None]

    def points(self, worth: dict[str, float]) -> dict[str, float]:
        """Return the points of each cell, from those it is worth."""
        all_or_some = {cell: worth[cell] if lost is None else lost for cell, lost in self.lost.items()}
        return {cell: points - all_or_some.get(cell, 0) for cell, points in worth.items()}


def wrong(lost: str, **answers: str) -> Wrong:
    """Name test cells as ``"1b:1 2b 2c"``, where 1b loses one point and the others all of theirs.

    Answers are ``a1=...``, ``a4_longest=...``, without the set's name.
    """
    cells = [cell.partition(":") for cell in lost.split()]
    return Wrong(
        {name[1:].replace("_", "-"): code for name, code in answers.items()},
        {cell: float(points) if points else None for cell, _, points in cells},
    )


PS1 = {
    "Heads take turns with the groups, and the key's bias stands where the query's belongs": wrong(
        "1b:1 2b:1 2c",
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
    "Padding is forgotten, the whole matrix is built, and the longest bias is taken for the longest constant": wrong(
        "1c 3c 4c",
        a1="""
def grouped_attention(q, k, v, lengths):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
""",
        a3="""
def singular_values(W_V, W_O):
    return torch.linalg.svdvals(W_V @ W_O)[: W_V.shape[1]]
""",
        a4_longest="""
lengths = ht.sites(model)["encoder", LAYER].module.v_proj.bias.detach().view(8, 16).norm(dim=1)
longest = (lengths.argmax().item(), lengths.max().item())
""",
    ),
    "Scores are not divided, singular values are squared, and the output bias is shared out among the heads": wrong(
        "1b:1 3a 3b 3c 4a 4b 4c",
        a1="""
def grouped_attention(q, k, v, lengths):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    real = torch.arange(k.shape[2]) < lengths[:, None]
    return (q @ k.mT).masked_fill(~real[:, None, None], -torch.inf).softmax(-1) @ v
""",
        a3="""
def singular_values(W_V, W_O):
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
    "Offsets are fitted on the links they are scored on, and the root counts as a word": wrong(
        "1b:1 1c 3a 3b 3c",
        a1="""
def tag_baseline(fitted, scored):
    def best(links):
        offsets = sorted(key - query for _, query, key in links)
        return max(offsets, key=offsets.count)

    of_tag = {tag: best([link for link in scored if link[0] == tag]) for tag, _, _ in scored}
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
        "1c 2b:1 2c",
        a1="""
def tag_baseline(fitted, scored):
    def best(links):
        offsets = sorted(key - query for _, query, key in links)
        return max(offsets, key=offsets.count)

    of_tag = {tag: best([link for link in fitted if link[0] == tag]) for tag, _, _ in fitted}
    return sum(key - query == of_tag[tag] for tag, query, key in scored) / len(scored)
""",
        a2="""
def share_interval(hits, queries, draws=2000, seed=0):
    shares = hits / queries
    drawn = torch.randint(len(shares), (draws, len(shares)), generator=torch.Generator().manual_seed(seed))
    means = shares[drawn].mean(1).double()
    return tuple(means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist())
""",
    ),
    "Queries are drawn instead of sentences, and only the latest earlier occurrence counts": wrong(
        "2b 4b:1 4c",
        a2="""
def share_interval(hits, queries, draws=2000, seed=0):
    n, share = int(queries.sum()), float(hits.sum() / queries.sum())
    torch.manual_seed(seed)
    shares = torch.distributions.Binomial(n, torch.tensor(share)).sample((draws,)) / n
    return tuple(shares.quantile(torch.tensor([0.025, 0.975])).tolist())
""",
        a4="""
def repeat_scores(maps, symbols):
    scores, chance, last = [], [], {}
    for t, symbol in enumerate(symbols):
        if symbol in last:
            scores.append(maps[:, t, last[symbol] + 1])
            chance.append(1 / (t + 1))
        last[symbol] = t
    return torch.stack(scores).mean(0), sum(chance) / len(chance)
""",
    ),
}

PS3 = {
    "The slope at gate 1 is all, and each head's share is what it costs alone": wrong(
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
    "Slopes are averaged before the absolute value, and epsilon is added whatever the sign": wrong(
        "2a 2b:1 2c 4c",
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
    "Sentences without a wanted word count as zeros, and all sets have the same weight": wrong(
        "2c 3b:1 3c",
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
    "Every stretch is taken for the usual one, impossible masses pass, and the multiplier may be negative": wrong(
        "1b:0.5 1c 2c:1",
        a1="""
def gate_with(p_zero, p_one, gamma=-0.1, zeta=1.1):
    logits = [math.log(p / (1 - p)) for p in (p_zero, p_one)]
    temperature = -sum(logits) / 2 / math.log(11)
    return -temperature * math.log(11) - logits[0], temperature
""",
        a2_loop="""
def train_gates(gate, loss_of, steps, budget, rate=0.1, multiplier_rate=1e-4):
    optimizer = torch.optim.Adam([gate.log_alpha], lr=rate)
    multiplier, multipliers = 0.0, []
    for step in range(steps):
        excess = gate.expected_open() - budget
        loss = loss_of(step, gate(uniform(step, len(gate.log_alpha)))) + multiplier * excess
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        multiplier = multiplier + multiplier_rate * excess.item()
        multipliers.append(multiplier)
    return gate.log_alpha.detach(), multipliers
""",
    ),
    "Open gates are those above 0 instead of an expectation, and only the sentences are redrawn": wrong(
        "2a 2b:1 2c 2d 3b:1",
        a2_gate="""
class Gate(nn.Module):
    def __init__(self, n, start=1.5):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((n,), start))

    def forward(self, u):
        s = torch.sigmoid((torch.logit(u) + self.log_alpha) / 0.33)
        return (1.2 * s - 0.1).clamp(0, 1)

    def expected_open(self):
        return (self.log_alpha > 0).float().sum()
""",
        a3_advantage="""
def advantage(curve, random_curves, draws=1000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    difference = curve - random_curves.mean(0)
    some = torch.randint(curve.shape[1], (draws, curve.shape[1]), generator=generator)
    low, high = difference[:, some].mean(2).quantile(torch.tensor([0.025, 0.975], dtype=curve.dtype), dim=1)
    return difference.mean(1), low, high
""",
    ),
    "The head that goes first is kept, the sentences are not paired, and the means go with the heads": wrong(
        "3a 3b 3c 4b:0.5 4c",
        a3_curve="""
def pruning_curve(right, ranking, keep):
    return torch.stack([right(ranking[kept:]) for kept in keep])
""",
        a3_advantage="""
def advantage(curve, random_curves, draws=1000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rankings, _, sentences = random_curves.shape
    found = []
    for _ in range(draws):
        some = torch.randint(sentences, (sentences,), generator=generator)
        others = torch.randint(sentences, (sentences,), generator=generator)
        against = torch.randint(rankings, (rankings,), generator=generator)
        found.append(curve[:, some].mean(1) - random_curves[against][:, :, others].mean((0, 2)))
    low, high = torch.stack(found).quantile(torch.tensor([0.025, 0.975], dtype=curve.dtype), dim=0)
    return (curve - random_curves.mean(0)).mean(1), low, high
""",
        a4="""
def cut_with_means(weight, bias, means, gone):
    left = [head for head in range(len(means)) if head not in gone]
    return weight.unflatten(1, means.shape)[:, left].flatten(1), bias
""",
    ),
}

PS5 = {
    "No untrained model, and the interval is one of the head's own score": wrong(
        "2a:2 2b:2",
        aresults="""
found = measure()
del found["scores"]["untrained"]
low, high = ht.bootstrap(torch.tensor(found["scores"]["head"]))
found["difference"][1:] = [low.item(), high.item()]
RESULTS.write_text(json.dumps(found))
""",
    ),
    "The head is chosen on the sentences on which it is measured, and it has a single control": wrong(
        "1a 3a 3b:2",
        aresults="""
found = measure()
found["choosing"] = found["measuring"]
found["losses"]["controls"] = found["losses"]["controls"][:1]
RESULTS.write_text(json.dumps(found))
""",
    ),
    "Words are taken for independent, and the cost of the head is given for its rise over the controls": wrong(
        "2b:2 3b:2",
        aresults="""
found = measure()
mean, low, high = found["difference"]
found["difference"] = [mean, mean + (low - mean) / 3, mean + (high - mean) / 3]
found["rise_over_controls"] = found["rise"]
RESULTS.write_text(json.dumps(found))
""",
    ),
}

WRONG = {"ps1_mathematics": PS1, "ps2_roles": PS2, "ps3_importance": PS3, "ps4_pruning": PS4, "ps5_project": PS5}
