"""One page on the heads of any model: ``report``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from headtools._engine.progress import ProgressBar
from headtools._report import language, sections
from headtools._report.cost import estimate
from headtools._report.page import Finding, Section, page, write
from headtools._report.subject import Subject
from headtools.heads.sites import sites
from headtools.roles.corpus import corpus as read_corpus
from headtools.roles.sentence import Sentence

# In the order in which they are measured, which is that of ``Report.tables``.
MEASURED = {
    "roles": ("What the heads attend to", sections.roles),
    "importance": ("How important the heads are", sections.importance),
    "geometry": ("What the heads read and write", sections.geometry),
    "pruning": ("How many heads the model needs", sections.pruning),
    "sinks": ("Weight on the first token", language.sinks),
    "induction": ("Heads that look back", language.repetition),
    "check": ("Whether the ranking holds elsewhere", language.check),
    "cache": ("What the key-value cache holds", language.cache),
    "maps": ("The heads to look at first", sections.maps),
    "conventions": ("How it was measured", sections.conventions),
}
SHOWN = ("maps", "roles", "sinks", "induction", "importance", "check", "pruning", "geometry", "cache", "conventions")
CAUSAL = ("sinks", "induction", "cache")  # of causal language models
FINDINGS = ("roles", "best role", "importance", "pruning", "check", "geometry", "spread")
CAUSAL_FINDINGS = ("roles", "sinks", "induction", "importance", "check", "pruning", "spread", "geometry")
N_FINDINGS = 5
REMEDIES = {
    "roles": 'report(model, corpus("english"), tokenizer)',
    "importance": "report(model, batches, loss=lambda outputs, batch: ...)",
    "pruning": "report(model, batches, loss=lambda outputs, batch: ...)",
    "maps": 'report(model, corpus("english"), tokenizer)',
    "sinks": 'report(model, corpus("english"), tokenizer)',
    "check": 'report(model, corpus, tokenizer, check="english")',
}


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
        """Write the page to a file, atomically."""
        return write(self.html, path)

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
) -> Report:
    """Measure the heads of a model and write one self-contained HTML page about them.

    The page opens with five findings, each with its interval or baseline. Then come the maps of the heads that stand
    out, the role map with the scores behind it, importance by gradient with intervals, a pruning curve compared with
    ``orders`` random orders, geometry compared with random heads, and the conventions. Of a causal language model it
    also has the weight on the first token, the heads that look back, and the key-value cache. A section that cannot be
    measured for this model stands at the end with the reason; the others are measured.

    ``corpus``: sentences, or what ``headtools.corpus`` takes ("organism", "english", a treebank's path), at most
    ``limit`` of them; they need ``tokenizer``. Or batches, dicts of the model's arguments with labels, for models of
    images or sound and for losses of your own; roles are then not measured. Sentences get labels by
    ``headtools.label``; importance in a model without logits, such as a bare encoder, is the change of its output.
    ``loss``: as in ``headtools.gradient``. ``path``: where to write the page. ``seed``: of everything random.
    ``check``: a second corpus, like ``corpus``, on which the least important heads are switched off as well; a causal
    language model is always checked on random tokens that repeat. ``progress``: say on stderr what the report will
    cost, and show a progress bar with the time left. The model is left bit for bit as it was.

    Heads are chosen and measured on different halves of the sentences, the same halves in every section. Time: some
    forty forward passes over half of the corpus, and two backward passes.

    Raises ``ValueError`` for a model without heads and an empty corpus, and ``TypeError`` for a corpus of another kind.

    >>> import headtools as ht
    >>> model, tokenizer = ht.load()
    >>> report(model, "organism", tokenizer, limit=8, orders=1, progress=False).missing
    {}
    """
    model_sites = sites(model)
    sentences, batches = _sentences_or_batches(corpus, limit)
    title = title or f"The heads of {type(model).__name__}"
    subject = Subject(model, tokenizer, sentences, batches, loss, orders, seed)
    if sentences and tokenizer is None:
        subject.unlabelled_reason = "got sentences without the model's tokenizer: pass tokenizer=, or batches"
    elif sentences:
        subject.prepare()
    if check is not None:
        name = str(check) if isinstance(check, (str, Path)) else "the second corpus"
        subject.check = (name, *_sentences_or_batches(check, limit))
    skipped = set() if subject.is_causal else set(CAUSAL)
    # There is no telling what a loss of the user's is on random tokens.
    if check is None and (not subject.is_causal or loss is not None):
        skipped.add("check")
    applicable = {name: of_section for name, of_section in MEASURED.items() if name not in skipped}
    steps, cost = estimate(subject, applicable) if progress else ({}, "")
    if cost:
        print(f"report: {cost}", file=sys.stderr, flush=True)
    finished, missing, planned = {}, {}, 0
    with ProgressBar(sum(steps.values()), "report", show=bool(cost)) as bar:
        for name, (heading, measure) in applicable.items():
            bar.relabel(f"report, {name}")
            try:
                finished[name] = Section(name, heading, html=measure(subject))
            except (ValueError, KeyError, RuntimeError, TypeError, NotImplementedError) as error:
                missing[name] = str(error.args[0]) if error.args else type(error).__name__
                finished[name] = Section(name, heading, missing=missing[name], remedy=REMEDIES.get(name, ""))
            planned += steps.get(name, 0)
            bar.advance(planned - bar.done)
    n = sum(parameter.numel() for parameter in model.parameters())
    kinds = ", ".join(
        f"{model_sites[kind].n_heads} {kind} heads in {len(model_sites[kind])} layers" for kind in model_sites.kinds
    )
    lead = f"{n:,} parameters; {kinds}. Measured on {subject.corpus_text}. Layers and heads count from 0."
    html = page(title, lead, [finished[name] for name in SHOWN if name in finished], _findings(subject, missing))
    written_to = None if path is None else write(html, path)
    return Report(html, missing, subject.tables, written_to)


def _findings(subject: Subject, missing: Mapping[str, str]) -> list[Finding]:
    """Return the five findings of the page; where there are fewer, what was not measured takes their places."""
    names = CAUSAL_FINDINGS if subject.is_causal else FINDINGS
    measured = [subject.findings[name] for name in names if name in subject.findings]
    gaps = [
        Finding(f"Not measured: {MEASURED[name][0][0].lower()}{MEASURED[name][0][1:]}.", reason, name)
        for name, reason in missing.items()
        if name != "maps"
    ]
    first = gaps[:1] if "roles" in missing else []
    return [*first, *measured, *gaps[len(first) :]][:N_FINDINGS]


def _sentences_or_batches(corpus: Any, limit: int) -> tuple[list[Sentence], list[Mapping]]:
    """Return the corpus as sentences or as batches; the other list is empty."""
    if isinstance(corpus, (str, Path)):
        return read_corpus(corpus, limit=limit), []
    if not isinstance(corpus, Iterable):
        raise TypeError(
            f'a corpus is "organism", a treebank\'s path, sentences or batches; got {type(corpus).__name__}'
        )
    items = [corpus] if isinstance(corpus, Mapping) else list(corpus)
    if not items:
        raise ValueError('the corpus is empty: pass corpus("organism"), a treebank\'s path or batches')
    if all(isinstance(item, Sentence) for item in items):
        return items[:limit], []
    if all(isinstance(item, Mapping) for item in items):
        return [], items
    raise TypeError(f"a corpus holds Sentences or batches (dicts), this one {type(items[0]).__name__}")
