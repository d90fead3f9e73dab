"""Losses of a batch without some heads, each at the cost of what comes after them: exact, at about half the cost.

A batch is run once in full, and what each attention layer and each block around one returned is recorded. A run without
some heads then begins at the first of them: whatever ended before that layer started does not depend on its heads, and
returns what was recorded. Of the layer itself only the output projection runs, on the recorded z of its heads, in which
the heads in question are replaced. Embeddings, masks, later layers and the loss run as always.

Requirements:

1. The losses are those of a full run with ``ablate``, for any model and any loss. So the shortcut is not taken on
   trust: a run that begins at the last layer, with nothing changed, must end in the same losses. Where it does not,
   heads are switched off by ``ablate`` in full runs.
2. Only parts that ran exactly once are replayed: a second call (of a shared layer, say) would return the output of the
   first.
3. A model may change tensors in place, so what a part returns is recorded as a copy, and every run gets a new copy.
4. A run over few tokens takes nearly as long as one over more of them. So sets of heads that begin at the same site
   share a run: every tensor with one row per example is repeated, and each copy of the batch loses its own set. Only
   for losses of labels: another loss may know the examples of the batch. This, too, has to pass the test of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._attention import TAPS, attention_function
from headtools.heads._hooks import Edit, append_entry, first_input, replace_first_input
from headtools.heads.ablate import ablate, replacement_edit
from headtools.heads.sites import Site, sites
from headtools.importance._coupling import check_uncoupled_losses
from headtools.importance.loss import Loss, each_loss, of_labels

HeadSet = Mapping[Site, list[int]]  # the heads that are off together in one run
# How many tokens a run may have in which copies of a batch share it. At BERT width, batches of two texts took four
# fifths of the time with 512, more with 256, and no less with 1,024.
_TOKENS = 512


class AblatedLosses:
    """The losses of one batch with all heads, and without any of them.

    ``full_model`` (B,) holds the losses with all heads; ``without_each`` gives those without some, all of
    ``ablated_sites``. ``cache`` holds how the model can be replayed, if at all: pass the same dict for all batches.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Mapping,
        loss: Loss | None,
        ablated_sites: Sequence[Site],
        replacement: str,
        replacement_values: Mapping,
        seed: int,
        cache: dict,
        per: str = "example",
    ) -> None:
        self.model, self.batch, self.loss, self.ablated_sites = model, batch, loss, ablated_sites
        self.replacement, self.replacement_values, self.seed, self.per = replacement, replacement_values, seed, per
        # the same objects as in the sets of heads, by which the trace is read
        all_sites = {site.key: site for site in [*sites(model), *ablated_sites]}
        uniform = ablated_sites if replacement == "uniform" else ()
        self.trace, self.full_model = traced(model, self._losses, all_sites.values(), uniform)
        self.copies = self._affordable_copies() if cache.get("copies", True) else 1
        if "replaying" not in cache:
            cache["replaying"] = self._can_replay(self._is_unchanged_after_other_runs)
            # What the first batch was too large to try stays untried: later batches test the last site alone.
            cache["copies"] = self.copies > 1
        self.replaying = cache["replaying"] and self._can_replay(self._is_unchanged_from_last_site)

    def ran(self, site: Site) -> bool:
        """Tell whether the batch ran a site at all."""
        return self.trace.calls(site) > 0

    def without_each(self, head_sets: Sequence[HeadSet]) -> Iterator[Tensor]:
        """Yield the losses without each set of heads, (B,), in their order."""
        for entry, group in groupby(head_sets, self._entry):
            together = list(group)
            step = 1 if entry is None else self.copies
            for start in range(0, len(together), step):
                yield from self._without(together[start : start + step], entry)

    def _entry(self, heads: HeadSet) -> Site | None:
        """Return the site at which the run without a set of heads begins; None for a run of the whole model."""
        can_replay = self.replaying and all(self.trace.replayable(site) for site in heads)
        # Heads' outputs under uniform attention are those of the full run; without an earlier head they are others.
        if not can_replay or (self.replacement == "uniform" and len(heads) > 1):
            return None
        return min(heads, key=lambda site: self.trace.parts[site.module].start)

    def _without(self, head_sets: Sequence[HeadSet], entry: Site | None) -> Sequence[Tensor]:
        """Return the losses without each of some sets, (B,), by one run."""
        if entry is None:
            (heads,) = head_sets
            with ablate(self.model, heads, self.replacement, self.replacement_values, self.seed):
                return [self._losses()]
        edited = {site: None for heads in head_sets for site in heads}
        edits = {
            site: [self._edit(site, heads[site]) if site in heads else None for heads in head_sets] for site in edited
        }
        return self._replayed(entry, edits, len(head_sets))

    def _replayed(self, entry: Site, edits: Mapping[Site, Sequence[Edit | None]], copies: int) -> Sequence[Tensor]:
        """Return each copy's losses, (B,), of a run that begins at a site; edits change z, one for each copy."""
        rows = len(self.full_model)

        def edit_each(each: Sequence[Edit | None]) -> Edit:
            return lambda z: torch.cat(
                [edit(copy) if edit else copy for copy, edit in zip(z.chunk(copies), each, strict=True)]
            )

        batch = self.batch
        if copies > 1:
            batch = {name: _copied(value, copies, rows) for name, value in batch.items()}
        edit = {site: edit_each(each) for site, each in edits.items()}
        with replaying(self.trace, entry, edit, copies, rows):
            return losses(self.model, batch, self.loss, self.per).split(rows)

    def check_uncoupled(self) -> None:
        """Raise ``ValueError`` where the loss of an example depends on other examples of the batch."""
        ran = [site for site in sites(self.model) if self.ran(site)]
        check_uncoupled_losses(self.model, self._losses, self.full_model, ran, self._rounding())

    def _edit(self, site: Site, heads: list[int]) -> Edit:
        uniform = self.trace.parts[site.module].uniform
        values = uniform[None] if self.replacement == "uniform" else self.replacement_values[site.key]
        return replacement_edit(site, heads, self.replacement, values, self.seed)

    def _losses(self) -> Tensor:
        return losses(self.model, self.batch, self.loss, self.per)

    def _replayable_sites(self) -> list[Site]:
        """Return the sites at which the run can be entered, in the order in which they ran."""
        replayable = filter(self.trace.replayable, self.ablated_sites)
        return sorted(replayable, key=lambda site: self.trace.parts[site.module].start)

    def _affordable_copies(self) -> int:
        """Return how many copies of the batch one run may have; 1 where its rows could be taken for something else."""
        rows = len(self.full_model)
        shapes = [value.shape for value in self.batch.values() if isinstance(value, Tensor)]
        # With as many rows as tokens, a tensor with one row per token would be repeated, too.
        if self.per != "example" or not of_labels(self.loss) or any(rows in shape[1:] for shape in shapes):
            return 1
        tokens = max(call.tokens for call in self.trace.outs.values())
        return max(1, _TOKENS // max(1, tokens))

    def _can_replay(self, is_unchanged: Callable[[], bool]) -> bool:
        """Tell whether a test passes, with copies or else without them."""
        if self.copies > 1 and is_unchanged():
            return True
        self.copies = 1
        return is_unchanged()

    def _is_unchanged_from_last_site(self) -> bool:
        """Tell whether the run can be entered at the last site; this finds, for one, a loss that remembers batches."""
        return all(self._is_unchanged(site) for site in self._replayable_sites()[-1:])

    def _is_unchanged_after_other_runs(self) -> bool:
        """Tell whether the run can be entered at the last site of each kind, after a run without any heads.

        What a model stores beside the outputs of its parts is then wrong, and shows.
        """
        all_heads = {site: list(range(site.heads)) for site in sites(self.model)}
        try:
            with ablate(self.model, all_heads):
                self._losses()
        except Exception:  # a model that cannot run like this is run in full
            return False
        last = {(site.stack, site.kind): site for site in self._replayable_sites()}
        return all(self._is_unchanged(site) for site in last.values())

    def _is_unchanged(self, site: Site) -> bool:
        """Tell whether a run that begins at a site, with nothing changed, has the losses of the batch.

        Of several copies the last has all heads of the site off, and the others must not notice.
        """
        try:
            edits = [None] * (self.copies - 1) + [torch.zeros_like if self.copies > 1 else None]
            replayed = self._replayed(site, {site: edits}, self.copies)
        except Exception:  # a model that cannot be replayed is run in full
            return False
        unchanged = replayed[: max(1, self.copies - 1)]
        return len(replayed) == self.copies and all(
            copy.shape == self.full_model.shape and bool(((copy - self.full_model).abs() <= self._rounding()).all())
            for copy in unchanged
        )

    def _rounding(self) -> float:
        """Return how far losses differ that are equal but for the order of operations."""
        dtype = next((weight.dtype for weight in self.model.parameters() if weight.is_floating_point()), torch.float32)
        return max(1e-5, 4 * torch.finfo(dtype).eps) * self.full_model.abs().max().item()


@torch.no_grad()
def losses(model: nn.Module, batch: Mapping, loss: Loss | None, per: str = "example") -> Tensor:
    """Return the loss of each example, (B,), without gradients, float64, on the CPU; errors as ``each_loss``."""
    return each_loss(model, batch, loss, per=per).cpu().double()


@dataclass
class Call:
    """What a part did: the number of ``times`` it ran, when it started and ended, and a copy of its output.

    Of an attention layer also ``projection_input``, what its output projection read, and ``uniform``, what its heads
    would give with uniform attention. ``output_index`` says where in the layer's output the projection's output is: an
    index, () where it is the only one, None where it is not there. Where the projection runs after the layer has
    returned, ``projects_inside`` is false. Of a projection also how many ``tokens`` it ran on.
    """

    times: int = 0
    start: int = -1
    end: int = -1
    output: Any = None
    projects_inside: bool = False
    output_index: int | tuple | None = None
    projection_input: Tensor | None = None
    uniform: Tensor | None = None
    tokens: int = 0


@dataclass
class Trace:
    """The calls of every attention layer and block, and of every output projection, in one run."""

    parts: dict[nn.Module, Call] = field(default_factory=dict)
    outs: dict[nn.Module, Call] = field(default_factory=dict)

    def calls(self, site: Site) -> int:
        """Return how often a site's heads ran: once can be replayed, 0 means that the run left the site out."""
        return self.outs[site.out].times

    def replayable(self, site: Site) -> bool:
        """Tell whether the run can be entered at a site."""
        return self.calls(site) == 1 and self.parts[site.module].times == 1


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
def replaying(trace: Trace, site: Site, edits: Mapping[Site, Edit], copies: int = 1, rows: int = 0) -> Iterator[None]:
    """Let a run begin at ``site``; edits change its z, (B, T, head, value_dim), and that of later sites.

    What was traced with ``rows`` rows is returned in ``copies``, one after the other. Raises ``KeyError`` for a site
    that the trace does not know.
    """
    own_call = trace.parts[site.module]
    with ExitStack() as stack:
        for part, call in trace.parts.items():
            if call.times == 1 and call.end < own_call.start:
                stack.enter_context(forward_by(part, _return_traced(call, copies, rows)))
        for edited, edit in edits.items():
            stack.enter_context(forward_by(edited.out, _edit_input(edited, edit)))
        if not own_call.projects_inside:  # the projection runs later, on the traced output of the layer
            stack.enter_context(forward_by(site.module, _return_traced(own_call, copies, rows)))
        elif own_call.output_index is not None:
            stack.enter_context(forward_by(site.module, _only_project(own_call, site.out.forward, copies, rows)))
        # else the layer changes the projection's output before it returns it, and runs as always
        yield


def _return_traced(call: Call, copies: int, rows: int) -> Callable:
    return lambda _own: lambda *_args, **_kwargs: _copied(call.output, copies, rows)


def _only_project(call: Call, project: Callable, copies: int, rows: int) -> Callable:
    """Return a layer's traced output, but for that of its projection, which runs."""

    def make(_own: Callable) -> Callable:
        def forward(*_args: Any, **_kwargs: Any) -> Any:
            projected = project(_copied(call.projection_input, copies, rows))
            if call.output_index == ():
                return projected
            values = list(_copied(call.output, copies, rows))
            values[call.output_index] = projected
            return type(call.output)(values)

        return forward

    return make


def _edit_input(site: Site, edit: Edit) -> Callable:
    def make(own: Callable) -> Callable:
        def forward(*args: Any, **kwargs: Any) -> Tensor:
            z = edit(site.split(first_input(args, kwargs)))
            args, kwargs = replace_first_input(args, kwargs, site.join(z))
            return own(*args, **kwargs)

        return forward

    return make


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
            out.tokens = projected.shape[:-1].numel()
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


def _copied(value: Any, copies: int = 1, rows: int = 0) -> Any:
    """Return new tensors in the same tuple, list or dict; all else is passed on as it is.

    Tensors with ``rows`` rows are repeated, copy after copy.

    >>> _copied((torch.tensor([1, 2]), None))
    (tensor([1, 2]), None)
    >>> _copied((torch.tensor([1, 2]), torch.tensor([[0, 1, 2]])), copies=2, rows=2)
    (tensor([1, 2, 1, 2]), tensor([[0, 1, 2]]))
    """
    if isinstance(value, Tensor):
        in_rows = copies > 1 and value.dim() > 0 and len(value) == rows
        return value.repeat(copies, *[1] * (value.dim() - 1)) if in_rows else value.clone()
    if isinstance(value, Mapping):
        parts = {name: _copied(part, copies, rows) for name, part in value.items()}
        return parts if type(value) is dict else type(value)(**parts)
    if isinstance(value, (tuple, list)):
        parts = [_copied(part, copies, rows) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _index_in(output: Any, projected: Tensor) -> int | tuple | None:
    """Return the index at which an attention layer's output has that of its projection, unchanged; see ``Call``."""
    values = output if isinstance(output, (tuple, list)) else [output]
    for index, value in enumerate(values):
        if value is projected or (
            isinstance(value, Tensor) and value.shape == projected.shape and torch.equal(value, projected)
        ):
            return index if values is output else ()
    return None
