"""Training the second organism: resumable to the bit, and each aid and control does what it says."""

from dataclasses import replace

import pytest
import torch

import headtools as ht
from headtools.organism.second.language import corpus
from recipes._training_model import training_batch
from recipes.second_organism._training_model import TrainingModel, encoder_attention, first_positions
from recipes.second_organism.batches import batches, word_ids
from recipes.second_organism.train import Recipe, main, train

TINY = Recipe(steps=2, save_every=1, chunk=64, tokens=128, validate_on=8)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return train(TINY, tmp_path_factory.mktemp("straight"), progress=False)


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.full  # trains twice; test_train.py stops and resumes the first organism
def test_stopped_and_resumed_ends_at_the_same_weights(straight, tmp_path):
    train(TINY, tmp_path, stop=1, progress=False)
    assert equal(train(TINY, tmp_path, progress=False), straight)
    with pytest.raises(ValueError, match="another recipe"):
        train(replace(TINY, shift=0), tmp_path, progress=False)


def test_the_command_leaves_out_what_it_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(
        "recipes.second_organism.train.train", lambda recipe, run, keep: seen.append((recipe, run)) or (TrainingModel())
    )
    main(
        steps=1,
        tagging=False,
        curriculum=False,
        initialisation=False,
        composed=False,
        shift=False,
        attention="none",
        assets=tmp_path / "half",
    )
    recipe, run = seen[0]
    assert (recipe.tag, recipe.short, recipe.initialisation, recipe.composed, recipe.shift) == (0, 0, False, False, 0)
    assert (
        run.name == "organism-run2-seed1-steps1-no-tagging-no-curriculum-no-initialisation-no-composed-no-shift"
        "-attention-none"
    )
    model, tokenizer = ht.load(run / "model")
    sentence = corpus("test", 1)[0]
    assert tokenizer(str(sentence)).input_ids == [word_ids()[word] for word in (*sentence.words, "</s>")]
    assert model.config.vocab_size == len(word_ids())
    assert "trained 1 steps" in capsys.readouterr().out
    half, _ = ht.load(tmp_path / "half")
    assert half.dtype == torch.float32
    assert (tmp_path / "half" / "model.safetensors").stat().st_size < 6e6
    batch = batches([sentence])[0]
    with torch.no_grad():
        assert abs(half(**batch).loss - model(**batch).loss) < 0.01


def test_the_exported_model_computes_what_the_training_model_computed(straight):
    sentences = corpus("test", 3)
    with torch.no_grad():
        loss, _ = straight(training_batch(sentences, word_ids()), guide=0.0, tag=0.0)
        exported = straight.export()(**batches(sentences)[0]).loss
    assert abs(loss.item() - exported.item()) < 1e-5


def test_positions_from_a_number_on_are_those_of_words_with_padding_in_front():
    """Of an encoder that has nothing but positions to tell words apart by."""
    training_model = TrainingModel()
    batch = training_batch(corpus("test", 2), word_ids())
    with torch.no_grad():
        plain = training_model(batch, 0.0, 0.0)[0]
        with training_model.positions_from(torch.tensor([0, 0])):
            assert torch.equal(training_model(batch, 0.0, 0.0)[0], plain)
        with training_model.positions_from(torch.tensor([0, 5])):
            assert not torch.equal(training_model(batch, 0.0, 0.0)[0], plain)
        assert torch.equal(training_model(batch, 0.0, 0.0)[0], plain)
    embed = training_model.model.model.encoder.embed_positions
    with training_model.positions_from(torch.tensor([0, 5])):
        found = embed(torch.Size([2, 4]))
    assert torch.equal(found, torch.stack([embed.weight[:4], embed.weight[5:9]]))


def test_half_of_the_sentences_begin_at_0():
    first = torch.cat([first_positions(1, step, 50, 20) for step in range(20)])
    assert 0.4 < (first == 0).float().mean() < 0.6
    assert (first.min(), first.max()) == (0, 20)
    assert first_positions(1, 0, 50, 0) is None


def test_without_encoder_attention_words_do_not_know_of_each_other():
    torch.manual_seed(0)
    model = TrainingModel().export().eval()
    batch = batches(corpus("test", 1))[0]
    other = batch | {"input_ids": batch["input_ids"].clone()}
    other["input_ids"][0, 3] = word_ids()["dog"]

    def heard(kind):
        """Which words' states change with the fourth word."""
        with torch.no_grad(), encoder_attention(model, kind):
            one, two = (model.get_encoder()(input_ids=b["input_ids"]).last_hidden_state[0] for b in (batch, other))
        return [i for i, (a, b) in enumerate(zip(one, two, strict=True)) if not torch.equal(a, b)]

    everywhere = list(range(batch["input_ids"].shape[1]))
    assert (heard("none"), heard("uniform"), heard("learned")) == ([3], everywhere, everywhere)
    with pytest.raises(ValueError, match="learned, none, uniform"), encoder_attention(model, "off"):
        pass


def test_uncomposed_vectors_share_nothing_and_are_as_long():
    torch.manual_seed(0)
    composed, plain = TrainingModel().table().detach(), TrainingModel(composed=False).table().detach()
    ids = [word_ids()[word] for word in ("dog", "dogs")]
    near = [torch.cosine_similarity(*table[ids], dim=0).item() for table in (composed, plain)]
    assert near[0] > 0.5 > 0.3 > abs(near[1])
    assert 0.5 < plain.norm(dim=1).mean() / composed.norm(dim=1).mean() < 2


def test_the_initialisation_can_be_left_to_transformers():
    weights = [
        TrainingModel(initialisation=wanted).model.model.encoder.layers[0].self_attn.q_proj.weight
        for wanted in (True, False)
    ]
    assert weights[1].std().item() == pytest.approx(0.02, rel=0.05)
    assert weights[0].std() > 3 * weights[1].std()
