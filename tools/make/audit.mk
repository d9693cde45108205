# Security audit of our code and of what it depends on.
# In an environment of its own: what audits must not change what is audited.
AUDIT := .cache/audit

$(AUDIT)/.ready: tools/make/audit.mk
	@test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/pip install --quiet bandit==1.9.4 pip-audit==2.10.1
	@touch $@

.PHONY: audit
audit: $(AUDIT)/.ready ## Audit the code and the pinned versions; unknown is not clean
	@$(AUDIT)/bin/python tools/packaging/audit.py $(AUDIT)/bin
