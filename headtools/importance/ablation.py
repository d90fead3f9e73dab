"""Importance by ablation: how much the loss of an example rises without a head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor, nn

from headtools._renamed import old_arguments
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.importance._inputs import select_sites
from headtools.importance._intervals import with_intervals
from headtools.importance._loss_increase import Batches, How, rises_without
from headtools.importance.loss import Loss


@old_arguments(by="replacement", over="per", run="checkpoint", quiet="progress")
def ablation(
    model: nn.Module,
    batches: Batches,
    loss: Loss | None = None,
    replacement: str = "zero",
    sites: Iterable[str | tuple] | str | None = None,
    max_rows: int = 64,
    reference: Batches | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    per: str = "example",
) -> HeadScores:
    """Return how much the loss rises without each head: the mean over examples of loss without it minus loss with it.

    One head is off at a time (Michel et al. 2019, arXiv:1905.10650, section 3.2); a negative value says that the model
    does better without it. ``loss(outputs, batch)`` returns one number per example, (B,), that depends on this example
    alone; without it the labels' cross-entropy in nats is taken (``label_loss``). ``low`` and ``high`` bound each value
    by 95 % bootstrap over examples, where there are five or more; both losses are of the same examples: a paired one.

    - ``batches``: dicts of what the model takes, labels included. ``sites``: kinds or layers, ``["encoder"]``.
    - ``replacement``: what takes the place of a head's output, as in ``ablate``. "mean" and "resample" take it from
      ``reference``, or from ``batches`` where none is given; draws start from ``seed`` in every batch.
    - ``max_rows``: how many rows go through the model at once. Where several copies of a batch fit, several heads are
      measured in one run; scores stay the same, memory grows. A ``loss`` with labels of its own, instead of those of
      ``batch``, cannot be taken of copies: heads then go one by one.
    - ``checkpoint``: a folder in which the numbers of every batch are kept; the same call goes on from there.
    - ``progress``: show a progress bar.
    - ``per``: "example", or "batch" for a loss that couples examples, such as a contrastive one, which compares each
      with all others: the rise of the batch's loss (the mean of what ``loss`` returns, or the one number that it
      returns) with a head off for all examples alike. A row is then a batch, all weigh the same, bounds are by
      bootstrap over batches, and batches are not copied. The number depends on how examples were put together.

    Exact, like a loop over heads with ``ablate``, in half of its time: what comes before a head is computed once a
    batch and kept, so a batch's activations must fit in memory. The model is run without dropout and left as it was.

    Raises ``ValueError`` for an unknown ``replacement``, a loss of another shape or NaN, one of an example that depends
    on other examples (looked for once, in the first batch of several), sites that no batch reaches, and a
    ``checkpoint`` of something else; as ``label_loss`` and ``ablate`` do; ``KeyError`` for unknown sites,
    ``RuntimeError`` for a compiled model.

    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> scores = ablation(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids}, progress=False)
    >>> scores.name, len(scores), scores.values["encoder", 1].shape
    ('ablation', 8, torch.Size([4]))
    """
    rows = ablation_losses(
        model, batches, loss, replacement, sites, max_rows, reference, seed, checkpoint, progress, per
    )
    name = "ablation" if per == "example" else "ablation per batch"
    return with_intervals(rows, name if replacement == "zero" else f"{name} by {replacement}")


@old_arguments(by="replacement", over="per", run="checkpoint", quiet="progress")
def ablation_losses(
    model: nn.Module,
    batches: Batches,
    loss: Loss | None = None,
    replacement: str = "zero",
    sites: Iterable[str | tuple] | str | None = None,
    max_rows: int = 64,
    reference: Batches | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    per: str = "example",
) -> dict[tuple, Tensor]:
    """Return how much every example's loss rises without each head: {(kind, layer): (n, H) float64 tensor}.

    Examples come in the order of the batches; with ``per="batch"`` rows are batches. ``ablation`` is their mean; here
    they are for those who want their spread, their correlations or a paired comparison. Arguments and errors are those
    of ``ablation``.

    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> found = ablation_losses(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids}, sites=[("encoder", 1)])
    >>> {key: rise.shape for key, rise in found.items()}
    {('encoder', 1): torch.Size([2, 4])}
    """
    chosen = select_sites(model, sites)
    variants = [{site: [head]} for site in chosen for head in range(site.heads)]
    how = How(loss, replacement, max_rows, reference, seed, checkpoint, progress, per)
    rises = rises_without(model, batches, variants, how)
    return by_site(rises, chosen)


def by_site(rises: Tensor, chosen: Sequence[Site]) -> dict[tuple, Tensor]:
    """Return columns (n, heads of all sites) as {(kind, layer): (n, H)}."""
    parts = rises.split([site.heads for site in chosen], dim=1)
    return {site.key: part for site, part in zip(chosen, parts, strict=True)}
