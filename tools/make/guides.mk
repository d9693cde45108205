# The guides, followed word for word.
.PHONY: guides guides-current guides-openai2 guides-evals
guides: guides-current guides-openai2 guides-evals ## Run what the guides tell to run, on nano, and look for what they show
guides-openai2: GUIDES := docs/guides/litellm.md
guides-evals: GUIDES := docs/guides/evals.md
guides-evals: $(CLIENTS)/evals/.gpt-oss
guides-current: GUIDES := $(filter-out docs/guides/litellm.md docs/guides/evals.md,$(wildcard docs/guides/*.md))
guides-current guides-openai2 guides-evals: guides-%: $(CLIENTS)/%/.ready | installed-test
	@PATH="$(CURDIR)/$(CLIENTS)/$*/bin:$(CURDIR)/$(BIN):$$PATH" \
		$(BIN)/python tests/guides/run_guides.py $(GUIDES)

SITE := .cache/site-tools

$(SITE)/.ready: tools/packaging/site/requirements.txt | installed-test
	@$(BIN)/python tools/pinned.py $(@D) $<
	@touch $@

.PHONY: docs-site
docs-site: $(SITE)/.ready ## Build the documentation as a site in .cache/site, its links checked
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --quiet --config-file tools/packaging/site/mkdocs.yml
	@echo "Built .cache/site: open .cache/site/index.html"
