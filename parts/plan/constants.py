"""What an engine achieves: shares of bandwidth and operations, and what a step costs beside them.

The shares belong to an engine on an architecture, the times to the engine. They come from
`constants.yaml`, which calibrate.py writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from parts.plan.work import Work
from profiles.hardware.gpus import Architecture

CONSTANTS = Path(__file__).with_name("constants.yaml")
# Whose shares are taken where an engine was not seen, nearest first.
_NEAREST: Mapping[Architecture, tuple[Architecture, ...]] = {
    "older": ("ampere", "ada", "hopper", "blackwell-rtx", "blackwell"),
    "ampere": ("ampere", "ada", "hopper", "blackwell-rtx", "blackwell"),
    "ada": ("ada", "ampere", "blackwell-rtx", "hopper", "blackwell"),
    "hopper": ("hopper", "blackwell", "ampere", "ada", "blackwell-rtx"),
    "blackwell": ("blackwell", "hopper", "blackwell-rtx", "ada", "ampere"),
    "blackwell-rtx": ("blackwell-rtx", "ada", "hopper", "blackwell", "ampere"),
}


@dataclass(frozen=True, slots=True)
class Constants:
    """What one engine achieves on one architecture, and what a step costs beside."""

    memory_share: float  # of the data sheet's bandwidth
    compute_share: float  # of its dense bf16 operations
    decode_layer_us: float  # of every layer in every decode step: launches, waits, tails
    prefill_layer_us: float  # the same in a prefill step
    sequence_us: float  # of every sequence in a decode step: drawing, scheduling, the host
    exchange_us: float  # of every exchange between GPUs, however short

    def seconds(self, work: Work) -> float:
        """The seconds that `work` takes: its parts one after another."""
        latency_us = (
            work.decode_layers * self.decode_layer_us
            + work.prefill_layers * self.prefill_layer_us
            + work.sequences * self.sequence_us
            + work.exchanges * self.exchange_us
        )
        streamed = work.memory_s / self.memory_share + work.compute_s / self.compute_share
        return streamed + work.link_s + latency_us * 1e-6


@dataclass(frozen=True, slots=True)
class FittedConstants:
    """Constants and how far they can be trusted."""

    constants: Constants
    architecture: Architecture  # that the shares were seen on
    is_own: bool  # it is the architecture that was asked for
    held_out_errors: tuple[float, ...]  # of rows on the architecture asked for, as shares
    most_streams: int  # of any row of the engine

    @property
    def median_error(self) -> float | None:
        """Of the rows held out, whichever way they are wrong; None if there are none."""
        errors = sorted(map(abs, self.held_out_errors))
        return errors[len(errors) // 2] if errors else None

    @property
    def is_checked(self) -> bool:
        """Whether a figure of the architecture that was asked for has a part in it."""
        return self.is_own or self.median_error is not None

    def trust_at(self, num_users: int) -> str:
        """'error on held-out measurements: median 8%, worst 21%', and what was not measured."""
        if num_users <= self.most_streams:
            return self.trust
        streams = "one stream" if self.most_streams == 1 else f"{self.most_streams:,} streams"
        return f"{self.trust}; measured with at most {streams}"

    @property
    def trust(self) -> str:
        """The errors, and the source of the constants if it is another architecture."""
        taken = "" if self.is_own else f"from {self.architecture}; "
        median = self.median_error
        if median is None:
            return f"{taken}no measurement to check against"
        worst = max(map(abs, self.held_out_errors))
        return f"{taken}error on held-out measurements: median {median:.0%}, worst {worst:.0%}"


def calibration_of(engine: str, architecture: Architecture) -> FittedConstants | None:
    """Return what is known of `engine` on `architecture` or the nearest; None of an unknown one."""
    known = load().get(engine)
    if known is None:
        return None
    constants, nearest = constants_of(known, architecture)
    errors = known["held_out_errors"].get(architecture, ())
    return FittedConstants(
        constants, nearest, nearest == architecture, tuple(errors), known["most_streams"]
    )


def constants_of(
    known: Mapping[str, Any], architecture: Architecture
) -> tuple[Constants, Architecture]:
    """Return an engine's constants on the nearest architecture to `architecture`, and its name."""
    nearest = next(a for a in _NEAREST[architecture] if a in known["achieved"])
    return Constants(**known["times"], **known["achieved"][nearest]), nearest


@cache
def load(path: Path = CONSTANTS) -> dict[str, Any]:
    """Read constants.yaml: an engine's times and, for each architecture, its shares and errors."""
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content
