"""Where Whisper's cross-attention looks while it writes a word spoken at a known time, and what that is good for.

    heads   each cross-attention head of Whisper tiny.en: how often its strongest key lies in the word being written,
            and in the word just written; whether OpenAI's list of heads for word timing has it; what its absence costs
    list    how well the scores find the heads of that list
    off     what is written without the listed heads, the best one that is not listed, as many others, and so on
    timing  when each word begins, read off the maps of some heads while others are off
    spoken  the words of one short sentence and their times; its sound is ``whisper.wav``, for the live cell of a lesson

espeak-ng speaks our own English sentences word by word, with pauses that differ, so that the true times are known to
the sample; it is the one thing to install (``apt install espeak-ng``, ``brew install espeak-ng``). Whisper reads the
true words ("teacher forcing") but for the transcripts, which it writes itself, greedily. Result: ``real/whisper.json``
among the organism's assets, which ``headtools.shipped_real("whisper")`` reads. With ``--quick`` everything is small, to
see that it runs.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import time
import wave
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from scipy.signal import resample_poly
from torch import Tensor, nn
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

import headtools as ht
from headtools._engine.store import write_bytes
from headtools.heads.ablate import replacement_values
from headtools.heads.scores import Head
from headtools.organism._whisper import ALIGNMENT_HEADS
from headtools.organism.fetch import make_copy
from headtools.organism.real_models import RESULTS, locate
from recipes._real_measures import compared
from recipes._results import interval, write

RATE, FRAME = 16_000, 320  # samples a second, and samples that one position of the encoder stands for
PAUSES = (0.25, 0.75)  # seconds between words, drawn evenly: equal pauses would be easy to guess
SMOOTH = 7  # positions over which Whisper takes medians
TOLERANCE = 0.1  # seconds beside a word that still count as in it
VOICES = ("en-us", "en-us+f3", "en-us+m3", "en-gb")
LISTED = [("cross", *head) for head in ALIGNMENT_HEADS]
BY_MEAN = ("word just written", "three others")  # switched off by their mean as well, in case zeros break the decoder
SIZES = {"sentences": 30, "draws": 3, "written tokens": 30}
QUICK = {"sentences": 5, "draws": 1, "written tokens": 3}


@dataclass(frozen=True)
class Spoken:
    """A sentence in several voices: its tokens, the word of each (None: punctuation), and when each word was spoken."""

    words: Sequence[str]
    ids: Tensor  # (1, T): start token, "no timestamps", the text, end
    word_of: Sequence[int | None]  # of each token of the text
    times: Tensor  # (voice, word, 2): the first and the last position of the encoder
    lengths: Sequence[int]  # of each voice's sound, in such positions
    states: Tensor  # (voice, position, width): what the encoder makes of the sound
    sound: np.ndarray  # of the first voice, RATE samples a second


def espeak(word: str, voice: str) -> np.ndarray:
    """Return a word spoken by espeak-ng at 16,000 samples a second, without the silence around it."""
    try:
        done = subprocess.run(
            ["espeak-ng", "-v", voice, "-s", "140", "--stdout", word], capture_output=True, check=True
        )
    except FileNotFoundError as error:
        raise FileNotFoundError(
            "espeak-ng is not on this machine: apt install espeak-ng, or brew install espeak-ng"
        ) from error
    with wave.open(io.BytesIO(done.stdout)) as file:
        rate = file.getframerate()
    sound = np.frombuffer(done.stdout[44:], dtype=np.int16).astype(np.float32) / 2**15
    sound = resample_poly(sound, RATE // gcd(RATE, rate), rate // gcd(RATE, rate)).astype(np.float32)
    loud = np.nonzero(np.abs(sound) > 0.01)[0]
    return sound[loud[0] : loud[-1] + 1]


def word_by_word(
    words: Sequence[str], speak: Callable[[str], np.ndarray], draw: np.random.Generator
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Return the sound of words with a pause around each, and the first and last sample of each word."""

    def pause() -> np.ndarray:
        return np.zeros(int(draw.uniform(*PAUSES) * RATE), np.float32)

    pieces, times = [pause()], []
    at = len(pieces[0])
    for word in words:
        sound = speak(word)
        times.append((at, at + len(sound) - 1))
        pieces += [sound, pause()]
        at += len(sound) + len(pieces[-1])
    return np.concatenate(pieces), times


