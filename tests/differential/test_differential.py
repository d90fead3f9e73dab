"""Every public measure against its naive definition, on a few combinations drawn anew in each run.

`HEADTOOLS_DIFFERENTIAL_SEED` repeats a run (pytest prints it at the top); `HEADTOOLS_DIFFERENTIAL_COUNT` says how many
combinations of each measure. `python -m tests.differential` runs more, and is what the weekly workflow does.
"""

import copy
import inspect
import json
import os
import re
from pathlib import Path

import pytest
import torch

import headtools as ht

from ..heads.zoo import ALL, LEGACY, zoo_model
from . import measures, naive
from .combinations import CHOICES, draw
from .measures import MEASURES
from .run import DIFFERS, EQUAL, ERROR, FAILURES, NOT_RUN, REFUSED, refused, run, sample, summary, write

SEED = int(os.environ["HEADTOOLS_DIFFERENTIAL_SEED"])  # tests/conftest.py draws one
_FEW = os.environ.get("HEADTOOLS_LAWS") == "half"  # make test
COUNT = int(os.environ.get("HEADTOOLS_DIFFERENTIAL_COUNT", "1" if _FEW else "3"))


@pytest.mark.parametrize("measure", MEASURES)
def test_equals_its_definition(measure):
    drawn = (draw(measure, SEED + number) for number in range(2 * COUNT))
    quick = [one for one in drawn if one.wrapping != "compiled"][:COUNT]  # compiling takes as long as all others
    outcomes = [run(combination) for combination in quick]
    failures = [str(outcome) for outcome in outcomes if outcome.end in FAILURES]
    assert not failures, "\n".join(failures)


MAY_REFUSE = {  # what needs AttentionInterface, latent keys, and a model that is in eval mode
    **dict.fromkeys(("maps", "values", "confidence", "statistics", "taxonomy", "induction"), LEGACY),
    **dict.fromkeys(("prune", "save_load"), (*LEGACY, "deepseek_v3")),
}
SWEPT = "maps z values contributions gates ablate_zero ablate_mean patch prune save_load gradient_rows gradient_batch"
SWEPT += " ablation_rows interaction curvature confidence statistics relevance_conserved edit taxonomy induction ov qk"
CALM = {"precision": "float32", "wrapping": "plain"}


@pytest.mark.parametrize("architecture", ALL)
@pytest.mark.parametrize("measure", SWEPT.split())
def test_every_architecture(measure, architecture):
    """Whatever the seed of this run: a measure is right on each, and refuses only what is named above."""
    outcome = run(draw(measure, ALL.index(architecture), architecture=architecture, mode="eval", **CALM))
    assert outcome.end in (EQUAL, NOT_RUN) or architecture in MAY_REFUSE.get(measure, ()), outcome


@pytest.mark.parametrize("measure", sorted(MEASURES.keys() - {"taxonomy"}))
def test_every_measure_of_a_model_that_trains(measure):
    """Dropout is off where a measure runs the model, and each module's mode comes back."""
    outcome = run(draw(measure, 1, architecture="bert", mode="train", **CALM))
    assert outcome.end in (EQUAL, NOT_RUN), outcome


# Measures whose slow definition stands in a test of their own, and tables of other things than scores.
ELSEWHERE = {
    "attention_sinks": "roles/test_attention_sinks.py",
    "probe": "roles/test_probe.py",
    "group_scores": "heads/test_groups.py",
    "direct_logit_attribution": "importance/test_logit_attribution.py",
    "curves": "sparse/test_curves.py",  # "curve", of several orders
    "cut_cost": "sparse/test_curves.py",  # times and sizes
    "shipped_real": "recipes/test_real_models.py",  # tables that were measured once
}


