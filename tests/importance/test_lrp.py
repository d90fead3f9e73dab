"""The relevance of heads: what is conserved, what is explained, and what is left as it was."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import headtools as ht
from headtools.importance._inputs import frozen
from headtools.importance._lrp.passes import position_tables
from headtools.importance._lrp.rule_set import NAMED, Rules
from headtools.importance._lrp.rules import rules
from headtools.importance.relevance import propagate, relevance

from ..heads.zoo import ALL, BUILDERS, fresh, logits, zoo_model
from .test_gradient import labelled, singles, slopes_of

NAMES = ("bert", "gpt2", "llama", "t5", "marian", "modernbert", "vit")  # the architectures the docstrings name
CONSTANT = [name for name, rule in NAMED.items() if rule.attention == "constant"]
FLOAT32_ONLY = ("gemma2", "gpt_oss", "deepseek_v3")  # NaN or errors of their own in double


def double(name, biases=True):
    """A model in double precision, with its biases and other constants set to zero if they are to be off."""
    model, batch = fresh(name)
    if name not in FLOAT32_ONLY:
        model.double()
        batch = {key: value.double() if value.is_floating_point() else value for key, value in batch.items()}
    if not biases:
        with torch.no_grad():
            tensors = dict(model.named_parameters()) | dict(model.named_buffers())
            for key, tensor in tensors.items():
                if key.endswith("bias") or "cls_token" in key or key.split(".")[-1] == "position_embeddings":
                    tensor.zero_()
    return model, batch


def picked(outputs, _batch):
    """One number per example, for any model."""
    scores = logits(outputs).flatten(1)
    return scores.gather(1, (torch.arange(len(scores))[:, None] * 7 + 3) % scores.shape[1])[:, 0]


def close(left, right, tolerance=1e-5):
    scale = max(value.abs().max() for value in right.values())
    assert left.keys() == right.keys()
    for key in left:
        assert (left[key] - right[key]).abs().max() <= tolerance * scale, key


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_lost_while_attention_is_constant(name):
    model, batch = double(name)
    for which in CONSTANT:
        found = propagate(model, batch, picked, which)
        assert found.conserved + found.absorbed == pytest.approx(1, abs=1e-4), which


@pytest.mark.parametrize("name", NAMES)
def test_all_arrives_at_the_input_where_there_are_no_biases(name):
    model, batch = double(name, biases=False)
    for which in CONSTANT:
        found = propagate(model, batch, picked, which)
        assert found.conserved == pytest.approx(1, abs=1e-4), which
        assert found.absorbed == pytest.approx(0, abs=1e-4), which


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian", "vit"])  # Llama's norms are float32: too coarse for it
def test_the_printed_rule_loses_nothing_on_its_way_through_attention(name):
    model, batch = double(name)
    found = propagate(model, batch, picked, "ratio")
    size = max(float(part.abs().max()) for part in found.parts.values()) / float(found.explained.abs().sum())
    assert found.conserved + found.absorbed == pytest.approx(1, abs=1e-4 + 1e-7 * size)


@pytest.mark.parametrize("name", NAMES)
def test_attnlrp_says_what_softmax_leaks(name):
    model, batch = double(name, biases=False)
    found = propagate(model, batch, picked, "attnlrp")
    assert abs(found.conserved - 1) > 0.03
    scores = relevance(model, batch, picked)
    why = "none: 3 examples came, 5 are needed"
    assert scores.notes == {"conserved": found.conserved, "absorbed": found.absorbed, "interval": why}
    assert f"conserved {found.conserved:.3g}" in repr(scores)


def test_the_conserved_share_is_counted_by_hand():
    """Every tensor that ends the way down in BERT, found without the package: three tables and all biases."""
    model, batch = double("bert")
    found, model = propagate(model, batch, picked, "cp"), model.requires_grad_(False)
    ends, caught = [], []
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(lambda _m, _i, out: ends.append(out.requires_grad_()) or ends[-1])
    with rules("cp"):
        score = picked(model(**batch), batch)
    sign = score.detach().sign()
    gradients = torch.autograd.grad(score, ends, sign)
    caught = sum((end * g).sum() for end, g in zip(ends, gradients, strict=True))
    assert len(ends) == 3
    assert found.conserved == pytest.approx((caught / score.abs().sum()).item(), abs=1e-9)


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian", "llama", "t5", "bloom"])
@pytest.mark.parametrize("rule_set", ["cp", "attnlrp", "voita"])
def test_heads_add_up_to_what_goes_through_their_layer(name, rule_set):
    """The sum over a layer's heads is R of the output projection's output, less what its bias keeps."""
    model, batch = double(name)
    found = propagate(model, batch, picked, rule_set)
    out, handles = {}, []
    for site in ht.sites(model):
        handles.append(site.out.register_forward_hook(lambda _m, _i, y, key=site.key: out.__setitem__(key, y)))
    with frozen(model), rules(rule_set, model, position_tables(model)) as seen:
        score = picked(model(**batch), batch)
    gradients = torch.autograd.grad(score.sum(), [*out.values(), *seen.constants], allow_unused=True)
    biases = {id(c): c * g for c, g in zip(seen.constants, gradients[len(out) :], strict=True) if g is not None}
    for (key, y), g in zip(out.items(), gradients, strict=False):
        site = ht.sites(model)[key]
        bias = getattr(site.out, "bias", None)
        kept = 0.0
        if bias is not None:
            kept = sum(
                r.sum() for c, r in biases.items() for k in seen.constants if id(k) == c and torch.equal(k, bias)
            )
        assert found.parts[key].sum().item() == pytest.approx(((y * g).sum() - kept).item(), abs=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_without_rules_it_is_the_gradient(name):
    model, batch = zoo_model(name)
    close(propagate(model, batch, picked, "gradient").parts, slopes_of(model, batch, picked))


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian", "vit", "llama"])
@pytest.mark.parametrize("rule_set", ["zplus", "voita"])
def test_positive_rules_give_positive_relevance(name, rule_set):
    model, batch = double(name)

    def size(outputs, batch):
        return picked(outputs, batch).abs()

    for part in propagate(model, batch, size, rule_set).parts.values():
        assert part.min() >= -1e-12
    signs = [part.sign() for part in propagate(model, batch, size, "cp").parts.values()]
    assert len(torch.cat([sign.flatten() for sign in signs]).unique()) == 2


def test_what_one_head_alone_says_is_its_own():
    model, batch = double("gpt2")
    with torch.no_grad():
        site = ht.sites(model)["decoder", 2]
        for block in model.transformer.h:
            block.mlp.c_proj.weight.zero_()
        kept = site.out.weight[8:16].clone()  # only head 1 of the last layer writes to the stream
        for other in ht.sites(model):
            other.out.weight.zero_()
        site.out.weight[8:16] = kept
    found = propagate(model, batch, picked, "cp")
    parts = found.parts["decoder", 2]
    assert (parts[:, 1] != 0).all()
    assert (parts[:, [0, 2, 3]] == 0).all()
    assert found.conserved + found.absorbed == pytest.approx(1)


@pytest.mark.parametrize("rule_set", list(NAMED))
def test_every_step_is_explained_by_itself(rule_set):
    model, batch = labelled("marian")
    found = propagate(model, batch, rules=rule_set)
    counted = batch["labels"] != -100
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    with torch.no_grad():
        best = model(**inputs).logits.amax(-1)
    assert torch.allclose(found.explained, best[counted], rtol=1e-5)
    assert found.example.tolist() == counted.nonzero()[:, 0].tolist()
    places = counted.nonzero().tolist()
    for step in (0, 2, 4):
        one = propagate(model, inputs, lambda outputs, _b, step=step: outputs.logits[:, step].amax(-1), rule_set)
        for n, (row, place) in enumerate(places):
            if place == step:
                for key, part in one.parts.items():
                    scale = found.parts[key].abs().max()
                    assert torch.allclose(found.parts[key][n], part[row], atol=1e-5 * scale), (key, row)


def test_one_pass_over_a_whole_translation_is_generation_step_by_step():
    """Greedy generation sees at each step what the decoder sees up to there in one pass over the finished text."""
    model, batch = double("marian")
    encoder = {k: batch[k] for k in ("input_ids", "attention_mask")}
    greedy = {"do_sample": False, "num_beams": 1, "eos_token_id": None}
    written = model.generate(**encoder, **greedy, max_new_tokens=4)
    whole = propagate(model, encoder | {"decoder_input_ids": written[:, :-1]}, rules="cp")
    for step in range(4):
        one = propagate(
            model,
            encoder | {"decoder_input_ids": written[:, : step + 1]},
            lambda outputs, _b: outputs.logits[:, -1].amax(-1),
            "cp",
        )
        here = torch.arange(3) * 4 + step
        assert torch.allclose(whole.explained[here], one.explained)
        close({key: part[here] for key, part in whole.parts.items()}, one.parts, 1e-9)


def test_which_steps_are_explained_where_none_are_named():
    model, batch = labelled("gpt2")
    found = propagate(model, batch, rules="cp", sites=[("decoder", 2)])
    assert found.example.bincount().tolist() == [6, 4, 2]  # the first token of each is only read
    without = {key: value for key, value in batch.items() if key != "labels"}
    assert propagate(model, without, rules="cp").example.bincount().tolist() == [7, 5, 3]
    model, batch = zoo_model("gpt2", "left")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    found = propagate(model, batch | {"labels": labels}, rules="cp")
    assert found.example.bincount().tolist() == [6, 4, 2], "what padding predicts is no step"
    model, batch = labelled("marian")
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    without = {key: value for key, value in batch.items() if key != "labels"} | {"decoder_attention_mask": mask}
    assert propagate(model, without, rules="cp").example.bincount().tolist() == [5, 2, 1]
    model, batch = labelled("bert")
    batch["labels"][:, 1:] = -100
    assert propagate(model, batch, rules="cp").example.bincount().tolist() == [1, 1, 1]
    model, batch = labelled("vit")
    found = propagate(model, batch, rules="cp")
    assert found.example.tolist() == [0, 1, 2]
    with torch.no_grad():
        assert torch.allclose(found.explained, model(batch["pixel_values"]).logits.amax(-1))


def test_scores_are_means_of_what_they_say():
    model, batch = labelled("marian")
    found = propagate(model, [batch, batch], rules="attnlrp")
    assert any((part < 0).any() for part in found.parts.values())
    for key, part in found.parts.items():
        whole = part.abs().sum(1, keepdim=True)
        wanted = {
            (None, False): part.abs(),
            (None, True): part,
            ("layer", False): part.abs() / whole,
            ("layer", True): part / whole,
        }
        for (normalise, signed), rows in wanted.items():
            scores = found.scores(normalise, signed)
            assert torch.allclose(scores.values[key], rows.mean(0).float(), rtol=1e-4, atol=1e-6)
            assert (scores.low[key] <= scores.values[key]).all()
            assert (scores.values[key] <= scores.high[key]).all()
    shares = relevance(model, batch, normalise="layer")
    assert all(value.sum().item() == pytest.approx(1, abs=1e-5) for value in shares.values.values())
    assert shares.name == "relevance, attnlrp, share of its layer"
    assert found.scores(signed=True).name == "signed relevance, attnlrp"


def test_relevance_goes_wherever_scores_go():
    model, batch = labelled("bert")
    scores = relevance(model, batch, rules="cp")
    assert isinstance(scores, ht.HeadScores)
    assert len(scores.order()) == 12
    assert scores.top(1)[0] == scores.order()[-1]
    assert -1 <= scores.spearman(ht.gradient(model, batch)) <= 1
    frame = ht.curve(model, scores, lambda _model: 1.0, keep=[12, 6])
    assert list(frame.kept) == [12, 6]


@pytest.mark.parametrize("rule_set", ["attnlrp", "voita"])
@pytest.mark.parametrize(
    "name", ["bert", "albert", "gpt2", "llama", "gpt_neox", "marian", "t5", "encoder_decoder", "bloom"]
)
def test_padding_and_batches_change_nothing(name, rule_set):
    model, batch = labelled(name)
    together, apart = (propagate(model, form, rules=rule_set) for form in (batch, singles(batch)))
    assert together.example.tolist() == apart.example.tolist()
    assert torch.allclose(together.explained, apart.explained, rtol=1e-4, atol=1e-5)
    close(together.parts, apart.parts, 2e-4)
    assert together.conserved == pytest.approx(apart.conserved, abs=2e-4)
    assert together.absorbed == pytest.approx(apart.absorbed, abs=2e-4)


class OwnAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        maps = (q @ k.transpose(-1, -2) / self.head_dim**0.5).softmax(-1)
        return self.out_proj((maps @ v).transpose(1, 2).flatten(-2))


class OwnModel(nn.Module):
    """A reader's own model: learned positions as a parameter, a norm by hand, a gated layer, the mean of all tokens."""

    def __init__(self, width=12, heads=3):
        super().__init__()
        self.words, self.places = nn.Embedding(20, width), nn.Parameter(torch.randn(6, width))
        self.attention, self.gate, self.up = OwnAttention(width, heads), nn.Linear(width, 8), nn.Linear(width, 8)
        self.down, self.answer = nn.Linear(8, width), nn.Linear(width, 4)

    def forward(self, input_ids):
        x = self.words(input_ids) + self.places[: input_ids.shape[1]]
        x = x + self.attention(x / x.std(-1, keepdim=True))
        x = x + self.down(F.silu(self.gate(x)) * self.up(x))
        return self.answer(x.mean(1))


