"""One page on the heads of any model: measure everything, turn each result into a section, write the page."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headtools._engine.loop import progress as progress_bar
from headtools._engine.store import write_bytes
from headtools._report import headvis, measures, sections
from headtools._report.examples import examples
from headtools._report.heads import head_data
from headtools._report.page import Finding, Section, counted, page
from headtools._report.subject import Subject, prepare, sentences_or_batches
from headtools.heads._devices import device_of
from headtools.heads._tokens import model_inputs
from headtools.heads.sites import sites
from headtools.heads.verify import _VERIFIED
from headtools.heads.verify import verify as try_model
from headtools.importance._inputs import evaluating
from headtools.roles.sentence import Sentence

# In the order in which they are measured: some read what came before. None: there is nothing to measure.
MEASURED: Mapping[str, Callable | None] = {
    "selection": measures.selection,
    "roles": measures.roles,
    "importance": measures.importance,
    "chance": measures.chance,
    "cost": measures.cost,
    "attention": measures.attention,
    "geometry": measures.geometry,
    "words": measures.words,
    "pruning": measures.pruning,
    "sinks": measures.sinks,
    "induction": measures.induction,
    "check": measures.check,
    "cache": measures.cache,
    "examples": examples,
    "conventions": None,
}
# In the order of the page; below the dashes, what is shown with each head and has no section unless it is missing.
SHOWN = {
    "roles": "What the heads attend to",
    "sinks": "Weight on the first token",
    "induction": "Heads that look back",
    "importance": "How important the heads are",
    "cost": "What the heads cost when they are off",
    "check": "Whether the ranking holds elsewhere",
    "pruning": "How many heads the model needs",
    "geometry": "What the heads read and write",
    "cache": "What the key-value cache holds",
    "conventions": "How it was measured",
    # ---
    "attention": "How weight is spread",
    "words": "Words that heads read and write",
    "examples": "Maps on examples",
}
CAUSAL = ("sinks", "induction", "cache")  # of causal language models
NEED_SELECTION = ("importance", "cost", "pruning", "check")
FINDINGS = ("roles", "best role", "cost", "pruning", "check", "importance", "geometry", "spread")
CAUSAL_FINDINGS = ("roles", "sinks", "induction", "cost", "check", "pruning", "spread", "geometry")
BY_CHANCE_FINDINGS = ("chance", "roles", "best role", "sinks", "induction", "geometry")
N_FINDINGS = 5
_WITH_CORPUS = 'report(model, corpus("english"), tokenizer)'
_WITH_LOSS = "report(model, batches, loss=lambda outputs, batch: ...)"
REMEDIES = {
    "roles": _WITH_CORPUS,
    "importance": _WITH_LOSS,
    "cost": _WITH_LOSS,
    "pruning": _WITH_LOSS,
    "attention": _WITH_CORPUS,
    "words": _WITH_CORPUS,
    "examples": _WITH_CORPUS,
    "sinks": _WITH_CORPUS,
    "check": 'report(model, corpus, tokenizer, check="english")',
}
# Forward passes over the sentences on which heads are measured; a backward pass counts as two. A curve has 11 points.
_PASSES = {"selection": 3, "roles": 1, "importance": 3, "chance": 1, "attention": 2, "pruning": 11, "sinks": 1}
_PASSES |= {"induction": 2, "check": 4, "examples": 1}


@dataclass(frozen=True, repr=False)
class Report:
    """The result of ``report``: ``html`` is the page, ``tables`` its numbers as frames by section, ``missing`` the
    sections that could not be measured, with the reason, ``heads`` what the page knows of each head, as JSON has it.
    """

    html: str
    missing: Mapping[str, str]
    tables: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None
    heads: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, whole or not at all."""
        return write_bytes(path, self.html.encode("utf-8"))

    def export_headvis(self, folder: str | Path, model_name: str, dataset_name: str) -> Path:
        """Write the heads in the format of HeadVis (Anthropic 2026), which its frontend and Neuronpedia read.

        ``folder`` must not exist; ``model_name`` and ``dataset_name`` are the names under which the data appear there.
        Raises ``ValueError`` where heads have no maps or the model has several kinds of attention, which HeadVis has
        not, ``FileExistsError`` for a folder that exists.
        """
        return headvis.export(self.heads, folder, model_name, dataset_name)

    def __repr__(self) -> str:
        missing = f"; not measured: {', '.join(self.missing)}" if self.missing else ""
        path = "" if self.path is None else f" in {self.path}"
        return f"<Report of {len(self.html) / 1000:.0f} kB{path}: {', '.join(self.tables)}{missing}>"


