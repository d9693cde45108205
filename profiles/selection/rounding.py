"""What rounding 16-bit weights to MXFP4 would change: offered where they do not fit as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from profiles.catalogue.models import Profile
from profiles.hardware.machine import GB, Hardware
from profiles.selection.placement import Placement
from profiles.selection.ranking import is_context_kept
from profiles.selection.verdicts import Candidate, Constraints, Fit, Rejection, Selection

QUANTIZE = "mxfp4"

Ask = Callable[[Constraints], Selection]


def rounding_remedy(
    selection: Selection, ask: Ask, hardware: Hardware, constraints: Constraints
) -> str:
    """Say what the weights need as they are and rounded; empty where rounding does not help."""
    rounded = _rounded(selection, ask, constraints)
    if rounded is None:
        return ""
    as_stored = _as_stored(rounded.profile, selection)
    reason = f" As stored it {as_stored.reason}." if as_stored is not None else ""
    return (
        f"Set NIM_QUANTIZE={QUANTIZE}: it rounds the checkpoint's 16-bit experts to MXFP4 while "
        f"loading, so that {rounded.profile.model.name} takes {_takes(rounded.placement)} and "
        f"runs on {hardware.summary}. Or merge the fine-tune to MXFP4.{reason}"
    )


def rounding_notes(selection: Selection, ask: Ask, constraints: Constraints) -> Iterator[str]:
    """Where the weights fit only with the CPU or a short context: what rounding would change."""
    chosen = selection.chosen
    is_served_well = is_context_kept(chosen) and (
        chosen.profile.gpu is not None or not any(r.profile.gpu for r in selection.rejections)
    )
    if is_served_well:
        return
    rounded = _rounded(selection, ask, constraints)
    if rounded is None or rounded.profile.gpu is None:
        return
    gain = (
        "they run on the GPU"
        if chosen.profile.gpu is None
        else f"the context is {rounded.max_model_len:,} tokens"
    )
    if chosen.profile.gpu is None or rounded.max_model_len > chosen.max_model_len:
        yield (
            f"With NIM_QUANTIZE={QUANTIZE} the 16-bit experts are rounded to MXFP4 while loading: "
            f"then the weights take {rounded.placement.need.weights_bytes / GB:.1f} GB, and {gain}."
        )


def _rounded(selection: Selection, ask: Ask, constraints: Constraints) -> Candidate | None:
    """What would be chosen with rounding; None if nothing here can be rounded, or is."""
    if constraints.quantize is not None or not any(
        each.profile.is_rounded and each.fit is Fit.NOT_ASKED for each in selection.rejections
    ):
        return None
    other = ask(replace(constraints, quantize=QUANTIZE))
    return other.chosen if other.compatible else None


def _as_stored(rounded: Profile, selection: Selection) -> Rejection | None:
    name = rounded.name.removesuffix("-rounded").replace("-mxfp4-", "-bf16-")
    alike = (r for r in selection.rejections if r.profile.name == name)
    return next((r for r in alike if r.profile.model == rounded.model), None)


def _takes(placement: Placement) -> str:
    need = placement.need
    total = need.total_bytes(placement.max_model_len)
    return f"{total / GB:.1f} GB ({need.weights_bytes / GB:.1f} GB weights)"
