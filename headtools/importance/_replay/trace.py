"""One recorded run of a model, which can be entered in the middle: what each part returned, and when.

The parts are attention layers and the blocks around them, also those of layers in which no head is ablated. Only parts
that ran exactly once can be replayed: a second call (of a shared layer, say) would return what the first one did.
``entry.py`` replays what is recorded here.
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
    """What a part did: the number of ``times`` it ran, when it started and ended, and a copy of its output.

    Of an attention layer also ``projection_input``, what its output projection read, with its axis of examples, and
    ``uniform``, what its heads would give with uniform attention. ``output_index`` says where in the layer's output the
    projection's output is: an index, () where it is the only one, None where it is not there. Where the projection runs
    after the layer has returned, ``projects_inside`` is false. ``axes`` tells where ``output`` holds the examples.
    """

    times: int = 0
    start: int = -1
    end: int = -1
    output: Any = None
    axes: Any = None
    projects_inside: bool = False
    output_index: int | tuple | None = None
    projection_input: Tensor | None = None
    projection_axis: int | None = None
    uniform: Tensor | None = None


@dataclass
class Trace:
    """The calls of every part and of every output projection in one run."""

    parts: dict[nn.Module, Call] = field(default_factory=dict)
    outs: dict[nn.Module, Call] = field(default_factory=dict)

    def calls(self, site: Site) -> int:
        """Return how often a site's heads ran: once can be replayed, 0 means that the run left the site out."""
        return self.outs[site.out].times

    def replayable(self, site: Site) -> bool:
        """Tell whether the run can be entered at a site."""
        return self.calls(site) == 1 and self.parts[site.module].times == 1

    def locate(self, doubled: Trace) -> dict[nn.Module, tuple]:
        """Find the axes of examples by comparison with a run of the batch twice; return them for ``take_axes``.

        Raises ``ValueError`` where this trace, twice along these axes, is not the other trace.
        """
        axes_of = {}
        for part, call in self.parts.items():
            if call.times == 1:
                double = doubled.parts[part]
                pairs = ((call.output, double.output), (call.projection_input, double.projection_input))
                axes_of[part] = tuple(batch_axes(once, twice) for once, twice in pairs)
                for (once, twice), axes in zip(pairs, axes_of[part], strict=True):
                    check_alike(copies_of(once, axes, 2), twice)
        self.take_axes(axes_of)
        return axes_of

    def form(self, axes_of: dict[nn.Module, tuple], n_examples: int) -> dict[nn.Module, tuple]:
        """Return the form (``form_of``) of the whole trace; ``KeyError`` for a part without axes."""
        forms = {}
        for part, call in self.parts.items():
            if call.times == 1:
                axes, projection_axis = axes_of[part]
                projection_form = form_of(call.projection_input, projection_axis, n_examples)
                forms[part] = form_of(call.output, axes, n_examples), projection_form
        return forms

    def take_axes(self, axes_of: dict[nn.Module, tuple]) -> bool:
        """Take over the axes found for another batch; tell whether they are those of all parts that ran."""
        for part, (axes, projection_axis) in axes_of.items():
            self.parts[part].axes, self.parts[part].projection_axis = axes, projection_axis
        return axes_of.keys() >= {part for part, call in self.parts.items() if call.times == 1}


def traced(
    model: nn.Module, run: Callable[[], Tensor], sites: Iterable[Site], uniform: Collection[Site] = ()
) -> tuple[Trace, Tensor]:
    """Return the trace of ``run()``, which runs the model once, and its result; ``sites`` are all sites of the model.

    Of sites in ``uniform`` the heads' outputs under uniform attention, (B, T, H, value_dim), are recorded, too.
    """
    trace, clock = Trace(), count()
    with ExitStack() as stack:
        if uniform:
            stack.enter_context(attention_function(model, None))
        for site in sites:
            part = trace.parts.setdefault(site.module, Call())
            out = trace.outs.setdefault(site.out, Call())
            block = _block(model, site)
            if block is not None and block not in trace.parts:
                stack.enter_context(forward_by(block, _watch(trace.parts.setdefault(block, Call()), clock)))
            stack.enter_context(forward_by(site.module, _watch(part, clock, out)))
            stack.enter_context(forward_by(site.out, _watch_out(out, part, clock)))
            if site in uniform:
                stack.enter_context(_tapped(site, part))
        result = run()
    for call in [*trace.parts.values(), *trace.outs.values()]:
        if call.times != 1:  # nothing to replay
            call.output = call.projection_input = call.uniform = None
    return trace, result


@contextmanager
def forward_by(module: nn.Module, make: Callable[[Callable], Callable]) -> Iterator[None]:
    """Give one module the forward ``make(its own forward)``; its own comes back, whatever happens.

    Hooks stay in place: they see the input and the output of the new forward.

    >>> layer = nn.Identity()
    >>> with forward_by(layer, lambda own: lambda x: own(x) + 1):
    ...     layer(torch.tensor(1))
    tensor(2)
    >>> layer(torch.tensor(1)), "forward" in vars(layer)
    (tensor(1), False)
    """
    overridden, previous = "forward" in module.__dict__, module.__dict__.get("forward")
    module.__dict__["forward"] = make(module.forward)
    try:
        yield
    finally:
        if overridden:
            module.__dict__["forward"] = previous
        else:
            del module.__dict__["forward"]


def _block(model: nn.Module, site: Site) -> nn.Module | None:
    """Return the block around a site, which also holds its output projection, or None.

    Transformers' blocks are ``GradientCheckpointingLayer``; in other models a block is an entry of a list of layers.
    """
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
                call.output = _copied(output)
            if out is not None and out.start > call.start:
                call.projects_inside, call.output_index = True, _index_in(output, out.output)
                out.output = None
            return output

        return forward

    return make


def _watch_out(out: Call, attention: Call, clock: Iterator[int]) -> Callable:
    def make(own: Callable) -> Callable:
        def forward(*args: Any, **kwargs: Any) -> Tensor:
            out.times, out.start = out.times + 1, next(clock)
            projected = own(*args, **kwargs)
            if attention.times and attention.end < 0:  # the layer has not returned: ``_watch`` looks for its index
                attention.projection_input, out.output = first_input(args, kwargs).detach().clone(), projected
            return projected

        return forward

    return make


@contextmanager
def _tapped(site: Site, call: Call) -> Iterator[None]:
    """Record what a site's heads would give with uniform attention."""

    def tap(uniform: Callable, **_tensors: Tensor) -> None:
        call.uniform = uniform(list(range(site.heads)))[0].detach().clone()

    with append_entry(site.module, TAPS, tap):
        yield


def _copied(value: Any) -> Any:
    """Return copies of all tensors: a model may change its own in place later."""
    return copies_of(value, None, 1)


def _index_in(output: Any, projected: Tensor) -> int | tuple | None:
    """Return the index at which an attention layer's output has that of its projection, unchanged; see ``Call``."""
    values = output if isinstance(output, (tuple, list)) else [output]
    for index, value in enumerate(values):
        if value is projected or (
            isinstance(value, Tensor) and value.shape == projected.shape and torch.equal(value, projected)
        ):
            return index if values is output else ()
    return None
