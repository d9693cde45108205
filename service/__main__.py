"""The command line: one file of service/cli for each command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Final

import click

from engines.release import NAME, release
from service.cli import foreign
from service.cli.flags import with_hint
from service.run.termination import end_on_sigterm
from service.settings.settings import SettingsError, allows_colour, trust_certificates

BAD_SETTINGS = 2
INTERRUPTED = 130  # what a shell reports for Ctrl-C


def _bench() -> click.Command:
    from service.cli.bench.command import bench

    return bench


def _build_engine() -> click.Command:
    from service.cli.build_engine import build_engine

    return build_engine


def _chat() -> click.Command:
    from service.cli.chat.command import chat

    return chat


def _clients() -> click.Command:
    from service.cli.clients.command import clients

    return clients


def _completion() -> click.Command:
    from service.cli.completion import completion

    return completion


def _config() -> click.Command:
    from service.cli.config import config

    return config


def _doctor() -> click.Command:
    from service.cli.doctor import doctor

    return doctor


def _dynamo_worker() -> click.Command:
    from service.cli.dynamo_worker import dynamo_worker

    return dynamo_worker


def _keys() -> click.Command:
    from service.cli.keys import keys

    return keys


def _create_model_store() -> click.Command:
    from service.cli.model_files import create_model_store

    return create_model_store


def _download_to_cache() -> click.Command:
    from service.cli.model_files import download_to_cache

    return download_to_cache


def _plan() -> click.Command:
    from service.cli.plan.command import plan

    return plan


def _profiles() -> click.Command:
    from service.cli.profiles import profiles

    return profiles


def _serve() -> click.Command:
    from service.cli.serve import serve

    return serve


def _verify() -> click.Command:
    from service.cli.verify.command import verify

    return verify


# By name. Each is imported when it is asked for: a start loads no other command.
COMMANDS: Final[dict[str, Callable[[], click.Command]]] = {
    "bench": _bench,
    "build-engine": _build_engine,
    "chat": _chat,
    "clients": _clients,
    "completion": _completion,
    "config": _config,
    "doctor": _doctor,
    "dynamo-worker": _dynamo_worker,
    "keys": _keys,
    "create-model-store": _create_model_store,
    "download-to-cache": _download_to_cache,
    "plan": _plan,
    "profiles": _profiles,
    "serve": _serve,
    "verify": _verify,
    "nim-serve": _serve,  # NIM's names
    "nim-run": _serve,
    "list-model-profiles": _profiles,
}


class Commands(click.Group):
    """The commands of COMMANDS beside those that are added to the group itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*COMMANDS, *self.commands])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        load = COMMANDS.get(cmd_name)
        return load() if load else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name; the error for no command knows all names."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            if answer := foreign.COMMANDS.get(error.command_name):
                raise click.UsageError(
                    f"No such command {error.command_name!r}. {answer}", ctx
                ) from None
            names = get_close_matches(error.command_name, self.list_commands(ctx), cutoff=0.7)
            raise click.NoSuchCommand(error.command_name, possibilities=names, ctx=ctx) from None


def tell_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(f"{NAME} {release()}")
        context.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
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
