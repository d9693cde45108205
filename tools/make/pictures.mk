# The pictures of docs/pictures, from the real things.

.PHONY: pictures
pictures: installed-browser ## Draw the pictures of docs/ anew, from a real start, real pages and real metrics
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/packaging/pictures/terminal.py
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/packaging/pictures/pages.py
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/packaging/pictures/killed.py
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/packaging/pictures/dashboard.py
