"""What roles/ refuses: the call, the error, and the words that say what to do."""

import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertModel, ByT5Tokenizer, GPT2Config, GPT2LMHeadModel

import headtools as ht
from headtools.roles import induction, map_classes, word_states
from headtools.roles._segments import segments
from headtools.roles.attention_sinks import attention_sinks
from headtools.roles.baselines import offset_baselines
from headtools.roles.controls import untrained
from headtools.roles.erasure import erasure
from headtools.roles.head_functions import head_functions
from headtools.roles.probing import probe
from headtools.roles.role import Role
from headtools.roles.sentence import Sentence
from headtools.roles.tasks import labels

from .small import SAID, small_model, wordpieces

MODEL, TOKENIZER = ht.load()
TEST, VALIDATION = (ht.corpus("organism", split, limit=12) for split in ("test", "validation"))
BERT, PIECES = small_model("bert"), wordpieces()
GPT2 = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=4, n_positions=64)).eval()
FLAT = torch.full((1, 1, 6, 6), 1 / 6)
BAD_HEAD = Sentence(("it", "slept"), (3, 0), ("nsubj", "root"), ("_",) * 2, (0, 0))
BAD_ALIGNMENT = Sentence(("it",), (0,), ("root",), ("_",), (0,), target=("x",), alignment=(4,))
SHORT = Sentence(("it", "slept"), (2, 0), ("nsubj",), ("_",) * 2, (0, 0))
BARE = Sentence(("it",), (0,), ("root",), ("PRON",), (0,))
ALONE = Sentence(tuple("ab"), (2, 0), ("det", "root"), tuple("DV"), (0, 0))


def roles(sentences=SAID, **options):
    return lambda: ht.taxonomy(BERT, PIECES, sentences, times=options.pop("times", 5), **options)


def probed(**changed):
    given = {"train": VALIDATION, "test": TEST[:4], "tasks": "upos", "solver": "discriminant"} | changed
    return lambda: probe(MODEL, TOKENIZER, **given)


def pruned_twin():
    config = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
    model = BertModel(config).eval()
    ht.prune(model, {("encoder", 0): [1]})
    return untrained(model)


def whole_map():
    """Maps of more positions than the text has tokens, as those of a model that also reads an image."""
    model = small_model("bert")
    own = model.forward
    model.forward = lambda input_ids, attention_mask, **more: own(input_ids.repeat(1, 2), attention_mask.repeat(1, 2))
    return ht.taxonomy(model, PIECES, SAID, times=5)


