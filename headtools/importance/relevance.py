"""Importance by relevance: which share of a model's output came through each head.

Layer-wise relevance propagation starts from a number the model computed, such as the logit of the token it chose, and
distributes it over what the number was computed from, layer by layer, down to the input. What arrives at a head's
output z is the head's relevance, R = sum of z * g over features and positions (Voita et al. 2019, arXiv:1905.09418,
appendix A.3). ``rules`` says how an operation distributes it; ``conserved`` is the fraction that reaches the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.run import function_name, run
from headtools._engine.store import Part, fingerprint
from headtools.heads._checks import check_not_offloaded
from headtools.heads._devices import to_float64
from headtools.heads.intervals import linearised_ratio
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.importance._inputs import check_all_ran, each_batch, select_sites
from headtools.importance._lrp.passes import relevance_of_heads
from headtools.importance._lrp.rule_set import Rules, named
from headtools.importance._lrp.targets import Score


@dataclass(frozen=True, eq=False, repr=False)
class Relevance:
    """The relevance of every head for every explained number, n in all: one for each step of each example.

    ``parts``: {(kind, layer): (n, H)}, signed, in the unit of what is explained; a layer's heads sum to what went
    through that layer. ``explained`` (n,): the numbers themselves. ``example`` (n,): the index of their example, in the
    order of the batches. ``conserved`` is the fraction of the explained numbers that arrived at the input, ``absorbed``
    that of biases and other constants; where the two do not sum to 1, rules lost relevance or created some.
    """

    parts: Mapping[tuple, Tensor]
    explained: Tensor
    example: Tensor
    conserved: float
    absorbed: float
    name: str

    def __repr__(self) -> str:
        heads = sum(part.shape[1] for part in self.parts.values())
        return (
            f"<Relevance {self.name!r}: {len(self.explained)} numbers, {heads} heads, conserved {self.conserved:.3f}, "
            f"absorbed {self.absorbed:.3f}>"
        )

    def rows(self, normalise: str | None = None, signed: bool = False) -> dict[tuple, Tensor]:
        """Return one row per example, {(kind, layer): (examples, H)}, whose mean over examples is the head's score.

        A bootstrap of the rows gives a head's interval, or that of a rank correlation. Options as in ``relevance``.

        Raises ``ValueError`` for another ``normalise`` and for ``normalise="layer"`` where no relevance of a step goes
        through a layer.
        """
        if normalise not in (None, "layer"):
            raise ValueError(f'normalise is None or "layer", got {normalise!r}')
        counts = torch.bincount(self.example).double()
        rows = {}
        for key, part in self.parts.items():
            part = part.double()
            if normalise:
                layer_sum = part.abs().sum(1, keepdim=True)
                if not (layer_sum > 0).all():
                    step = int((layer_sum == 0).nonzero()[0, 0])
                    raise ValueError(
                        f"nothing of explained number {step} went through {' '.join(map(str, key))}, so its heads have "
                        "no shares: leave the layer out with sites=[...]"
                    )
                part = part / layer_sum
            part = part if signed else part.abs()
            # The score is a mean over explained numbers, of which examples have different counts: a ratio of sums.
            sums = part.new_zeros(len(counts), part.shape[1]).index_add(0, self.example, part)  # (examples, H)
            rows[key] = linearised_ratio(sums, counts)
        return rows

    def scores(self, normalise: str | None = None, signed: bool = False) -> HeadScores:
        """Return the mean over all explained numbers as scores, with 95 % intervals from a bootstrap of examples."""
        name = f"{'signed ' if signed else ''}relevance, {self.name}" + (", share of its layer" if normalise else "")
        minimum, maximum = None if signed else 0.0, 1.0 if normalise else None
        scores = HeadScores.from_rows(self.rows(normalise, signed), name, minimum, maximum)
        notes = {"conserved": self.conserved, "absorbed": self.absorbed, **scores.notes}
        return replace(scores, notes=notes)


def relevance(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    score: Score | None = None,
    rules: str | Rules = "attnlrp",
    sites: Iterable[str | tuple] | str | None = None,
    normalise: str | None = None,
    signed: bool = False,
    checkpoint: str | Path | None = None,
) -> HeadScores:
    """Return how much of the model's output came through each head: the mean of abs(R) over all explained numbers.

    A head's relevance R for one number is the sum over its features and all positions of z, the input of the output
    projection (Voita et al. 2019, arXiv:1905.09418, appendix A.3), in the unit of what is explained.
    ``normalise="layer"`` divides it by the sum of abs(R) over the layer's heads, for each number separately: shares,
    1/H if uniform. Voita et al. divide by the sum of R, which is the same where all R have one sign, as under rules
    "zplus" and "voita" in most layers. ``signed`` keeps the sign.

    ``batches``: dicts of the model's arguments. ``score(outputs, batch)`` returns what to explain: one number per
    example (B,), or one per example and step (B, steps). The score's operations follow the same rules, so that a
    vector's norm in ``F.normalize``, ``F.cosine_similarity`` or ``x / x.norm()`` is held constant. What has no rule,
    such as ``log_softmax``, follows its gradient, and the remainder of its tangent, for a log probability minus the
    entropy, counts as a constant. Without a score each step's highest logit is explained, as in the paper: a
    translation model's at every token (the batch's labels are its input), a language model's at every token, a
    classifier's once. Each step takes a backward pass. Steps that are padding do not count.

    ``rules``: "attnlrp", "cp" (attention held constant), "epsilon", "alphabeta", "zplus", "voita" (that of
    Voita et al.'s code), "ratio" (the one their paper prints, unstable), "gradient" (none: gradient times output) or
    your own ``Rules``; see ``NAMED`` in ``headtools.importance._lrp.rule_set``. ``sites`` limits what is returned.
    ``low`` and ``high`` are the ends of a 95 % bootstrap interval over examples. ``.notes`` of the scores has the
    fraction of the explained numbers that arrived at the input (``conserved``) and in biases and other constants
    (``absorbed``): the two sum to 1 under rules that hold attention constant, and not under "attnlrp". ``checkpoint``
    names a folder in which the relevance of every batch is stored; the same call resumes from there. Inside
    ``sharded()`` several processes share the batches.

    Other projects report a patent application on methods of this family: look into that before commercial use. The
    model is run without dropout and is left bit for bit as it was.

    Raises ``ValueError`` for unknown rules, a score of another shape or that depends on no head, rows that are not
    examples, NaN, a model whose weights are offloaded, a ``checkpoint`` of another run, and as ``label_loss`` does;
    ``KeyError`` for unknown sites, ``RuntimeError`` for a compiled model.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> _ = torch.manual_seed(0)  # drawn otherwise, the tiny model may let nothing through a layer
    >>> shares = relevance(BertForMaskedLM(tiny), {"input_ids": torch.tensor([[1, 2, 3]])}, normalise="layer")
    >>> len(shares), round(float(shares.values["encoder", 0].sum()), 4), sorted(shares.notes)
    (8, 1.0, ['absorbed', 'conserved', 'interval'])
    """
    if normalise not in (None, "layer"):
        raise ValueError(f'normalise is None or "layer", got {normalise!r}')
    return propagate(model, batches, score, rules, sites, checkpoint).scores(normalise, signed)


def propagate(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    score: Score | None = None,
    rules: str | Rules = "attnlrp",
    sites: Iterable[str | tuple] | str | None = None,
    checkpoint: str | Path | None = None,
) -> Relevance:
    """Return each head's relevance for every explained number, with its sign; arguments and errors as ``relevance``.

    ``relevance`` is its mean; here are the single steps, for several means of one run or intervals of other statistics.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> _ = torch.manual_seed(0)
    >>> result = propagate(BertForMaskedLM(tiny), {"input_ids": torch.tensor([[1, 2, 3]])}, rules="cp")
    >>> result.parts["encoder", 1].shape, result.explained.shape
    (torch.Size([3, 4]), torch.Size([3]))
    >>> round(result.conserved + result.absorbed, 3)
    1.0
    """
    check_not_offloaded(model, "relevance")
    named(rules)  # an unknown name is refused here, before a checkpoint is made
    measure = _Relevance(model, select_sites(model, sites), score, rules)
    return run(measure, model, each_batch(model, batches), checkpoint=checkpoint)


@dataclass
class _Relevance:
    """R of every head for every explained number, and the relevance of inputs and constants."""

    model: nn.Module
    sites: Sequence[Site]
    score: Score | None
    rules: str | Rules

    @property
    def settings(self) -> dict[str, Any]:
        """All that determines the relevance."""
        rules = self.rules if isinstance(self.rules, str) else fingerprint(self.rules)
        return {"rules": rules, "sites": [site.label for site in self.sites], "score": function_name(self.score)}

    def per_batch(self, batch: dict) -> Part:
        """Return one batch's explained numbers, step after step, with their examples and each site's relevance."""
        targets, steps = relevance_of_heads(self.model, batch, self.score, self.rules, self.sites)
        examples = [targets.counted[:, step].nonzero()[:, 0].cpu() for step in range(len(steps))]  # of each step
        part = {
            "size": torch.tensor(len(targets.values)),
            "example": torch.cat(examples),
            "explained": torch.cat([targets.values[:, step].cpu()[rows] for step, rows in enumerate(examples)]),
            "arrived": torch.stack([arrived for _, arrived in steps]).sum(0),
            "ran": torch.tensor([any(site.key in products for products, _ in steps) for site in self.sites]),
        }
        for index, site in enumerate(self.sites):
            none = torch.zeros(len(targets.values), site.heads)  # a step may not depend on this part of the model
            by_step = [products.get(site.key, none)[rows] for (products, _), rows in zip(steps, examples, strict=True)]
            part[f"part|{index}"] = torch.cat(by_step)
        return part

    def finish(self, parts: Iterable[Part]) -> Relevance:
        """Return the explained numbers of all batches, sorted by example."""
        parts = list(parts)
        check_all_ran(
            parts, self.sites, "the score does not depend on {} in any batch (check the score and the batches)"
        )
        sizes = torch.stack([part["size"] for part in parts])
        first_examples = sizes.cumsum(0) - sizes
        example = torch.cat([first + part["example"] for first, part in zip(first_examples, parts, strict=True)])
        values, order = torch.cat([part["explained"] for part in parts]), torch.argsort(example, stable=True)
        total = to_float64(values).abs().sum().item()
        if not total:
            raise ValueError(
                "all numbers to explain are 0, so there is no relevance to distribute: choose another score"
            )
        conserved, absorbed = (torch.stack([part["arrived"] for part in parts]).sum(0) / total).tolist()
        by_site = {
            site.key: torch.cat([part[f"part|{index}"] for part in parts])[order]
            for index, site in enumerate(self.sites)
        }
        name = self.rules if isinstance(self.rules, str) else "own rules"
        return Relevance(by_site, values[order], example[order], conserved, absorbed, name)
