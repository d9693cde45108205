# Servers where the loopback has no IPv4: in a network of their own, for one run.
IPV6_ALONE := unshare --map-root-user --net sh -c \
	'ip link set lo up && ip address del 127.0.0.1/8 dev lo && exec "$$@"' sh
LISTENERS := tests/auth/test_first_key.py tests/auth/test_secrets.py tests/chart tests/e2e tests/image/test_started.py \
	tests/monitoring tests/parts/kv_events tests/parts/ollama tests/service/admission tests/service/http \
	tests/service/run/workers $(addprefix tests/service/run/test_,face.py listener.py model_files.py serve.py starting.py)

.PHONY: ipv6
ipv6: installed-test $(HELM_3) $(HELM_4) ## Run what listens, with its defaults, on ::1 alone: servers, probes, the chart's pods, monitoring
	@$(IPV6_ALONE) $(BIN)/pytest -m "not faults and not slow" $(LISTENERS)
