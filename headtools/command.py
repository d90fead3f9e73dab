"""The command line: ``python -m headtools report | roles | importance | prune MODEL``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHARED = ("roles", "importance")
METHODS = ("gradient", "confidence", "ablation", "relevance")
EXAMPLES = """examples:
  python -m headtools report organism --out organism.html
  python -m headtools report ./my-bert --corpus treebank.conllu --out report.html
  python -m headtools roles ./my-bert --corpus english --out roles.csv
  python -m headtools importance ./my-gpt2 --corpus english --method ablation --out importance.csv
  python -m headtools prune ./my-bert --corpus english --keep 0.75 --out ./my-smaller-bert
  accelerate launch --multi_gpu --num_processes 4 -m headtools importance ./my-bert --run scores --out scores.csv

Several processes share the work of roles and importance where accelerate starts them, with GPUs or without.
MODEL is organism (the model that ships with headtools), a folder that save_pretrained wrote, or a name on the Hub.
Exit status: 0 done, 1 something was wrong with what came (the message says what), 2 not understood, 130 interrupted."""


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; messages go to stderr, where results go is told on stdout."""
    options = parser().parse_args(words)
    from headtools.heads.progress import say
    from headtools.heads.shards import ElsewhereError, launched, sharded

    try:
        _refuse_folder(options)
        if launched() > 1 and options.command not in SHARED:
            raise ValueError(f"{launched()} processes share {' and '.join(SHARED)}; start this command once")
        with sharded() as shard:
            told = _COMMANDS[options.command](options)
            if shard.main:
                say(told)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except ElsewhereError:
        return 1  # said by the process that failed
    except (ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
        what = error.args[0] if isinstance(error, KeyError) and error.args else error
        print(f"headtools {options.command}: {what}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    found = argparse.ArgumentParser(
        prog="python -m headtools", description="See, weigh and cut the attention heads of a model.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("report", "measure everything and write one HTML page"),
        ("roles", "what each head looks at, beside baselines, with intervals"),
        ("importance", "what each head is worth to the loss"),
        ("prune", "cut the least important heads and save the smaller model"),
    ):
        one = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        one.add_argument("model", metavar="MODEL", help="organism, a folder, or a name on the Hub")
        one.add_argument("--corpus", default=None, metavar="FILE",
                         help="organism, english, or a .conllu file (default: its own, or english)")  # fmt: skip
        one.add_argument("--limit", type=_count, default=100, metavar="N", help="sentences, at most (default 100)")
        one.add_argument("--seed", type=int, default=0, help="of everything that is random (default 0)")
        one.add_argument("--out", type=Path, required=name in ("report", "prune"), metavar="PATH", help={
            "report": "the page to write", "prune": "the new folder of the smaller model",
        }.get(name, ".csv or .json to write; left out, the table is printed"))  # fmt: skip
        if name in SHARED:
            one.add_argument("--run", type=Path, metavar="FOLDER",
                             help="where each batch is kept; the same command goes on from there")  # fmt: skip
        if name == "importance":
            one.add_argument("--method", choices=METHODS, default="gradient", help="default gradient")
        if name == "roles":
            one.add_argument("--held", action="store_true", help="only rows of heads that hold the role")
        if name == "prune":
            one.add_argument("--keep", type=_share, required=True, metavar="SHARE", help="of the heads, such as 0.75")
            one.add_argument("--kind", choices=("encoder", "decoder", "cross"), help="cut only heads of this kind")
    return found


def _report(options: argparse.Namespace) -> str:
    import headtools as ht

    model, tokenizer, sentences = _subject(options)
    title = f"The heads of {options.model}"
    done = ht.report(model, sentences, tokenizer, path=options.out, limit=options.limit, seed=options.seed, title=title)
    lacks = "".join(f"\nnot measured: {part}: {why}" for part, why in done.missing.items())
    return f"{options.out}{lacks}"


def _roles(options: argparse.Namespace) -> str:
    import headtools as ht

    model, tokenizer, sentences = _subject(options)
    if tokenizer is None:
        raise ValueError(f"{options.model} has no tokenizer beside it, and roles are measured on words: save it there")
    frame = ht.taxonomy(model, tokenizer, sentences, seed=options.seed, run=options.run)
    return _told(frame[frame.holds] if options.held else frame, options.out)


def _importance(options: argparse.Namespace) -> str:
    import headtools as ht
    from headtools.heads.shards import current

    model, tokenizer, sentences = _subject(options)
    batches = [{name: value.to(current().device) for name, value in batch.items()}
               for batch in ht.label(model, tokenizer, sentences, seed=options.seed)]  # fmt: skip
    kept = {} if options.run is None else {"run": options.run}
    return _told(getattr(ht, options.method)(model, batches, **kept).to_frame(), options.out)


def _prune(options: argparse.Namespace) -> str:
    import headtools as ht

    model, tokenizer, sentences = _subject(options)
    batches = ht.label(model, tokenizer, sentences, seed=options.seed)
    scores = ht.gradient(model, batches, sites=options.kind)
    going = scores.order()[: len(scores) - round(options.keep * len(scores))]
    ht.prune(model, going)
    ht.save(model, options.out, tokenizer)
    left = f"{len(scores) - len(going)} of {len(scores)} heads left"
    return f"{options.out}: {left}; open it with headtools.load({str(options.out)!r})"


def _subject(options: argparse.Namespace) -> tuple[Any, Any, list]:
    """Return the model, on the device of this process, its tokenizer and the sentences."""
    import headtools as ht
    from headtools.heads.shards import current

    own = options.model == "organism"
    sentences = ht.corpus(options.corpus or ("organism" if own else "english"), limit=options.limit)
    model, tokenizer = ht.load(None if own else options.model)
    return model.to(current().device), tokenizer, sentences


def _told(frame: Any, out: Path | None) -> str:
    """Return a table as text, or write it, once for all processes, and return where it is."""
    from headtools.heads.shards import current
    from headtools.lesson.page import write

    if out is None or not current().main:
        return frame.to_string(index=False)
    text = frame.to_csv(index=False) if out.suffix == ".csv" else json.dumps(frame.to_dict("records"), indent=1)
    return str(write(text, out))


def _refuse_folder(options: argparse.Namespace) -> None:
    """Say at once, before an hour's work, that a result has nowhere to go."""
    if getattr(options, "run", None) is not None and getattr(options, "method", "") == "confidence":
        raise ValueError("--run keeps gradient, ablation and relevance; confidence takes one pass, leave --run out")
    if options.out is None:
        return
    if options.command in ("roles", "importance") and options.out.suffix not in (".csv", ".json"):
        raise ValueError(f"--out {options.out}: a table is written as .csv or .json")
    if options.command != "prune" and not options.out.parent.is_dir():
        raise FileNotFoundError(f"--out {options.out}: {options.out.parent} is no folder; make it first")
    if options.command == "prune" and options.out.exists():
        raise FileExistsError(f"--out {options.out} is there already: name a new folder")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 2 on is needed")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a share between 0 and 1 is needed, such as 0.75")
    return share


_COMMANDS = {"report": _report, "roles": _roles, "importance": _importance, "prune": _prune}
