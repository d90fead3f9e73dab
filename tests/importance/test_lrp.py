"""The relevance of heads: what is conserved, what is explained, and what is left as it was."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import headtools as ht
from headtools.importance._inputs import evaluating
from headtools.importance._lrp.operations import rules
from headtools.importance._lrp.rules import NAMED, Rules
from headtools.importance.relevance import _counted, relevance

from ..heads.zoo import fresh, logits, zoo_model
from .test_gradient import close, labelled, singles

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


def signed(model, batch, score=picked, which="cp", **more):
    """Each head's R for every example, {key: (B, H)}, and the fractions at the input and in constants."""
    found = relevance(model, batch, score, which, signed=True, **more)
    return found.rows, found.notes["conserved"], found.notes["absorbed"]


# --- what is conserved ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_all_arrives_at_the_input_where_there_are_no_biases(name):
    model, batch = double(name, biases=False)
    for which in CONSTANT:
        _, conserved, absorbed = signed(model, batch, which=which)
        assert (conserved, absorbed) == pytest.approx((1, 0), abs=1e-4), which
    leaked = relevance(model, batch, picked, "attnlrp")
    assert abs(leaked.notes["conserved"] - 1) > 0.03
    assert f"conserved {leaked.notes['conserved']:.3g}" in repr(leaked)


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian", "vit"])  # Llama's norms are float32: too coarse for it
def test_the_printed_rule_loses_nothing_on_its_way_through_attention(name):
    model, batch = double(name)
    parts, conserved, absorbed = signed(model, batch, which="ratio")
    with torch.no_grad():
        explained = picked(model(**batch), batch).abs().sum()
    size = max(float(part.abs().max()) for part in parts.values()) / float(explained)
    assert conserved + absorbed == pytest.approx(1, abs=1e-4 + 1e-7 * size)


def test_the_conserved_share_is_counted_by_hand():
    """Every tensor that ends the way down in BERT, found without the package: three tables."""
    model, batch = double("bert")
    _, conserved, _ = signed(model, batch)
    ends = []
    for module in model.requires_grad_(False).modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(lambda _m, _i, out: ends.append(out.requires_grad_()) or ends[-1])
    with rules("cp"):
        score = picked(model(**batch), batch)
    gradients = torch.autograd.grad(score, ends, score.detach().sign())
    caught = sum((end * g).sum() for end, g in zip(ends, gradients, strict=True))
    assert len(ends) == 3
    assert conserved == pytest.approx((caught / score.abs().sum()).item(), abs=1e-9)


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian", "llama", "bloom"])
@pytest.mark.parametrize("rule_set", ["cp", "attnlrp", "voita"])
def test_heads_add_up_to_what_goes_through_their_layer(name, rule_set):
    """The sum over a layer's heads is R of the output projection's output, less what its bias keeps."""
    model, batch = double(name)
    parts, _, _ = signed(model, batch, which=rule_set)
    out = {}
    for site in ht.sites(model):
        site.out.register_forward_hook(lambda _m, _i, y, key=site.key: out.__setitem__(key, y))
    with evaluating(model), rules(rule_set, model) as seen:
        score = picked(model(**batch), batch)
    gradients = torch.autograd.grad(score.sum(), [*out.values(), *seen.constants], allow_unused=True)
    kept = [(c, (c * g).sum()) for c, g in zip(seen.constants, gradients[len(out) :], strict=True) if g is not None]
    for (key, y), g in zip(out.items(), gradients, strict=False):
        bias = getattr(ht.sites(model)[key].out, "bias", None)
        of_bias = 0.0 if bias is None else sum(r for c, r in kept if torch.equal(c, bias))
        assert parts[key].sum().item() == pytest.approx(((y * g).sum() - of_bias).item(), abs=1e-9)


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian", "vit", "llama"])
@pytest.mark.parametrize("rule_set", ["zplus", "voita"])
def test_positive_rules_give_positive_relevance(name, rule_set):
    model, batch = double(name)

    def size(outputs, batch):
        return picked(outputs, batch).abs()

    assert all(part.min() >= -1e-12 for part in signed(model, batch, size, rule_set)[0].values())
    assert any(part.min() < 0 for part in signed(model, batch, size, "cp")[0].values())


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
    parts = signed(model, batch)[0]["decoder", 2]
    assert (parts[:, 1] != 0).all()
    assert (parts[:, [0, 2, 3]].abs() < 1e-12).all()


