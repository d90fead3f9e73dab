"""Take out of a head's output what a linear probe could find, and nothing more: ``erasure`` and ``erased``.

A probe finds what is present. To see whether it is used, remove it and watch the model, beside removing as many
directions at random (after Elazar et al. 2021, arXiv:2006.00995, who call it amnesic probing). What is removed here is
the smallest change after which no linear probe beats the majority on the words it was made from (Belrose et al. 2023,
arXiv:2306.03819, who prove it).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.heads._checks import check_not_compiled
from headtools.heads._hooks import hook_input, intervention
from headtools.heads._precision import without_autocast
from headtools.heads._select import select
from headtools.heads.sites import Site, sites


@dataclass(frozen=True, eq=False)
class Erasure:
    """An affine map z − (z − mean) @ matrix: ``mean`` (d,), ``matrix`` (d, d) of rank ``rank``, float64."""

    mean: Tensor
    matrix: Tensor
    rank: int

    @without_autocast
    def __call__(self, z: Tensor) -> Tensor:
        """Apply it to vectors (..., d), in their own data type."""
        return z - (z - self.mean.to(z)) @ self.matrix.to(z)


def erasure(x: Tensor, labels: Sequence[str], *, random: bool = False, seed: int = 0) -> Erasure:
    """Make the map that takes a label out of vectors: x (n, d) and n labels.

    With W = Σ^(−½) the whitening of x and P the projection on the directions in which, whitened, the means of the
    labels differ, it is z − (z − mean) W P W⁻¹: at most one direction fewer than there are labels. With ``random`` as
    many directions are drawn with ``seed`` from all that x has, equally likely when whitened: what to compare with.

    Raises ValueError for labels and vectors of unlike number, fewer than two labels, or vectors that are all the same.

    >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 0.0], [2.0, 1.0]])
    >>> take = erasure(x, ["a", "a", "b", "b"])
    >>> take(x).tolist(), take.rank
    ([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]], 1)
    """
    names = sorted(set(labels))
    if x.dim() != 2 or len(x) != len(labels) or len(names) < 2:
        raise ValueError(
            f"x of shape {tuple(x.shape)} came with {len(labels)} labels, {len(names)} of them different; needed: x "
            "(n, features), n labels, two or more different ones"
        )
    x = x.detach().cpu().double()
    mean = x.mean(0)
    size, axes = torch.linalg.eigh((x - mean).T @ (x - mean) / len(x))
    kept = size > 1e-10 * size[-1]
    if not size[-1] > 0:
        raise ValueError("all vectors are the same, so there is nothing to take out of them")
    axes, root = axes[:, kept], size[kept].sqrt()
    whiten, back = axes / root, (axes * root).T  # (d, r) and (r, d)
    number = torch.tensor([names.index(label) for label in labels])
    hot = torch.nn.functional.one_hot(number, len(names)).double()
    between = whiten.T @ (x - mean).T @ (hot - hot.mean(0)) / len(x)  # (r, label): where whitened means differ
    left, strength, _ = torch.linalg.svd(between, full_matrices=False)
    found = left[:, strength > 1e-9]
    rank = found.shape[1]
    if random:
        draw = torch.Generator().manual_seed(seed)
        found = torch.linalg.qr(torch.randn(len(root), rank, generator=draw, dtype=torch.double)).Q
    return Erasure(mean, whiten @ found @ found.T @ back, rank)


@contextmanager
def erased(model: nn.Module, maps: Mapping[tuple, Erasure]) -> Iterator[None]:
    """Put every token's z through an erasure while the context lasts.

    ``maps``: {("encoder", 5, 1): erasure of one head, (value_dim,) vectors}, or {("encoder", 5): erasure of a whole
    layer's heads side by side}. The model is left as it was, bit for bit. With ``record``, ``gates`` and ``ablate``
    hooks run in the order of entry.

    Raises KeyError or IndexError for a head or layer that is not there, ValueError for an erasure of another width,
    and RuntimeError for a model compiled before.

    >>> import headtools as ht
    >>> model, _ = ht.load()
    >>> with erased(model, {("encoder", 5, 1): erasure(torch.randn(50, 16), ["a", "b"] * 25)}):
    ...     pass
    """
    check_not_compiled(model)
    found = sites(model)
    keys = {site.key for site in found}
    with ExitStack() as stack:
        stack.enter_context(intervention(model, "erased()", found))
        for key, erase in maps.items():
            if key in keys:
                site, head, width = found[key], None, found[key].heads * found[key].value_dim
            else:
                ((site, (head,)),) = select(found, [key]).items()
                width = site.value_dim
            if len(erase.mean) != width:
                raise ValueError(f"{key} has {width} features, and the erasure was made from {len(erase.mean)}")
            stack.callback(hook_input(site.out, _change(site, head, erase)).remove)
        yield


def _change(site: Site, head: int | None, erase: Erasure) -> Callable:
    def change(read: Tensor) -> Tensor:
        z = site.split(read).clone()
        if head is None:
            z = erase(z.flatten(-2)).view_as(z)
        else:
            z[..., head, :] = erase(z[..., head, :])
        return site.join(z)

    return change
