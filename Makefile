# Everything a contributor does, one word each. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.serve: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Harmonium (first time only) ..."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.serve
	@$(PIP) --editable '.[test]'
	@touch $@

.PHONY: serve
serve: $(VENV)/.serve ## Detect the hardware, pick a profile and serve on 127.0.0.1:8000
	@# In a process group of its own (-m), so that Ctrl-C drains the server and make ends with its 0.
	@bash -mc '$(BIN)/harmonium serve'

.PHONY: test
test: format-check lint types layers ## Check format, lint, types and layers, then run the tests
	@# Two processes: most tests wait for processes of their own rather than compute.
	@$(BIN)/pytest -n 2 --dist loadfile

.PHONY: format
format: $(VENV)/.test ## Rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --quiet .

.PHONY: format-check lint types layers
format-check: $(VENV)/.test
	@$(BIN)/ruff format --check .
lint: $(VENV)/.test ## Lint
	@$(BIN)/ruff check .
types: $(VENV)/.test ## Type-check strictly
	@$(BIN)/mypy
layers: $(VENV)/.test ## Check that imports point down only
	@$(BIN)/lint-imports

.PHONY: bench
bench: $(VENV)/.test ## Measure: native beside transformers, start-up, the API layer
	@$(BIN)/python -m benchmarks

.PHONY: guided
guided: $(VENV)/.test ## Check 200 random schemas: every guided answer must be valid
	@$(BIN)/python -m benchmarks.guided
	@$(BIN)/python -m benchmarks.guided_nano

.PHONY: pins
pins: $(VENV)/.test ## Compile constraints.txt from pyproject.toml, for every platform
	@$(BIN)/python packaging/pins.py

.PHONY: docs
docs: $(VENV)/.test ## Regenerate the tables in docs/
	@$(BIN)/python -m profiles.document docs/profiles.md
	@$(BIN)/python -m service.settings_reference > docs/settings.md
	@$(BIN)/python -m service.metrics_reference > docs/metrics.md

include faults.mk

include nano/nano.mk packaging.mk rolling.mk conformance.mk monitoring.mk oidc.mk audit.mk
