"""Models to study: the organism that ships with the package, a folder on disk, or a name on the Hub.

>>> model, tokenizer = load()
>>> type(model).__name__, model.training, model.dtype
('MarianMTModel', False, torch.float32)
>>> tokenizer("the dog slept .").tokens()
['the', 'dog', 'slept', '.', '</s>']
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headtools._engine.progress import print_encodable
from headtools.organism import snapshots
from headtools.organism._checksums import ASSETS, CHECKSUMS, listed, verify
from headtools.organism._reopened import CUT, read_pruned, short
from headtools.organism.real_models import REAL, locate

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")
_PATH = re.compile(r"/.*/|\\|^[A-Za-z]:")  # no name on the Hub: more than owner/model, or a path of Windows


def load(
    name: str | Path | None = None, *, dtype: torch.dtype = torch.float32, step: int | None = None
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase | None]":
    """Load a model in eval mode, with the attention implementation that shows its maps, and its tokenizer.

    ``name`` is None for the organism (a ``MarianMTModel`` with 6 + 6 layers of 8 heads, and a word-level
    ``PreTrainedTokenizerFast``), a folder that ``save_pretrained`` or, for a pruned model,
    ``headtools.save`` wrote, or a name on the Hugging Face Hub. The
    model's class is the one its ``config.json`` names under ``architectures``, or plain ``AutoModel`` where it names
    none. The tokenizer is None for a folder without one, as is usual for models of images and sound. ``"smollm2"`` and
    ``"minilm"`` are real models that :mod:`headtools.organism.real_models` finds on this machine; which it found is
    printed.

    ``step`` gives the organism after that many of 9,000 training steps, from weights stored in half precision (of a
    second run of its training: see :mod:`headtools.organism.snapshots`, whose ``steps()`` lists them).

    Weights are read from safetensors only, and code that comes with a model is never run.

    Raises FileNotFoundError for a folder, file or real model that is not there, ValueError for a damaged, altered or
    incomplete model, ConnectionError where the Hub cannot be reached or does not have the name.
    """
    if step is not None and name is not None:
        raise ValueError(f"step={step} of {str(name)!r}: only the organism has snapshots; write load(step={step})")
    if name is None:
        return _from_folder(ASSETS, dtype) if step is None else _snapshot(step, dtype)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _from_folder(folder, dtype)
    if name in REAL:
        folder, which = locate(name)
        print_encodable(which)
        return _from_folder(folder, dtype)
    if isinstance(name, Path) or folder.exists() or name.startswith((".", "/", "~")) or _PATH.search(name):
        came = "a file" if folder.exists() else "nothing"
        raise FileNotFoundError(
            f"{name}: {came} is there; needed: a folder with config.json and model.safetensors. "
            f"Write one with model.save_pretrained({str(name)!r})"
        )
    return _from_hub(str(name), dtype)


def _from_folder(folder: Path, dtype: torch.dtype) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase | None]":
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json; write the folder with model.save_pretrained(folder)")
    _verify(folder)
    if not any(folder.glob("*.safetensors")):
        old = " It has pickled weights (.bin), which are not read." if any(folder.glob("*.bin")) else ""
        raise FileNotFoundError(
            f"{folder} has no *.safetensors, so there are no weights to load.{old} "
            "Write them with model.save_pretrained(folder, safe_serialization=True)"
        )
    with _no_bar():
        model = _smaller(folder, dtype) if (folder / CUT).is_file() else _model(str(folder), dtype)
    if not any((folder / file).is_file() for file in _TOKENIZERS) and not any(folder.glob("*.spm")):
        return model, None
    return model, _tokenizer(str(folder))


def _smaller(folder: Path, dtype: torch.dtype) -> "PreTrainedModel":
    config = _config(str(folder))
    return read_pruned(_architecture(config), config, folder, dtype)


def _snapshot(step: int, dtype: torch.dtype) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    weights = snapshots.weights(step)  # first: it refuses a step that is not there
    model, tokenizer = _from_folder(ASSETS, dtype)
    lacking, unknown = model.load_state_dict(weights, strict=False)
    if odd := [*unknown, *(set(lacking) - snapshots.DERIVED)]:
        raise ValueError(f"step {step}: not a snapshot of this model ({odd[0]} does not fit); write make organism")
    return model, tokenizer


def _from_hub(name: str, dtype: torch.dtype) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase | None]":
    try:
        model = _model(name, dtype)
    except OSError as error:
        raise ConnectionError(
            f"{name!r} is no folder here, and the Hugging Face Hub did not give it: {short(error)} "
            f"Needed: a connection and the model's full name (owner/model), or a copy on disk. Where there is a "
            f"connection: hf download {name} --local-dir my-model; then load('./my-model'). "
            "The organism needs no connection: load()"
        ) from error
    try:
        return model, _tokenizer(name)
    except (OSError, ValueError, KeyError):
        if model.main_input_name == "input_ids":
            raise
        return model, None  # a model of images or sound


def _verify(folder: Path) -> None:
    """Compare the folder with its own list of checksums, if it has one."""
    for file, wanted in (listed(folder) if (folder / CHECKSUMS).exists() else {}).items():
        verify(folder, file, wanted)


def _architecture(config: "PreTrainedConfig") -> type:
    import transformers

    for architecture in config.architectures or ():
        found = getattr(transformers, architecture, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    return transformers.AutoModel


def _model(name: str, dtype: torch.dtype) -> "PreTrainedModel":
    config = _config(name)
    with _told(name):
        model, report = _architecture(config).from_pretrained(
            name, config=config, dtype=dtype, use_safetensors=True, trust_remote_code=False,
            attn_implementation="eager", output_loading_info=True,
        )  # fmt: skip
    lacking = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if lacking:
        raise ValueError(
            f"{name}: {len(lacking)} weights of {type(model).__name__} are missing or of another shape, such as "
            f"{lacking[0]!r}; they would stay random. Save the whole model again with model.save_pretrained(folder)"
        )
    return model.eval()


def _config(name: str) -> "PreTrainedConfig":
    from transformers import AutoConfig

    with _told(name):
        return AutoConfig.from_pretrained(name, trust_remote_code=False)


@contextmanager
def _told(name: str, what: str = "a model") -> Iterator[None]:
    """Say of which folder it is that transformers stumbles over, whatever the error that a damaged file leads to."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{name}: the weights are damaged or cut short ({error}); copy them again") from error
    except Exception as error:
        if isinstance(error, OSError):
            raise
        raise ValueError(f"{name}: not {what} that transformers can load by itself: {short(error)}") from error


