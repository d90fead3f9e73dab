"""What the organism gets right: accuracy, batches and features, against one sentence at a time by hand."""

import pytest
import torch

import headtools as ht
from headtools.organism.batches import TrainingBatches, batches
from headtools.organism.evaluate import hit_rate, predicted_features, token_accuracy
from headtools.organism.features import FEATURES, feature, kept, labels
from headtools.organism.lexicon import is_accented
from headtools.organism.vocabulary import vocabulary


@pytest.fixture(scope="module")
def model():
    return ht.load()[0]


@torch.no_grad()
def predicted_words(model, sentence):
    """The words that the model predicts, each after the right words before it, and the EOS token."""
    words = list(vocabulary())
    ids = {word: i for i, word in enumerate(words)}
    source = torch.tensor([[*(ids[w] for w in sentence.words), ids["</s>"]]])
    given = torch.tensor([[model.config.decoder_start_token_id, *(ids[w] for w in sentence.target)]])
    logits = model(input_ids=source, decoder_input_ids=given).logits
    return [words[i] for i in logits.argmax(-1)[0].tolist()]


def test_token_accuracy_equals_one_sentence_at_a_time(model):
    sentences = ht.corpus("organism", "hard", limit=12)
    with ht.ablate(model, {("encoder", layer): range(0, 8, 2) for layer in range(6)}):  # so that it makes mistakes
        shares = token_accuracy(model, sentences, size=5)
        for sentence, share in zip(sentences, shares, strict=True):
            right = zip(predicted_words(model, sentence), (*sentence.target, "</s>"), strict=True)
            assert share.item() == pytest.approx(sum(a == b for a, b in right) / (len(sentence.target) + 1))
    assert shares.unique().numel() > 3


def test_batches_are_what_the_model_takes(model):
    sentences = ht.corpus("organism", limit=5)
    made = batches(sentences, size=2)
    assert [len(batch["labels"]) for batch in made] == [2, 2, 1]
    for batch in made:
        assert batch.keys() == {"input_ids", "attention_mask", "decoder_input_ids", "labels"}
        with torch.no_grad():
            assert model(**batch).loss < 1
        # the decoder reads the labels one place later, after the start
        inside = batch["labels"][:, 1:] != -100
        assert torch.equal(batch["decoder_input_ids"][:, 1:][inside], batch["labels"][:, :-1][inside])


def test_training_batches_by_step_whatever_was_asked_before():
    in_turn, jumping = TrainingBatches(seed=3, tokens=256), TrainingBatches(seed=3, tokens=256)
    several = [in_turn(step) for step in range(90)]  # more than one chunk
    assert in_turn.chunk > 0
    for step in (80, 3, 80, 0):
        batch = jumping(step)
        assert all(torch.equal(batch[key], several[step][key]) for key in batch)
    assert not torch.equal(several[0]["input_ids"], TrainingBatches(seed=4, tokens=256)(0)["input_ids"])
    sizes = [len(b["input_ids"]) * (b["input_ids"].shape[1] + b["labels"].shape[1]) for b in several]
    assert max(sizes) <= 256
    assert sum(sizes) / len(sizes) > 180


# --- features ---------------------------------------------------------------------------------------------------------


def test_labels_follow_the_grammar():
    for s in ht.corpus("organism", limit=60):
        values = {name: labels(s, name) for name in FEATURES}
        for i, (word, upos) in enumerate(zip(s.words, s.upos, strict=True)):
            if upos in ("PROPN", "PUNCT"):
                assert not any(values[name][i] for name in FEATURES)
                continue
            for side, neighbours in (("left", s.words[:i][-1:]), ("right", s.words[i + 1 : i + 2])):
                assert values[side][i] == ("accented" if any(map(is_accented, neighbours)) else "plain"), word
            assert values["topic"][i] in (None, s.topic or "none")
            of_a_verb = upos == "AUX" or (upos == "ADV" and s.upos[s.heads[i] - 1] == "VERB")
            assert (values["family"][i] is not None) == of_a_verb
            noun = upos == "NOUN" or (upos == "PRON" and word not in ("that", "thát"))
            assert (values["case"][i] is not None) == noun, word


@pytest.mark.parametrize("off", [[], [("encoder", 5, 1), ("encoder", 4, 2)]], ids=["whole", "heads off"])
def test_features_are_counted_word_by_word(model, off):
    sentences = ht.corpus("organism", "hard", limit=12)
    names = ("gender", "left", "object", "topic")
    with ht.ablate(model, off):
        counts = kept(model, sentences, names, batch_size=5)
        frames = {name: predicted_features(model, sentences, name, batch_size=7) for name in names}
        words = [predicted_words(model, sentence)[:-1] for sentence in sentences]
    for name, frame in frames.items():
        for i, sentence in enumerate(sentences):
            said = [(feature(w, name), feature(t, name)) for w, t in zip(words[i], sentence.target, strict=True)]
            said = [(w, t) for w, t in said if t is not None]
            assert counts[name][i].tolist() == [sum(w == t for w, t in said), len(said)]
            rows = frame[frame.sentence == i]
            predicted = [None if w != w else w for w in rows.predicted]  # pandas makes NaN of None
            assert list(zip(predicted, rows.expected, strict=True)) == said
        hits = frame.predicted == frame.expected
        assert hits.mean() < 1, "without mistakes this test sees nothing"
        assert hit_rate(hits, frame).mean().item() == pytest.approx(hits.mean(), abs=1e-6)  # words weigh, not sentences


def test_only_words_that_need_something(model):
    sentences = ht.corpus("organism", limit=10)
    frame = predicted_features(model, sentences, "gender", needs="subject")
    assert len(frame) == sum("subject" in some for s in sentences for some in s.phenomena)
    for row in frame.itertuples():
        assert sentences[row.sentence].upos[row.word] == "VERB"
        place = sentences[row.sentence].alignment.index(row.word + 1)
        assert feature(sentences[row.sentence].target[place], "gender") == row.expected
