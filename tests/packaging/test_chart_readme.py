"""The chart's page lists the values as they are."""

from pathlib import Path

from tools.docs import chart_readme

ROOT = Path(__file__).parents[2]


def test_the_charts_page_is_current() -> None:
    page = (ROOT / "charts" / "harmonium" / "README.md").read_text(encoding="utf-8")
    assert page == chart_readme.page(), "run `make docs`"


def test_the_operators_example_names_the_profile_by_its_id() -> None:
    for path in (chart_readme.EXAMPLE, chart_readme.RENDERED):
        text = path.read_text()
        assert text == chart_readme.with_current_profile(text), "run `make docs`"
