"""The slow and plain way to do what headtools does, to compare with, and the state a context must give back."""

import contextlib

import torch


def is_conv1d(out):
    """Whether a projection keeps its weight as (in, out), as GPT-2 does."""
    return type(out).__name__ == "Conv1D"


def output_matrix(site):
    """W_O of a site as (heads, value_dim, d_model), read from the projection itself."""
    weight = site.out.weight if is_conv1d(site.out) else site.out.weight.T
    return weight.reshape(site.heads, site.value_dim, -1)


def zero_columns(site, heads):
    """Clears what the output projection does with some heads, in place."""
    with torch.no_grad():
        for head in heads:
            block = slice(head * site.value_dim, (head + 1) * site.value_dim)
            if is_conv1d(site.out):
                site.out.weight[block] = 0
            else:
                site.out.weight[:, block] = 0


def batch_first(site, tensor):
    """(B, T, ...) of what an output projection reads or gives: FSMT alone keeps its tokens before its examples."""
    return tensor.transpose(0, 1) if "fsmt" in type(site.module).__module__ else tensor


@contextlib.contextmanager
def naive_gates(values):
    """Multiplies what output projections read: values is [(site, function of z (B, T, H, D) to z)]."""

    def hook(site, change):
        def change_input(module, arguments):
            flat = batch_first(site, arguments[0])
            z = flat.reshape(*flat.shape[:-1], site.heads, site.value_dim)
            return (batch_first(site, change(z).reshape(flat.shape)), *arguments[1:])

        return site.out.register_forward_pre_hook(change_input)

    handles = [hook(site, change) for site, change in values]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def watch(sites):
    """Keeps what each output projection read and gave, (B, T, d): {site.key: [(input, output), ...]}, a pair a call."""
    seen = {site.key: [] for site in sites}

    def hook(site):
        def keep(module, arguments, output):
            read, given = (batch_first(site, part.detach().clone()) for part in (arguments[0], output))
            seen[site.key].append((read, given))

        return site.out.register_forward_hook(keep)

    handles = [hook(site) for site in sites]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def bias_of(out):
    """The bias of a projection, or zero."""
    return 0 if getattr(out, "bias", None) is None else out.bias


def state(model):
    """Everything a context must give back: weights, hooks, forwards, attention names, modes, attributes."""
    modules = dict(model.named_modules())
    return {
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "parameters": {name: id(tensor) for name, tensor in model.named_parameters()},
        "needs_grad": {name: tensor.requires_grad for name, tensor in model.named_parameters()},
        "hooks": {
            name: (len(module._forward_pre_hooks), len(module._forward_hooks), len(module._backward_hooks))
            for name, module in modules.items()
        },
        "attributes": {name: sorted(vars(module)) for name, module in modules.items()},
        "classes": {name: type(module) for name, module in modules.items()},
        "training": {name: module.training for name, module in modules.items()},
        "attention": {
            name: (id(module.config), module.config._attn_implementation)
            for name, module in modules.items()
            if hasattr(getattr(module, "config", None), "_attn_implementation")
        },
    }


def assert_same_state(before, after):
    """Every part of two states is equal, weights bit for bit."""
    for part in before:
        if part == "weights":
            assert before[part].keys() == after[part].keys()
            for name, tensor in before[part].items():
                assert torch.equal(tensor, after[part][name]), f"{name} changed"
        else:
            changed = {
                name: (value, after[part].get(name))
                for name, value in before[part].items()
                if value != after[part].get(name)
            }
            assert not changed, f"{part} changed: {changed}"
            assert before[part].keys() == after[part].keys(), f"{part} has new entries"


@contextlib.contextmanager
def untouched(model):
    """Asserts that a block, whatever it raises, leaves the model as it was."""
    before = state(model)
    try:
        yield
    finally:
        assert_same_state(before, state(model))


def checkpoint(model):
    """Let every layer run again in the backward pass, by the name that this version of transformers has for it."""
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()


def some_heads(sites, seed=0, share=0.5):
    """A random set of heads, at least one of every site and never all: {site.key: [heads]}."""
    generator = torch.Generator().manual_seed(seed)
    chosen = {}
    for site in sites:
        n = max(1, min(site.heads - 1, round(site.heads * share)))
        chosen[site.key] = sorted(torch.randperm(site.heads, generator=generator)[:n].tolist())
    return chosen


def open_gates(sites, closed=None, **kwargs):
    """Gates of 1 for every head, 0 for those of `closed`: {site.key: (H,)}."""
    values = {site.key: torch.ones(site.heads, **kwargs) for site in sites}
    for key, heads in (closed or {}).items():
        values[key][heads] = 0
    return values
