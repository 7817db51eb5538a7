#!/usr/bin/env bash
# Write requirements/{dev,runtime,build}.txt anew: every package pinned and hashed, no index named.
#
# One resolution serves every supported CPython on Linux and macOS (--universal), and runtime and build
# are constrained by dev, so the three files never disagree on a version. Arguments go to the resolver
# of dev.txt, for example `tools/lock.sh --upgrade-package ruff`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=.venv/bin/uv
[ -x "$uv" ] || .venv/bin/python -m pip install --quiet uv

lock() { # lock OUTPUT ARGS...: the header names this script, since uv's own would repeat local flags
    local out=requirements/$1
    shift
    "$uv" --no-config pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-header --no-emit-index-url --no-emit-find-links --no-annotate "$@" --output-file "$out"
    sed -i '1i # Made by tools/lock.sh from pyproject.toml; do not edit.' "$out"
}

lock dev.txt pyproject.toml --extra dev --group build "$@"
lock runtime.txt pyproject.toml --constraint requirements/dev.txt
lock build.txt --group build --constraint requirements/dev.txt
wc -l requirements/*.txt
