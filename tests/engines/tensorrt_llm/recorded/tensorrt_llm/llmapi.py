"""What the adapter takes from tensorrt_llm.llmapi."""

from __future__ import annotations

from tensorrt_llm._surface import SURFACE, class_of


class RequestError(RuntimeError):
    """An error of one request."""


for _name in SURFACE["exports"]["tensorrt_llm.llmapi"]:
    if _name in SURFACE["classes"]:
        globals()[_name] = class_of(_name)
