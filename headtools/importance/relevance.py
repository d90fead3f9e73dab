"""Importance by relevance: which share of a model's output came through each head.

Layer-wise relevance propagation starts from a number the model computed, such as the logit of the token it chose, and
distributes it over what the number was computed from, layer by layer, down to the input. What arrives at a head's
output z is the head's relevance, R = sum of z * g over features and positions (Voita et al. 2019, arXiv:1905.09418,
appendix A.3). ``rules`` says how an operation distributes it; ``conserved`` is the fraction that reaches the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headtools.heads._checks import check_has_backward, check_not_offloaded, explain_nonfinite
from headtools.heads._devices import to_float64
from headtools.heads._hooks import edit_outputs
from headtools.heads._tokens import IGNORE_INDEX, is_encoder_decoder, model_inputs
from headtools.heads.intervals import linearised_ratio
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site, SiteSelection
from headtools.importance._inputs import collect_products, each_batch, evaluating, select_sites
from headtools.importance._lrp.operations import rules as follow_rules
from headtools.importance._lrp.rules import Rules, active, named
from headtools.importance.loss import can_predict, check_loss, labels_need_shift

Score = Callable[[Any, Mapping], Tensor]  # (outputs, batch) -> (B,) or (B, steps)


def relevance(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    score: Score | None = None,
    rules: str | Rules = "attnlrp",
    sites: SiteSelection = None,
    normalise: str | None = None,
    signed: bool = False,
) -> HeadScores:
    """Return how much of the model's output came through each head: the mean of abs(R) over all explained numbers.

    R is the sum of z times what arrives at it (Voita et al. 2019, arXiv:1905.09418, appendix A.3), in the unit of what
    is explained: ``score(outputs, batch)``, (B,) or (B, steps), or else each real step's highest logit. Each step is a
    backward pass. The score's own operations follow the rules, too; what has none (``log_softmax``), its tangent.

    - ``rules``: "attnlrp", "cp" (attention held constant), "epsilon", "alphabeta", "zplus", "voita" (their code),
      "ratio" (their paper, unstable), "gradient" (none: gradient times output) or your own ``Rules``.
    - ``normalise="layer"``: divided by the sum of abs(R) over the layer's heads; Voita et al. divide by that of R.
    - ``.notes``: the fractions of the numbers that arrived at the input (``conserved``) and in constants
      (``absorbed``); they sum to 1 under rules that hold attention constant, not under "attnlrp".

    Other projects report a patent application on methods of this family: look into that before commercial use.

    Raises ``ValueError`` for unknown rules, a score of another shape or that depends on no head, rows that are not
    examples, NaN, offloaded weights; ``KeyError`` for unknown sites, ``RuntimeError`` for a compiled model.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> _ = torch.manual_seed(0)  # drawn otherwise, the tiny model may let nothing through a layer
    >>> shares = relevance(BertForMaskedLM(tiny), {"input_ids": torch.tensor([[1, 2, 3]])}, normalise="layer")
    >>> len(shares), round(float(shares.values["encoder", 0].sum()), 4), sorted(shares.notes)
    (8, 1.0, ['absorbed', 'conserved', 'interval'])
    """
    if normalise not in (None, "layer"):
        raise ValueError(f'normalise is None or "layer", got {normalise!r}')
    check_not_offloaded(model, "relevance")
    check_has_backward(model, "relevance()")
    check_loss(score, "score")
    rule_set, measured = named(rules), select_sites(model, sites, batches)
    passes, dependent = [], set()
    for batch in each_batch(model, batches):
        passes.append(_propagate(model, batch, score, rule_set, measured))
        dependent.update(*passes[-1].steps)
    left_out = [site.label for site in measured if site.key not in dependent]
    if left_out:
        raise ValueError(
            f"the score does not depend on {', '.join(left_out)} in any batch (check the score and the batches): leave "
            "them out with sites=[...]"
        )
    total = to_float64(torch.cat([one.explained[one.counted] for one in passes])).abs().sum().item()
    if not total:
        raise ValueError("all numbers to explain are 0, so there is no relevance to distribute: choose another score")
    conserved, absorbed = (torch.stack([one.arrived for one in passes]).sum(0) / total).tolist()

    # The score is a mean over explained numbers, of which examples have different counts: a ratio of sums.
    counts = torch.cat([one.counted.sum(1) for one in passes]).double()
    rows = {}
    for site in measured:
        sums = torch.cat([_sum_of_steps(one, site, normalise, signed) for one in passes])  # (n, H)
        rows[site.key] = linearised_ratio(sums, counts)
    name = f"{'signed ' if signed else ''}relevance, {rules if isinstance(rules, str) else 'own rules'}"
    return HeadScores.from_rows(
        rows,
        name + (", share of its layer" if normalise else ""),
        minimum=None if signed else 0.0,
        maximum=1.0 if normalise else None,
        notes={"conserved": conserved, "absorbed": absorbed},
    )


class _Pass(NamedTuple):
    """What one batch gave; ``steps`` has {key: R (B, H)} for each step, ``arrived`` R of (inputs, constants)."""

    explained: Tensor  # (B, steps)
    counted: Tensor  # (B, steps) bool
    steps: list[dict[tuple, Tensor]]
    arrived: Tensor  # (2,)


def _propagate(model: nn.Module, batch: dict, score: Score | None, rule_set: Rules, measured: Sequence[Site]) -> _Pass:
    """Run one batch forward under the rules, then backward once for every step to explain.

    Rules are linear in the relevance that they pass on, so one pass back serves all examples: the R of an example comes
    from its own number only. Each starts from the sign of the numbers, so that what arrives can be summed over examples
    without cancelling.
    """
    products: dict[tuple, Tensor] = {}  # <z, g> of each site, filled by the pass back

    def keep(site: Site, z: Tensor) -> Tensor:
        if z.requires_grad or not torch.is_grad_enabled():  # the second is refused
            collect_products(site, z, products)
        return z

    inputs = dict(model_inputs(model, batch))
    for name, value in inputs.items():  # real numbers, such as an image, are leaves in which relevance ends
        if isinstance(value, Tensor) and value.is_floating_point() and "mask" not in name:
            inputs[name] = value.detach().clone().requires_grad_()
    edits = {site: partial(keep, site) for site in measured}
    with evaluating(model), torch.inference_mode(False), torch.enable_grad(), edit_outputs(model, "relevance()", edits):
        with follow_rules(rule_set, model) as propagation:
            outputs = model(**inputs)
            propagation.in_score = True
            values, counted = find_targets(model, outputs, batch, score)
        leaves = [*propagation.inputs, *filter(active, inputs.values())]
        ends = leaves + propagation.constants
        sign = torch.where(values.detach() < 0, -1.0, 1.0).to(values.dtype)
        steps, arrived = [], []
        for step in range(values.shape[1]):
            products.clear()
            start = (sign * counted)[:, step]
            gradients = _backward(values[:, step], ends, start, retain_graph=step + 1 < values.shape[1])
            totals = [_total(tensor, g) for tensor, g in zip(ends, gradients, strict=True)]
            arrived.append(torch.tensor([sum(totals[: len(leaves)]), sum(totals[len(leaves) :])], dtype=torch.double))
            steps.append({site.key: products[site.key] for site in measured if site.key in products})
            _check(steps[-1], arrived[-1], measured, len(values))
            steps[-1] = {key: (product * sign[:, step, None]).cpu() for key, product in steps[-1].items()}
    # Detached, or the graph of this batch would stay in memory until the last one has run.
    return _Pass(values.detach().cpu(), counted.cpu(), steps, torch.stack(arrived).sum(0))


def _backward(values: Tensor, ends: Sequence[Tensor], start: Tensor, retain_graph: bool) -> Sequence[Tensor | None]:
    try:
        return torch.autograd.grad(values, ends, start, retain_graph=retain_graph, allow_unused=True)
    except RuntimeError as error:  # CheckpointError is one
        if "torch.utils.checkpoint" not in str(error):
            raise
        raise ValueError(
            "the model uses torch.utils.checkpoint, which runs its layers once more in the backward pass, where no "
            "rule of relevance reaches them: call the layers without it (models of transformers do so by themselves)"
        ) from error


def _check(parts: Mapping[tuple, Tensor], arrived: Tensor, measured: Sequence[Site], n_examples: int) -> None:
    for site in measured:
        part = parts.get(site.key)
        if part is not None and len(part) != n_examples:
            raise ValueError(
                f"{site.label} ran with {len(part)} rows for {n_examples} scores, so its rows are not the examples: "
                "return one score per example, or leave the site out with sites=[...]"
            )
        if part is not None and not part.isfinite().all():
            raise ValueError(f"the relevance at {site.label} is NaN or infinite; try rules='cp' or a model in float32")
    if not arrived.isfinite().all():
        raise ValueError("the relevance of the input is NaN or infinite; try rules='cp' or a model in float32")


def _sum_of_steps(one: _Pass, site: Site, normalise: str | None, signed: bool) -> Tensor:
    """Return the sum of a site's R, its size or share, over each example's steps that count: (B, H) in float64."""
    sums = torch.zeros(len(one.counted), site.heads, dtype=torch.double)
    for parts, counts in zip(one.steps, one.counted.T, strict=True):
        part = parts.get(site.key, torch.zeros_like(sums)).double()  # a step may not depend on this part of the model
        if normalise:
            of_layer = part.abs().sum(1, keepdim=True)
            if not (of_layer > 0)[counts].all():
                raise ValueError(
                    f"nothing of some explained number went through {site.label}, so its heads have no shares: leave "
                    "the layer out with sites=[...]"
                )
            part = part / of_layer
        sums += torch.where(counts[:, None], part if signed else part.abs(), 0.0)
    return sums


def _total(tensor: Tensor, g: Tensor | None) -> float:
    """Return the sum of a tensor's relevance; entries of minus infinity, as in masks, whose g is 0, count as 0."""
    if g is None:
        return 0.0
    tensor, g = to_float64(tensor.detach()).flatten(), to_float64(g).flatten()
    total = torch.dot(tensor, g).item()
    if total != total:  # NaN: -inf * 0
        total = (tensor * g).masked_fill(tensor.isinf() & (g == 0), 0.0).sum().item()
    return total