def report(
    model: nn.Module,
    corpus: str | Path | Sequence[Sentence] | Sequence[Mapping],
    tokenizer: Any = None,
    *,
    loss: Callable | None = None,
    path: str | Path | None = None,
    limit: int = 100,
    orders: int = 3,
    seed: int = 0,
    title: str | None = None,
    check: str | Path | Sequence[Sentence] | Sequence[Mapping] | None = None,
    progress: bool = True,
    verify: bool = True,
) -> Report:
    """Measure the heads of a model and write one self-contained HTML page about them.

    The page opens with five findings, each with its interval or baseline, and a browser of the heads: a plot with free
    axes, a table that sorts, and a page for every head with an address of its own (``page.html#encoder-5.1``). Another
    report can be opened beside it. A section that cannot be measured for this model stands at the end with the reason;
    the others are measured. The model is left bit for bit as it was.

    ``corpus``: sentences, or what ``headtools.corpus`` takes ("organism", "english", a treebank's path), at most
    ``limit`` of them; they need ``tokenizer``. Or batches, dicts of the model's arguments with labels, for models of
    images or sound and for losses of your own; roles are then not measured. Sentences get labels by
    ``headtools.label``; importance in a model without logits, such as a bare encoder, is the change of its output.
    ``loss``: as in ``headtools.gradient``. ``path``: where to write the page. ``seed``: of everything random.
    ``orders``: how many random orders the pruning curve is compared with. ``check``: a second corpus, like ``corpus``,
    on which the least important heads are switched off as well; a causal language model is always checked on random
    tokens that repeat. ``progress``: say on stderr what the report will cost, and show a progress bar. ``verify``:
    first try what the model's heads are (``headtools.verify``), and say on the page what came of it.

    Heads are chosen and measured on different halves of the sentences, the same halves in every section. Time: some
    fifty forward passes over half of the corpus and two backward passes, and half a forward pass for each head that is
    switched off: all heads of a model with up to 160; of others the twelve with the highest gradient, on some
    sixteen sentences of each half.

    Raises ``ValueError`` for a model without heads and an empty corpus, and ``TypeError`` for a corpus of another kind.

    >>> import headtools as ht
    >>> model, tokenizer = ht.load()
    >>> report(model, "organism", tokenizer, limit=8, orders=1, progress=False).missing
    {}
    """
    every_site = sites(model)
    subject = prepare(model, corpus, tokenizer, loss=loss, limit=limit, seed=seed)
    skipped = set() if subject.causal else set(CAUSAL)
    # There is no telling what a loss of the user's is on random tokens.
    if check is None and (not subject.causal or loss is not None):
        skipped.add("check")
    names = [name for name in MEASURED if name not in skipped]
    second = str(check) if isinstance(check, (str, Path)) else "the second corpus"
    options = {
        "pruning": {"orders": orders},
        "check": {"second": None if check is None else (second, *sentences_or_batches(check, limit))},
    }
    if progress and subject.test:
        print(f"report: {_forecast(subject, names, orders)}", file=sys.stderr, flush=True)
    tried = _tried(model, subject) if verify else ""
    untried = not verify and every_site.verified is None
    if untried:  # no measure is to try the model while this lasts
        try_model(model, skip=True)
    try:
        results, missing = _measure(subject, progress_bar(names, "report" if progress else ""), options)
    finally:
        if untried:
            _VERIFIED.pop(every_site, None)
    title = title or f"The heads of {type(model).__name__}"
    lead = (
        f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters; "
        + ", ".join(
            f"{every_site[kind].n_heads} {kind} heads in {len(every_site[kind])} layers" for kind in every_site.kinds
        )
        + f". Measured on {subject.corpus_text}. Layers and heads count from 0.{tried}"
    )
    shown = [part for name in SHOWN if name in names for part in _section(name, subject, results, missing)]
    data = head_data(subject, results, title, lead)
    by_chance = sections.chance(subject, results) if "chance" in results else {}
    wanted = BY_CHANCE_FINDINGS if by_chance else CAUSAL_FINDINGS if subject.causal else FINDINGS
    html = page(title, lead, shown, _findings(shown, wanted, by_chance), data)
    written_to = None if path is None else write_bytes(path, html.encode("utf-8"))
    tables = {name: found["table"] for name, found in results.items() if isinstance(found, dict) and "table" in found}
    return Report(html, missing, tables, written_to, data)


