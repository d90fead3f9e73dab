"""``torch.compile`` beside hooks: what it compiled without them must not be used again where there are some."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SETTING = "skip_nnmodule_hook_guards"  # true: compiled code does not look whether a module has hooks
_lock = threading.Lock()
_contexts: list[bool] = []  # the setting that each context under way found, the first one's first


@contextmanager
def hooks_are_seen() -> Iterator[None]:
    """Let compiled code look for hooks while the context lasts, and forget what was compiled without looking.

    By default code that was compiled for a module without hooks serves the same module with hooks, and every other
    module like it (the layers of a model): what a hook does would be left out without a word. Contexts may be nested
    and may end in any order.

    >>> with hooks_are_seen():
    ...     torch._dynamo.config.skip_nnmodule_hook_guards
    False
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None or not hasattr(dynamo.config, _SETTING) or torch.compiler.is_compiling():
        yield
        return
    with _lock:
        _contexts.append(getattr(dynamo.config, _SETTING) if not _contexts else _contexts[0])
        setattr(dynamo.config, _SETTING, False)
        dynamo.reset()  # a fiftieth of a millisecond where nothing was compiled
    try:
        yield
    finally:
        with _lock:
            before = _contexts.pop()
            if not _contexts:
                setattr(dynamo.config, _SETTING, before)
