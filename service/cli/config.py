"""`harmonium config` and `harmonium version`: what is set and what is installed here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from engines.release import NAME, release
from service.cli.doctor_report import shown_settings
from service.cli.flags import SettingsCommand, given, settings_flags
from service.settings.settings import Settings, env_name, group_of, load, origins


@click.command(cls=SettingsCommand)
@click.option("--json", "is_json", is_flag=True, help="Machine-readable output.")
@settings_flags
def config(is_json: bool, **flags: Any) -> None:
    """Print every setting and where its value comes from."""
    settings = load(given(flags))
    click.echo(as_json(settings, given(flags)) if is_json else as_text(settings, given(flags)))


def as_json(settings: Settings, flags: Mapping[str, Any]) -> str:
    """Write `{"NIM_X": {"value": …, "from": "default" | a variable's or flag's name}}`."""
    values, where = shown_settings(settings), origins(flags)
    found = {env_name(field): {"from": origin} for field, origin in where.items()}
    return json.dumps({name: {"value": values[name], **found[name]} for name in found}, indent=2)


def as_text(settings: Settings, flags: Mapping[str, Any]) -> str:
    """Write a table in the groups of the help; what is no default stands out on a terminal."""
    values, where = shown_settings(settings), origins(flags)
    width = max(map(len, values))
    lines: list[str] = []
    group = ""
    for field, origin in where.items():
        if group_of(field) != group:
            group = group_of(field)
            lines += (
                ["", click.style(group, bold=True)] if lines else [click.style(group, bold=True)]
            )
        value = values[env_name(field)]
        line = f"  {env_name(field):<{width}}  {'(unset)' if value is None else value}"
        is_default = origin == "default"
        lines.append(line if is_default else click.style(f"{line}  <- {origin}", fg="green"))
    return "\n".join(lines)


@click.command
def version() -> None:
    """Print the version."""
    click.echo(f"{NAME} {release()}")
