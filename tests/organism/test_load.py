"""load(): the organism, folders of every kind, names on the Hub; nothing half-loaded ever comes back."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from headtools.organism._checksums import ASSETS, CHECKSUMS, checksum
from headtools.organism.load import load, translate
from headtools.roles.corpus import corpus
from recipes._publish import FILES

TINY = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}


@pytest.fixture(scope="module")
def organism():
    return load()


@pytest.fixture
def copy(tmp_path):
    folder = tmp_path / "organism"
    folder.mkdir()
    for name in (*FILES, CHECKSUMS):
        shutil.copy(ASSETS / name, folder / name)
    return folder


def test_the_organism(organism):
    from transformers import MarianMTModel, PreTrainedTokenizerFast

    model, tokenizer = organism
    assert isinstance(model, MarianMTModel)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    config = model.config
    assert (config.encoder_layers, config.decoder_layers, config.encoder_attention_heads) == (6, 6, 8)
    assert (ASSETS / "model.safetensors").stat().st_size <= 15_000_000


def test_checksums_cover_every_file_that_is_read():
    listed = json.loads((ASSETS / CHECKSUMS).read_text())
    assert set(listed) == set(FILES)
    assert all(checksum(ASSETS / name) == value for name, value in listed.items())


def test_tokenizer_round_trip_without_unknown_words(organism):
    _, tokenizer = organism
    for sentence in corpus("organism", limit=100):
        for words in (sentence.words, sentence.target):
            ids = tokenizer(" ".join(words)).input_ids
            assert len(ids) == len(words) + 1, "one token for each word, and the EOS token"
            assert ids[-1] == tokenizer.eos_token_id
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids, skip_special_tokens=True) == " ".join(words)


def test_tokenizer_reads_what_people_type(organism):
    _, tokenizer = organism
    assert tokenizer("do\u0301g").tokens() == ["dóg", "</s>"], "a separate accent mark is the same letter"
    assert tokenizer("the dog, the cat.").tokens() == ["the", "dog", ",", "the", "cat", ".", "</s>"]
    batch = tokenizer(["the dog slept .", "it slept ."], return_tensors="pt", padding=True)
    assert batch.attention_mask.tolist() == [[1] * 5, [1] * 4 + [0]]


def test_translate_keeps_order_and_does_not_depend_on_the_batch(organism):
    model, tokenizer = organism
    sentences = [s.words for s in corpus("organism", limit=12)]
    together = translate(model, tokenizer, sentences, batch_size=12)
    assert together == [translate(model, tokenizer, [s])[0] for s in sentences]
    assert together == translate(model, tokenizer, [" ".join(s) for s in sentences], batch_size=5)


@pytest.mark.parametrize(
    ("sentences", "message"),
    [("the dog", "a list of"), ([], "a list of"), ([" "], "no words"), (["the tiger slept ."], "unknown words: tiger")],
)
def test_translate_refuses(organism, sentences, message):
    with pytest.raises(ValueError, match=message):
        translate(*organism, sentences)


def test_a_copy_loads_like_the_original(organism, copy):
    model, tokenizer = load(str(copy))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), organism[0].parameters(), strict=True))
    assert tokenizer("the dog .").input_ids == organism[1]("the dog .").input_ids


def test_altered_file(copy):
    weights = load_file(copy / "model.safetensors")
    weights["model.shared.weight"][5, 5] += 1e-3
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model\.safetensors is not the file"):
        load(copy)


@pytest.mark.parametrize("listed", [True, False], ids=["with checksums", "without checksums"])
def test_truncated_file(copy, listed):
    data = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(data[: len(data) // 2])
    if not listed:
        (copy / CHECKSUMS).unlink()
    with pytest.raises(ValueError, match="SHA-256 differs" if listed else "damaged or cut short"):
        load(copy)


@pytest.mark.parametrize("name", FILES)
def test_missing_file(copy, name):
    (copy / name).unlink()
    with pytest.raises(FileNotFoundError, match=name.replace(".", r"\.")):
        load(copy)


def test_missing_weights_say_so_also_without_checksums(copy):
    (copy / CHECKSUMS).unlink()
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(FileNotFoundError, match="pickled weights"):
        load(copy)


def test_missing_keys(copy):
    (copy / CHECKSUMS).unlink()
    weights = load_file(copy / "model.safetensors")
    del weights["model.encoder.layers.2.self_attn.q_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 weights of MarianMTModel .*encoder\.layers\.2\.self_attn\.q_proj"):
        load(copy)


def test_not_a_model_that_transformers_knows(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "sorcery"}')
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="sorcery"):
        load(tmp_path)


SIZES = {key: value for key, value in TINY.items() if key != "vocab_size"}
ARCHITECTURES = {
    "BertForMaskedLM": TINY,
    "BertForSequenceClassification": TINY,
    "BertModel": TINY,
    "GPT2LMHeadModel": {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 4},
    "T5ForConditionalGeneration": {"vocab_size": 60, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2},
    "ViTForImageClassification": {**SIZES, "image_size": 8, "patch_size": 4},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_folder_gives_the_class_its_config_names(tmp_path, name):
    import transformers

    kind = getattr(transformers, name)
    saved = kind(kind.config_class(**ARCHITECTURES[name])).eval()
    saved.save_pretrained(tmp_path)
    model, tokenizer = load(tmp_path)
    assert type(model) is kind
    assert tokenizer is None
    assert not model.training
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), saved.parameters(), strict=True))


def test_a_folder_that_names_no_class_gives_the_plain_model(tmp_path):
    from transformers import BertConfig, BertModel

    BertModel(BertConfig(**TINY)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert type(load(tmp_path)[0]) is BertModel


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder", "a/b/c", "~/no-such-folder"])
def test_a_path_that_is_not_there(name):
    with pytest.raises(FileNotFoundError, match="save_pretrained"):
        load(name)


def test_an_empty_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load(tmp_path)


def test_a_hub_name_without_a_connection(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # what HF_HUB_OFFLINE=1 sets when the library is imported
    with pytest.raises(ConnectionError, match="hf download nobody/nothing-here --local-dir"):
        load("nobody/nothing-here")
