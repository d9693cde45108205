# Everything a contributor does, one word each. `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
HELM_3 := .cache/helm/3.17.3/helm
HELM_4 := .cache/helm/4.2.3/helm
# A Python that was named is meant, also where .venv is of another.
INSTALL := $(PYTHON) tools/install.py $(if $(filter file,$(origin PYTHON)),,--this-python)

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Quick and silent when there is nothing to do.
.PHONY: installed installed-test installed-conformance installed-browser
installed:
	@$(INSTALL)
installed-test installed-conformance installed-browser: installed-%:
	@$(INSTALL) test $*

.PHONY: serve
serve: ## Detect the hardware, pick a profile and serve on 127.0.0.1:8000
	@$(INSTALL) --serve
	@$(BIN)/python -S tools/packaging/foreground.py $(BIN)/harmonium serve

.PHONY: test test-all test-changed tests-core tests-families tests-service tests-parts tests-all checks
test: ## Check format, lint, types and layers, and run the tests that start no process, few cases of each
	@$(MAKE) --no-print-directory -j4 tests-core tests-families tests-service tests-parts checks
test-all: ## The same with all tests, as CI runs them
	@$(MAKE) --no-print-directory -j2 checks tests-all
test-changed: installed-test ## Run those of `make test` that are near what you changed; SINCE=main
	@$(BIN)/python -m tests.changed --since $(or $(SINCE),main)
checks: format-check lint types layers
# Four processes that collect and import a part of the tests each: with pytest-xdist each collects
# all. Four on two cores, for some tests wait.
tests-core: installed-test
	@$(BIN)/pytest -n 0 -q --fast --few --ignore tests/parts --ignore tests/service
tests-service: installed-test
	@$(BIN)/pytest -n 0 -q --fast --few tests/service
tests-families: installed-test
	@$(BIN)/pytest -n 0 -q --fast --few tests/parts/families tests/parts/responses
tests-parts: installed-test
	@$(BIN)/pytest -n 0 -q --fast --few tests/parts --ignore tests/parts/families --ignore tests/parts/responses
tests-all: installed-test
	@# Four processes on two cores, for many tests wait; tests/sharing.py says who takes what.
	@# A test that hangs for five minutes ends its process, which says where.
	@$(BIN)/pytest -n 4 -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

.PHONY: test-slow
test-slow: installed-test ## Run what hardly ever breaks and takes long, and properties with all examples
	@ALL_EXAMPLES=1 $(BIN)/pytest -n 2 -m "slow or hypothesis"

.PHONY: test-lowest
test-lowest: installed-test ## Run the tests of `make test` with the lowest versions that pyproject.toml allows
	@$(BIN)/python tools/lowest.py
	@# Without transformers; and what is old is deprecated by what it needs.
	@build/lowest/bin/pytest -n 2 --fast -W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning \
		--ignore tests/engines/guest/test_tokenizer.py --ignore tests/engines/native/model

.PHONY: test-newest
test-newest: installed-test ## Run the tests of `make test` with the newest of everything, above the bounds of pyproject.toml too
	@$(BIN)/python tools/newest.py
	@build/newest/bin/pytest -n 2 --fast -W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning
	@build/newest/bin/pytest -n 0 tests/parts/families/test_published.py

.PHONY: format
format: installed-test ## Rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --quiet .

.PHONY: format-check lint types layers
format-check: installed-test
	@$(BIN)/ruff format --check .
lint: installed-test ## Lint, the wording of texts included
	@$(BIN)/ruff check .
	@$(BIN)/python -m tools.prose
types: installed-test ## Type-check strictly
	@$(BIN)/mypy
layers: installed-test ## Check that imports point down only
	@$(BIN)/lint-imports

.PHONY: bench
bench: installed-test ## Measure: native beside transformers, start-up, the API layer
	@$(BIN)/python -m tools.benchmarks

.PHONY: guided
guided: installed-test ## Check 200 random schemas: every guided answer must be valid
	@$(BIN)/python -m tests.guided
	@$(BIN)/python -m tests.guided.nano
	@$(BIN)/python -m tests.guided.start

.PHONY: pins
pins: installed-test ## Compile constraints.txt from pyproject.toml, for every platform
	@$(BIN)/python tools/packaging/pins.py

.PHONY: docs
docs: installed-test ## Regenerate the tables, the plan's figures and the picture in docs/
	@$(BIN)/python -m tools.docs.profiles docs
	@$(BIN)/python -m tools.roofline.calibrate
	@$(BIN)/python -m tools.docs.plan docs
	@$(BIN)/python -m tools.docs.support docs/support.md
	@$(BIN)/python -m tools.docs.cli docs/cli.md
	@$(BIN)/python -m tools.docs.engines docs/engines.md
	@$(BIN)/python -m tools.docs.fields docs/api.md
	@$(BIN)/python -m tests.parts.plan.sizing
	@$(BIN)/python -m tools.docs.chart_readme
	@$(BIN)/python -m tools.docs.reference settings > docs/settings.md
	@$(BIN)/python -m tools.docs.reference metrics > docs/metrics.md
	@$(BIN)/python -m tools.docs.reference parts > docs/parts.md
	@$(BIN)/python -m tests.architecture.picture
	@$(BIN)/python -m tools.docs.waiting

include $(sort $(wildcard tools/make/*.mk))
