"""The command line: service/cli has a file for each command of the core; parts have their own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

import click

from engines.parts import facets
from engines.release import NAME, release
from service.cli.flags import with_hint
from service.cli.loading import Loader, command
from service.run.termination import end_on_sigterm
from service.settings.answers import answer
from service.settings.settings import SettingsError, allows_colour, trust_certificates

BAD_SETTINGS = 2
INTERRUPTED = 130  # what a shell reports for Ctrl-C


def _of(module: str, name: str = "") -> Loader:
    return command(f"service.cli.{module}", name or module)


# By name. Each is imported when it is asked for: a start loads no other command.
COMMANDS: Final[Mapping[str, Loader]] = {
    "build-engine": _of("build_engine"),
    "completion": _of("completion"),
    "config": _of("config"),
    "doctor": _of("doctor"),
    "keys": _of("keys"),
    "create-model-store": _of("model_files", "create_model_store"),
    "download-to-cache": _of("model_files", "download_to_cache"),
    "profiles": _of("profiles"),
    "serve": _of("serve"),
    "nim-serve": _of("serve"),  # NIM's names
    "nim-run": _of("serve"),
    "list-model-profiles": _of("profiles"),
}


def commands() -> dict[str, Loader]:
    parts: dict[str, Loader] = {}
    for found in facets("commands", Mapping).values():
        parts |= found
    return parts | dict(COMMANDS)


class Commands(click.Group):
    """The commands of the core and of the parts beside those that are added to the group itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*commands(), *self.commands])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # A command of the core looks into no part.
        load = COMMANDS.get(cmd_name) or commands().get(cmd_name)
        return load() if load else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name; the error for no command knows all names."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            if instead := answer("commands", error.command_name):
                raise click.UsageError(
                    f"No such command {error.command_name!r}. {instead}", ctx
                ) from None
            names = get_close_matches(error.command_name, self.list_commands(ctx), cutoff=0.7)
            raise click.NoSuchCommand(error.command_name, possibilities=names, ctx=ctx) from None


def tell_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(f"{NAME} {release()}")
        context.exit()


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=tell_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """An open inference microservice for OpenAI's gpt-oss models."""


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(f"{NAME} {release()}")


def open_standard_streams() -> None:
    """Open /dev/null for standard streams that the parent closed: a socket would get the number of
    one, and a child process take it for its output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def main(argv: Sequence[str] | None = None) -> int:
    started_at = time.monotonic()
    open_standard_streams()
    end_on_sigterm()
    trust_certificates()
    try:
        color = None if allows_colour() else False  # None: on a terminal
        code = cli.main(argv, NAME, standalone_mode=False, obj=started_at, color=color)
    except click.NoSuchOption as error:
        usage = with_hint(error)
        usage.show()
        return usage.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SettingsError as error:
        click.echo(f"{NAME}: {error}", err=True)
        return BAD_SETTINGS
    except click.Abort:
        return INTERRUPTED
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
