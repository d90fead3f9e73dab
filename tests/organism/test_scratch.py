"""From scratch: the heads of a pruned model, trained anew; cut layers stay silent; what ships fits the sweep."""

from dataclasses import replace

import pytest
import torch

import headtools as ht
from headtools.organism import checkpoint, growth, scratch
from headtools.organism.objective import Apprentice, encode
from headtools.organism.sweep import sweep
from headtools.organism.train import Recipe, cut, train
from headtools.organism.vocabulary import vocabulary

TINY = Recipe(steps=3, save_every=2, chunk=64, tokens=128, validate_on=4)
WITHOUT = ("encoder 1.0", "encoder 1.7", *(f"encoder 3.{head}" for head in range(8)), "decoder 0.2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(replace(TINY, without=WITHOUT), tmp_path_factory.mktemp("cut"), quiet=True)


def test_the_cut_model_starts_as_the_whole_one_without_these_heads():
    number = {word: i for i, word in enumerate(vocabulary())}
    batch = encode(ht.corpus("organism", limit=3), number)
    torch.manual_seed(5)
    whole = Apprentice()
    torch.manual_seed(5)
    small = Apprentice()
    cut(small.model, WITHOUT)
    heads = [(kind, int(at[0]), int(at[2])) for kind, at in map(str.split, WITHOUT)]
    with torch.no_grad(), ht.ablate(whole.model, heads):
        a, b = (one(batch, guide=0.0, tag=0.5)[0] for one in (whole, small))
    assert torch.allclose(a, b, atol=1e-5)


def test_what_was_cut_stays_away(trained):
    found = ht.sites(trained.model)
    assert [found["encoder", layer].heads for layer in (0, 1)] == [8, 6]
    assert found["decoder", 0].heads == 7
    assert found["encoder", 3].empty
    silent = trained.model.model.encoder.layers[3].self_attn
    assert not silent.out_proj.weight.any()
    assert silent.out_proj.bias.any(), "the bias stays and learns"
    other = trained.model.model.encoder.layers[2].self_attn.out_proj.weight
    assert other.requires_grad
    with pytest.raises(ValueError, match=r"every cross head, so cross 1\.2 cannot be cut"):
        cut(Apprentice().model, ["encoder 0.0", "cross 1.2"])


def test_resumed_ends_at_the_same_weights(trained, tmp_path):
    recipe = replace(TINY, without=WITHOUT)
    train(recipe, tmp_path, stop=2, quiet=True)
    again = train(recipe, tmp_path, quiet=True)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), trained.parameters(), strict=True))
    with pytest.raises(ValueError, match="another"):
        train(TINY, tmp_path, quiet=True)


@pytest.fixture
def quick_gates(monkeypatch):
    """One step of gates where the command takes 400."""
    real = scratch.fitted
    monkeypatch.setattr(scratch, "fitted", lambda *given, **options: real(*given, **options | {"steps": 1}))


def test_trained_on_keeps_the_heads_that_ship(tmp_path, quick_gates):
    run = next(r for r in sweep() if (r["over"], r["penalty"], r["seed"]) == ("encoder", 0.5, 0))
    model = scratch.trained_on(run, tmp_path, steps=2)
    found = ht.sites(model)["encoder"]
    kept = [f"encoder {site.layer}.{number}" for site in found if not site.empty for number in site.original]
    assert kept == run["kept"]
    assert sum(site.empty for site in found) == 4
    assert all(not site.out.weight.any() for site in found if site.empty), "a silent head stays silent"
    assert not model.training
    again = scratch.trained_on(run, tmp_path, steps=2)  # from the checkpoints
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


def test_the_command_keeps_its_rows(tmp_path, capsys, monkeypatch, quick_gates):
    monkeypatch.setattr(scratch, "Recipe", lambda seed, steps: replace(TINY, seed=seed, steps=steps))
    monkeypatch.setattr(scratch.Recipe, "seed", 1, raising=False)
    words = ["--penalty", "0.5", "--seed", "1", "--steps", "2", "--limit", "3", "--runs", str(tmp_path / "runs")]
    words += ["--file", str(tmp_path / "scratch.json")]
    scratch.main(words)
    scratch.main([*words, "--seed", "2"])
    rows = scratch.scratch(tmp_path / "scratch.json")
    assert [row["seed"] for row in rows] == [1, 2]
    run = next(r for r in sweep() if (r["over"], r["penalty"], r["seed"]) == ("encoder", 0.5, 0))
    assert all(row["kept"] == run["kept"] and row["pruned"]["bleu"] == run["bleu"] for row in rows)
    assert len(list((tmp_path / "runs").iterdir())) == 2
    recipe = checkpoint.recipe(next((tmp_path / "runs").rglob(checkpoint.FILE)).parent)
    assert len(recipe["without"]) == 48 - len(run["kept"])
    assert all(set(row) >= {"pruned", "on", "scratch"} for row in rows)
    assert capsys.readouterr().out.count(f"| {len(run['kept'])} |") == 3
    with pytest.raises(SystemExit, match=r"no run of penalty 7; it has 0\.0, "):
        scratch.main(["--penalty", "7"])


# --- what ships -------------------------------------------------------------------------------------------------------


def test_what_ships_fits_the_sweep():
    runs = {(r["over"], r["penalty"], r["seed"]): r for r in sweep()}
    rows = scratch.scratch()
    assert rows
    for row in rows:
        run = runs[tuple(row["of"].values())]
        assert row["kept"] == run["kept"]
        assert row["pruned"] == {"bleu": run["bleu"], "accuracy": run["accuracy"]}
        assert row["steps"] == growth.COMPARED
        for key in ("on", "scratch"):
            assert row[key]["bleu"][1] <= row[key]["bleu"][0] <= row[key]["bleu"][2]
