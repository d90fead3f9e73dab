"""What a translation says about each feature: against the grammar's own rules and counted word by word."""

import pytest
import torch

import headtools as ht
from headtools.organism.features import FEATURES, feature, kept, labels
from headtools.organism.lexicon import is_accented
from headtools.roles.sentence import Sentence

MODEL, TOKENIZER = ht.load()
SENTENCES = ht.corpus("organism", limit=12)


def test_labels_follow_the_grammar():
    for s in ht.corpus("organism", limit=60):
        values = {name: labels(s, name) for name in FEATURES}
        for i, (word, upos) in enumerate(zip(s.words, s.upos, strict=True)):
            if upos in ("PROPN", "PUNCT"):
                assert not any(values[name][i] for name in FEATURES)
                continue
            heard = i > 0 and is_accented(s.words[i - 1])
            assert values["left"][i] == ("accented" if heard else "plain"), word
            heard = i + 1 < len(s.words) and is_accented(s.words[i + 1])
            assert values["right"][i] == ("accented" if heard else "plain"), word
            assert values["topic"][i] in (None, s.topic or "none")
            assert (values["family"][i] is not None) == (
                upos == "AUX" or (upos == "ADV" and s.upos[s.heads[i] - 1] == "VERB")
            )
            noun = upos == "NOUN" or (upos == "PRON" and word not in ("that", "thát"))
            assert (values["case"][i] is not None) == noun, word


def test_kept_counts_words():
    names = ("gender", "left", "object")
    for heads in ([], [("encoder", 5, 1), ("encoder", 4, 2)]):
        with ht.ablate(MODEL, heads):
            counts = kept(MODEL, SENTENCES, names, batch_size=5)
            for i, s in enumerate(SENTENCES):
                given = TOKENIZER([str(s)], return_tensors="pt")
                target = TOKENIZER.convert_tokens_to_ids(list(s.target))
                start = torch.tensor([[MODEL.config.decoder_start_token_id, *target]])
                with torch.no_grad():
                    predicted = MODEL(**given, decoder_input_ids=start).logits[0, : len(target)].argmax(-1)
                words = TOKENIZER.convert_ids_to_tokens(predicted.tolist())
                for name in names:
                    asked = [(feature(w, name), feature(t, name)) for w, t in zip(words, s.target, strict=True)]
                    asked = [(w, t) for w, t in asked if t is not None]
                    assert counts[name][i].tolist() == [sum(w == t for w, t in asked), len(asked)]


def test_refuses():
    with pytest.raises(ValueError, match="no feature 'tense'"):
        labels(SENTENCES[0], "tense")
    with pytest.raises(ValueError, match="no word 'xyz'"):
        feature("xyz", "gender")
    with pytest.raises(ValueError, match="no sentences came"):
        kept(MODEL, [])
    with pytest.raises(ValueError, match="has no translation"):
        labels(Sentence(("a",), (0,), ("root",), ("X",), (0,)), "gender")
