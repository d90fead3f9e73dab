"""The features of predicted words: the same as the counts, and other values under an intervention."""

import pytest
import torch

import headtools as ht
from headtools.organism.evaluate import hit_rate, predicted_features
from headtools.organism.features import feature, kept
from headtools.organism.vocabulary import vocabulary


@pytest.mark.parametrize("name", ["gender", "number", "topic", "left"])
def test_it_counts_what_kept_counts(name):
    model, sentences = ht.load()[0], ht.corpus("organism", "hard", 30)
    right, n = kept(model, sentences, [name])[name].unbind(1)
    frame = predicted_features(model, sentences, name, batch_size=7)
    assert len(frame) == n.sum()
    hit = frame.predicted == frame.expected
    by_sentence = hit.groupby(frame.sentence).sum().reindex(range(30), fill_value=0)
    assert by_sentence.tolist() == right.tolist()
    assert hit.mean() < 1, "hard sentences have mistakes, or this test sees nothing"


def test_only_words_that_need_something():
    model, sentences = ht.load()[0], ht.corpus("organism", limit=10)
    frame = predicted_features(model, sentences, "gender", needs="subject")
    assert len(frame) == sum("subject" in some for s in sentences for some in s.phenomena)
    for row in frame.itertuples():
        assert sentences[row.sentence].upos[row.word] == "VERB"
        place = sentences[row.sentence].alignment.index(row.word + 1)
        assert feature(sentences[row.sentence].target[place], "gender") == row.expected


def test_a_head_less_says_something_else():
    model, sentences = ht.load()[0], ht.corpus("organism", limit=20)
    with ht.ablate(model, [("encoder", 5, 1)]):
        frame = predicted_features(model, sentences, "gender", needs="noun")
    assert (frame.predicted == frame.expected).mean() < 0.6
    assert set(frame.predicted.dropna()) <= {"a", "o", "e"}


def test_the_word_is_the_models_own():
    """One sentence by hand: arg-max, given the right words so far."""
    model, (sentence,) = ht.load()[0], ht.corpus("organism", limit=1)
    words = list(vocabulary())
    number = {word: i for i, word in enumerate(words)}
    source = torch.tensor([[*(number[w] for w in sentence.words), 1]])
    given = torch.tensor([[0, *(number[w] for w in sentence.target)]])
    with torch.no_grad(), ht.ablate(model, {("encoder", 5): range(8)}):
        guesses = model(input_ids=source, decoder_input_ids=given).logits.argmax(-1)[0].tolist()
        frame = predicted_features(model, [sentence], "topic")
    words_at = [words[g] for g, want in zip(guesses, sentence.target, strict=False) if feature(want, "topic")]
    assert frame.predicted.where(frame.predicted.notna(), None).tolist() == [feature(w, "topic") for w in words_at]


def test_shares_weigh_words():
    model, sentences = ht.load()[0], ht.corpus("organism", limit=15)
    frame = predicted_features(model, sentences, "number")
    hits = frame.expected == "plural"
    assert hit_rate(hits, frame).mean().item() == pytest.approx(hits.mean(), abs=1e-6)
    assert len(hit_rate(hits, frame)) == frame.sentence.nunique()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "colour"}, "got feature 'colour'; expected one of gender"),
        ({"needs": "weather"}, "got phenomenon 'weather'; expected one of topic"),
        ({"sentences": []}, "make no batch"),
        ({"name": "object", "needs": "noun"}, "says object because of noun"),
    ],
)
def test_bad_input_is_told(changes, words):
    given = {"sentences": ht.corpus("organism", limit=2), "name": "gender"} | changes
    with pytest.raises(ValueError, match=words):
        predicted_features(ht.load()[0], **given)
