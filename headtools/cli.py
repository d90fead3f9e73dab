"""The command line: ``python -m headtools report | roles | importance | prune MODEL``."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

import headtools as ht

# torch and transformers are imported inside the commands, so that --help and errors in options take no seconds.
if TYPE_CHECKING:
    import pandas as pd

    from headtools._engine.processes import Process
    from headtools.heads.scores import HeadScores
    from headtools.importance.objective import Objective

PROGRAM = "python -m headtools"
SHARED = ("roles", "importance")  # commands whose work several processes can share
# \b makes click keep the line breaks
EXAMPLES = """\b
Examples:
  python -m headtools report organism --out organism.html
  python -m headtools report ./my-bert --corpus treebank.conllu --out report.html
  python -m headtools roles ./my-bert --corpus english --out roles.csv
  python -m headtools importance ./my-gpt2 --corpus english --method ablation --out importance.csv
  python -m headtools prune ./my-bert --corpus english --keep 0.75 --out ./my-smaller-bert
  accelerate launch --multi_gpu --num_processes 4 -m headtools importance ./my-bert --checkpoint scores --out scores.csv

Several processes share the work of roles and importance where accelerate starts them, with GPUs or without.
MODEL is organism (the model that ships with headtools), a folder that save_pretrained wrote, or a name on the Hub.
Each command first prints to stderr what it measures and on how many sentences; results go to stdout.

Exit status: 0 success, 1 invalid input (the message explains it), 2 invalid command line, 130 interrupted."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


