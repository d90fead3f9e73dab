"""What a taxonomy holds of one kind of attention while its corpus goes by."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from headtools.heads.shards import Shard
from headtools.heads.sites import Key, Site
from headtools.roles import controls
from headtools.roles.part import Part
from headtools.roles.tally import Tally

# Cells of maps that are measured at once. Small models make small maps, of which one layer's are not worth the calls.
CELLS = 2**20
KEPT = ("sums", "counted", "runs")  # the numbers of a batch, by name


class Running:
    """Sums of all heads of some layers, side by side in the order of ``sites``.

    :meth:`begin` a batch, :meth:`take` each layer's maps while the model runs, :meth:`finish` the batch. ``runs``
    tells how often each layer ran in it.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = list(sites)
        self.tally, self.counts = Tally(), Tally()
        self.sentences: Tensor | None = None  # how many have a query of each role, (R,)
        self.runs: dict[Key, int] = {}
        ends = list(accumulate(site.heads for site in sites))
        self._heads = {site.key: slice(end - site.heads, end) for site, end in zip(sites, ends, strict=True)}
        self._waiting: list[tuple[Key, Tensor]] = []

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

    def finish(self, drawn: Tensor) -> dict[str, Tensor]:
        """End the batch, whose sentences are ``drawn`` so often, (times, B); return its numbers, for :meth:`put`.

        Raises RuntimeError for a layer that did not run.
        """
        if self._waiting:
            self._measure()
        missing = [site.label for site in self.sites if not self.runs[site.key]]
        if missing:
            raise RuntimeError(f"{', '.join(missing)} did not run; leave out that kind, e.g. write kinds=['encoder']")
        # A layer that runs several times counts as the mean of its runs, here and in what it is compared with.
        often = torch.cat([torch.full((site.heads,), float(self.runs[site.key])) for site in self.sites])
        runs = torch.tensor([self.runs[site.key] for site in self.sites])
        numbers = {"sums": self._sums / often, "counted": self._part.counted, "runs": runs}
        self.put(numbers, drawn)
        return numbers

    def put(self, numbers: Mapping[str, Tensor], drawn: Tensor) -> None:
        """Add a batch that is finished: what :meth:`finish` returned for it."""
        self.runs = dict(zip((site.key for site in self.sites), numbers["runs"].tolist(), strict=True))
        self.tally.add(numbers["sums"], drawn)
        self.counts.add(numbers["counted"], drawn)
        asked = (numbers["counted"][:, 0] > 0).sum(0)
        self.sentences = asked if self.sentences is None else self.sentences + asked

    def unite(self, shard: Shard, roles: int, times: int) -> None:
        """Add up what all processes hold, some of which may have had no sentence; in each of them."""
        heads = sum(site.heads for site in self.sites)
        self.tally = self.tally.united(shard, times, (roles, heads))
        self.counts = self.counts.united(shard, times, (3, roles))
        self.sentences = shard.total(torch.zeros(roles, dtype=torch.long) if self.sentences is None else self.sentences)
        self.runs = next((runs for runs in shard.all(lambda: self.runs) if runs), {})

    def _measure(self) -> None:
        """Measure the maps that wait, the heads of all their layers side by side."""
        keys, maps = zip(*self._waiting, strict=True)
        self._waiting.clear()
        sums = self._part.measure(torch.cat(maps, 1))
        for key, part in zip(keys, sums.split([some.shape[1] for some in maps], -1), strict=True):
            self._sums[..., self._heads[key]] += part
