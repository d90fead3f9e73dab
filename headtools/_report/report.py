"""One page on the heads of any model: ``report``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from headtools._engine.progress import progress as show_progress
from headtools._renamed import old_arguments
from headtools._report import sections as parts
from headtools._report.page import Section, page, write
from headtools._report.subject import Subject
from headtools.heads.sites import sites
from headtools.roles.corpus import corpus as read_corpus
from headtools.roles.sentence import Sentence

PARTS = {
    "roles": ("What the heads look at", parts.roles),
    "importance": ("What the heads are worth", parts.worth),
    "geometry": ("What the heads read and write", parts.geometry),
    "pruning": ("How many heads it needs", parts.pruning),
    "maps": ("The heads to look at first", parts.maps),
    "conventions": ("How it was measured", parts.conventions),
}


@dataclass(frozen=True, repr=False)
class Report:
    """What ``report`` found: ``html`` is the page, ``tables`` its numbers as frames, ``missing`` {part: why not}."""

    html: str
    missing: Mapping[str, str]
    tables: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, whole or not at all."""
        return write(self.html, path)

    def __repr__(self) -> str:
        lacks = f"; not measured: {', '.join(self.missing)}" if self.missing else ""
        where = "" if self.path is None else f" in {self.path}"
        return f"<Report of {len(self.html) / 1000:.0f} kB{where}: {', '.join(self.tables)}{lacks}>"


@old_arguments(quiet="progress")
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
    progress: bool = True,
) -> Report:
    """Measure the heads of a model and write one self-contained HTML page about them.

    The page has the role map with the scores behind it, importance by gradient with intervals, geometry beside random
    heads, a pruning curve beside ``orders`` random orders, the maps of the heads that stand out, and the conventions.
    What a model cannot show is named, with the reason, and the rest is measured.

    ``corpus``: sentences, or what ``headtools.corpus`` takes ("organism", "english", a treebank's path), ``limit`` of
    them; they need ``tokenizer``. Or batches, dicts of what the model takes with labels, for models of images or
    sound and for losses of your own; roles are then not measured. Sentences get labels by ``headtools.label``; the
    heads of a model without logits, such as a bare encoder, are weighed by how far its output changes.
    ``loss``: as in ``headtools.gradient``. ``path``: where to write the page. ``seed``: of all that is random.
    ``progress``: show a progress bar. The model is left bit for bit as it was.

    Heads are chosen and measured on different halves of the sentences, the same ones in every section. Time: some
    thirty forward passes over the corpus, and one backward pass.

    Raises ``ValueError`` for a model without heads and an empty corpus, and ``TypeError`` for a corpus of another kind.

    >>> import headtools as ht
    >>> model, tokenizer = ht.load()
    >>> report(model, "organism", tokenizer, limit=8, orders=1, progress=False).missing
    {}
    """
    found = sites(model)
    sentences, batches = _read(corpus, limit)
    title = title or f"The heads of {type(model).__name__}"
    subject = Subject(model, tokenizer, sentences, batches, loss, orders, seed)
    if sentences and tokenizer is None:
        subject.unlabelled = "sentences came without the model's tokenizer: pass tokenizer=, or batches"
    elif sentences:
        subject.prepare()
    sections, missing = [], {}
    for name, (heading, measure) in show_progress(PARTS.items(), "report") if progress else PARTS.items():
        try:
            sections.append(Section(name, heading, html=measure(subject)))
        except (ValueError, KeyError, RuntimeError, TypeError, NotImplementedError) as error:
            missing[name] = str(error.args[0]) if error.args else type(error).__name__
            sections.append(Section(name, heading, missing=missing[name]))
    n = sum(parameter.numel() for parameter in model.parameters())
    kinds = ", ".join(f"{found[kind].n_heads} {kind} heads in {len(found[kind])} layers" for kind in found.kinds)
    lead = f"{n:,} parameters; {kinds}. Measured on {subject.described}. Layers and heads count from 0."
    text = page(title, lead, sections)
    done = None if path is None else write(text, path)
    return Report(text, missing, subject.tables, done)


def _read(given: Any, limit: int) -> tuple[list[Sentence], list[Mapping]]:
    """Return sentences or batches, whichever came."""
    if isinstance(given, (str, Path)):
        return read_corpus(given, limit=limit), []
    some = [given] if isinstance(given, Mapping) else list(given) if isinstance(given, Iterable) else None
    if some is None:
        raise TypeError(f'a corpus is "organism", a treebank\'s path, sentences or batches; got {type(given).__name__}')
    if not some:
        raise ValueError('the corpus is empty: pass corpus("organism"), a treebank\'s path or batches')
    if all(isinstance(one, Sentence) for one in some):
        return some[:limit], []
    if all(isinstance(one, Mapping) for one in some):
        return [], some
    raise TypeError(f"a corpus holds Sentences or batches (dicts), this one {type(some[0]).__name__}")
