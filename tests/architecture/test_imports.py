"""What import-linter does not say: no file imports, over any way, itself."""

from __future__ import annotations

import grimp

from tests.architecture.picture import PACKAGES


def test_no_circle_of_files() -> None:
    """Imports for types alone count: who reads one file of a circle has to read them all."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    open_ends = {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}
    while leaves := {name for name, imported in open_ends.items() if not imported}:
        open_ends = {
            name: imported - leaves for name, imported in open_ends.items() if name not in leaves
        }
    # What is left lies on a circle, or leads to one.
    assert open_ends == {}