def test_a_readers_own_model():
    torch.manual_seed(3)
    model, batch = OwnModel().double().eval(), {"input_ids": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])}
    for which in CONSTANT:
        found = propagate(model, batch, rules=which)
        assert found.explained.tolist() == model(**batch).amax(-1).tolist()
        assert found.conserved + found.absorbed == pytest.approx(1, abs=1e-4), which
    assert propagate(model, batch).conserved != pytest.approx(1, abs=0.01)
    # by hand, attention constant: from the answer down to the three heads
    z = []
    handle = model.attention.out_proj.register_forward_pre_hook(lambda _m, args: z.append(args[0]))
    x = model.words(batch["input_ids"]) + model.places[:4]
    middle = x + model.attention(x / x.std(-1, keepdim=True))
    handle.remove()
    gate, up = model.gate(middle), model.up(middle)
    product = F.silu(gate) * up
    end = middle + model.down(product)
    best = model.answer(end.mean(1)).argmax(-1)
    at_end = end * model.answer.weight[best][:, None] / 4
    at_middle = at_end * middle / end
    at_product = product * (at_end / end @ model.down.weight)
    for part, side in ((gate, model.gate), (up, model.up)):  # half each, the activation passes its half on
        at_middle = at_middle + middle * (at_product / 2 / part @ side.weight)
    at_heads = z[0] * (at_middle / middle @ model.attention.out_proj.weight)
    wanted = at_heads.unflatten(-1, (3, 4)).sum((1, 3))
    assert torch.allclose(propagate(model, batch, rules="cp").parts["encoder", 0], wanted)


