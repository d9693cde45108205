"""How each coding agent is pointed at a server: shell lines to paste, with the real context.

An agent that does not know a model assumes a context window, from 128,000 to a million tokens, and
shortens its conversation too late. So each gets the window, in its own way, and to leave room
for an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

KEY_VARIABLE: Final = "HARMONIUM_API_KEY"
_NO_KEY: Final = "unused"  # most clients want some key
_MOST_OUTPUT: Final = 32_768
_SMALL: Final = 65_536
_OUTPUT_SHARE: Final = 4  # a quarter of a small context is for the answer


@dataclass(frozen=True, slots=True)
class Target:
    """The server that a client is pointed at."""

    url: str  # without /v1
    model: str
    context: int  # tokens of prompt and answer together
    has_key: bool

    @property
    def output(self) -> int:
        """The most tokens that a client should leave for an answer."""
        return min(_MOST_OUTPUT, self.context // _OUTPUT_SHARE)

    @property
    def key(self) -> str:
        """The key as a shell reads it: never the key itself."""
        return f"${KEY_VARIABLE}" if self.has_key else _NO_KEY

    def key_in(self, reference: str) -> str:
        """The key where a client's file refers to a variable by itself."""
        return reference.replace("KEY", KEY_VARIABLE) if self.has_key else _NO_KEY


def _aider(at: Target) -> str:
    sizes = {"max_input_tokens": at.context, "max_output_tokens": at.output}
    about = {f"openai/{at.model}": {**sizes, "litellm_provider": "openai", "mode": "chat"}}
    return f"""\
echo '{json.dumps(about)}' > harmonium.json
OPENAI_API_BASE={at.url}/v1 OPENAI_API_KEY={at.key} aider \
--model-metadata-file harmonium.json --model openai/{at.model}"""


def _claude(at: Target) -> str:
    return (
        f"ANTHROPIC_BASE_URL={at.url} ANTHROPIC_AUTH_TOKEN={at.key} ANTHROPIC_MODEL={at.model} "
        f"CLAUDE_CODE_MAX_CONTEXT_TOKENS={at.context} CLAUDE_CODE_MAX_OUTPUT_TOKENS={at.output} "
        "claude"
    )


def _cline(at: Target) -> str:
    folder = "--data-dir ~/.cline-harmonium"
    return f"""\
cline auth {folder} -p openai-compatible -b {at.url}/v1 -k {at.key} -m {at.model}
cline {folder} -P openai-compatible -m {at.model}"""


def _codex(at: Target) -> str:
    key = f', env_key = "{KEY_VARIABLE}"' if at.has_key else ""
    more = f"{key}, supports_websockets = true"
    provider = f'{{ name = "Harmonium", base_url = "{at.url}/v1"{more} }}'
    return (
        f"codex -m {at.model} -c model_context_window={at.context} -c model_provider=harmonium "
        f"-c 'model_providers.harmonium={provider}'"
    )


def _continue(at: Target) -> str:
    model = {
        "name": at.model,
        "provider": "openai",
        "model": at.model,
        "apiBase": f"{at.url}/v1",
        "apiKey": at.key_in("${{ secrets.KEY }}"),
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": {"contextLength": at.context, "maxTokens": at.output},
    }
    file = {"name": "Harmonium", "version": "1.0.0", "schema": "v1", "models": [model]}
    return f"""\
echo '{json.dumps(file)}' > harmonium.yaml
cn --config harmonium.yaml"""


def _copilot(at: Target) -> str:
    return (
        f"COPILOT_PROVIDER_BASE_URL={at.url}/v1 COPILOT_PROVIDER_API_KEY={at.key} "
        f"COPILOT_MODEL={at.model} COPILOT_PROVIDER_MAX_PROMPT_TOKENS={at.context - at.output} "
        f"COPILOT_PROVIDER_MAX_OUTPUT_TOKENS={at.output} COPILOT_OFFLINE=true copilot"
    )


def _opencode(at: Target) -> str:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{at.url}/v1", "apiKey": at.key_in("{env:KEY}")},
        "models": {at.model: {"limit": {"context": at.context, "output": at.output}}},
    }
    file = {"model": f"harmonium/{at.model}", "provider": {"harmonium": provider}}
    return f"OPENCODE_CONFIG_CONTENT='{json.dumps(file)}' opencode"


def _pi(at: Target) -> str:
    model = {"id": at.model, "reasoning": True, "contextWindow": at.context, "maxTokens": at.output}
    provider = {
        "baseUrl": f"{at.url}/v1",
        "api": "openai-completions",
        "apiKey": at.key,
        "models": [model],
    }
    file = {"providers": {"harmonium": provider}}
    return f"""\
mkdir -p ~/.pi-harmonium && echo '{json.dumps(file)}' > ~/.pi-harmonium/models.json
PI_CODING_AGENT_DIR=~/.pi-harmonium pi --provider harmonium --model {at.model}"""


def _qwen(at: Target) -> str:
    # After it has shortened a conversation it puts five files back: too much for a small context.
    files = "QWEN_COMPACT_MAX_RECENT_FILES=0 " if at.context < _SMALL else ""
    file = {"model": {"generationConfig": {"contextWindowSize": at.context}}}
    return f"""\
echo '{json.dumps(file)}' > ~/.harmonium-qwen.json
{files}QWEN_CODE_SYSTEM_DEFAULTS_PATH=~/.harmonium-qwen.json \
QWEN_CODE_MAX_OUTPUT_TOKENS={at.output} OPENAI_BASE_URL={at.url}/v1 OPENAI_API_KEY={at.key} \
OPENAI_MODEL={at.model} qwen --auth-type openai"""


CONFIGURATIONS: Final[dict[str, Callable[[Target], str]]] = {
    "aider": _aider,
    "claude": _claude,
    "cline": _cline,
    "codex": _codex,
    "continue": _continue,
    "copilot": _copilot,
    "opencode": _opencode,
    "pi": _pi,
    "qwen": _qwen,
}
