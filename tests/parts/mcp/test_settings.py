"""Which tools the settings connect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from parts.mcp.serving import SERVING
from service.settings.errors import SettingsError
from service.settings.settings import Settings, load

MakeRuntime = Callable[..., Any]


def test_a_url_connects_its_tool(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime("<|return|>")
    assert SERVING.wire(runtime, Settings()).toolbox is None
    settings = load({"python_mcp_url": "http://tools:8001/mcp", "mcp_timeout_s": 3})
    toolbox = SERVING.wire(runtime, settings).toolbox
    assert toolbox is not None
    assert toolbox.by_name["python"].timeout_s == 3
    assert toolbox.tools == {"python"}


def test_a_format_without_built_in_calls_has_no_tools(make_runtime: MakeRuntime) -> None:
    runtime = replace(make_runtime("<|return|>"), format=SimpleNamespace(builtins=frozenset()))
    settings = load({"python_mcp_url": "http://tools:8001/mcp"})
    assert SERVING.wire(runtime, settings).toolbox is None


def test_a_url_may_hold_a_secret() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"browser_mcp_url": "ftp://user:secret@tools/mcp"})
    assert "NIM_BROWSER_MCP_URL" in str(caught.value)
    assert "http://" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("field", "used"), [("max_calls", 16), ("max_result_bytes", 65536)])
def test_former_settings_are_refused_with_the_value_that_is_used(field: str, used: int) -> None:
    with pytest.raises(SettingsError, match=rf"mcp_{field} is no longer a setting, .* {used}\."):
        load({f"mcp_{field}": 1})
