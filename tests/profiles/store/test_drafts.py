"""The head that a profile drafts with: fetched beside the model, and named to its engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.catalogue.models import Profile
from profiles.errors import ModelStoreError
from profiles.store.drafts import open_draft, with_folder
from profiles.store.store import Fetching
from tests.profiles.hub import COMMIT, hub_of, serving
from tests.profiles.store.test_user_checkpoint import ALLOWED, CHECKPOINT, FILES, whole
from tests.profiles.surveys import PROFILES


@pytest.fixture(params=["vllm", "tensorrt_llm"])
def drafting(request: pytest.FixtureRequest) -> Profile:
    """A profile that drafts with the head of the test's hub."""
    profile = next(p for p in PROFILES if p.draft and p.engine == request.param)
    options = with_folder(profile.options, profile.draft, Path("acme/tuned"))
    return profile.model_copy(
        update={"draft": "acme/tuned", "draft_revision": COMMIT, "options": options}
    )


def test_a_head_is_fetched_and_its_folder_is_named_to_the_engine(
    drafting: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({}) as served:
        hub_of(served, monkeypatch, CHECKPOINT)
        [listed] = served.lists.values()
        served.lists = {f"api/models/acme/tuned/revision/{COMMIT}?blobs=true": listed}
        draft = open_draft(drafting, tmp_path, ALLOWED)
        assert draft is not None
        assert whole(draft) == FILES
    again = open_draft(drafting, tmp_path, Fetching(is_allowed=False))  # no server
    assert again is not None
    assert again.to_fetch == ()
    options = with_folder(drafting.options, drafting.draft, again.folder)
    named = options.get("speculative_config", options)
    assert str(again.folder) in named.values()
    assert "acme/tuned" not in str(options)


def test_a_mirror_holds_it_under_its_name(tmp_path: Path) -> None:
    profile = next(p for p in PROFILES if p.draft)
    with serving({f"models/{profile.draft}/{n}": c for n, c in FILES.items()}) as served:
        mirror = Fetching(is_allowed=True, override=f"{served.url}/models")
        draft = open_draft(profile, tmp_path, mirror)
        assert draft is not None
        assert whole(draft, mirror) == FILES


def test_where_fetching_is_forbidden_the_profile_is_named(tmp_path: Path) -> None:
    profile = next(p for p in PROFILES if p.draft)
    with pytest.raises(ModelStoreError, match=f"the draft head of {profile.title} is hf://nvidia"):
        open_draft(profile, tmp_path, Fetching(is_allowed=False))


def test_a_profile_without_one_asks_nobody(tmp_path: Path) -> None:
    profile = next(p for p in PROFILES if not p.draft)
    assert open_draft(profile, tmp_path, Fetching(is_allowed=True)) is None
