# What is shipped: built, listed, signed and verified. No network is needed once the tools are there.
RELEASE := build/release
COSIGN ?= $(CURDIR)/.cache/cosign/3.1.1/cosign
# The keys: KEY=cosign.key PUBLIC_KEY=cosign.pub; without KEY a pair is made for one run.
KEY ?=
PUBLIC_KEY ?=
KEYLESS ?=
COSIGN_SHA256_amd64 := bd66953f030c6089ce4a7191cd00d441d84dc792b4ac53fc05e5c258b1d10f53
COSIGN_SHA256_arm64 := 928cf2acedf9b9e9e58a1a40225082749e6fd13a85988f8bd398e171f5d28dc9
SUPPLY = $(BIN)/python -m tools.supply --folder $(RELEASE) --cosign $(COSIGN)

.PHONY: release
release: installed-test $(HELM_4) ## Build the wheel and the chart's archive into build/release
	@rm -rf $(RELEASE) && mkdir -p $(RELEASE)
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m pip wheel --quiet --no-deps \
		--wheel-dir $(RELEASE) .
	@$(HELM_4) package --destination $(RELEASE) charts/harmonium > /dev/null
	@ls -1 $(RELEASE)

.PHONY: sbom attest verify
sbom: release ## Write a CycloneDX list of what is shipped; a component without a known licence fails
	@$(SUPPLY) sbom
attest: sbom $(COSIGN) ## Sign the release with its SBOM, SLSA provenance and VEX, by cosign
	@$(SUPPLY) $(if $(KEYLESS),--keyless) $(if $(KEY),--key $(KEY)) $(if $(PUBLIC_KEY),--public-key $(PUBLIC_KEY)) attest
verify: $(COSIGN) ## Verify the release in build/release; anything that was changed fails
	@$(SUPPLY) $(if $(PUBLIC_KEY),--public-key $(PUBLIC_KEY)) verify

.PHONY: supply
supply: installed-test $(HELM_4) $(COSIGN) ## Test SBOM, attestations and that tampering is refused
	@COSIGN=$(COSIGN) $(BIN)/pytest -m supply tests/supply

$(CURDIR)/.cache/cosign/3.1.1/cosign:
	@tools/packaging/fetch_cosign $(COSIGN_SHA256_$(shell dpkg --print-architecture)) $@

# In an environment of its own, as the audit's.
WORKFLOWS := .cache/workflows
$(WORKFLOWS)/.ready: tools/make/supply.mk
	@test -x $(WORKFLOWS)/bin/python || $(PYTHON) -m venv $(WORKFLOWS)
	@$(WORKFLOWS)/bin/pip install --quiet check-jsonschema==0.39.0 zizmor==1.32.0
	@touch $@

.PHONY: workflows
workflows: $(WORKFLOWS)/.ready ## Lint the CI workflows: their schema, and what could be attacked
	@$(WORKFLOWS)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(WORKFLOWS)/bin/zizmor --offline --no-progress --quiet .github/workflows
