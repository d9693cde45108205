# A fuzzer of our OpenAPI document; included by the Makefile.
.PHONY: conformance
conformance: installed-conformance ## Let schemathesis send what our OpenAPI document allows
	@$(BIN)/pytest -m conformance tests/conformance
