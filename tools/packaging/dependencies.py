"""Print the dependencies that pyproject.toml names, or those of one of its extras, one a line.

The image installs them before the code, so that their layer outlives every change of code.
"""

import argparse
import re
import tomllib
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pyproject", type=Path)
    parser.add_argument("--extra", help="print those of this extra instead")
    parser.add_argument("--without", help="leave this one out")
    arguments = parser.parse_args()
    project = tomllib.loads(arguments.pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = extras[arguments.extra] if arguments.extra else project["dependencies"]
    print("\n".join(line for line in wanted if name_of(line) != arguments.without))


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return found[0]


if __name__ == "__main__":
    main()
