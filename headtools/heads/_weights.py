"""The weight that a projection applies, however it is computed from the layer's parameters.

A PEFT adapter adds a low-rank matrix to the layer's; ``weight_norm``, ``spectral_norm`` and ``torch.nn.utils.prune``
compute the weight from other parameters; a quantised layer keeps integers and scales. Code that reads weights calls
:func:`weight_of` and :func:`bias_of`; code that changes them calls :func:`check_plain_weights` first.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from headtools.heads._precision import without_autocast

# 8-bit floats are left out: their weights come with scales
_FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MERGE = "model = model.merge_and_unload()"
# PEFT layers, by the end of their module's name, that compute the same after merging; each has a test
_MERGEABLE = ("lora.layer", "ia3.layer", "loha.layer", "lokr.layer", "adalora.layer", "oft.layer", "vera.layer")


@without_autocast
def weight_of(module: nn.Module) -> Tensor:
    """Return the weight that a projection will apply in its next forward pass, in the layout of the layer itself.

    Differentiable with respect to its parameters, except for adapters other than plain LoRA. Raises ``TypeError`` for a
    quantised layer and ``ValueError`` for an adapter or norm that does not have a single weight.

    >>> weight_of(nn.Linear(2, 3)).shape
    torch.Size([3, 2])
    """
    if _is_copied(module):
        return weight_of(_active_copy(module))
    if is_adapter(module):
        if not _is_plain_lora(module):
            return weight_of(_merged(module))
        weight = weight_of(module.base_layer)
        for adapter in _lora_in_use(module):
            # W + s B A (Hu et al. 2022, arXiv:2106.09685), B A in float32 or more, whatever the adapter's precision
            dtype = torch.promote_types(module.lora_B[adapter].weight.dtype, torch.float32)
            added = module.lora_B[adapter].weight.to(dtype) @ module.lora_A[adapter].weight.to(dtype)
            added = added * module.scaling[adapter]
            weight = weight + (added.T if is_transposed(module) else added).to(weight.device)
        return weight
    check_not_quantised(module, "read its weights")
    return _effective_tensor(module, "weight")


@without_autocast
def bias_of(module: nn.Module) -> Tensor | None:
    """Return the bias that a projection will add in its next forward pass, or None; see :func:`weight_of`."""
    if _is_copied(module):
        return bias_of(_active_copy(module))
    if is_adapter(module):
        if not _is_plain_lora(module):
            return bias_of(_merged(module))
        bias = bias_of(module.base_layer)
        for adapter in _lora_in_use(module):
            added = module.lora_B[adapter].bias
            if added is not None:
                added = added * module.scaling[adapter]
                bias = added if bias is None else bias + added.to(bias.device)
        return bias
    bias = _effective_tensor(module, "bias") if hasattr(module, "bias") else None
    return bias() if callable(bias) and not isinstance(bias, Tensor) else bias


def shape_of(module: nn.Module) -> tuple[int, int]:
    """Return the numbers of output and input features of a projection; no weight is computed or unpacked.

    >>> shape_of(nn.Linear(2, 3))
    (3, 2)
    """
    layer = unwrapped(module)
    weight = layer._parameters.get("weight")
    if weight is not None and weight.dim() == 2 and weight.dtype in _FLOAT_DTYPES:
        shape = tuple(weight.shape)
        return shape[::-1] if is_transposed(layer) else shape
    if is_transposed(layer):
        return layer.nf, layer.nx
    if isinstance(getattr(layer, "out_features", None), int):  # the weight is computed, packed or quantised
        return layer.out_features, layer.in_features
    return tuple(layer.weight.shape)


def is_transposed(module: nn.Module) -> bool:
    """Return whether a layer is GPT-2's Conv1D, whose weight is (in, out), and not (out, in) as in nn.Linear."""
    return any(kind.__name__ == "Conv1D" for kind in type(unwrapped(module)).__mro__)


def is_projection(module: nn.Module) -> bool:
    """Return whether a layer multiplies by one matrix, be it wrapped, quantised or plain."""
    layer = unwrapped(module)
    if isinstance(layer, nn.Linear) or is_transposed(layer):
        return True
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor):
        return weight.dim() == 2
    packed = callable(weight) or isinstance(getattr(layer, "qweight", None), Tensor)  # torch.ao; GPTQ, AWQ
    return packed and isinstance(getattr(layer, "in_features", None), int)


def is_adapter(module: object) -> bool:
    """Return whether a layer is a PEFT adapter around another layer."""
    tuners = sys.modules.get("peft.tuners.tuners_utils")  # a model with adapters implies that peft is imported
    return tuners is not None and isinstance(module, tuners.BaseTunerLayer) and hasattr(module, "base_layer")


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the layer inside PEFT's wrappers, or the module itself where there are none."""
    while is_adapter(module) or _is_copied(module):
        module = _active_copy(module) if _is_copied(module) else module.base_layer
    return module


