"""Enter a run in the middle: what came before an attention layer returns what it returned when it was traced.

A part that has finished before the layer starts does not depend on that layer's heads, so in a run without one of them
it need not be computed again. Embeddings, masks, final layers and the loss run as always.
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
    """Let a run on ``times`` copies of the batch begin at ``site``; its z, and that of later sites, goes through edits.

    Raises ``KeyError`` for a site that the trace does not know.
    """
    begin = trace.parts[site.module].start
    with ExitStack() as stack:
        for part, call in trace.parts.items():
            if call.times == 1 and call.end < begin:
                stack.enter_context(forward_by(part, _returning(call, times)))
        for edited, edit in edits.items():
            stack.enter_context(forward_by(edited.out, _reading(edited, edit)))
        call, project = trace.parts[site.module], site.out.forward
        if not call.inside:
            stack.enter_context(forward_by(site.module, _returning(call, times)))
        elif call.place is not None:

            def attention(_own: Callable) -> Callable:
                def forward(*_args: Any, **_kwargs: Any) -> Any:
                    made = project(copies_of(call.read, call.read_axis, times))
                    return _with(call, times, made)

                return forward

            stack.enter_context(forward_by(site.module, attention))
        yield


def _returning(call: Call, times: int) -> Callable:
    return lambda _own: lambda *_args, **_kwargs: copies_of(call.output, call.axes, times)


def _reading(site: Site, edit: Edit) -> Callable:
    def make(own: Callable) -> Callable:
        def forward(*args: Any, **kwargs: Any) -> Tensor:
            z = edit(site.split(first_input(args, kwargs)))
            args, kwargs = replace_first_input(args, kwargs, site.join(z))
            return own(*args, **kwargs)

        return forward

    return make


def _with(call: Call, times: int, made: Tensor) -> Any:
    """Return what an attention layer returned, with another output of its projection."""
    if call.place == ():
        return made
    parts = list(copies_of(call.output, call.axes, times))
    parts[call.place] = made
    return type(call.output)(parts)
