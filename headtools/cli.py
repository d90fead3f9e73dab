"""The command line: ``python -m headtools report | roles | importance | prune MODEL``."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headtools as ht

# torch and transformers are imported inside the commands, so that --help and errors in options take no seconds.
if TYPE_CHECKING:
    import pandas as pd

    from headtools.heads.scores import HeadScores

EXAMPLES = """Examples:
  python -m headtools report organism --out organism.html
  python -m headtools report ./my-bert --corpus treebank.conllu --out report.html
  python -m headtools roles ./my-bert --corpus english --out roles.csv
  python -m headtools importance ./my-gpt2 --corpus english --method ablation --out importance.csv
  python -m headtools prune ./my-bert --corpus english --keep 0.75 --out ./my-smaller-bert

MODEL is organism (the model that ships with headtools), a folder that save_pretrained wrote, or a name on the Hub.
Each command first prints to stderr what it measures and on how many sentences; results go to stdout.

Exit status: 0 success, 1 invalid input (the message explains it), 2 invalid command line, 130 interrupted."""

METHODS = ("gradient", "confidence", "ablation", "relevance")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as stop:  # --help, --version and what is not understood
        return stop.code
    try:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # all would do the same work and write the same file
            raise ValueError("commands run in one process: start them with python, without accelerate or torchrun")
        given.command(given)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ValueError, KeyError, TypeError, RuntimeError, OSError, ImportError) as error:
        reason = error.args[0] if isinstance(error, KeyError) and error.args else error
        print(f"headtools {given.command.__name__}: {reason}", file=sys.stderr)
        return 1
    return 0


def _parser() -> ArgumentParser:
    """Return what reads the command line: the options that all commands have, then those of each."""
    parser = ArgumentParser(
        prog="python -m headtools",
        description="Describe, measure and prune the attention heads of a model.",
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    versions = f"headtools {ht.__version__} (torch {version('torch')}, transformers {version('transformers')})"
    parser.add_argument("--version", action="version", version=versions)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    options = {}
    for command in (report, roles, importance, prune):
        about = command.__doc__
        of = options[command.__name__] = commands.add_parser(
            command.__name__, help=about.splitlines()[0], description=about
        )
        of.set_defaults(command=command)
        of.add_argument("model", metavar="MODEL", help="organism, organism2, a folder, or a name on the Hub")
        corpora = "organism, english, or a .conllu file (default: the organism's own, or english)"
        of.add_argument("--corpus", metavar="FILE", help=corpora)
        of.add_argument("--limit", metavar="N", type=_count, default=100, help="maximum number of sentences (100)")
        of.add_argument("--no-verify", action="store_true", help="do not try the model's heads first (ht.verify)")
        of.add_argument("--seed", metavar="N", type=int, default=0, help="seed of all random choices (0)")
    options["report"].add_argument("--out", metavar="PATH", type=Path, required=True, help="the HTML file to write")
    options["prune"].add_argument("--out", metavar="FOLDER", type=Path, required=True, help="of the smaller model")
    for name in ("report", "prune"):
        check = "a second corpus, on which the least important heads are switched off as well (a causal language model "
        check += "is always checked on random tokens that repeat)"
        options[name].add_argument("--check", metavar="FILE", help=check)
    for name in ("roles", "importance"):
        table = "a .csv or .json file to write; without it the table is printed"
        options[name].add_argument("--out", metavar="PATH", type=_table_file, help=table)
        kept = "stores finished batches; the same command resumes from there"
        options[name].add_argument("--checkpoint", metavar="FOLDER", type=Path, help=kept)
    for name in ("importance", "prune"):
        loss = "mlm: masked tokens, lm: the next token, output: the change of the output, which needs no labels "
        loss += "(default: the model's own; output for a model without logits)"
        options[name].add_argument("--loss", choices=("mlm", "lm", "output"), help=loss)
    held = "only rows in which the head passes the test for the role"
    options["roles"].add_argument("--held", action="store_true", help=held)
    options["importance"].add_argument("--method", choices=METHODS, default="gradient", help="how it is measured")
    options["prune"].add_argument("--keep", metavar="FRACTION", type=_fraction, required=True, help="such as 0.75")
    options["prune"].add_argument("--kind", choices=("encoder", "decoder", "cross"), help="prune only heads of it")
    spare = "keep the N heads with the highest induction scores"
    options["prune"].add_argument("--spare-induction", metavar="N", type=int, default=0, help=spare)
    return parser


def _count(text: str) -> int:
    if int(text) < 2:
        raise ArgumentTypeError(f"got {text}; expected 2 or more, such as --limit 100")
    return int(text)


def _fraction(text: str) -> float:
    if not 0 < float(text) < 1:
        raise ArgumentTypeError(f"got {text}; expected a fraction between 0 and 1, such as --keep 0.75")
    return float(text)


def _table_file(text: str) -> Path:
    if not text.endswith((".csv", ".json")):
        raise ArgumentTypeError(f"got {text}; a table is written as .csv or .json")
    return Path(text)


def report(given: Namespace) -> None:
    """Measure everything and write one HTML page.

    How many forward passes it will take, and how long, is printed first.
    """
    _check_writable(given.out)
    subject = _Subject(given.model, given.corpus, given.limit)
    _announce(f"report: {subject}; selected on one half, measured on the other")
    page = ht.report(
        subject.model,
        subject.sentences,
        subject.tokenizer,
        path=given.out,
        seed=given.seed,
        verify=not given.no_verify,
        title=f"The heads of {given.model}",
        check=None if given.check is None else _sentences(given.check, given.limit),
    )
    print(given.out, *(f"not measured: {section}: {reason}" for section, reason in page.missing.items()), sep="\n")


def roles(given: Namespace) -> None:
    """Measure what each head attends to.

    One row for each head and role, with a 95 % interval, the best fixed offset and chance.
    """
    _check_writable(given.out)
    subject = _Subject(given.model, given.corpus, given.limit)
    if subject.tokenizer is None:
        raise ValueError(f"{given.model} has no tokenizer, and roles are measured on words: save it in the same folder")
    _verify(given, subject)
    _announce(f"roles: {subject}")
    options = {"seed": given.seed, "checkpoint": given.checkpoint}
    frame = ht.taxonomy(subject.model, subject.tokenizer, subject.sentences, **options)
    _show(frame[frame.passes] if given.held else frame, given.out)


def importance(given: Namespace) -> None:
    """Measure the importance of each head.

    For the model's loss or, if it has no logits and so no loss, for its output: the column's name says which.
    """
    _check_writable(given.out)
    if given.checkpoint is not None and given.method != "ablation":
        raise ValueError(f"--checkpoint is for ablation; {given.method} takes few passes: leave --checkpoint out")
    if given.loss is not None and given.method in ("confidence", "relevance"):
        raise ValueError(f"--loss is for gradient and ablation; {given.method} uses no loss: leave --loss out")
    subject = _Subject(given.model, given.corpus, given.limit)
    options = {} if given.checkpoint is None else {"checkpoint": given.checkpoint}
    _verify(given, subject)
    _show(_scores(given, subject, given.method, options).to_frame(), given.out)


def prune(given: Namespace) -> None:
    """Prune the least important heads and save the smaller model.

    Importance is measured as by the command importance, with gradient, and holds for its corpus: the command prints the
    loss increase there and on a second corpus.
    """
    if given.out.exists():
        raise FileExistsError(f"--out {given.out} already exists: choose a new name")
    _check_writable(given.out)
    subject = _Subject(given.model, given.corpus, given.limit)
    _verify(given, subject)
    checked_on = {} if given.check is None else {given.check: _sentences(given.check, given.limit)}
    scores = _scores(given, subject, "gradient", {"sites": given.kind})
    spare = _strongest_induction(subject.model, given.spare_induction)
    cut = [head for head in scores.order() if head not in spare][: len(scores) - round(given.keep * len(scores))]
    if cut:
        _check_cut(subject, cut, checked_on, given)
        ht.prune(subject.model, cut)
    ht.save(subject.model, given.out, subject.tokenizer)
    print(
        f"{given.out}: {len(scores) - len(cut)} of {len(scores)} heads left; "
        f"open it with headtools.load({str(given.out)!r})"
    )


def _strongest_induction(model: Any, n: int) -> set[tuple]:
    """Return the heads with the highest induction scores, which are to be spared."""
    if not n:
        return set()
    from headtools.roles.induction import INDUCTION

    frame = ht.induction_scores(model)
    frame = frame[frame.role == INDUCTION].sort_values("score", ascending=False, kind="stable").head(n)
    return set(zip(frame["kind"], frame["layer"], frame["head"], strict=True))


def _check_cut(subject: _Subject, cut: Sequence[tuple], checked_on: dict[str, list], given: Namespace) -> None:
    """Print the loss increase on the corpus of the ranking and on a second one, and warn where they clearly differ."""
    from headtools._report.sections import warning_of

    objective = subject.objective(given)
    sentences = {subject.corpus: subject.sentences} | checked_on
    corpora = {name: subject.on_device(objective.batches(corpus)) for name, corpus in sentences.items()}
    losses = {name: objective.loss(batches) for name, batches in corpora.items()}
    if not checked_on and objective.name == "lm" and set(ht.sites(subject.model).kinds) == {"decoder"}:
        corpora["repeated random tokens"] = subject.on_device([ht.repeated_tokens(subject.model)])
    if len(corpora) < 2:
        return
    frame = ht.cut_cost(subject.model, cut, corpora, losses)
    for row in frame.itertuples():
        rise = f"{row.rise:+.2f} [{row.low:+.2f}, {row.high:+.2f}]"
        print(f"{row.corpus}: loss {row.loss:.2f}, without {len(cut)} heads {rise}")
    if text := warning_of(frame):
        _announce(f"warning: {text}. Heads that look back can be kept: --spare-induction N")


class _Subject:
    """A command's model, on a GPU where there is one, with its tokenizer and sentences."""

    def __init__(self, name: str, corpus: str | None, limit: int) -> None:
        import torch

        self.corpus = corpus or (name if name in ("organism", "organism2") else "english")
        self.sentences = _sentences(self.corpus, limit)
        model, self.tokenizer = ht.load(None if name == "organism" else name)
        self.model = model.to("cuda" if torch.cuda.is_available() else "cpu")

    def __str__(self) -> str:
        heads = f"{ht.sites(self.model).n_heads} heads of {type(self.model).__name__}"
        return f"{heads}, on {len(self.sentences)} sentences of {self.corpus}"

    def objective(self, given: Namespace) -> Any:
        """Return the loss, and the batches it needs."""
        from headtools._report.objective import objective

        return objective(self.model, self.tokenizer, self.sentences, given.loss, given.seed)

    def on_device(self, batches: Sequence[dict]) -> list[dict]:
        """Return batches on the model's device."""
        return [{name: value.to(self.model.device) for name, value in batch.items()} for batch in batches]


