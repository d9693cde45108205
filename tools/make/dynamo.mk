# NVIDIA Dynamo, in an environment of its own: it pins another pydantic (docs/scale.md).
.PHONY: installed-dynamo
installed-dynamo:
	@$(INSTALL) test dynamo

.PHONY: test-dynamo
test-dynamo: installed-dynamo ## Front and workers by NVIDIA Dynamo: the engines' contract through it, deaths, drains, joins (TEST_CUTS=20 TEST_STREAMS_S=120 for longer)
	@TEST_ENGINE=dynamo TEST_ENGINE_PYTHON=$(CURDIR)/.parts/dynamo/network/bin/python \
		$(BIN)/pytest -n 0 -m "dynamo or heavy or not heavy" tests/engines/contract tests/parts/dynamo/network \
			tests/parts/dynamo/handover tests/parts/pairs/test_dynamo_kv_events.py
