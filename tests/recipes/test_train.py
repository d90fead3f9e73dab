"""Training both organisms: resumable to the bit, whole files only, and each aid does what its card says."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import headtools as ht
from headtools.organism import batches as batches1
from headtools.organism import snapshots
from headtools.organism.batches import encode
from recipes import train
from recipes._publish import publish
from recipes._training_model import AuxiliaryTrainingModel, training_batch
from recipes.second_organism import batches as batches2
from recipes.second_organism import train as train2
from recipes.second_organism._training_model import TrainingModel, encoder_attention, first_positions

SMALL = {"steps": 4, "save_every": 2, "chunk": 64, "tokens": 128, "validate_on": 8}
TINY, TINY2 = train.Recipe(**SMALL), train2.Recipe(**SMALL)
IDS = batches2.word_ids()


@pytest.fixture(
    scope="module",
    params=[
        SimpleNamespace(name="organism", module=train, batches=batches1, tiny=TINY),
        SimpleNamespace(name="organism2", module=train2, batches=batches2, tiny=TINY2),
    ],
    ids=["first", "second"],
)
def which(request):
    return request.param


@pytest.fixture(scope="module")
def straight(which, tmp_path_factory):
    """The model, trained without a stop."""
    return which.module.train(which.tiny, tmp_path_factory.mktemp("straight"), progress=False)


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.weekly  # long, and run by whoever changes the recipe
@pytest.mark.full
def test_stopped_and_resumed_ends_at_the_same_weights(which, straight, tmp_path):
    which.module.train(which.tiny, tmp_path, stop=2, progress=False)
    with pytest.raises(ValueError, match="another recipe"):
        which.module.train(replace(which.tiny, seed=2), tmp_path, progress=False)
    assert equal(which.module.train(which.tiny, tmp_path, progress=False), straight)
    assert not equal(which.module.train(replace(which.tiny, seed=2), tmp_path / "2", progress=False), straight)


def test_the_exported_model_computes_what_the_training_model_computed(which, straight, tmp_path):
    sentences, ids = ht.corpus(which.name, limit=4), which.batches.word_ids()
    with torch.no_grad():
        loss, _ = straight(training_batch(sentences, ids), guide=0.0, tag=0.0)
    publish(straight.export(), tmp_path / "assets", ids)
    model, tokenizer = ht.load(tmp_path / "assets")
    with torch.no_grad():
        assert abs(loss.item() - model(**encode(sentences, ids)).loss.item()) < 1e-5
    assert tokenizer(str(sentences[0])).input_ids == [ids[word] for word in (*sentences[0].words, "</s>")]
    assert not list(tmp_path.glob("*.part"))


def test_training_batches_line_up_with_the_gold_alignment(which):
    ids = which.batches.word_ids()
    word = {i: w for w, i in ids.items()}
    sentences = ht.corpus(which.name, limit=8)
    batch = training_batch(sentences, ids)
    for i, s in enumerate(sentences):
        for t, (target, source) in enumerate(zip(s.target, s.alignment, strict=True)):
            assert word[int(batch["labels"][i, t])] == target
            assert word[int(batch["decoder_input_ids"][i, t + 1])] == target
            assert int(batch["aligned"][i, t]) == source - 1
            assert word[int(batch["translation"][i, source - 1])] == target
        assert batch["decoder_input_ids"][i, 0] == ids["<pad>"]
        assert int(batch["tagged"][i].sum()) == len(s.words)


def test_groups_hold_their_bound_and_short_sentences_come_first(which):
    groups = {s: which.batches.training_sentences(1, 0, tokens=1_024, n=128, short=s) for s in (True, False)}
    for drawn in groups.values():
        assert sum(map(len, drawn)) == 128
        assert all(2 * (max(len(s.words) for s in group) + 1) * len(group) <= 1_024 for group in drawn)
    longest = {short: max(len(s.words) for group in drawn for s in group) for short, drawn in groups.items()}
    assert longest[True] <= 10 < longest[False]


def test_the_rate_warms_up_stays_and_falls():
    recipe = train.Recipe(steps=1000, warmup=100)
    rates = [recipe.rate_at(step) for step in range(1000)]
    assert rates[0] < rates[50] < rates[99] == max(rates)
    assert rates[99] == rates[349] == recipe.rate
    assert rates[999] < 0.03 * recipe.rate


@pytest.mark.full  # trains twice
def test_keeping_snapshots_changes_nothing_and_stores_what_was_there(which, straight, tmp_path):
    kept = which.module.train(which.tiny, tmp_path / "kept", progress=False, keep=(0, 2, 4))
    weights = zip(straight.parameters(), kept.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights if a.requires_grad)
    folder = tmp_path / "kept" / "snapshots"
    assert sorted(f.name for f in folder.iterdir()) == [snapshots.path(s).name for s in (0, 2, 4)]
    halfway = which.module.train(which.tiny, tmp_path / "half", stop=2, progress=False).export().state_dict()
    stored = snapshots.load_file(snapshots.path(2, folder))
    assert stored.keys() == halfway.keys() - snapshots.DERIVED
    assert all(torch.equal(stored[name], halfway[name].half()) for name in stored)


@pytest.mark.full  # trains and saves
def test_the_command_trains_other_sizes_and_writes_where_it_is_told(tmp_path, monkeypatch, capsys):
    before = (snapshots.ASSETS / "checksums.json").read_text()
    monkeypatch.chdir(tmp_path)
    train.main(size="half", steps=1, seed=2, assets=tmp_path / "assets")
    model, _ = ht.load(tmp_path / "organism-run-seed2-heads4-steps1" / "model")
    assert model.config.encoder_attention_heads == model.config.decoder_attention_heads == 4
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in ht.load()[0].parameters())
    assert (snapshots.ASSETS / "checksums.json").read_text() == before, "the shipped model is left alone"
    assert "trained 1 steps" in capsys.readouterr().out
    ht.load(tmp_path / "assets")
    assert snapshots.weights(0, tmp_path / "assets" / "snapshots").keys() == snapshots.weights(0).keys()


# --- the first organism: heads cut before the first step --------------------------------------------------------------

WITHOUT = ("encoder 1.0", "encoder 1.7", *(f"encoder 3.{head}" for head in range(8)), "decoder 0.2")


def test_the_cut_model_starts_as_the_uncut_one_without_these_heads():
    batch, models = training_batch(ht.corpus("organism", limit=3)), []
    for _ in range(2):
        torch.manual_seed(5)
        models.append(AuxiliaryTrainingModel())
    uncut, small = models
    train.cut(small.model, WITHOUT)
    heads = [(kind, int(at[0]), int(at[2])) for kind, at in map(str.split, WITHOUT)]
    with torch.no_grad(), ht.ablate(uncut.model, heads):
        a, b = (model(batch, guide=0.0, tag=0.5)[0] for model in (uncut, small))
    assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.weekly  # long, and run by whoever changes the recipe
@pytest.mark.full  # trains three times
def test_what_was_cut_stays_away_and_training_resumes(tmp_path):
    recipe = replace(TINY, steps=3, without=WITHOUT)
    trained = train.train(recipe, tmp_path / "one", progress=False)
    sites = ht.sites(trained.model)
    assert [sites["encoder", layer].heads for layer in (0, 1)] == [8, 6]
    assert sites["encoder", 3].empty
    silent = trained.model.model.encoder.layers[3].self_attn
    assert not silent.out_proj.weight.any()
    assert silent.out_proj.bias.any(), "the bias stays and learns"
    with pytest.raises(ValueError, match=r"every cross head, so cross 1\.2 cannot be cut"):
        train.cut(AuxiliaryTrainingModel().model, ["encoder 0.0", "cross 1.2"])
    train.train(recipe, tmp_path / "two", stop=2, progress=False)
    assert equal(train.train(recipe, tmp_path / "two", progress=False), trained)
    with pytest.raises(ValueError, match="another model's weights"):
        train.train(TINY, tmp_path / "two", progress=False)


# --- the second: each aid can be left out -----------------------------------------------------------------------------


def test_the_command_leaves_out_what_it_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(train2, "train", lambda recipe, run, keep: seen.append((recipe, run)) or TrainingModel())
    aids = ("tagging", "curriculum", "initialisation", "composed", "shift")
    train2.main(steps=1, attention="none", assets=tmp_path / "half", **dict.fromkeys(aids, False))
    ((recipe, run),) = seen
    assert (recipe.tag, recipe.short, recipe.initialisation, recipe.composed, recipe.shift) == (0, 0, False, False, 0)
    assert run.name == "organism-run2-seed1-steps1-" + "-".join(f"no-{aid}" for aid in aids) + "-attention-none"
    model, _ = ht.load(run / "model")
    half, _ = ht.load(tmp_path / "half")
    assert (tmp_path / "half" / "model.safetensors").stat().st_size < 6e6
    batch = batches2.batches(ht.corpus("organism2", limit=1))[0]
    with torch.no_grad():
        assert abs(half(**batch).loss - model(**batch).loss) < 0.01


def test_positions_from_a_number_on_are_those_of_words_with_padding_in_front():
    training_model = TrainingModel()
    batch = training_batch(ht.corpus("organism2", limit=2), IDS)
    with torch.no_grad():
        plain = training_model(batch, 0.0, 0.0)[0]
        for first, same in ((0, True), (5, False)):
            with training_model.positions_from(torch.tensor([0, first])):
                assert torch.equal(training_model(batch, 0.0, 0.0)[0], plain) == same
        assert torch.equal(training_model(batch, 0.0, 0.0)[0], plain)
    embed = training_model.model.model.encoder.embed_positions
    with training_model.positions_from(torch.tensor([0, 5])):
        found = embed(torch.Size([2, 4]))
    assert torch.equal(found, torch.stack([embed.weight[:4], embed.weight[5:9]]))
    firsts = torch.cat([first_positions(1, step, 50, 20) for step in range(20)])
    assert 0.4 < (firsts == 0).float().mean() < 0.6
    assert (firsts.min(), firsts.max()) == (0, 20)
    assert first_positions(1, 0, 50, 0) is None


def test_without_encoder_attention_words_do_not_know_of_each_other():
    torch.manual_seed(0)
    model = TrainingModel().export().eval()
    batch = batches2.batches(ht.corpus("organism2", limit=1))[0]
    other = batch | {"input_ids": batch["input_ids"].clone()}
    other["input_ids"][0, 3] = IDS["dog"]

    def heard(kind):
        """Which words' states change with the fourth word."""
        with torch.no_grad(), encoder_attention(model, kind):
            one, two = (model.get_encoder()(input_ids=b["input_ids"]).last_hidden_state[0] for b in (batch, other))
        return [i for i, (a, b) in enumerate(zip(one, two, strict=True)) if not torch.equal(a, b)]

    everywhere = list(range(batch["input_ids"].shape[1]))
    assert (heard("none"), heard("uniform"), heard("learned")) == ([3], everywhere, everywhere)
    with pytest.raises(ValueError, match="learned, none, uniform"), encoder_attention(model, "off"):
        pass


def test_word_vectors_and_the_initialisation_can_be_left_plain():
    torch.manual_seed(0)
    models = [TrainingModel(), TrainingModel(composed=False, initialisation=False)]
    composed, plain = (model.table().detach() for model in models)
    ids = [IDS[word] for word in ("dog", "dogs")]
    near = [torch.cosine_similarity(*table[ids], dim=0).item() for table in (composed, plain)]
    assert near[0] > 0.5 > 0.3 > abs(near[1])
    assert 0.5 < plain.norm(dim=1).mean() / composed.norm(dim=1).mean() < 2
    queries = [model.model.model.encoder.layers[0].self_attn.q_proj.weight for model in models]
    assert queries[1].std().item() == pytest.approx(0.02, rel=0.05)
    assert queries[0].std() > 3 * queries[1].std()
