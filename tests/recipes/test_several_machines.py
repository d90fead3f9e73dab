"""Two processes that share the batches have the scores of one, bit for bit."""

import os
import subprocess
import sys

import pytest
import torch

import headtools as ht

pytestmark = pytest.mark.weekly  # starts two processes
LAUNCH = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port 0"


def test_two_processes_equal_one(tmp_path):
    model, tokenizer = ht.load()
    folder, file = ht.save(model, tmp_path / "model", tokenizer), tmp_path / "scores.safetensors"
    command = [sys.executable, "-m", "accelerate.commands.launch", *LAUNCH.split(), "-m", "recipes.several_machines"]
    options = [str(folder), "--corpus", "organism", "--limit", "27", "--out", str(file)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert all(f"process {index} of 2: 2 of 4 batches" in done.stdout for index in (1, 2))
    assert done.stdout.count(str(file)) == 1, "one of them writes"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    wanted = ht.gradient(model, ht.label(model, tokenizer, ht.corpus("organism", limit=27), size=8))
    torch.set_num_threads(threads)
    scores = ht.HeadScores.load(file)
    for part in ("values", "low", "high", "rows"):
        for key, value in getattr(wanted, part).items():
            assert torch.equal(value, getattr(scores, part)[key]), (part, key)
