"""Whisper's alignment: times that are true, looks that are counted, errors of words; and the whole on a tiny model."""

import json
import shutil
import wave
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration, WhisperTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

import headtools as ht
from recipes import whisper as recipe

SIGNS = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]


def tone(word, voice="", loud=0.5):
    """A tenth of a second for each letter."""
    return np.full(len(word) * recipe.RATE // 10, loud, np.float32)


@pytest.fixture(scope="module")
def tiny():
    letters = sorted(bytes_to_unicode().values())
    tokenizer = WhisperTokenizer({word: i for i, word in enumerate([*letters, *SIGNS])}, [], pad_token=SIGNS[0])
    tokenizer.add_special_tokens({"additional_special_tokens": SIGNS[1:]})
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "vocab_size": 259, "num_mel_bins": 80}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    tokens = {"pad_token_id": 256, "bos_token_id": 256, "eos_token_id": 256, "decoder_start_token_id": 257}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = WhisperForConditionalGeneration(
            WhisperConfig(**sizes, **tokens, init_std=0.3, attn_implementation="eager")
        )
    return model.eval(), tokenizer


def test_words_are_where_their_times_say():
    sound, times = recipe.word_by_word(["a", "bcd"], tone, np.random.default_rng(0))
    assert [last - first + 1 for first, last in times] == [1600, 4800]
    inside = np.zeros(len(sound), bool)
    for first, last in times:
        inside[first : last + 1] = True
    assert (sound[inside] == 0.5).all()
    assert (sound[~inside] == 0).all()
    ends = np.ravel(times) + np.array([0, 1, 0, 1])
    pauses = np.diff([0, *ends, len(sound)])[::2] / recipe.RATE
    assert (recipe.PAUSES[0] <= pauses).all()
    assert (pauses <= recipe.PAUSES[1]).all()
    assert len(set(pauses)) == 3


def sentence(words, word_of, times):
    ids = torch.zeros(1, len(word_of) + 3)
    return recipe.Spoken(words, ids, word_of, torch.tensor([times]), [times[-1][1]], torch.zeros(1, 1), np.zeros(1))


def test_looks_are_counted_by_word():
    """Two heads: one looks at the word it writes, the other at the word before; a comma counts for neither."""
    said = sentence(["on", "it,", "go"], [0, 1, 1, None, 2], [[20, 29], [50, 59], [80, 89]])
    maps = torch.zeros(1, 2, 8, 120)
    middle = [25, 55, 85]
    for k, word in enumerate(said.word_of):
        now = 0 if word is None else word
        maps[0, 0, k + 1, middle[now]] = 1
        maps[0, 1, k + 1, middle[now - 1] if now else 0] = 1
    now, before, chance = recipe.looks(maps, said)
    assert now.tolist() == [1, 0]
    assert before.tolist() == [0, 1]
    assert chance == pytest.approx(20 / 89)
    edge, near = maps.clone().zero_(), 5  # a tenth of a second beside the word
    for k, at in enumerate([20 - near, 59 + near, 50 - near - 1, 0, 89 + near + 1]):
        edge[0, :, k + 1, at] = 1
    assert recipe.looks(edge, said)[0].tolist() == [0.5, 0.5]
    two = torch.cat([maps, maps[:, :, :, :1].expand_as(maps) * 0 + edge])
    voices = replace(said, times=said.times.expand(2, -1, -1), lengths=[89, 89])
    assert recipe.looks(two, voices)[0].tolist() == [0.75, 0.25]


