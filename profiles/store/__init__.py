"""Which model's files an engine is started on: of the catalogue, of a folder, of a hub."""