@torch.no_grad()
def spoken(model: nn.Module, tokenizer: Any, n: int, speak: Callable[[str, str], np.ndarray] = espeak) -> list[Spoken]:
    """Return sentences of the test split without digits, spoken in every voice."""
    from transformers import WhisperFeatureExtractor

    features = WhisperFeatureExtractor(feature_size=model.config.num_mel_bins)
    texts = [
        text for text in ht.natural_text("english", "test") if not re.search(r"\d", text) and len(text.split()) <= 16
    ]
    start, plain, end = tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|notimestamps|>", "<|endoftext|>"])
    found, draw = [], np.random.default_rng(0)
    for text in ht.progress(texts[:n], "speaking"):
        words = text.split()
        tokens = [tokenizer(f" {word}", add_special_tokens=False).input_ids for word in words]
        read = [(i, token) for i, word in enumerate(tokens) for token in word]
        bare = [re.sub(r"\W+$|^\W+", "", word) for word in words]
        in_voices = [word_by_word(bare, lambda word, voice=voice: speak(word, voice), draw) for voice in VOICES]
        sounds = features([sound for sound, _ in in_voices], sampling_rate=RATE, return_tensors="pt").input_features
        found.append(
            Spoken(
                words,
                torch.tensor([[start, plain, *(token for _, token in read), end]]),
                [i if re.search(r"\w", tokenizer.decode([token])) else None for i, token in read],
                torch.tensor([times for _, times in in_voices]) // FRAME,
                [len(sound) // FRAME for sound, _ in in_voices],
                torch.cat([model.get_encoder()(sound[None]).last_hidden_state for sound in sounds]),
                in_voices[0][0],
            )
        )
    return found


def looks(maps: Tensor, sentence: Spoken) -> tuple[Tensor, Tensor, float]:
    """Return how often each head's strongest key lies in the word being written, (H,), and in the word just written.

    ``maps`` (voice, H, T, position). The position that writes a token is the one before it. The word just written is
    asked for where a new word begins, so that the two never are the same. The third number is what a head would reach
    that looks anywhere in the sound.
    """
    strongest = maps.argmax(-1)
    first, last = (sentence.times[..., i] for i in (0, 1))  # (voice, word)
    near = round(TOLERANCE * RATE / FRAME)

    def inside(token: int, word: int) -> Tensor:
        at = strongest[:, :, token + 1]
        return ((at >= first[:, word, None] - near) & (at <= last[:, word, None] + near)).float().mean(0)

    words = list(sentence.word_of)
    now = [inside(k, word) for k, word in enumerate(words) if word is not None]
    opens = [k for k, word in enumerate(words) if word and word not in words[:k]]
    chance = ((last - first + 1 + 2 * near) / torch.tensor(sentence.lengths)[:, None]).mean()
    return torch.stack(now).mean(0), torch.stack([inside(k, words[k] - 1) for k in opens]).mean(0), chance.item()


@torch.no_grad()
def alignment(model: nn.Module, sentences: Sequence[Spoken]) -> tuple[dict[tuple, Tensor], dict[tuple, Tensor], float]:
    """Return both shares of each cross-attention layer's heads, {site: (sentence, H)}, and their chance."""
    now, before, chances = {}, {}, []
    for sentence in ht.progress(sentences, "looking"):
        with ht.record(model, want="maps", only="cross") as seen:
            forced(model, sentence)
        for key in seen:
            in_word, just_written, chance = looks(seen[key].maps, sentence)
            now.setdefault(key, []).append(in_word)
            before.setdefault(key, []).append(just_written)
        chances.append(chance)
    stacked = [{key: torch.stack(rows) for key, rows in each.items()} for each in (now, before)]
    return *stacked, float(np.mean(chances))


def beginnings(maps: Tensor, sentence: Spoken) -> Tensor:
    """Return the position at which each word begins, (voice, word), from the maps of some heads as Whisper reads it.

    ``maps`` (voice, H, T, position), T with the start and the end. Weights on the sound are standardised over tokens,
    smoothed over SMOOTH positions and averaged over heads; of all paths through tokens and positions that never go
    back, the one that gains most says where each token begins.
    """
    first = [sentence.word_of.index(word) for word in range(len(sentence.words))]  # each word's first token
    found = []
    for voice, length in zip(maps, sentence.lengths, strict=True):
        weights = voice[..., :length] / voice[..., :length].sum(-1, keepdim=True)
        weights = (weights - weights.mean(-2, keepdim=True)) / weights.std(-2, unbiased=False, keepdim=True)
        # A position where all tokens have the same weight, 0 / 0, says nothing. Both functions are transformers' own.
        gain = _median_filter(weights.nan_to_num(0.0, 0.0, 0.0)[None], SMOOTH)[0].mean(0)[1:-1]
        tokens, positions = _dynamic_time_warping(-gain.double().numpy())
        found.append([int(positions[np.searchsorted(tokens, token)]) for token in first])
    return torch.tensor(found)


def by_letters(sentence: Spoken) -> Tensor:
    """Return where each word would begin if each letter took the same time, (voice, word): no model at all."""
    letters = torch.tensor([len(word) for word in sentence.words])
    return (letters.cumsum(0) - letters) * torch.tensor(sentence.lengths)[:, None] // letters.sum()


def errors_of_timing(begin: Tensor, sentence: Spoken) -> Tensor:
    """Return the share of words that begin in the pause before them, the mean error and the mean lag in s, (3,).

    Nothing is said in a pause, so where in it a word is said to begin is a matter of taste; TOLERANCE s beside it count
    as in it. Without the first word: a path begins with the sound, whatever the maps are.
    """
    lag = (begin - sentence.times[..., 0])[:, 1:] * FRAME / RATE
    pause = (sentence.times[:, 1:, 0] - sentence.times[:, :-1, 1]) * FRAME / RATE
    close = (lag <= TOLERANCE) & (lag >= -pause - TOLERANCE)
    return torch.stack([close.float().mean(), lag.abs().mean(), lag.mean()])


@torch.no_grad()
def timing(
    model: nn.Module,
    sentences: Sequence[Spoken],
    read: Mapping[str, Sequence[Head]],
    off: Sequence[Head] = (),
    means: Mapping | None = None,
) -> dict[str, Tensor]:
    """Return the errors of each sentence when times are read off each set of heads, {name of the set: (sentence, 3)}.

    Without heads, by the letters alone. ``off``: heads that are off meanwhile, as in ``without``.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in read}
    for sentence in ht.progress(sentences, "timing"):
        ids = sentence.ids.expand(len(sentence.states), -1)
        with without(model, off, means), ht.record(model, want="maps", only="cross") as seen:
            model(encoder_outputs=(sentence.states,), decoder_input_ids=ids)
        for name, heads in read.items():
            maps = [seen[head[:2]].maps[:, head[2]] for head in heads]
            begin = beginnings(torch.stack(maps, 1), sentence) if heads else by_letters(sentence)
            found[name].append(errors_of_timing(begin, sentence))
    return {name: torch.stack(rows) for name, rows in found.items()}


def forced(model: nn.Module, sentence: Spoken) -> Tensor:
    """Return the loss of the true text in nats a token, (voice,): the model reads what it should have written."""
    ids = sentence.ids.expand(len(sentence.states), -1)
    logits = model(encoder_outputs=(sentence.states,), decoder_input_ids=ids[:, :-1]).logits
    return nn.functional.cross_entropy(logits[:, 1:].transpose(1, 2), ids[:, 2:], reduction="none").mean(1)


def means_of(model: nn.Module, sentences: Sequence[Spoken]) -> dict[tuple, Tensor]:
    """Return the mean output of each cross-attention head over all tokens of sentences, as ``ablate`` takes it."""
    read = [
        {"encoder_outputs": (said.states,), "decoder_input_ids": said.ids.expand(len(said.states), -1)}
        for said in sentences
    ]
    return replacement_values(model, list(ht.sites(model)["cross"]), "mean", read)


def without(model: nn.Module, off: Sequence[Head], means: Mapping | None = None) -> AbstractContextManager:
    """Switch heads off: by zeros or, where their means are given, by these."""
    return ht.ablate(model, off) if means is None else ht.ablate(model, off, "mean", means)


@torch.no_grad()
def losses(model: nn.Module, sentences: Sequence[Spoken], off: Sequence[Head], means: Mapping | None = None) -> Tensor:
    """Return each sentence's loss without these heads, the mean of its voices."""
    with without(model, off, means):
        return torch.stack([forced(model, sentence).mean() for sentence in sentences])


@torch.no_grad()
def transcripts(model: nn.Module, tokenizer: Any, sentence: Spoken, longest: int) -> list[str]:
    """Return what the model writes, greedily, of each voice: plain steps, without the rules of ``generate``."""
    from transformers import DynamicCache, EncoderDecoderCache

    ids, end = sentence.ids[:, :2].expand(len(sentence.states), -1), sentence.ids[0, -1]
    written, cache = ids, EncoderDecoderCache(DynamicCache(), DynamicCache())
    for _ in range(longest):
        out = model(encoder_outputs=(sentence.states,), decoder_input_ids=ids, past_key_values=cache, use_cache=True)
        best = out.logits[:, -1, : end + 1].argmax(-1)  # words, and the end
        ids = torch.where((written == end).any(1), end, best)[:, None]
        written = torch.cat([written, ids], 1)
        if (ids == end).all():
            break
    return [tokenizer.decode(row, skip_special_tokens=True) for row in written]


def word_errors(said: str, written: str) -> float:
    """Return the word error rate: the fewest words to replace, insert or leave out, over the number of words said.

    >>> word_errors("The cat sat.", "the bat sat down")
    0.6666666666666666
    """
    a, b = (re.findall(r"[a-z']+", text.lower()) for text in (said, written))
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1] / len(a)


