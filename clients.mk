# Foreign clients at pinned versions; included by the Makefile.
CLIENTS := .cache/clients
PINNED := tests/clients
CLIENT_PYTHONS := current instructor openai2 aider

# Clients that agree on what they need share an environment; all its packages are pinned. uv takes
# seconds where pip takes minutes.
$(CLIENTS)/%/.ready: $(PINNED)/python/%.txt | installed-test
	@echo "Installing the clients of $< ..."
	@rm -rf $(@D)
	@if command -v uv >/dev/null; then \
		uv venv --quiet --python $(BIN)/python $(@D) && \
		uv pip install --quiet --no-deps --python $(@D)/bin/python --requirement $<; \
	else \
		$(BIN)/python -m venv $(@D) && $(@D)/bin/pip install --quiet --no-deps --requirement $<; \
	fi
	@touch $@

# Their own install steps only put a platform's program in its place; it is done here, so that no
# other package runs anything.
$(CLIENTS)/node/.ready: $(PINNED)/node/package.json $(PINNED)/node/package-lock.json
	@echo "Installing the clients of $< ..."
	@mkdir -p $(@D)
	@cp $^ $(@D)
	@# Not `npm ci`: it fails where a registry lacks opencode's build for another platform.
	@npm --prefix $(@D) install --ignore-scripts --no-audit --no-fund --loglevel=error
	@cd $(@D)/node_modules/@anthropic-ai/claude-code && node install.cjs
	@cd $(@D)/node_modules/opencode-ai && node postinstall.mjs
	@touch $@

.PHONY: clients
clients: installed-test $(CLIENT_PYTHONS:%=$(CLIENTS)/%/.ready) $(CLIENTS)/node/.ready ## Let the real clients use a server; writes docs/clients.md
	@$(BIN)/pytest -m clients --junitxml=$(CLIENTS)/results.xml tests/clients; status=$$?; \
		$(BIN)/python tests/clients/document.py $(CLIENTS)/results.xml && exit $$status
