# Clients that code generators write from /openapi.json.
$(CLIENTS)/generated/.ready: $(PINNED)/generated/package.json $(PINNED)/generated/package-lock.json
	@echo "Installing the generators of $< ..."
	@mkdir -p $(@D)
	@cp $^ $(@D)
	@npm --prefix $(@D) ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

.PHONY: sdks
sdks: installed-test $(CLIENTS)/sdks/.ready $(CLIENTS)/generated/.ready ## Let code generators write clients from /openapi.json, and chat by them
	@command -v javac >/dev/null || { echo "javac is missing: apt-get install default-jdk-headless"; exit 1; }
	@test -e /usr/share/java/httpmime.jar || { echo "httpmime is missing: apt-get install libhttpmime-java"; exit 1; }
	@# A generator writes some 500 files.
	@$(BIN)/pytest -m sdks tests/clients/generated
