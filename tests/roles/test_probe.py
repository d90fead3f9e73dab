"""Linear probes: against scikit-learn, against hand-made vectors, and never on what they were fitted to."""

import numpy as np
import pytest
import sklearn.discriminant_analysis
import sklearn.linear_model
import torch
import transformers as tf

import headtools as ht
from headtools.roles.probing import COLUMNS, SOLVERS, fit_and_predict, probe, share
from headtools.roles.tasks import control, labels
from headtools.roles.word_states import Place, word_states

from .small import SAID, small_model, wordpieces

MODEL, TOKENIZER = ht.load()
TRAIN, TEST = (ht.corpus("organism", split, limit=60) for split in ("validation", "test"))


def blobs(n=400, seed=0):
    """Three labels as Gaussians of unlike width in 5 features, at 2 places: the second has no label in it."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=draw)
    noise = torch.randn(2, n, 5, generator=draw) * torch.tensor([1.0, 3.0, 0.1, 1.0, 5.0])
    noise[0] += torch.nn.functional.one_hot(y, 5) * 2
    return noise, y, torch.arange(n // 2) % 3


def test_the_discriminant_is_scikit_learns():
    lda = sklearn.discriminant_analysis.LinearDiscriminantAnalysis
    x, y, fold = blobs()
    ours = fit_and_predict("discriminant", x, y, fold, [1e-9])
    for place in range(2):
        theirs = lda(solver="lsqr").fit(x[place, :200].double(), y[:200]).predict(x[place, 200:].double())
        assert (ours[place].numpy() == theirs).mean() > 0.99


def test_logistic_is_scikit_learns_and_both_solvers_agree():
    x, y, fold = blobs()
    scaled = ((x[0] - x[0, :200].mean(0)) / x[0, :200].std(0, correction=0)).numpy()
    theirs = sklearn.linear_model.LogisticRegression(C=0.03, tol=1e-6).fit(scaled[:200], y[:200]).predict(scaled[200:])
    fitted = fit_and_predict("logistic", x, y, fold, [0.03])
    assert (fitted[0].numpy() == theirs).mean() > 0.99
    right = [
        (fit_and_predict(name, x, y, fold, None) == y[200:]).float().mean(1) for name in ("logistic", "discriminant")
    ]
    assert abs(right[0][0] - right[1][0]) < 0.03
    assert right[0][0] > 0.75
    assert right[0][1] < 0.45


def test_cross_validation_holds_back_where_features_are_noise():
    draw = torch.Generator().manual_seed(1)
    y = torch.arange(120) % 2
    x = torch.randn(1, 120, 50, generator=draw)
    x[0, :, 0] += 2.5 * (y - 0.5)
    fold = torch.arange(60) % 3
    chosen, free = (
        float((fit_and_predict("discriminant", x, y, fold, s) == y[60:]).float().mean()) for s in ([0.9, 1e-6], [1e-6])
    )
    assert chosen > free + 0.05


def test_features_that_never_change_say_nothing():
    x = torch.full((1, 8, 2), 7.0)
    x[0, :, 1] = torch.arange(8) % 2
    for solver in SOLVERS:
        assert fit_and_predict(solver, x, torch.arange(8) % 2, torch.arange(6) // 2, None).tolist() == [[0, 1]]


def test_share_against_brute_force():
    draw = np.random.default_rng(0)
    sentence = np.sort(draw.integers(0, 40, 300))
    sentence = np.unique(sentence, return_inverse=True)[1]
    right = draw.random(300) < 0.3 + 0.4 * (sentence % 2)
    mean, low, high = share(torch.from_numpy(right).double(), sentence)
    assert mean == pytest.approx(right.mean())
    parts = [right[sentence == s] for s in range(sentence.max() + 1)]
    means = [np.concatenate([parts[i] for i in draw.integers(0, len(parts), len(parts))]).mean() for _ in range(4000)]
    assert np.quantile(means, [0.025, 0.975]) == pytest.approx([float(low), float(high)], abs=0.02)
    assert high - low > 2 * 1.96 * np.sqrt(0.25 / 300)  # words of a sentence hang together


def test_control_is_one_label_a_type_in_the_tasks_proportions():
    words = [f"w{i % 3000}" for i in range(6000)]
    answers = ["rare" if i % 10 == 0 else "common" for i in range(3000)] + ["rare"] * 3000
    drawn = control(words, answers, fitted=3000)
    assert drawn[:3000] == drawn[3000:]
    assert 0.07 < np.mean(np.array(drawn) == "rare") < 0.13  # of the fitting words, not of all
    assert drawn != control(words, answers, fitted=3000, seed=1)


def test_labels_of_the_language():
    for s in TEST[:30]:
        number, gender, target_gender = (labels(s, t) for t in ("number", "gender", "target gender"))
        for i, upos in enumerate(s.upos):
            assert (number[i] is None) == (gender[i] is None) == (upos != "NOUN")
            if upos in ("DET", "ADJ"):  # agree with their noun
                head = s.heads[i] - 1
                assert target_gender[i] == (target_gender[head] or "a")
            if upos == "NOUN":
                assert (number[i] == "plural") == s.words[i].endswith("s")
    assert labels(TEST[0], "upos") == TEST[0].upos
    assert labels(TEST[0], "relation") == TEST[0].relations


def test_states_are_the_models_own_at_the_last_token_of_a_word(monkeypatch):
    monkeypatch.setattr("headtools.roles.word_states.BATCH_SIZE", 2)
    model, pieces = small_model("bert").float(), wordpieces()
    states = word_states(model, pieces, SAID, ["head", "layer", "residual"])
    last = [[1, 2, 4, 5], [1, 2, 3, 4, 5, 7, 8], [1, 2, 3, 4, 5]]  # "played" and "playing" are two tokens
    for layer in range(2):
        row = 0
        for sentence, places in zip(SAID, last, strict=True):
            batch = pieces([str(sentence)], return_tensors="pt")
            with torch.no_grad(), ht.record(model) as seen:
                out = model(**batch, output_hidden_states=True)
            for place in places:
                z = seen["encoder", layer].z[0, place]
                for head in range(4):
                    torch.testing.assert_close(states[Place("head", "encoder", layer, head)][row], z[head])
                torch.testing.assert_close(states[Place("layer", "encoder", layer)][row], z.flatten())
                stream = out.hidden_states[layer][0, place]
                torch.testing.assert_close(states[Place("residual", "encoder", layer)][row], stream)
                row += 1
    assert len(states) == 2 * 4 + 2 + 3


def test_states_of_some_heads():
    every = word_states(MODEL, TOKENIZER, TEST[:7])
    some = word_states(MODEL, TOKENIZER, TEST[:7], heads=[("encoder", 5, 1)])
    assert list(some) == [Place("head", "encoder", 5, 1)]
    torch.testing.assert_close(some[Place("head", "encoder", 5, 1)], every[Place("head", "encoder", 5, 1)])


def test_a_layer_that_runs_twice_is_refused():
    shape = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 8}
    shared = tf.AlbertModel(tf.AlbertConfig(vocab_size=13, embedding_size=8, **shape)).eval()
    with pytest.raises(ValueError, match="runs 2 times"):
        word_states(shared, wordpieces(), SAID)


def test_the_frame():
    places = {"component": ["head", "residual"], "heads": [("encoder", 4, 2), ("encoder", 0, 0)]}
    tasks = ["number", "target left"]
    frame = probe(MODEL, TOKENIZER, TRAIN, TEST, tasks, untrained=True, solver="discriminant", **places)
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 2 * 2 * (2 + 7)
    assert (frame.low <= frame.accuracy).all()
    assert (frame.accuracy <= frame.high).all()
    assert np.allclose(frame.selectivity, frame.accuracy - frame.control)
    assert (frame.selectivity_low <= frame.selectivity).all()
    nouns = sum(upos == "NOUN" for s in TEST for upos in s.upos)
    assert set(frame[frame.task == "number"].n) == {nouns}
    at = frame.set_index(["model", "component", "layer", "task"]).accuracy
    assert at["trained", "residual", 0, "number"] > 0.95  # the noun says it
    assert at["trained", "residual", 6, "target left"] > at["trained", "residual", 0, "target left"] + 0.2
    assert frame.lookup.between(0, 1).all()
    assert frame.majority.between(0.3, 1).all()


def test_no_test_sentence_has_a_say_in_the_fit():
    """Other test sentences and labels leave the predictions for those that stay as they were."""
    settings = {"heads": [("encoder", 4, 2)], "solver": "discriminant"}
    a = probe(MODEL, TOKENIZER, TRAIN, TEST[:20], "target left", **settings)
    right = a.accuracy[0] * a.n[0]
    b = probe(MODEL, TOKENIZER, TRAIN, TEST[20:40], "target left", **settings)
    both = probe(MODEL, TOKENIZER, TRAIN, TEST[:40], "target left", **settings)
    assert right + b.accuracy[0] * b.n[0] == pytest.approx(both.accuracy[0] * both.n[0])


def test_a_probed_model_is_tried_first():
    model, tokenizer = ht.load()
    assert ht.sites(model).verified is None
    probe(model, tokenizer, TRAIN[:20], TEST[:10], "target left", heads=[("encoder", 4, 2)], solver="discriminant")
    assert ht.sites(model).verified.ok


def test_random_labels_are_not_found():
    rng = np.random.default_rng(0)

    def random(sentence):
        return rng.integers(0, 2, len(sentence.words)).astype(str)

    frame = probe(MODEL, TOKENIZER, TRAIN, TEST, random, component=["residual"], solver="discriminant")
    assert frame.accuracy.between(0.4, 0.6).all(), frame.accuracy