def _tried(model: nn.Module, subject: Subject) -> str:
    """Try what the model's heads are, and return a sentence on what came of it."""
    try:
        found = try_model(model, subject.selection[0] if subject.selection else None)
    except (ValueError, TypeError, RuntimeError) as error:
        return f" Its heads could not be tried: {error}."
    if found.ok:
        return f" All {len(found.found)} checks of headtools.verify hold ({found.when})."
    wrong = [f"{site}, {check}: {reason}" for (site, check), reason in found.failed.items()]
    wrong += [f"{name} is attention and no site" for name in found.unseen]
    more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return f" headtools.verify found what does not hold: {'; '.join(wrong[:3])}{more}."


def _measure(
    subject: Subject, names: Iterable[str], options: Mapping[str, dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the results by name, and the reason for each that could not be measured."""
    results, missing = {}, {}
    for name in names:
        if name in NEED_SELECTION and "selection" in missing:
            missing[name] = missing["selection"]
        elif MEASURED[name] is not None:
            try:
                results[name] = MEASURED[name](subject, results, **options.get(name, {}))
            except (ValueError, KeyError, RuntimeError, TypeError, NotImplementedError) as error:
                missing[name] = str(error.args[0]) if error.args else type(error).__name__
    for name in ("selection", "chance"):  # which are no sections of their own
        missing.pop(name, None)
    return results, missing


def _section(name: str, subject: Subject, results: Mapping[str, Any], missing: Mapping[str, str]) -> list[Section]:
    """Return a section, or what is needed for it; nothing for what stands with each head."""
    if name in missing:
        return [Section(name, SHOWN[name], missing=missing[name], remedy=REMEDIES.get(name, ""))]
    if name in ("attention", "words", "examples"):
        return []
    html, findings = getattr(sections, name)(subject, results)
    return [Section(name, SHOWN[name], html=html, findings=findings)]


def _findings(shown: Sequence[Section], names: Sequence[str], others: Mapping[str, Finding]) -> list[Finding]:
    """Return the five findings of the page; where there are fewer, what was not measured takes their places."""
    by_name = {**others, **{name: finding for section in shown for name, finding in section.findings.items()}}
    found = [by_name[name] for name in names if name in by_name]
    gaps = [
        Finding(f"Not measured: {part.title[0].lower()}{part.title[1:]}.", part.missing, part.name)
        for part in sorted(shown, key=lambda part: list(MEASURED).index(part.name))
        if part.missing and part.name not in ("attention", "words", "examples")
    ]
    first = gaps[:1] if gaps and gaps[0].section == "roles" else []
    return [*first, *found, *gaps[len(first) :]][:N_FINDINGS]


def _forecast(subject: Subject, names: Sequence[str], orders: int) -> str:
    """Say how many forward passes there will be, and how long they will take, by the second of two over one batch."""
    n_heads = sites(subject.model).n_heads
    # Off on both halves, each in half a pass; some then get another replacement, or three. Each of the five times
    # begins with a pass of the whole model and with runs that test whether later ones may begin at a layer.
    off = n_heads if n_heads <= measures.ALL_OFF else measures.N_OFF
    off += 3 * min(measures.N_REPLACED, n_heads) + 2 * 5
    passes = sum(_PASSES.get(name, 0) for name in names) + orders * len(measures.RANDOM_POINTS) + off
    batch = subject.test[len(subject.test) // 2]
    with torch.no_grad(), evaluating(subject.model):
        for _ in range(2):
            began = time.perf_counter()
            subject.model(**model_inputs(subject.model, batch))
            seconds = (time.perf_counter() - began) * len(subject.test) * passes
    took = f"some {seconds / 60:.0f} minutes" if seconds >= 90 else f"some {seconds:.0f} seconds"
    took = took if seconds >= 5 else "a few seconds"
    return (
        f"about {passes} forward passes over {counted(subject.counts[1], subject.unit)}, {took} on "
        f"{device_of(subject.model)}"
    )
