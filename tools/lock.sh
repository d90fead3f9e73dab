#!/bin/sh
# Write the two locks: every package of constraints.txt with the SHA-256 of every file of it, for Linux, macOS and
# Windows and every Python from 3.11.
#
#   sh tools/lock.sh PYTHON        PYTHON is that of the test environment, which has uv: .venv-test/bin/python
#
# requirements.lock has what developers and CI need, requirements-course.lock what a learner needs. setuptools is in
# both, because it builds our own package. The locks name no address, so a mirror serves as well.
set -eu

python=$1
# torch is left out, because its builds for GPUs and for processors differ: tools/environment.sh takes it from where the
# machine needs it. Left out with it is what only its GPU builds need, and what only a Python in a browser needs.
left_out=$(mktemp)
trap 'rm -f "$left_out"' EXIT
printf '%s\n' cuda-bindings cuda-toolkit nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 \
    nvidia-nvshmem-cu13 triton httpx2-jsfetch > "$left_out"

lock() { # FILE OPTION...: --upgrade takes the files that are there now, not those that FILE named before
    file=$1
    shift
    echo setuptools | "$python" -m uv pip compile pyproject.toml - "$@" --constraints constraints.txt \
        --excludes "$left_out" --no-emit-package torch --universal --python-version 3.11 --generate-hashes --upgrade \
        --no-annotate --custom-compile-command "make lock" --quiet --output-file "$file" > /dev/null
}
lock requirements.lock --extra course --extra test --extra site --extra scale --extra grading
lock requirements-course.lock --extra course
