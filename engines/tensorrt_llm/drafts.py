"""EAGLE3's options by the names that the installed release has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engines.errors import EngineStartError

_MODEL: Final = ("speculative_model", "speculative_model_dir")  # newest first


def decoding_config(llmapi: Any, group: Mapping[str, Any]) -> Any:
    """Make the class of EAGLE3's options; raises EngineStartError where a release has none of them.

    `group`: what arguments.py left of them, with the drafting model under `speculative_model_dir`.
    """
    make = getattr(llmapi, "Eagle3DecodingConfig", None) or llmapi.EagleDecodingConfig
    fields = make.model_fields
    named = {name: value for name, value in group.items() if name not in _MODEL}
    found = [name for name in _MODEL if name in fields]
    if not found:
        raise EngineStartError(f"{make.__name__} has no option for the model that drafts")
    named[found[0]] = group["speculative_model_dir"]
    return make(**named, **_kind(fields))


def _kind(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Drafts within the model where it then follows a request's temperature, else beside it.

    Within the model it answers greedily, unless `allow_advanced_sampling` is there and set; from
    1.4 there are no drafts beside the model.
    """
    if "allow_advanced_sampling" in fields:
        one = {"eagle3_one_model": True} if "eagle3_one_model" in fields else {}
        return {"allow_advanced_sampling": True, **one}
    if "eagle3_one_model" in fields:
        return {"eagle3_one_model": False}
    raise EngineStartError(
        "this release of TensorRT-LLM drafts greedily whatever the temperature of a request; "
        "choose a profile without EAGLE3"
    )
