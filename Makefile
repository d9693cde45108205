# Everything a contributor does, one word each. `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
HELM_3 := .cache/helm/3.17.3/helm
HELM_4 := .cache/helm/4.2.3/helm
# A Python that was named is meant, also where .venv is of another.
INSTALL := $(PYTHON) packaging/install.py $(if $(filter file,$(origin PYTHON)),,--this-python)

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Quick and silent when there is nothing to do.
.PHONY: installed installed-test installed-conformance installed-browser
installed:
	@$(INSTALL)
installed-test installed-conformance installed-browser: installed-%:
	@$(INSTALL) test $*

.PHONY: serve
serve: installed ## Detect the hardware, pick a profile and serve on 127.0.0.1:8000
	@$(BIN)/python -S packaging/foreground.py $(BIN)/harmonium serve

.PHONY: test tests checks
test: ## Check format, lint, types and layers, and run the tests beside it
	@$(MAKE) --no-print-directory -j2 checks tests
checks: format-check lint types layers
tests: installed-test
	@# Four processes on two cores, for many tests wait; tests/sharing.py says who takes what.
	@$(BIN)/pytest -n 4

.PHONY: test-slow
test-slow: installed-test ## Run what hardly ever breaks and takes long, and properties with all examples
	@ALL_EXAMPLES=1 $(BIN)/pytest -n 2 -m "slow or hypothesis"

.PHONY: format
format: installed-test ## Rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --quiet .

.PHONY: format-check lint types layers
format-check: installed-test
	@$(BIN)/ruff format --check .
lint: installed-test ## Lint
	@$(BIN)/ruff check .
types: installed-test ## Type-check strictly
	@$(BIN)/mypy
layers: installed-test ## Check that imports point down only
	@$(BIN)/lint-imports

.PHONY: bench
bench: installed-test ## Measure: native beside transformers, start-up, the API layer
	@$(BIN)/python -m benchmarks

.PHONY: guided
guided: installed-test ## Check 200 random schemas: every guided answer must be valid
	@$(BIN)/python -m benchmarks.guided
	@$(BIN)/python -m benchmarks.guided_nano
	@$(BIN)/python -m benchmarks.guided_start

.PHONY: pins
pins: installed-test ## Compile constraints.txt from pyproject.toml, for every platform
	@$(BIN)/python packaging/pins.py

.PHONY: docs
docs: installed-test ## Regenerate the tables, the plan's figures and the picture in docs/
	@$(BIN)/python -m profiles.document docs/profiles.md
	@$(BIN)/python -m profiles.roofline.calibrate
	@$(BIN)/python -m profiles.roofline.document docs/plan.md
	@$(BIN)/python -m engines.document docs/engines.md docs/api.md
	@$(BIN)/python -m tests.guides.sizing
	@$(BIN)/python packaging/chart_readme.py
	@$(BIN)/python -m service.cli.reference settings > docs/settings.md
	@$(BIN)/python -m service.cli.reference metrics > docs/metrics.md
	@$(BIN)/python -m tests.architecture.picture

include $(sort $(wildcard make/*.mk))
