"""Print the dependencies that pyproject.toml names, or those of one of its extras, one a line.

The image installs them before the code, so that their layer outlives every change of code.
"""

import sys
import tomllib
from pathlib import Path


def main(pyproject: str, extra: str | None = None) -> None:
    project = tomllib.loads(Path(pyproject).read_text(encoding="utf-8"))["project"]
    print("\n".join(project["optional-dependencies"][extra] if extra else project["dependencies"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
