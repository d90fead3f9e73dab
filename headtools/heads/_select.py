"""Turn what the user calls heads, {("encoder", 2): [0, 5]} or [("encoder", 2, 0)], into sites and head indices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from headtools.heads.sites import Site, Sites, as_int

Heads = Mapping[tuple, Iterable[int]] | Iterable[tuple]


def select(sites: Sites, heads: Heads, original: bool = False) -> dict[Site, list[int]]:
    """Return the selected heads as {site: [head, ...]}, sorted.

    ``heads``: ``{("encoder", 2): [0, 5]}`` or ``[("encoder", 2, 0), ...]``, with head indices as the sites have them
    now, or, with ``original``, as they were before any pruning.

    Raises ``TypeError`` for any other form, ``KeyError`` for an unknown site, ``IndexError`` for a head out of range
    and ``ValueError`` for one named twice.
    """
    if isinstance(heads, Mapping):
        requests = [(key, _as_list(key, indices)) for key, indices in heads.items()]
    elif isinstance(heads, Iterable) and not isinstance(heads, (str, Tensor)):
        requests = [(name[:-1], [name[-1]]) for name in map(_check_head_name, heads)]
    else:
        raise TypeError(f'heads must look like {{("encoder", 2): [0, 5]}} or [("encoder", 2, 0)], got {heads!r}')
    selected: dict[Site, list[int]] = {}
    for key, indices in requests:
        site = sites[key]
        if isinstance(site, Sites):
            raise KeyError(f"{key!r} names a kind, not a site: write {site.all[0].key}")
        for head in (_head_index(head, site) for head in indices):
            if original:  # heads are named as they were before any pruning; the weights have those that remain
                if head not in site.original:
                    remaining = list(site.original)
                    raise ValueError(f"head {site.label}.{head} is not there; the remaining heads are {remaining}")
                head = site.original.index(head)
            if not 0 <= head < site.heads:
                raise IndexError(f"{site.label} has heads 0..{site.heads - 1}, got {head} (heads count from 0)")
            if head in selected.setdefault(site, []):
                raise ValueError(f"head {site.label}.{head} is named twice: name each head once")
            selected[site].append(head)
    return {site: sorted(indices) for site, indices in selected.items()}


def _as_list(key: object, indices: object) -> list:
    if isinstance(indices, Iterable) and not isinstance(indices, (str, bytes)):
        return list(indices)
    raise TypeError(f"the heads of {key} must be a list, got {indices!r}; write {{{key}: [{indices}]}}")


def _head_index(head: object, site: Site) -> int:
    """Return a head's index as a Python int; numpy's integers, as in a pandas frame, are accepted."""
    try:
        return as_int(head)
    except TypeError:
        raise TypeError(f"a head is an integer, got {head!r} for {site.label}") from None


def _check_head_name(name: object) -> tuple:
    if isinstance(name, (tuple, list)) and len(name) in (3, 4):
        return tuple(name)
    raise TypeError(f'a head is named (kind, layer, head), e.g. ("encoder", 2, 0), got {name!r}')