def error_rates(
    model: nn.Module,
    tokenizer: Any,
    sentences: Sequence[Spoken],
    off: Sequence[Head],
    longest: int,
    means: Mapping | None = None,
) -> Tensor:
    """Return each sentence's word error rate without these heads, the mean of its voices."""
    rates = []
    with without(model, off, means):
        for sentence in sentences:
            written = transcripts(model, tokenizer, sentence, longest)
            rates.append(np.mean([word_errors(" ".join(sentence.words), text) for text in written]))
    return torch.tensor(rates)


def same_on_halves(shares: Mapping[tuple, Tensor], count: int) -> bool:
    """Tell whether every second sentence and the others have the same heads with the highest shares."""
    both = [torch.cat([rows[start::2].mean(0) for rows in shares.values()]) for start in (0, 1)]
    return set(both[0].topk(count).indices.tolist()) == set(both[1].topk(count).indices.tolist())


def sets_off(
    now: Mapping[tuple, Tensor], before: Mapping[tuple, Tensor], draws: int
) -> list[tuple[str, int, list[Head]]]:
    """Return which heads are switched off together, (name, number of the draw, heads)."""
    every = [(*key, head) for key, rows in now.items() for head in range(rows.shape[1])]

    def ranked(scores: Mapping[tuple, Tensor]) -> list[Head]:
        return sorted(every, key=lambda head: -scores[head[:2]][:, head[2]].mean().item())

    listed = [head for head in LISTED if head in every]
    unlisted = [head for head in ranked(now) if head not in listed]
    behind = ranked(before)[:3]
    rest = [head for head in unlisted[1:] if head not in behind]
    sets = [
        ("listed", 0, listed),
        ("highest scores", 0, ranked(now)[: len(listed)]),
        ("best unlisted", 0, unlisted[:1]),
        ("word just written", 0, behind),
        ("all unlisted", 0, unlisted),
    ]
    generator = torch.Generator().manual_seed(0)

    def some(heads: Sequence[Head], count: int) -> list[Head]:
        return [heads[i] for i in torch.randperm(len(heads), generator=generator)[:count].tolist()]

    def of_layers(like: Sequence[Head], pool: Sequence[Head]) -> list[Head]:
        counts = Counter(head[:2] for head in like)
        return [head for key, n in counts.items() for head in some([head for head in pool if head[:2] == key], n)]

    for draw in range(draws):
        sets.append(("same layers", draw, of_layers(listed, every)))
        sets.append(("others", draw, some(rest, len(listed))))
        sets.append(("three others", draw, of_layers(behind, rest)))
        sets.append(("one other", draw, some(rest, 1)))
    return sets