# --- the numbers from which relevance starts --------------------------------------------------------------------------


def find_targets(model: nn.Module, outputs: Any, batch: Mapping, score: Score | None) -> tuple[Tensor, Tensor]:
    """Return the numbers to explain, (B, steps): ``score(outputs, batch)`` or the highest logits; and which count.

    Steps of a text with labels are the tokens with a label (those before them, in a causal model); of a text without,
    the tokens that are not padding.

    Raises ``ValueError`` for numbers of another shape, NaN, or an example with no step.

    >>> from types import SimpleNamespace as Outputs
    >>> logits = torch.tensor([[[0.0, 2.0], [3.0, 1.0]]], requires_grad=True)
    >>> values, counted = find_targets(nn.Identity(), Outputs(logits=logits),
    ...                                {"attention_mask": torch.tensor([[1, 0]])}, None)
    >>> values.tolist(), counted.tolist()
    ([[2.0, 3.0]], [[True, False]])
    """
    values = _highest_logits(model, outputs) if score is None else score(outputs, batch)
    if not isinstance(values, Tensor) or values.dim() not in (1, 2) or not values.is_floating_point():
        got = f"a tensor of shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"the score must be one number per example, shape (B,), or one per example and step, (B, steps); got {got}"
        )
    if values.dim() == 1:
        values = values[:, None]
        counted = torch.ones_like(values, dtype=torch.bool)
    else:
        counted = _counted(model, batch, values)
    broken = (~values.detach().isfinite() & counted).any(1)
    if broken.any():
        rows = broken.nonzero().flatten().tolist()
        raise ValueError(f"the score of examples {rows} is NaN or infinite; {explain_nonfinite(model)}")
    if not counted.any(1).all():
        rows = (~counted.any(1)).nonzero().flatten().tolist()
        raise ValueError(f"examples {rows} have no step to explain: drop them, or pass a score of shape (B,)")
    if not values.requires_grad:
        raise ValueError(
            "the score does not depend on the model: compute it from the outputs, with gradients on. Where the model "
            'itself ends in a softmax, return its logits: all rules but "attnlrp", "ratio" and "gradient" take a '
            "softmax inside a model for attention, and hold it constant"
        )
    return values, counted


