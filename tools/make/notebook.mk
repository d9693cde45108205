# The notebook of examples/, executed.
NOTEBOOK := .cache/notebook

$(NOTEBOOK)/env/.ready: tests/notebook/requirements.txt | installed-test
	@$(BIN)/python tools/pinned.py $(@D) $<
	@touch $@

.PHONY: notebook
notebook: $(NOTEBOOK)/env/.ready ## Execute docs/examples/gpt-oss.ipynb on nano and check what it shows
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(NOTEBOOK)/env/bin/python tests/notebook/run_notebook.py \
		docs/examples/gpt-oss.ipynb $(NOTEBOOK)/out
