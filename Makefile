# Two commands for newcomers: `make demo` runs the main job end to end, `make test` proves the project.
PYTHON ?= python3
VENV ?= .venv
FRAMEWORKS ?= .venv-frameworks
BIN := $(VENV)/bin
PACKAGES := meshwright planner executor costmodel hardware_profiles
SOURCES := $(PACKAGES) tests benchmarks examples
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo accuracy test check format lint types contracts tests test-slow wheel-check frameworks-check clean

help:
	@echo "make demo         measure this machine, plan, explain, export, and train a small model with the plan"
	@echo "make test         every check that must pass: format, lint, types, import contracts, tests"
	@echo "make test-slow    the long tests too"
	@echo "make wheel-check  build the wheel, install it without extras elsewhere and plan there"
	@echo "make frameworks-check  install the training frameworks and let their own parsers read our exports"
	@echo "make accuracy     replay the published runs: docs/accuracy.md, its plot and the table of the README"
	@echo "make format       rewrite the sources in the house format"

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "meshwright needs Python 3.11 or newer; found $$($(PYTHON) --version). Use: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[run,dev]'
	@touch $@

demo: $(VENV)/.installed
	PATH="$(abspath $(BIN)):$$PATH" bash examples/demo.sh

# What lies there is shown: errors on unseen runs as the calibration left them, and what is said by hand.
CALIBRATION := $(wildcard benchmarks/data/calibration.json)
ACCURACY_NOTES := $(wildcard docs/accuracy_notes.md)

accuracy: $(VENV)/.installed
	$(BIN)/meshwright replay benchmarks/data/published_runs/*.jsonl --report docs/accuracy.md --readme README.md --force \
		$(if $(CALIBRATION),--calibration $(CALIBRATION)) $(if $(ACCURACY_NOTES),--notes $(ACCURACY_NOTES))

test: check

check: lint types contracts tests

format: $(VENV)/.installed
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

lint: $(VENV)/.installed
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: $(VENV)/.installed
	$(BIN)/mypy

contracts: $(VENV)/.installed
	$(BIN)/lint-imports --no-cache

# Tests that time links want the machine to themselves; the others share its cores.
SELECTED := not gpu and not framework

tests: SELECTED += and not slow
tests test-slow: $(VENV)/.installed
	$(BIN)/pytest -m "$(SELECTED) and not alone" --numprocesses auto --maxprocesses 4 --dist worksteal
	$(BIN)/pytest -m "$(SELECTED) and alone"

# The planning path must work without torch: a second environment with nothing but the wheel.
wheel-check: $(VENV)/.installed
	PYTHON="$(PYTHON)" BIN="$(abspath $(BIN))" bash .ci/wheel_check

$(FRAMEWORKS)/.installed: $(VENV)/.installed constraints-frameworks.txt .ci/frameworks_environment
	PYTHON="$(PYTHON)" VENV="$(VENV)" bash .ci/frameworks_environment $(FRAMEWORKS)
	@touch $@

# Exports are read by the frameworks they are for; one that is not installed is a failure, not a skip.
frameworks-check: $(FRAMEWORKS)/.installed
	FRAMEWORKS_PYTHON="$(abspath $(FRAMEWORKS))/bin/python" $(BIN)/pytest -m framework tests/frameworks

clean:
	rm -rf $(VENV) $(FRAMEWORKS) build dist demo-output .mypy_cache .pytest_cache .ruff_cache .hypothesis