# --- which numbers are explained, and what is averaged ----------------------------------------------------------------


@pytest.mark.parametrize("rule_set", list(NAMED))
def test_scores_are_means_over_the_steps_that_count(rule_set):
    """Against each step explained by itself, as a score of one number per example."""
    model, batch = labelled("marian")
    counted = (batch["labels"] != -100).double()[..., None]  # (B, step, 1)
    steps = [
        relevance(
            model, batch, lambda outputs, _b, step=step: outputs.logits[:, step].amax(-1), rule_set, signed=True
        ).rows
        for step in range(counted.shape[1])
    ]
    for normalise in (None, "layer"):
        for keep_sign in (False, True):
            found = relevance(model, batch, rules=rule_set, normalise=normalise, signed=keep_sign)
            for key, rows in found.rows.items():
                part = torch.stack([step[key] for step in steps], 1)  # (B, step, H)
                part = part / part.abs().sum(-1, keepdim=True) if normalise else part
                part = part if keep_sign else part.abs()
                wanted = (part.nan_to_num() * counted).sum((0, 1)) / counted.sum()
                scale = max(1.0, wanted.abs().max().item()) if normalise else wanted.abs().max().item()
                assert (found.values[key] - wanted).abs().max() <= 1e-5 * scale, (key, normalise, keep_sign)
                assert (rows.mean(0) - wanted).abs().max() <= 1e-5 * scale
    assert found.name == f"signed relevance, {rule_set}, share of its layer"
    assert found.notes["interval"] == "none: 3 examples came, 5 are needed"


@pytest.mark.parametrize("rule_set", ["attnlrp", "voita"])
@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "llama", "marian", "t5", "encoder_decoder", "bloom"])
def test_padding_and_batches_change_nothing(name, rule_set):
    model, batch = labelled(name)
    together, apart = (relevance(model, form, rules=rule_set, signed=True) for form in (batch, singles(batch)))
    close(together.rows, apart.rows, 2e-4)
    for fraction in ("conserved", "absorbed"):
        assert together.notes[fraction] == pytest.approx(apart.notes[fraction], abs=2e-4)


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

    def __init__(self, width=12, heads=3, checkpoints=None):
        super().__init__()
        self.words, self.places = nn.Embedding(20, width), nn.Parameter(torch.randn(6, width))
        self.attention, self.gate, self.up = OwnAttention(width, heads), nn.Linear(width, 8), nn.Linear(width, 8)
        self.down, self.answer, self.checkpoints = nn.Linear(8, width), nn.Linear(width, 4), checkpoints

    def attend(self, x):
        return x + self.attention(x / x.std(-1, keepdim=True))

    def forward(self, input_ids):
        x = self.words(input_ids) + self.places[: input_ids.shape[1]]
        again = self.checkpoints
        x = self.attend(x) if again is None else checkpoint(self.attend, x, use_reentrant=again)
        x = x + self.down(F.silu(self.gate(x)) * self.up(x))
        return self.answer(x.mean(1))


def test_a_readers_own_model():
    torch.manual_seed(3)
    model, batch = OwnModel().double().eval(), {"input_ids": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])}
    for which in CONSTANT:
        _, conserved, absorbed = signed(model, batch, None, which)
        assert conserved + absorbed == pytest.approx(1, abs=1e-4), which
    assert signed(model, batch, None, "attnlrp")[1] != pytest.approx(1, abs=0.01)
    # by hand, attention constant: from the answer down to the three heads
    z = []
    handle = model.attention.out_proj.register_forward_pre_hook(lambda _m, args: z.append(args[0]))
    x = model.words(batch["input_ids"]) + model.places[:4]
    middle = model.attend(x)
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
    assert torch.allclose(signed(model, batch, None)[0]["encoder", 0], wanted)


