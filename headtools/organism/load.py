"""Models to study: the organism that ships with the package, a folder on disk, or a name on the Hub.

>>> model, tokenizer = load()
>>> type(model).__name__, model.training, model.dtype
('MarianMTModel', False, torch.float32)
>>> tokenizer("the dog slept .").tokens()
['the', 'dog', 'slept', '.', '</s>']
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headtools.heads.prune import replay
from headtools.organism import snapshots
from headtools.organism._checksums import ASSETS, CHECKSUMS, verify
from headtools.organism.fetch import fetch as download
from headtools.organism.real_models import REAL, locate
from headtools.organism.second import SECOND

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

PRUNED_HEADS = "pruned_heads.json"  # what save() adds to a folder: {"heads": [...], "ungrouped": [...]}
_TOKENIZERS = ("tokenizer*.json", "vocab.txt", "vocab.json", "*.model", "*.spm")
_BATCH_SIZE = 32  # sentences that translate() gives the model at once
_PATH = re.compile(r"^[./~]|/.*/|\\|^[A-Za-z]:")  # more parts than the Hub's owner/model, or a path of Windows


def load(
    name: str | Path | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    step: int | None = None,
    fetch: bool = True,
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase | None]":
    """Load a model in eval mode, with the attention implementation that shows its maps, and its tokenizer.

    ``name`` is None or "organism" (a ``MarianMTModel`` with 6 + 6 layers of 8 heads, and a word-level
    ``PreTrainedTokenizerFast``), a folder written by ``save_pretrained`` or, for a pruned model, by ``headtools.save``,
    or a name on the Hugging Face Hub. ``"organism2"`` is the second organism (:mod:`headtools.organism.second`);
    ``"smollm2"``, ``"smollm2-base"``, ``"minilm"`` and ``"whisper"`` are real models
    (:mod:`headtools.organism.real_models`), found on this machine or else downloaded, once
    (:mod:`headtools.organism.fetch`); which one it is, is printed. With ``fetch=False`` nothing is ever downloaded.
    ``step`` gives the organism after so many of 9,000 training steps (:mod:`headtools.organism.snapshots`).

    The model's class is the one that its ``config.json`` names under ``architectures``, or ``AutoModel`` where it names
    none. The tokenizer is None for a folder without one, as is usual for models of images and sound. Weights are read
    from safetensors only, and code that comes with a model is never run.

    Raises FileNotFoundError for a missing folder, file or real model, ValueError for a damaged, altered or incomplete
    model, ConnectionError where the Hub cannot be reached or does not have the name, or where a download fails.
    """
    if step is not None:
        if name is not None:
            raise ValueError(f"step={step} of {str(name)!r}: only the organism has snapshots; write load(step={step})")
        return _snapshot(step, dtype)
    if name is None or name == "organism":
        return _from_folder(ASSETS, dtype)
    if name == SECOND:
        return _from_folder(ASSETS / "second", dtype)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _from_folder(folder, dtype)
    if name in REAL:
        try:
            folder, which = locate(name)
        except FileNotFoundError:
            if not fetch:
                raise
            download(name)
            folder, which = locate(name)
        print(which)
        return _from_folder(folder, dtype)
    if isinstance(name, Path) or folder.exists() or _PATH.search(name):
        got = "a file" if folder.exists() else "nothing"
        raise FileNotFoundError(
            f"{name}: {got} is there; expected a folder with config.json and model.safetensors. "
            f"Write one with model.save_pretrained({str(name)!r})"
        )
    return _from_hub(name, dtype, fetch)


def _from_folder(folder: Path, dtype: torch.dtype) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase | None]":
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json; write the folder with model.save_pretrained(folder)")
    if (folder / CHECKSUMS).exists():
        verify(folder)
    if not any(folder.glob("*.safetensors")):
        pickled = " It has pickled weights (.bin), which are not read." if any(folder.glob("*.bin")) else ""
        raise FileNotFoundError(
            f"{folder} has no *.safetensors, so there are no weights to load.{pickled} "
            "Write them with model.save_pretrained(folder, safe_serialization=True)"
        )
    with no_progress_bar():
        model = load_pruned(folder, dtype) if (folder / PRUNED_HEADS).is_file() else _load_model(str(folder), dtype)
    has_tokenizer = any(True for pattern in _TOKENIZERS for _ in folder.glob(pattern))
    return model, _tokenizer(str(folder)) if has_tokenizer else None


def _from_hub(name: str, dtype: torch.dtype, fetch: bool) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase | None]":
    try:
        model = _load_model(name, dtype, local=not fetch)
    except OSError as error:
        raise ConnectionError(
            f"{name!r} is not a folder here, and the Hugging Face Hub did not provide it ({shorten(error)}): give the "
            f"full name (owner/model), or, where there is a connection, hf download {name} --local-dir my-model, then "
            "load('./my-model'); the organism needs none: load()"
        ) from error
    try:
        return model, _tokenizer(name, local=not fetch)
    except (OSError, ValueError):
        if model.main_input_name == "input_ids":
            raise
        return model, None  # a model of images or sound


def _snapshot(step: int, dtype: torch.dtype) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    weights = snapshots.weights(step)  # before the model, since it raises for an unknown step
    model, tokenizer = _from_folder(ASSETS, dtype)
    model.load_state_dict(weights, strict=False)  # tied and fixed weights are not stored
    return model, tokenizer


def _load_model(name: str, dtype: torch.dtype, local: bool = True) -> "PreTrainedModel":
    """Load a model as transformers does, from a folder or the Hub; ``ValueError`` where weights are missing."""
    from transformers import GenerationConfig

    with _naming(name, "a model"):
        config = _config(name, local)
        whole = dtype == torch.float32 and not hasattr(config, "quantization_config")
        weights = _widened(Path(name)) if whole else None
        model, report = _architecture(config).from_pretrained(
            name if weights is None else None,
            state_dict=weights,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=local,
            trust_remote_code=False,
            attn_implementation="eager",
            output_loading_info=True,
        )
        if weights is not None:  # what transformers reads beside the weights
            model.name_or_path = model.config._name_or_path = name
            if (Path(name) / "generation_config.json").is_file():
                model.generation_config = GenerationConfig.from_pretrained(name)
    # transformers only warns of these
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        raise ValueError(
            f"{name}: {len(missing)} weights of {type(model).__name__} are missing or of another shape, such as "
            f"{missing[0]!r}; they would stay random. Save the complete model again with model.save_pretrained(folder)"
        )
    return model.eval()


def _widened(folder: Path) -> dict[str, torch.Tensor] | None:
    """Return weights that a folder has in half precision as float32, with the file opened anew for each.

    What was read of an open file counts as memory until it is closed: half as much again as the model, and with SmolLM2
    a kernel would have more than 1.5 GB. None for what transformers must read: other types, several files, and
    adapters, which it puts around the model.
    """
    from safetensors import safe_open

    path = folder / "model.safetensors"
    if not path.is_file() or (folder / "adapter_config.json").exists():
        return None
    with safe_open(path, "pt") as file:
        names = list(file.keys())
        stored = {file.get_slice(name).get_dtype() for name in names}
    if not stored & {"F16", "BF16"} or any(dtype.startswith("F8") for dtype in stored):
        return None
    weights = {}
    for name in names:
        with safe_open(path, "pt") as file:
            weight = file.get_tensor(name)
            weights[name] = weight.float() if weight.is_floating_point() else weight.clone()
    return weights


def load_pruned(folder: Path, dtype: torch.dtype) -> "PreTrainedModel":
    """Load what ``headtools.save`` wrote: build the full model, prune it again, and fill it with the weights.

    Raises ``ValueError`` where list, sizes and weights do not fit.
    """
    from safetensors.torch import load_model

    try:
        stored = json.loads((folder / PRUNED_HEADS).read_text(encoding="utf-8"))
        config = _config(str(folder))
        with torch.random.fork_rng(devices=[]):  # a new model draws weights, which are replaced below
            model = _architecture(config)._from_config(config, dtype=dtype, attn_implementation="eager")
        replay(model, [tuple(head) for head in stored["heads"]], stored["ungrouped"])
        missing, unexpected = load_model(model, folder / "model.safetensors", strict=False)
        # Not stored: what follows from the configuration, such as Marian's fixed positions.
        derived = model._keys_to_ignore_on_save or ()
        wrong = [*unexpected, *(name for name in missing if not any(re.search(pattern, name) for pattern in derived))]
        if wrong:
            raise ValueError(f"weights do not fit, such as {min(wrong)!r}")
    except Exception as error:  # a damaged file can lead to any error
        raise ValueError(f"{folder}: not a pruned model that can be read ({shorten(error)}); write it again") from error
    return model.eval()


def _config(name: str, local: bool = True) -> "PreTrainedConfig":
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(name, trust_remote_code=False, local_files_only=local)


def _architecture(config: "PreTrainedConfig") -> type:
    import transformers

    for architecture in config.architectures or ():
        cls = getattr(transformers, architecture, None)
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            return cls
    return transformers.AutoModel


def _tokenizer(name: str, local: bool = True) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    with _naming(name, "a tokenizer"):
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False, local_files_only=local)


@contextmanager
def _naming(name: str, what: str) -> Iterator[None]:
    """Raise what transformers and safetensors raise for a damaged file again as a ``ValueError`` that names it."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{name}: the weights are damaged or cut short ({error}); copy them again") from error
    except OSError:
        raise
    except Exception as error:  # a damaged file can lead to any error
        raise ValueError(f"{name}: not {what} that transformers can load by itself: {shorten(error)}") from error


