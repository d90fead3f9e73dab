"""The configuration of one pruned layer: its own sizes, and the model's for everything else."""

from __future__ import annotations

from typing import Any


class LayerConfig:
    """A view of a model's configuration in which some settings have another value, for a pruned layer.

    Phi-3's attention reads its number of heads from the configuration that all layers share, so a pruned layer needs
    its own. A copy would miss later changes: ``set_attn_implementation`` would change the mask and the other layers,
    and leave this layer with the old kernel. So everything not in ``own`` is read from and written to ``shared``.

    >>> from types import SimpleNamespace
    >>> shared = SimpleNamespace(num_attention_heads=8, sliding_window=None)
    >>> layer = LayerConfig(shared, {"num_attention_heads": 6})
    >>> shared.sliding_window = 4
    >>> layer.num_attention_heads, layer.sliding_window, shared.num_attention_heads
    (6, 4, 8)
    """

    shared: Any
    own: dict[str, Any]

    def __init__(self, shared: Any, own: dict[str, Any]) -> None:
        from headtools.heads._attention import register  # not at the top: _attention imports this module

        register()  # for a new process that has only unpickled the model
        self.__dict__.update(shared=unwrapped(shared), own=dict(own))

    def __getattr__(self, name: str) -> Any:
        parts = self.__dict__
        if name.startswith("__") or "shared" not in parts:  # copy and pickle look these up before __init__ has run
            raise AttributeError(name)
        return parts["own"][name] if name in parts["own"] else getattr(parts["shared"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(self.own.get(name), int):
            self.own[name] = value
        else:
            setattr(self.shared, name, value)

    def __reduce__(self) -> tuple:
        return LayerConfig, (self.shared, self.own)

    def __repr__(self) -> str:
        return f"LayerConfig({type(self.shared).__name__}, {self.own})"


def unwrapped(config: Any) -> Any:
    """Return the model's configuration behind a pruned layer's own, or ``config`` itself."""
    return config.shared if isinstance(config, LayerConfig) else config