TABLE = {
    "one sentence": (roles(SAID[:1]), ValueError, "two or more"),
    "strings": (roles("the dog slept ."), TypeError, r"sentences\[0\] is str 'the dog slept \.'; roles need annotated"),
    "the user's index": (
        roles([*SAID, Sentence(("it", " "), (2, 0), ("nsubj", "root"), ("_",) * 2, (0, 0))]),
        ValueError,
        rf"sentences\[{len(SAID)}\]",
    ),
    "no replicas": (roles(times=0), ValueError, "got times=0"),
    "unknown role": (roles(roles=["positonal"]), ValueError, "no role or family 'positonal'"),
    "unknown kind": (roles(kinds=["cross"]), ValueError, "no 'cross' attention in BertModel"),
    "roles of another kind": (roles(roles=["alignment"]), ValueError, "name nothing"),
    "no translation": (
        lambda: ht.taxonomy(MODEL, TOKENIZER, ht.corpus("english", limit=2), kinds=["cross"]),
        ValueError,
        "needs sentences with a target",
    ),
    "fraction for a count": (
        roles(frequency={"the": 3, "dog": 2.5}),
        ValueError,
        r"frequency\['dog'\] = .* whole number",
    ),
    "head outside": (roles([BAD_HEAD] * 2), ValueError, "got word 3 as a head in a sentence of 2 words: 'it slept'"),
    "alignment outside": (roles([BAD_ALIGNMENT] * 2), ValueError, "got word 4 as alignment"),
    "annotation too short": (roles([SHORT] * 2), ValueError, "got a sentence of 2 words, with heads"),
    "no words": (roles([Sentence((), (), (), (), ())] * 2), ValueError, "got a sentence of 0 words"),
    "role of no kind": (
        lambda: Role("near", "image", lambda s: []),
        ValueError,
        "'near' with kind='image'",
    ),
    "role by nothing": (lambda: Role("near", "cross", lambda s: [], by="sum"), ValueError, "by='sum'"),
    "role twice": (
        roles(roles=["self", Role("self", "encoder", lambda s: [])]),
        ValueError,
        "two roles 'self' of encoder attention",
    ),
    "key outside": (
        roles(roles=[Role("far", "encoder", lambda s: [(0, [len(s.words)])])]),
        ValueError,
        "the role 'far' pairs the query 0 with the key",
    ),
    "maps of something else": (whole_map, ValueError, "expected .* the tokens of the text: .*kinds="),
    "no verdicts": (lambda: head_functions(pd.DataFrame({"head": [1]})), ValueError, "expected 'passes'"),
    "no common relation": (lambda: offset_baselines(SAID, [BARE]), ValueError, "no relation occurs"),
    "twin of a module": (lambda: untrained(torch.nn.Linear(2, 2)), TypeError, "no config"),
    "twin of a pruned model": (pruned_twin, ValueError, "is pruned"),
    "unknown corpus": (lambda: ht.corpus("french"), ValueError, "english, documents, code, or the path"),
    "unknown split": (lambda: ht.corpus("organism", "dev"), ValueError, "no split 'dev'"),
    "unknown English split": (lambda: ht.corpus("english", "hard"), ValueError, "no split 'hard' of english"),
    "unknown split of documents": (lambda: ht.corpus("documents", "dev"), ValueError, "no split 'dev' of documents"),
    "limit": (lambda: ht.corpus("english", limit=0), ValueError, "limit=0"),
    "slow tokenizer": (
        lambda: ht.align(ByT5Tokenizer(), [("a",)]),
        TypeError,
        "ByT5Tokenizer; expected a fast",
    ),
    "string for words": (lambda: ht.align(PIECES, [("a",), "the dog"]), TypeError, r"sentences\[1\] is a string"),
    "one sentence alone": (lambda: ht.align(PIECES, SAID[0]), TypeError, "got one sentence"),
    "nothing to align": (lambda: ht.align(PIECES, []), ValueError, "no sentences"),
    "sentence without words": (lambda: ht.align(PIECES, [("a",), ()]), ValueError, r"sentences\[1\] has no words"),
    "word of spaces": (lambda: ht.align(PIECES, [("a", " ")]), ValueError, r"sentences\[0\], word 1 .* is ' '"),
    "words of other maps": (lambda: ht.to_words(FLAT, torch.zeros(2, 6).long()), ValueError, "expected maps"),
    "maps without words": (lambda: ht.to_words(FLAT, torch.full((1, 6), -1)), ValueError, "hold no word"),
    "map not square": (
        lambda: map_classes.classify(torch.rand(1, 2, 3, 4), torch.ones(1, 4, dtype=torch.bool)),
        ValueError,
        "expected",
    ),
    "sinks of a short row": (
        lambda: attention_sinks(GPT2, {"input_ids": torch.ones(2, 1, dtype=torch.long)}),
        ValueError,
        r"rows \[0, 1\] have fewer than two tokens",
    ),
    "sinks of nothing": (lambda: attention_sinks(GPT2, []), ValueError, "no batches came"),
    "sinks of an encoder": (lambda: attention_sinks(BERT, []), ValueError, "AutoModelForCausalLM"),
    "induction in an encoder": (
        lambda: ht.induction_scores(BERT),
        ValueError,
        "from left to right; .*Causal",
    ),
    "copying in a translation model": (lambda: induction.copying(MODEL), ValueError, "cross attention"),
    "segments too long": (lambda: ht.induction_scores(GPT2), ValueError, "of 100 tokens; .* has 64 positions: write a"),
    "one sequence": (
        lambda: ht.induction_scores(GPT2, n=1, length=5),
        ValueError,
        "needs 5 sequences or more",
    ),
    "few tokens": (lambda: segments(2, 12, 2, range(7)), ValueError, "write length=7"),
    "no repetition": (lambda: segments(2, 5, 1, range(9)), ValueError, "and repeats=1; expected"),
    "no unembedding": (lambda: induction.copying(GPT2.transformer, length=5), ValueError, "no unembedding"),
    "length of the whole": (lambda: induction.induction(FLAT, 6), ValueError, "not of the whole sequence"),
    "text for texts": (lambda: ht.text_batches(TOKENIZER, "one text"), TypeError, "got one string"),
    "sentences for texts": (lambda: ht.text_batches(TOKENIZER, TEST), TypeError, r"texts\[0\] is a Sentence"),
    "no texts": (lambda: ht.text_batches(TOKENIZER, []), ValueError, "got no texts"),
    "chunk too long": (lambda: ht.text_batches(TOKENIZER, ["it"], length=9), ValueError, "a chunk of 9 tokens"),
    "text too short": (lambda: ht.text_batches(TOKENIZER, ["it"]), ValueError, "a row of two tokens"),
    "chunk of one": (lambda: ht.text_batches(TOKENIZER, ["it"], length=1), ValueError, "got length=1"),
    "no start token": (lambda: ht.text_batches(TOKENIZER, ["it slept"], start=True), ValueError, "has no start token"),
    "texts of no split": (lambda: ht.natural_text("english", "dev"), ValueError, "no split 'dev'"),
    "unknown task": (lambda: labels(SAID[0], "tense"), ValueError, "no task 'tense'; there is upos"),
    "labels of a translation": (lambda: labels(SAID[0], "number"), ValueError, "has no translation"),
    "too few labels": (lambda: labels(SAID[0], lambda s: ["x"]), ValueError, "gave 1 labels for the 4 words"),
    "probed sentence twice": (probed(test=VALIDATION[:3]), ValueError, "3 sentences are in train and in test"),
    "one sentence to fit": (probed(train=VALIDATION[:1]), ValueError, "train has 1 sentences"),
    "no task": (probed(tasks=[]), ValueError, "one or more, each with a name"),
    "task twice": (probed(tasks=["upos", "upos"]), ValueError, "a name of its own"),
    "fewer sentences than folds": (probed(train=VALIDATION[:2]), ValueError, "give more sentences"),
    "unknown solver": (probed(solver="magic"), ValueError, "logistic"),
    "one label": (probed(tasks=lambda s: ["x"] * len(s.words)), ValueError, "only the label 'x'"),
    "no label": (probed(tasks=lambda s: [None] * len(s.words)), ValueError, "labels 0 words of train"),
    "rare label": (
        probed(tasks=lambda s: ["y" if s is VALIDATION[0] else "x"] * len(s.words)),
        ValueError,
        "without each of 3 folds two labels must remain",
    ),
    "unknown component": (
        lambda: word_states.word_states(MODEL, TOKENIZER, TEST, ["neuron"]),
        ValueError,
        "expected one or more of head, layer, residual",
    ),
    "head that is not there": (
        lambda: word_states.word_states(MODEL, TOKENIZER, TEST[:1], heads=[("encoder", 0, 8)]),
        IndexError,
        r"heads 0\.\.7",
    ),
    "labels of no number": (lambda: erasure(torch.rand(4, 2), ["a", "b"]), ValueError, "with 2 labels"),
    "nothing to erase": (lambda: erasure(torch.rand(4, 2), ["a"] * 4), ValueError, "1 of them different"),
    "no variation": (lambda: erasure(torch.ones(4, 2), ["a", "b"] * 2), ValueError, "all vectors are equal"),
}


@pytest.mark.parametrize("name", TABLE)
def test_is_refused_in_words(name):
    call, error, words = TABLE[name]
    with pytest.raises(error, match=words):
        call()
    assert not any(site.out._forward_pre_hooks for model in (MODEL, BERT, GPT2) for site in ht.sites(model))


def test_a_layer_that_does_not_run_is_told(monkeypatch):
    monkeypatch.setattr("headtools.roles.taxonomy.backbone", lambda model, inputs: lambda **_: None)
    with pytest.raises(RuntimeError, match="encoder 0, encoder 1 did not run"):
        ht.taxonomy(BERT, PIECES, SAID, times=5)


def test_a_corpus_of_a_guest_that_is_not_there_is_unknown(monkeypatch):
    monkeypatch.setitem(ht.CORPORA, "organism3", "no_such_guest.language")
    with pytest.raises(ValueError, match="no corpus 'organism3'"):
        ht.corpus("organism3")
