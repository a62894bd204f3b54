#!/usr/bin/env bash
# Creates a Python environment in a folder, replacing what is there:
#
#   bash scripts/make-venv.sh FOLDER
#
# Debian's Python lacks the module for this, which is then installed.
set -euo pipefail

if ! python3 -c 'import ensurepip' 2>/dev/null; then
    sudo=()
    [[ $(id -u) == 0 ]] || sudo=(sudo --non-interactive)
    "${sudo[@]}" apt-get update --quiet=2
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends python3-venv
fi
python3 -m venv --clear "$1"
