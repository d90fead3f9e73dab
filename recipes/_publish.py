"""The folder of a finished model: weights, tokenizer, generation settings, and the checksums of all of them."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import MarianMTModel, PreTrainedTokenizerFast

from headtools.organism import snapshots
from headtools.organism._checksums import write_checksums
from headtools.organism.batches import word_ids
from headtools.organism.vocabulary import END, PAD, UNKNOWN

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def make_tokenizer(ids: Mapping[str, int] | None = None) -> PreTrainedTokenizerFast:
    """Return the word tokenizer of both languages: words split at spaces, commas and full stops apart, EOS added.

    ``ids`` are the token ids of another vocabulary.
    """
    ids = dict(word_ids() if ids is None else ids)
    inner = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    inner.normalizer = normalizers.NFC()  # so that a letter with a combining accent equals the accented letter
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("[,.]"), "isolated")]
    )
    inner.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, ids[END])])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=128,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def publish(model: MarianMTModel, folder: Path, ids: Mapping[str, int] | None = None) -> None:
    """Write model and tokenizer to a folder, the checksums last, so that ``load`` rejects an unfinished folder.

    ``ids`` are the token ids of another vocabulary.
    """
    model.generation_config.update(num_beams=1, do_sample=False, max_new_tokens=64)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    make_tokenizer(ids).save_pretrained(folder)
    for name in FILES:
        (folder / name).chmod(0o644)
    write_checksums(folder, FILES)


def publish_snapshots(source: Path, folder: Path, steps: Sequence[int]) -> None:
    """Copy snapshots of a training run to a folder, their checksums last."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [snapshots.path(step, source) for step in steps]
    for file in files:
        shutil.copyfile(file, folder / file.name)
    write_checksums(folder, [file.name for file in files])
