# A real OpenID provider as the source of tokens.
OIDC := .cache/oidc

$(OIDC)/.ready: tests/parts/jwt/oidc/package.json
	@mkdir -p $(OIDC)
	@cp $< $(OIDC)/package.json
	@npm --prefix $(OIDC) install --no-audit --no-fund --silent
	@touch $@

.PHONY: oidc
oidc: installed-test $(OIDC)/.ready ## Check tokens of a real OpenID provider: rotation, outage, forgeries
	@$(BIN)/pytest -m 'oidc or not oidc' tests/parts/jwt/oidc
