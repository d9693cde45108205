"""The chart's page lists the values as they are."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_charts_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location(
        "chart_readme", ROOT / "packaging" / "chart_readme.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "charts" / "harmonium" / "README.md").read_text(encoding="utf-8")
    assert page == module.page(), "run `make docs`"