Method = Literal["gradient", "confidence", "ablation", "relevance"]
LossName = Literal["mlm", "lm", "output"]
Kind = Literal["encoder", "decoder", "cross"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    try:
        app(arguments, prog_name=PROGRAM)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return 0


def _print_version(requested: bool) -> None:
    if requested:
        print(f"headtools {ht.__version__} (torch {version('torch')}, transformers {version('transformers')})")
        raise typer.Exit


@app.callback(help="Describe, measure and prune the attention heads of a model.", epilog=EXAMPLES)
def _program(
    _version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _check_limit(count: int) -> int:
    if count < 2:
        raise typer.BadParameter(f"got {count}; expected 2 or more, such as --limit 100")
    return count


def _check_fraction(fraction: float) -> float:
    if not 0 < fraction < 1:
        raise typer.BadParameter(f"got {fraction:g}; expected a fraction between 0 and 1, such as --keep 0.75")
    return fraction


ModelName = Annotated[str, Argument(metavar="MODEL", help="organism, organism2, a folder, or a name on the Hub.")]
Corpus = Annotated[
    str | None,
    Option(metavar="FILE", help="organism, english, or a .conllu file (default: the organism's own, or english)."),
]
Limit = Annotated[int, Option(metavar="N", callback=_check_limit, help="Maximum number of sentences.")]
Seed = Annotated[int, Option(help="Seed of all random choices.")]
TableFile = Annotated[
    Path | None, Option(metavar="PATH", help="A .csv or .json file to write; without it the table is printed.")
]
RunFolder = Annotated[
    Path | None, Option(metavar="FOLDER", help="Stores finished batches; the same command resumes from there.")
]
Loss = Annotated[
    LossName | None,
    Option(
        help="mlm: masked tokens, lm: the next token, output: the change of the output, which needs no labels "
        "(default: the model's own; output for a model without logits)."
    ),
]


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a function a command: an error becomes one line on stderr and the exit status that the help documents."""
    name = function.__name__

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except (ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
            from headtools._engine.processes import OtherProcessError

            if isinstance(error, typer.Exit):  # a subclass of RuntimeError
                raise
            if not isinstance(error, OtherProcessError):  # the process that failed prints its own error
                reason = error.args[0] if isinstance(error, KeyError) and error.args else error
                print(f"headtools {name}: {reason}", file=sys.stderr)
            raise typer.Exit(1) from None

    return app.command()(run)


@_command
def report(
    model: ModelName,
    out: Annotated[Path, Option(metavar="PATH", help="The HTML file to write.")],
    corpus: Corpus = None,
    limit: Limit = 100,
    seed: Seed = 0,
    check: Annotated[
        str | None,
        Option(metavar="FILE", help="A second corpus on which the least important heads are switched off as well."),
    ] = None,
) -> None:
    """Measure everything and write one HTML page.

    What it will cost is printed first: forward passes, minutes and memory.
    """
    _check_folder_of(out)
    with _one_process("report"):
        subject = _Subject(model, corpus, limit)
        _announce(f"report: {subject.heads}, {subject.measured_on}; selected on one half, measured on the other")
        page = ht.report(
            subject.model,
            subject.sentences,
            subject.tokenizer,
            path=out,
            seed=seed,
            title=f"The heads of {model}",
            check=None if check is None else _sentences(check, limit),
        )
        missing = "".join(f"\nnot measured: {section}: {reason}" for section, reason in page.missing.items())
        _say(f"{out}{missing}")


@_command
def roles(
    model: ModelName,
    corpus: Corpus = None,
    limit: Limit = 100,
    seed: Seed = 0,
    out: TableFile = None,
    checkpoint: RunFolder = None,
    held: Annotated[bool, Option("--held", help="Only rows in which the head passes the test for the role.")] = False,
) -> None:
    """Measure what each head attends to.

    One row for each head and role, with a 95 % interval, the best fixed offset and chance.
    """
    _check_table_file(out)
    with ht.sharded():
        subject = _Subject(model, corpus, limit)
        if subject.tokenizer is None:
            raise ValueError(f"{model} has no tokenizer, and roles are measured on words: save it in the same folder")
        _announce(f"roles: {subject.heads}, {subject.measured_on}")
        frame = ht.taxonomy(subject.model, subject.tokenizer, subject.sentences, seed=seed, checkpoint=checkpoint)
        _show(frame[frame.passes] if held else frame, out)


@_command
def importance(
    model: ModelName,
    corpus: Corpus = None,
    limit: Limit = 100,
    seed: Seed = 0,
    out: TableFile = None,
    checkpoint: RunFolder = None,
    method: Annotated[Method, Option(help="How it is measured.")] = "gradient",
    loss: Loss = None,
) -> None:
    """Measure the importance of each head.

    For the model's loss or, if it has no logits and so no loss, for its output: the column's name says which.
    """
    _check_table_file(out)
    if checkpoint is not None and method in ("confidence", "relevance"):
        raise ValueError(f"--checkpoint is for gradient and ablation; {method} starts again: leave --checkpoint out")
    if loss is not None and method in ("confidence", "relevance"):
        raise ValueError(f"--loss is for gradient and ablation; {method} uses no loss: leave --loss out")
    with ht.sharded():
        subject = _Subject(model, corpus, limit)
        options = {} if checkpoint is None else {"checkpoint": checkpoint}
        _show(_scores("importance", subject, method, loss, seed, options).to_frame(), out)


@_command
def prune(
    model: ModelName,
    out: Annotated[Path, Option(metavar="FOLDER", help="The new folder of the smaller model.")],
    keep: Annotated[
        float, Option(metavar="FRACTION", callback=_check_fraction, help="Fraction of heads to keep, such as 0.75.")
    ],
    corpus: Corpus = None,
    limit: Limit = 100,
    seed: Seed = 0,
    loss: Loss = None,
    kind: Annotated[Kind | None, Option(help="Prune only heads of this kind.")] = None,
    check: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="A second corpus on which to check the cut (default: repeated random tokens, for "
            "a causal language model).",
        ),
    ] = None,
    spare_induction: Annotated[
        int, Option(metavar="N", min=0, help="Keep the N heads with the highest induction scores.")
    ] = 0,
) -> None:
    """Prune the least important heads and save the smaller model.

    Importance is measured as by the command importance, with gradient, and holds for its corpus: the command prints the
    loss increase there and on a second corpus.
    """
    if out.exists():
        raise FileExistsError(f"--out {out} already exists: choose a new name")
    with _one_process("prune"):
        from headtools.heads.prune import cut_heads
        from headtools.organism.save import how_to_open

        subject = _Subject(model, corpus, limit)
        checked_on = {} if check is None else {check: _sentences(check, limit)}
        scores = _scores("prune", subject, "gradient", loss, seed, {"sites": kind})
        spare = _strongest_induction(subject.model, spare_induction)
        cut = [head for head in scores.order() if head not in spare][: len(scores) - round(keep * len(scores))]
        _check_cut(subject, cut, checked_on, loss, seed)
        cut_heads(subject.model, cut)
        ht.save(subject.model, out, subject.tokenizer)
        _say(f"{out}: {len(scores) - len(cut)} of {len(scores)} heads left; {how_to_open(out)}")


def _strongest_induction(model: Any, n: int) -> set[tuple]:
    """Return the heads with the highest induction scores, which are to be spared."""
    if not n:
        return set()
    from headtools.roles.induction import INDUCTION

    frame = ht.induction_scores(model)
    frame = frame[frame.role == INDUCTION].sort_values("score", ascending=False, kind="stable").head(n)
    return set(zip(frame["kind"], frame["layer"], frame["head"], strict=True))


def _check_cut(
    subject: _Subject, cut: Sequence[tuple], checked_on: dict[str, list], loss: LossName | None, seed: int
) -> None:
    """Print the loss increase on the corpus of the ranking and on a second one, and warn where they clearly differ."""
    from headtools.sparse.cut_cost import warning_of

    objective = subject.objective(loss, seed)
    sentences = {subject.corpus: subject.sentences} | checked_on
    corpora = {name: _on_device(objective.batches(corpus)) for name, corpus in sentences.items()}
    losses = {name: objective.loss(batches) for name, batches in corpora.items()}
    if not checked_on and objective.name == "lm" and set(ht.sites(subject.model).kinds) == {"decoder"}:
        corpora["repeated random tokens"] = _on_device([ht.repeated_tokens(subject.model)])
    if len(corpora) < 2 or not cut:
        return
    frame = ht.cut_cost(subject.model, cut, corpora, losses)
    for row in frame.itertuples():
        _say(
            f"{row.corpus}: loss {row.loss:.2f}, without {len(cut)} heads {row.rise:+.2f} "
            f"[{row.low:+.2f}, {row.high:+.2f}]"
        )
    if text := warning_of(frame):
        _announce(f"warning: {text}. Heads that look back can be kept: --spare-induction N")


def _sentences(name: str, limit: int) -> list:
    """Return the sentences of a corpus; commands need their words, which plain text does not tell."""
    sentences = ht.corpus(name, limit=limit)
    if any(isinstance(sentence, str) for sentence in sentences):
        raise ValueError(
            f"got {name}, which is plain text; expected english, organism, organism2 or a treebank whose words are "
            "separated: write the text as CoNLL-U (.conllu), a word a line"
        )
    return sentences


class _Subject:
    """A command's model, on the device of this process, with its tokenizer and sentences."""

    def __init__(self, name: str, corpus: str | None, limit: int) -> None:
        self.corpus = corpus or (name if name in ("organism", "organism2") else "english")
        self.sentences = _sentences(self.corpus, limit)
        model, self.tokenizer = ht.load(None if name == "organism" else name)
        self.model = model.to(_process().device)

    @property
    def heads(self) -> str:
        """The number of heads and the model's class, for messages."""
        return f"{ht.sites(self.model).n_heads} heads of {type(self.model).__name__}"

    @property
    def measured_on(self) -> str:
        """The corpus and its number of sentences, for messages."""
        return f"on {len(self.sentences)} sentences of {self.corpus}"

    def objective(self, loss: LossName | None, seed: int) -> Objective:
        """Return the loss, and the batches it needs."""
        from headtools.importance.objective import objective

        return objective(self.model, self.tokenizer, self.sentences, loss, seed)


def _scores(
    command: str, subject: _Subject, method: Method, loss: LossName | None, seed: int, options: dict
) -> HeadScores:
    """Announce what is measured, and measure it."""
    from headtools.importance.objective import unlabelled, writes

    if method == "confidence" and not writes(subject.model):  # an encoder-decoder needs labels: its decoder reads them
        _announce(f"{command}: confidence, {subject.heads}, {subject.measured_on}")
        return ht.confidence(subject.model, _on_device(unlabelled(subject.tokenizer, subject.sentences)), **options)
    objective = subject.objective(loss, seed)
    if method in ("gradient", "ablation"):
        _announce(
            f"{command}: {method} of the {objective.description} (--loss {objective.name}), {subject.heads}, "
            f"{subject.measured_on}"
        )
        return getattr(objective, method)(_on_device(objective.batches(subject.sentences)), **options)
    if objective.name == "output" and method == "relevance":
        raise ValueError(
            f"{type(subject.model).__name__} has no logits, and relevance explains the highest logit: "
            "write --method gradient or --method ablation"
        )
    _announce(f"{command}: {method}, {subject.heads}, {subject.measured_on}")
    return getattr(ht, method)(subject.model, _on_device(objective.batches(subject.sentences)), **options)


def _on_device(batches: Sequence[dict]) -> list[dict]:
    return [{name: value.to(_process().device) for name, value in batch.items()} for batch in batches]


def _process() -> Process:
    from headtools._engine.processes import current_process

    return current_process()


def _one_process(name: str) -> AbstractContextManager:
    """Raise for several processes, which would do the same work and write to the same file."""
    from headtools._engine.processes import launched_count

    if launched_count() > 1:
        raise ValueError(
            f"{launched_count()} processes can share {' and '.join(SHARED)} only; start {name} once, without accelerate"
        )
    return ht.sharded()


def _announce(text: str) -> None:
    """Print what will be measured to stderr, from the main process only."""
    if _process().main:
        print(text, file=sys.stderr, flush=True)


def _say(text: str) -> None:
    """Print a result, from the main process only."""
    from headtools._engine.progress import print_encodable

    if _process().main:
        print_encodable(text)


def _show(frame: pd.DataFrame, out: Path | None) -> None:
    """Print a table, or write it to a file and print the path, from the main process only."""
    from headtools._report.page import write

    if not _process().main:
        return
    if out is None:
        _say(frame.to_string(index=False))
        return
    text = frame.to_csv(index=False) if out.suffix == ".csv" else json.dumps(frame.to_dict("records"), indent=1)
    _say(str(write(text, out)))


def _check_table_file(out: Path | None) -> None:
    """Raise before an hour's work, not after it, where the table cannot be written."""
    if out is None:
        return
    if out.suffix not in (".csv", ".json"):
        raise ValueError(f"--out {out}: a table is written as .csv or .json")
    _check_folder_of(out)


def _check_folder_of(out: Path) -> None:
    if not out.parent.is_dir():
        raise FileNotFoundError(f"--out {out}: {out.parent} is not a folder; create it first")
    if out.is_dir():
        raise IsADirectoryError(f"--out {out} is a folder; name a file in it, such as {out / 'page.html'}")
