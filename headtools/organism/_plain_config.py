"""The configuration by which transformers alone builds a pruned model, where there is one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from headtools.heads._layer_config import unwrapped
from headtools.heads._layout import PRUNED
from headtools.heads.prune import KEY_HEADS, QUERY_HEADS
from headtools.heads.sites import Site, sites

Settings = dict[str, dict[str, Any]]  # {"text_config": {"num_attention_heads": 6}}, "" for the model's own

_DIFFERENT = "its layers have different numbers of heads, and config.json can tell one only"


def smaller_config(model: nn.Module) -> tuple[Any, Settings, str | None]:
    """Return a configuration that tells the sizes of a pruned model, what stood there before, and why there is none.

    The first is None and the last a reason where layers differ or the configuration lacks the settings. Whether a
    model built by it is the same in all but its shapes is for the caller to see.

    >>> from transformers import LlamaConfig, LlamaModel
    >>> import headtools as ht
    >>> tiny = LlamaConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8,
    ...                    vocab_size=9)
    >>> model = LlamaModel(tiny)
    >>> ht.prune(model, {("decoder", 0): [1, 3], ("decoder", 1): [0, 2]})
    >>> config, before, why = smaller_config(model)
    >>> config.num_attention_heads, config.head_dim, before[""]["num_attention_heads"]
    (2, 4, 4)
    """
    config = copy.deepcopy(model.config)
    if not any(PRUNED in site.module.__dict__ for site in sites(model)):
        return None, {}, None
    sizes: Settings = {}
    before: Settings = {}
    for path, group in _by_config(model).items():
        if path is None:
            return None, {}, f"some of its layers read a configuration that {type(config).__name__} does not hold"
        if len({(site.heads, site.kv_heads, site.head_dim) for site in group}) > 1:
            return None, {}, _DIFFERENT
        if any(PRUNED in site.module.__dict__ for site in group):
            part = _part(config, path)
            sizes[path] = _sizes(part, group[0])
            before[path] = {name: getattr(part, name) for name in sizes[path] if hasattr(part, name)}
    try:
        put(config, sizes)
        with torch.device("meta"):
            shapes = {name: value.shape for name, value in type(model)(copy.deepcopy(config)).state_dict().items()}
    except Exception as error:  # whatever a model says of sizes that it cannot have
        return None, {}, f"{type(model).__name__} cannot be built with these sizes: {error}"
    odd = [name for name, value in model.state_dict().items() if shapes.get(name) != value.shape]
    if odd:
        return None, {}, f"{type(config).__name__} has no settings from which {odd[0]} gets its shape"
    return config, before, None


def put(config: Any, settings: Settings) -> None:
    """Set settings in a configuration and in those inside it."""
    for path, values in settings.items():
        for name, value in values.items():
            setattr(_part(config, path), name, value)


def _sizes(config: Any, site: Site) -> dict[str, int]:
    """Return what the configuration of a site should tell, under the names that it has."""
    sizes = {**dict.fromkeys(QUERY_HEADS, site.heads), **dict.fromkeys(KEY_HEADS, site.kv_heads)}
    aliases = set(config.attribute_map)
    return {name: size for name, size in sizes.items() if hasattr(config, name) and name not in aliases} | {
        "head_dim": site.head_dim
    }


def _by_config(model: nn.Module) -> dict[str | None, list[Site]]:
    """Return the sites of each configuration, by its place in the model's own; None for one that is not in there."""
    places = {id(part): path for path, part in _parts(model.config)}
    groups: dict[str | None, list[Site]] = {}
    for site in sites(model):
        config = _config_of(model, site)
        copied = type(config) is type(model.config)  # T5 gives each of its stacks a copy
        groups.setdefault(places.get(id(config), "" if copied else None), []).append(site)
    return groups


def _config_of(model: nn.Module, site: Site) -> Any:
    """Return the configuration that a site was built from: its module's, or that of the module around it."""
    name = site.name
    while True:
        config = unwrapped(getattr(model.get_submodule(name), "config", None))
        if config is not None or not name:
            return config
        name = name.rpartition(".")[0]


def _parts(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a configuration and those inside it, each with its place: "" and "text_config"."""
    yield path, config
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            yield from _parts(part, f"{path}.{name}" if path else name)


def _part(config: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        config = getattr(config, name)
    return config
