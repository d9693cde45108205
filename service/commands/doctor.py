"""`harmonium doctor`: what a support bundle needs; exit code 1 when a start would fail."""

from __future__ import annotations

import argparse
import json
from typing import Any

from service.doctor.report import report
from service.settings import Settings

HEALTHY, ILL = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Print the report and return the exit code."""
    found = report(settings)
    print(json.dumps(found, indent=2, default=str) if args.json else "\n".join(_lines(found)))
    return ILL if found["state"] == "failed" else HEALTHY


def _lines(found: dict[str, Any]) -> list[str]:
    return [
        "VERSIONS",
        *_table({name: value for name, value in found["versions"].items() if value}),
        "HARDWARE",
        *_hardware(found["hardware"]),
        "PROFILE",
        *(_table(found["profile"]) if found["profile"] else ["  none can start here; see model"]),
        "SETTINGS (those that are set, secrets hidden)",
        *_table(_changed(found["settings"])),
        "CHECKS",
        *(f"  {c['state']:<8} {c['name']:<10} {c['detail']}" for c in found["checks"]),
    ]


def _hardware(hardware: dict[str, Any]) -> list[str]:
    cpu = hardware["cpu"]
    rows = {
        "cpu": f"{cpu['num_cores']} cores, {cpu['model']}",
        "memory": f"{cpu['total_bytes'] / 1e9:.1f} GB",
        "driver": hardware["driver"] or "none",
        "gpus": ", ".join(gpu["name"] for gpu in hardware["gpus"]) or hardware["no_gpu_reason"],
    }
    return _table(rows)


def _changed(settings: dict[str, Any]) -> dict[str, Any]:
    defaults = {f"NIM_{name.upper()}": f.default for name, f in Settings.model_fields.items()}
    changed = {name: value for name, value in settings.items() if value != defaults[name]}
    return changed or {"(none)": "every setting has its default"}


def _table(rows: dict[str, Any]) -> list[str]:
    width = max(len(name) for name in rows)
    return [f"  {name:<{width}}  {value}" for name, value in rows.items()]
