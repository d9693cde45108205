"""Codex's list of models: what it asks `/v1/models?client_version=…` for where its provider has a
command for keys.

Codex reads a model's context and levels of reasoning here, and its instructions. Without the list
it assumes those of a model that it does not know, and warns.
"""

from __future__ import annotations

from typing import Final

from service.api.common.schema import ResponseModel

INSTRUCTIONS: Final = """\
You are a coding agent in the Codex CLI, on the user's machine. Work on the task until it is done, \
then say what you did.

- Follow the AGENTS.md files that cover the files you work on. What the user says goes before them.
- Read the code that matters before you change it. `rg` and `rg --files` search fast.
- Change files with `apply_patch`, in the shell: its input begins with `*** Begin Patch` and ends \
with `*** End Patch`. Keep changes small, in the style of the code around them. Fix causes, not \
symptoms. Add no comments that only repeat the code.
- Leave changes alone that you did not make. Do not commit, create branches or delete what you did \
not create, unless you are asked to.
- Run the tests nearest to your change, then wider ones. If you cannot run them, say so.
- If a command fails, read its output and try another way, instead of repeating it.
- Before a group of commands, say in one sentence what you are about to do.
- For a task of several steps, keep a plan, and mark each step when it is done.
- End with a short answer in plain text: what changed, in which files (`path:line`), and what you \
checked. Say what is not done."""
_MAX_OUTPUT_TOKENS: Final = 10_000  # of a command, in the prompt


class CodexEffort(ResponseModel):
    """A level of reasoning."""

    effort: str
    description: str


_LEVELS: Final = (
    CodexEffort(effort="low", description="Short thoughts, fast answers"),
    CodexEffort(effort="medium", description="The model's usual depth"),
    CodexEffort(effort="high", description="Long thoughts for hard problems"),
)


class CodexTruncation(ResponseModel):
    """How much of a command's output is kept."""

    mode: str = "tokens"
    limit: int = _MAX_OUTPUT_TOKENS


class CodexModel(ResponseModel):
    """A model as Codex describes it."""

    slug: str
    display_name: str
    base_instructions: str = INSTRUCTIONS
    context_window: int
    max_context_window: int
    default_reasoning_level: str = "medium"
    supported_reasoning_levels: tuple[CodexEffort, ...] = _LEVELS
    shell_type: str = "unified_exec"
    support_verbosity: bool = True
    truncation_policy: CodexTruncation = CodexTruncation()
    input_modalities: tuple[str, ...] = ("text",)
    experimental_supported_tools: tuple[str, ...] = ()
    visibility: str = "list"
    supported_in_api: bool = True
    priority: int


def codex_model(name: str, context_window: int, place: int) -> CodexModel:
    """The entry of a name, which is the `place`th of the list."""
    return CodexModel(
        slug=name,
        display_name=name,
        context_window=context_window,
        max_context_window=context_window,
        priority=place,
    )
