#!/bin/sh
# Make the environments that the benchmark compares with: one in .venv-peers for every list in tools/bench/peers.
#
#   sh tools/peers.sh PYTHON        PYTHON is that of the test environment: .venv-test/bin/python
#
# Each holds exactly the versions of its list and sees everything else, torch above all, in the test environment, so that
# no second torch is fetched. What cannot be installed leaves a note in its folder, and the benchmark tells it.
set -eu

python=$1
lists=tools/bench/peers
borrowed=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export PIP_DISABLE_PIP_VERSION_CHECK=1

for list in "$lists"/*.txt; do
    name=$(basename "$list" .txt)
    folder=.venv-peers/$name
    stamp=$folder/installed-$({ cat "$list" tools/peers.sh; pwd; printf '%s' "$borrowed"; } | cksum | tr ' ' '-')
    [ -f "$stamp" ] && continue
    echo "Making $folder."
    rm -rf "$folder"
    "$python" -m venv "$folder"
    if "$folder/bin/python" -m pip install --quiet --no-deps --requirement "$list" 2> "$folder/failed"; then
        rm -f "$folder/failed"
        # last, so that pip saw none of it; the folder's own packages come first
        "$folder/bin/python" -c 'import sys, sysconfig; open(sysconfig.get_path("purelib") + "/borrowed.pth", "w").write(sys.argv[1] + "\n")' "$borrowed"
        : > "$stamp"
    else
        echo "Not installed, the table will say so: $(tail -n 1 "$folder/failed")"
    fi
done
