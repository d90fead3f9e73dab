#!/bin/sh
# Make a virtual environment with the package in it, from the versions in constraints.txt.
#
#   sh tools/environment.sh FOLDER EXTRAS        for example: sh tools/environment.sh .venv course
#
# Read from the environment: PYTHON (the interpreter to use), TORCH=cpu (take torch from PyTorch's own index of
# builds without GPU packages). Does nothing when FOLDER was made from the same pyproject.toml and constraints.txt
# by this script before: a file in it, whose name holds their checksum, says so.
set -eu

folder=$1
extras=$2
cpu_index=https://download.pytorch.org/whl/cpu

# The folder's own path is part of the key because an editable install points at it: a moved clone is installed anew.
key=$({ cat pyproject.toml constraints.txt tools/environment.sh; pwd; echo "$extras"; } | cksum | tr ' ' '-')
stamp=$folder/installed-$key
say() { printf '%s\n' "$*"; }
version() { "$1" -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null; }

# You asked for another Python than the environment has: it is made again.
if [ -n "${PYTHON:-}" ] && [ -d "$folder" ] && [ "$(version "$PYTHON")" != "$(version "$folder/bin/python")" ]; then
    rm -f "$folder"/installed-* "$folder/bin/python"
fi
if [ -f "$stamp" ] && "$folder/bin/python" -c '' >/dev/null 2>&1; then
    exit 0
fi

# True when "$1" runs, is at least 3.11 and younger than 3.$2, and can make an environment.
fits() { "$1" -c "import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, $2))" >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        fits "$PYTHON" 99 && { say "$PYTHON"; return; }
        say "PYTHON=$PYTHON is not a Python 3.11 or newer that can make a virtual environment." >&2
    else
        # The pinned torch has builds for 3.11 to 3.14.
        for name in python3 python3.13 python3.12 python3.11 python3.14 python; do
            fits "$name" 15 && { command -v "$name"; return; }
        done
        say "No Python from 3.11 to 3.14 found (with its venv and ensurepip modules)." >&2
    fi
    say "Install one: Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.13; https://www.python.org." >&2
    say "Then run again, or name it: make lab PYTHON=/path/to/python3.13" >&2
    return 1
}

# An environment that still works is brought up to date; a broken one is made again.
if ! { [ -x "$folder/bin/python" ] && "$folder/bin/python" -m pip --version >/dev/null 2>&1; }; then
    python=$(find_python)
    say "Making $folder with $("$python" -c 'import platform; print("Python", platform.python_version())')."
    rm -rf "$folder"
    "$python" -m venv "$folder"
fi
rm -f "$folder"/installed-*

export PIP_DISABLE_PIP_VERSION_CHECK=1
say "Installing what constraints.txt names (once; a few minutes). First torch, the largest:"
# torch first: it is the one package whose source differs from machine to machine. Without its dependencies where it
# comes from PyTorch's index, because that index does not carry the versions we pin; the next line brings them.
if [ "${TORCH:-}" = cpu ]; then
    "$folder/bin/python" -m pip install --constraint constraints.txt --no-deps --index-url "$cpu_index" torch
else
    "$folder/bin/python" -m pip install --constraint constraints.txt torch
fi
say "Then the rest."
# setuptools is here so that building our own package needs no download of its own.
"$folder/bin/python" -m pip install --quiet --constraint constraints.txt setuptools
"$folder/bin/python" -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[$extras]"
: > "$stamp"
say "Done. Next time this step is skipped."
