"""taxonomy() as a stream: batches, padding and the number of sentences change neither its results nor its memory."""

import gc

import pandas as pd
import pytest
import torch
from headtools.roles._taxonomy.running_sums import BUFFER, RunningSums
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel, PreTrainedTokenizerFast

import headtools as ht
from headtools.heads._attention import WINDOW
from headtools.heads.intervals import resample_counts
from headtools.organism.batches import batches
from headtools.roles.conventions import Conventions
from headtools.roles.sentence import Sentence
from headtools.roles.taxonomy import _Taxonomy, taxonomy

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "dog", "cat", "play", "##ed", "##ing", "it", "saw", "."]
SIZE = {"dog": 9, "cat": 4, "saw": 3, "the": 30}
SAID = [
    Sentence(
        ("the", "dog", "played", "."),
        (2, 3, 0, 3),
        ("det", "nsubj", "root", "punct"),
        ("DET", "NOUN", "VERB", "PUNCT"),
        (0, 0, 0, 0),
    ),
    Sentence(
        ("it", "saw", "the", "cat", "playing", "."),
        (2, 0, 4, 2, 4, 2),
        ("nsubj", "root", "det", "obj", "acl", "punct"),
        ("PRON", "VERB", "DET", "NOUN", "VERB", "PUNCT"),
        (0,) * 6,
    ),
    Sentence(
        ("the", "dog", "saw", "the", "cat", "it", "played", "it", "saw", "."),
        (2, 3, 0, 5, 3, 7, 3, 9, 3, 3),
        ("det", "nsubj", "root", "det", "obj", "nsubj", "acl", "obj", "acl", "punct"),
        ("DET", "NOUN", "VERB", "DET", "NOUN", "PRON", "VERB", "PRON", "VERB", "PUNCT"),
        (0,) * 5 + (2, 0, 2, 0, 0),
    ),
    Sentence(("dog", "saw", "it"), (2, 0, 2), ("nsubj", "root", "obj"), ("NOUN", "VERB", "PRON"), (0, 0, 1)),
    Sentence(("playing",), (0,), ("root",), ("VERB",), (0,)),
]
NUMBERS = ["score", "baseline", "chance", "low", "high", "difference_low", "difference_high"]


def tokenizer(side: str) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    plain = Tokenizer(models.WordPiece({w: i for i, w in enumerate(PIECES)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=plain, padding_side=side, **marks)


def model(name: str) -> torch.nn.Module:
    """A random model in float64, whose own maps do not depend on what is beside a sentence."""
    torch.manual_seed(4)
    size, spread = {"vocab_size": len(PIECES)}, {"initializer_range": 0.6}
    if name == "bert":
        some = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 8}
        return BertModel(BertConfig(**size, **some, **spread)).eval().double()
    if name == "gpt2":  # places are counted from the left, padding included
        return GPT2Model(GPT2Config(**size, n_embd=16, n_layer=2, n_head=4, **spread)).eval().double()
    some = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 8}
    return LlamaModel(LlamaConfig(**size, **some, num_key_value_heads=2, **spread)).eval().double()


def assert_same(one: pd.DataFrame, two: pd.DataFrame) -> None:
    assert (
        one[["kind", "layer", "head", "role", "baseline_rule", "n"]].values
        == two[["kind", "layer", "head", "role", "baseline_rule", "n"]].values
    ).all()
    for column in NUMBERS:
        far = (one[column] - two[column]).abs()
        assert (one[column].isna() == two[column].isna()).all()
        assert far.max() < 1e-6, (column, one.loc[far.idxmax()])


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_neither_batches_nor_padding_change_anything(name: str):
    given = {"frequency": SIZE, "conventions": Conventions(n_frequent=1, span=2), "times": 100}
    whole = taxonomy(model(name), tokenizer("right"), SAID, batch_size=5, **given)
    assert {"positional", "syntactic", "weight", "rare", "statistic", "content", "map"} <= set(whole.family)
    for side, size in (("left", 5), ("left", 2), ("right", 1), ("right", 3)):
        assert_same(whole, taxonomy(model(name), tokenizer(side), SAID, batch_size=size, **given))


def test_nor_do_they_for_all_three_kinds_of_the_organism():
    organism, own = ht.load()
    given = {"times": 60, "frequency": {"the": 9, ".": 8}, "conventions": Conventions(n_frequent=0)}
    test, validation = (ht.corpus("organism", split, limit=13) for split in ("test", "validation"))
    whole = taxonomy(organism, own, test, validation, batch_size=13, **given)
    assert set(whole.kind) == {"encoder", "decoder", "cross"}
    assert_same(whole, taxonomy(organism, own, test, validation, batch_size=4, **given))
    own.padding_side = "left"
    assert_same(whole, taxonomy(organism, own, test, validation, batch_size=6, **given))


