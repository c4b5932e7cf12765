#!/usr/bin/env bash
# Make the Python environment: a venv, uv with its hash, then the locked dependencies with theirs, then this package.
set -euo pipefail
: "${PYTHON:=python3}" "${VENV:=.venv}"
"$PYTHON" - <<'PY' || { echo "Moorage needs Python 3.11 or later; set PYTHON=/path/to/python3.11" >&2; exit 1; }
import sys
raise SystemExit(sys.version_info < (3, 11))
PY
# an environment without the stamp is one that an earlier run left half-made
[ -e "$VENV/.moorage-setup" ] || fresh=--clear
if ! "$PYTHON" -m venv ${fresh:-} "$VENV" 2>/dev/null; then
    command -v apt-get >/dev/null || { echo "python3-venv is missing; install it and try again" >&2; exit 1; }
    export DEBIAN_FRONTEND=noninteractive
    dpkg --configure -a # an apt that was killed leaves packages half-way
    apt-get -o DPkg::Lock::Timeout=300 update -qq
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends python3-venv >/dev/null
    "$PYTHON" -m venv --clear "$VENV"
fi
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --requirement tools/uv.lock
export VIRTUAL_ENV="$PWD/$VENV"
"$VENV/bin/uv" pip install --quiet --require-hashes --requirement requirements.lock
"$VENV/bin/uv" pip install --quiet --no-deps --no-build-isolation --editable .
