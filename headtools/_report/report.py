"""One page on the heads of any model: measure everything, turn each result into a section, write the page."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headtools._engine.loop import progress as progress_bar
from headtools._engine.store import write_bytes
from headtools._report import measures, sections
from headtools._report.page import Finding, Section, counted, page
from headtools._report.subject import Subject, prepare, sentences_or_batches
from headtools.heads._devices import device_of
from headtools.heads._tokens import model_inputs
from headtools.heads.sites import sites
from headtools.heads.verify import verify as try_model
from headtools.importance._inputs import evaluating
from headtools.roles.sentence import Sentence

# In the order in which they are measured: some read what came before. None: there is nothing to measure.
MEASURED: Mapping[str, Callable | None] = {
    "selection": measures.selection,
    "roles": measures.roles,
    "importance": measures.importance,
    "geometry": measures.geometry,
    "pruning": measures.pruning,
    "sinks": measures.sinks,
    "induction": measures.induction,
    "check": measures.check,
    "cache": measures.cache,
    "maps": measures.maps,
    "conventions": None,
}
# In the order of the page.
SHOWN = {
    "maps": "The heads to look at first",
    "roles": "What the heads attend to",
    "sinks": "Weight on the first token",
    "induction": "Heads that look back",
    "importance": "How important the heads are",
    "check": "Whether the ranking holds elsewhere",
    "pruning": "How many heads the model needs",
    "geometry": "What the heads read and write",
    "cache": "What the key-value cache holds",
    "conventions": "How it was measured",
}
CAUSAL = ("sinks", "induction", "cache")  # of causal language models
NEED_SELECTION = ("importance", "pruning", "check")
FINDINGS = ("roles", "best role", "importance", "pruning", "check", "geometry", "spread")
CAUSAL_FINDINGS = ("roles", "sinks", "induction", "importance", "check", "pruning", "spread", "geometry")
N_FINDINGS = 5
_WITH_CORPUS = 'report(model, corpus("english"), tokenizer)'
_WITH_LOSS = "report(model, batches, loss=lambda outputs, batch: ...)"
REMEDIES = {
    "roles": _WITH_CORPUS,
    "importance": _WITH_LOSS,
    "pruning": _WITH_LOSS,
    "maps": _WITH_CORPUS,
    "sinks": _WITH_CORPUS,
    "check": 'report(model, corpus, tokenizer, check="english")',
}
# Forward passes over the sentences on which heads are measured; a backward pass counts as two. A curve has 11 points.
_PASSES = {"selection": 3, "roles": 1, "importance": 3, "pruning": 11, "sinks": 1, "induction": 2, "check": 4}


@dataclass(frozen=True, repr=False)
class Report:
    """The result of ``report``: ``html`` is the page, ``tables`` its numbers as frames by section, ``missing`` the
    sections that could not be measured, with the reason.
    """

    html: str
    missing: Mapping[str, str]
    tables: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, whole or not at all."""
        return write_bytes(path, self.html.encode("utf-8"))

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

    The page opens with five findings, each with its interval or baseline. A section that cannot be measured for this
    model stands at the end with the reason; the others are measured. The model is left bit for bit as it was.

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
    forty forward passes over half of the corpus, and two backward passes.

    Raises ``ImportError`` without matplotlib, ``ValueError`` for a model without heads and an empty corpus, and
    ``TypeError`` for a corpus of another kind.

    >>> import headtools as ht
    >>> model, tokenizer = ht.load()
    >>> report(model, "organism", tokenizer, limit=8, orders=1, progress=False).missing
    {}
    """
    if not find_spec("matplotlib"):  # refused before an hour's work, not after it
        raise ImportError("a report draws its figures with matplotlib: pip install matplotlib")
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
    results, missing = _measure(subject, progress_bar(names, "report" if progress else ""), options)
    shown = [_section(name, subject, results, missing) for name in SHOWN if name in names]
    html = page(
        title or f"The heads of {type(model).__name__}",
        f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters; "
        + ", ".join(
            f"{every_site[kind].n_heads} {kind} heads in {len(every_site[kind])} layers" for kind in every_site.kinds
        )
        + f". Measured on {subject.corpus_text}. Layers and heads count from 0.{tried}",
        shown,
        _findings(shown, CAUSAL_FINDINGS if subject.causal else FINDINGS),
    )
    written_to = None if path is None else write_bytes(path, html.encode("utf-8"))
    tables = {name: found["table"] for name, found in results.items() if isinstance(found, dict) and "table" in found}
    return Report(html, missing, tables, written_to)


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
    missing.pop("selection", None)  # which is no section of its own
    return results, missing


def _section(name: str, subject: Subject, results: Mapping[str, Any], missing: Mapping[str, str]) -> Section:
    """Return a section, or what is needed for it."""
    if name in missing:
        return Section(name, SHOWN[name], missing=missing[name], remedy=REMEDIES.get(name, ""))
    html, findings = getattr(sections, name)(subject, results)
    return Section(name, SHOWN[name], html=html, findings=findings)


def _findings(shown: Sequence[Section], names: Sequence[str]) -> list[Finding]:
    """Return the five findings of the page; where there are fewer, what was not measured takes their places."""
    by_name = {name: finding for section in shown for name, finding in section.findings.items()}
    found = [by_name[name] for name in names if name in by_name]
    gaps = [
        Finding(f"Not measured: {part.title[0].lower()}{part.title[1:]}.", part.missing, part.name)
        for part in sorted(shown, key=lambda part: list(MEASURED).index(part.name))
        if part.missing and part.name != "maps"
    ]
    first = gaps[:1] if gaps and gaps[0].section == "roles" else []
    return [*first, *found, *gaps[len(first) :]][:N_FINDINGS]


def _forecast(subject: Subject, names: Sequence[str], orders: int) -> str:
    """Say how many forward passes there will be, and how long they will take, by the second of two over one batch."""
    passes = sum(_PASSES.get(name, 0) for name in names) + orders * len(measures.RANDOM_POINTS)
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
