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
from engines.release import NAME
from service.cli.loading import FILES, LOOK, NIM, OPERATE, SECTIONS, SERVE, LazyCommand
from service.run.termination import end_on_sigterm
from service.settings.answers import answer
from service.settings.environment import allows_colour, trust_certificates
from service.settings.errors import SettingsError

BAD_SETTINGS = 2
INTERRUPTED = 130  # what a shell reports for Ctrl-C


def _of(module: str, section: str, text: str, name: str = "") -> LazyCommand:
    return LazyCommand(f"service.cli.{module}", name or module, section, text)


COMMANDS: Final[Mapping[str, LazyCommand]] = {
    "serve": _of("serve", SERVE, "Serve a model."),
    "doctor": _of("doctor", LOOK, "Check this machine and the settings."),
    "profiles": _of("profiles", LOOK, "List profiles: which fit, which is selected, and why."),
    "config": _of("config", LOOK, "Print every setting and where its value comes from."),
    "version": _of("config", LOOK, "Print the version.", "version"),
    "download-to-cache": _of(
        "model_files", FILES, "Download a model without serving it.", "download_to_cache"
    ),
    "build-engine": _of("build_engine", FILES, "Pack weights and compile kernels."),
    "keys": _of("keys", OPERATE, "Create, list and revoke API keys."),
    "completion": _of("completion", OPERATE, "Print a shell's completion script."),
    "nim-serve": _of("serve", NIM, "The same as serve."),
    "nim-run": _of("serve", NIM, "The same as serve."),
    "list-model-profiles": _of("profiles", NIM, "The same as profiles."),
    "create-model-store": _of(
        "model_files", NIM, "Copy a model's files to a plain folder.", "create_model_store"
    ),
}


def commands() -> dict[str, LazyCommand]:
    parts: dict[str, LazyCommand] = {}
    for found in facets("commands", Mapping).values():
        parts |= found
    return parts | dict(COMMANDS)


class Commands(click.Group):
    """The commands of the core and of the parts."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # A command of the core looks into no part.
        found = COMMANDS.get(cmd_name) or commands().get(cmd_name)
        return found.load() if found else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each purpose; no command is imported for it."""
        listed = commands()
        width = max(map(len, listed))
        for section in SECTIONS:
            rows = [(n.ljust(width), c.text) for n, c in listed.items() if c.section == section]
            if rows:  # its commands may all be of parts that are not there
                rows.sort(key=lambda row: (row[0].strip() != "serve", row))
                with formatter.section(section):
                    formatter.write_dl(rows)

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
        from engines.release import release

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
        from service.cli.flags import with_hint  # imports the settings

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
