"""headtools: record, ablate, prune and understand the attention heads of nearly any transformers model.

A map of the package, in the order of the course::

    heads/       find, record, ablate, prune        sites, gates, ablate, patch, window, record, contributions, prune,
                                                    pruned, replay, group_scores, model_size, cache_size,
                                                    HeadScores, bootstrap, progress
    roles/       what a head attends to and carries corpus, Sentence, Role, natural_text, text_batches, align,
                                                    to_words, taxonomy, probe, untrained, induction_scores,
                                                    attention_sinks
    geometry/    what weights can read and write    from headtools import geometry: ov, qk, effective_rank, overlap,
                                                    composition
    importance/  how much a head matters            gradient, confidence, statistics, label, ablation,
                                                    interaction, relevance, rules, Rules,
                                                    direct_logit_attribution
    sparse/      how many heads can be pruned       HardConcrete, fit_gates, recover, curve, curves, random_order,
                                                    greedy_order, cut_cost, repeated_tokens, merge, refit, edit
    organism/    the shipped model                  load, save, translate, model_card, paired_bootstrap (of BLEU);
                                                    organism.shipped: its tables; shipped_real: of real models
    course/      what the notebooks show and ask    figure, measured, predict, ledger, plot (a module of drawings),
                                                    explore, attention_view, token_labels, check, live
    _report/     one page on any model              report

Each name is imported when it is first used, so that ``import headtools`` is fast.

>>> import headtools as ht
>>> "ablate" in dir(ht)
True
"""

from importlib import import_module
from typing import Any

__version__ = "2.0.0"

_WHERE = {
    "Site": "heads.sites",
    "Sites": "heads.sites",
    "sites": "heads.sites",
    "verify": "heads.verify",
    "gates": "heads.gates",
    "ablate": "heads.ablate",
    "record": "heads.record",
    "contributions": "heads.record",
    "prune": "heads.prune",
    "pruned": "heads.prune",
    "replay": "heads.prune",
    "group_scores": "heads.groups",
    "model_size": "heads.groups",
    "cache_size": "heads.groups",
    "patch": "heads.patch",
    "window": "heads.window",
    "HeadScores": "heads.scores",
    "bootstrap": "heads.intervals",
    "progress": "_engine.loop",
    "Sentence": "roles.sentence",
    "Role": "roles.role",
    "corpus": "roles.corpus",
    "natural_text": "roles.plain_text",
    "text_batches": "roles.plain_text",
    "induction_scores": "roles.induction",
    "attention_sinks": "roles.attention_sinks",
    "align": "roles.word_alignment",
    "to_words": "roles.word_alignment",
    "taxonomy": "roles.taxonomy",
    "probe": "roles.probing",
    "untrained": "roles.controls",
    "gradient": "importance.gradient",
    "confidence": "importance.confidence",
    "statistics": "importance.statistics",
    "label": "importance.labels",
    "ablation": "importance.ablation",
    "interaction": "importance.interaction",
    "paired_bootstrap": "organism.paired_bootstrap",
    "relevance": "importance.relevance",
    "direct_logit_attribution": "importance.logit_attribution",
    "rules": "importance._lrp.operations",
    "Rules": "importance._lrp.rules",
    "HardConcrete": "sparse.hard_concrete",
    "fit_gates": "sparse.fit_gates",
    "recover": "sparse.fit_gates",
    "curve": "sparse.pruning_curve",
    "curves": "sparse.pruning_curve",
    "random_order": "sparse.pruning_curve",
    "cut_cost": "sparse.cut_cost",
    "repeated_tokens": "sparse.cut_cost",
    "greedy_order": "sparse.pruning_curve",
    "merge": "sparse.merge",
    "refit": "sparse.merge",
    "edit": "sparse.edit",
    "model_card": "organism.model_card",
    "load": "organism.load",
    "save": "organism.save",
    "shipped_real": "organism.real_models",
    "translate": "organism.load",
    "gloss": "organism.gloss",
    "figure": "course.figure",
    "ledger": "course.claims",
    "measured": "course.measured",
    "predict": "course.predict",
    "explore": "course.explore",
    "attention_view": "course.attention_view",
    "token_labels": "course.token_labels",
    "check": "course.check",
    "live": "course.real_model",
    "my_heads": "course.library",
    "report": "_report.report",
}

# The corpora of guests, which roles/ finds here: the module whose ``corpus(split, limit)`` gives the sentences.
CORPORA = {"organism": "organism.language", "organism2": "organism.second.language"}
# What a notebook shows of scores, sites, roles and a verification is drawn by a guest.
DRAWINGS = "course.pictures"

__all__ = sorted(_WHERE)


def guest(module: str, name: str) -> Any:
    """Return what a guest's module has under a name; None without that guest."""
    try:
        return getattr(import_module(f"headtools.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headtools"):
            return None
        raise  # the guest is there, and lacks a library


def draw(name: str, thing: Any) -> str | None:
    """Return what the guest's function ``name`` draws; None without that guest: a notebook then shows the text."""
    drawing = guest(DRAWINGS, name)
    return drawing and drawing(thing)


def __getattr__(name: str) -> Any:
    if name == "plot":
        return import_module("headtools.course.plot")
    if name in _WHERE:
        return getattr(import_module(f"headtools.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'headtools' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "plot"]
