"""The command line: `harmonium serve`, `profiles`, `keys`, `doctor`, `version`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version

from service.commands import doctor, keys, profiles, serve
from service.settings import Settings, SettingsError, load

BAD_SETTINGS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    started_at = time.monotonic()
    args = _parser().parse_args(argv)
    if args.command == "version":
        print(f"harmonium {version('harmonium')}")
        return 0
    try:
        settings = load(_overrides(args) if args.command == "serve" else None)
    except SettingsError as error:
        print(f"harmonium: {error}", file=sys.stderr)
        return BAD_SETTINGS
    if args.command == "serve":
        return serve.run(settings, started_at)
    if args.command == "keys":
        return keys.run(args, settings)
    if args.command == "doctor":
        return doctor.run(args, settings)
    try:
        return profiles.run(args, settings)
    except BrokenPipeError:  # `harmonium profiles | head`
        sys.stdout = None  # there is nothing left to flush it to
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="harmonium", description="An open inference microservice for OpenAI's gpt-oss models."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in ("serve", "nim-serve"):
        command = commands.add_parser(name, help="pick a profile for this machine and serve it")
        command.set_defaults(command="serve")
        serve.add_arguments(command)
    for name in ("profiles", "list-model-profiles"):
        command = commands.add_parser(name, help="list the profiles and why each fits or not")
        command.set_defaults(command="profiles")
        profiles.add_arguments(command)
    keys.add_arguments(commands.add_parser("keys", help="make, list and revoke API keys"))
    doctor.add_arguments(commands.add_parser("doctor", help="check this machine and the settings"))
    commands.add_parser("version", help="print the version")
    return parser


def _overrides(args: argparse.Namespace) -> dict[str, str]:
    """The settings given as flags."""
    given = vars(args)
    return {field: given[field] for field in Settings.model_fields if given.get(field) is not None}


if __name__ == "__main__":
    sys.exit(main())
