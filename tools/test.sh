#!/usr/bin/env bash
# All checks, cheap ones first; pytest's summary comes last. What an earlier run left behind is cleaned up by the harness
# before it starts a cluster, and what this run made is removed at its end.
set -euo pipefail
python=.venv/bin/python
export MOORAGE_CLUSTER_NAME="${MOORAGE_CLUSTER_NAME:-moorage-test}" # the demo's cluster may stand beside it
step() { printf '\n== %s (%dm%02ds)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }
step "lint, types, layers, generated files"
make --no-print-directory lint
step "unit, property, contract, replay"
make --no-print-directory test-unit
step "programs of the cluster"
$python -m e2e.cluster programs
step "integration"
make --no-print-directory test-integration
step "cluster and images" # afresh: one that stands was left by a run that was killed
trap '$python -m e2e.cluster down' EXIT
$python -m e2e.cluster down
$python -m e2e.cluster up
$python -m e2e.cluster images
trap - EXIT
step "e2e, two at a time"
$python -m pytest --durations 25 --durations-min 10 -n 2 --dist loadfile -m "not alone" e2e/cases
step "e2e, one at a time"
MOORAGE_E2E_DOWN=1 exec $python -m pytest --durations 25 --durations-min 10 -m alone e2e/cases
