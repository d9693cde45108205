"""Execute the notebook as a reader would, from a server that does not run to one that is stopped.

    python tests/notebook/run_notebook.py docs/examples/gpt-oss.ipynb FOLDER

Needs nbclient, ipykernel and openai, of `requirements.txt` beside it. Writes the executed notebook
into FOLDER, and fails where a cell does, or where what it shows is not what it is there to show.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

CELL_LIMIT_S = 600
SHOWN = {
    "start": r"ready at http://127\.0\.0\.1:\d+",
    "connect": r"nano with a context of 4096 tokens",
    "chat": r"demonstration model[^\n]*\n\d+ tokens in, \d+ out",
    "stream": r"\[reasoning\]\n.+\n\[content\]\n.*this service",
    "tools": r'calls get_weather \{"location": ?"Paris"\}\n.*sunny',
    "schema": r"name='science fair' date='Friday' participants=\['Alice', 'Bob'\]",
    "responses": r"Ada.*\n.*Ada",
    "raw": r"<\|start\|>user<\|message\|>What is nano\?.*<\|channel\|>final.*<\|return\|>",
    "stop": r"stopped with 0",
}


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    notebook = nbformat.read(source, as_version=4)
    os.environ["NIM_SERVER_PORT"] = str(free_port())
    folder.mkdir(parents=True, exist_ok=True)
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=CELL_LIMIT_S, resources=where, record_timing=False).execute()
    for cell in notebook.cells:
        join_streams(cell)
    nbformat.write(notebook, folder / source.name)
    wrong = [id for id, wanted in SHOWN.items() if not shows(cell_of(notebook, id), wanted)]
    for id in wrong:
        print(f"{id} shows {text_of(cell_of(notebook, id))!r}, not {SHOWN[id]}", file=sys.stderr)
    unknown = {cell.id for cell in notebook.cells if cell.cell_type == "code"} - SHOWN.keys()
    sys.exit(1 if wrong or unknown else 0)


def join_streams(cell: Any) -> None:
    """What a cell printed in pieces as one output: the file is read by people too."""
    joined: list[Any] = []
    for output in cell.get("outputs", []):
        last = joined[-1] if joined else {}
        if output.get("name") and output.get("name") == last.get("name"):
            last["text"] += output["text"]
        else:
            joined.append(output)
    if "outputs" in cell:
        cell["outputs"] = joined


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def cell_of(notebook: Any, id: str) -> Any:
    return next(cell for cell in notebook.cells if cell.id == id)


def text_of(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def shows(cell: Any, wanted: str) -> bool:
    return re.search(wanted, text_of(cell), re.DOTALL) is not None


if __name__ == "__main__":
    main()
