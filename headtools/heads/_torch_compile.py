"""``torch.compile`` and hooks: code compiled without hooks must not run where there are some.

By default torch assumes that a module's hooks never change after compilation (``skip_nnmodule_hook_guards``). Code
compiled for a module without hooks then also serves that module once it has hooks, and every other module of the same
class, such as the next layer: gates or recordings would be skipped silently.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SETTING = "skip_nnmodule_hook_guards"
_lock = threading.Lock()
_open_settings: list[bool] = []  # one entry per open context: the setting before the first of them


@contextmanager
def guard_hooks() -> Iterator[None]:
    """Make compiled code check for hooks while the context lasts, and discard code that was compiled without the check.

    Contexts may be nested and may end in any order.

    >>> with guard_hooks():
    ...     torch._dynamo.config.skip_nnmodule_hook_guards
    False
    """
    dynamo = sys.modules.get("torch._dynamo")  # not imported: a model that was never compiled does not need it
    if dynamo is None or not hasattr(dynamo.config, _SETTING) or torch.compiler.is_compiling():
        yield
        return
    with _lock:
        _open_settings.append(_open_settings[0] if _open_settings else getattr(dynamo.config, _SETTING))
        setattr(dynamo.config, _SETTING, False)
        dynamo.reset()  # takes some 0.02 ms where nothing was compiled
    try:
        yield
    finally:
        with _lock:
            original = _open_settings.pop()
            if not _open_settings:
                setattr(dynamo.config, _SETTING, original)
