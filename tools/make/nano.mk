# Training nano. Freed memory is kept rather than returned to the system, and waiting
# threads sleep: on a busy CPU a step is then several times faster.
NANO_ENV := MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 \
	MALLOC_TOP_PAD_=500000000 GOMP_SPINCOUNT=0

.PHONY: nano
nano: installed-test ## Train nano anew (45 minutes on an H200); it ships if it reaches the bars
	@$(NANO_ENV) $(BIN)/python -m tools.nano.recipe $(NANO_FLAGS)

.PHONY: nano-report
nano-report: installed-test ## Measure the shipped nano and rewrite docs/nano.md
	@$(BIN)/python -m tools.nano.report

.PHONY: test-nano
test-nano: installed-test ## Check the recipe of nano, and what ships against its bars (tools/nano)
	@$(BIN)/pytest -n 2 -m "" tools/nano/tests
