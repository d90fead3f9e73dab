"""What a taxonomy holds of one kind of attention while its corpus goes by."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from headtools.heads.sites import Site, SiteKey
from headtools.roles import controls
from headtools.roles._taxonomy.scores import Part

# Cells of maps that are measured at once. Small models make small maps, of which one layer's are not worth the calls.
CELLS = 2**20


class Running:
    """Sums of all heads of some layers, side by side in the order of ``sites``.

    :meth:`begin` a batch, :meth:`take` each layer's maps while the model runs, :meth:`finish` the batch. ``runs``
    tells how often each layer ran in it.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = list(sites)
        self.runs: dict[SiteKey, int] = {}
        ends = list(accumulate(site.heads for site in sites))
        self._heads = {site.key: slice(end - site.heads, end) for site, end in zip(sites, ends, strict=True)}
        self._waiting: list[tuple[SiteKey, Tensor]] = []

    def begin(self, part: Part) -> None:
        """Start a batch."""
        self._part = part
        self.runs = {site.key: 0 for site in self.sites}
        sentences, _, roles = part.counted.shape
        self._sums = torch.zeros(sentences, roles, sum(site.heads for site in self.sites))

    def take(self, site: Site, maps: Tensor, luck: torch.Generator | None) -> None:
        """Take the maps (B, head, T, S) of one layer; with ``luck`` their rows are shuffled first."""
        self._part.check(maps)
        if luck is not None:
            maps = controls.shuffled(maps, self._part.tokens(), luck)
        self.runs[site.key] += 1
        self._waiting.append((site.key, maps))
        if sum(some.numel() for _, some in self._waiting) >= CELLS:
            self._measure()

    def finish(self) -> dict[str, Tensor]:
        """End the batch; return the sums (B, role, head), the queries counted, and how often each layer ran.

        Raises RuntimeError for a layer that did not run.
        """
        if self._waiting:
            self._measure()
        missing = [site.label for site in self.sites if not self.runs[site.key]]
        if missing:
            raise RuntimeError(f"{', '.join(missing)} did not run; leave out that kind, e.g. write kinds=['encoder']")
        # A layer that runs several times counts as the mean of its runs, here and in what it is compared with.
        often = torch.cat([torch.full((site.heads,), float(self.runs[site.key])) for site in self.sites])
        runs = torch.tensor([[self.runs[site.key] for site in self.sites]])
        return {"sums": self._sums / often, "counted": self._part.counted, "runs": runs}

    def _measure(self) -> None:
        """Measure the maps that wait, the heads of all their layers side by side."""
        keys, maps = zip(*self._waiting, strict=True)
        self._waiting.clear()
        sums = self._part.measure(torch.cat(maps, 1))
        for key, part in zip(keys, sums.split([some.shape[1] for some in maps], -1), strict=True):
            self._sums[..., self._heads[key]] += part
