"""What a start shows on a terminal: a few wrapped lines, one line of progress, the URL last."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Callable
from typing import Final

import click

from profiles.hardware.machine import GB
from service.run.launching import has_page, hints
from service.run.startup import Launch
from service.settings.environment import allows_colour
from service.settings.settings import Settings
from service.settings.terminal import runnable, width_of, wrapped

_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_DRAW_S: Final = 0.15
_CLEAR: Final = "\r\x1b[2K"


def is_shown(settings: Settings) -> bool:
    """Whether the start is shown to a person, and the log lines are left out: on a terminal, where
    no log was asked for."""
    is_asked_for = "log_level" in settings.model_fields_set or settings.jsonl_logging
    return sys.stderr.isatty() and not is_asked_for


def show_chosen(launch: Launch, release: str) -> None:
    """Say how to get a better model here, and what is served on what."""
    selection, chosen = launch.selection, launch.selection.chosen
    for note in selection.notes:
        line(note, fg="yellow")
    if launch.is_elsewhere:
        line(f"Harmonium {release}: {chosen.profile.model.name}. {selection.reason}")
        return
    cpu = launch.hardware.cpu
    own = f"{cpu.num_cores} CPU cores ({cpu.model}), {cpu.total_bytes / GB:.0f} GB memory"
    place = launch.hardware.summary if launch.hardware.gpus else own
    line(
        f"Harmonium {release}: {chosen.profile.model.name} by the {chosen.profile.engine} engine "
        f"on {place}; a context of {chosen.max_model_len:,} tokens. "
        "`harmonium profiles` says why."
    )


def show_ready(settings: Settings, url: str, model: str, seconds: float) -> None:
    """Say that requests are answered, how to chat, and the URL."""
    line(" ".join([f"{model} is ready ({seconds:.1f} s).", *hints(settings, url)]))
    where = "In a browser:" if has_page(settings) else "The API is at"
    line(f"{where} {url}", fg="green", bold=True)


def show_stopping() -> None:
    line("Finishing running requests. Ctrl-C again stops now.")


def show_stopped() -> None:
    line("Stopped.")


def line(text: str, fg: str | None = None, bold: bool | None = None) -> None:
    for each in wrapped(runnable(text), width_of(sys.stderr)):
        click.echo(click.style(each, fg=fg, bold=bold) if allows_colour() else each, err=True)


async def progress(step: Callable[[], str]) -> None:
    """Draw one line until it is cancelled: what the start does now, and for how long."""
    text, began, frame = step(), time.monotonic(), 0
    while True:
        if step() != text:
            text, began = step(), time.monotonic()
        seconds = time.monotonic() - began
        shown = f"{_FRAMES[frame % len(_FRAMES)]} {text} … {seconds:.0f} s"
        sys.stderr.write(f"{_CLEAR}{shown[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()
        frame += 1
        await asyncio.sleep(_DRAW_S)


def end_progress(shown: asyncio.Task[None]) -> None:
    if not shown.cancelling():
        shown.cancel()
        sys.stderr.write(_CLEAR)
        sys.stderr.flush()
