"""Gradient importance by several processes, on one machine or many: each takes its share of the batches.

    accelerate launch --multi_gpu --num_processes 4 -m recipes.several_machines ./my-bert --out scores.safetensors

``--multi_gpu`` is accelerate's switch for several processes; without a card they run on the CPU. For several machines
add ``--num_machines``, ``--machine_rank`` and ``--main_process_ip``, and start the command on each.

The scores are those of one process bit for bit, because a batch is never cut, rows come together in the order of the
batches, and means and intervals are taken from all rows at the end.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from accelerate import PartialState
from accelerate.utils import gather_object, send_to_device

import headtools as ht


def main(
    model: Annotated[str, typer.Argument(help="a name or folder, as headtools.load takes it")],
    corpus: str = "english",
    limit: Annotated[int | None, typer.Option(help="at most so many sentences")] = None,
    out: Path = Path("scores.safetensors"),
) -> None:
    """Measure the share of this process, put all shares together, and write the scores once."""
    state = PartialState(cpu=not torch.accelerator.is_available())  # which of how many processes this is
    loaded, tokenizer = ht.load(model)
    batches = ht.label(loaded, tokenizer, ht.corpus(corpus, limit=limit), size=8)  # the same in every process
    if len(batches) < state.num_processes:
        raise ValueError(f"{len(batches)} batches for {state.num_processes} processes: start fewer, or take more text")
    with state.split_between_processes(send_to_device(batches, state.device)) as share:  # the first, the next, ...
        rows = ht.gradient(loaded.to(state.device), share).rows  # {site: (examples, heads)}
    print(f"process {state.process_index + 1} of {state.num_processes}: {len(share)} of {len(batches)} batches")
    parts = gather_object([{key: value.cpu() for key, value in rows.items()}])  # from all processes, in their order
    together = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    if state.is_main_process:
        print(ht.HeadScores.from_rows(together, "gradient", minimum=0.0).save(out))


if __name__ == "__main__":
    typer.run(main)
