#!/bin/sh
# Open JupyterLab on your copy of the first lesson:  sh tools/lab.sh [more arguments for jupyter lab]
set -eu

# Yours to write in: a copy of the lessons without outputs, made once (tools/my_lessons.py).
first=my-lessons/00_start_here.ipynb
.venv/bin/python tools/my_lessons.py

# Our settings (no news, no update check) join whatever settings you have.
export JUPYTER_CONFIG_PATH="$PWD/tools/jupyter${JUPYTER_CONFIG_PATH:+:$JUPYTER_CONFIG_PATH}"

# glibc keeps freed memory in pieces between tensors of many sizes; with this it gives large ones back at once, which
# saves the lessons that train a model 150 MB. Other systems do not read it.
export MALLOC_MMAP_THRESHOLD_=1000000

set -- --ServerApp.root_dir="$PWD" --LabApp.default_url="/lab/tree/$first" "$@"

# Without a display a text browser would take over the terminal: print the address instead.
if [ "$(uname)" = Linux ] && [ -z "${DISPLAY:-}${WAYLAND_DISPLAY:-}${BROWSER:-}" ]; then
    echo "No display here: copy the last address below into a browser."
    set -- --no-browser "$@"
fi
# Jupyter refuses to run as root; in a container root is often the only user there is.
if [ "$(id -u)" = 0 ]; then
    echo "You are root: anyone with the address below can do anything on this machine. Keep it to yourself."
    set -- --allow-root "$@"
fi
echo "JupyterLab opens on $first. Stop it with Ctrl-C, twice."
exec .venv/bin/python -m jupyterlab "$@"
