"""NVIDIA Dynamo."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "NVIDIA Dynamo",
    "Serves as the front or a worker of a Dynamo deployment; prefill workers hand K/V to others.",
    "docs/scale.md",
)
