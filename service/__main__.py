"""The command line: one file of service/cli for each command."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib import metadata

import click

from service.cli.bench.command import bench
from service.cli.build_engine import build_engine
from service.cli.chat.command import chat
from service.cli.completion import completion
from service.cli.config import config
from service.cli.doctor import doctor
from service.cli.flags import with_hint
from service.cli.keys import keys
from service.cli.model_files import create_model_store, download_to_cache
from service.cli.plan.command import plan
from service.cli.profiles import profiles
from service.cli.serve import serve
from service.settings.settings import SettingsError, allows_colour, trust_certificates

BAD_SETTINGS = 2
INTERRUPTED = 130  # what a shell reports for Ctrl-C
NAME = "harmonium"


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="An open inference microservice for OpenAI's gpt-oss models.",
)
@click.version_option(package_name=NAME, message="%(prog)s %(version)s")
def cli() -> None: ...


@cli.command(help="Print the version.")
def version() -> None:
    click.echo(f"{NAME} {metadata.version(NAME)}")


for command in (
    serve,
    chat,
    bench,
    build_engine,
    profiles,
    plan,
    doctor,
    config,
    keys,
    download_to_cache,
    create_model_store,
    completion,
):
    cli.add_command(command)
cli.add_command(serve, "nim-serve")  # NIM's names
cli.add_command(profiles, "list-model-profiles")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    started_at = time.monotonic()
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
