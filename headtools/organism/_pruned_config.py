"""The configuration from which transformers alone builds a pruned model, where one exists.

A configuration of transformers states one number of heads for all layers that read it, and most derive the width of a
head from the model's width. So only a model whose layers were all pruned to the same sizes can have one, and only if
its configuration has a setting for the width of a head (``head_dim``).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from headtools.heads._attention import unwrapped_config
from headtools.heads._layout import PRUNED
from headtools.heads.prune import KEY_HEADS, QUERY_HEADS
from headtools.heads.sites import Site, sites

# Settings by the path of a sub-configuration, "" for the model's own: {"text_config": {"num_attention_heads": 6}}
Settings = dict[str, dict[str, Any]]

_DIFFERENT = "its layers have different numbers of heads, and config.json can state only one"


def pruned_config(model: nn.Module) -> tuple[Any, Settings, str | None]:
    """Return a configuration with the sizes of a pruned model, its former settings, and why there is none.

    The first is None and the last a reason where layers differ or the configuration lacks the settings. The caller
    must check that a model built from it differs in nothing but its shapes.

    >>> from transformers import LlamaConfig, LlamaModel
    >>> import headtools as ht
    >>> tiny = LlamaConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8,
    ...                    vocab_size=9)
    >>> model = LlamaModel(tiny)
    >>> ht.prune(model, {("decoder", 0): [1, 3], ("decoder", 1): [0, 2]})
    >>> config, former, reason = pruned_config(model)
    >>> config.num_attention_heads, config.head_dim, former[""]["num_attention_heads"]
    (2, 4, 4)
    """
    config = copy.deepcopy(model.config)
    if not any(PRUNED in site.module.__dict__ for site in sites(model)):
        return None, {}, None
    sizes: Settings = {}
    former: Settings = {}
    for path, group in _sites_by_config(model).items():
        if path is None:
            return None, {}, f"some of its layers read a configuration that {type(config).__name__} does not hold"
        if len({(site.heads, site.kv_heads, site.head_dim) for site in group}) > 1:
            return None, {}, _DIFFERENT
        if any(PRUNED in site.module.__dict__ for site in group):
            sub_config = _sub_config(config, path)
            sizes[path] = _sizes(sub_config, group[0])
            former[path] = {name: getattr(sub_config, name) for name in sizes[path] if hasattr(sub_config, name)}
    try:
        apply_settings(config, sizes)
        with torch.device("meta"):
            shapes = {name: value.shape for name, value in type(model)(copy.deepcopy(config)).state_dict().items()}
    except Exception as error:  # models raise all kinds of errors for sizes that they cannot have
        return None, {}, f"{type(model).__name__} cannot be built with these sizes: {error}"
    mismatched = [name for name, value in model.state_dict().items() if shapes.get(name) != value.shape]
    if mismatched:
        return None, {}, f"{type(config).__name__} has no settings that give {mismatched[0]} its shape"
    return config, former, None


def apply_settings(config: Any, settings: Settings) -> None:
    """Set settings in a configuration and its sub-configurations."""
    for path, values in settings.items():
        for name, value in values.items():
            setattr(_sub_config(config, path), name, value)


def _sizes(config: Any, site: Site) -> dict[str, int]:
    """Return the settings of a site's configuration for its sizes, by the names that this configuration uses."""
    sizes = {**dict.fromkeys(QUERY_HEADS, site.heads), **dict.fromkeys(KEY_HEADS, site.kv_heads)}
    aliases = set(config.attribute_map)
    return {name: size for name, size in sizes.items() if hasattr(config, name) and name not in aliases} | {
        "head_dim": site.head_dim
    }


def _sites_by_config(model: nn.Module) -> dict[str | None, list[Site]]:
    """Group sites by the path of their configuration within the model's; None for one that is not part of it."""
    paths = {id(sub_config): path for path, sub_config in _sub_configs(model.config)}
    groups: dict[str | None, list[Site]] = {}
    for site in sites(model):
        config = _config_of(model, site)
        copied = type(config) is type(model.config)  # T5 gives each of its stacks a copy
        groups.setdefault(paths.get(id(config), "" if copied else None), []).append(site)
    return groups


def _config_of(model: nn.Module, site: Site) -> Any:
    """Return the configuration that a site was built from: its module's, or that of the module around it."""
    name = site.name
    while True:
        config = unwrapped_config(getattr(model.get_submodule(name), "config", None))
        if config is not None or not name:
            return config
        name = name.rpartition(".")[0]


def _sub_configs(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a configuration and all its sub-configurations with their paths, such as "" and "text_config"."""
    yield path, config
    for name in config.sub_configs:
        if (sub_config := getattr(config, name, None)) is not None:
            yield from _sub_configs(sub_config, f"{path}.{name}" if path else name)


def _sub_config(config: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        config = getattr(config, name)
    return config