def auroc(scores: Tensor, listed: Tensor) -> Tensor:
    """Return how often a listed head scores higher than another, ties counted half: (..., heads) -> (..., 1)."""
    difference = scores[..., listed, None] - scores[..., None, ~listed]
    return ((difference > 0).double() + (difference == 0).double() / 2).mean((-1, -2))[..., None]


def heads_table(
    model: nn.Module, sentences: Sequence[Spoken], shares: Mapping[str, Mapping[tuple, Tensor]]
) -> list[dict[str, Any]]:
    """Return a row for each cross-attention head: its shares, and what its absence costs."""
    intact, rows = losses(model, sentences, []), []
    for kind, layer in shares["in_word"]:
        for head in range(shares["in_word"][kind, layer].shape[1]):
            row: dict[str, Any] = {"kind": kind, "layer": layer, "head": head, "listed": (kind, layer, head) in LISTED}
            measured = {name: each[kind, layer][:, head] for name, each in shares.items()}
            measured["cost"] = losses(model, sentences, [(kind, layer, head)]) - intact
            for name, values in measured.items():
                row |= dict(zip((name, f"{name}_low", f"{name}_high"), interval(values), strict=True))
            rows.append(row)
        print(f"{kind} {layer}: each head off")
    return rows


def list_table(shares: Mapping[str, Mapping[tuple, Tensor]], listed: Tensor) -> list[dict[str, Any]]:
    """Return a row for each score: how well it tells the listed heads from the others."""
    rows = []
    depth = {key: torch.full_like(each, key[-1]) for key, each in shares["in_word"].items()}
    for name, each in [*shares.items(), ("layer", depth)]:
        scores = torch.cat(list(each.values()), 1).double()
        low, high = ht.bootstrap(scores, statistic=lambda means: auroc(means, listed))
        found = int(listed[scores.mean(0).topk(int(listed.sum())).indices].sum())
        rows.append(
            {"name": name, "auroc": auroc(scores.mean(0), listed).item(), "low": low.item(), "high": high.item()}
        )
        rows[-1] |= {"listed": int(listed.sum()), "found": found}
    return rows