@contextmanager
def _no_bar() -> Iterator[None]:
    """Keep the bar that counts a model's few hundred weights out of the notebooks."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _tokenizer(name: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    with _told(name, "a tokenizer"):
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


@torch.no_grad()
def translate(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    sentences: Sequence[str | Sequence[str]],
    batch_size: int = 32,
    longest: int = 64,
) -> list[str]:
    """Translate sentences greedily with a sequence-to-sequence model; works inside ``ablate`` and ``gates``.

    ``sentences`` are strings, or sequences of words as in ``Sentence.words``; at most ``longest`` tokens are written
    for each. Returns one string a sentence, in order. Raises ValueError for a single string, an empty list, an empty
    sentence or a word the tokenizer does not know.

    >>> model, tokenizer = load()
    >>> len(translate(model, tokenizer, ["the dog slept ."]))
    1
    """
    if isinstance(sentences, str) or not sentences:
        raise ValueError(
            f"{sentences!r} came, a list of sentences is needed; write translate(model, tokenizer, ['the dog slept .'])"
        )
    texts = [s if isinstance(s, str) else " ".join(s) for s in sentences]
    for text in texts:
        unknown = [] if tokenizer.unk_token_id is None else _unknown(tokenizer, text)
        if unknown or not text.strip():
            what = f"unknown words: {', '.join(unknown)}" if unknown else "no words"
            raise ValueError(
                f"{what} in {text!r}; the organism's words are those of headtools.organism.lexicon, in small letters"
            )
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # alike in length: less padding
    out = [""] * len(texts)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = tokenizer([texts[i] for i in chosen], return_tensors="pt", padding=True).to(model.device)
        written = model.generate(**batch, num_beams=1, do_sample=False, max_new_tokens=longest)
        for i, text in zip(chosen, tokenizer.batch_decode(written, skip_special_tokens=True), strict=True):
            out[i] = text
    return out


def _unknown(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[str]:
    unknown = tokenizer.unk_token_id
    return [word for word in text.split() if unknown in tokenizer(word, add_special_tokens=False).input_ids]