def test_words_begin_where_a_head_begins_to_look():
    """Two tokens in one word, and a comma; a head that looks nowhere in particular beside the one that follows."""
    said = sentence(["on", "it,", "go"], [0, 1, 1, None, 2], [[20, 29], [50, 69], [90, 99]])
    maps = torch.full((1, 2, 8, 150), 0.01)
    for row, (first, last) in enumerate([(0, 40), (40, 60), (60, 75), (75, 80), (80, 95), (95, 99)]):
        maps[0, 0, row + 1, first:last] = 1
    assert recipe.beginnings(maps, said).tolist() == [[0, 40, 80]]
    shares = {}
    for begin in ((0, 24, 64), (0, 23, 63), (0, 55, 95), (0, 56, 96)):  # 0.1 s beside the pauses, and just beyond
        shares[begin[1]], error, lag = recipe.errors_of_timing(torch.tensor([begin]), said).tolist()
    assert shares == {24: 1, 23: 0, 55: 1, 56: 0}  # the first, on which maps have no say, is not asked for
    assert error == lag == pytest.approx(6 * recipe.FRAME / recipe.RATE)
    assert recipe.errors_of_timing(torch.tensor([[0, 55, 80]]), said)[1:].tolist() == pytest.approx([0.15, -0.05])
    assert recipe.by_letters(said).tolist() == [[0, 2 * 99 // 7, 5 * 99 // 7]]


def test_the_true_text_is_read_and_the_loss_is_that_of_transformers(tiny):
    model, tokenizer = tiny
    (said,) = recipe.spoken(model, tokenizer, 1, speak=tone)
    assert tokenizer.decode(said.ids[0], skip_special_tokens=True) == " " + " ".join(said.words)
    assert said.states.shape == (len(recipe.VOICES), 1500, 16)
    with torch.no_grad():
        ids = said.ids.expand(len(recipe.VOICES), -1)
        labels = ids[:, 1:].clone()
        labels[:, 0] = -100  # that there are no time stamps is given
        theirs = model(encoder_outputs=(said.states,), decoder_input_ids=ids[:, :-1], labels=labels).loss
        assert recipe.forced(model, said).mean().item() == pytest.approx(theirs.item(), rel=1e-4)
        off = [("cross", 1, 2)]
        with ht.ablate(model, off):
            changed = recipe.forced(model, said).mean().item()
    assert recipe.losses(model, [said], off).item() == pytest.approx(changed)
    assert changed != pytest.approx(theirs.item())


@torch.no_grad()
def test_transcripts_are_greedy(tiny):
    """Compared with steps that keep nothing; a voice that has ended says no more."""
    model, tokenizer = tiny
    (said,) = recipe.spoken(model, tokenizer, 1, speak=tone)
    written = recipe.transcripts(model, tokenizer, said, 5)
    for voice, text in enumerate(written):
        ids = said.ids[:, :2]
        for _ in range(5):
            logits = model(encoder_outputs=(said.states[voice : voice + 1],), decoder_input_ids=ids).logits[0, -1]
            logits[257:] = -torch.inf
            ids = torch.cat([ids, logits.argmax().reshape(1, 1)], 1)
            if ids[0, -1] == 256:
                break
        assert text == tokenizer.decode(ids[0], skip_special_tokens=True)


@pytest.mark.parametrize(
    ("said", "written", "errors"),
    [("a b c", "A, b c!", 0), ("a b c", "a c", 1), ("a b c", "a x b c", 1), ("a b c", "", 3), ("a b", "b a", 2)],
)
def test_errors_of_words(said, written, errors):
    assert recipe.word_errors(said, written) == errors / len(said.split())


def test_the_area_under_the_curve():
    listed = torch.tensor([True, False, True, False])
    assert recipe.auroc(torch.tensor([[0.9, 0.1, 0.5, 0.5], [0.0, 1.0, 0.0, 1.0]]), listed).tolist() == [[0.875], [0.0]]


def test_heads_chosen_on_either_half():
    """Sentence by sentence: head 0 is the best of every second one alone, and the two best are the same throughout."""
    rows = torch.tensor([[0.9, 0.8, 0.1], [0.7, 0.8, 0.1], [0.9, 0.8, 0.1], [0.7, 0.8, 0.1]])
    assert recipe.same_on_halves({("cross", 0): rows[:, :2], ("cross", 1): rows[:, 2:]}, 2)
    assert not recipe.same_on_halves({("cross", 0): rows[:, :2], ("cross", 1): rows[:, 2:]}, 1)


def test_sets_of_heads():
    generator = torch.Generator().manual_seed(0)
    now, before = ({("cross", i): torch.rand(6, 6, generator=generator) for i in range(4)} for _ in range(2))
    sets = {(name, draw): heads for name, draw, heads in recipe.sets_off(now, before, 2)}
    assert sets["listed", 0] == recipe.LISTED
    assert {head[1] for head in sets["same layers", 0]} == {1, 2, 3}
    assert sorted(head[1] for head in sets["same layers", 1]) == sorted(head[1] for head in recipe.LISTED)
    best = sets["best unlisted", 0][0]
    assert all(now[h[:2]][:, h[2]].mean() <= now[best[:2]][:, best[2]].mean() for h in sets["all unlisted", 0])
    for draw in range(2):
        behind, others = sets["word just written", 0], sets["others", draw]
        assert not set(others) & {*recipe.LISTED, *behind, best}
        assert len(set(others)) == 8
        assert not set(sets["three others", draw]) & {*recipe.LISTED, *behind, best}
        assert len(sets["one other", draw]) == 1
        assert sets["one other", draw][0] != best
    assert len(sets["all unlisted", 0]) == 16


def test_without_espeak_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="apt install espeak-ng"):
        recipe.espeak("word", "en-us")


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not on this machine")
def test_espeak_speaks():
    short, long = (recipe.espeak(word, "en-us") for word in ("it", "international"))
    assert recipe.RATE * 0.05 < len(short) < len(long) < recipe.RATE * 2
    assert min(abs(long[0]), abs(long[-1])) > 0.01


def test_tables_of_a_tiny_model(tiny, monkeypatch, tmp_path):
    model, tokenizer = tiny
    monkeypatch.setattr(recipe, "LISTED", [("cross", 0, 1), ("cross", 1, 0), ("cross", 1, 2)])
    monkeypatch.setattr(recipe, "VOICES", ("one", "two"))
    sentences = recipe.spoken(model, tokenizer, 5, speak=tone)
    tables = recipe.measure(model, tokenizer, sentences, recipe.QUICK)
    heads = tables["heads"]["rows"]
    assert [(row["layer"], row["head"]) for row in heads] == [(i, j) for i in range(2) for j in range(4)]
    intact = recipe.losses(model, sentences, [])
    cost = recipe.losses(model, sentences, [("cross", 1, 3)]) - intact
    assert heads[-1]["cost"] == pytest.approx(cost.mean().item(), abs=1e-4)
    assert [row["listed"] for row in heads].count(True) == 3
    assert {row["name"] for row in tables["list"]["rows"]} == {"in_word", "word_before", "layer"}
    off = {row["name"]: row for row in tables["off"]["rows"]}
    assert off["none"]["rise"] == off["none"]["error_rise"] == 0
    assert off["listed"]["heads"] == ["0.1", "1.0", "1.2"]
    assert off["others"]["listed"] == 0
    assert "2 voices of espeak-ng (one, two)" in tables["off"]["about"]
    timing = {row["name"]: row for row in tables["timing"]["rows"]}
    assert timing["letters"]["heads"] == []
    without = timing["listed, without listed"]
    again = recipe.timing(model, sentences, {"": recipe.LISTED}, recipe.LISTED)[""].mean(0)
    assert [without[column] for column in ("close", "error", "lag")] == pytest.approx(again.tolist(), abs=1e-4)
    assert timing["listed"]["error"] != without["error"]
    three = [("cross", *map(int, head.split("."))) for head in off["word just written"]["heads"]]
    means = recipe.means_of(model, sentences)
    by_mean = off["word just written by their mean"]
    assert by_mean["heads"] == off["word just written"]["heads"]
    with torch.no_grad(), ht.record(model, want="z", accumulate=lambda _, seen, before: [*(before or []), seen.z]) as r:
        for said in sentences:
            recipe.forced(model, replace(said, ids=torch.cat([said.ids, said.ids[:, -1:]], 1)))  # which leaves one out
    for layer in range(2):
        z = torch.cat([part.flatten(0, 1) for part in r["cross", layer]])
        torch.testing.assert_close(means["cross", layer], z.mean(0, keepdim=True), rtol=1e-4, atol=1e-5)
    assert by_mean["loss"] == pytest.approx(recipe.losses(model, sentences, three, means).mean().item(), abs=1e-3)
    assert by_mean["loss"] != off["word just written"]["loss"]
    row = timing["listed, without word just written by their mean"]
    again = recipe.timing(model, sentences, {"": recipe.LISTED}, three, means)[""].mean(0)
    assert [row[column] for column in ("close", "error", "lag")] == pytest.approx(again.tolist(), abs=1e-4)
    rows, said = tables["spoken"]["rows"], recipe.shortest(sentences)
    assert len(said.sound) == min(len(sentence.sound) for sentence in sentences)
    recipe.write_sound(said.sound, tmp_path / "said.wav")
    with wave.open(str(tmp_path / "said.wav")) as file:
        assert (file.getframerate(), file.getnchannels()) == (recipe.RATE, 1)
        heard = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 2**15
    seconds = np.arange(len(heard)) / recipe.RATE
    spoken = np.any([(row["begin"] <= seconds) & (seconds < row["end"]) for row in rows], axis=0)
    # one position of the encoder at the edges of a word may be half silent
    assert abs(np.mean(spoken) - np.mean(heard > 0.4)) < len(rows) * recipe.FRAME / len(heard)
    assert heard[spoken].mean() > 0.4
    assert json.dumps(tables)


def test_what_ships():
    """The list misses the best head, and three heads that look at the word just written matter as much as it."""
    heads = ht.shipped_real("whisper").set_index(["layer", "head"])
    assert [(*head,) for head in heads.index[heads.listed]] == [head[1:] for head in recipe.LISTED]
    best = heads.in_word.idxmax()
    assert best == (2, 1)
    assert not heads.listed[best]
    behind = heads[heads.word_before_low > 0.9]
    assert list(behind.index) == [(0, 4), (1, 2), (2, 4)]
    assert not behind.listed.any()
    assert set(heads.cost.nlargest(2).index) <= set(behind.index)
    found = ht.shipped_real("whisper", "list").set_index("name").loc["in_word"]
    assert found.low > 0.8
    assert found.found == 5
    off = ht.shipped_real("whisper", "off").set_index(["name", "draw"]).sort_index()
    assert off.error_loss["none", 0] < 0.16
    assert off.error_rise_low["listed", 0] > 0.75
    assert off.rise_low["word just written", 0] > 2.5
    assert off.rise_high["best unlisted", 0] < 0.1
    assert off.error_rise_low["best unlisted", 0] < 0, "its absence is not told from chance in the transcript"
    timing = ht.shipped_real("whisper", "timing").set_index("name")
    assert timing.close_low["listed"] > timing.close_high["letters"]
    assert timing.more_low["highest scores"] > 0, "in the pause, the list is nothing special"
    sets = ["highest scores", "same layers", "same layers 1", "same layers 2"]
    assert (timing.farther_low[sets] > 0).all(), "by distance, it is"
    assert (timing.later_high[sets] < 0).all(), "the others are too early"
    about = ht.shipped_real("whisper", "off").attrs["about"]
    assert "'highest scores' would be the same, and 'word just written' would be the same" in about
    assert timing.close_high["listed, without word just written"] < 0.35
    assert timing.close_high["listed, without word just written by their mean"] < 0.45
    assert timing.close_low["listed, without three others"] > 0.8