def off_table(
    model: nn.Module,
    tokenizer: Any,
    sentences: Sequence[Spoken],
    sets: Sequence[tuple[str, int, list[Head]]],
    longest: int,
) -> list[dict[str, Any]]:
    """Return a row for each set of heads: the loss of the true text without them, and the errors of the transcript."""
    rows, intact, means = [], None, means_of(model, sentences)
    by_mean = [(f"{name} by their mean", draw, heads) for name, draw, heads in sets if name in BY_MEAN]
    for name, draw, heads in [("none", 0, []), *sets, *by_mean]:
        instead = means if name.endswith("by their mean") else None
        now = (
            losses(model, sentences, heads, instead),
            error_rates(model, tokenizer, sentences, heads, longest, instead),
        )
        intact = intact or now
        errors = compared("", now[1], intact[1])
        row = compared(name, now[0], intact[0], draw=draw, heads=[f"{layer}.{head}" for _, layer, head in heads])
        row |= {"listed": len(set(heads) & set(LISTED))}
        rows.append(row | {f"error_{column}": value for column, value in errors.items() if column != "name"})
        print(f"{name} {draw}: loss {row['rise']:+.2f}, word error rate {errors['loss']:.2f}")
    return rows


def timing_table(
    model: nn.Module, sentences: Sequence[Spoken], sets: Iterable[tuple[str, int, list[Head]]]
) -> list[dict[str, Any]]:
    """Return a row for each set of heads that times are read off, and for the listed ones while a set is off."""
    rows = []

    def add(name: str, read: Sequence[Head], off: Sequence[Head], errors: Tensor) -> None:
        row = {"name": name}
        row |= {"heads": [f"{x}.{h}" for _, x, h in read], "off": [f"{x}.{h}" for _, x, h in off]}
        measured = dict(zip(("close", "error", "lag"), errors.T, strict=True))
        measured |= dict(zip(("more", "farther", "later"), (errors - intact).T, strict=True))
        for column, values in measured.items():
            row |= dict(zip((column, f"{column}_low", f"{column}_high"), interval(values), strict=True))
        rows.append(row)
        print(f"{name}: {row['close']:.0%} of words begin in the pause before them")

    sets = {f"{name} {draw}" if draw else name: heads for name, draw, heads in sets}
    read = {"letters": [], **sets}
    found = timing(model, sentences, read)
    intact = found["listed"]
    for name, errors in found.items():
        add(name, read[name], [], errors)
    means = means_of(model, sentences)
    for name, heads in sets.items():
        (errors,) = timing(model, sentences, {"listed": sets["listed"]}, heads).values()
        add(f"listed, without {name}", sets["listed"], heads, errors)
        if name in BY_MEAN:
            (errors,) = timing(model, sentences, {"listed": sets["listed"]}, heads, means).values()
            add(f"listed, without {name} by their mean", sets["listed"], heads, errors)
    return rows


