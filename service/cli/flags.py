"""Settings as flags: one for each that is not a secret, in groups, with a hint for a foreign
one."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from service.settings.answers import answer
from service.settings.constants import refusals
from service.settings.settings import Settings, flag_name, group_of

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

# Other servers' names of a setting, taken as they are.
_SECOND_FLAGS: Final = {"server_port": ("--port",), "server_host": ("--host",)}
# How other servers write the sizes of parallelism; here they are tags of profiles.
TENSOR_PARALLEL: Final = ("-tp", "--tp", "--tp-size", "--tensor-parallel-size")
PIPELINE_PARALLEL: Final = ("-pp", "--pp", "--pp-size", "--pipeline-parallel-size")
PARALLELISM: Final = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp"}


class SettingsCommand(click.Command):
    """A command that takes the settings; its help shows them in groups."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; an unknown `-ngl` is named whole, not as its first letter `-n`."""
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = self._as_typed(error.option_name, typed)
            raise click.NoSuchOption(name, possibilities=error.possibilities, ctx=ctx) from None

    def _as_typed(self, name: str, typed: list[str]) -> str:
        if len(name) > 2:
            return name
        ours = {option for parameter in self.params for option in parameter.opts}
        words = (word for word in typed if word[:1] == "-" and word[:2] != "--")
        return next((word for word in words if name[1] in word and word not in ours), name)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the help, those of settings under their group's title."""
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            is_setting = isinstance(parameter, SettingOption)
            group = group_of(str(parameter.name)) if is_setting else "Options"
            if row is not None:
                groups.setdefault(group, []).append(row)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)


class SettingOption(click.Option):
    """The flag of one setting; its value is checked where the environment's is."""

    def __init__(self, field: str, flag: str) -> None:
        info = Settings.model_fields[field]
        kind = _without_none(info.annotation)
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        names = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag]
        names += _SECOND_FLAGS.get(field, ())
        super().__init__(
            [field, *names],
            default=None,
            type=bool if kind is bool else str,
            metavar=None if kind is bool else _metavar(kind, choices),
            help=str(info.description),
        )
        self._choices = choices
        self._is_path = kind is Path

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Propose files for a path, and those of a choice that begin with what is typed."""
        if self._is_path:
            return click.Path().shell_complete(ctx, self, incomplete)
        return [CompletionItem(c) for c in self._choices if c.startswith(incomplete)]


def settings_flags(function: Decorated) -> Decorated:
    """Give a command every setting's flag; it gets those that were given as keyword arguments."""
    for field in reversed(Settings.model_fields):
        if flag := flag_name(field):
            option = SettingOption(field, flag)
            function.__dict__.setdefault("__click_params__", []).append(option)
    return function


def parallelism_flags(function: Decorated) -> Decorated:
    """Give a command the sizes of parallelism; `serve.with_own_names` makes tags of them."""
    tensor = click.option(
        *TENSOR_PARALLEL,
        "tensor_parallel_size",
        type=click.IntRange(1),
        metavar="N",
        help="Only profiles that split each layer over N GPUs, or processes: --tags-selector tp=N.",
    )
    pipeline = click.option(
        *PIPELINE_PARALLEL,
        "pipeline_parallel_size",
        type=click.IntRange(1),
        metavar="N",
        help="Only profiles that split the layers over N GPUs: --tags-selector pp=N.",
    )
    return tensor(pipeline(function))


def given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def with_hint(error: click.NoSuchOption) -> click.UsageError:
    """Return the error; for a flag of another server one that says what to do here."""
    if said := refusals([error.option_name]):
        return click.UsageError(said[0], error.ctx)
    instead = answer("flags", error.option_name)
    if not instead:
        return error
    return click.UsageError(f"No such option: {error.option_name}. {instead}", error.ctx)


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    is_annotated = hasattr(annotation, "__metadata__")
    return get_args(annotation)[0] if is_annotated else annotation


def _metavar(kind: Any, choices: tuple[str, ...]) -> str:
    if choices:
        return "|".join(choices)
    return {int: "N", float: "NUMBER", Path: "PATH"}.get(kind, "TEXT")
