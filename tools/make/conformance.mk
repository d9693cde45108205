# A fuzzer of our OpenAPI document.
.PHONY: conformance
conformance: installed-conformance ## Let schemathesis send what our OpenAPI document allows
	@$(BIN)/pytest -m conformance tests/conformance
