"""One run of a model, kept so that it can be entered in the middle: what each part returned, and when.

The parts are attention layers and the blocks around them, also those of layers whose heads are of no interest.
``entry.py`` uses what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._attention import TAPS, attention_function
from headtools.heads._hooks import append_entry, first_input
from headtools.heads.sites import Site
from headtools.importance._replay.copies import batch_axes, check_alike, copies_of, form_of


@dataclass
class Call:
    """What a part did: ``times`` it ran, the moments it started and ended, and a copy of what it returned.

    Of an attention layer also ``read``, what its output projection took, and ``place``, where among the things the
    layer returned the projection's output stands: an index, () for the only thing, None where it does not (or where the
    projection ran after the layer had returned, then ``inside`` is false). ``axes`` tells where examples are.
    """

    times: int = 0
    start: int = -1
    end: int = -1
    output: Any = None
    inside: bool = False
    place: int | tuple | None = None
    read: Tensor | None = None
    even: Tensor | None = None
    axes: Any = None
    read_axis: int | None = None


@dataclass
class Trace:
    """The calls of every part and of every output projection in one run."""

    parts: dict[nn.Module, Call] = field(default_factory=dict)
    outs: dict[nn.Module, Call] = field(default_factory=dict)

    def calls(self, site: Site) -> int:
        """Return how often a site's heads ran: 1 is what can be replayed, 0 says that the run never came there."""
        return self.outs[site.out].times

    def replayable(self, site: Site) -> bool:
        """Tell whether the run can be entered at a site."""
        return self.calls(site) == 1 and self.parts[site.module].times == 1

    def locate(self, doubled: Trace) -> dict[nn.Module, tuple]:
        """Find the axes of examples by comparison with a run of the batch twice; return them for ``take_axes``.

        Raises ``ValueError`` where what was kept, twice along these axes, is not what the other run kept.
        """
        found = {}
        for part, call in self.parts.items():
            if call.times == 1:
                pairs = ((call.output, doubled.parts[part].output), (call.read, doubled.parts[part].read))
                found[part] = tuple(batch_axes(one, two) for one, two in pairs)
                for (one, two), axes in zip(pairs, found[part], strict=True):
                    check_alike(copies_of(one, axes, 2), two)
        self.take_axes(found)
        return found

    def form(self, found: dict[nn.Module, tuple], rows: int) -> dict[nn.Module, tuple]:
        """Return the form (``form_of``) of all that was kept; ``KeyError`` for a part without axes."""
        return {
            part: (form_of(call.output, found[part][0], rows), form_of(call.read, found[part][1], rows))
            for part, call in self.parts.items()
            if call.times == 1
        }

    def take_axes(self, found: dict[nn.Module, tuple]) -> bool:
        """Take over the axes found for another batch; tell whether they are those of all parts that ran."""
        for part, (axes, read_axis) in found.items():
            self.parts[part].axes, self.parts[part].read_axis = axes, read_axis
        return found.keys() >= {part for part, call in self.parts.items() if call.times == 1}


def traced(
    model: nn.Module, run: Callable[[], Tensor], sites: Iterable[Site], even: Collection[Site] = ()
) -> tuple[Trace, Tensor]:
    """Return what happened in ``run()``, which runs the model once, and what it returned; ``sites`` are all it has.

    The calls of sites in ``even`` also keep what their heads would give with even attention, (B, T, H, value_dim).
    """
    trace, clock = Trace(), count()
    with ExitStack() as stack:
        if even:
            stack.enter_context(attention_function(model, None))
        for site in sites:
            part = trace.parts.setdefault(site.module, Call())
            out = trace.outs.setdefault(site.out, Call())
            block = _block(model, site)
            if block is not None and block not in trace.parts:
                stack.enter_context(forward_by(block, _watch(trace.parts.setdefault(block, Call()), clock)))
            stack.enter_context(forward_by(site.module, _watch(part, clock, out)))
            stack.enter_context(forward_by(site.out, _watch_out(out, part, clock)))
            if site in even:
                stack.enter_context(_tapped(site, part))
        result = run()
    for call in [*trace.parts.values(), *trace.outs.values()]:
        if call.times != 1:  # nothing to replay
            call.output = call.read = call.even = None
    return trace, result


@contextmanager
def forward_by(module: nn.Module, make: Callable[[Callable], Callable]) -> Iterator[None]:
    """Give one module the forward that ``make(its own)`` returns; what it had comes back, whatever happens.

    Hooks stay where they are: they see what goes into the new forward and what comes out.

    >>> layer = nn.Identity()
    >>> with forward_by(layer, lambda own: lambda x: own(x) + 1):
    ...     layer(torch.tensor(1))
    tensor(2)
    >>> layer(torch.tensor(1)), "forward" in vars(layer)
    (tensor(1), False)
    """
    had, before = "forward" in module.__dict__, module.__dict__.get("forward")
    module.__dict__["forward"] = make(module.forward)
    try:
        yield
    finally:
        if had:
            module.__dict__["forward"] = before
        else:
            del module.__dict__["forward"]


def _block(model: nn.Module, site: Site) -> nn.Module | None:
    """Return the layer around a site that holds its output projection too: one of a list of layers, or None."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    parts = site.name.split(".")
    around = [(".".join(parts[:n]), parts[n - 1]) for n in range(len(parts) - 1, 0, -1)]
    holding = [(model.get_submodule(path), last) for path, last in around]
    holding = [(m, last) for m, last in holding if any(inner is site.out for inner in m.modules())]
    marked = [module for module, _ in holding if isinstance(module, GradientCheckpointingLayer)]
    numbered = [module for module, last in holding if last.isdigit()]
    return (marked or numbered or [None])[0]


def _watch(call: Call, clock: Iterator[int], out: Call | None = None) -> Callable:
    def make(own: Callable) -> Callable:
        def forward(*args: Any, **kwargs: Any) -> Any:
            call.times, call.start, call.end = call.times + 1, next(clock), -1
            output = own(*args, **kwargs)
            call.end = next(clock)
            if call.times == 1:
                call.output = _kept(output)
            if out is not None and out.start > call.start:
                call.inside, call.place = True, _place(output, out.output)
                out.output = None
            return output

        return forward

    return make


def _watch_out(out: Call, part: Call, clock: Iterator[int]) -> Callable:
    def make(own: Callable) -> Callable:
        def forward(*args: Any, **kwargs: Any) -> Tensor:
            out.times, out.start = out.times + 1, next(clock)
            made = own(*args, **kwargs)
            if part.times and part.end < 0:  # inside the attention layer, which will tell what became of it
                part.read, out.output = first_input(args, kwargs).detach().clone(), made
            return made

        return forward

    return make


@contextmanager
def _tapped(site: Site, call: Call) -> Iterator[None]:
    """Keep what a site's heads would give with even attention."""

    def tap(even: Callable, **_tensors: Tensor) -> None:
        call.even = even(list(range(site.heads)))[0].detach().clone()

    with append_entry(site.module, TAPS, tap):
        yield


def _kept(value: Any) -> Any:
    """Return copies of all tensors, which nothing that the model does later can change."""
    return copies_of(value, None, 1)


def _place(output: Any, projected: Tensor) -> int | tuple | None:
    """Return where in the output of an attention layer its projection's output stands, unchanged."""
    several = output if isinstance(output, (tuple, list)) else [output]
    for number, part in enumerate(several):
        if part is projected or (
            isinstance(part, Tensor) and part.shape == projected.shape and torch.equal(part, projected)
        ):
            return number if several is output else ()
    return None
