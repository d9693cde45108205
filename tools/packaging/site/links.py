"""Hooks of MkDocs: what the site says otherwise than the folder of docs.

Links that lead out of docs/, or to a folder, name it: a site does not have it. Raises PluginError
for one that leads nowhere. The decisions are listed as they are there.
"""

import re
import tomllib
from pathlib import Path

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
_WHOLE = 24  # characters of code that stay on one line
_JOINT = re.compile(r"([/,=:?]+| )(?=[^/,=:? ])")
_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)#\s]+)(#[^)]*)?\)")


def on_config(config):
    """The decisions, in their order, where the navigation names their folder; the release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.copyright = f"Harmonium {project['version']}"
    files = sorted(path.name for path in (DOCS / "decisions").glob("*.md"))
    listed = [f"decisions/{name}" for name in files]
    for section in config.nav[-1].values():
        section[-1] = {"Decisions": listed}
    return config


def on_page_markdown(markdown: str, page, **_) -> str:
    """The page with such links as `text (`file`)`."""
    folder = Path(page.file.abs_src_path).parent

    def told(link: re.Match[str]) -> str:
        text, target = link[1], (folder / link[2]).resolve()
        if target.is_relative_to(DOCS) and target.is_file():
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {link[2]}, which is not there")
        name = str(target.relative_to(ROOT))
        return f"`{name}`" if text.strip("`") in (name, target.name) else f"{text} (`{name}`)"

    return _LINK.sub(told, markdown)


def on_page_content(html: str, **_) -> str:
    """Long code in a table may break behind its joints, and nowhere else (site.css)."""
    return _TABLE.sub(lambda table: _CODE.sub(_with_joints, table[0]), html)


def _with_joints(code: re.Match[str]) -> str:
    text = code[0].replace("\\|", "|")  # as Markdown's tables want it
    return _JOINT.sub(r"\1<wbr>", text) if len(text) > _WHOLE else text