def test_map_classes_that_hang_on_a_tie_do_not_hang_on_padding():
    given = {"roles": "map", "kinds": "decoder", "times": 10}  # its first rows see so little that shares often tie
    organism, own = ht.load()
    one, two = (taxonomy(organism, own, ht.corpus("organism", limit=100), batch_size=n, **given) for n in (1, 100))
    assert (one.score - two.score).abs().max() < 1e-6


def held(sentences: list[Sentence], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Bytes of the tensors that a taxonomy holds at the end of its last batches, and how many objects with references.

    What was there before does not count.
    """
    seen, done = [], []

    def watched(self, batch) -> dict[str, torch.Tensor]:
        numbers = per_batch(self, batch)
        done.append(len(numbers["encoder|sums"]))
        if sum(done) > len(sentences) - BUFFER:
            gc.collect()
            alive = gc.get_objects()
            storages = [some.untyped_storage() for some in alive if type(some) is torch.Tensor]
            seen.append((sum({some.data_ptr(): some.nbytes() for some in storages}.values()), len(alive)))
        return numbers

    per_batch = _Taxonomy.per_batch
    monkeypatch.setattr(_Taxonomy, "per_batch", watched)
    gc.collect()
    gc.freeze()  # what is there already is not listed again
    try:
        taxonomy(model("bert"), tokenizer("right"), sentences, SAID, times=40)
    finally:
        gc.unfreeze()
        monkeypatch.undo()
    return tuple(map(max, zip(*seen, strict=True)))


@pytest.mark.full
def test_memory_does_not_grow_with_the_corpus(monkeypatch: pytest.MonkeyPatch):
    many = (SAID * 320)[: 6 * WINDOW]
    held(many[:WINDOW], monkeypatch)  # the first time some things are made for good
    (tensors, objects), (later, more) = (held(many[: n * WINDOW], monkeypatch) for n in (2, 6))
    assert later == tensors > 0
    batches_added = 4 * WINDOW // 32
    assert more - objects < 4 * batches_added  # of a batch, its number and the indices of its sentences


def test_what_running_sums_hold():
    sums = RunningSums()
    for size in (1, 40, 200, 3, 7):
        sums.add(torch.rand(size, 6, 4), torch.poisson(torch.ones(30, size)))
        assert sum(len(values) for values, _ in sums._buffer) < BUFFER
    assert sums.replicas.shape == (30, 6, 4)
    assert sums.replicas.untyped_storage().nbytes() == 30 * 6 * 4 * 4
    assert sums.total.shape == (6, 4)


def test_a_sentences_draws_do_not_depend_on_the_batch():
    many, drawn = (SAID * 200)[: 2 * WINDOW + 10], []
    for size in (1, 7, 300):
        by_sentence = torch.zeros(200, len(many))
        for indices, counts in zip(batches(many, size), resample_counts(many, size, 200, 0), strict=True):
            by_sentence[:, indices] = counts
        drawn.append(by_sentence)
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])
    assert float(drawn[0].mean()) == pytest.approx(1, abs=0.02)
    assert float(drawn[0].var()) == pytest.approx(1, abs=0.02)


def test_a_decoder_that_sees_nothing_is_counted_as_a_miss():
    conventions = Conventions(self_as_key=False, edges="count", span=1)
    found = taxonomy(model("gpt2"), tokenizer("right"), SAID, times=20, roles="offset -1", conventions=conventions)
    assert set(found.n) == {sum(len(s.words) for s in SAID)}
    assert found.chance.between(0, 1).all()


def test_a_layer_that_does_not_run_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headtools.roles.taxonomy.run_model", lambda *_, **__: None)
    with pytest.raises(RuntimeError, match="encoder 0, encoder 1 did not run"):
        taxonomy(model("bert"), tokenizer("right"), SAID)


def test_without_a_token_to_pad_with_batches_of_equal_lengths_run():
    """Sentences of unlike lengths must not be tokenized together then."""
    bare = tokenizer("right")
    want = taxonomy(model("bert"), bare, SAID, SAID, times=20, batch_size=1)
    bare.pad_token = None
    assert_same(taxonomy(model("bert"), bare, SAID, SAID, times=20, batch_size=1), want)