def _highest_logits(model: nn.Module, outputs: Any) -> Tensor:
    logits = getattr(outputs, "logits", outputs)
    if not isinstance(logits, Tensor) or logits.dim() not in (2, 3):
        got = f"logits of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else "no logits"
        raise ValueError(
            f"{type(model).__name__}: got {got}, so there is no highest logit: pass score=lambda outputs, batch: "
            "..., one number per example, (B,)"
        )
    return logits.gather(-1, logits.argmax(-1, keepdim=True))[..., 0]


def _counted(model: nn.Module, batch: Mapping, values: Tensor) -> Tensor:
    labels = batch.get("labels")
    if isinstance(labels, Tensor) and labels.shape == values.shape:
        counted = labels != IGNORE_INDEX
        if labels_need_shift(model, batch):
            counted = torch.cat([counted[:, 1:], counted.new_zeros(len(counted), 1)], 1)
            # left padding comes before a labelled token
            counted = counted & can_predict(batch.get("attention_mask"), tuple(counted.shape)).to(counted.device)
        return counted.to(values.device)
    mask = batch.get("decoder_attention_mask" if is_encoder_decoder(model) else "attention_mask")
    if isinstance(mask, Tensor) and mask.shape == values.shape:
        return mask.bool().to(values.device)
    return torch.ones_like(values, dtype=torch.bool)
