"""Switch heads off: ``ablate`` replaces their outputs by zeros, means, outputs at other tokens, or uniform attention.

What replaces an output is made in ``_replacement.py``; ``_masks.py`` makes attention uniform.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from headtools.heads._attention import attend_uniformly
from headtools.heads._checks import check_not_compiled
from headtools.heads._hooks import edit_outputs, intervention
from headtools.heads._replacement import check_replacement, replacement_edit, replacement_values
from headtools.heads._select import Heads, select
from headtools.heads.sites import Site, sites


@contextmanager
def ablate(
    model: nn.Module,
    heads: Heads,
    replacement: str = "zero",
    reference: Mapping | Iterable[Mapping] | None = None,
    seed: int = 0,
) -> Iterator[None]:
    """Switch ``heads`` off while the context lasts.

    ``heads``: {("encoder", 2): [0, 5]} or [("encoder", 2, 0), ...]. Their outputs z are replaced:

    - ``replacement="zero"``: by 0; the projection's bias stays, as when the head is pruned;
    - ``replacement="mean"``: by the mean over the real tokens of ``reference``, one batch (a dict of the model's
      arguments) or several; real tokens are those that the batch's attention mask keeps;
    - ``replacement="resample"``: for every token, by the output that the head had at a token drawn at random from
      ``reference``, the same draw for all heads of a layer. Draws start from ``seed`` each time the context is entered
      and do not depend on which other heads are ablated;
    - ``replacement="uniform"``: by what the head would give with uniform attention, 1/m on each of the m tokens that
      its mask lets it see (Kovaleva et al. 2019, arXiv:1908.08593, section 4.6). Its values v stay its own.

    Raises ``KeyError``, ``IndexError`` or ``ValueError`` for heads that are not there or named twice, ``ValueError``
    for another ``replacement``, a missing reference, or uniform attention in a model that does not use
    AttentionInterface or has attention sinks, ``RuntimeError`` for a model compiled before.

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model, batch = BertModel(tiny).eval(), {"input_ids": torch.tensor([[1, 2, 3]])}
    >>> before = model(**batch).last_hidden_state
    >>> with ht.ablate(model, {("encoder", 0): [1, 2]}):
    ...     inside = model(**batch).last_hidden_state
    >>> bool((inside == before).all()), bool((model(**batch).last_hidden_state == before).all())
    (False, True)
    """
    check_not_compiled(model)
    selected = select(sites(model), heads)
    check_replacement(replacement, selected)
    values = replacement_values(model, selected, replacement, reference)
    with replace_outputs(model, selected, replacement, values, seed):
        yield


@contextmanager
def replace_outputs(
    model: nn.Module,
    selected: Mapping[Site, list[int]],
    replacement: str,
    values: Mapping[tuple, Tensor],
    seed: int = 0,
) -> Iterator[None]:
    """Do what ``ablate`` does, with heads {site: [head, ...]} and values from ``replacement_values``.

    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny).eval()
    >>> site, batch = sites(model)["encoder", 0], {"input_ids": torch.tensor([[1, 2, 3]])}
    >>> values = replacement_values(model, [site], "mean", batch)  # computed once, for any number of ablations
    >>> with replace_outputs(model, {site: [0]}, "mean", values):
    ...     inside = model(**batch)
    """
    if replacement == "uniform":
        with intervention(model, "ablate()", selected), attend_uniformly(model, selected):
            yield
        return

    edits = {
        site: replacement_edit(site, heads, replacement, values[site.key], seed) for site, heads in selected.items()
    }
    with edit_outputs(model, "ablate()", edits):
        yield