def shortest(sentences: Sequence[Spoken]) -> Spoken:
    """Return the sentence whose sound in the first voice is the shortest."""
    return min(sentences, key=lambda sentence: len(sentence.sound))


def spoken_table(sentence: Spoken) -> list[dict[str, Any]]:
    """Return a row for each word of a sentence: when the first voice begins and ends to say it, in seconds."""
    times = (sentence.times[0] * FRAME / RATE).tolist()
    return [
        {"word": word, "begin": begin, "end": end} for word, (begin, end) in zip(sentence.words, times, strict=True)
    ]


def write_sound(sound: np.ndarray, path: Path) -> None:
    """Write a sound as a file that every player reads: one channel, 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(RATE)
        wav.writeframes((sound * (2**15 - 1)).astype("<i2").tobytes())
    write_bytes(path, file.getvalue())


def measure(model: nn.Module, tokenizer: Any, sentences: Sequence[Spoken], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the five tables."""
    now, before, chance = alignment(model, sentences)
    shares = {"in_word": now, "word_before": before}
    heads = heads_table(model, sentences, shares)
    listed = torch.tensor([row["listed"] for row in heads])
    sets = sets_off(now, before, sizes["draws"])
    off = off_table(model, tokenizer, sentences, sets, sizes["written tokens"])
    n_words = sum(len(sentence.words) for sentence in sentences)
    texts = (
        f"{len(sentences)} English sentences of the test split ({n_words} words), each in {len(VOICES)} voices of "
        f"espeak-ng ({', '.join(VOICES)}), words {PAUSES[0]} to {PAUSES[1]} s apart; 95 % intervals over "
        "sentences, voices averaged"
    )
    about = {
        "heads": "every cross-attention head. in_word: share of tokens, punctuation left out, whose strongest key lies "
        "in the word being written; word_before: share of words, without the first, at whose beginning it lies in the "
        f"word just written. {TOLERANCE} s beside a word count as in it. Chance, of a head that looks anywhere in the "
        f"sound: {chance:.3f}. listed: in OpenAI's list of heads for word timing. cost: by how much the loss of the "
        "true text rises without the head (zeros), in nats a token",
        "list": "how well a score tells OpenAI's listed heads from the others: AUROC (chance 0.5), and how many of "
        "them are found among as many heads with the highest scores. layer: the number of the head's layer, a score "
        "that knows nothing",
        "off": "heads off (zeros, or, where the name says so, their mean over all sentences). loss, rise: of the true "
        "text, in nats a token; error_loss, error_rise: word error rate of what the model writes greedily, and its "
        "rise. listed: how many listed heads are off. 'same layers': random, as many in each layer as are listed; "
        "'others': as many random ones, none of them listed, the best unlisted or one of 'word just written'; 'three "
        "others': of these, as many in each layer as 'word just written' has; 'one other': one of these. Chosen on "
        f"either half of the sentences, 'highest scores' would {'' if same_on_halves(now, 8) else 'not '}be the same, "
        f"and 'word just written' would {'' if same_on_halves(before, 3) else 'not '}be the same",
        "timing": "when words begin, read off the maps of some heads as Whisper does, the true text given. close: "
        "share of words, the first left out, whose beginning is put into the pause before them, or "
        f"{TOLERANCE} s beside it; error and lag: mean of the size of the error, and of the error, in seconds; more, "
        "farther and later: these minus those of 'listed' with all heads on, sentence by sentence. off: the heads that "
        "were off (zeros, or their mean) meanwhile; 'letters': no model, every letter takes as long",
        "spoken": "the sound whisper.wav: when each word begins and ends, in seconds. The sentence that is shortest "
        "in the first voice, of these",
    }
    times = timing_table(model, sentences, sets)
    rows = {"heads": heads, "list": list_table(shares, listed), "off": off, "timing": times}
    rows["spoken"] = spoken_table(shortest(sentences))
    return {name: {"about": f"{what}. {texts}", "rows": rows[name]} for name, what in about.items()}


