"""Passes that end where everything wanted has been seen: what a model computes above its last map is not needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from torch import nn
from torch.nn.modules import module as torch_module

from headtools.heads.sites import Key, Site


class _Enough(Exception):
    """Everything has been seen; nobody outside of this file meets it."""


class Passes:
    """Passes of one model that end as soon as each of some sites has run.

    The first pass runs to its end. Only where every site ran once in it, later passes are ended, so that a layer that
    several layers share, as ALBERT's, is always seen as often as it runs; and only where nothing waits for the end of
    a pass, such as a forward hook, which could be what puts offloaded weights away.

    >>> from headtools.heads.record import record
    >>> from headtools.heads.sites import sites
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> import torch
    >>> model, ended = BertModel(tiny).eval(), []
    >>> passes = Passes(model, sites(model))
    >>> with record(model, "maps", reduce=lambda site, _seen, _before: passes.saw(site)):
    ...     for _ in range(2):
    ...         passes.run(lambda: ended.append(model(torch.tensor([[1, 2]]))))
    >>> len(ended)  # the second pass had no end
    1
    """

    def __init__(self, model: nn.Module, sites: Iterable[Site]) -> None:
        self._model, self._wanted = model, {site.key for site in sites}
        self._seen: Counter[Key] = Counter()
        self._short: bool | None = None

    def run(self, work: Callable[[], object]) -> None:
        """Run the model once by ``work()``, to the end or as far as needed."""
        self._seen.clear()
        try:
            work()
        except _Enough:
            return
        if self._short is None:
            once = self._seen.keys() == self._wanted and set(self._seen.values()) == {1}
            self._short = once and not _awaited(self._model)

    def saw(self, site: Site) -> None:
        """Tell that a site has run and everything wanted of it has been taken; the last of them ends the pass."""
        self._seen[site.key] += 1
        if self._short and len(self._seen) == len(self._wanted):
            raise _Enough


def _awaited(model: nn.Module) -> bool:
    """Tell whether something is to happen after a module's forward: hooks, or a forward that was replaced."""
    if torch_module._global_forward_hooks:
        return True
    return any(module._forward_hooks or "forward" in module.__dict__ for module in model.modules())
