"""The policy's file: what is read of it, and how a wrong one is refused at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parts.moderations import launch
from parts.moderations.launch import LAUNCH
from parts.moderations.policy import Category, read_policy
from profiles.errors import InvalidConstraint
from service.settings.settings import Settings
from tests.needs import needs


def settings_of(path: Path) -> Settings:
    given: dict[str, Any] = {"moderation_policy_path": path}
    return Settings(**given)


@needs("decisions")
def test_a_category_is_a_text_or_has_a_threshold(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "instructions: We sell seeds.\n"
        "categories:\n"
        "  spam: Adverts.\n"
        "  self-harm: {policy: Praise of it., threshold: 0.2}\n"
    )
    LAUNCH.check_server(settings_of(path))
    policy = read_policy(path)
    assert policy.categories == {
        "spam": Category("Adverts."),
        "self-harm": Category("Praise of it.", 0.2),
    }
    assert "We sell seeds." in policy.text
    assert "## self-harm\nPraise of it." in policy.text


@needs("decisions")
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("categories: [", "cannot be read as YAML"),
        ("rules: {}", "it needs `categories`"),
        ("categories: {}", "has 0 categories"),
        ("categories: {spam: ''}", "'spam' is empty"),
        ("categories: {spam: {policy: x, threshold: 2}}", "threshold of 'spam' is 2"),
        ("categories: {spam: {policy: x, treshold: 1}}", "treshold"),
    ],
)
def test_a_wrong_policy_stops_the_start(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(InvalidConstraint, match=fault) as raised:
        LAUNCH.check_server(settings_of(path))
    assert str(path) in str(raised.value)


@needs("decisions")
def test_a_missing_policy_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidConstraint, match="NIM_MODERATION_POLICY_PATH"):
        LAUNCH.check_server(settings_of(tmp_path / "none.yaml"))


def test_a_policy_without_the_part_that_asks_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("categories: {spam: Adverts.}")
    monkeypatch.setattr(launch, "folders", dict)
    with pytest.raises(InvalidConstraint, match="moderations need the part decisions"):
        launch.LAUNCH.check_server(settings_of(path))
