"""What to say when a machine has GPUs and serves on its CPU."""

from __future__ import annotations

from profiles.hardware.machine import Hardware
from profiles.selection.remedies import by_cause, shorter_context
from profiles.selection.verdicts import Fit, Rejection, Selection


def idle_gpus(selection: Selection, hardware: Hardware) -> str:
    """Name the GPUs that stay idle, what is missing and what mends it; nothing if one serves.

    Nothing is said either when every profile for a GPU was excluded by what was asked for.
    GPUs that stay idle beside one that serves are among the selection's notes.
    """
    if selection.chosen.profile.gpu is not None:
        return ""
    for_gpus = [
        rejection
        for rejection in selection.rejections
        if rejection.profile.gpu is not None and rejection.fit is not Fit.NOT_ASKED
    ]
    if not hardware.gpus or not for_gpus:
        return ""
    model = selection.chosen.profile.model.name
    return f"{hardware.summary} is idle: {model} runs on the CPU. {_what_mends_it(for_gpus)}"


def _what_mends_it(rejections: list[Rejection]) -> str:
    if shorter := shorter_context(rejections):
        return f"Start again with {shorter}."
    would_fit = [r for r in rejections if r.fit in (Fit.LOW_MEMORY, Fit.NOT_INSTALLED)]
    if not would_fit:
        causes = "; ".join(by_cause(rejections))
        return f"No profile fits: each {causes}."
    missing = {rejection.missing_engine for rejection in would_fit}
    return f"Missing: {'; '.join(sorted(missing))}."
