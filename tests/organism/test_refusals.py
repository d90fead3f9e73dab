"""What the organism refuses, and in which words."""

import pytest
import torch

import headtools as ht
from headtools.organism import language, vocabulary
from headtools.organism.batches import batches
from headtools.organism.evaluate import bleu, predicted_features, token_accuracy
from headtools.organism.features import feature, kept, labels
from headtools.organism.second import language as language2
from headtools.organism.second import vocabulary as vocabulary2
from headtools.organism.second.results import second_results
from headtools.organism.shipped import shipped, shipped_ablation
from headtools.organism.toy_decoder import ToyDecoder, train
from headtools.roles.sentence import Sentence


def model():
    return ht.load()[0]


def two():
    return ht.corpus("organism", limit=2)


ALIEN = Sentence(("a",), (0,), ("root",), ("X",), (0,))
REFUSED = [
    # name, call, words of the ValueError
    ("split", lambda: next(language.sentences("dev")), "no split 'dev'.*train, validation, test, hard"),
    ("split 2", lambda: next(language2.sentences("dev")), "no split 'dev'"),
    ("gloss", lambda: vocabulary.gloss("tiger"), "no word 'tiger'"),
    ("gloss 2", lambda: vocabulary2.gloss("flumph"), "no word 'flumph'"),
    ("gloss of a token", lambda: vocabulary.gloss("<pad>"), "no word '<pad>'"),
    ("no batch", lambda: batches([]), "make no batch"),
    ("size", lambda: token_accuracy(model(), two(), size=0), "make no batch"),
    ("no translation", lambda: token_accuracy(model(), ht.corpus("english", limit=2)), "sentence 0 has no translation"),
    ("bleu of nothing", lambda: bleu(*ht.load(), []), "expected a list of sentences"),
    ("feature", lambda: labels(two()[0], "tense"), "no feature 'tense'"),
    ("feature of no word", lambda: feature("xyz", "gender"), "no word 'xyz'"),
    ("labels", lambda: labels(ALIEN, "gender"), "has no translation"),
    ("kept", lambda: kept(model(), []), "no sentences came"),
    ("predicted", lambda: predicted_features(model(), two(), "colour"), "got feature 'colour'; expected one of gender"),
    (
        "needs",
        lambda: predicted_features(model(), two(), "gender", needs="weather"),
        "got phenomenon 'weather'; expected one of topic",
    ),
    ("predicted in nothing", lambda: predicted_features(model(), [], "gender"), "make no batch"),
    (
        "no such words",
        lambda: predicted_features(model(), two(), "object", needs="noun"),
        "says object because of noun",
    ),
    ("a string", lambda: ht.translate(*ht.load(), "the dog"), "a list of"),
    ("no sentences", lambda: ht.translate(*ht.load(), []), "a list of"),
    ("no words", lambda: ht.translate(*ht.load(), [" "]), "no words"),
    ("unknown words", lambda: ht.translate(*ht.load(), ["the tiger slept ."]), "unknown words: tiger"),
    ("step", lambda: ht.load(step=9001), r"no snapshot of step 9001.*load\(step=3000\)"),
    ("step by name", lambda: ht.load(step="last"), r"no snapshot of step 'last'"),
    ("step of another", lambda: ht.load("folder", step=3000), "only the organism has snapshots"),
    ("table", lambda: shipped("swep"), r"got table 'swep'; expected one of 'sweep', .*write shipped\('sweep'\)"),
    ("other heads", lambda: shipped_ablation(model().get_encoder()), "other heads"),
    ("second table", lambda: second_results("nothing"), r"got table 'nothing'; expected one of .*'cross'"),
    ("second model", lambda: second_results("pairs", "seed 9"), "pairs was not measured on 'seed 9', but on 'seed 1'"),
    ("real model", lambda: ht.shipped_real("gpt5"), "got model 'gpt5'"),
    ("real table", lambda: ht.shipped_real("smollm2", "colours"), "got table 'colours' of smollm2"),
    ("too long", lambda: ToyDecoder()(torch.zeros(1, 49, dtype=torch.long)), "got 49 symbols; expected at most 48"),
    ("width", lambda: ToyDecoder(heads=5), "width=64 and heads=5"),
    ("steps", lambda: train(ToyDecoder(), steps=0), "at least 1"),
]


@pytest.mark.parametrize(("call", "words"), [pytest.param(call, words, id=name) for name, call, words in REFUSED])
def test_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
