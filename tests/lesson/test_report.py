"""A report measures what a model can show, names what it cannot, and its page needs nothing from anywhere."""

import re
from html import escape
from html.parser import HTMLParser

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import headtools as ht
from headtools._report.page import Section, page, write
from headtools.roles.sentence import Sentence

ENGLISH = ht.corpus("english", "all", limit=24)
MARKS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


def a_tokenizer(sentences=ENGLISH, **marks):
    """One token a word, with an end mark."""
    words = dict.fromkeys(word for sentence in sentences for word in sentence.words)
    vocabulary = {token: i for i, token in enumerate((*MARKS, *words))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    marks = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"} | marks
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, **marks)


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
        self.tags, self.ids, self.links, self.images, self.remote = [], set(), [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.ids |= {attrs["id"]} if "id" in attrs else set()
        self.images += [attrs] if tag == "img" else []
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
        ("ViT", {"roles"}),
    ],
)
def test_every_kind_of_model(name, lacks):
    found = about(name)
    assert set(found.missing) == lacks, found.missing
    assert set(found.tables) == {"roles", "importance", "geometry", "pruning"} - lacks
    shown = Page(found.html)
    assert not shown.remote
    assert "script" not in shown.tags
    assert all(link[1:] in shown.ids for link in shown.links if link.startswith("#"))
    assert len(shown.images) >= 3
    assert all(len(image["alt"].split()) > 5 for image in shown.images)
    assert all(escape(reason) in found.html for reason in found.missing.values())



def test_the_organism_s_numbers_are_those_of_the_functions(tmp_path):
    model, tokenizer = ht.load()
    found = ht.report(model, "organism", tokenizer, limit=40, orders=1, path=tmp_path / "page.html", progress=False)
    assert (tmp_path / "page.html").read_text("utf-8") == found.html
    assert [*tmp_path.iterdir()] == [found.path]
    sentences = ht.corpus("organism", limit=40)
    measured = ht.label(model, tokenizer, sentences[::2])  # as the roles are: one half for every section
    alone = ht.gradient(model, measured)
    assert torch.equal(torch.tensor(found.tables["importance"].gradient), alone.flat())
    frame = found.tables["pruning"]
    assert set(frame.order) == {"gradient", "random 0"}
    assert frame.kept.max() == 144
    assert frame.kept.min() == 0
    whole = frame[(frame.order == "gradient") & (frame.kept == 144)].metric.item()
    with torch.no_grad():
        plain = torch.cat([per_sentence(model, batch) for batch in measured]).mean()
    assert whole == pytest.approx(plain.item(), rel=1e-3)
    roles = ht.taxonomy(model, tokenizer, sentences[::2], sentences[1::2], times=300)
    assert found.tables["roles"].equals(roles)


def per_sentence(model, batch):
    logits = model(**batch).logits
    each = torch.nn.functional.cross_entropy(logits.mT, batch["labels"], reduction="none")
    return each.sum(1) / (batch["labels"] != -100).sum(1)


def test_hostile_words_stay_words():
    bad = '"><script>alert(1)</script><img src=x onerror=alert(1)>&amp;$x_1$\u202e'
    sentences = [Sentence((bad, "dog", "saw", "it", str(i)), (2, 3, 0, 3, 3), ("det", "nsubj", "root", "obj", "dep"),
                          ("X",) * 5, (0,) * 5) for i in range(8)]  # fmt: skip
    tokenizer = a_tokenizer(sentences)
    torch.manual_seed(0)
    model = tf.BertForMaskedLM(tf.BertConfig(**(IDS | {"vocab_size": len(tokenizer)}), **SMALL)).eval()
    found = ht.report(model, sentences, tokenizer, orders=1, progress=False, title=bad)
    shown = Page(found.html)
    assert not {"script"} & set(shown.tags)
    assert not shown.remote
    assert all("onerror" not in image for image in shown.images)
    assert "maps" not in found.missing


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


def test_without_a_tokenizer_it_says_so():
    found = ht.report(built("BERT"), ENGLISH, orders=1, progress=False)
    assert set(found.missing) == {"roles", "importance", "pruning", "maps"}
    assert "pass tokenizer=" in found.missing["importance"]


def test_a_single_batch_is_halved():
    batch = {"input_ids": torch.randint(5, 30, (5, 6), generator=torch.Generator().manual_seed(0))}
    batch["labels"] = batch["input_ids"]
    found = ht.report(built("GPT-2"), batch, orders=1, progress=False)
    assert set(found.missing) == {"roles"}
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
    assert "nats" not in found.html


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    (tmp_path / "page.html").write_text("old")
    with pytest.raises(FileNotFoundError, match="mkdir -p"):
        write("new", tmp_path / "no" / "page.html")
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write("new", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "old"
    assert len([*tmp_path.iterdir()]) == 1


def test_a_missing_section_says_why():
    html = page("t", "", [Section("a", "A", missing="no <maps>")])
    assert "no &lt;maps&gt;" in html
    assert "<maps>" not in html
