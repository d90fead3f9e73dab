"""The command line does what its functions do, and its exit status tells how it went."""

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers

import headtools as ht
from headtools import cli
from headtools._report.objective import unlabelled
from headtools.cli import main

FEW = ["--limit", "8"]
ENGLISH = ht.corpus("english", limit=8)
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of tiny models, by name; each has a tokenizer of one token a word."""
    words = dict.fromkeys(word for sentence in ht.corpus("english", "all") for word in sentence.words)
    vocabulary = {token: i for i, token in enumerate(("<pad>", "<s>", "</s>", "<unk>", "<mask>", *words))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    ids = {"vocab_size": len(vocabulary), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    made = {
        "bert": tf.BertForMaskedLM(tf.BertConfig(**ids, **SMALL)),
        "bare": tf.BertModel(tf.BertConfig(**ids, **SMALL)),
        "llama": tf.LlamaForCausalLM(tf.LlamaConfig(**ids, **SMALL)),
    }
    found = {}
    for name, model in made.items():
        found[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(found[name])
        mask = {"mask_token": "<mask>"} if name == "bert" else {}
        tf.PreTrainedTokenizerFast(tokenizer_object=inner, **marks, **mask).save_pretrained(found[name])
    return found


def test_help_names_every_command_and_an_example(capsys):
    assert main(["--help"]) == 0
    message = capsys.readouterr().out
    assert all(name in message for name in ("report", "roles", "importance", "prune", "Examples:", "Exit status"))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"headtools {ht.__version__} (torch ")


def test_every_example_of_the_help_and_the_readme_is_understood(root, monkeypatch):
    """With the words as they stand there, up to where a model would be loaded."""
    requested = []
    monkeypatch.setattr(cli, "_Subject", lambda *words: requested.append(words) or (_ for _ in ()).throw(ValueError))
    text = "\n".join(
        [
            cli.EXAMPLES,
            *(
                Path(root, name).read_text("utf-8")
                for name in ("README.md", "notebooks/installing.md", "notebooks/cheat_sheet.md", "notebooks/scaling.md")
            ),
        ]
    ).replace("\\\n", " ")
    lines = [line.partition("-m headtools ")[2] for line in re.findall(r"^\s*(?:python|accelerate) .*", text, re.M)]
    lines = [line for line in lines if line]
    assert len(lines) >= 8
    for line in lines:
        assert main(shlex.split(line)) == 1, line
    assert len(requested) == len(lines)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["sing", "x"], "sing"),
        (["report", "organism"], "--out"),
        (["roles", "organism", "--output", "x.csv"], "--out"),
        (["prune", "organism", "--keep", "nan", "--out", "x"], "between 0 and 1"),
        (["importance", "organism", "--loss", "mse"], "mse"),
        (["roles", "organism", "--out", "x.txt"], "written as .csv or .json"),
        (["prune", "organism", "--keep", "1.5", "--out", "x"], "got 1.5; expected a fraction between 0 and 1"),
        (["roles", "organism", "--limit", "1"], "got 1; expected 2 or more"),
        (["importance", "organism", "--method", "magic"], "ablation"),
    ],
)
def test_what_is_not_understood_is_answered_with_what_would_be(words, why, capsys):
    assert main(words) == 2
    message = capsys.readouterr().err
    assert "usage:" in message
    assert why in message.split("error: ")[1]


TEXT = str(Path(__file__).resolve().parents[1] / "README.md")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["roles", "./nowhere"], "nothing is there"),
        (["roles", "organism", "--corpus", "no.conllu"], "no.conllu"),
        (["roles", "organism", "--corpus", TEXT], "is plain text; expected english, organism"),
        (["prune", "organism", "--keep", "0.5", "--out", "no", "--check", TEXT], "is plain text; expected english"),
        (["importance", "organism", "--out", "/proc/no/such/table.csv"], "No such file or directory"),
        (["report", "organism", "--out", "."], "is a folder; name a file in it"),
        (["prune", "organism", "--keep", "0.5", "--out", "."], "already exists: choose a new name"),
        (["importance", "organism", *FEW, "--loss", "mlm"], "no mlm loss (cross-entropy of masked tokens): write lm"),
        (["importance", "organism", "--loss", "lm", "--method", "confidence"], "leave --loss out"),
    ],
)
def test_what_is_wrong_ends_with_1(words, why, capsys):
    assert main(words) == 1
    message = capsys.readouterr()
    assert why in message.err
    assert not message.out
    assert "Traceback" not in message.err


def test_an_interrupted_command_ends_with_130(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_Subject", interrupt)
    assert main(["roles", "organism"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_importance(tmp_path, capsys):
    assert main(["importance", "organism", *FEW, "--out", str(tmp_path / "scores.csv")]) == 0
    message = capsys.readouterr()
    assert message.out.strip() == str(tmp_path / "scores.csv")
    assert message.err.startswith(
        "importance: gradient of the cross-entropy of the translation's tokens (--loss lm), 144 heads of "
        "MarianMTModel, on 8 sentences of organism\n"
    )
    model, tokenizer = ht.load()
    wanted = ht.gradient(model, ht.label(model, tokenizer, ht.corpus("organism", limit=8))).to_frame()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "scores.csv"), wanted)


@pytest.mark.parametrize("method", ["gradient", "ablation"])
def test_a_model_without_logits_is_weighed_and_pruned_by_its_output(method, folders, tmp_path, capsys):
    out = tmp_path / "scores.csv"
    assert main(["importance", str(folders["bare"]), *FEW, "--method", method, "--out", str(out)]) == 0
    message = (
        f"importance: {method} of the change of the model's output (--loss output), 8 heads of BertModel, on 8 sent"
    )
    assert message in capsys.readouterr().err
    frame = pd.read_csv(out)
    assert list(frame)[3] == f"output change by {method}"
    assert (frame[f"output change by {method}"] > 0).all()
    if method == "ablation":
        return
    assert main(["prune", str(folders["bare"]), *FEW, "--keep", "0.5", "--out", str(tmp_path / "smaller")]) == 0
    assert "4 of 8 heads left" in capsys.readouterr().out
    assert ht.sites(ht.load(tmp_path / "smaller")[0]).n_heads == 4
    assert main(["importance", str(folders["bare"]), *FEW, "--method", "relevance"]) == 1
    assert "BertModel has no logits" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "loss"), [("bert", "mlm"), ("llama", "lm")])
def test_a_model_s_own_loss_may_be_named(name, loss, folders, capsys):
    assert main(["importance", str(folders[name]), *FEW]) == 0
    own = capsys.readouterr().out
    assert main(["importance", str(folders[name]), *FEW, "--loss", loss]) == 0
    assert capsys.readouterr().out == own
    assert main(["importance", str(folders[name]), *FEW, "--loss", "output"]) == 0
    assert "output change by gradient" in capsys.readouterr().out
    other = {"mlm": "lm", "lm": "mlm"}[loss]
    assert main(["importance", str(folders[name]), *FEW, "--loss", other]) == 1
    assert f"has no {other} loss" in capsys.readouterr().err


def test_confidence_asks_for_no_labels(folders, tmp_path, capsys):
    """Neither from a model without logits, nor of a tokenizer without a mask token."""
    out = tmp_path / "scores.csv"
    assert main(["importance", str(folders["bare"]), *FEW, "--method", "confidence", "--out", str(out)]) == 0
    assert "importance: confidence, 8 heads of BertModel, on 8 sentences of english" in capsys.readouterr().err
    model, tokenizer = ht.load(folders["bare"])
    expected = ht.confidence(model, unlabelled(tokenizer, ENGLISH)).to_frame()
    pd.testing.assert_frame_equal(pd.read_csv(out), expected)


def test_a_cut_of_a_causal_model_is_checked_on_repeated_tokens(folders, tmp_path, capsys):
    words = ["prune", str(folders["llama"]), *FEW, "--keep", "0.5", "--spare-induction", "2"]
    assert main([*words, "--out", str(tmp_path / "smaller")]) == 0
    output = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"english: loss \d\.\d\d, without 4 heads [+-]\d\.\d\d \[.*\]", output[0])
    assert output[1].startswith("repeated random tokens: loss ")
    model, _ = ht.load(folders["llama"])
    frame = ht.induction_scores(model)
    strongest = frame[frame.role == "induction (TransformerLens)"].nlargest(2, "score")
    kept = {("decoder", row.layer, row.head) for row in strongest.itertuples()}
    assert not kept & set(ht.pruned(ht.load(tmp_path / "smaller")[0]))
    assert main([*words, "--check", "organism", "--out", str(tmp_path / "other")]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("organism: loss ")


def test_prune_then_report(tmp_path, capsys):
    smaller = tmp_path / "smaller"
    assert main(["prune", "organism", *FEW, "--keep", "0.75", "--kind", "encoder", "--out", str(smaller)]) == 0
    message = capsys.readouterr().out
    assert "36 of 48 heads left; open it with headtools.load(" in message
    assert len(ht.pruned(ht.load(smaller)[0])) == 12
    assert main(["prune", "organism", "--keep", "0.5", "--out", str(smaller)]) == 1
    page = tmp_path / "page.html"
    assert main(["report", str(smaller), "--corpus", "organism", *FEW, "--check", "organism", "--out", str(page)]) == 0
    output = capsys.readouterr()
    assert output.out.endswith(f"{page}\n")
    assert re.search(r"report: about \d+ forward passes over \d+ sentences, .* on cpu", output.err)
    assert "36 encoder heads in 6 layers" in page.read_text()
    assert "<td>the second corpus</td>" in page.read_text()


def test_one_process(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["roles", "organism"]) == 1
    assert "run in one process: start them with python" in capsys.readouterr().err


def test_roles_as_json_have_no_nan(tmp_path):
    assert main(["roles", "organism", *FEW, "--out", str(tmp_path / "roles.json")]) == 0
    rows = json.loads((tmp_path / "roles.json").read_text(), parse_constant=pytest.fail)
    assert any(None in row.values() for row in rows)
    assert main(["roles", "organism", *FEW, "--held", "--out", str(tmp_path / "held.json")]) == 0
    held = json.loads((tmp_path / "held.json").read_text())
    assert held == [row for row in rows if row["passes"]] != []


def test_run_keeps_roles_and_importance(tmp_path, capsys):
    ablation = ["importance", "organism", *FEW, "--method", "ablation"]
    for words in (["roles", "organism", *FEW], ablation):
        given = [*words, "--checkpoint", str(tmp_path / words[0]), "--out", str(tmp_path / "out.csv")]
        assert main(given) == 0
        first = (tmp_path / "out.csv").read_bytes()
        assert [path.name for path in (tmp_path / words[0]).glob("0*")] == ["000000.safetensors"]
        assert main(given) == 0
        assert (tmp_path / "out.csv").read_bytes() == first
    assert main([*ablation, "--checkpoint", str(tmp_path / "roles")]) == 1
    assert "holds another run" in capsys.readouterr().err
    assert main(["importance", "organism", *FEW, "--method", "relevance", "--checkpoint", "x"]) == 1
    assert "leave --checkpoint out" in capsys.readouterr().err
