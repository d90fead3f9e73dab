"""taxonomy(): scores against brute force and against the organism's own table, baselines, verdicts, controls."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from headtools.roles._taxonomy.running_sums import RunningSums
from headtools.roles._taxonomy.scores import BatchScorer, RunningScores
from headtools.roles._taxonomy.sequences import make_sequences
from headtools.roles._taxonomy.table import table
from headtools.roles._taxonomy.targets import argmax_targets
from headtools.roles._taxonomy.vocabulary import Vocabulary, count_words
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    PreTrainedTokenizerFast,
)

import headtools as ht
from headtools.organism import roles_found
from headtools.roles.baselines import best_offsets, offset_baselines
from headtools.roles.controls import shuffled, untrained
from headtools.roles.conventions import CLARK, VOITA, Conventions
from headtools.roles.role import nearest_nominal
from headtools.roles.sentence import Sentence
from headtools.roles.taxonomy import best, taxonomy, taxonomy_and_control
from headtools.roles.word_alignment import align, to_words

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "dog", "cat", "play", "##ed", "##ing", "it", "saw", "."]
SAID = [
    Sentence(
        ("the", "dog", "played", "."),
        (2, 3, 0, 3),
        ("det", "nsubj", "root", "punct"),
        ("DET", "NOUN", "VERB", "PUNCT"),
        (0, 0, 0, 0),
    ),
    Sentence(
        ("the", "cat", "saw", "the", "dog", "playing", "."),
        (2, 3, 0, 5, 3, 5, 3),
        ("det", "nsubj", "root", "det", "obj", "acl", "punct"),
        ("DET", "NOUN", "VERB", "DET", "NOUN", "VERB", "PUNCT"),
        (0,) * 7,
    ),
    Sentence(
        ("the", "dog", "saw", "it", "."),
        (2, 3, 0, 3, 3),
        ("det", "nsubj", "root", "obj", "punct"),
        ("DET", "NOUN", "VERB", "PRON", "PUNCT"),
        (0, 0, 0, 2, 0),
    ),
]


def wordpieces(marks=True):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    plain = Tokenizer(models.WordPiece({w: i for i, w in enumerate(PIECES)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if marks:
        plain.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]"} if marks else {}
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", **names)


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(PIECES),
        hidden_size=16,
        num_attention_heads=4,
        num_hidden_layers=2,
        intermediate_size=8,
        initializer_range=0.6,
    )
    return BertModel(config).eval()


@pytest.fixture(scope="module")
def gpt():
    torch.manual_seed(2)
    return GPT2Model(GPT2Config(vocab_size=len(PIECES), n_embd=16, n_layer=2, n_head=4, initializer_range=0.6)).eval()


@pytest.fixture(scope="module")
def organism():
    return (*ht.load(), ht.corpus("organism", limit=60), ht.corpus("organism", "validation", limit=60))


def score(frame, role, layer, head, kind="encoder", column="score"):
    row = frame[(frame.role == role) & (frame.layer == layer) & (frame["head"] == head) & (frame.kind == kind)]
    assert len(row) == 1
    return row[column].item()


def word_maps(model, tokenizer, sentence, layer):
    """Map (head, unit, unit) of one sentence between [CLS], words and [SEP], made with loops."""
    batch = tokenizer([str(sentence)], return_tensors="pt")
    with torch.no_grad(), ht.record(model, want="maps") as r:
        model(**batch)
    maps = r["encoder", layer].maps[0]
    groups = []
    for token, piece in enumerate(batch.tokens(0)):
        if piece.startswith("##"):
            groups[-1].append(token)
        else:
            groups.append([token])
    return torch.stack(
        [torch.stack([sum(maps[:, q, k] for q in a for k in b) / len(a) for b in groups], -1) for a in groups], 1
    )


def test_equals_loops_over_single_sentences(bert):
    tokenizer = wordpieces()
    frame = taxonomy(bert, tokenizer, SAID, times=50)
    for layer in range(2):
        maps = [word_maps(bert, tokenizer, s, layer) for s in SAID]
        for head in range(4):
            hits, confident, even, self_weight, cls, far = [], [], [], [], [], []
            verb = []
            for s, m in zip(SAID, maps, strict=True):
                inner = m[head, 1:-1, 1:-1]
                looks = inner.argmax(-1).tolist()
                hits += [looks[i] == i - 1 for i in range(1, len(looks))]
                confident += inner.max(-1).values.tolist()
                rows = m[head, 1:-1]
                even += (-(rows * rows.log()).sum(-1)).tolist()
                self_weight += inner.diagonal().tolist()
                cls += rows[:, 0].tolist()
                far += [sum(float(rows[i, j]) * abs(i + 1 - j) for j in range(m.shape[-1])) for i in range(len(rows))]
                verb += [looks[i] == s.heads[i] - 1 for i, r in enumerate(s.relations) if r == "nsubj"]
            for role, values in (
                ("offset -1", hits),
                ("confidence", confident),
                ("entropy", even),
                ("cls", cls),
                ("self", self_weight),
                ("distance", far),
                ("nsubj up", verb),
            ):
                want = sum(values) / len(values)
                assert score(frame, role, layer, head) == pytest.approx(want, abs=1e-5), (role, layer, head)
                assert score(frame, role, layer, head, column="n") == len(values)


def test_same_scores_as_the_organisms_own_table(organism):
    model, tokenizer, test, validation = organism
    frame = taxonomy(model, tokenizer, test, validation, kinds="encoder", roles=["positional", "syntactic"])
    frame["head"] = frame.layer.astype(str) + "." + frame["head"].astype(str)
    both = roles_found.roles(model, tokenizer, validation, test).merge(frame, on=["role", "head"])
    assert both.role.nunique() > 20
    assert (both.score_x - both.score_y).abs().max() < 1e-6
    assert (both.n_x == both.n_y).all()
    common = both.role.str.startswith(("det", "nsubj", "obj", "amod", "case"))  # elsewhere two offsets may tie
    syntactic = both[both.baseline_x.notna() & common]
    assert syntactic.role.nunique() == 10
    assert (syntactic.baseline_x - syntactic.baseline_y).abs().max() < 1e-6


@pytest.mark.parametrize("size", [1, 2])
def test_batches_and_padding_do_not_matter(bert, size):
    tokenizer = wordpieces()
    whole, parts = (taxonomy(bert, tokenizer, SAID, times=20, batch_size=b) for b in (3, size))
    assert (whole.role == parts.role).all()
    for column in ("score", "baseline", "chance", "n"):
        assert (whole[column] - parts[column]).abs().max() < 1e-5, column


def test_tokens_are_another_granularity(bert):
    words, tokens = (
        taxonomy(bert, wordpieces(), SAID, times=20, roles="self", conventions=Conventions(granularity=granularity))
        for granularity in ("word", "token")
    )
    assert set(words.n) == {16}
    assert set(tokens.n) == {18}  # played and playing are two tokens each


def test_clark_never_looks_at_itself_and_specials_can_be_keys(bert):
    roles = ["offset +0", "offset -1", "confidence"]
    clark = taxonomy(bert, wordpieces(), SAID, times=20, roles=roles, conventions=CLARK)
    assert "offset +0" not in set(clark.role)
    free = taxonomy(bert, wordpieces(), SAID, times=20, roles=roles, conventions=Conventions(specials_as_keys=True))
    assert set(free[free.role == "offset -1"].n) == {16}  # the first word can look at [CLS]
    plain = taxonomy(bert, wordpieces(), SAID, times=20, roles=roles)
    assert set(plain[plain.role == "offset -1"].n) == {13}
    assert (free[free.role == "confidence"].score.values >= plain[plain.role == "confidence"].score.values - 1e-6).all()


def test_renormalising_divides_by_what_the_marks_leave(bert):
    plain, divided = (
        taxonomy(
            bert,
            wordpieces(),
            SAID,
            times=20,
            roles=["previous", "next", "self", "cls"],
            conventions=Conventions(renormalise=r),
        )
        for r in (False, True)
    )
    weights = plain.role != "cls"
    assert (divided[weights].score > plain[weights].score).all()
    assert (divided[~weights].score == plain[~weights].score).all()


@pytest.mark.parametrize("conventions", [Conventions(renormalise=True), replace(CLARK, renormalise=True)])
def test_confidence_is_renormalised_too(bert, conventions):
    """By loops: the largest share of what a row leaves the words, against one over the words."""
    frame = taxonomy(bert, wordpieces(), SAID, times=20, roles=["confidence"], conventions=conventions)
    shares, even = {(layer, head): [] for layer in range(2) for head in range(4)}, []
    for sentence in SAID:
        batch, words = align(wordpieces(), [sentence])
        with torch.no_grad(), ht.record(bert, want="maps") as seen:
            bert(**batch)
        n = len(sentence.words)
        for site in ht.sites(bert):
            maps = to_words(seen[site].maps, words)[0, :, :n, :n]
            if not conventions.self_as_key:
                maps = maps * (1 - torch.eye(n))
            for head, rows in enumerate(maps):
                shares[site.layer, head] += (rows.amax(-1) / rows.sum(-1)).tolist()
        even += [1 / (n - (not conventions.self_as_key))] * n
    for row in frame.itertuples():
        assert row.score == pytest.approx(sum(shares[row.layer, row.head]) / row.n, abs=1e-5)
        assert row.baseline == row.chance == pytest.approx(sum(even) / row.n, abs=1e-5)


def test_a_decoder_is_asked_only_what_it_can_see(gpt):
    tokenizer = wordpieces(marks=False)
    frame = taxonomy(gpt, tokenizer, SAID, times=20)
    assert set(frame.kind) == {"decoder"}
    assert not {"next", "offset +1", "nsubj up", "det up"} & set(frame.role)  # all of these lie ahead
    assert set(frame[frame.role == "nsubj down"].n) == {3}
    assert (frame[frame.role == "nsubj down"].baseline == 1).all()  # always the word before
    counted = taxonomy(gpt, tokenizer, SAID, times=20, roles=["next"], conventions=Conventions(edges="count"))
    assert (counted.score == 0).all()
    assert set(counted.n) == {16}


def test_alignment_is_one_minus_aer(organism):
    model, tokenizer, test, _ = organism
    frame = taxonomy(model, tokenizer, test[:20], kinds="cross", roles="alignment", times=20)
    hits, links = torch.zeros(8), 0
    for s in test[:20]:
        batch, labels = (tokenizer([text], return_tensors="pt") for text in (str(s), " ".join(s.target)))
        with torch.no_grad(), ht.record(model, want="maps") as r:
            model(**batch, decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels.input_ids))
        looks = r["cross", 3].maps[0, :, : len(s.target), : len(s.words)].argmax(-1)
        hits += (looks == torch.tensor(s.alignment) - 1).sum(-1)
        links += len(s.target)
    found = [score(frame, "alignment", 3, head, kind="cross") for head in range(8)]
    assert found == pytest.approx((hits / links).tolist(), abs=1e-6)
    late = taxonomy(
        model, tokenizer, test[:20], kinds="cross", roles="alignment", times=20, conventions=Conventions(cross="reads")
    )
    assert late.score.max() < frame.score.max() - 0.3


def test_the_baseline_is_fitted_elsewhere(bert):
    tokenizer = wordpieces()
    far = [
        Sentence(
            ("the", "dog", ".", "saw"),
            (2, 4, 4, 0),
            ("det", "nsubj", "punct", "root"),
            ("DET", "NOUN", "PUNCT", "VERB"),
            (0,) * 4,
        )
    ] * 2
    near, other = (taxonomy(bert, tokenizer, SAID, fit, times=20, roles="syntactic") for fit in (SAID, far))
    rows = [frame[frame.role == "nsubj up"].iloc[0] for frame in (near, other)]
    assert [(row.baseline_rule, row.baseline) for row in rows] == [("offset +1", 1.0), ("offset +2", 0.0)]


def test_without_a_second_split_each_half_is_the_others(bert):
    forms = ("the", "dog", "saw", "it")
    marks = ("DET", "NOUN", "VERB", "PRON")
    even = Sentence(forms, (2, 3, 0, 3), ("det", "nsubj", "root", "obj"), marks, (0,) * 4)
    odd = Sentence(forms, (3, 3, 0, 3), ("nsubj", "det", "root", "obj"), marks, (0,) * 4)
    frame = taxonomy(bert, wordpieces(), [even, odd] * 3, times=20, roles="nsubj up")
    assert set(frame.baseline) == {0.0}  # fitted on the same half it would be 1
    assert set(frame.baseline_rule) == {"offset +2 / +1"}


def test_the_best_offset_counts_pairs():
    assert best_offsets([{"det up": [(0, (1,)), (2, (3,))]}, {"det up": [(0, (2,))]}]) == {"det up": 1}
    assert best_offsets([{"det up": [(1, (0,)), (1, (2,))]}]) == {"det up": -1}  # a tie: the earlier one


def test_baselines_without_a_model():
    frame = offset_baselines(SAID, SAID).set_index("role")
    assert frame.loc["nsubj up", ["offset", "score", "n"]].tolist() == [1, 1.0, 3]
    assert frame.loc["obj down", ["offset", "n"]].tolist() == [1, 2]  # +2 and +1 once each: the nearer
    assert frame.loc["obj down", "score"] == 0.5
    with pytest.raises(ValueError, match="no relation"):
        offset_baselines(SAID, [Sentence(("it",), (0,), ("root",), ("PRON",), (0,))])


def test_a_verdict_needs_the_interval(organism):
    model, tokenizer, test, validation = organism
    frame = taxonomy(
        model, tokenizer, test, validation, kinds="encoder", roles=["positional", "syntactic", "confidence"]
    )
    assert (frame.low <= frame.score + 1e-6).all()
    assert (frame.score <= frame.high + 1e-6).all()
    assert (frame.difference_low <= frame.score - frame.baseline + 1e-6).all()
    positional = frame[frame.family == "positional"]
    assert (positional.passes == ((positional.low >= 0.9 - 1e-6) & (positional.n >= 50))).all()
    assert positional.passes.any()
    syntactic = frame[frame.family == "syntactic"]
    beaten = syntactic.difference_low >= 0.1 - 1e-6
    assert not (syntactic.passes & ~beaten).any()
    assert not (syntactic.passes & (syntactic.n < 50)).any()
    points = (syntactic.score >= syntactic.baseline + 0.1) & (syntactic.n >= 50)
    assert points.sum() > syntactic.passes.sum() > 0  # some pass as points that do not as intervals


def test_intervals_are_those_of_the_bootstrap(organism):
    model, tokenizer, test, validation = organism
    frame = taxonomy(model, tokenizer, test, validation, kinds="encoder", roles=["self"], times=2000)
    sums = torch.zeros(len(test), 2)
    for i, s in enumerate(test):
        with torch.no_grad(), ht.record(model, want="maps", only=["encoder"]) as r:
            model.get_encoder()(**tokenizer([str(s)], return_tensors="pt"))
        diagonal = r["encoder", 2].maps[0, 5].diagonal()[: len(s.words)]
        sums[i] = torch.tensor([diagonal.sum(), len(s.words)])
    draws = torch.randint(len(test), (2000, len(test)), generator=torch.Generator().manual_seed(3))
    means = sums[draws].sum(1)
    low, high = (means[:, 0] / means[:, 1]).quantile(torch.tensor([0.025, 0.975])).tolist()
    width = high - low
    assert score(frame, "self", 2, 5, column="low") == pytest.approx(low, abs=0.15 * width)
    assert score(frame, "self", 2, 5, column="high") == pytest.approx(high, abs=0.15 * width)


def test_intervals_cover_where_few_sentences_have_the_role():
    """A hundred corpora of 12 sentences, of which 8 have the role: percentiles alone hold the truth in 86 to 90 %."""
    generator = torch.Generator().manual_seed(0)
    site = SimpleNamespace(stack=None, kind="encoder", layer=0, heads=1, key=("encoder", 0))
    hits = []
    for seed in range(100):
        looks = torch.randint(1, 15, (12,), generator=generator) * (torch.arange(12) < 8)
        right = looks * torch.rand(12, generator=generator)
        sums, counts = RunningSums(), RunningSums()
        drawn = torch.poisson(torch.ones(12, 300), generator=torch.Generator().manual_seed(seed)).T
        counted = torch.stack([looks.float(), torch.zeros(12), torch.zeros(12)], 1)[..., None]
        sums.add(right[:, None, None], drawn)
        counts.add(counted, drawn)
        made = table(
            [(site, 1)], sums, counts, torch.tensor([8]), ["nsubj up"], [{}], Conventions(), 0.95, lambda *_: 0
        )["encoder", 0]
        assert 0 <= made["low"][0] <= made["score"][0] <= made["high"][0] <= 1
        hits.append(made["low"][0] <= 0.5 <= made["high"][0])
    assert sum(hits) >= 91


def test_controls_hold_next_to_nothing(organism):
    model, tokenizer, test, validation = organism
    kinds = ["positional", "syntactic", "rare", "coreference"]
    given = {"kinds": "encoder", "roles": kinds, "conventions": Conventions(n_frequent=0), "times": 200}
    assert taxonomy(model, tokenizer, test, validation, **given).passes.sum() >= 10
    assert taxonomy(model, tokenizer, test, validation, shuffle=True, **given).passes.sum() == 0
    assert taxonomy(untrained(model), tokenizer, test, validation, **given).passes.sum() == 0


def test_taxonomy_and_control_are_what_two_calls_give(organism):
    model, tokenizer, test, validation = organism
    given = {"times": 20, "batch_size": 7, "seed": 3}
    frame, control = taxonomy_and_control(model, tokenizer, test[:20], validation[:20], **given)
    alone = [taxonomy(model, tokenizer, test[:20], validation[:20], shuffle=shuffle, **given) for shuffle in (0, 1)]
    pd.testing.assert_frame_equal(frame, alone[0], check_exact=True)
    pd.testing.assert_frame_equal(control, alone[1], check_exact=True)
    assert not frame.score.equals(control.score)


def test_shuffling_keeps_each_rows_weights_where_they_may_be():
    maps = torch.rand(2, 3, 5, 5).tril()
    visible = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    out = shuffled(maps, visible, torch.Generator().manual_seed(0))
    assert (out.sort(-1).values == maps.sort(-1).values).all()
    assert (out.triu(1) == 0).all()
    assert (out != maps).any()


def test_an_untrained_twin_leaves_the_random_state_alone(gpt):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, two, three = untrained(gpt), untrained(gpt), untrained(gpt, seed=1)
    assert (torch.random.get_rng_state() == before).all()
    assert (one.wte.weight == two.wte.weight).all()
    assert (one.wte.weight != three.wte.weight).any()
    with pytest.raises(TypeError, match="no config"):
        untrained(torch.nn.Linear(2, 2))


def targets(sentence, conventions, rank):
    """By argmax, between the words of a sentence."""
    vocabulary = rank if isinstance(rank, Vocabulary) else Vocabulary(rank, {}, 0.0, {})
    places = range(len(sentence.words))
    return argmax_targets("encoder", sentence, places, places, vocabulary, conventions)


def test_the_rarest_word_is_the_target_of_every_query():
    rank = {"the": 0, "saw": 1, "dog": 2, "it": 3}
    found = targets(SAID[2], Conventions(n_frequent=3), rank | {".": 4})
    assert found["rarest"] == [(q, [4]) for q in range(5)]
    assert found["two rarest"] == [(q, [3, 4]) for q in range(5)]
    assert found["rarest other"] == [(0, [4]), (1, [4]), (2, [4]), (3, [4]), (4, [3])]
    assert "rarest" not in targets(SAID[2], Conventions(n_frequent=5), rank | {".": 4})


def test_words_equally_rare_are_rarest_together():
    rank = {"the": 0, "saw": 3, "dog": 3, "it": 1, ".": 1}  # "it saw the dog ."
    sentence = replace(SAID[2], words=("it", "saw", "the", "dog", "."))
    found = targets(sentence, Conventions(n_frequent=3), rank)
    assert found["rarest"] == found["two rarest"] == [(q, [1, 3]) for q in range(5)]
    assert found["rarest other"] == [(0, [1, 3]), (1, [3]), (2, [1, 3]), (3, [1]), (4, [1, 3])]
    found = targets(sentence, Conventions(n_frequent=3), rank | {"dog": 4})
    assert found["rarest"] == [(q, [3]) for q in range(5)]
    assert found["two rarest"] == [(q, [1, 3]) for q in range(5)]
    assert found["rarest other"] == [(q, [1 if q == 3 else 3]) for q in range(5)]
    found = targets(sentence, Conventions(n_frequent=1), rank | {"dog": 4, "saw": 1})
    assert found["two rarest"] == [(q, [0, 1, 3, 4]) for q in range(5)]
    assert found["rarest other"][3] == (3, [0, 1, 4])
    found = targets(sentence, Conventions(n_frequent=1), rank | {"it": 3})
    assert "rarest" not in found, "more than half of the words would be"
    assert "rarest" not in targets(sentence, Conventions(n_frequent=4), rank)


def test_the_alphabet_decides_nothing():
    """Names of words that only change places in the alphabet leave scores, baselines and counts as they are."""
    frequency = {"the": 9, "dog": 5, "it": 5, "played": 2, "playing": 2, "saw": 2, "they": 2, ".": 9}
    names = sorted({*frequency, *(word for s in SAID for word in s.words)})
    renamed = {word: f"{chr(ord('z') - i)}{word}" for i, word in enumerate(names)}
    rare = ["rarest", "two rarest", "rarest other"]
    words = count_words(wordpieces(), SAID, frequency)
    others = count_words(wordpieces(), SAID, {renamed[word]: n for word, n in frequency.items()})
    for n_frequent in (0, 1, 3, 5):
        conventions = Conventions(n_frequent=n_frequent)
        for s in SAID:
            found = targets(s, conventions, words)
            other = targets(replace(s, words=tuple(renamed[word] for word in s.words)), conventions, others)
            assert [found.get(role) for role in rare] == [other.get(role) for role in rare]


def test_case_does_not_make_a_word_rare(bert):
    frequency = {"the": 90, "dog": 5, "it": 50, "played": 2, "saw": 3, ".": 90}
    capitalised = [replace(s, words=tuple(w.capitalize() for w in s.words)) for s in SAID]
    for written in (capitalised, SAID):
        words = count_words(wordpieces(), written, frequency)
        for s in written:
            for word in s.words:
                low = word.lower()
                n, total = frequency.get(low, 0), sum(frequency.values()) + 7
                assert words.rank_of(word) == sum(other > n for other in frequency.values())
                assert words.rarity_of(word) == pytest.approx(math.log(total / (n + 1)))
    both = count_words(wordpieces(), SAID, {"May": 5, "may": 9, "MAY": 1})
    assert [both.rank_of(word) for word in ("may", "May", "MAY", "mAy", "June")] == [0, 1, 2, 0, 3]
    frames = []
    for change in (str, str.upper):
        counts = {change(word): n for word, n in frequency.items()}
        frames.append(
            taxonomy(
                bert,
                wordpieces(),
                SAID,
                times=20,
                roles=["rarity", "rare"],
                frequency=counts,
                conventions=Conventions(n_frequent=0),
            )
        )
    pd.testing.assert_frame_equal(*frames)


@pytest.mark.parametrize("count", [0.01, -1, float("nan"), 2.5])
def test_a_share_is_no_count(bert, count):
    with pytest.raises(ValueError, match=r"frequency\['dog'\] = .* whole number"):
        taxonomy(bert, wordpieces(), SAID, frequency={"the": 3, "dog": count})


def test_coreference_is_any_mention_before(bert):
    sentence = Sentence(
        ("the", "dog", "saw", "the", "cat", "it", "it", "."),
        (2, 3, 0, 5, 3, 3, 3, 3),
        ("_",) * 8,
        ("DET", "NOUN", "VERB", "DET", "NOUN", "PRON", "PRON", "PUNCT"),
        (0, 0, 0, 0, 0, 2, 2, 0),
    )
    frame = taxonomy(bert, wordpieces(), [sentence] * 4, times=20, roles="coreference")
    # before the first 'it': dog, cat, of which dog; before the second: dog, cat, it, of which dog and it
    assert frame.chance.iloc[0] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert frame.baseline.iloc[0] == pytest.approx((0 + 1) / 2)  # the nearest noun: cat, it
    named = taxonomy(bert, wordpieces(), [sentence] * 4, times=20, roles="coreference", antecedent=lambda s, i: 1)
    assert set(named.baseline) == {1.0}


def test_bad_input_is_refused(bert, organism):
    tokenizer = wordpieces()
    with pytest.raises(ValueError, match="two or more"):
        taxonomy(bert, tokenizer, SAID[:1])
    with pytest.raises(ValueError, match=r"level=95 and times=500; expected a probability, such as 0\.95"):
        taxonomy(bert, tokenizer, SAID, level=95)
    with pytest.raises(ValueError, match=r"got level=0\.95 and times=0"):
        taxonomy(bert, tokenizer, SAID, times=0)
    with pytest.raises(ValueError, match="no role or family 'positonal'"):
        taxonomy(bert, tokenizer, SAID, roles=["positonal"])
    with pytest.raises(ValueError, match="no 'cross' attention in BertModel"):
        taxonomy(bert, tokenizer, SAID, kinds=["cross"])
    with pytest.raises(ValueError, match="target"):
        taxonomy(organism[0], organism[1], ht.corpus("english", limit=2), kinds=["cross"])
    with pytest.raises(ValueError, match="name nothing"):
        taxonomy(bert, tokenizer, SAID, roles=["alignment"])
    with pytest.raises(ValueError, match="got granularity='sentence'; expected 'word' or 'token'"):
        Conventions(granularity="sentence")


def test_every_row_is_complete(organism):
    model, tokenizer, test, validation = organism
    frame = taxonomy(model, tokenizer, test[:8], validation[:8], times=50)
    assert set(frame.kind) == {"encoder", "decoder", "cross"}
    bounds = ["low", "high", "difference_low", "difference_high"]
    assert not frame.drop(columns=bounds).isna().any().any()
    few = frame.low.isna()  # roles that fewer than five of the eight sentences have
    assert (few == frame[bounds].isna().any(axis=1)).all()
    assert 0 < few.sum() < len(frame) / 2
    assert not frame.passes[few].any()
    assert (frame[few].n < 50).all()
    assert frame.attrs["interval"] == "none for roles of which fewer than 5 sentences have a query"
    assert len(frame) == len(frame.drop_duplicates(["kind", "layer", "head", "role"]))
    assert set(best(frame).index) == set(frame.role)
    assert math.isclose(frame[frame.role == "content"].baseline.abs().max(), 0)


def test_a_layer_that_runs_three_times_is_the_mean_of_them():
    torch.manual_seed(3)
    config = AlbertConfig(
        vocab_size=len(PIECES),
        embedding_size=16,
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=3,
        intermediate_size=8,
        initializer_range=0.6,
    )
    model, maps = AlbertModel(config).eval(), []
    frame = taxonomy(model, wordpieces(), [SAID[2]] * 2, times=20, roles="self")
    with torch.no_grad(), ht.record(model, want="maps", accumulate=lambda _site, seen, _before: maps.append(seen.maps)):
        model(**wordpieces()([str(SAID[2])], return_tensors="pt"))
    assert len(maps) == 3
    want = torch.stack([m[0].diagonal(0, 1, 2)[:, 1:-1].mean(-1) for m in maps]).mean(0)
    assert frame.score.tolist() == pytest.approx(want.tolist(), abs=1e-5)
    assert set(frame.n) == {30}


def test_maps_of_something_else_are_refused(bert):
    _, sequences = make_sequences(bert, wordpieces(), SAID, ["encoder"], VOITA, False)
    vocabulary = count_words(wordpieces(), SAID, None)
    scorer = BatchScorer(sequences["encoder"], ["self"], vocabulary, VOITA, [{}] * 3, nearest_nominal)
    model_sites = list(ht.sites(bert))
    with pytest.raises(ValueError, match="kinds="):
        RunningScores(scorer, model_sites, [False]).add(model_sites[0], torch.rand(3, 4, 5, 5), torch.Generator())
