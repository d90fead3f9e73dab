"""Measure the second organism: ``python -m recipes.second_organism.measure TABLE``, then the card is written anew.

TABLE is one of those that ``recipes.second_organism.measures`` lists, or ``controls``, the scores of runs that lack
something. Results are added to ``results/TABLE.json`` under the name of the model, ``seed 1`` by default:

    python -m recipes.second_organism.measure roles
    python -m recipes.second_organism.measure roles --model RUN/model --name "seed 2"
    python -m recipes.second_organism.measure controls --model RUN/model --name "no encoder attention, 3,000 steps"
                                             --attention none
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated

import torch
import typer

import headtools as ht
from recipes._results import read, update
from recipes.second_organism import card
from recipes.second_organism._training_model import encoder_attention

RESULTS, MODEL = card.RESULTS, card.FOLDER
GATED = ("rates", "sweep", "kinds")  # tables of training runs, which can be kept and gone on with
TABLES = (
    "scores",
    "roles",
    "use",
    "coreference",
    "owner",
    "cross",
    "pruning",
    "draws",
    "layers",
    "pairs",
    *GATED,
    "controls",
)


def module(table: str) -> ModuleType:
    """The module that measures a table. Raises ValueError for another name."""
    if table not in TABLES:
        raise ValueError(f"no table {table!r}; there is {', '.join(TABLES)}")
    return importlib.import_module(f"recipes.second_organism.measures.{table}")


def main(
    table: Annotated[list[str], typer.Argument(help=", ".join(TABLES))],
    model: Annotated[Path, typer.Option(help="folder of a trained model")] = MODEL,
    name: Annotated[str, typer.Option(help="what the card calls it")] = "seed 1",
    attention: Annotated[str, typer.Option(help="of the encoder, as it was trained")] = "learned",
    limit: Annotated[int | None, typer.Option(help="at most so many sentences")] = None,
    runs: Annotated[Path | None, typer.Option(help="folder of finished gate runs, to go on after a stop")] = None,
    results: Annotated[Path, typer.Option(help="folder of results")] = RESULTS,
    readme: Annotated[Path, typer.Option(help="the card")] = card.README,
) -> None:
    """Measure tables of one model, keep the numbers, and write the card's tables anew."""
    torch.set_num_threads(1)
    modules = {table_name: module(table_name) for table_name in table}
    loaded, tokenizer = ht.load(model)
    for table_name, measures in modules.items():
        resumable = {"runs": runs / name} if runs and table_name in GATED else {}
        with encoder_attention(loaded, attention):
            result = measures.measure(loaded, tokenizer, limit, **resumable)
        file = results / f"{table_name}.json"
        update(file, lambda old, result=result: dict(sorted((old | {name: result}).items())))
        print(measures.markdown({name: read(file)[name]}))
    card.write(results, readme)


if __name__ == "__main__":
    typer.run(main)
