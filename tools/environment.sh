#!/bin/sh
# Make a virtual environment with the package in it, from the files that a lock names and no others.
#
#   sh tools/environment.sh FOLDER LOCK        for example: sh tools/environment.sh .venv requirements-course.lock
#
# Read from the environment: PYTHON (the interpreter to use), TORCH=cpu (take torch from PyTorch's own index of
# builds without GPU packages). Does nothing when FOLDER was made from the same pyproject.toml, constraints.txt and
# lock by this script before: a file in it, whose name holds their checksum, says so.
set -eu

folder=$1
lock=$2
cpu_index=https://download.pytorch.org/whl/cpu

# The folder's own path is part of the key because an editable install points at it: a moved clone is installed anew.
key=$({ cat pyproject.toml constraints.txt "$lock" tools/environment.sh; pwd; } | cksum | tr ' ' '-')
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
say "Installing what $lock names, each file compared with its SHA-256 (once; a few minutes)."
# --no-deps: the lock is complete. --only-binary: a file that would have to be built here brings a compiler's riddles
# and tools that no lock names. setuptools is in the lock, so that building our own package downloads nothing either.
if ! "$folder/bin/python" -m pip install --quiet --require-hashes --no-deps --only-binary=:all: --requirement "$lock"; then
    say "Not installed: pip says above which file. The lock has files for Python 3.11 to 3.14 on Linux (x86-64, ARM), macOS" >&2
    say "(ARM) and Windows. \"No matching distribution\": try another Python, make lab PYTHON=/path/to/python3.13. \"Hashes do" >&2
    say "not match\": the file is another than the one headtools was proven with; do not use the place it came from." >&2
    exit 1
fi
say "Then torch, the largest."
# torch is not in the lock: it is the one package whose source differs from machine to machine. All that it needs is
# there by now, but for the GPU packages that its default build for Linux brings; PyTorch's index has no others.
if [ "${TORCH:-}" = cpu ]; then
    "$folder/bin/python" -m pip install --constraint constraints.txt --no-deps --index-url "$cpu_index" torch
else
    "$folder/bin/python" -m pip install --constraint constraints.txt torch
fi
"$folder/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .
: > "$stamp"
say "Done. Next time this step is skipped."
