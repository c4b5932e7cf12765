# Moorage. `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.moorage-setup
MOTO := $(VENV)/moto/.moorage-setup
NODES ?= 1
# test processes: one more than cores, as much of a test is waiting; still more take no less time
JOBS ?= 3
CLUSTER := $(BIN)/python -m e2e.cluster
PYTEST := $(BIN)/python -m pytest --durations 25 --durations-min 10
RESOLVE := $(BIN)/uv pip compile -q --upgrade --generate-hashes --no-emit-index-url --no-header --python-version 3.11
# the tests' cluster stands beside the demo's, under a name of its own
TESTED := MOORAGE_CLUSTER_NAME=$${MOORAGE_CLUSTER_NAME:-moorage-test}

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- environment ------------------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(STAMP) $(MOTO) ## make the Python environment in .venv, from the lock file with hashes

$(STAMP): requirements.lock tools/uv.lock pyproject.toml tools/setup.sh
	@PYTHON=$(PYTHON) VENV=$(VENV) bash tools/setup.sh
	@touch $@

# the S3 server of the tests: nothing of it is imported, so it stands apart, and who only runs the demo needs none
$(MOTO): tools/moto.lock | $(STAMP)
	@$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)/moto
	@$(BIN)/uv pip install --quiet --python $(VENV)/moto/bin/python --require-hashes --requirement tools/moto.lock
	@touch $@

.PHONY: lock
lock: $(STAMP) ## resolve the dependencies again and write requirements.lock and tools/moto.lock
	$(RESOLVE) --extra dev pyproject.toml -o requirements.lock
	$(RESOLVE) tools/moto.in -o tools/moto.lock

# --- see it -----------------------------------------------------------------------------------------------------------

.PHONY: demo demo-local demo-clean
demo: $(STAMP) ## the main job, first on this machine, then on a real cluster that is built if there is none
	@$(BIN)/python -m e2e.demo all

demo-local: $(STAMP) ## the main job on this machine, without a cluster
	@$(BIN)/python -m e2e.demo local

demo-clean: $(STAMP) ## remove all that the demo left: cluster, images, built programs (KEEP=1 keeps what took long to build)
	@$(BIN)/python -m e2e.demo clean

# --- check it ---------------------------------------------------------------------------------------------------------

.PHONY: sbom
sbom: $(STAMP) ## what is in each image (CycloneDX, build/sbom/), read from the images themselves
	@$(CLUSTER) sbom

.PHONY: test lint test-unit test-integration test-e2e torture soak rules bench
test: $(STAMP) $(MOTO) ## everything: lint, types, layers, unit, property, contract, integration, e2e
	@bash tools/test.sh

lint: $(STAMP) ## format, lint, types, layers, generated files, rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m moorage.api.crd --check
	$(BIN)/python tools/rules.py --unknown

test-unit: $(STAMP) $(MOTO) ## unit, property, contract and replay tests: no cluster
	@$(CLUSTER) prepare
	$(PYTEST) -n $(JOBS) --dist loadfile tests/unit tests/property tests/contract tests/replay

test-integration: $(STAMP) $(MOTO) ## against a real kube-apiserver and etcd
	@$(CLUSTER) programs
	$(PYTEST) -n 2 --dist loadfile tests/integration

test-e2e: $(STAMP) $(MOTO) ## on a real node with gVisor
	@$(CLUSTER) programs
	@$(CLUSTER) agents
	@$(TESTED) $(CLUSTER) up
	@$(TESTED) $(CLUSTER) images
	$(TESTED) $(PYTEST) -n 2 --dist loadfile -m "not alone" e2e/cases
	$(TESTED) $(PYTEST) -m alone e2e/cases

torture: $(STAMP) ## kill a small run at named points (KILLS=1000, SEED=1, STORE=sqlite|postgres); the last line is the tally
	@nice $(BIN)/python -m moorage.testing --kills $(or $(KILLS),1000) --seed $(or $(SEED),1) --store $(or $(STORE),sqlite)

soak: $(STAMP) ## a real gateway under everyday load (SECONDS=3600, SEED=1): memory, files, loop lag; the last line is the tally
	@$(BIN)/python -m e2e.soak --seconds $(or $(SECONDS),3600) --seed $(or $(SEED),1)

rules: $(STAMP) ## which rules of the runtime have a test that names them
	@$(BIN)/python tools/rules.py

bench: $(STAMP) ## measure, each figure beside its baseline; writes docs/benchmarks.md
	@$(BIN)/python -m e2e.bench

# --- the cluster ------------------------------------------------------------------------------------------------------

.PHONY: cluster-up cluster-down kubeconfig images push deploy crds
cluster-up: $(STAMP) ## a real cluster on this machine (NODES=1|2, MOORAGE_CLUSTER_NAME=…)
	@$(CLUSTER) up --nodes $(NODES)

cluster-down: $(STAMP) ## remove the cluster and all it left
	@$(CLUSTER) down

kubeconfig: $(STAMP) ## print the path of the cluster's kubeconfig
	@$(CLUSTER) kubeconfig

images: $(STAMP) ## build the images and bring them to the cluster's nodes
	@$(CLUSTER) images

push: $(STAMP) ## build the images and push them to a registry (REGISTRY=host/folder)
	@$(CLUSTER) push $(REGISTRY)

deploy: $(STAMP) ## install or upgrade the chart on the cluster
	@$(CLUSTER) deploy

crds: $(STAMP) ## write crds/ and the chart's copy from the pydantic models
	$(BIN)/python -m moorage.api.crd
