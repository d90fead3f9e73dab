"""Enter a run in the middle: what runs before an attention layer returns its output from the trace.

A part that has ended before the layer starts does not depend on that layer's heads, so in a run without one of them it
need not be computed again. Of the layer itself only the output projection runs: its input z is in the trace, and only
there do heads differ. Embeddings, masks, later layers and the loss run as always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from headtools.heads._hooks import first_input, replace_first_input
from headtools.heads.sites import Site
from headtools.importance._replay.copies import copies_of
from headtools.importance._replay.trace import Call, Trace, forward_by

Edit = Callable[[Tensor], Tensor]  # z (B, T, head, value_dim) -> the same shape


@contextmanager
def replaying(trace: Trace, site: Site, times: int, edits: Mapping[Site, Edit]) -> Iterator[None]:
    """Let a run on ``times`` copies of the batch begin at ``site``; edits change its z and that of later sites.

    Raises ``KeyError`` for a site that the trace does not know.
    """
    site_start = trace.parts[site.module].start
    with ExitStack() as stack:
        for part, call in trace.parts.items():
            if call.times == 1 and call.end < site_start:
                stack.enter_context(forward_by(part, _return_traced(call, times)))
        for edited, edit in edits.items():
            stack.enter_context(forward_by(edited.out, _edit_input(edited, edit)))
        call, project = trace.parts[site.module], site.out.forward
        if not call.projects_inside:  # the projection runs later, on the traced output of the layer
            stack.enter_context(forward_by(site.module, _return_traced(call, times)))
        elif call.output_index is not None:

            def attention(_own: Callable) -> Callable:
                def forward(*_args: Any, **_kwargs: Any) -> Any:
                    projected = project(copies_of(call.projection_input, call.projection_axis, times))
                    return _with_projected(call, times, projected)

                return forward

            stack.enter_context(forward_by(site.module, attention))
        # else the layer changes the projection's output before it returns it, and runs as always
        yield


def _return_traced(call: Call, times: int) -> Callable:
    return lambda _own: lambda *_args, **_kwargs: copies_of(call.output, call.axes, times)


def _edit_input(site: Site, edit: Edit) -> Callable:
    def make(own: Callable) -> Callable:
        def forward(*args: Any, **kwargs: Any) -> Tensor:
            z = edit(site.split(first_input(args, kwargs)))
            args, kwargs = replace_first_input(args, kwargs, site.join(z))
            return own(*args, **kwargs)

        return forward

    return make


def _with_projected(call: Call, times: int, projected: Tensor) -> Any:
    """Return the traced output of an attention layer, with another output of its projection."""
    if call.output_index == ():
        return projected
    values = list(copies_of(call.output, call.axes, times))
    values[call.output_index] = projected
    return type(call.output)(values)
