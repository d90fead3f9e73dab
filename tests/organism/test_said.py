"""What the model says about a feature, word by word: the same as the counts, and told where it goes wrong."""

import pytest
import torch

import headtools as ht
from headtools.organism.features import feature, kept
from headtools.organism.vocabulary import vocabulary
from headtools.organism.word_predictions import said, share


@pytest.mark.parametrize("name", ["gender", "number", "topic", "left"])
def test_it_counts_what_kept_counts(name):
    model, sentences = ht.load()[0], ht.corpus("organism", "hard", 30)
    right, n = kept(model, sentences, [name])[name].unbind(1)
    frame = said(model, sentences, name, batch_size=7)
    assert len(frame) == n.sum()
    hit = frame.said == frame.wanted
    by_sentence = hit.groupby(frame.sentence).sum().reindex(range(30), fill_value=0)
    assert by_sentence.tolist() == right.tolist()
    assert hit.mean() < 1, "hard sentences have mistakes, or this test sees nothing"


def test_only_words_that_need_something():
    model, sentences = ht.load()[0], ht.corpus("organism", limit=10)
    frame = said(model, sentences, "gender", needs="subject")
    assert len(frame) == sum("subject" in some for s in sentences for some in s.phenomena)
    for row in frame.itertuples():
        assert sentences[row.sentence].upos[row.word] == "VERB"
        place = sentences[row.sentence].alignment.index(row.word + 1)
        assert feature(sentences[row.sentence].target[place], "gender") == row.wanted


def test_a_head_less_says_something_else():
    model, sentences = ht.load()[0], ht.corpus("organism", limit=20)
    with ht.ablate(model, [("encoder", 5, 1)]):
        frame = said(model, sentences, "gender", needs="noun")
    assert (frame.said == frame.wanted).mean() < 0.6
    assert set(frame.said.dropna()) <= {"a", "o", "e"}


def test_the_word_is_the_models_own():
    """One sentence by hand: arg-max, given the right words so far."""
    model, (sentence,) = ht.load()[0], ht.corpus("organism", limit=1)
    words = list(vocabulary())
    number = {word: i for i, word in enumerate(words)}
    source = torch.tensor([[*(number[w] for w in sentence.words), 1]])
    given = torch.tensor([[0, *(number[w] for w in sentence.target)]])
    with torch.no_grad(), ht.ablate(model, {("encoder", 5): range(8)}):
        guesses = model(input_ids=source, decoder_input_ids=given).logits.argmax(-1)[0].tolist()
        frame = said(model, [sentence], "topic")
    told = [words[g] for g, want in zip(guesses, sentence.target, strict=False) if feature(want, "topic")]
    assert frame.said.where(frame.said.notna(), None).tolist() == [feature(w, "topic") for w in told]


def test_shares_weigh_words():
    model, sentences = ht.load()[0], ht.corpus("organism", limit=15)
    frame = said(model, sentences, "number")
    hits = frame.wanted == "plural"
    assert share(hits, frame).mean().item() == pytest.approx(hits.mean(), abs=1e-6)
    assert len(share(hits, frame)) == frame.sentence.nunique()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "colour"}, "no feature 'colour'; there is gender"),
        ({"needs": "weather"}, "no phenomenon 'weather'; there is topic"),
        ({"sentences": []}, "make no batch"),
        ({"name": "object", "needs": "noun"}, "says object because of noun"),
    ],
)
def test_bad_input_is_told(changes, words):
    given = {"sentences": ht.corpus("organism", limit=2), "name": "gender"} | changes
    with pytest.raises(ValueError, match=words):
        said(ht.load()[0], **given)
