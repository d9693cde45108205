"""Audit the code with bandit and the pinned dependencies with pip-audit.

Exit code 0 only when every pinned version was looked up and none is known to be vulnerable, and
bandit found nothing but what is reviewed below. pip-audit alone calls a package clean that the
advisory service does not know.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

CODE = ("auth", "engines", "profiles", "service")
PINS = Path("constraints.txt")
NAMED = 10  # so many that were not looked up are named: where all of them are, the service is away

# Findings of bandit that were read and judged: (its number, the file) and why it may stay.
REVIEWED = {
    ("B104", "service/run/listener.py"): "compares with the address, binds what the operator says",
    ("B113", "service/tools/connection.py"): "every call has a timeout of its own",
    ("B301", "service/run/messages.py"): "reads the parent's pipe, which nobody else writes",
    ("B506", "profiles/catalogue/catalogue.py"): "the loader is one of the safe ones",
    ("B608", "service/store/sqlite.py"): "the inserted text is a constant of the module",
}

# Advisories that do not concern what we do with the package: any of an advisory's ids, and why.
ACCEPTED = {
    "CVE-2024-23342": "the timing of signing with ecdsa; tokens are only verified, by cryptography",
}


def code_complaints(report: dict[str, Any]) -> list[str]:
    """What bandit found beyond what is reviewed, and what is reviewed but no longer found."""
    found = {
        (item["test_id"], item["filename"].removeprefix("./")): item for item in report["results"]
    }
    new = [
        f"{path}:{item['line_number']}: {number}: {item['issue_text']}"
        for (number, path), item in found.items()
        if (number, path) not in REVIEWED
    ]
    unread = [f"{error['filename']}: {error['reason']}" for error in report["errors"]]
    stale = [
        f"{path}: {number} is reviewed but not found" for number, path in REVIEWED.keys() - found
    ]
    return new + unread + sorted(stale)


def dependency_complaints(report: dict[str, Any], pins: dict[str, str]) -> list[str]:
    """Known vulnerabilities, and every pinned version that was not looked up."""
    complaints, looked_up = [], set()
    for item in report["dependencies"]:
        if "skip_reason" in item:
            continue
        looked_up.add((normal(item["name"]), item["version"]))
        for vulnerability in item["vulns"]:
            if ACCEPTED.keys() & {vulnerability["id"], *vulnerability.get("aliases", ())}:
                continue
            fixed = ", ".join(vulnerability["fix_versions"]) or "none yet"
            name = f"{item['name']} {item['version']}"
            complaints.append(f"{name}: {vulnerability['id']}, fixed in {fixed}")
    unknown = sorted(f"{n}=={v}" for n, v in pins.items() if (n, v) not in looked_up)
    if unknown:
        rest = ["..."] if len(unknown) > NAMED else []
        names = ", ".join(unknown[:NAMED] + rest)
        complaints.append(f"not looked up: {len(unknown)} of {len(pins)}: {names}")
    return complaints


def read_pins(text: str) -> dict[str, str]:
    """Versions by normalised name; raises ValueError for a line that pins nothing."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    pins = {}
    for line in filter(None, lines):
        name, separator, version = line.partition("==")
        if not separator:
            raise ValueError(f"{PINS}: {line!r} pins no version")
        pins[normal(name)] = version
    return pins


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def run(*command: str) -> dict[str, Any]:
    """The JSON a tool prints; ends the audit when it prints none."""
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        sys.exit(
            f"audit: {Path(command[0]).name} gave no report, so nothing is known to be clean:\n"
            f"{done.stderr[-2000:]}"
        )
    return report


def main(folder: str) -> int:
    pins = read_pins(PINS.read_text(encoding="utf-8"))
    complaints = code_complaints(run(f"{folder}/bandit", "-q", "-ll", "-f", "json", "-r", *CODE))
    options = ("--no-deps", "--disable-pip", "--progress-spinner", "off", "--desc", "off")
    audit = run(f"{folder}/pip-audit", "-r", str(PINS), "-f", "json", *options)
    complaints += dependency_complaints(audit, pins)
    for complaint in complaints:
        print(f"audit: {complaint}", file=sys.stderr)
    if not complaints:
        print(f"audit: {', '.join(CODE)} and {len(pins)} pinned versions are clean")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
