"""A step of a lesson once more on a real model: ``live``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def live(name: str) -> Callable[[Callable[[Any, Any], None]], None]:
    """Call the function below with a real model and its tokenizer, where the model is on this machine.

    Where it is not, a sentence says how to get it: nothing is downloaded. What the function names is its own, so that
    nothing of the lesson changes, and the model is gone when it ends; its own name is None afterwards.

    Raises ``ValueError`` for a model that is none of the course's.

    >>> @live("smollm3")
    ... def on_the_real_model(real, reads): ...
    Traceback (most recent call last):
    ValueError: got 'smollm3'; expected one of 'minilm', 'smollm2', 'smollm2-base', 'whisper'
    """
    from headtools.organism import load
    from headtools.organism.real_models import REAL

    if name not in REAL:
        raise ValueError(f"got {name!r}; expected one of {', '.join(map(repr, sorted(REAL)))}")

    def run(function: Callable[[Any, Any], None]) -> None:
        try:
            model, tokenizer = load.load(name, fetch=False)
        except FileNotFoundError:
            title = REAL[name].hub.split("/")[1]
            print(f"{title} is not on this machine: ht.load({name!r}) downloads it, once.")
        else:
            function(model, tokenizer)

    return run
