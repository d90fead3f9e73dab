"""The folder of the shipped model: how it is written, and how it is checked before it is read."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from headtools.heads.files import read_json, signed
from headtools.heads.lock import alone
from headtools.heads.whole import written, written_bytes, written_folder

ASSETS = Path(__file__).parent / "assets"
CHECKSUMS = "checksums.json"
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
REMEDY = (
    "write the folder again (what ships: git checkout, pip install --force-reinstall or make organism), or, where the "
    f"change is your own, delete {CHECKSUMS}"
)


def make_tokenizer() -> "PreTrainedTokenizerFast":  # noqa: F821
    """Word tokenizer of both languages: words split at spaces, commas and full stops apart, the end mark added."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    from headtools.organism.vocabulary import END, PAD, UNKNOWN, vocabulary

    number = {word: i for i, word in enumerate(vocabulary())}
    inner = Tokenizer(models.WordLevel(number, unk_token=UNKNOWN))
    inner.normalizer = normalizers.NFC()  # an accent typed as a letter and a mark is the same accent
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("[,.]"), "isolated")]
    )
    inner.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, number[END])])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, model_max_length=128,
        clean_up_tokenization_spaces=False, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listed(folder: Path) -> dict[str, str]:
    """The checksums that a folder tells of its files, by name; ``ValueError`` where its list is damaged."""
    try:
        told = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        if not isinstance(told, dict) or not all(isinstance(value, str) for value in told.values()):
            raise ValueError("no list of names and sums")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{folder / CHECKSUMS} is damaged ({error}); {REMEDY}") from error
    return told


def verify(folder: Path, file: str, wanted: str | None) -> None:
    """Compare a file of a folder with its checksum; ``FileNotFoundError`` or ``ValueError`` where it is another."""
    if not (folder / file).is_file():
        raise FileNotFoundError(f"{folder / file} is missing, though {CHECKSUMS} names it; {REMEDY}")
    if checksum(folder / file) != wanted:
        raise ValueError(f"{folder / file} is not the file that {CHECKSUMS} describes (SHA-256 differs); {REMEDY}")


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write the list of checksums of some files of a folder into it."""
    told = {name: checksum(folder / name) for name in names}
    written_bytes(folder / CHECKSUMS, (json.dumps(told, indent=1) + "\n").encode("utf-8"))


def write(told: Mapping, file: Path) -> None:
    """Write numbers to a JSON file, whole or not at all, with a digest by which ``read_json`` knows a changed one."""
    written_bytes(file, (json.dumps(signed(told), indent=1, ensure_ascii=False) + "\n").encode("utf-8"))


def changed(file: Path, change: Callable[[dict], dict], how: Callable[[dict, Path], None] = write) -> dict:
    """Write to a file of numbers what ``change`` makes of those it holds, {} where there is none; return them.

    Processes that change one file take turns, so that none loses what another has measured.
    """
    with alone(file, make=True):
        told = change(read_json(file) if file.exists() else {})
        how(told, file)
    return told


def standing(folder: Path) -> Path:
    """The folder in which the files of ``folder`` are: another one while ``exchanged`` puts new ones in their place."""
    beside = folder.with_name(f".{folder.name}.new")
    return beside if (beside / CHECKSUMS).is_file() and folder.is_dir() else folder


def state(folder: Path) -> tuple[Path, bytes]:
    """Where the files of a folder are, and what tells of them."""
    there = standing(folder)
    return there, (there / CHECKSUMS).read_bytes() if (there / CHECKSUMS).is_file() else b""


@contextmanager
def exchanged(folder: Path) -> Iterator[Path]:
    """Give an empty folder; when the block ends well, its files take the places of those of ``folder``, all or none.

    At every moment ``standing(folder)`` has the old files or the new ones, whenever the process is killed; the next
    one that exchanges files ends what this one began. Files that the block does not write stay as they are. Raises
    ``OSError`` as ``written`` does, and ``TimeoutError`` where another process is at it for a minute.
    """
    with alone(folder, make=True):
        _settle(folder)
        with written_folder(folder if not folder.exists() else folder.with_name(f".{folder.name}.new")) as part:
            yield part
            write_checksums(part, sorted(path.name for path in part.iterdir()))
        try:
            _settle(folder)
        except OSError as error:
            why, new = error.strerror.split(";")[0], standing(folder)
            said = f"{why}; the new files are whole and count, in {new}: mend that, and do the same again to move them"
            raise OSError(error.errno, said, str(folder)) from error


def _settle(folder: Path) -> None:
    """Put what is complete beside a folder into it, and only then take it away, at once."""
    new = standing(folder)
    if new == folder:
        return
    for path in sorted(new.iterdir()):
        with written(folder / path.name) as part:
            try:
                os.link(path, part)  # takes no room
            except OSError:
                shutil.copyfile(path, part)
    gone = new.with_name(f"{new.name}.{uuid4().hex[:12]}.part")
    os.replace(new, gone)
    shutil.rmtree(gone, ignore_errors=True)


def publish(model: "MarianMTModel", folder: Path = ASSETS) -> None:  # noqa: F821
    """Write model, tokenizer and their checksums to a folder, all of them or none, as ``exchanged`` does."""
    model.generation_config.update(num_beams=1, do_sample=False, max_new_tokens=64)
    tokenizer = make_tokenizer()
    with exchanged(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        for path in part.iterdir():
            if path.name in FILES:
                path.chmod(0o644)
            else:
                path.unlink()
