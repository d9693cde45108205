"""Records what gpt-oss's published browser shows: `python record_gpt_oss_browser.py GOLDEN.json`.

Run with Python 3.12 and `pip install gpt-oss==0.0.9`. The file has pages and calls; `shown` is
written anew. tests/parts/sandbox/test_published.py holds ours to it.
"""

import asyncio
import json
import sys
from pathlib import Path

import chz
from gpt_oss.tools.simple_browser import SimpleBrowserTool
from gpt_oss.tools.simple_browser.backend import Backend
from gpt_oss.tools.simple_browser.page_contents import process_html


@chz.chz(typecheck=True)
class Pages(Backend):
    """Pages of the file, converted as the published backends convert theirs."""

    source: str = "web"
    pages: dict[str, str]

    async def search(self, query, topn, session):
        raise NotImplementedError

    async def fetch(self, url, session):
        return process_html(self.pages[url], url, None, session, display_urls=True)


async def shown(given):
    tool = SimpleBrowserTool(Pages(pages=given["pages"]))
    for name, arguments in given["calls"]:
        async for message in getattr(tool, name)(**arguments):
            yield message.content[0].text


async def main(path):
    given = json.loads(path.read_text())
    given["shown"] = [text.split("\n") async for text in shown(given)]
    path.write_text(json.dumps(given, indent=1, ensure_ascii=False) + "\n")


asyncio.run(main(Path(sys.argv[1])))
