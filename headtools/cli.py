"""The command line: ``python -m headtools report | roles | importance | prune MODEL``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

# torch and transformers are imported inside the commands, so that help and mistyped options are answered at once.
if TYPE_CHECKING:
    import pandas as pd

    from headtools.heads.scores import HeadScores
    from headtools.importance.objective import Objective

PROGRAM = "python -m headtools"
SHARED = ("roles", "importance")  # commands whose work several processes can share
# \b keeps the lines as they are
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
What a command measures, and on how many sentences, is printed to stderr before it starts; results go to stdout.

Exit status: 0 done, 1 the input was wrong (the message says what), 2 the command was not understood,
130 interrupted."""

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)  # fmt: skip


class Method(StrEnum):
    """How importance is measured."""

    gradient = "gradient"
    confidence = "confidence"
    ablation = "ablation"
    relevance = "relevance"


class LossName(StrEnum):
    """What heads are weighed by."""

    mlm = "mlm"
    lm = "lm"
    output = "output"


class Kind(StrEnum):
    """Kinds of attention."""

    encoder = "encoder"
    decoder = "decoder"
    cross = "cross"


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    try:
        app(words, prog_name=PROGRAM)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        from headtools import __version__

        print(f"headtools {__version__} (torch {version('torch')}, transformers {version('transformers')})")
        raise typer.Exit


