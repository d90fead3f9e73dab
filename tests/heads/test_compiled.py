"""torch.compile inside a context, whatever was compiled before it: what a context changes is never left out."""

import pytest
import torch

import headtools as ht

from .zoo import error, fresh, logits

pytestmark = pytest.mark.skipif(
    not hasattr(torch.compiler, "is_exporting"), reason="torch 2.6 does not compile the models of transformers 5"
)


@pytest.fixture(autouse=True)
def forgetting():
    """Nothing that one test compiled is there in the next."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def two_layers():
    """BERT with the first and the last of its layers: what compiling costs grows with their number."""
    model, batch = fresh("bert")
    del model.bert.encoder.layer[1:-1]
    return model, batch


def compiled(model):
    return torch.compile(model, backend="eager")


def run(model, batch):
    with torch.no_grad():
        return logits(model(**batch))


def some(model):
    return list(ht.sites(model))[-1]


@pytest.mark.full
def test_code_compiled_before_is_not_used_inside():
    model, batch = two_layers()
    early, plain = compiled(model), run(model, batch)
    assert error(run(early, batch), plain) == 0
    with ht.ablate(model, {some(model).key: [0, 1]}):
        expected = run(model, batch)
        assert error(expected, plain) > 0.1
        assert error(run(compiled(model), batch), expected) == 0
        assert error(run(early, batch), expected) == 0
    assert error(run(early, batch), plain) == 0


@pytest.mark.full  # compiles layer by layer
@pytest.mark.parametrize("name", ["resample", "patch"])
def test_a_layer_with_a_hook_is_not_taken_for_one_without(name):
    """Drawing and looking at positions cannot be compiled, so layers are compiled one by one, like ones together."""
    model, batch = two_layers()
    heads = {some(model).key: [0, 1]}
    with torch.no_grad(), ht.record(model, "z") as source:
        model(**batch | {"input_ids": batch["input_ids"].flip(0)})
    context = {
        "resample": lambda: ht.ablate(model, heads, "resample", batch),
        "patch": lambda: ht.patch(model, heads, source, positions=[0, 1]),
    }[name]
    with context():
        expected = run(model, batch)
    with context():
        assert error(run(compiled(model), batch), expected) < 1e-5
    assert error(expected, run(model, batch)) > 0.1


def test_the_setting_comes_back_after_contexts_that_end_in_any_order():
    before = torch._dynamo.config.skip_nnmodule_hook_guards
    model, _ = fresh("bert")
    one, two = (ht.ablate(model, {("encoder", layer): [0]}) for layer in (0, 1))
    one.__enter__()
    two.__enter__()
    assert torch._dynamo.config.skip_nnmodule_hook_guards is False
    one.__exit__(None, None, None)
    assert torch._dynamo.config.skip_nnmodule_hook_guards is False
    two.__exit__(None, None, None)
    assert torch._dynamo.config.skip_nnmodule_hook_guards is before
