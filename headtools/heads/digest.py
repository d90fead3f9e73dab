"""Names for content: the same for the same weights, tensors or texts, in every process and on every device."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def digest_model(model: nn.Module) -> str:
    """Return the digest of a model's weights: its class, and all it saves, by name; 64 hexadecimal digits.

    The same for the same weights on any device, in any process, in training or not. Buffers that a model does not save
    are left out: it computes them from its configuration (angles of positions, masks), and another machine may round
    them in another way. Hooks are not weights: inside ``ablate`` the digest stays what it was, after ``prune`` it is
    another.

    >>> one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> digest_model(one) == digest_model(two)
    False
    >>> _ = two.load_state_dict(one.state_dict())
    >>> digest_model(one) == digest_model(two)
    True
    """
    return digest(model)


def digest(*things: Any) -> str:
    """Return a name for some content: SHA-256, 64 hexadecimal digits, the same in every process and on every device.

    Takes None, numbers, texts, bytes, tensors, arrays, models, dicts (in any order), lists, tuples (as lists), sets and
    data classes such as ``Sentence``, inside one another; several things are a list of them. What differs in type
    differs: 1, 1.0, True and "1" are four.

    Raises ``TypeError`` for what has no content to read, such as a function or a generator.

    >>> digest({"ids": torch.tensor([1, 2]), "limit": 3}) == digest({"limit": 3, "ids": torch.tensor([1, 2])})
    True
    >>> digest("a", "bc") == digest("ab", "c")
    False
    """
    found = hashlib.sha256()
    _feed(found, things[0] if len(things) == 1 else list(things))
    return found.hexdigest()


def _feed(found: hashlib._Hash, thing: Any) -> None:
    """Add one thing to a digest: its kind, how much follows, and that, so that no two things read alike."""

    def add(kind: str, data: Any = b"") -> None:
        found.update(f"{kind} {len(data)}:".encode())
        found.update(data)

    if isinstance(thing, np.ndarray | np.generic):
        thing = thing.item() if isinstance(thing, np.generic) else torch.as_tensor(np.ascontiguousarray(thing))
    if thing is None or isinstance(thing, bool | int):
        add(type(thing).__name__, str(thing).encode())
    elif isinstance(thing, float):
        add("float", struct.pack("<d", thing) if thing == thing else b"nan")
    elif isinstance(thing, str):
        add("text", thing.encode("utf-8", "surrogatepass"))
    elif isinstance(thing, bytes | bytearray):
        add("bytes", bytes(thing))
    elif isinstance(thing, torch.dtype | torch.device | Path):
        add("named", str(thing).encode())
    elif isinstance(thing, Tensor) and thing.layout == torch.strided:
        add(f"tensor {thing.dtype} {tuple(thing.shape)}")
        flat = thing.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten()
        add("data", flat.view(torch.uint8).numpy())
    elif isinstance(thing, nn.Module):
        add("model", type(thing).__name__.encode())
        _feed(found, _Weights(thing))
    elif isinstance(thing, Mapping):
        add(f"dict {len(thing)}")
        by_digest = {digest(key): key for key in thing}
        for name in sorted(by_digest):
            add("key", name.encode())
            _feed(found, thing[by_digest[name]])
    elif isinstance(thing, Set):
        add(f"set {len(thing)}", "".join(sorted(map(digest, thing))).encode())
    elif isinstance(thing, Sequence):
        add(f"list {len(thing)}")
        for part in thing:
            _feed(found, part)
    elif is_dataclass(thing) and not isinstance(thing, type):
        add(f"data class {type(thing).__name__}")
        _feed(found, {field.name: getattr(thing, field.name) for field in fields(thing)})
    else:
        raise TypeError(
            f"{type(thing).__name__} has no content that a digest could read: give its name as text, or a list"
        )


class _Weights(Mapping):
    """Every parameter and every buffer that a model saves, by name, each read when it is asked for."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        held = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        skipped = {
            f"{prefix}.{name}" if prefix else name
            for prefix, module in model.named_modules(remove_duplicate=False)
            for name in module._non_persistent_buffers_set
        }  # fmt: skip
        self._held = {name: tensor for name, tensor in held if name not in skipped}

    def __getitem__(self, name: str) -> Tensor:
        if not self._held[name].is_meta:
            return self._held[name]
        where, _, own = name.rpartition(".")
        hook = getattr(self._model.get_submodule(where), "_hf_hook", None)
        for one in getattr(hook, "hooks", [hook]):
            if getattr(one, "weights_map", None) is not None:  # accelerate keeps there what it loads for a run
                return one.weights_map[own]
        raise TypeError(f"{name} has no content: it is on the meta device; load the weights first")

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
