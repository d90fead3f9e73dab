"""Typical wrong submissions of the problem sets: what stands there instead of a part of the solution, and what is lost.

What is not named here is as in the solution. ``assignments/instructor/marking.md`` has the same marks; a test compares.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrong:
    """One submission: {id of an answer's cell: texts and what stands in their place}, {id of a test cell: lost points}.

    None stands for all points of the cell.
    """

    changes: dict[str, tuple[str, ...]]
    lost: dict[str, float | None]

    def points(self, worth: dict[str, float]) -> dict[str, float]:
        """Return the points of each cell, from those it is worth."""
        all_or_some = {cell: worth[cell] if lost is None else lost for cell, lost in self.lost.items()}
        return {cell: points - all_or_some.get(cell, 0) for cell, points in worth.items()}


def changed(source: str, changes: tuple[str, ...]) -> str:
    """Return a solution with each first text, which must be there once, replaced by the second."""
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert source.count(old) == 1, (old, source)
        source = source.replace(old, new)
    return source


def wrong(lost: str, **changes: tuple[str, ...]) -> Wrong:
    """Name test cells as ``"1b:1 2b 2c"``, where 1b loses one point and the others all of theirs.

    Answers are ``a1=(old, new, ...)``, ``a4_longest=...``, without the set's name.
    """
    cells = [cell.partition(":") for cell in lost.split()]
    return Wrong(
        {name[1:].replace("_", "-"): pairs for name, pairs in changes.items()},
        {cell: float(points) if points else None for cell, _, points in cells},
    )


PS1 = {
    "Heads take turns with the groups, and the key's bias stands where the query's belongs": wrong(
        "1b:1 2b:1 2c", a1=("repeat_interleave(share, 1)", "repeat(1, share, 1, 1)"), a2=("W_k @ b_q", "W_q @ b_k")
    ),
    "Padding is forgotten, the whole matrix is built, and the longest bias is taken for the longest constant": wrong(
        "1c 3c 4c",
        a1=("scores.masked_fill(~real[:, None, None], -torch.inf)", "scores"),
        a3=("torch.linalg.svdvals(left @ right.mT)", "torch.linalg.svdvals(W_V @ W_O)[: W_V.shape[1]]"),
        a4_longest=(
            'constants(ht.sites(model)["encoder", LAYER].module, 8)',
            'ht.sites(model)["encoder", LAYER].module.v_proj.bias.detach().view(8, 16)',
        ),
    ),
    "Scores are not divided, singular values are squared, and the output bias is shared out among the heads": wrong(
        "1b:1 3a 3b 3c 4a 4b 4c",
        a1=(" / q.shape[-1] ** 0.5", ""),
        a3=(
            "torch.linalg.svdvals(left @ right.mT)",
            "torch.linalg.eigvals((W_V.T @ W_V) @ (W_O @ W_O.T)).real.sort(descending=True).values",
        ),
        a4=("bias, blocks)", "bias, blocks) + module.out_proj.bias.detach() / heads"),
    ),
}

PS2 = {
    "Offsets are fitted on the links they are scored on, and the root counts as a word": wrong(
        "1b:1 1c 3a 3b 3c",
        a1=("link in fitted if", "link in scored if", "one in fitted}", "one in scored}"),
        a3=(" if head and heads[head - 1]", ""),
    ),
    "Tags never seen are forgotten, and the sentences' shares are averaged": wrong(
        "1c 2b:1 2c",
        a1=(".get(tag, every)", "[tag]"),
        a2=("hits[drawn].sum(1) / queries[drawn].sum(1)", "(hits / queries)[drawn].mean(1)"),
    ),
    "Queries are drawn instead of sentences, and only the latest earlier occurrence counts": wrong(
        "2b 4b:1 4c",
        a2=(
            "hits[drawn].sum(1) / queries[drawn].sum(1)",
            "torch.distributions.Binomial(int(queries.sum()), hits.sum() / queries.sum()).sample((draws,)) "
            "/ queries.sum()",
            "drawn =",
            "torch.manual_seed(seed)\n    drawn =",
        ),
        a4=("target[query, earlier + 1] = 1", "target[query] = 0\n                target[query, earlier + 1] = 1"),
    ),
}

PS3 = {
    "The slope at gate 1 is all, and each head's share is what it costs alone": wrong(
        "1b 1c 3a 3b 3c",
        a1=("(step + 0.5) / steps", "1"),
        a3=(
            "in losses.items():",
            "in [(frozenset(), losses[frozenset()])]:",
            "orders = factorial(len(off)) *",
            "orders = n *",
        ),
    ),
    "Slopes are averaged before the absolute value, and epsilon is added whatever the sign": wrong(
        "2a 2b:1 2c 4c", a2=("abs().mean(0)", "mean(0).abs()"), a4=("torch.where(z < 0, -1.0, 1.0)", "1")
    ),
    "Sentences without a wanted word count as zeros, and all sets have the same weight": wrong(
        "2c 3b:1 3c",
        a2=("[some].sum(1) / wanted[some].sum(1)", ".sum(1) / wanted.sum(1).clamp(min=1)", "slope[some]", "slope"),
        a3=("factorial(len(off)) * factorial(n - len(off) - 1)", "factorial(n) / 2 ** (n - 1)"),
    ),
}

PS4 = {
    "Every stretch is taken for the usual one, impossible masses pass, and the multiplier may be negative": wrong(
        "1b:0.5 1c 2c:1",
        a1=(
            "math.log(-gamma / zeta), math.log((1 - gamma) / (zeta - 1))",
            "-math.log(11), math.log(11)",
            "if temperature <= 0",
            "if False",
        ),
        a2_loop=(
            "max(0.0, multiplier + multiplier_rate * excess.item())",
            "multiplier + multiplier_rate * excess.item()",
        ),
    ),
    "Open gates are those above 0 instead of an expectation, and only the sentences are redrawn": wrong(
        "2a 2b:1 2c 2d 3b:1",
        a2_gate=("torch.sigmoid(self.log_alpha + 0.33 * math.log(11))", "(self.log_alpha > 0).float()"),
        a3_advantage=("random_curves[against][:, :, some]", "random_curves[:, :, some]"),
    ),
    "The head that goes first is kept, the sentences are not paired, and the means go with the heads": wrong(
        "3a 3b 3c 4b:0.5 4c",
        a3_curve=("[: len(ranking) - kept]", "[kept:]"),
        a3_advantage=(
            "random_curves[against][:, :, some]",
            "random_curves[against][:, :, torch.randint(sentences, (sentences,), generator=generator)]",
        ),
        a4=(" + taken_over", ""),
    ),
}

MEASURED = (
    "if not RESULTS.exists():\n    RESULTS.write_text(json.dumps(measure()))",
    "found = measure()\n{}\nRESULTS.write_text(json.dumps(found))",
)


def results(*lines: str) -> tuple[str, str]:
    """A project whose results are changed before they are written."""
    return MEASURED[0], MEASURED[1].format("\n".join(lines))


PS5 = {
    "No untrained model, and the interval is one of the head's own score": wrong(
        "2a:2 2b:2",
        aresults=results(
            'del found["scores"]["untrained"]',
            'found["difference"][1:] = [end.item() for end in ht.bootstrap(torch.tensor(found["scores"]["head"]))]',
        ),
    ),
    "The head is chosen on the sentences on which it is measured, and it has a single control": wrong(
        "1a 3a 3b:2",
        aresults=results(
            'found["choosing"] = found["measuring"]', 'found["losses"]["controls"] = found["losses"]["controls"][:1]'
        ),
    ),
    "Words are taken for independent, and the cost of the head is given for its rise over the controls": wrong(
        "2b:2 3b:2",
        aresults=results(
            'mean, *ends = found["difference"]',
            'found["difference"] = [mean, *(mean + (end - mean) / 3 for end in ends)]',
            'found["rise_over_controls"] = found["rise"]',
        ),
    ),
}

WRONG = {"ps1_mathematics": PS1, "ps2_roles": PS2, "ps3_importance": PS3, "ps4_pruning": PS4, "ps5_project": PS5}
