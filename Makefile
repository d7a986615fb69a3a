# Needs make and Python 3.11 or newer; everything else goes into .venv. `make PYTHON=python3.12 demo`
# names the Python; your own Airflow, its home and its connections are not touched.

SHELL := /bin/sh
PYTHON ?=
VENV ?= .venv
# Who answers in the demo: simulated, or local (Gemma 3 270M; 270 MB more to install).
MODEL ?= simulated
BIN := $(VENV)/bin
PATHS := airflow_batch_llm example_dags tests benchmarks docs
PYTEST := $(BIN)/python -m pytest

# What of the integration tests is run beside the unit tests, and what by itself; all else runs beside the
# end-to-end tests. The three take about as long as each other.
ENGINE_TESTS := $(addprefix tests/integration/,cases engine)
WIRE_TESTS := $(addprefix tests/integration/,cli contract inputs live protocols storage test_chaos.py workloads)

# Nothing of the caller's own Airflow may leak in.
unexport AIRFLOW_CONFIG

.DEFAULT_GOAL := help
.PHONY: help demo demo-ui test test-unit test-integration test-e2e test-peers chaos live lint format venv-demo venv-dev clean

help: ## Say what there is.
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

demo: venv-demo ## Run the nightly example end to end, without any key. MODEL=local: with a small real model.
	AIRFLOW_HOME=$(CURDIR)/.demo/airflow $(BIN)/python -m example_dags.demo --model $(MODEL)

demo-ui: venv-demo ## The same, and leave Airflow running for a look around.
	AIRFLOW_HOME=$(CURDIR)/.demo/airflow $(BIN)/python -m example_dags.demo --model $(MODEL) --ui

test: lint ## Lint, types, then the unit, integration and e2e tests, in three processes.
	@.ci/side_by_side \
		engine $(PYTEST) --durations=15 tests/unit $(ENGINE_TESTS) ::: \
		wire $(PYTEST) --durations=15 $(WIRE_TESTS) ::: \
		airflow $(PYTEST) --durations=15 tests/integration tests/e2e \
			$(addprefix --ignore=,$(ENGINE_TESTS) $(WIRE_TESTS))

test-unit: venv-dev ## The tests that need no Airflow process.
	AIRFLOW_HOME=$(CURDIR)/.test/airflow $(PYTEST) tests/unit

test-integration: venv-dev ## The tests with real Airflow tasks, databases and the local server.
	AIRFLOW_HOME=$(CURDIR)/.test/airflow $(PYTEST) tests/integration

test-e2e: venv-dev ## The tests with a whole Airflow.
	AIRFLOW_HOME=$(CURDIR)/.test/airflow $(PYTEST) tests/e2e

test-peers: venv-dev ## Whole jobs against servers of other people, which it installs itself (docs/peers.md).
	nice $(BIN)/python -m tests.peers.install .peers
	AIRFLOW_HOME=$(CURDIR)/.test/airflow $(PYTEST) tests/peers

chaos: venv-dev ## Seeded faults of every kind against the whole engine: nothing lost, nothing paid twice (docs/chaos.md).
	$(BIN)/python -m tests.chaos --protocol all

live: venv-dev ## Twenty rows through each real service that the environment has a key for; paid for (docs/live.md).
	@$(BIN)/python -m tests.live

lint: venv-dev ## ruff and mypy.
	$(BIN)/ruff check $(PATHS)
	$(BIN)/ruff format --check $(PATHS)
	AIRFLOW_HOME=$(CURDIR)/.test/airflow $(BIN)/mypy

format: venv-dev ## Let ruff put imports and layout right.
	$(BIN)/ruff check --fix $(PATHS)
	$(BIN)/ruff format $(PATHS)

venv-demo:
	@.ci/venv $(VENV) demo $(PYTHON)
	@$(if $(filter local,$(MODEL)),.ci/venv $(VENV) local $(PYTHON),true)

venv-dev:
	@.ci/venv $(VENV) dev $(PYTHON)

clean: ## Remove the environment and all that demo and tests left.
	rm -rf $(VENV) .demo .test .peers .live .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find airflow_batch_llm example_dags tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
