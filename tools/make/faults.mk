# Long runs of what the default tests do briefly.
SOAK_SECONDS ?= 7200
FUZZ_EXAMPLES ?= 3000
ATTACK_SEED ?= 1

.PHONY: faults
faults: installed-test ## Do to real servers what docs/faults.md says they survive
	@$(BIN)/pytest -m faults tests/faults tests/e2e/test_faults.py tests/service/run/workers/test_held.py

.PHONY: soak
soak: installed-test ## Mixed traffic and faults for SOAK_SECONDS: flat, answered, clean? Page: build/soak.svg
	@mkdir -p build
	@$(BIN)/python -m tests.soak --engine nano --seconds $(SOAK_SECONDS) --page build/soak

.PHONY: fuzz
fuzz: installed-test ## Search for input that breaks a parser or writer
	@FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/pytest tests/fuzz tests/parts/jwt/test_fuzz.py

.PHONY: attack
attack: installed-test ## Bodies and connections that once held the server: does anybody else notice?
	@$(BIN)/python -m tests.attack --engines scripted nano wide ports --seed $(ATTACK_SEED)