def state(model):
    return (
        {name: value.clone() for name, value in model.state_dict().items()},
        [p.requires_grad for p in model.parameters()],
        [m.training for m in model.modules()],
        [p.grad for p in model.parameters()],
        [len(m._forward_pre_hooks) + len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()],
    )


def same(before, after):
    assert all(torch.equal(value, after[0][name]) for name, value in before[0].items())
    assert before[1:] == after[1:]


def broken(outputs, batch):
    raise KeyError("a score with a mistake")


@pytest.mark.parametrize("score", [None, broken])
@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_the_model_is_left_as_it_was(name, score):
    model, batch = fresh(name)
    next(model.parameters()).requires_grad_(False)
    model.train()
    next(model.children()).eval()
    before = state(model)
    if score is None:
        relevance(model, batch, rules="voita")
    else:
        with pytest.raises(KeyError, match="with a mistake"):
            relevance(model, batch, score)
    same(before, state(model))
    assert torch.is_grad_enabled()
    assert not torch.overrides._get_current_function_mode_stack()


def test_dropout_is_off_and_gradients_need_not_be_on():
    model, batch = zoo_model("bert")
    expected = propagate(model, batch, picked).parts
    wild = copy.deepcopy(model).train()
    for module in wild.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    close(propagate(wild, batch, picked).parts, expected)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            close(propagate(model, batch, picked).parts, expected)


