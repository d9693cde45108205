# Rolling restarts under load.
.PHONY: rolling
rolling: installed-test $(HELM_4) ## Replace servers and the chart's pods one by one under load; no answer may be lost
	@$(BIN)/pytest -m rolling tests/service/admission tests/chart
