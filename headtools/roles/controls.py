"""Heads that cannot have learned a role: of an untrained twin of the model, and of its own maps, shuffled."""

import copy

import torch
from torch import Tensor, nn

from headtools.heads.prune import pruned


def untrained(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return a twin of the model that was never trained: the same configuration, weights as the library draws them.

    What is found in it came with the words and the architecture, not with training. ``seed`` is that of the draw. The
    twin has the model's data type and device and is in eval mode; torch's own random state is left as it was.

    Raises TypeError for a model without a configuration, ValueError for a pruned one, whose shape its configuration
    does not tell.

    >>> import headtools as ht
    >>> model, _ = ht.load()
    >>> twin = untrained(model)
    >>> twin.config.d_model, bool((twin.model.shared.weight == model.model.shared.weight).all())
    (128, False)
    """
    if getattr(model, "config", None) is None:
        raise TypeError(f"{type(model).__name__} has no configuration to draw a twin from; build it anew with a seed")
    if pruned(model):
        raise ValueError("the model is pruned, and its configuration tells its shape before; use the whole model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        twin = type(model)(copy.deepcopy(model.config))
    weight = next(model.parameters())
    return twin.to(weight.device, weight.dtype).eval()


def shuffled(maps: Tensor, visible: Tensor, generator: torch.Generator) -> Tensor:
    """Each row's weights handed out anew, at random, among the keys it may see: (B, head, Q, K) to the same.

    How sharp a head is stays as it was, where it looks is chance. ``visible`` (B, 1, Q, K), or what broadcasts to it.

    >>> draw = torch.Generator().manual_seed(0)
    >>> shuffled(torch.tensor([[[[0.75, 0.25, 0.0]]]]), torch.tensor([[[[True, True, False]]]]), draw)[..., 2]
    tensor([[[0.]]])
    """
    visible = visible.expand_as(maps)
    known = (~visible).long().argsort(dim=-1, stable=True)  # visible keys first, in their order
    lots = torch.rand(maps.shape, generator=generator).to(maps.device).masked_fill(~visible, 2.0)
    return torch.zeros_like(maps).scatter(-1, lots.argsort(-1), maps.gather(-1, known))