@pytest.mark.parametrize("rule_set", ["attnlrp", "voita"])
def test_other_precisions(rule_set):
    model, batch = fresh("bert")
    plain = relevance(model, batch, picked, rule_set)
    half = relevance(copy.deepcopy(model).bfloat16(), batch, picked, rule_set)
    assert all(value.dtype == torch.float32 for value in half.values.values())
    assert half.spearman(plain) > 0.8
    wide = propagate(model.double(), batch, picked, rule_set)
    assert all(part.dtype == torch.float64 for part in wide.parts.values())
    close(wide.scores().values, plain.values, 1e-4)


@pytest.mark.parametrize("way", ["eager", "sdpa"])
def test_the_kernel_of_attention_does_not_matter(way):
    for name in ("bert", "gpt2", "t5"):
        model, batch = double(name)
        expected = {which: propagate(model, batch, picked, which).parts for which in ("attnlrp", "cp", "voita")}
        model.set_attn_implementation(way)
        for which, parts in expected.items():
            close(propagate(model, batch, picked, which).parts, parts, 1e-5)


def test_heads_that_are_off_get_nothing_and_cut_layers_are_left_out():
    model, batch = fresh("gpt2")
    with ht.ablate(model, {("decoder", 1): [2]}):
        parts = propagate(model, batch, picked, "cp").parts
    assert (parts["decoder", 1][:, 2] == 0).all()
    assert (parts["decoder", 1][:, [0, 1, 3]] != 0).all()
    ht.prune(model, {("decoder", 1): [0, 1, 2, 3], ("decoder", 2): [1]})
    scores = relevance(model, batch, picked)
    assert {key: len(value) for key, value in scores.values.items()} == {("decoder", 0): 4, ("decoder", 2): 3}


