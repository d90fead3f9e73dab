"""What scoring every head for every role costs, against the plain forward pass over the same sentences.

    python tools/bench/taxonomy.py [--rounds 5] [--json FILE] [--quick]

``ht.taxonomy`` with all its roles, intervals and the table, and baselines fitted on as many other sentences, stands
beside eager forward passes over the same sentences; both tokenize. The passes come in two ways: in the order of the
corpus, as one would write them, and sorted by length, as the taxonomy sorts its own, so that it is told what sorting
saves and what scoring costs. What does not grow with the model (annotation, baselines, resampling) is the same for all,
so that the ratio is high where a pass takes next to nothing: the bound is one for BERT's width. The weights of BERT are
random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import timing
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

import headtools as ht
from headtools.roles.sentence import Sentence

BOUND = 1.15
UNIT, WHY = "eager forward", "statistics of maps that the pass computes"
ROWS = 32  # sentences a batch


@dataclass(frozen=True)
class Subject:
    """A model with its tokenizer, the kind of attention (None: all), numbers of sentences, and the bound."""

    name: str
    model: nn.Module
    tokenizer: object
    sizes: Sequence[int]
    bound: float | None = None
    asked: dict = field(default_factory=dict)


def word_pieces(words: Sequence[str]) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer like BERT's, which cuts every fifth word in two."""
    pieces = [p for i, w in enumerate(sorted(words)) for p in ([w[:1], f"##{w[1:]}"] if i % 5 == 0 and w[1:] else [w])]
    known = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *pieces])
    plain = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(known)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **marks)


def bert(layers: int, sizes: Sequence[int]) -> Subject:
    """BERT-base's width (768, 12 heads, 3,072) with some of its 12 layers."""
    torch.manual_seed(0)
    test, validation = sentences(max(sizes))
    tokenizer = word_pieces({word for s in (*test, *validation) for word in s.words})
    config = transformers.BertConfig(num_hidden_layers=layers, vocab_size=len(tokenizer))
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    return Subject(f"BERT-base width, {layers} layers", model, tokenizer, sizes, BOUND)


def organism(kinds: str | None, sizes: Sequence[int]) -> Subject:
    """The shipped translation model: its encoder, or all of it."""
    model, tokenizer = ht.load()
    name = f"organism, {'all kinds' if kinds is None else kinds}"
    return Subject(name, model, tokenizer, sizes, asked={"kinds": kinds})


def sentences(n: int) -> tuple[list[Sentence], list[Sentence]]:
    """Sentences to score and sentences to fit baselines on."""
    test, validation = (ht.corpus("organism", split, limit=n) for split in ("test", "validation"))
    return test, validation


def plain_pass(subject: Subject, test: Sequence[Sentence]) -> Callable[[], None]:
    """Eager forward passes over all sentences in this order, as much of the model as the taxonomy needs."""
    half = subject.asked.get("kinds") == "encoder"
    model = subject.model.get_encoder() if half else subject.model

    @torch.no_grad()
    def step() -> None:
        subject.model.set_attn_implementation("eager")
        for start in range(0, len(test), ROWS):
            some = test[start : start + ROWS]
            batch = subject.tokenizer([str(s) for s in some], return_tensors="pt", padding=True)
            if model.config.is_encoder_decoder and not half:
                targets = [" ".join(s.target) for s in some]
                batch["decoder_input_ids"] = subject.tokenizer(targets, return_tensors="pt", padding=True).input_ids
            model(**batch)

    return step


def scoring(subject: Subject, test: Sequence[Sentence], validation: Sequence[Sentence]) -> Callable[[], None]:
    """The taxonomy of the same sentences."""
    asked = {"batch_size": ROWS, **subject.asked}
    return lambda: ht.taxonomy(subject.model, subject.tokenizer, test, validation, **asked)


def measure(subject: Subject, rounds: int) -> list[dict]:
    """Two rows for each number of sentences, one for either order of the passes."""
    rows = []
    for size in subject.sizes:
        test, validation = sentences(size)
        plain = {"in order": test, "sorted by length": sorted(test, key=lambda s: len(s.words))}
        steps = {how: plain_pass(subject, some) for how, some in plain.items()}
        taken = timing.interleaved({**steps, "ours": scoring(subject, test, validation)}, rounds)
        row = {"model": subject.name, "counted": 1.0, "why": WHY, "bound": subject.bound}
        for how in plain:
            work = f"taxonomy, {size} sentences; passes {how}"
            rows.append(timing.row({work: taken["ours"], UNIT: taken[how]}, work, UNIT, **row))
    return rows


def main() -> None:
    """Measure and print."""
    given = timing.options(__doc__, rounds=5)
    torch.set_num_threads(1)
    if given.quick:
        some = (organism("encoder", [8]),)
    else:
        some = bert(12, [64]), bert(4, [64, 256]), organism("encoder", [64, 256, 1000]), organism(None, [64, 256])
    timing.tell([row for subject in some for row in measure(subject, given.rounds)], given.json)


if __name__ == "__main__":
    main()
