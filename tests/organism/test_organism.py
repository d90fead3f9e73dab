"""What the shipped organisms can do, against the floors that their cards state."""

import json
import re

import pytest
import torch

import headtools as ht
from headtools.organism._checksums import ASSETS
from headtools.organism.evaluate import bleu
from headtools.organism.second.results import second_results
from headtools.organism.second.vocabulary import vocabulary

CARD = (ASSETS / "README.md").read_text(encoding="utf-8")
SCORES = json.loads((ASSETS / "scores.json").read_text(encoding="utf-8"))
FLOOR = float(re.search(r"BLEU (\d+) on the first 150 test sentences", CARD)[1])


@pytest.fixture(scope="module")
def organism():
    return ht.load()


def test_bleu_on_test_is_above_the_floor_and_above_hard(organism):
    score, low, high = bleu(*organism, ht.corpus("organism", "test", limit=150))
    assert score >= FLOOR
    assert low < next(row["bleu"] for row in SCORES["translation"] if row["split"] == "test") < high
    assert score > bleu(*organism, ht.corpus("organism", "hard", limit=60))[0] + 3


def test_the_second_organism_gets_words_right_as_its_card_says():
    model, tokenizer = ht.load("organism2")
    assert model.dtype == torch.float32
    sentences, words = ht.corpus("organism2", "test", limit=40), list(vocabulary())
    assert {str(s) for s in sentences}.isdisjoint({str(s) for s in ht.corpus("organism", "test", limit=40)})
    right = total = 0
    for s in sentences:
        with torch.no_grad():
            target = [words.index(word) for word in (*s.target, "</s>")]
            given = torch.tensor([[model.config.decoder_start_token_id, *target[:-1]]])
            logits = model(**tokenizer(str(s), return_tensors="pt"), decoder_input_ids=given).logits[0]
        right, total = right + (logits.argmax(-1) == torch.tensor(target)).sum().item(), total + len(target)
    accuracy = second_results("scores")["splits"]["test"]["accuracy"]
    assert right / total == pytest.approx(accuracy if isinstance(accuracy, float) else accuracy[0], abs=0.02)


# --- roles, without the package's own measures ------------------------------------------------------------------------
