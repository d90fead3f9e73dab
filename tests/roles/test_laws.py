"""Laws of roles/, and of intervals: any tokenizer, any sentences, models of any architecture and precision."""

import copy

import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import headtools as ht

from ..heads.reference import untouched
from ..laws import law
from ..random_models import drawn

LETTERS = "abcdefgh"
MARKS = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3}
PIECES = MARKS | {letter: 4 + i for i, letter in enumerate(LETTERS)} | {f"##{c}": 12 + i for i, c in enumerate(LETTERS)}
TEXT = ("bert", "distilbert", "gpt2", "opt", "llama", "qwen3", "phi3", "t5", "marian")
COUNTS = ("score", "baseline", "chance", "low", "high", "difference_low", "difference_high", "n")


@st.composite
def sentences(draw, fewest=1, most=4):
    """Trees of words of one to three letters, which are one to three tokens."""
    made = []
    for _ in range(draw(st.integers(fewest, most))):
        words = draw(st.lists(st.text(LETTERS, min_size=1, max_size=3), min_size=2, max_size=5))
        root, size = draw(st.integers(0, len(words) - 1)), len(words)
        heads = [0 if i == root else draw(st.sampled_from([h + 1 for h in range(size) if h != i])) for i in range(size)]
        relations = ["root" if h == 0 else draw(st.sampled_from(["nsubj", "obj", "det"])) for h in heads]
        upos = draw(st.lists(st.sampled_from(["NOUN", "VERB", "DET"]), min_size=size, max_size=size))
        made.append(ht.Sentence(tuple(words), tuple(heads), tuple(relations), tuple(upos), (0,) * size))
    return made


