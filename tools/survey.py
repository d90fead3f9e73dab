"""Every model type transformers can build here, and whether `sites` finds its heads.

    python tools/survey.py        prints one JSON line per model type

Models are built from their default configuration, cut to two layers, on the meta device: no weight is made.

A model type is *resolved* when `sites` returns and, for every site,
  * there is at least one head, and heads x value_dim is what the output projection reads;
  * the kind is encoder, decoder or cross;
  * the projections of q, k and v are found, with heads x head_dim rows of q and kv_heads of k and v
    (asked only where the module calls the attention interface: elsewhere only gates and z are promised);
and when no module that calls the attention interface is left without a site.
"""

import contextlib
import gc
import importlib
import inspect
import itertools
import json
import os
import warnings

from headtools.heads._layout import is_transposed

LAYER_NAMES = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_encoder_layers",
    "num_decoder_layers",
    "depth",
)


def shrink(config):
    """Two layers in a configuration and all inside it, where it lets itself be changed."""
    for name in LAYER_NAMES:
        value = getattr(config, name, None)
        if type(value) is int and value > 2:
            with contextlib.suppress(Exception):
                setattr(config, name, 2)
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            shrink(getattr(config, name))


def model_classes(model_type, config_class):
    """The classes that the auto classes know for a model type, the bare model first."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    names = [name for name in dir(auto) if name.startswith("MODEL_") and name.endswith("MAPPING_NAMES")]
    names.sort(key=lambda name: name != "MODEL_MAPPING_NAMES")
    package = importlib.import_module(config_class.__module__.rpartition(".")[0])
    found = []
    for name in names:
        entry = getattr(auto, name).get(model_type, ())
        for class_name in (entry,) if isinstance(entry, str) else entry:
            model_class = getattr(package, class_name, None) or getattr(transformers, class_name, None)
            if model_class is not None and model_class not in found:
                found.append(model_class)
    return found


def build(model_type):
    """(model, "") on the meta device, or (None, why not)."""
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[model_type]
    classes = model_classes(model_type, config_class)
    if not classes:
        return None, "part of another model"
    small, problem = None, None
    for change in (shrink, lambda config: None):
        for model_class in classes[:2]:
            try:
                config = config_class()
                change(config)
                with torch.device("meta"):
                    model = model_class(config)
            except Exception as error:
                problem = problem or error
                continue
            if any(map(calls_interface, model.modules())):
                return model, ""
            small = small or model  # the two layers of a hybrid may hold no attention: try all its layers
            break
    return small, "" if small else first_line(problem)


def first_line(error):
    """An exception in one line."""
    return f"{type(error).__name__}: {error}".split("\n")[0]


def attends(model):
    """Whether any module is called attention (some that mix channels or filter are, too)."""
    return any("attention" in type(module).__name__.lower() for module in model.modules())


def calls_interface(module):
    """Whether a module's forward goes through transformers' attention interface."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def faults(model):
    """What keeps a model's sites from being resolved: a list of words, empty when all is well."""
    import headtools as ht

    try:
        sites = list(ht.sites(model))
    except Exception as error:
        return [first_line(error)]
    found = []
    if len({site.key for site in sites}) < len(sites):
        found.append("two sites have the same key")
    for site in sites:
        name = f"{site.name} ({type(site.module).__name__})"
        if site.heads < 1:
            found.append(f"{name} has {site.heads} heads")
        if site.kind not in ("encoder", "decoder", "cross"):
            found.append(f"{name} is of kind {site.kind!r}")
        if site.heads * site.value_dim != reads(site.out):
            found.append(f"{name}: {site.heads} heads x {site.value_dim} is not the {reads(site.out)} that out reads")
        if calls_interface(site.module):
            found += projection_faults(site, name)
    with_site = {id(site.module) for site in sites}
    for name, module in model.named_modules():
        if calls_interface(module) and id(module) not in with_site:
            found.append(f"{name} ({type(module).__name__}) has no site")
    return found


def reads(out):
    """The number of features an output projection reads, whatever class it is."""
    return out.weight.shape[0 if type(out).__name__ == "Conv1D" else 1]


def projection_faults(site, name):
    """What is wrong with the rows of q, k and v; a latent (DeepSeek) site promises none."""
    if site.latent:
        return []
    parts = {"q": site.q, "k": site.k, "v": site.v}
    missing = [part for part, projection in parts.items() if projection is None]
    if missing:
        return [f"{name}: no {', '.join(missing)}"]
    expected = {
        "q": (site.heads, site.head_dim),
        "k": (site.kv_heads, site.head_dim),
        "v": (site.kv_heads, site.value_dim),
    }
    found, taken = [], {}
    for part, projection in parts.items():
        shape, rows = tuple(projection.rows.shape), set(projection.rows.flatten().tolist())
        if shape != expected[part]:
            found.append(f"{name}: rows of {part} are {shape}, not {expected[part]}")
        width = projection.module.weight.shape[1 if is_transposed(projection.module) else 0]
        if len(rows) != projection.rows.numel() or max(rows) >= width:
            found.append(f"{name}: rows of {part} repeat or lie outside the projection")
        taken.setdefault(id(projection.module), []).append((part, rows))
    for sharing in taken.values():
        for (one, rows), (other, more) in itertools.pairwise(sharing):
            if rows & more and {one, other} != {"k", "v"}:  # Gemma 4 reads values with its keys' weights
                found.append(f"{name}: {one} and {other} share rows")
    return found


def survey():
    """One record per model type: its name, whether it was built, uses the interface, resolves, and why not."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    for count, model_type in enumerate(sorted(CONFIG_MAPPING_NAMES)):
        try:
            model, why = build(model_type)
        except Exception as error:
            model, why = None, first_line(error)
        record = {"type": model_type, "built": model is not None, "why": [why] if why else []}
        if model is not None:
            record["interface"] = any(map(calls_interface, model.modules()))
            record["why"] = faults(model)
            record["attends"] = record["interface"] or attends(model)
            record["resolved"] = not record["why"]
        yield record
        del model
        if count % 100 == 99:
            gc.collect()


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    for record in survey():
        print(json.dumps(record))
