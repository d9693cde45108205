# TensorRT-LLM's adapter on a stand-in that computes (tests/engines/tensorrt_llm/computing), in an environment with the
# versions that the library pins. The library itself needs a GPU and NVIDIA's index.
TRTLLM := build/trtllm
COMPUTING := tests/engines/tensorrt_llm/computing
# Where pip's settings do not lead to PyTorch's CPU builds: --extra-index-url and their index.
TRTLLM_PIP ?=

$(TRTLLM)/.ready: $(COMPUTING)/requirements.txt
	@echo "Installing what TensorRT-LLM pins into $(TRTLLM): about 0.5 GB ..."
	@$(PYTHON) -m venv $(TRTLLM)
	@$(TRTLLM)/bin/python -m pip install --quiet $(TRTLLM_PIP) --requirement $<
	@touch $@

.PHONY: test-trtllm
test-trtllm: installed-test $(TRTLLM)/.ready ## Check TensorRT-LLM's adapter on a stand-in that computes: the engines' contract
	@$(TRTLLM)/bin/python -m pip install --quiet --no-deps --editable .
	@echo $(CURDIR)/$(COMPUTING) > $$($(TRTLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/computing.pth
	@TEST_ENGINE=tensorrt_llm TEST_ENGINE_PYTHON=$(CURDIR)/$(TRTLLM)/bin/python $(BIN)/pytest -n 0 -rs tests/engines/contract