def test_only_some_sites():
    model, batch = zoo_model("marian")
    whole = propagate(model, batch, picked, "cp")
    some = propagate(model, batch, picked, "cp", sites=["encoder", ("cross", 1)])
    assert list(some.parts) == [("encoder", 0), ("encoder", 1), ("cross", 1)]
    close(some.parts, {key: whole.parts[key] for key in some.parts})
    assert some.conserved == whole.conserved


def nan_in_one(outputs, batch):
    return picked(outputs, batch) * torch.tensor([1.0, float("nan"), 1.0])


WRONG_SCORES = [
    (lambda o, b: picked(o, b).mean(), "one number per example"),
    (lambda o, b: picked(o, b).tolist(), "one number per example"),
    (lambda o, b: picked(o, b).detach(), "does not depend on the model"),
    (lambda o, b: picked(o, b)[:2], "its rows are not the examples"),
    (lambda o, b: picked(o, b) * 0, "no relevance to distribute"),
    (nan_in_one, r"score of examples \[1\] is NaN"),
]


@pytest.mark.parametrize(("score", "message"), WRONG_SCORES)
def test_a_score_of_another_form_is_refused(score, message):
    model, batch = zoo_model("bert")
    with pytest.raises(ValueError, match=message):
        relevance(model, batch, score)


def test_nan_on_the_way_down_is_never_silent():
    model, batch = fresh("bert")
    module = model.bert.encoder.layer[1].output.dense
    module.register_forward_hook(lambda _m, _i, out: out.register_hook(lambda g: g * float("nan")) and None)
    with pytest.raises(ValueError, match=r"relevance at encoder \d is NaN"):
        relevance(model, batch, picked)


def test_bad_input_is_refused():
    model, batch = labelled("bert")
    nothing = batch["labels"].clone()
    nothing[1] = -100
    with pytest.raises(ValueError, match=r"examples \[1\] have no step to explain"):
        relevance(model, batch | {"labels": nothing})
    with pytest.raises(ValueError, match="got no batches"):
        relevance(model, iter(()))
    without = {key: value for key, value in batch.items() if key != "labels"}
    with pytest.raises(ValueError, match="BertModel: got no logits, so"):
        relevance(model.bert, without)
    with pytest.raises(ValueError, match="rules is one of"):
        relevance(model, batch, rules="deeplift")
    with pytest.raises(ValueError, match="normalise is None or"):
        relevance(model, batch, normalise="head")
    with pytest.raises(ValueError, match="normalise is None or"):
        propagate(model, batch).scores(normalise=True)
    with pytest.raises(KeyError, match="no 'cross' attention"):
        relevance(model, batch, sites=["cross"])
    with pytest.raises(ValueError, match="all padding"):
        relevance(model, batch | {"attention_mask": batch["attention_mask"] * torch.tensor([[1], [0], [1]])})
    with pytest.raises(RuntimeError, match="was compiled before"):
        relevance(torch.compile(copy.deepcopy(model)), batch)
    clip, batch = zoo_model("clip")
    with pytest.raises(ValueError, match="does not depend on vision_model encoder 0"):
        relevance(clip, batch, lambda outputs, _batch: outputs.text_embeds.sum(-1))
    assert BUILDERS["vit"][1] == "image"


def test_own_rules():
    model, batch = double("bert", biases=False)
    weak, strong = (
        propagate(model, batch, picked, Rules(linear="epsilon", epsilon=e, attention="constant")).conserved
        for e in (1e-9, 0.5)
    )
    assert weak == pytest.approx(1, abs=1e-4)
    assert abs(strong) < 0.9  # epsilon takes its part at every layer
    assert relevance(model, batch, picked, Rules()).name == "relevance, own rules"
