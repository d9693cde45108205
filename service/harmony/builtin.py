"""The tools gpt-oss was trained with, `browser` and `python`, as its prompt and headers name them.

The texts are those of openai-harmony, token for token (a test compares).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RECIPIENTS = {
    "browser": ("browser.search", "browser.open", "browser.find"),
    "python": ("python",),
}
ALL_RECIPIENTS = frozenset(name for names in RECIPIENTS.values() for name in names)


@dataclass(frozen=True, slots=True)
class Builtins:
    """What becomes of calls of tools that the client did not offer."""

    hosted: frozenset[str] = frozenset()  # this server runs them
    returns_others: bool = False  # the client gets all other calls; else they are reasoning


NO_BUILTINS = Builtins()


def recipients_of(tools: Iterable[str]) -> frozenset[str]:
    """All recipients of these tools."""
    return frozenset(name for tool in tools for name in RECIPIENTS[tool])


def describe_builtins(tools: Iterable[str]) -> str:
    """Write the `# Tools` section of a system message."""
    sections = [_DESCRIPTIONS[tool] for tool in sorted(tools)]
    return "\n\n".join(["# Tools", *sections])


_BROWSER = """\
## browser

// Tool for browsing.
// The `cursor` appears in brackets before each browsing display: `[{cursor}]`.
// Cite information from the tool using the following format:
// `【{cursor}†L{line_start}(-L{line_end})?】`, for example: `【6†L9-L11】` or `【8†L3】`.
// Do not quote more than 10 words directly from the tool output.
// sources=web (default: web)
namespace browser {

// Searches for information related to `query` and displays `topn` results.
type search = (_: {
query: string,
topn?: number, // default: 10
source?: string,
}) => any;

// Opens the link `id` from the page indicated by `cursor` starting at line number `loc`, \
showing `num_lines` lines.
// Valid link ids are displayed with the formatting: `【{id}†.*】`.
// If `cursor` is not provided, the most recent page is implied.
// If `id` is a string, it is treated as a fully qualified URL associated with `source`.
// If `loc` is not provided, the viewport will be positioned at the beginning of the document \
or centered on the most relevant passage, if available.
// Use this function without `id` to scroll to a new location of an opened page.
type open = (_: {
id?: number | string, // default: -1
cursor?: number, // default: -1
loc?: number, // default: -1
num_lines?: number, // default: -1
view_source?: boolean, // default: false
source?: string,
}) => any;

// Finds exact matches of `pattern` in the current page, or the page given by `cursor`.
type find = (_: {
pattern: string,
cursor?: number, // default: -1
}) => any;

} // namespace browser"""
_PYTHON = """\
## python

Use this tool to execute Python code in your chain of thought. The code will not be shown to \
the user. This tool should be used for internal reasoning, but not for code that is intended to \
be visible to the user (e.g. when creating plots, tables, or files).

When you send a message containing Python code to python, it will be executed in a stateful \
Jupyter notebook environment. python will respond with the output of the execution or time out \
after 120.0 seconds. The drive at '/mnt/data' can be used to save and persist user files. \
Internet access for this session is UNKNOWN. Depends on the cluster."""
_DESCRIPTIONS = {"browser": _BROWSER, "python": _PYTHON}
