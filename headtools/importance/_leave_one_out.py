"""The losses of a batch without some heads: those of full runs with ``ablate``, in about half of their time.

A batch is run once in full, and what each attention layer and each block around one returned is kept. A run without a
head then begins at its layer: whatever ended before the head's output projection started does not depend on the head,
and returns what was kept. Embeddings, masks, later layers and the loss run as always.

1. The shortcut is not taken on trust: a run that begins at the last layer, with nothing changed, must end in the losses
   of the full run. Where it does not (a model stores something on the side, a loss counts its calls), or where a layer
   runs twice, heads are switched off by ``ablate`` in full runs.
2. A run over few tokens takes nearly as long as one over more. So heads of one layer share a run: tensors with one row
   per example are repeated, copy after copy, and each copy loses another head. This has to pass the same test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from headtools.heads._hooks import Edit, edit_outputs
from headtools.heads.ablate import ablate, replacement_edit
from headtools.heads.sites import Site, sites
from headtools.importance.loss import Loss, each_loss, of_labels, rounding

HeadSet = Mapping[Site, list[int]]  # the heads that are off together in one run
# How many tokens a run may have in which copies of a batch share it. At BERT width, on one thread or two, batches of 16
# tokens took two thirds of the time with 128, no less with 256, more with 512; of 48 tokens as long as without copies.
# Every copy has logits of its own, so more tokens cost memory, too.
_TOKENS = 128


class LeaveOneOut:
    """The losses of one batch, (B,): ``full`` with all heads, and ``without`` some heads of ``measured`` sites.

    ``values`` are their ``replacement_values``. ``trust`` holds how the first batch passed the test: pass one dict.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Mapping,
        loss: Loss | None,
        measured: Sequence[Site],
        replacement: str,
        values: Mapping,
        seed: int,
        per: str,
        trust: dict[str, bool],
    ) -> None:
        self.model, self.batch, self.loss, self.per = model, batch, loss, per
        self.measured, self.replacement, self.values, self.seed = measured, replacement, values, seed
        self.projections = {site.out for site in sites(model)}
        self.calls = Counter[nn.Module]()
        self.started: dict[nn.Module, int] = {}  # how many layers had ended when a module started
        self.ended: list[tuple[nn.Module, Any]] = []  # layers and what they returned, in the order in which they ended
        self.tokens = 1  # the most that an output projection ran on
        with ExitStack() as stack:
            for module in dict.fromkeys(part for site in sites(model) for part in _parts(model, site)):
                _replace_forward(stack, module, partial(self._watched, module, module.forward))
            self.full = self._losses(batch)
        # What the first batch was too large to try stays untried: later ones are tested at the last site alone.
        most = self._affordable_copies() if trust.get("copies", True) else 1
        self.replays, first_batch = False, "replays" not in trust
        for self.copies in sorted({1, most}, reverse=True) if trust.get("replays", True) else ():
            self.replays = self._passes(first_batch)
            if self.replays:
                break
        if first_batch:
            trust.update(replays=self.replays, copies=self.copies > 1)

    def ran(self, site: Site) -> bool:
        """Tell whether the batch ran a site at all."""
        return self.calls[site.out] > 0

    def without(self, head_sets: Sequence[HeadSet]) -> Iterator[Tensor]:
        """Yield the losses without each set of heads, (B,), in their order."""
        for entry, group in groupby(head_sets, self._entry):
            together = list(group)
            step = 1 if entry is None else self.copies
            for start in range(0, len(together), step):
                yield from self._run(entry, together[start : start + step])

    def _entry(self, heads: HeadSet) -> Site | None:
        """Return the site at which a run without these heads begins; None for a full run."""
        if not self.replays or not all(map(self._ran_once, heads)):
            return None
        return min(heads, key=lambda site: self.started[site.out])

    def _run(self, entry: Site | None, head_sets: Sequence[HeadSet]) -> Sequence[Tensor]:
        """Return the losses without each of some sets, (B,), by one run of as many copies of the batch."""
        copies, rows = len(head_sets), len(self.full)
        with ExitStack() as stack:
            if entry is not None:
                # Attention is made uniform inside the layer, which then has to run.
                start = self.started[entry.module if self.replacement == "uniform" else entry.out]
                for module, output in self.ended[:start]:
                    if self.calls[module] == 1:
                        _replace_forward(stack, module, partial(_repeated, output, copies, rows))
            if copies == 1:
                heads = {site.key: off for site, off in head_sets[0].items()}
                off, batch = ablate(self.model, heads, self.replacement, self.values, self.seed), self.batch
            else:
                edits = {site: self._edit(site, head_sets) for heads in head_sets for site in heads}
                off, batch = edit_outputs(self.model, "ablation()", edits), _repeated(self.batch, copies, rows)
            stack.enter_context(off)
            return self._losses(batch).split(rows)

    def _edit(self, site: Site, head_sets: Sequence[HeadSet]) -> Edit:
        """Return the edit of z, (copies * B, T, head, width), that switches off each set's heads in its own copy."""
        how = (self.replacement, self.values[site.key], self.seed)
        edits = [replacement_edit(site, off[site], *how) if site in off else (lambda z: z) for off in head_sets]
        return lambda z: torch.cat([edit(copy) for edit, copy in zip(edits, z.chunk(len(edits)), strict=True)])

    def _affordable_copies(self) -> int:
        """Return how many copies of the batch one run may have; 1 where its rows could be taken for something else."""
        # With as many rows as tokens, a tensor with one row per token would be repeated, too.
        square = any(len(self.full) in value.shape[1:] for value in self.batch.values() if isinstance(value, Tensor))
        # A loss of the user's may know the examples of the batch, and uniform attention is that of a layer.
        if square or not of_labels(self.loss) or self.per == "batch" or self.replacement == "uniform":
            return 1
        return max(1, _TOKENS // self.tokens)

    def _passes(self, first_batch: bool) -> bool:
        """Tell whether runs that begin at the last site, with nothing changed, have the losses of the full run.

        The first batch tries the last site of every kind, after a run without any heads: what a model stores beside the
        outputs of its layers is then wrong, and shows. Of several copies the last has all heads of the site off, and
        the others must not notice.
        """
        last = sorted(filter(self._ran_once, self.measured), key=lambda site: self.started[site.out])[-1:]
        try:
            if first_batch:
                last = list({(site.stack, site.kind): site for site in self.measured if self._ran_once(site)}.values())
                with edit_outputs(self.model, "ablation()", dict.fromkeys(sites(self.model), torch.zeros_like)):
                    self._losses(self.batch)
            for site in last:
                head_sets = [{}] * max(1, self.copies - 1) + [{site: list(range(site.heads))}] * (self.copies > 1)
                for unchanged in self._run(site, head_sets)[: max(1, self.copies - 1)]:
                    if not ((unchanged - self.full).abs() <= rounding(self.model, self.full)).all():
                        return False
        except Exception:  # a model that cannot be run like this is run in full
            return False
        return True

    def _ran_once(self, site: Site) -> bool:
        return self.calls[site.out] == self.calls[site.module] == 1

    def _losses(self, batch: Mapping) -> Tensor:
        return each_loss(self.model, batch, self.loss, per=self.per).cpu().double()

    def _watched(self, module: nn.Module, own: Callable, *args: Any, **kwargs: Any) -> Any:
        self.calls[module], self.started[module] = self.calls[module] + 1, len(self.ended)
        output = own(*args, **kwargs)
        if module in self.projections:
            # I-BERT's projections return a scale as well
            projected = output[0] if isinstance(output, tuple) else output
            self.tokens = max(self.tokens, projected.shape[:-1].numel())
        else:
            self.ended.append((module, _repeated(output)))  # a copy: a model may change tensors in place
        return output


def _parts(model: nn.Module, site: Site) -> list[nn.Module]:
    """Return an attention layer, its output projection and, if there is one, the block around both.

    Transformers' blocks are ``GradientCheckpointingLayer``; in other models a block is an entry of a list of layers.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    path, blocks = site.name.split("."), []
    for n in range(len(path) - 1, 0, -1):
        around = model.get_submodule(".".join(path[:n]))
        if any(inner is site.out for inner in around.modules()):
            if isinstance(around, GradientCheckpointingLayer):
                return [site.module, site.out, around]
            blocks += [around] * path[n - 1].isdigit()
    return [site.module, site.out, *blocks[:1]]


def _replace_forward(stack: ExitStack, module: nn.Module, forward: Callable) -> None:
    """Give one module another forward, around which its hooks stay in place, until the stack is left."""
    if "forward" in module.__dict__:  # accelerate, for one, puts one there
        stack.callback(module.__dict__.update, forward=module.__dict__["forward"])
    else:
        stack.callback(module.__dict__.pop, "forward")
    module.__dict__["forward"] = forward


def _repeated(value: Any, copies: int = 1, rows: int = 0, *_input: Any, **_of_a_forward: Any) -> Any:
    """Return new tensors in the same tuple, list or dict, those with ``rows`` rows repeated, copy after copy."""

    def repeat(tensor: Tensor) -> Tensor:
        per_example = copies > 1 and tensor.dim() > 0 and len(tensor) == rows
        return tensor.repeat(copies, *[1] * (tensor.dim() - 1)) if per_example else tensor.clone()

    return tree_map_only(Tensor, repeat, value)
