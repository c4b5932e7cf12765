#!/usr/bin/env bash
# Make the Python environment: a venv, uv with its hash, then the locked dependencies with theirs, then this package.
set -euo pipefail
: "${PYTHON:=python3}" "${VENV:=.venv}"
"$PYTHON" - <<'PY' || { echo "Moorage needs Python 3.11 or later; set PYTHON=/path/to/python3.11" >&2; exit 1; }
import sys
raise SystemExit(sys.version_info < (3, 11))
PY
if ! "$PYTHON" -m venv "$VENV" 2>/dev/null; then
    command -v apt-get >/dev/null || { echo "python3-venv is missing; install it and try again" >&2; exit 1; }
    apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
    "$PYTHON" -m venv --clear "$VENV"
fi
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --requirement tools/uv.lock
export VIRTUAL_ENV="$PWD/$VENV"
"$VENV/bin/uv" pip install --quiet --require-hashes --requirement requirements.lock
"$VENV/bin/uv" pip install --quiet --no-deps --no-build-isolation --editable .
