"""Audit the code with bandit, the pinned dependencies with pip-audit, the pages' with npm audit.

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

CODE = ("auth", "engines", "parts", "profiles", "service")
PINS = Path("constraints.txt")
PAGES = Path("parts/pages/source")  # with package.json and its lock file
# npm asks its registry, and neither it nor a package of it holds advisories for use offline.
NO_AUDITS = "Run this where npm's public registry answers; mirrors often refuse audits."
NAMED = 10  # so many that were not looked up are named: where all of them are, the service is away

# Findings of bandit that were read and judged: (its number, the file) and why it may stay.
REVIEWED = {
    ("B104", "service/run/listener.py"): "compares with the address, binds what the operator says",
    ("B113", "parts/mcp/connection.py"): "every call has a timeout of its own",
    ("B301", "service/run/messages.py"): "reads the parent's pipe, which nobody else writes",
    ("B506", "profiles/catalogue/catalogue.py"): "the loader is one of the safe ones",
    ("B506", "profiles/selection/engine_order.py"): "the same loader",
    ("B615", "parts/verify/reference.py"): "reads a folder of this machine",
    ("B608", "service/store/sqlite.py"): "the inserted text is a constant of the module",
}

# Advisories that do not concern what we do with the package, by any of an advisory's ids. The VEX
# document is made of them too (tools/supply/vex.py).
ACCEPTED = json.loads(Path(__file__).with_name("advisories.json").read_text(encoding="utf-8"))


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


def page_complaints(report: dict[str, Any], lock: dict[str, Any]) -> list[str]:
    """Known vulnerabilities of the packages that the pages' lock file pins, or why none were looked
    up."""
    pins = {name.rpartition("node_modules/")[2] for name in lock["packages"] if name}
    if "error" in report or "vulnerabilities" not in report:
        reason = report.get("message") or report.get("error", {}).get("summary") or "no answer"
        return [f"not looked up: {len(pins)} npm packages of {PAGES}: {reason}. {NO_AUDITS}"]
    return [
        f"{name}: {found['severity']}, {_titles(found)}"
        for name, found in sorted(report["vulnerabilities"].items())
    ]


def _titles(found: dict[str, Any]) -> str:
    """What is known of a vulnerable package; it may be vulnerable by one that it needs."""
    return "; ".join(via if isinstance(via, str) else via["title"] for via in found["via"])


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
    lock = json.loads((PAGES / "package-lock.json").read_text(encoding="utf-8"))
    pages = run("npm", "audit", "--json", "--package-lock-only", "--prefix", str(PAGES))
    complaints += page_complaints(pages, lock)
    for complaint in complaints:
        print(f"audit: {complaint}", file=sys.stderr)
    if not complaints:
        num = len(pins) + len(lock["packages"]) - 1  # the first one is the page itself
        print(f"audit: {', '.join(CODE)} and {num} pinned versions are clean")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
