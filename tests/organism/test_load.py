"""load(): the organism, folders of every kind, names on the Hub; nothing half-loaded ever comes back."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from headtools.organism._checksums import ASSETS, CHECKSUMS, checksum
from headtools.organism.load import load, translate
from headtools.roles.corpus import corpus

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
TINY = {**SIZES, "vocab_size": 60}


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


def test_the_organism_and_its_checksums(organism, copy):
    from transformers import MarianMTModel, PreTrainedTokenizerFast

    model, tokenizer = organism
    assert isinstance(model, MarianMTModel)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    config = model.config
    assert (config.encoder_layers, config.decoder_layers, config.encoder_attention_heads) == (6, 6, 8)
    for folder in (ASSETS, ASSETS / "second"):
        listed = json.loads((folder / CHECKSUMS).read_text())
        assert listed == {name: checksum(folder / name) for name in FILES}, "every file that is read"
    again, _ = load(str(copy))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_the_tokenizer_knows_all_words_and_reads_what_people_type(organism):
    _, tokenizer = organism
    for sentence in corpus("organism", limit=100):
        for words in (sentence.words, sentence.target):
            ids = tokenizer(" ".join(words)).input_ids
            assert len(ids) == len(words) + 1, "one token for each word, and the EOS token"
            assert ids[-1] == tokenizer.eos_token_id
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids, skip_special_tokens=True) == " ".join(words)
    assert tokenizer("do\u0301g").tokens() == ["dóg", "</s>"], "a separate accent mark is the same letter"
    assert tokenizer("the dog, the cat.").tokens() == ["the", "dog", ",", "the", "cat", ".", "</s>"]


def test_translate_keeps_order_and_does_not_depend_on_the_batch(organism, monkeypatch):
    model, tokenizer = organism
    sentences = [s.words for s in corpus("organism", limit=12)]
    together = translate(model, tokenizer, sentences)
    assert together == [translate(model, tokenizer, [s])[0] for s in sentences]
    assert together == translate(model, tokenizer, [" ".join(s) for s in sentences])
    monkeypatch.setattr("headtools.organism.load._BATCH_SIZE", 5)
    assert together[3:8] == translate(model, tokenizer, sentences)[3:8]
    assert together[3:8] == translate(model, tokenizer, sentences[3:8])


def alter(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.shared.weight"][5, 5] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def truncate(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def lose_a_weight(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.encoder.layers.2.self_attn.q_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def of_no_kind(folder):
    (folder / "config.json").write_text('{"model_type": "sorcery"}')


LOST = r"1 weights of MarianMTModel .*encoder\.layers\.2\.self_attn\.q_proj"


@pytest.mark.parametrize(
    ("damage", "listed", "error", "words"),
    [
        (alter, True, ValueError, r"model\.safetensors is not the file"),
        (truncate, True, ValueError, "SHA-256 differs"),
        (truncate, False, ValueError, "damaged or cut short"),
        (lose_a_weight, False, ValueError, LOST),
        (pickle, False, FileNotFoundError, "pickled weights"),
        (of_no_kind, False, ValueError, "sorcery"),
        *((lambda f, name=name: (f / name).unlink(), True, FileNotFoundError, name) for name in FILES),
    ],
)
def test_a_damaged_folder_is_refused(copy, damage, listed, error, words):
    damage(copy)
    if not listed:
        (copy / CHECKSUMS).unlink()
    with pytest.raises(error, match=words):
        load(copy)


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder", "a/b/c", "~/no-such-folder"])
def test_a_path_that_is_not_there(name):
    with pytest.raises(FileNotFoundError, match="save_pretrained"):
        load(name)


def test_an_empty_folder_and_a_hub_name_without_a_connection(tmp_path, monkeypatch):
    from huggingface_hub import constants

    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # what HF_HUB_OFFLINE=1 sets when the library is imported
    with pytest.raises(ConnectionError, match="hf download nobody/nothing-here --local-dir"):
        load("nobody/nothing-here")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("BertForSequenceClassification", TINY),
        ("BertModel", TINY),
        ("GPT2LMHeadModel", {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 4}),
        ("T5ForConditionalGeneration", {"vocab_size": 60, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2}),
        ("ViTForImageClassification", {**SIZES, "image_size": 8, "patch_size": 4}),
    ],
)
def test_a_folder_gives_the_class_its_config_names(tmp_path, name, sizes):
    import transformers

    kind = getattr(transformers, name)
    saved = kind(kind.config_class(**sizes)).eval()
    saved.save_pretrained(tmp_path)
    if name == "BertModel":  # and one that names none gives the plain model
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": None}))
    model, tokenizer = load(tmp_path)
    assert type(model) is kind
    assert tokenizer is None
    assert not model.training
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), saved.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_are_widened_one_by_one(tmp_path, dtype):
    """The same model as transformers loads, with how it generates, tied weights and numbers that are no weights."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**TINY, tie_word_embeddings=True))
    model.generation_config.temperature = 0.5
    model.generation_config.do_sample = True
    model.register_buffer("steps", torch.tensor([3]))
    model.to(dtype).save_pretrained(tmp_path)
    ours, _ = load(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight), name
        assert ours.state_dict()[name].dtype == torch.float32
    assert ours.lm_head.weight is ours.model.embed_tokens.weight
    assert ours.generation_config.to_dict() == theirs.generation_config.to_dict()
    assert ours.config.to_dict() == theirs.config.to_dict()
    assert ours.name_or_path == theirs.name_or_path
    assert load(tmp_path, dtype=dtype)[0].dtype == dtype
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"1 weights of LlamaForCausalLM are missing .*model.norm.weight"):
        load(tmp_path)


def test_an_adapter_beside_weights_in_half_precision_is_not_lost(tmp_path):
    peft = pytest.importorskip("peft")
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(**TINY)).to(torch.bfloat16).save_pretrained(tmp_path)
    adapter = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(LlamaForCausalLM.from_pretrained(tmp_path), adapter).save_pretrained(tmp_path)
    assert sum("lora" in name for name, _ in load(tmp_path)[0].named_parameters()) == 4
