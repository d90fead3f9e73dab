"""What heads are weighed by: a model's own loss, and the change of its output where it has none."""

import pytest
import torch
import transformers as tf

import headtools as ht
from headtools._report.objective import objective, output_change, output_projection

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16, "vocab_size": 50}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return tf.BertModel(tf.BertConfig(**SMALL, pad_token_id=0)).eval()


@pytest.fixture
def batches():
    """Two batches, the second padded."""
    draw = torch.Generator().manual_seed(1)
    one, two = (torch.randint(1, 50, shape, generator=draw) for shape in ((3, 6), (2, 5)))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    return [
        {"input_ids": one, "attention_mask": torch.ones_like(one)},
        {"input_ids": two * mask, "attention_mask": mask},
    ]


def lengths(hidden, batch):
    """Of each example's output without its padding, one by one."""
    return torch.stack([part[mask.bool()].norm() for part, mask in zip(hidden, batch["attention_mask"], strict=True)])


def test_the_change_is_that_of_the_definition(model, batches):
    scores = ht.ablation(model, batches, output_change(model, batches), progress=False)
    with torch.no_grad():
        for layer in range(2):
            for head in range(4):
                each = []
                for batch in batches:
                    before = model(**batch).last_hidden_state
                    with ht.ablate(model, {("encoder", layer): [head]}):
                        after = model(**batch).last_hidden_state
                    each.append(lengths(after - before, batch) / lengths(before, batch))
                assert scores["encoder", layer, head] == pytest.approx(torch.cat(each).mean().item(), rel=1e-4)


def test_padding_does_not_count(model, batches):
    """Neither in how far the output moves, nor in how long it is."""
    alone = {name: value[1:, :3] for name, value in batches[1].items()}
    padded = {name: value[1:] for name, value in batches[1].items()}
    one, two = (ht.ablation(model, batch, output_change(model, batch), progress=False) for batch in (alone, padded))
    assert torch.allclose(one.flat(), two.flat(), rtol=1e-4)


def test_the_projection_s_slope_is_the_first_order_change(model, batches):
    """The mean over many draws, against the derivative of the whole output, taken gate by gate by differences."""
    draws = [ht.gradient(model, batches[1], output_projection(model, seed)).flat() for seed in range(300)]
    step, batch = 1e-2, batches[1]
    with torch.no_grad():
        before = model(**batch).last_hidden_state
        expected = []
        for layer in range(2):
            for head in range(4):
                gate = torch.ones(4)
                gate[head] = 1 - step
                with ht.gates(model, {("encoder", layer): gate}):
                    moved = model(**batch).last_hidden_state - before
                expected.append((lengths(moved, batch) / step / lengths(before, batch)).mean())
    assert torch.allclose(torch.stack(draws).mean(0), torch.stack(expected).double(), rtol=0.1)


def test_the_projection_is_the_same_for_a_seed_and_another_for_another(model, batches):
    first, again, other = (ht.gradient(model, batches, output_projection(model, seed)).flat() for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, rtol=1e-2)


def test_gradient_agrees_with_leaving_out_on_the_organism_s_encoder():
    """Measured on 100 sentences: .99. A bare encoder, cut out of the shipped model."""
    full, tokenizer = ht.load()
    encoder = full.get_encoder()
    weighed_by = objective(encoder, tokenizer, ht.corpus("organism", limit=1))
    assert weighed_by.name == "output"
    batches = weighed_by.batches(ht.corpus("organism", limit=8))
    assert weighed_by.gradient(batches).spearman(weighed_by.ablation(batches, progress=False)) > 0.93


def test_what_output_change_refuses(model, batches):
    change = output_change(model, batches[:1])
    with pytest.raises(ValueError, match="no slope where nothing is changed yet: pass loss=output_projection"):
        ht.gradient(model, batches[:1], change)
    with pytest.raises(ValueError, match="unchanged output is not known"):
        ht.ablation(model, batches[1], change, progress=False)
    clip = tf.CLIPModel(
        tf.CLIPConfig(
            text_config={**SMALL, "eos_token_id": 49},
            vision_config={
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 8,
                "image_size": 4,
                "patch_size": 2,
            },
        )
    )
    pair = {"input_ids": torch.tensor([[1, 49]]), "pixel_values": torch.ones(1, 3, 4, 4)}
    with pytest.raises(ValueError, match="expected last_hidden_state or logits"):
        output_change(clip.eval(), pair)


def test_logits_that_move_together_do_not_count():
    """The same number added to all logits of a token changes no probability."""
    torch.manual_seed(0)
    model = tf.BertForMaskedLM(tf.BertConfig(**SMALL)).eval()
    batch = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]])}
    change = output_change(model, batch)
    with torch.no_grad():
        outputs = model(**batch)
        outputs.logits = outputs.logits + 5
    assert change(outputs, batch).max() < 1e-5


def test_a_model_that_needs_its_head_is_told_so():
    model = tf.T5Model(tf.T5Config(d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4, vocab_size=50)).eval()
    with pytest.raises(ValueError, match="AutoModelForSeq2SeqLM"):
        objective(model, ht.load()[1], ht.corpus("organism", limit=1))
    with pytest.raises(ValueError, match="one of lm, mlm, class, output; got 'mse'"):
        objective(model, None, [], "mse")