def main(
    quick: Annotated[bool, typer.Option("--quick", help="everything small, to see that it runs")] = False,
    out: Annotated[Path, typer.Option(help="the file to write")] = RESULTS / "whisper.json",
) -> None:
    """Measure, and keep."""
    torch.set_num_threads(1)
    sizes, began = QUICK if quick else SIZES, time.process_time()
    folder = make_copy("whisper")
    model, tokenizer = ht.load("whisper")
    sentences = spoken(model, tokenizer, sizes["sentences"])
    print(f"{len(sentences)} sentences spoken, {time.process_time() - began:.0f} s of CPU time so far")
    tables = measure(model, tokenizer, sentences, sizes)
    for table in tables.values():
        table["rows"] = [
            {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()}
            for row in table["rows"]
        ]
    version = subprocess.run(["espeak-ng", "--version"], capture_output=True, text=True, check=True).stdout
    about = {
        "model": locate("whisper")[1],
        "source": json.loads((folder / "source.json").read_text("utf-8")),
        "command": "make results MODEL=whisper",
        "recipe": "whisper",
        "speech": version.partition("  ")[0],
        "dtype": str(model.dtype),
        "threads": 1,
        "torch": torch.__version__,
        "cpu_seconds": round(time.process_time() - began),
        "sizes": sizes,
    }
    write({"about": about, "tables": tables}, out, "name")
    write_sound(shortest(sentences).sound, out.with_suffix(".wav"))


if __name__ == "__main__":
    typer.run(main)
