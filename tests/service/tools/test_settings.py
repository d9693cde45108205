"""Which tools the settings connect."""

from __future__ import annotations

import pytest

from service.run.wiring import toolbox_of
from service.settings.settings import Settings, SettingsError, load


def test_a_url_connects_its_tool() -> None:
    assert toolbox_of(Settings()) is None
    toolbox = toolbox_of(load({"python_mcp_url": "http://tools:8001/mcp", "mcp_timeout_s": 3}))
    assert toolbox is not None
    assert toolbox.tools == {"python"}
    assert toolbox.limits.timeout_s == 3


def test_a_url_may_hold_a_secret() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"browser_mcp_url": "ftp://user:secret@tools/mcp"})
    assert "NIM_BROWSER_MCP_URL" in str(caught.value)
    assert "http://" in str(caught.value)
    assert "secret" not in str(caught.value)
