"""Fit each engine's constants to the figures meant for it, and note the errors of the others.

`python -m tools.roofline.calibrate` rewrites constants.yaml. A time is a sum of what the work
holds times a constant (a share counts by its reciprocal), so that the fit is one of least squares:
of relative errors, with every constant inside its bounds, and drawn weakly towards a first guess,
which is what remains where no figure tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from parts.plan.constants import CONSTANTS, Constants, constants_of
from profiles.catalogue import catalogue
from profiles.hardware.gpus import Architecture
from tools.roofline.figures import Figure, load

HEADER = "# Written by `python -m tools.roofline.calibrate` from figures.yaml; do not edit.\n"
TIMES = ("decode_layer_us", "prefill_layer_us", "sequence_us", "exchange_us")
# First guesses, of gpt-oss in a CUDA graph on an H100. A sum over two of them took 9 to 17 µs.
GUESS = {
    "memory_share": 0.7,
    "compute_share": 0.4,
    "decode_layer_us": 40.0,
    "prefill_layer_us": 200.0,
    "sequence_us": 5.0,
    "exchange_us": 12.0,
}
# Of the data sheet: a plain read reaches 0.92 of the bandwidth on an H100, bf16 products 0.76.
MAX_SHARE = {"memory_share": 0.92, "compute_share": 1.0}
# How much a first guess weighs, against 1 for a figure. That of an exchange is a measurement.
PULL = {name: 0.2 if name == "exchange_us" else 0.02 for name in GUESS}
_SWEEPS = 20_000


def calibrate(figures: Sequence[Figure]) -> dict[str, Any]:
    """Fit every engine's constants, and return them in the form of constants.yaml."""
    engines = dict.fromkeys(figure.group.engine for figure in figures)
    return {
        engine: _engine([figure for figure in figures if figure.group.engine == engine])
        for engine in engines
    }


def relative_error(figure: Figure, constants: Constants) -> float:
    """Return how much faster (or, below 0, slower) a figure is foretold than measured."""
    return figure.seconds / constants.seconds(figure.work) - 1


def _engine(figures: Sequence[Figure]) -> dict[str, Any]:
    fitted = [figure for figure in figures if figure.row.fits]
    architectures = dict.fromkeys(figure.architecture for figure in fitted)
    names = [(share, a) for a in architectures for share in MAX_SHARE] + [(t, None) for t in TIMES]
    rows = [_coefficients(figure) for figure in fitted]
    guess = [_unknown(name) for name, _ in names]
    solution = least_squares(
        [[row.get(name, 0.0) for name in names] for row in rows],
        [figure.seconds - figure.work.link_s for figure in fitted],
        guess,
        [1 / MAX_SHARE[name] if name in MAX_SHARE else 0.0 for name, _ in names],
        [PULL[name] for name, _ in names],
    )
    found = dict(zip(names, solution, strict=True))
    times = {name: round(found[name, None], 1) for name in TIMES}
    achieved = {
        a: {share: round(1 / found[share, a], 3) for share in MAX_SHARE} for a in architectures
    }
    known = {"times": times, "achieved": achieved}
    most_streams = max(figure.row.streams for figure in figures)
    errors = _held_out_errors(known, figures)
    return {**known, "most_streams": most_streams, "held_out_errors": errors}


def _unknown(name: str) -> float:
    """The first guess of what is solved for."""
    return 1 / GUESS[name] if name in MAX_SHARE else GUESS[name]


def _coefficients(figure: Figure) -> dict[tuple[str, Architecture | None], float]:
    """What each unknown is multiplied by in the time of a figure, in seconds."""
    work, architecture = figure.work, figure.architecture
    return {
        ("memory_share", architecture): work.memory_s,
        ("compute_share", architecture): work.compute_s,
        ("decode_layer_us", None): work.decode_layers * 1e-6,
        ("prefill_layer_us", None): work.prefill_layers * 1e-6,
        ("sequence_us", None): work.sequences * 1e-6,
        ("exchange_us", None): work.exchanges * 1e-6,
    }


def _held_out_errors(
    known: Mapping[str, Any], figures: Iterable[Figure]
) -> dict[Architecture, list[float]]:
    """The errors of all rows that nothing was fitted to, by architecture."""
    errors: dict[Architecture, list[float]] = {}
    for figure in figures:
        if not figure.row.fits:
            constants, _ = constants_of(known, figure.architecture)
            error = round(relative_error(figure, constants), 3)
            errors.setdefault(figure.architecture, []).append(error)
    return errors


def least_squares(
    rows: Sequence[Sequence[float]],
    seconds: Sequence[float],
    guess: Sequence[float],
    lowest: Sequence[float],
    weights: Sequence[float],
) -> list[float]:
    """Minimise the relative errors of `rows * x = seconds`, each x at least its lowest.

    Shapes: `rows` (figures, unknowns), `seconds` (figures), the others (unknowns); a weight says
    how strongly its unknown is held to the guess.

    One unknown after another is set to its best, which converges to the one minimum.
    """
    scaled = [[value / total for value in row] for row, total in zip(rows, seconds, strict=True)]
    pulls = [weight / value for weight, value in zip(weights, guess, strict=True)]
    solution = list(guess)
    rest = [sum(a * x for a, x in zip(row, solution, strict=True)) - 1 for row in scaled]
    for _ in range(_SWEEPS):
        largest = 0.0
        for j, pull in enumerate(pulls):
            slope = sum(row[j] * r for row, r in zip(scaled, rest, strict=True))
            slope += pull * pull * (solution[j] - guess[j])
            curvature = sum(row[j] ** 2 for row in scaled) + pull * pull
            step = max(lowest[j], solution[j] - slope / curvature) - solution[j]
            solution[j] += step
            for i, row in enumerate(scaled):
                rest[i] += row[j] * step
            largest = max(largest, abs(step) / guess[j])
        if largest < 1e-9:
            break
    return solution


def as_yaml(calibrated: Mapping[str, Any]) -> str:
    """Return the text of constants.yaml."""
    return HEADER + yaml.safe_dump(dict(calibrated), sort_keys=False, default_flow_style=None)


if __name__ == "__main__":
    CONSTANTS.write_text(as_yaml(calibrate(load(catalogue.load().models))), encoding="utf-8")
