#!/usr/bin/env bash
# Install the wheel in DIST into an empty environment, away from the repository, and run what a user runs first.
set -euo pipefail
unset PYTHONPATH PYTHONHOME # else the package could come from a clone
dist=$(realpath "${1:?usage: tools/try_wheel.sh DIST}")
constraints=$(realpath "$(dirname "$0")/../constraints.txt")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
# torch first: with TORCH=cpu from PyTorch's own index, so that no GPU packages come with it.
if [ "${TORCH:-}" = cpu ] && [ -z "${PIP_INDEX_URL:-}" ]; then
    "$folder/venv/bin/pip" install -q -c "$constraints" torch --index-url https://download.pytorch.org/whl/cpu
fi
"$folder/venv/bin/pip" install -q -c "$constraints" "$dist"/*.whl
cd "$folder"
HEADTOOLS_CACHE=$folder/cache venv/bin/python - <<'PYTHON'
import torch

import headtools as ht

assert "site-packages" in ht.__file__, f"headtools comes from {ht.__file__}, not from the wheel"
model, tokenizer = ht.load()
sentence = ht.corpus("organism", limit=1)[0]
batch = tokenizer(" ".join(sentence.words), return_tensors="pt")
batch["labels"] = tokenizer(" ".join(sentence.target), return_tensors="pt").input_ids
with torch.no_grad(), ht.ablate(model, {("encoder", 5): range(8)}):
    without = model(**batch).loss.item()
print(f"loss {model(**batch).loss.item():.3f}, without the last encoder layer's heads {without:.3f}")
try:
    ht.load(step=3000)
except FileNotFoundError as error:
    print(error)
else:
    raise SystemExit("the wheel has the snapshots of the model's training, which a clone alone should have")
PYTHON
venv/bin/python -m headtools --version
venv/bin/python -m headtools --help >/dev/null
du -h "$dist"/*.whl
test "$(cat "$dist"/*.whl | wc -c)" -lt 18000000 || { echo "the wheel is larger than 18 MB" >&2; exit 1; }