# --- the model, its precision, its heads ------------------------------------------------------------------------------


def test_heads_that_are_off_get_nothing_and_cut_layers_are_left_out():
    model, batch = fresh("gpt2")
    with ht.ablate(model, {("decoder", 1): [2]}):
        parts = signed(model, batch)[0]
    assert (parts["decoder", 1][:, 2] == 0).all()
    assert (parts["decoder", 1][:, [0, 1, 3]] != 0).all()
    ht.prune(model, {("decoder", 1): [0, 1, 2, 3], ("decoder", 2): [1]})
    scores = relevance(model, batch, picked)
    assert {key: len(value) for key, value in scores.values.items()} == {("decoder", 0): 4, ("decoder", 2): 3}


def test_own_rules():
    model, batch = double("bert", biases=False)
    weak, strong = (
        signed(model, batch, which=Rules(linear="epsilon", epsilon=epsilon, attention="constant"))[1]
        for epsilon in (1e-9, 0.5)
    )
    assert weak == pytest.approx(1, abs=1e-4)
    assert abs(strong) < 0.9  # epsilon takes its part at every layer
    assert relevance(model, batch, picked, Rules()).name == "relevance, own rules"


# --- what is refused --------------------------------------------------------------------------------------------------


def test_models_that_are_refused():
    model, batch = labelled("bert")
    without = {key: value for key, value in batch.items() if key != "labels"}
    with pytest.raises(ValueError, match="BertModel: got no logits, so"):
        relevance(model.bert, without)
    with pytest.raises(RuntimeError, match="was compiled before"):
        relevance(torch.compile(copy.deepcopy(model)), batch)
    clip, images = zoo_model("clip")
    with pytest.raises(ValueError, match="does not depend on vision_model encoder 0"):
        relevance(clip, images, lambda outputs, _batch: outputs.text_embeds.sum(-1))
    hurt, batch = fresh("bert")
    dense = hurt.bert.encoder.layer[1].output.dense
    dense.register_forward_hook(lambda _m, _i, out: out.register_hook(lambda g: g * float("nan")) and None)
    with pytest.raises(ValueError, match=r"relevance at encoder \d is NaN"):
        relevance(hurt, batch, picked)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_ones_own_are_refused(reentrant):
    model, batch = OwnModel(checkpoints=reentrant), {"input_ids": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])}
    with pytest.raises(ValueError, match=r"the model uses torch\.utils\.checkpoint"):
        relevance(model, batch)


def test_a_layer_through_which_nothing_goes_has_no_shares():
    model, batch = fresh("gpt2")
    with torch.no_grad():
        ht.sites(model)["decoder", 1].out.weight.zero_()
    with pytest.raises(ValueError, match=r"went through decoder 1, .*leave the layer out with sites"):
        relevance(model, batch, picked, normalise="layer")


def test_the_step_after_padding_counts_in_no_form_of_the_mask():
    model, _ = fresh("llama")
    ids = torch.tensor([[1, 4, 2, 3], [5, 4, 2, 3]])
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    labels = torch.tensor([[-100, 4, 2, 3], [5, 4, 2, 3]])
    pairs = mask[:, None, None].bool() & torch.ones(4, 4).tril().bool()
    plain, in_pairs = (
        _counted(model, {"input_ids": ids, "attention_mask": one, "labels": labels}, torch.zeros(2, 4))
        for one in (mask, pairs)
    )
    assert plain.int().tolist() == [[0, 1, 1, 0], [1, 1, 1, 0]]
    assert torch.equal(in_pairs, plain)
