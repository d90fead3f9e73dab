"""Passes end where everything wanted was seen, and only where nothing is lost by it."""

import pytest
import torch
from transformers import AlbertConfig, AlbertModel, BertConfig, BertForMaskedLM

from headtools.heads.enough import Passes
from headtools.heads.record import record
from headtools.heads.sites import sites

SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 8, "vocab_size": 9}


def ends(model, times=3):
    """For each pass whether it came to its end, and how often sites were seen in it."""
    passes, out = Passes(model, sites(model)), []
    ids, seen, done = torch.tensor([[1, 2, 3]]), [], []

    def fold(site, captured, _before):
        seen.append(captured.maps)
        passes.saw(site)

    with record(model, "maps", reduce=fold):
        for _ in range(times):
            seen.clear()
            done.clear()
            passes.run(lambda: done.append(model(ids)))
            out.append((bool(done), len(seen), sum((maps**2).sum().item() for maps in seen)))
    return out


def test_all_but_the_first_end_at_the_last_map_and_see_the_same():
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**SMALL)).eval()
    before = model(torch.tensor([[1, 2, 3]])).logits
    first, *others = ends(model)
    assert first[:2] == (True, 3)
    assert others == [(False, *first[1:])] * 2
    assert torch.equal(model(torch.tensor([[1, 2, 3]])).logits, before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_layer_that_runs_again_is_seen_again():
    torch.manual_seed(0)
    model = AlbertModel(AlbertConfig(**SMALL, embedding_size=8)).eval()
    assert [(whole, count) for whole, count, _ in ends(model)] == [(True, 3)] * 3


@pytest.mark.parametrize("how", ["a hook", "another forward", "a hook on everything"])
def test_what_waits_for_the_end_of_a_pass_gets_it(how):
    model, called = BertForMaskedLM(BertConfig(**SMALL)).eval(), []
    handle = None
    if how == "a hook":
        handle = model.cls.register_forward_hook(lambda *_: called.append(1))
    elif how == "another forward":
        own = model.bert.forward

        def forward(*args, **kwargs):
            out = own(*args, **kwargs)
            called.append(1)
            return out

        model.bert.forward = forward
    else:
        handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: called.append(1))
    try:
        assert all(whole for whole, _, _ in ends(model))
    finally:
        if handle is not None:
            handle.remove()
    assert len(called) >= 3


def test_a_pass_that_fails_fails():
    model = BertForMaskedLM(BertConfig(**SMALL)).eval()
    passes = Passes(model, sites(model))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mine"):
            passes.run(lambda: (_ for _ in ()).throw(RuntimeError("mine")))


def test_what_did_not_run_keeps_passes_whole():
    model = BertForMaskedLM(BertConfig(**SMALL)).eval()
    passes = Passes(model, sites(model))
    passes.run(lambda: passes.saw(sites(model)["encoder", 0]))
    passes.run(lambda: [passes.saw(site) for site in sites(model)])  # nothing is raised
