"""A report measures what a model can show, names what it cannot, and its page needs nothing from anywhere."""

import json
import re
from base64 import b64decode
from functools import partial
from hashlib import sha256
from html import escape, unescape
from html.parser import HTMLParser

import pandas as pd
import pytest
import torch
import transformers as tf
from roles.small import whole_words
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import headtools as ht
from headtools._report.page import table
from headtools._report.sections import warning_of
from headtools.roles.head_functions import NONE, head_functions
from headtools.roles.induction import COPYING, INDUCTION
from headtools.sparse.cut_cost import COLUMNS

ENGLISH = ht.corpus("english", "all", limit=24)
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


a_tokenizer = partial(whole_words, [sentence.words for sentence in ENGLISH])
TOKENIZER = a_tokenizer()
IDS = {"vocab_size": len(TOKENIZER), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def built(name):
    torch.manual_seed(0)
    model = {
        "BERT": lambda: tf.BertForMaskedLM(tf.BertConfig(**IDS, **SMALL)),
        "BERT without a head": lambda: tf.BertModel(tf.BertConfig(**IDS, **SMALL)),
        "a classifier": lambda: tf.BertForSequenceClassification(tf.BertConfig(**IDS, **SMALL)),
        "GPT-2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **IDS)),
        "Llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**IDS, **SMALL, num_key_value_heads=2)),
        "T5": lambda: tf.T5ForConditionalGeneration(
            tf.T5Config(d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0, **IDS)
        ),
        "ViT": lambda: tf.ViTForImageClassification(tf.ViTConfig(**SMALL, image_size=16, patch_size=4)),
    }[name]()
    return model.eval()


def about(name, **more):
    model = built(name)
    if name == "ViT":
        draw = torch.Generator().manual_seed(0)
        images = [torch.randn(4, 3, 16, 16, generator=draw) for _ in range(2)]
        given, tokenizer = [{"pixel_values": x, "labels": torch.tensor([0, 1, 0, 1])} for x in images], None
    else:
        given, tokenizer = ENGLISH, TOKENIZER
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = ht.report(model, given, tokenizer, orders=1, progress=False, **more)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    return found


class Page(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.tags, self.ids, self.links, self.remote = [], set(), [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.ids |= {attrs["id"]} if "id" in attrs else set()
        for name in ("src", "href"):
            if name in attrs:
                self.links.append(attrs[name])
                if not attrs[name].startswith(("#", "data:")):
                    self.remote.append(attrs[name])


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("BERT", set()),
        ("BERT without a head", set()),
        ("a classifier", set()),
        ("GPT-2", set()),
        ("Llama", set()),
        ("T5", set()),
        ("ViT", {"roles", "words"}),
    ],
)
def test_every_kind_of_model(name, lacks):
    found = about(name)
    assert set(found.missing) == lacks, found.missing
    causal = {"sinks", "induction", "check", "cache"} if name in ("GPT-2", "Llama") else set()
    assert set(found.tables) == ({"roles", "importance", "cost", "geometry", "pruning"} | causal) - lacks
    assert 3 <= len(findings(found.html)) <= 5
    shown = Page(found.html)
    assert not shown.remote
    assert_runs_one_script(found.html)
    assert all(link[1:] in shown.ids for link in shown.links if link.startswith("#"))
    assert all(escape(reason) in found.html for reason in found.missing.values())
    heads = found.heads["heads"]
    assert len(heads) == ht.sites(built(name)).n_heads
    assert any(head["roles"] for head in heads) == ("roles" not in lacks)
    for head in heads:
        assert {"importance", "cost", "largest weight", "entropy (nats)", "rank of W_OV"} <= set(head["scores"])
        assert len(head["examples"]) == 5 if name != "ViT" else 4
        assert all(example["map"] for example in head["examples"])
        assert len(head["near"]) == 3
        assert (head["words"] is None) == ("words" in lacks)


def assert_runs_one_script(html):
    """A script element holds the data, which is JSON, another the page's own script, which alone the page runs."""
    scripts = re.findall(r"<script(.*?)>(.*?)</script>", html, re.S)
    assert [attributes for attributes, _ in scripts] == [' type="application/json" id="data"', ""]
    assert html.count("<script") == 2
    allowed = re.search(r"script-src 'sha256-([^']+)'\"", html)[1]
    assert b64decode(allowed) == sha256(scripts[1][1].encode()).digest()
    return json.loads(scripts[0][1])


@pytest.fixture(scope="module")
def of_organism(tmp_path_factory):
    """The organism, its tokenizer, and a report of it on 40 sentences, written to a folder."""
    model, tokenizer = ht.load()
    path = tmp_path_factory.mktemp("report") / "page.html"
    return model, tokenizer, ht.report(model, "organism", tokenizer, limit=40, orders=1, path=path, progress=False)


def test_the_organism_s_numbers_are_those_of_the_functions(of_organism):
    model, tokenizer, found = of_organism
    assert found.path.read_text("utf-8") == found.html
    assert [*found.path.parent.iterdir()] == [found.path]
    sentences = ht.corpus("organism", limit=40)
    measured = ht.label(model, tokenizer, sentences[::2])  # as the roles are: one half for every section
    alone = ht.gradient(model, measured)
    # The report's batches are of like length: the same numbers but for rounding.
    assert torch.allclose(torch.tensor(found.tables["importance"].gradient), alone.flat(), rtol=1e-3, atol=1e-7)
    frame = found.tables["pruning"]
    assert set(frame.order) == {"cost", "random 0"}
    assert frame.kept.max() == 144
    assert frame.kept.min() == 0
    whole = frame[(frame.order == "cost") & (frame.kept == 144)].metric.item()
    with torch.no_grad():
        plain = torch.cat([per_sentence(model, batch) for batch in measured]).mean()
    assert whole == pytest.approx(plain.item(), rel=1e-3)
    roles = ht.taxonomy(model, tokenizer, sentences[::2], sentences[1::2], times=300)
    assert found.tables["roles"].equals(roles)


def per_sentence(model, batch):
    logits = model(**batch).logits
    each = torch.nn.functional.cross_entropy(logits.mT, batch["labels"], reduction="none")
    return each.sum(1) / (batch["labels"] != -100).sum(1)


def test_what_cannot_be_a_corpus():
    model = built("BERT")
    with pytest.raises(ValueError, match="corpus is empty"):
        ht.report(model, [])
    with pytest.raises(TypeError, match="got int"):
        ht.report(model, 3)
    with pytest.raises(TypeError, match="this one str"):
        ht.report(model, ["the dog slept"])
    with pytest.raises(FileNotFoundError):
        ht.report(model, "nowhere.conllu")
    found = ht.report(model, ENGLISH, orders=1, progress=False)  # sentences without a tokenizer
    assert set(found.missing) == {"roles", "importance", "cost", "attention", "words", "pruning", "examples"}
    assert "pass tokenizer=" in found.missing["importance"]


def test_a_single_batch_is_halved():
    batch = {"input_ids": torch.randint(5, 30, (5, 6), generator=torch.Generator().manual_seed(0))}
    batch["labels"] = batch["input_ids"]
    model = built("GPT-2")
    found = ht.report(model, batch, orders=1, progress=False, verify=False)
    assert ht.sites(model).verified is None, "what was not tried is no longer skipped after the report"
    assert set(found.missing) == {"roles", "words"}
    assert "Measured on 1 batch of 5 examples: heads are chosen on 3 and measured on the other 2." in found.html


@pytest.mark.parametrize("n", [7, 40])
def test_every_section_says_what_it_measured_on_how_many_sentences(n):
    """Batches hold 32, and halves are of sentences all the same."""
    found = ht.report(built("BERT"), ht.corpus("english", "all", limit=n), TOKENIZER, orders=1, progress=False)
    sections = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', found.html, re.S))
    half = n - n // 2
    assert f"Measured on {n} sentences: heads are chosen on {n // 2} and measured on the other {half}." in found.html
    for part in ("roles", "importance", "pruning"):
        assert f"easured on {half} sentences" in sections[part], part
    for part in ("importance", "pruning", "conventions"):
        assert "cross-entropy of masked tokens" in sections[part], part
    assert found.tables["roles"].n.max() > 0


def test_a_model_without_logits_is_weighed_by_its_output():
    found = about("BERT without a head")
    assert list(found.tables["importance"])[3] == "output change by gradient"
    assert "no logits and so no loss" in found.html
    frame = found.tables["pruning"]
    assert frame[frame.kept == 8].metric.max() == pytest.approx(0, abs=1e-5)
    assert frame[frame.kept < 8].metric.min() > 1e-3
    assert found.heads["loss"] == "relative change of the output"
    assert "nats" not in re.sub(r"<script.*?</script>", "", found.html, flags=re.S)


# --- findings ---------------------------------------------------------------------------------------------------------


def findings(html):
    return [tuple(map(unescape, pair)) for pair in re.findall(r"<li><b>(.*?)</b><span>(.*?)</span>", html)]


def test_the_findings_are_the_numbers_of_the_tables(of_organism):
    model, tokenizer, found = of_organism
    sentences = findings(found.html)
    heads = head_functions(found.tables["roles"])
    assert sentences[0][0] == f"{(heads.function != NONE).sum()} of 144 heads have a function."
    measured = ht.ablation(model, ht.label(model, tokenizer, ht.corpus("organism", limit=40)[::2]), progress=False)
    first, table = ("encoder", 5, 1), found.tables["cost"]
    assert torch.tensor(table.cost).tolist() == pytest.approx(measured.flat().tolist(), rel=1e-3, abs=1e-5)
    curve = found.tables["pruning"].set_index(["order", "kept"]).metric
    whole = curve["cost", 144]
    headline = f"Encoder {first[1]}.{first[2]} costs most: without it the loss rises from {whole:.3g} to "
    assert sentences[2][0] == f"{headline}{whole + measured[first]:.3g}."
    row = table[(table["kind"] == first[0]) & (table.layer == first[1]) & (table["head"] == first[2])].iloc[0]
    assert sentences[2][1].startswith(f"Rise {row.cost:.3g} (95 % interval {row.low:.3g} to {row.high:.3g})")
    said = r"(\d+) of (\d+) heads can go, least important first: the loss rises from (\S+) to ([\d.]+)"
    gone, total, before, after = re.match(rf"{said}(?:, [\d.]+ times as high)?\.$", sentences[3][0]).groups()
    assert (total, before, after) == ("144", f"{whole:.3g}", f"{curve['cost', 144 - int(gone)]:.3g}")
    assert curve["cost", 144 - int(gone)] - whole <= 0.05 * (curve["cost", 0] - whole)
    assert f"with none {curve['cost', 0]:.3g}" in sentences[3][1]
    assert f"random order, {curve['random 0', 72]:.3g} with 72" in sentences[3][1]
    assert sentences[4][0].startswith("By the gradient ")


def test_a_head_s_page_holds_what_was_measured(of_organism):
    """Maps, their examples, its nearest heads and words are what naive code finds."""
    model, tokenizer, found = of_organism
    head = next(head for head in found.heads["heads"] if head["name"] == "encoder 4.2")
    assert head["function"] == "positional"
    assert head["roles"][0]["role"] == "offset -1"
    assert head["roles"][0]["passes"]
    alone = sorted(ht.corpus("organism", limit=40)[::2], key=lambda sentence: len(sentence.words))
    batches = [ht.label(model, tokenizer, [sentence])[0] for sentence in alone]
    worth = torch.cat([ht.gradient(model, batch, per="example").rows["encoder", 4] for batch in batches])[:, 2].abs()
    order = worth.sort(descending=True).indices.tolist()
    assert [example["example"] for example in head["examples"]] == [order[i] for i in (0, 5, 10, 14, 19)]
    example = head["examples"][0]
    batch = batches[example["example"]]
    with torch.no_grad(), ht.record(model) as seen:
        model(**batch)
    weights = seen["encoder", 4].maps[0, 2]
    stored = torch.frombuffer(bytearray(b64decode(example["map"])), dtype=torch.uint8).view(weights.shape)
    assert torch.allclose(stored / 255 * example["top"], weights, atol=0.003)
    assert (
        found.heads["texts"][example["example"]]["input_ids"]
        == tokenizer(" ".join(alone[example["example"]].words)).tokens()
    )
    overlap = torch.zeros(8)
    for one in batches:
        with torch.no_grad(), ht.record(model, only=("encoder", 3)) as third, ht.record(model) as every:
            model(**one)
        root = every["encoder", 4].maps[0, 2].sqrt()
        overlap += (third["encoder", 3].maps[0].sqrt() * root).sum(-1).sum(-1)
    mean = overlap / sum(one["input_ids"].shape[1] for one in batches)
    near = dict(head["near"])
    for i, value in enumerate(mean.tolist()):
        if f"encoder 3.{i}" in near:
            assert near[f"encoder 3.{i}"] == pytest.approx(value, abs=2e-3)
    assert "encoder 3.6" in near
    embedding = model.get_input_embeddings().weight.detach()
    v = ht.geometry.ov(model)["encoder", 4, 2].svd()[2][:, 0]
    centred = torch.nn.functional.normalize(embedding - embedding.mean(0), dim=1)
    best = (centred @ v).argmax().item()
    assert tokenizer.convert_ids_to_tokens(best) == head["words"]["writes +"][0][0]


def test_of_a_model_with_many_heads_some_are_switched_off(monkeypatch):
    monkeypatch.setattr("headtools._report.measures.ALL_OFF", 7)
    monkeypatch.setattr("headtools._report.measures.N_OFF", 3)
    model = built("Llama")
    found = ht.report(model, ENGLISH, TOKENIZER, orders=1, progress=False)
    selection, test = (ht.label(model, TOKENIZER, ENGLISH[start::2]) for start in (1, 0))
    top, costs = ht.gradient(model, selection).top(3), ht.ablation(model, test, progress=False)
    table = found.tables["cost"]
    assert [*table[["kind", "layer", "head"]].itertuples(index=False, name=None)] == top
    assert table.cost.tolist() == pytest.approx([costs[head] for head in top], abs=1e-5)
    with_cost = [head["name"] for head in found.heads["heads"] if "cost" in head["scores"]]
    assert sorted(with_cost) == sorted(f"{kind} {layer}.{head}" for kind, layer, head in top)
    assert set(found.tables["pruning"].order) == {"gradient", "random 0"}
    assert "the 3 heads of highest gradient, chosen on one half" in found.html


def test_maps_and_words_under_padding_on_the_left():
    model, tokenizer = built("Llama"), a_tokenizer()
    tokenizer.padding_side = "left"
    found = ht.report(model, ENGLISH, tokenizer, orders=1, progress=False)
    alone = sorted(ENGLISH[::2], key=lambda sentence: len(sentence.words))
    for head in found.heads["heads"]:
        for example in head["examples"]:
            batch = ht.label(model, tokenizer, [alone[example["example"]]])[0]
            with torch.no_grad(), ht.record(model) as seen:
                model(**batch)
            weights = seen["decoder", head["layer"]].maps[0, head["head"]]
            stored = torch.frombuffer(bytearray(b64decode(example["map"])), dtype=torch.uint8).view(weights.shape)
            assert torch.allclose(stored / 255 * example["top"], weights, atol=0.003)
            tokens = found.heads["texts"][example["example"]]["input_ids"]
            assert tokens == tokenizer.convert_ids_to_tokens(batch["input_ids"][0])


def test_a_classifier_is_held_against_guessing_its_classes():
    """Not against guessing one of a vocabulary: two classes in equal numbers are guessed at log 2."""
    ids = torch.randint(5, 60, (40, 8), generator=torch.Generator().manual_seed(0))
    model = built("a classifier")
    found = ht.report(model, {"input_ids": ids, "labels": torch.arange(40) // 2 % 2}, orders=1, progress=False)
    said = next(detail for headline, detail in findings(found.html) if headline.startswith("This model does no better"))
    assert "the other half gives 0.693" in said


def test_a_model_that_only_guesses_gets_no_finding_about_importance():
    found = about("GPT-2")
    sentences = findings(found.html)
    assert sentences[0][0] == "This model does no better than guessing, so no head of it can matter."
    assert not re.search(
        "costs most|stands out|can go|of all importance", " ".join(headline for headline, _ in sentences)
    )


def test_a_pruned_model_s_heads_keep_their_names_for_another_report():
    model = built("BERT")
    ht.prune(model, {("encoder", 1): [0, 2]})
    found = ht.report(model, ENGLISH[:8], TOKENIZER, orders=1, progress=False)
    names = {head["name"]: head["was"] for head in found.heads["heads"]}
    assert names["encoder 1.0"] == "encoder 1.1"
    assert names["encoder 1.1"] == "encoder 1.3"
    assert names["encoder 0.3"] == "encoder 0.3"


def test_what_was_not_found_is_said():
    guesses, *sentences = findings(about("Llama").html)
    assert guesses[0].startswith("This model does no better than guessing")
    assert sentences[0][0] == "No more heads have a function than by chance: 0 of 8."
    assert sentences[2][0].startswith("No sink on the whole")
    assert sentences[3][0] == "No induction head: none of 8 has a score of 0.3 or more."
    assert "No head has a role." in sentences[1][0]
    for _, detail in sentences:
        assert re.search(r"interval|spread evenly|median|shuffled|random", detail), detail


def test_an_induction_head_and_a_sink_are_named(monkeypatch):
    """The scores of a head are replaced by those of an induction head that rests on the first token."""

    def planted(measure, role, numbers):
        def found(*given, **options):
            frame = measure(*given, **options)
            rows = (frame.layer == 1) & (frame["head"] == 2) & (frame.role == role)
            assert rows.sum() == 1
            frame.loc[rows, ["score", "low", "high"]] = numbers
            return frame

        return found

    looks = planted(planted(ht.induction_scores, INDUCTION, (0.9, 0.85, 0.95)), COPYING, (0.5, 0.4, 0.6))
    monkeypatch.setattr("headtools._report.measures.induction_scores", looks)
    rests = planted(ht.attention_sinks, "attention sink", (0.8, 0.7, 0.9))
    monkeypatch.setattr("headtools._report.measures.attention_sinks", rests)
    found = about("Llama")
    (_, sink), (headline, detail) = findings(found.html)[3:5]
    assert headline == "Induction: 1 of 8 heads look for what followed an earlier copy."
    assert "decoder 1.2: 0.9 (95 % interval 0.85 to 0.95)" in detail
    assert "Also copying: 1 of 1." in detail
    assert "1 of 8 heads give it more than half; most, decoder 1.2: 0.8 (95 % interval 0.7 to 0.9)." in sink
    # the head shares its keys and values with one that does not rest, so that nothing of the cache can go
    assert "more than half of their weight: 1. If they kept" in found.html
    assert "would need 0 % less" in found.html


# --- the order of the page --------------------------------------------------------------------------------------------


def test_attention_comes_first_and_what_is_missing_last_with_its_remedy():
    found = about("ViT")
    names = re.findall(r'<section id="(\w+)">', found.html)
    assert names == ["heads", "importance", "cost", "pruning", "geometry", "conventions", "roles", "words"]
    folded = found.html[found.html.index("<details>") :]
    assert '<section id="roles">' in folded
    assert escape('report(model, corpus("english"), tokenizer)') in folded
    assert "open" not in re.search(r"<details[^>]*>", folded)[0]
    assert findings(found.html)[0][0].startswith("Not measured: what the heads attend to")
    assert "Not measured" not in about("BERT").html


def test_tables_are_sorted_and_small_numbers_keep_their_digits():
    found = about("Llama")
    sinks = re.search(r'<section id="sinks">.*?<tbody>(.*?)</tbody>', found.html, re.S)[1]
    column = [float(row.split("</td><td>")[1]) for row in sinks.split("</tr>") if "<td>" in row]
    assert column == sorted(column, reverse=True)
    assert "-0.000<" not in found.html
    frame = pd.DataFrame({"head": ["a", "b"], "score": [0.0012, -0.00001], "n": [3, 4], "low": [float("nan"), 0.5]})
    cells = re.findall(r"<td>(.*?)</td>", table(frame, "c"))
    assert cells == ["a", "0.00120", "3", "–", "b", "-0.00001", "4", "0.500"]


# --- causal language models -------------------------------------------------------------------------------------------


def test_the_numbers_of_a_causal_model_are_those_of_the_functions():
    model = built("Llama")
    found = ht.report(model, ENGLISH, TOKENIZER, orders=1, progress=False)
    test = ht.label(model, TOKENIZER, ENGLISH[::2])
    alike(found.tables["sinks"], ht.attention_sinks(model, test), "score", "chance", "n")
    assert found.tables["induction"].equals(ht.induction_scores(model, n=12, length=25, repeats=4, batch_size=6))
    signed = ht.gradient(model, test, signed=True)
    rises = torch.tensor(found.tables["importance"]["rise without"]).float()
    assert torch.allclose(rises, -signed.flat().float(), rtol=1e-3, atol=1e-7)
    order = ht.ablation(model, ht.label(model, TOKENIZER, ENGLISH[1::2]), progress=False).order()
    cost = ht.cut_cost(model, order[:2], {"a": test, "b": ht.repeated_tokens(model, length=25)})
    alike(found.tables["check"], cost, "loss", "without", "rise", "n")
    assert found.tables["cache"]["bytes a token"].sum() == ht.cache_size(model, 1)
    assert (found.tables["cache"]["bytes a token and query head"] == 2 * 8 * 4 / 2).all()


def alike(found, expected, *columns):
    """The same but for rounding: the report's batches are of like length, and so in another order."""
    for column in columns:
        assert found[column].tolist() == pytest.approx(expected[column].tolist(), rel=1e-4, abs=1e-6), column


def test_the_first_token_is_weighed_with_a_start_token_and_without():
    model, tokenizer = built("Llama"), a_tokenizer(bos_token="<s>")
    found = ht.report(model, ENGLISH, tokenizer, orders=1, progress=False)
    test = ht.label(model, tokenizer, ENGLISH[::2])
    bare = [{name: batch[name] for name in ("input_ids", "attention_mask")} for batch in test]
    expected = ht.attention_sinks(model, bare, start=1)
    assert found.tables["sinks"]["with start token"].tolist() == pytest.approx(expected.score.tolist(), rel=1e-4)
    assert "with a start token" in found.html.lower()


def test_a_second_corpus_is_measured_where_one_is_given():
    model, others = built("BERT"), ht.corpus("english", "all", limit=40)[30:]
    found = ht.report(model, ENGLISH, TOKENIZER, orders=1, check=others, progress=False)
    assert found.tables["check"].corpus.tolist() == ["the corpus of the ranking", "the second corpus"]
    assert found.tables["check"].n.tolist() == [12, 10]
    assert '<section id="check">' in found.html
    images = [{"pixel_values": torch.zeros(5, 3, 16, 16), "labels": torch.zeros(5, dtype=torch.long)}]
    seen = ht.report(built("ViT"), images, orders=1, check=images, progress=False)
    assert seen.tables["check"].n.tolist() == [2, 5]


def test_tokens_are_shown_as_people_read_them():
    words = " ".join(word for sentence in ENGLISH for word in sentence.words)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [words], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<pad>", "<s>", "</s>"])
    )
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>")
    torch.manual_seed(0)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**(IDS | {"vocab_size": 300}), **SMALL)).eval()
    found = ht.report(model, ENGLISH, tokenizer, orders=1, progress=False)
    assert "Ġ" in "".join(tokenizer.tokenize(words))
    assert "Ġ" not in found.html


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_it_says_what_it_will_cost_and_is_silent_when_asked(capsys):
    model, examples = built("Llama"), []
    hooks = [  # of a run that begins at a later layer, the work alone: earlier layers return what was kept
        layer.mlp.register_forward_hook(lambda _module, args, _output: examples.append(len(args[0])))
        for layer in model.model.layers
    ]
    ht.report(model, ENGLISH, TOKENIZER, orders=1)
    for hook in hooks:
        hook.remove()
    output = capsys.readouterr()
    said = re.match(r"report: about (\d+) forward passes over 12 sentences, a few seconds on cpu\n", output.err)
    assert abs(int(said[1]) - sum(examples) / len(hooks) / 12) < 8
    assert not output.out
    ht.report(model, ENGLISH, TOKENIZER, orders=1, progress=False)
    assert not any(capsys.readouterr())


@pytest.mark.parametrize(("low", "warned"), [(8.0, True), (0.05, False), (-1.0, False)])
def test_the_warning_is_for_a_clear_difference(low, warned):
    rows = [("a", 5, 5, 0.0, -0.1, 0.1, 9), ("b", 1, 9, 8.4, low, 8.8, 9)]
    assert (warning_of(pd.DataFrame(rows, columns=list(COLUMNS))) is not None) == warned
