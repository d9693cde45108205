"""Which tools the settings connect."""

from __future__ import annotations

import pytest

from service.run.wiring import toolbox_of
from service.settings.settings import Settings, SettingsError, load


def test_a_url_connects_its_tool() -> None:
    known = frozenset(("browser", "python"))
    assert toolbox_of(Settings(), known) is None
    settings = load({"python_mcp_url": "http://tools:8001/mcp", "mcp_timeout_s": 3})
    toolbox = toolbox_of(settings, known)
    assert toolbox is not None
    assert toolbox.tools == {"python"}
    assert toolbox.limits.timeout_s == 3
    assert toolbox_of(settings, frozenset()) is None  # the model's format has no calls of it


def test_a_url_may_hold_a_secret() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"browser_mcp_url": "ftp://user:secret@tools/mcp"})
    assert "NIM_BROWSER_MCP_URL" in str(caught.value)
    assert "http://" in str(caught.value)
    assert "secret" not in str(caught.value)