def test_every_public_measure_has_a_naive_twin():
    """A public function that returns ``HeadScores`` or a frame is compared in ``MEASURES`` or named above."""
    compared, tests = set(re.findall(r"\bht\.(\w+)\(", inspect.getsource(measures))), Path(__file__).parents[1]
    for name in ht.__all__:
        returned = getattr(getattr(ht, name), "__annotations__", {}).get("return")
        returned = getattr(returned, "__name__", str(returned)).rpartition(".")[2]
        if inspect.isfunction(getattr(ht, name)) and returned in ("HeadScores", "DataFrame", "LogitAttribution"):
            assert (name in compared) != (name in ELSEWHERE), f"{name} needs a naive definition in naive.py"
            assert name in compared or name in (tests / ELSEWHERE[name]).read_text("utf-8")


def test_adapters_are_merged_before_heads_are_cut():
    peft = pytest.importorskip("peft")
    adapter = peft.LoraConfig(r=2, target_modules=["query", "dense"])
    model = peft.get_peft_model(copy.deepcopy(zoo_model("bert")[0]), adapter)
    with pytest.raises(ValueError, match=r"model\.merge_and_unload\(\)"):
        ht.prune(model, [("encoder", 0, 1)])


@pytest.mark.full  # compiles; heads/test_compiled.py does so in make test
def test_a_model_compiled_inside_a_context_has_its_gates():
    chosen = {name: options[0] for name, options in CHOICES.items()}
    chosen |= {"wrapping": "compiled", "padding": "right", "architecture": "bert", "precision": "float32"}
    assert run(draw("gates", SEED, **chosen)).end == EQUAL


@pytest.mark.parametrize("architecture", ALL)
def test_the_table_of_heads_is_that_of_sites(architecture):
    """The naive side has a table of its own; were both wrong about where heads are, they would agree."""
    model, batch = zoo_model(architecture)
    layers = naive.layers(architecture, model)
    sites = ht.sites(model)
    assert {key: (layer.out, layer.heads) for key, layer in layers.items()} == {
        site.key: (site.out, site.heads) for site in sites
    }
    del batch


def test_a_wrong_number_is_seen(monkeypatch):
    wrong = {"architecture": "bert", "precision": "float32", "wrapping": "plain", "mode": "eval"}
    one = draw("gradient", 3, **wrong)
    assert run(one).end == EQUAL
    honest = naive.gradient
    monkeypatch.setattr(naive, "gradient", lambda *a: {k: v * 1.01 for k, v in honest(*a).items()})
    outcome = run(one)
    assert outcome.end == DIFFERS
    assert "--measure gradient --architecture bert" in str(outcome)
    assert "--seed 3 --count 1" in summary([outcome]) + outcome.combination.command


def test_an_error_from_deep_inside_is_no_refusal():
    one = draw("gates", 0)
    with pytest.raises(RuntimeError) as raw:
        torch.ones(2) @ torch.ones(3)
    assert refused(one, raw.value).end == ERROR
    with pytest.raises(KeyError) as words:
        ht.sites(zoo_model("bert")[0])["decoder", 7]
    assert refused(one, words.value).end == REFUSED


def test_a_model_left_changed_is_seen(monkeypatch):
    one = draw("gates", 0, architecture="bert", precision="float32", wrapping="plain", mode="eval")

    def measure(case):
        def ours():
            next(case.model.parameters()).data[0] += 1
            return {"a": torch.zeros(1)}

        return ours, lambda: {"a": torch.zeros(1)}

    monkeypatch.setitem(MEASURES, "gates", measure)
    outcome = run(one)
    assert (outcome.end, "left changed" in outcome.why) == (DIFFERS, True)


def test_a_seed_says_everything(tmp_path):
    assert sample(9, 5) == sample(9, 5)
    assert sample(9, 5) != sample(9, 6)
    given = draw("z", 8)
    again = draw("z", 8, architecture=given.architecture, **{name: getattr(given, name) for name in CHOICES})
    assert given == again
    outcomes = [run(one) for one in sample(1, 2, ["hard_concrete"], wrapping="plain")]
    write(outcomes, tmp_path / "folder" / "outcomes.json")
    stored = json.loads((tmp_path / "folder" / "outcomes.json").read_text("utf-8"))
    assert sum(stored["ends"].values()) == len(stored["combinations"]) == 1
    assert "1 combinations" in summary(outcomes)
