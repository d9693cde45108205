# The engine on llama.cpp, in an environment of its own: its bindings are compiled for this machine.
LLAMA := build/llama

.PHONY: installed-llama
installed-llama:
	@$(INSTALL) --into $(LLAMA) test llama-cpp
	@$(LLAMA)/bin/python -c 'import gguf' 2>&- || $(LLAMA)/bin/python -m pip install --quiet gguf==0.19.0

.PHONY: test-llama
test-llama: installed-llama ## Check the engine on llama.cpp: its contract, a real GGUF file, a client's requests
	@$(LLAMA)/bin/pytest -k llama tests/engines/contract tests/engines/llama_cpp tests/e2e/test_llama_cpp.py
