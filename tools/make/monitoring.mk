# Dashboard and alert rules against a live server.

.PHONY: monitoring
monitoring: installed-test ## Check dashboard and alerts with promtool against a live server
	@command -v promtool >/dev/null || { echo "promtool is missing: apt-get install prometheus"; exit 1; }
	@$(BIN)/pytest -m monitoring tests/monitoring