def _sentences(name: str, limit: int) -> list:
    """Return the sentences of a corpus; commands need their words, which plain text does not tell."""
    sentences = ht.corpus(name, limit=limit)
    if any(isinstance(sentence, str) for sentence in sentences):
        raise ValueError(
            f"got {name}, which is plain text; expected english, organism, organism2 or a treebank whose words are "
            "separated: write the text as CoNLL-U (.conllu), a word a line"
        )
    return sentences


def _scores(given: Namespace, subject: _Subject, method: str, options: dict[str, Any]) -> HeadScores:
    """Announce what is measured, and measure it."""
    from headtools._report.objective import unlabelled, writes

    command = given.command.__name__
    if method == "confidence" and not writes(subject.model):  # an encoder-decoder needs labels: its decoder reads them
        _announce(f"{command}: confidence, {subject}")
        return ht.confidence(subject.model, subject.on_device(unlabelled(subject.tokenizer, subject.sentences)))
    objective = subject.objective(given)
    batches = subject.on_device(objective.batches(subject.sentences))
    if method in ("gradient", "ablation"):
        _announce(f"{command}: {method} of the {objective.description} (--loss {objective.name}), {subject}")
        return getattr(objective, method)(batches, **options)
    if objective.name == "output" and method == "relevance":
        raise ValueError(
            f"{type(subject.model).__name__} has no logits, and relevance explains the highest logit: "
            "write --method gradient or --method ablation"
        )
    _announce(f"{command}: {method}, {subject}")
    return getattr(ht, method)(subject.model, batches, **options)


def _verify(given: Namespace, subject: _Subject) -> None:
    """Try what the model's heads are, and print what does not hold to stderr."""
    if not (found := ht.verify(subject.model, skip=given.no_verify)).ok:
        _announce(f"{given.model} is not in all what headtools takes it for:\n{found}")


def _announce(text: str) -> None:
    """Print what will be measured to stderr."""
    print(text, file=sys.stderr, flush=True)


def _show(frame: pd.DataFrame, out: Path | None) -> None:
    """Print a table, or write it to a file and print the path."""
    from headtools._engine.store import write_bytes

    if out is None:
        print(frame.to_string(index=False))
    elif out.suffix == ".csv":
        print(write_bytes(out, frame.to_csv(index=False).encode()))
    else:  # null where there is no number: NaN is no JSON
        records = frame.astype(object).where(frame.notna(), None).to_dict("records")
        print(write_bytes(out, json.dumps(records, indent=1, allow_nan=False).encode()))


def _check_writable(out: Path | None) -> None:
    """Raise before an hour's work, not after it, where nothing can be written."""
    if out is None:
        return
    if out.is_dir():
        raise IsADirectoryError(f"--out {out} is a folder; name a file in it, such as {out / 'page.html'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out.parent):
        pass