def shorten(error: Exception) -> str:
    """Return the message of an error in one line of at most 300 characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + " ..."


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Switch off transformers' progress bar of loaded weights, which would stay in the outputs of notebooks."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


@torch.no_grad()
def translate(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    sentences: Sequence[str | Sequence[str]],
) -> list[str]:
    """Translate sentences greedily with a sequence-to-sequence model; works inside ``ablate`` and ``gates``.

    ``sentences`` are strings, or sequences of words as in ``Sentence.words``; a translation has at most
    64 tokens. Returns one string per sentence, in order. Raises ValueError for a single string, an
    empty list, an empty sentence or a word that the tokenizer does not know.

    >>> model, tokenizer = load()
    >>> len(translate(model, tokenizer, ["the dog slept ."]))
    1
    """
    if isinstance(sentences, str) or not sentences:
        raise ValueError(
            f"got {sentences!r}; expected a list of sentences: write translate(model, tokenizer, ['the dog slept .'])"
        )
    texts = [s if isinstance(s, str) else " ".join(s) for s in sentences]
    for text in texts:
        unknown = [word for word in text.split() if _is_unknown(tokenizer, word)]
        if unknown or not text.strip():
            got = f"unknown words: {', '.join(unknown)}" if unknown else "no words"
            raise ValueError(
                f"{got} in {text!r}; the organism's words are those of headtools.organism.lexicon, in lower case"
            )
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # by length: less padding
    translations = [""] * len(texts)
    for start in range(0, len(order), _BATCH_SIZE):
        indices = order[start : start + _BATCH_SIZE]
        batch = tokenizer([texts[i] for i in indices], return_tensors="pt", padding=True).to(model.device)
        ids = model.generate(**batch, num_beams=1, do_sample=False, max_new_tokens=64)
        for i, text in zip(indices, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
            translations[i] = text
    return translations


def _is_unknown(tokenizer: "PreTrainedTokenizerBase", word: str) -> bool:
    unk_id = tokenizer.unk_token_id
    return unk_id is not None and unk_id in tokenizer(word, add_special_tokens=False).input_ids
