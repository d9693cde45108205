# vLLM, in an environment of its own: its pins are not ours (docs/engines.md).
VLLM := .engines/vllm

.PHONY: installed-vllm
installed-vllm:
	@$(INSTALL) test vllm

.PHONY: test-vllm
test-vllm: installed-vllm ## Check the engine on vLLM: the engines' contract, and nano served to real SDKs, and its load tool against ours (half an hour)
	@TEST_ENGINE=vllm TEST_ENGINE_PYTHON=$(CURDIR)/$(VLLM)/bin/python \
		$(BIN)/pytest -n 0 tests/engines/contract tests/engines/vllm tests/e2e/test_sdk.py tests/e2e/test_responses_sdk.py
	@TEST_ENGINE_PYTHON=$(CURDIR)/$(VLLM)/bin/python \
		$(BIN)/pytest -n 0 -m clients tests/clients/test_vllm_bench.py

.PHONY: vllm-surface
VLLM_VERSIONS := 0.25.1 0.31.0 0.32.0 0.33.0
vllm-surface: installed-test ## Write what every supported vLLM has, from its wheels (a gigabyte to fetch)
	@for version in $(VLLM_VERSIONS); do \
		$(BIN)/python -m pip download --quiet --no-deps --only-binary :all: --dest build/vllm-wheels vllm==$$version; done
	@$(BIN)/python -m tests.engines.vllm.surface $(VLLM_VERSIONS:%=build/vllm-wheels/vllm-%-*.whl)