def unused_copies(model: nn.Module) -> set[nn.Module]:
    """Return the modules of a model that never run: originals and inactive copies of PEFT's ``modules_to_save``."""
    unused = set()
    for module in model.modules():
        if _is_copied(module):
            active = _active_copy(module)
            for copy_ in (module.original_module, *module.modules_to_save.values()):
                unused |= set(copy_.modules()) if copy_ is not active else set()
    return unused


def check_not_quantised(module: nn.Module, what: str) -> None:
    """Raise ``TypeError`` for a layer without a floating-point weight."""
    layer = unwrapped(module)
    if kind := _quantised_as(layer):
        raise TypeError(
            f"{type(layer).__name__} keeps its weights as {kind}; load the model in floating point to {what}. Gates, "
            "ablation and records of z work on quantised layers too"
        )


def check_has_backward(model: nn.Module, what: str) -> None:
    """Raise ``TypeError`` for a model with quantised layers of torch.ao, through which no gradient flows."""
    for name, module in model.named_modules():
        if type(module).__module__.startswith("torch.ao.") and callable(getattr(module, "weight", None)):
            raise TypeError(
                f"{what} needs gradients, and none flows through {name} ({type(module).__name__}, "
                f"{type(module).__module__}); load the model in floating point. ablation(model, batches) needs forward "
                "passes only"
            )


def check_plain_weights(model: nn.Module, modules: Iterable[nn.Module], what: str) -> None:
    """Raise ``ValueError`` where a module does not apply its own weight, so that changing the weight is not enough.

    >>> layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    >>> check_plain_weights(nn.Sequential(layer), [layer], "prune")
    Traceback (most recent call last):
    ...
    ValueError: prune changes weights, and the weight of 0 is computed by torch.nn.utils.parametrize; ...
    """
    names = {id(module): name for name, module in model.named_modules(remove_duplicate=False)}
    for module in dict.fromkeys(modules):
        obstacle = _obstacle(model, module, names.get(id(module), type(module).__name__))
        if obstacle:
            raise ValueError(f"{what} changes weights, and {obstacle}")


def check_plain_model(model: nn.Module, what: str) -> None:
    """Raise ``ValueError`` for a model that computes with more than its own weights.

    Weight norm of convolutions is allowed: it belongs to the architecture (Wav2Vec 2), and a new model has it too.
    """
    # adapters, trained copies of layers, or prompts before the input
    if hasattr(model, "peft_config") or any(is_adapter(module) or _is_copied(module) for module in model.modules()):
        raise ValueError(
            f"{what} writes the model's own weights, and {type(model).__name__} has adapters of PEFT, which would be "
            f"lost; {_merge_advice(model)}. To keep the adapters alone, use model.save_pretrained(folder)"
        )
    for name, module in model.named_modules():
        masked = any(isinstance(hook, BasePruningMethod) for hook in module._forward_pre_hooks.values())
        obstacle = _obstacle(model, module, name) if masked or is_projection(module) else None
        if obstacle:
            raise ValueError(f"{what} writes plain weights, and {obstacle}")


def _obstacle(model: nn.Module, module: nn.Module, name: str) -> str | None:
    """Return why a module does not apply its parameters unchanged, and how to remove the cause; else None."""
    target = f'model.get_submodule("{name}")'
    if is_adapter(module) or _is_copied(module):
        kind = type(module).__module__.split(".")[-2] if is_adapter(module) else "modules_to_save"
        return f"{name} has an adapter of PEFT ({kind}) around it, which would not change; {_merge_advice(model)}"
    if parametrize.is_parametrized(module):
        lines = "; ".join(
            f'torch.nn.utils.parametrize.remove_parametrizations({target}, "{part}")'
            for part in module.parametrizations
        )
        parts = " and ".join(module.parametrizations)
        return f"the {parts} of {name} is computed by torch.nn.utils.parametrize; make it plain: {lines}"
    kind = _quantised_as(module)
    if kind and is_projection(module):
        return f"{name} keeps its weights as {kind}; load the model in floating point"
    for hook in module._forward_pre_hooks.values():
        for kind, attribute, line in (
            (BasePruningMethod, "_tensor_name", "prune.remove({}, {!r})"),
            (WeightNorm, "name", "remove_weight_norm({}, {!r})"),
            (SpectralNorm, "name", "remove_spectral_norm({}, {!r})"),
        ):
            if isinstance(hook, kind):
                weight = getattr(hook, attribute)  # its name
                return (
                    f"the {weight} of {name} is computed before each forward pass ({kind.__module__}); make it plain: "
                    f"torch.nn.utils.{line.format(target, weight)}"
                )
    return None


