"""Controls, heads that cannot have learned a role: an untrained twin of the model, and its own maps, shuffled."""

import copy

import torch
from torch import Tensor, nn

from headtools.heads.prune import pruned


def untrained(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return a twin of the model that was never trained: the same configuration, weights as the library draws them.

    ``seed`` is that of its weights. The twin has the model's data type and device and is in eval mode; torch's global
    random state is left as it was. Raises TypeError for a model without a configuration, ValueError for a pruned one.

    >>> import headtools as ht
    >>> model, _ = ht.load()
    >>> bool((untrained(model).model.shared.weight == model.model.shared.weight).all())
    False
    """
    if getattr(model, "config", None) is None:
        raise TypeError(f"{type(model).__name__} has no configuration to build a twin from; build it again with a seed")
    if pruned(model):
        raise ValueError("the model is pruned, but its configuration is not; use the model before pruning")
    with torch.random.fork_rng(devices=[]):  # weights are drawn on the CPU, from the global random state
        torch.manual_seed(seed)
        twin = type(model)(copy.deepcopy(model.config))
    weight = next(model.parameters())
    return twin.to(weight.device, weight.dtype).eval()


def shuffled(maps: Tensor, visible: Tensor, generator: torch.Generator) -> Tensor:
    """Each row's weights, randomly permuted among the keys that it can see: (B, head, Q, K) to the same shape.

    How sharp a head is stays the same, where it attends is random. ``visible`` is (B, 1, Q, K), or broadcasts to it.

    >>> generator = torch.Generator().manual_seed(0)
    >>> shuffled(torch.tensor([[[[0.75, 0.25, 0.0]]]]), torch.tensor([[[[True, True, False]]]]), generator)[..., 2]
    tensor([[[0.]]])
    """
    visible = visible.expand_as(maps)
    # Indices of the keys, those that the row sees first: their weights go to the same keys in random order.
    visible_first = (~visible).long().argsort(dim=-1, stable=True)
    # Sorting random numbers below 1 permutes the visible keys; the others, at 2, come last.
    random = torch.rand(maps.shape, generator=generator).to(maps.device).masked_fill(~visible, 2.0)
    return torch.zeros_like(maps).scatter(-1, random.argsort(-1), maps.gather(-1, visible_first))
