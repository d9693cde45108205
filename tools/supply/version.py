"""Check that a tag is the version that the project, the chart and the changelog have.

`python3 tools/supply/version.py v1.2.3`; with --notes it prints that section of the changelog.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def differences(version: str, root: Path = ROOT) -> list[str]:
    """What has another version than this one."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = (root / "charts" / "harmonium" / "Chart.yaml").read_text(encoding="utf-8")
    found = {
        "pyproject.toml": [project["version"]],
        "Chart.yaml version": re.findall(r"^version: (\S+)$", chart, re.MULTILINE),
        "Chart.yaml appVersion": re.findall(r"^appVersion: (\S+)$", chart, re.MULTILINE),
    }
    wrong = [f"{name} has {got}" for name, got in found.items() if got != [version]]
    return wrong if notes(version, root) else [*wrong, f"CHANGELOG.md has no section {version}"]


def notes(version: str, root: Path = ROOT) -> str:
    """The changelog's section of a version; empty where there is none."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    start = rf"^## \[{re.escape(version)}\][^\n]*\n"
    found = re.search(rf"{start}(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def main(arguments: list[str]) -> int:
    version = arguments[-1].removeprefix("v")
    if "--notes" in arguments:
        print(notes(version))
        return 0
    wrong = differences(version)
    for line in wrong:
        print(f"{version}: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
