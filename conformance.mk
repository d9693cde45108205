# Foreign clients and a fuzzer of our OpenAPI document; included by the Makefile.
# openai-agents asks for an older websockets than ours, so that it lies in a folder of its own.
AGENTS := .cache/agents-0.24.0

$(AGENTS): | installed-conformance
	@$(BIN)/pip install --quiet --no-deps --target $@ \
		openai-agents==0.24.0 griffelib==2.4.1 websockets==16.0

.PHONY: conformance
conformance: installed-conformance $(AGENTS) ## Let schemathesis and foreign clients use a server
	@PYTHONPATH=$(AGENTS) $(BIN)/pytest -m conformance tests/conformance
