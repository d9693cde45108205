"""Profiles for weights as a checkpoint has them, and for the same weights rounded to MXFP4.

The catalogue's profiles are for experts in MXFP4. Of a checkpoint with others each gives one that
keeps them, for every engine that reads them, and of the native engine one more that rounds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from profiles.catalogue.engines import known_engines
from profiles.catalogue.models import Precision, Profile


def as_stored(profile: Profile, precision: Precision) -> Profile:
    """The profile for experts of another precision than it was made for.

    Profiles that compute in 32 bits do so whatever is stored.
    """
    if profile.precision != "mxfp4" or precision == "mxfp4":
        return profile
    fixed = known_engines()[profile.engine].packed_options
    changes: dict[str, Any] = {
        "precision": precision,
        "options": {name: each for name, each in profile.options.items() if name not in fixed},
        "source": f"the values of {profile.title}, with experts in {precision} as the checkpoint "
        f"has them, untuned for these; figures there are of MXFP4: {profile.source}",
    }
    if profile.status in ("tuned", "published"):
        changes["status"] = "untuned"
    return profile.model_copy(update=changes)


def rounded(profiles: Iterable[Profile]) -> Iterator[Profile]:
    """Those of the native engine that round experts to MXFP4 while loading (NIM_QUANTIZE).

    On a CPU they are unpacked again, into the 32 bits that it computes in.
    """
    for profile in profiles:
        if profile.engine == "native":
            yield profile.model_copy(
                update={
                    "precision": "mxfp4" if profile.gpu is not None else profile.precision,
                    "options": {**profile.options, "quantize": "mxfp4"},
                    "source": "the checkpoint's experts rounded to MXFP4 while loading "
                    f"(NIM_QUANTIZE=mxfp4), which changes answers; otherwise: {profile.source}",
                }
            )