def _merge_advice(model: nn.Module) -> str:
    """Return how to merge adapters, for error messages."""
    if hasattr(model, "merge_and_unload"):
        return f"merge them first: {_MERGE}"
    return f"merge them first: model = peft.PeftModel.from_pretrained(plain_model, adapter_folder); {_MERGE}"


def _effective_tensor(module: nn.Module, name: str) -> Tensor | None:
    """Return a weight or bias as the next forward pass uses it; the attribute may be stale until a hook updates it."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name:
            return hook.apply_mask(module)
        if isinstance(hook, WeightNorm) and hook.name == name:
            return hook.compute_weight(module)
        if isinstance(hook, SpectralNorm) and hook.name == name:
            _check_not_training(module)
            return hook.compute_weight(module, do_power_iteration=False)
    computed = getattr(module, "parametrizations", {})
    if name in computed and any(isinstance(part, _SpectralNorm) for part in computed[name]):
        _check_not_training(module)
    return getattr(module, name)


def _check_not_training(module: nn.Module) -> None:
    if module.training:
        raise ValueError(
            "in training mode spectral_norm divides by another estimate in every forward pass, so there is no single "
            "weight: call model.eval()"
        )


def _quantised_as(layer: nn.Module) -> str | None:
    """Return how a layer stores its weights where that is not a floating-point tensor, else None."""
    if parametrize.is_parametrized(layer, "weight"):
        return None
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor):
        return None if weight.dtype in _FLOAT_DTYPES else str(weight.dtype)
    if callable(weight) or isinstance(getattr(layer, "qweight", None), Tensor):
        return "packed integers"
    return None


# --- PEFT -------------------------------------------------------------------------------------------------------------


def _is_copied(module: object) -> bool:
    """Return whether a module is PEFT's ``modules_to_save``: a module and trained copies of it, of which one runs."""
    other = sys.modules.get("peft.utils.other")
    return other is not None and isinstance(module, other.ModulesToSaveWrapper)


def _active_copy(module: nn.Module) -> nn.Module:
    if module.disable_adapters or not module.active_adapters:
        return module.original_module
    return module.modules_to_save[module.active_adapters[0]]


def _is_plain_lora(module: nn.Module) -> bool:
    """Return whether an adapter is LoRA that adds s B A to a linear layer; DoRA and other variants do more."""
    if type(module).__name__ != "Linear" or not type(module).__module__.endswith("peft.tuners.lora.layer"):
        return False
    variants = getattr(module, "lora_variant", {})  # from PEFT 0.16 on
    return not any(variants.values()) and not any(module.use_dora.values())


def _is_idle(module: nn.Module) -> bool:
    """Return whether an adapter adds nothing to its base layer: it is disabled, or the layer contains it already."""
    if module.merged and module.disable_adapters:
        raise ValueError(f"an adapter is merged and disabled, and the next forward pass would remove it: {_MERGE}")
    return module.merged or module.disable_adapters


def _lora_in_use(module: nn.Module) -> list[str]:
    """Return the names of the adapters that a LoRA layer adds to its base layer in its next forward pass."""
    if _is_idle(module):
        return []
    active = [adapter for adapter in module.active_adapters if adapter in module.lora_A]
    _check_no_dropout([module.lora_dropout[adapter] for adapter in active])
    return active


def _merged(module: nn.Module) -> nn.Module:
    """Return a copy of an adapter's base layer with the adapter merged into it."""
    path = type(module).__module__
    variants = {type(variant).__name__ for variant in getattr(module, "lora_variant", {}).values()}
    if not path.endswith(_MERGEABLE) or not variants <= {"DoraLinearVariant"}:
        kind = " ".join([path, type(module).__name__, *sorted(variants)])
        raise ValueError(f"headtools cannot read weights under an adapter of this kind ({kind}); merge it: {_MERGE}")
    if _is_idle(module):
        return module.base_layer
    check_not_quantised(module, "merge the adapter")
    dropouts = [getattr(module, name, {}) for name in ("rank_dropout", "module_dropout")]  # of LoHa and LoKr
    _check_no_dropout(module.modules(), module.training and any(any(rates.values()) for rates in dropouts))
    merged = copy.deepcopy(module)  # merge() changes the base weight in place
    try:
        merged.merge()
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"the adapter around {type(unwrapped(module)).__name__} cannot be merged: {error}") from error
    return merged.base_layer


def _check_no_dropout(modules: Iterable[nn.Module], other_dropout: bool = False) -> None:
    if other_dropout or any("Dropout" in type(m).__name__ and getattr(m, "p", 0) and m.training for m in modules):
        raise ValueError(
            "in training mode the adapter applies dropout to its input, so there is no single weight: call model.eval()"
        )
