# Trees from which parts were removed.

.PHONY: test-core test-without test-part
test-core: installed-test ## The core's tests, and an answer of nano, in a tree without parts/
	@$(BIN)/python -m tests.without all
test-without: installed-test ## The tests of a tree without one part: PART=kv_events
	@$(BIN)/python -m tests.without $(PART)
test-part: installed-test ## All tests of one part: PART=kv_events
	@$(BIN)/pytest -n 3 tests/parts/$(PART)
