# A rolling restart under load.
.PHONY: rolling
rolling: installed-test ## Replace two servers one by one under load; no answer may be lost
	@$(BIN)/pytest -m rolling tests/service/admission