@app.callback(help="See, weigh and cut the attention heads of a model.", epilog=EXAMPLES)
def _program(
    _version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _number_of_sentences(count: int) -> int:
    if count < 2:
        raise typer.BadParameter(f"got {count}; a whole number from 2 on is needed, such as --limit 100")
    return count


def _share_of_heads(share: float) -> float:
    if not 0 < share < 1:
        raise typer.BadParameter(f"got {share:g}; a share between 0 and 1 is needed, such as --keep 0.75")
    return share


ModelName = Annotated[str, Argument(metavar="MODEL", help="organism, a folder, or a name on the Hub.")]
Corpus = Annotated[
    str | None,
    Option(metavar="FILE", help="organism, english, or a .conllu file (default: the organism's own, or english)."),
]
Limit = Annotated[int, Option(metavar="N", callback=_number_of_sentences, help="Sentences, at most.")]
Seed = Annotated[int, Option(help="Of everything that is random.")]
TableFile = Annotated[
    Path | None, Option(metavar="PATH", help=".csv or .json to write; left out, the table is printed.")
]
RunFolder = Annotated[
    Path | None, Option(metavar="FOLDER", help="Where each batch is kept; the same command goes on from there.")
]
Loss = Annotated[
    LossName | None,
    Option(help="mlm: masked tokens, lm: the next token, output: how far the output moves, which needs no labels "
                "(default: the model's own; output for a model without logits)."),
]  # fmt: skip


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a function a command: errors become one line on stderr and the exit status that the help documents."""
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

            if isinstance(error, typer.Exit):  # a RuntimeError too
                raise
            if not isinstance(error, OtherProcessError):  # that one is printed by the process that failed
                reason = error.args[0] if isinstance(error, KeyError) and error.args else error
                print(f"headtools {name}: {reason}", file=sys.stderr)
            raise typer.Exit(1) from None

    return app.command()(run)


@_command
def report(
    model: ModelName,
    out: Annotated[Path, Option(metavar="PATH", help="The page to write.")],
    corpus: Corpus = None,
    limit: Limit = 100,
    seed: Seed = 0,
) -> None:
    """Measure everything and write one HTML page."""
    _check_folder_of(out)
    with _one_process("report"):
        import headtools as ht

        subject = _Subject(model, corpus, limit)
        _announce(f"report: {subject.heads}, {subject.measured_on}; chosen on one half, measured on the other")
        page = ht.report(
            subject.model, subject.sentences, subject.tokenizer, path=out, seed=seed, title=f"The heads of {model}"
        )
        missing = "".join(f"\nnot measured: {part}: {reason}" for part, reason in page.missing.items())
        _say(f"{out}{missing}")


@_command
def roles(
    model: ModelName,
    corpus: Corpus = None,
    limit: Limit = 100,
    seed: Seed = 0,
    out: TableFile = None,
    checkpoint: RunFolder = None,
    held: Annotated[bool, Option("--held", help="Only rows of heads that hold the role.")] = False,
) -> None:
    """Measure what each head looks at.

    One row for each head and role, with a 95 % interval, beside the best fixed offset and chance.
    """
    _check_table_file(out)
    with _shared_processes():
        import headtools as ht

        subject = _Subject(model, corpus, limit)
        if subject.tokenizer is None:
            raise ValueError(f"{model} has no tokenizer beside it, and roles are measured on words: save it there")
        _announce(f"roles: {subject.heads}, {subject.measured_on}")
        frame = ht.taxonomy(subject.model, subject.tokenizer, subject.sentences, seed=seed, checkpoint=checkpoint)
        _show(frame[frame.holds] if held else frame, out)


@_command
def importance(
    model: ModelName,
    corpus: Corpus = None,
    limit: Limit = 100,
    seed: Seed = 0,
    out: TableFile = None,
    checkpoint: RunFolder = None,
    method: Annotated[Method, Option(help="How it is measured.")] = Method.gradient,
    loss: Loss = None,
) -> None:
    """Measure what each head is worth.

    To the model's loss or, where it has no logits and so no loss, to its output: the column says which.
    """
    _check_table_file(out)
    if checkpoint is not None and method == Method.confidence:
        raise ValueError(
            "--checkpoint keeps gradient, ablation and relevance; confidence takes one pass, leave --checkpoint out"
        )
    if loss is not None and method in (Method.confidence, Method.relevance):
        raise ValueError(f"--loss goes with gradient and ablation; {method} asks for no loss, leave --loss out")
    with _shared_processes():
        subject = _Subject(model, corpus, limit)
        kept = {} if checkpoint is None else {"checkpoint": checkpoint}
        _show(_scores("importance", subject, method, loss, seed, kept).to_frame(), out)


@_command
def prune(
    model: ModelName,
    out: Annotated[Path, Option(metavar="FOLDER", help="The new folder of the smaller model.")],
    keep: Annotated[float, Option(metavar="SHARE", callback=_share_of_heads, help="Of the heads, such as 0.75.")],
    corpus: Corpus = None,
    limit: Limit = 100,
    seed: Seed = 0,
    loss: Loss = None,
    kind: Annotated[Kind | None, Option(help="Cut only heads of this kind.")] = None,
    check: Annotated[
        str | None,
        Option(metavar="FILE", help="A second corpus to check the cut on (default: repeated random tokens, for a model "
                                    "that continues texts)."),
    ] = None,
    spare_induction: Annotated[
        int, Option(metavar="N", min=0, help="Keep the N heads with the highest induction scores.")
    ] = 0,
) -> None:
    """Cut the least important heads and save the smaller model.

    Importance is that of the command importance, by gradient, and holds for its corpus: what the cut costs there and on
    a second corpus is printed.
    """
    if out.exists():
        raise FileExistsError(f"--out {out} is there already: name a new folder")
    with _one_process("prune"):
        import headtools as ht
        from headtools.heads.prune import cut_heads
        from headtools.organism.save import how_to_open

        subject = _Subject(model, corpus, limit)
        scores = _scores("prune", subject, Method.gradient, loss, seed, {"sites": kind and kind.value})
        spare = _strongest_induction(subject.model, spare_induction)
        cut = [head for head in scores.order() if head not in spare][: len(scores) - round(keep * len(scores))]
        _check_cut(subject, cut, check, limit, loss, seed)
        cut_heads(subject.model, cut)
        ht.save(subject.model, out, subject.tokenizer)
        left = f"{len(scores) - len(cut)} of {len(scores)} heads left"
        _say(f"{out}: {left}; {how_to_open(out)}")


def _strongest_induction(model: Any, n: int) -> set[tuple]:
    """Return the heads with the highest induction scores, which a cut is to spare."""
    if not n:
        return set()
    import headtools as ht
    from headtools.roles.induction import INDUCTION

    frame = ht.induction_scores(model)
    frame = frame[frame.role == INDUCTION].sort_values("score", ascending=False, kind="stable").head(n)
    return set(zip(frame["kind"], frame["layer"], frame["head"], strict=True))


def _check_cut(
    subject: _Subject, cut: Sequence[tuple], check: str | None, limit: int, loss: LossName | None, seed: int
) -> None:
    """Print what a cut costs where it was chosen and on a second corpus, and warn where these differ clearly."""
    import headtools as ht
    from headtools.heads.sites import sites
    from headtools.sparse.cut_cost import cut_cost, repeated_tokens, warning_of

    objective = subject.objective(loss, seed)
    sentences = {subject.corpus: subject.sentences}
    if check is not None:
        sentences[check] = ht.corpus(check, limit=limit)
    corpora = {name: _on_device(objective.batches(some)) for name, some in sentences.items()}
    losses = {name: objective.loss(batches) for name, batches in corpora.items()}
    if check is None and objective.name == "lm" and set(sites(subject.model).kinds) == {"decoder"}:
        corpora["repeated random tokens"] = _on_device([repeated_tokens(subject.model)])
    if len(corpora) < 2 or not cut:
        return
    frame = cut_cost(subject.model, cut, corpora, losses)
    for row in frame.itertuples():
        _say(f"{row.corpus}: loss {row.loss:.2f}, without {len(cut)} heads {row.rise:+.2f} "
             f"[{row.low:+.2f}, {row.high:+.2f}]")  # fmt: skip
    if text := warning_of(frame):
        _announce(f"warning: {text}. Heads that look back can be kept: --spare-induction N")


class _Subject:
    """The model that a command is about, on the device of this process, its tokenizer and the sentences."""

    def __init__(self, name: str, corpus: str | None, limit: int) -> None:
        import headtools as ht
        from headtools._engine.processes import current_process

        own = name == "organism"
        self.corpus = corpus or ("organism" if own else "english")
        self.sentences = ht.corpus(self.corpus, limit=limit)
        model, self.tokenizer = ht.load(None if own else name)
        self.model = model.to(current_process().device)

    @property
    def heads(self) -> str:
        """How many heads there are, in words."""
        from headtools.heads.sites import sites

        return f"{sites(self.model).n_heads} heads of {type(self.model).__name__}"

    @property
    def measured_on(self) -> str:
        """What they are measured on, in words."""
        return f"on {len(self.sentences)} sentences of {self.corpus}"

    def objective(self, loss: LossName | None, seed: int) -> Objective:
        """Return what heads are weighed by."""
        from headtools.importance.objective import objective

        return objective(self.model, self.tokenizer, self.sentences, loss and loss.value, seed)


def _scores(
    command: str, subject: _Subject, method: Method, loss: LossName | None, seed: int, options: dict
) -> HeadScores:
    """Say what is measured, and measure it."""
    import headtools as ht
    from headtools.importance.objective import unlabelled, writes

    if method == Method.confidence and not writes(subject.model):  # else the labels are what the decoder reads
        _announce(f"{command}: confidence, {subject.heads}, {subject.measured_on}")
        return ht.confidence(subject.model, _on_device(unlabelled(subject.tokenizer, subject.sentences)), **options)
    weighed_by = subject.objective(loss, seed)
    if method in (Method.gradient, Method.ablation):
        _announce(f"{command}: {method} of the {weighed_by.description} (--loss {weighed_by.name}), {subject.heads}, "
                  f"{subject.measured_on}")  # fmt: skip
        return getattr(weighed_by, method)(_on_device(weighed_by.batches(subject.sentences)), **options)
    if weighed_by.name == "output" and method == Method.relevance:
        raise ValueError(
            f"{type(subject.model).__name__} has no logits, and relevance explains the highest logit: "
            "write --method gradient or --method ablation"
        )
    _announce(f"{command}: {method}, {subject.heads}, {subject.measured_on}")
    return getattr(ht, method)(subject.model, _on_device(weighed_by.batches(subject.sentences)), **options)


def _on_device(batches: Sequence[dict]) -> list[dict]:
    from headtools._engine.processes import current_process

    return [{name: value.to(current_process().device) for name, value in batch.items()} for batch in batches]


@contextmanager
def _shared_processes() -> Iterator[None]:
    from headtools._engine.processes import sharded

    with sharded():
        yield


@contextmanager
def _one_process(name: str) -> Iterator[None]:
    """Refuse to do the same work several times, and write to one file from several processes."""
    from headtools._engine.processes import launched_count

    if launched_count() > 1:
        raise ValueError(
            f"{launched_count()} processes can share {' and '.join(SHARED)} only; start {name} once, without accelerate"
        )
    with _shared_processes():
        yield


def _announce(text: str) -> None:
    """Print what is going to be measured, once for all processes and apart from the results."""
    from headtools._engine.processes import current_process

    if current_process().main:
        print(text, file=sys.stderr, flush=True)


def _say(text: str) -> None:
    """Print a result, once for all processes."""
    from headtools._engine.processes import current_process
    from headtools._engine.progress import print_encodable

    if current_process().main:
        print_encodable(text)


def _show(frame: pd.DataFrame, out: Path | None) -> None:
    """Print a table, or write it to a file, once for all processes, and print where it is."""
    import json

    from headtools._engine.processes import current_process
    from headtools._report.page import write

    if not current_process().main:
        return
    if out is None:
        _say(frame.to_string(index=False))
        return
    text = frame.to_csv(index=False) if out.suffix == ".csv" else json.dumps(frame.to_dict("records"), indent=1)
    _say(str(write(text, out)))


def _check_table_file(out: Path | None) -> None:
    """Say before an hour's work, not after it, that a table has nowhere to go."""
    if out is None:
        return
    if out.suffix not in (".csv", ".json"):
        raise ValueError(f"--out {out}: a table is written as .csv or .json")
    _check_folder_of(out)


def _check_folder_of(out: Path) -> None:
    if not out.parent.is_dir():
        raise FileNotFoundError(f"--out {out}: {out.parent} is no folder; make it first")
    if out.is_dir():
        raise IsADirectoryError(f"--out {out} is a folder; name a file in it, such as {out / 'page.html'}")
