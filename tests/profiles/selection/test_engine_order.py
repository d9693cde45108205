"""Which engine comes first: every GPU has an order with figures, and a wrong file is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.catalogue.catalogue import Catalogue
from profiles.errors import InvalidCatalogue
from profiles.hardware.gpus import BY_KEY, KNOWN_GPUS
from profiles.hardware.written import parse_hardware
from profiles.selection.engine_order import order_on, preferences


def test_every_gpu_has_an_order_and_figures_that_say_so(catalogue: Catalogue) -> None:
    for known in KNOWN_GPUS:
        (gpu,) = parse_hardware(known.key).gpus
        order = order_on(gpu, catalogue.profiles[0], "balanced")
        assert len(order.engines) == 4
        assert any(character.isdigit() for character in order.because)
    assert order_on(None, catalogue.profiles[0], "latency").engines[0] == "native"


def test_every_board_that_is_named_is_known() -> None:
    assert {name for each in preferences() for name in each.gpus.names} <= BY_KEY.keys()


def test_an_order_may_hold_for_a_model_and_a_goal_alone(catalogue: Catalogue) -> None:
    (gpu,) = parse_hardware("h200").gpus
    large, small = (
        next(p for p in catalogue.profiles if p.model.name == name)
        for name in ("gpt-oss-120b", "gpt-oss-20b")
    )
    assert "6,868" in order_on(gpu, large, "throughput").because
    assert "6,868" not in order_on(gpu, large, "latency").because
    assert "6,868" not in order_on(gpu, small, "throughput").because


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "- {gpus: {family: hopper}, engines: [vlm], because: fast}",
            r"0\.engines: name engi",
        ),
        ("- {gpus: {family: hoper}, engines: [vllm], because: fast}", r"0\.gpus\.family: Input sh"),
        ("- {gpus: {}, engines: [vllm], because: fast}", "give names, family or"),
    ],
)
def test_a_wrong_file_is_named_with_the_entry(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(text)
    with pytest.raises(InvalidCatalogue, match=complaint):
        preferences(path)
