"""What a cut costs on several corpora, against plain runs, and the warning where a ranking does not hold."""

import pandas as pd
import pytest
import torch

import headtools as ht
from headtools.importance.loss import label_loss
from headtools.sparse.cut_cost import COLUMNS, cut_cost, repeated_tokens, warning_of

from ..roles.tiny_llama import byte_tokenizer, tiny_llama


def test_each_row_is_two_plain_runs():
    model, tokenizer = tiny_llama(), byte_tokenizer()
    heads = [("decoder", 0, 1), ("decoder", 1, 3)]
    corpora = {
        "english": ht.text_batches(tokenizer, ht.natural_text("english", "test", 6), batch_size=2),
        "repeated": repeated_tokens(model, n=3, length=5),
    }
    frame = cut_cost(model, heads, corpora).set_index("corpus")
    for name, given in corpora.items():
        batches = [given] if isinstance(given, dict) else given
        losses = {}
        for state, off in (("loss", []), ("without", heads)):
            with torch.no_grad(), ht.ablate(model, off):
                each = [
                    label_loss(model, model(batch["input_ids"], batch["attention_mask"]), batch) for batch in batches
                ]
            losses[state] = torch.cat(each)
            assert frame[state][name] == pytest.approx(losses[state].mean().item(), abs=1e-5)
        rise = losses["without"] - losses["loss"]
        assert frame["rise"][name] == pytest.approx(rise.mean().item(), abs=1e-5)
        if len(rise) >= 5:
            low, high = ht.bootstrap(rise)
            assert (frame.low[name], frame.high[name]) == pytest.approx((low.item(), high.item()), abs=1e-5)
        else:
            assert pd.isna(frame.low[name])
    with pytest.raises(ValueError, match="got no corpora"):
        cut_cost(model, heads, {})


def test_only_what_can_be_predicted_has_labels():
    model = tiny_llama()
    batch = repeated_tokens(model, n=4, length=6, seed=2)
    assert torch.equal(batch["input_ids"][:, :6], batch["input_ids"][:, 6:])
    assert (batch["labels"][:, :7] == -100).all()
    assert torch.equal(batch["labels"][:, 7:], batch["input_ids"][:, 1:6])
    assert {0, 1}.isdisjoint(batch["input_ids"].flatten().tolist()), "special tokens are not drawn"


@pytest.mark.parametrize(("low", "warned"), [(8.0, True), (0.05, False), (-1.0, False)])
def test_the_warning_is_for_a_clear_difference(low, warned):
    rows = [("a", 5, 5, 0.0, -0.1, 0.1, 9), ("b", 1, 9, 8.4, low, 8.8, 9)]
    assert (warning_of(pd.DataFrame(rows, columns=list(COLUMNS))) is not None) == warned
