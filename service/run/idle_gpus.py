"""What to say when a machine has GPUs that serve nothing."""

from __future__ import annotations

from engines.factory import NO_ADAPTER
from profiles.machine import Hardware
from profiles.placement import Placement
from profiles.remedies import by_cause, shorter_context
from profiles.verdicts import Fit, Rejection, Selection


def idle_gpus(selection: Selection, hardware: Hardware) -> str:
    """Name the GPUs that stay idle, what is missing and what mends it; nothing if none does.

    Nothing is said either when every profile for a GPU was excluded by what was asked for.
    """
    if selection.chosen.profile.gpu is not None:
        return _beside(selection.chosen.placement, hardware)
    for_gpus = [
        rejection
        for rejection in selection.rejections
        if rejection.profile.gpu is not None and rejection.fit is not Fit.NOT_ASKED
    ]
    if not hardware.gpus or not for_gpus:
        return ""
    model = selection.chosen.profile.model.name
    return f"{hardware.summary} stays idle: {model} runs on the CPU. {_what_mends_it(for_gpus)}"


def _beside(placement: Placement, hardware: Hardware) -> str:
    """GPUs like those that serve, enough of them for one more engine at least."""
    each = len(placement.by_replica[0])
    num_alike = sum(gpu.name == placement.gpus[0].name for gpu in hardware.gpus)
    most = num_alike // each
    if most <= placement.num_replicas:
        return ""
    idle, used = num_alike - len(placement.gpus), most * each
    where = "a GPU of its own" if each == 1 else f"{each} GPUs of its own"
    return (
        f"{idle} of {num_alike} GPUs stay idle. NIM_REPLICAS={most} (or --replicas) serves from"
        f" {used} of them: {most} engines side by side, each on {where}."
    )


def _what_mends_it(rejections: list[Rejection]) -> str:
    if shorter := shorter_context(rejections):
        return f"Start again with {shorter}."
    would_fit = [r for r in rejections if r.fit in (Fit.LOW_MEMORY, Fit.NOT_INSTALLED)]
    if not would_fit:
        causes = "; ".join(by_cause(rejections))
        return f"No profile fits: each {causes}."
    missing = {rejection.missing_engine for rejection in would_fit}
    text = f"Missing: {'; '.join(sorted(missing))}."
    if all(reason.endswith(NO_ADAPTER) for reason in missing):
        return (
            f"{text} No command mends that in this release; "
            "`harmonium profiles --all-engines` shows what would serve then."
        )
    return text
