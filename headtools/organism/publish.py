"""The folder of the shipped model: how it is written, and how it is checked before it is read."""

import hashlib
import json
import os
import shutil
from pathlib import Path

from headtools.heads.whole import written_bytes

ASSETS = Path(__file__).parent / "assets"
CHECKSUMS = "checksums.json"
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


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
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write(told: dict, file: Path) -> None:
    """Write numbers to a JSON file, whole or not at all."""
    written_bytes(file, (json.dumps(told, indent=1, ensure_ascii=False) + "\n").encode("utf-8"))


def publish(model: "MarianMTModel", folder: Path = ASSETS) -> None:  # noqa: F821
    """Write model and tokenizer to a folder, each file whole, the checksums last."""
    scratch = folder.with_name(folder.name + ".part")
    shutil.rmtree(scratch, ignore_errors=True)
    model.generation_config.update(num_beams=1, do_sample=False, max_new_tokens=64)
    model.save_pretrained(scratch)
    make_tokenizer().save_pretrained(scratch)
    (scratch / CHECKSUMS).write_text(json.dumps({name: checksum(scratch / name) for name in FILES}, indent=1) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*FILES, CHECKSUMS):
        (scratch / name).chmod(0o644)
        os.replace(scratch / name, folder / name)
    shutil.rmtree(scratch)