@st.composite
def tokenizers(draw):
    """A token for every letter; marks before, behind, or none; padding on either side."""
    plain = Tokenizer(models.WordPiece(PIECES, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = draw(st.sampled_from(["[CLS] $A [SEP]", "[CLS] $A", "$A [SEP]", "$A"]), label="marks")
    plain.post_processor = processors.TemplateProcessing(
        single=ends, special_tokens=[(mark, MARKS[mark]) for mark in ("[CLS]", "[SEP]") if mark in ends]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    side = draw(st.sampled_from(["left", "right"]), label="padding side")
    return PreTrainedTokenizerFast(tokenizer_object=plain, padding_side=side, **names)


@law(60)
@given(tokenizers(), sentences())
def test_every_token_knows_its_word(tokenizer, said):
    batch, words = ht.align(tokenizer, said)
    assert words.shape == batch["input_ids"].shape
    for sentence, ids, row, mask in zip(said, batch["input_ids"], words, batch["attention_mask"], strict=True):
        spelt = [""] * len(sentence.words)
        for piece, word, real in zip(tokenizer.convert_ids_to_tokens(ids), row.tolist(), mask, strict=True):
            if word >= 0:
                assert real
                spelt[word] += piece.removeprefix("##")
            else:
                assert piece in MARKS
        assert tuple(spelt) == sentence.words


@law(60)
@given(tokenizers(), sentences(), st.integers(1, 3), st.integers(0, 99))
def test_words_look_at_words_as_their_pieces_do(tokenizer, said, heads, seed):
    words = ht.align(tokenizer, said).words
    rows, tokens = words.shape
    maps = torch.rand(rows, heads, tokens, tokens, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    found = ht.to_words(maps, words)
    for row, sentence in enumerate(said):
        mine, size = words[row], len(sentence.words)
        for i in range(size):
            looked = maps[row][:, mine == i].mean(1)  # (head, key): the mean of the word's pieces
            for j in range(size):
                assert torch.allclose(found[row, :, i, j], looked[:, mine == j].sum(-1), atol=1e-6)
            assert torch.allclose(found[row, :, i].sum(-1), torch.ones(heads), atol=1e-5)
        assert not found[row, :, size:].any()


@law(25)
@given(drawn(TEXT, ("float32", "float64"), ("right",)), tokenizers(), sentences(3, 5), st.data())
def test_roles_of_any_model(one, tokenizer, said, data):
    if one.heads * one.width == 2:  # a norm over two features gives a sign, which rounding in single precision can turn
        one.model.double()
    size = data.draw(st.integers(1, 4), label="batch_size")
    with untouched(one.model):
        frame = ht.taxonomy(one.model, tokenizer, said, times=10)
        tokenizer.padding_side = {"left": "right", "right": "left"}[tokenizer.padding_side]
        parts = ht.taxonomy(one.model, tokenizer, said, times=10, batch_size=size)
    there = {(*site.key, head) for site in ht.sites(one.model) for head in range(site.heads)}
    assert set(zip(frame.kind, frame.layer, frame["head"], strict=True)) <= there
    known = frame[frame.low.notna()]  # five sentences with a query are needed
    assert (known.low <= known.score + 1e-6).all()
    assert (known.score - 1e-6 <= known.high).all()
    assert frame.high.notna().equals(frame.low.notna())
    assert (frame.n > 0).all()
    assert not frame.passes.any()  # fifty looks are needed
    shares = frame[frame.family.isin(["positional", "syntactic"])]
    assert len(shares)
    assert shares[["score", "baseline", "chance", "low", "high"]].stack().dropna().between(0, 1).all()
    assert (frame.role == parts.role).all()
    means = ~frame.family.isin(["positional", "syntactic", "rare"])  # where a head looks most, weights may tie
    for column in COUNTS:
        assert (frame[column].isna() == parts[column].isna())[means].all(), column
        assert (frame[column] - parts[column])[means].abs().fillna(0).max() < 1e-4, column


@law(25)
@given(drawn())
def test_the_untrained_twin_has_the_same_shape_and_other_weights(one):
    before = torch.get_rng_state()
    with untouched(one.model):
        twin, again, other = ht.untrained(one.model), ht.untrained(one.model), ht.untrained(one.model, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    theirs = twin.state_dict()
    assert theirs.keys() == one.model.state_dict().keys()
    for name, weight in one.model.state_dict().items():
        assert (theirs[name].shape, theirs[name].dtype) == (weight.shape, weight.dtype)
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for model in (one.model, twin, again, other)]
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[1], weights[3])
    assert not torch.equal(weights[0], weights[1])
    assert not twin.training
    assert twin.config is not one.model.config
    assert [site.key for site in ht.sites(twin)] == [site.key for site in ht.sites(one.model)]


NUMBERS = st.floats(-100, 100, width=32)


@law(60)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=5, max_size=12))
def test_a_difference_has_two_sides(rows):
    first, second = (ht.HeadScores.from_rows({("encoder", 0): row[:, None]}) for row in torch.tensor(rows).double().T)
    near = 1e-5 * (1 + first.flat().abs().max().item() + second.flat().abs().max().item())
    there, back = second.minus(first), first.minus(second)
    for left, right in ((there.values, back.values), (there.low, back.high), (there.high, back.low)):
        assert torch.allclose(left["encoder", 0], -right["encoder", 0], atol=near)
    same = first.minus(first)
    assert [same.values["encoder", 0], same.low["encoder", 0], same.high["encoder", 0]] == [0, 0, 0]


@law(15)
@given(drawn(dtypes=("float32",)), st.data())
def test_scores_keep_their_heads(one, data):
    found = ht.sites(one.model)
    scores = ht.HeadScores({site.key: torch.rand(site.heads) for site in found}, name="drawn")
    every = [(*site.key, head) for site in found for head in range(site.heads)]
    assert sorted(scores.order()) == sorted(every)
    n = data.draw(st.integers(1, len(every)), label="n")
    assert scores.top(n) == sorted(every, key=lambda head: -scores[head])[:n]
    assert len(scores.to_frame()) == len(scores) == len(every)
    assert len(found) == len(list(found)) == len({site.key for site in found})
    assert found.n_heads == len(every)
    for site in found:
        assert found[site.key] is site
        assert site in list(found[site.kind])
    other = ht.sites(copy.deepcopy(one.model))
    assert [site.key for site in other] == [site.key for site in found]
