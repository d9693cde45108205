# The playground: its build, and its tests in a real browser.
PAGES := parts/pages/source

.PHONY: playground
playground: ## Build the page at / from its source (needs npm)
	@cd $(PAGES) && npm ci --ignore-scripts --no-audit --no-fund --silent && npm run --silent build

.PHONY: test-pages
test-pages: playground ## Check types, format and lint of the pages' source, and run its unit tests (needs npm)
	@cd $(PAGES) && npm run --silent check && npm test --silent

.PHONY: browser
browser: installed-browser test-pages ## Use the playground in a real Chromium, on nano
	@git diff --exit-code --stat -- parts/pages/static || \
		{ echo "parts/pages/static is not what its source builds: commit it"; exit 1; }
	@$(BIN)/pytest -m browser tests/parts/pages/browser

.PHONY: bench-pages
bench-pages: installed-browser ## Measure in Chromium when a page can be used, and what it weighs
	@$(BIN)/python -m tools.benchmarks.pages
