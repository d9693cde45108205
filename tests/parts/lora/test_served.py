"""`harmonium serve` with nano and adapters: named in `model`, loaded and unloaded under load."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests import plain
from tests.e2e.conftest import READY_WITHIN_S, Server, StartServer
from tests.parts.lora.conftest import write_adapted

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif("TEST_ENGINE_PYTHON" in os.environ, reason="of the native engine"),
]

SIDES: Final = {
    "q_proj": (512, 160), "k_proj": (256, 160), "v_proj": (256, 160), "o_proj": (160, 512),
}  # fmt: skip
EVERY: Final = [(layer, name) for layer in range(8) for name in SIDES]
QUESTION: Final = "Which city is the capital of France? " * 20


def write(folder: Path, seed: int, modules: list[tuple[int, str]] = EVERY) -> Path:
    return write_adapted(folder, modules, rank=8, seed=seed, by=0.2, sides=SIDES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("french", "law"), 1):
        write(folder / name, seed)
    return folder


@pytest.fixture(scope="module")
def server(start_server: StartServer, folder: Path) -> Iterator[Server]:
    program = str(Path(sys.executable).parent / "harmonium")
    command = [program, "serve", "--model-name=nano", f"--peft-source={folder}"]
    running = start_server([*command, "--max-gpu-loras=2", "--max-cpu-loras=2"])
    yield running
    assert running.interrupt() == 0, running.log.read_text()


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    return plain.post(f"{server.url}{path}", json=body, timeout=READY_WITHIN_S)


def ask(server: Server, model: str, num: int = 24) -> tuple[str, int]:
    """The greedy answer with its thoughts, and how much of the prompt was cached."""
    body = {
        "model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0,
        "max_tokens": num,
    }  # fmt: skip
    answer = post(server, "/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    message, usage = found["choices"][0]["message"], found["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return f"{message.get('reasoning')}|{message['content']}", cached


def test_each_name_answers_as_itself(server: Server) -> None:
    found = {name: ask(server, name) for name in ("nano", "french", "law")}
    assert len({text for text, _ in found.values()}) == 3
    assert [cached for _, cached in found.values()] == [0, 0, 0]  # of no other
    for name, (text, _) in found.items():
        again, cached = ask(server, name)
        assert again == text
        assert cached > 0
    assert 'max_lora="2"' in plain.get(f"{server.url}/v1/metrics", timeout=60).text


def test_adapters_come_and_go_under_load(server: Server, folder: Path) -> None:
    """No request fails, and those to the model answer as before."""
    wanted = ask(server, "nano")[0]
    wrong: list[str] = []
    is_over = threading.Event()

    def keep_asking(name: str) -> None:
        while not is_over.is_set():
            try:
                found = ask(server, name)[0]
                if name == "nano" and found != wanted:  # others' near ties may go either way
                    wrong.append(found)
            except Exception as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=keep_asking, args=(name,)) for name in ("nano", "french")]
    for thread in threads:
        thread.start()
    try:
        for seed in (5, 6, 7):
            name = f"new-{seed}"
            load = {"lora_name": name, "lora_path": str(write(folder / name, seed))}
            assert post(server, "/v1/load_lora_adapter", load).status_code == 200
            assert ask(server, name)[0] != wanted
            answer = post(server, "/v1/unload_lora_adapter", {"lora_name": name})
            assert answer.status_code == 200
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_new_engine_loads_what_it_is_asked_for(server: Server) -> None:
    before = ask(server, "law")[0]
    engine = server.engine()
    engine.kill()
    engine.wait(READY_WITHIN_S)
    server.wait_for_ready(503)  # the server has seen it, too
    server.wait_for_ready()
    after, cached = ask(server, "law")
    assert after == before
    assert cached == 0


def test_one_that_does_not_fit_is_refused_with_its_tensor(server: Server, folder: Path) -> None:
    write(folder / "deep", 9, [(8, "q_proj")])
    load = {"lora_name": "deep", "lora_path": "deep"}
    answer = post(server, "/v1/load_lora_adapter", load)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_adapter")
    assert "model.layers.8.self_attn.q_proj has shapes" in answer.json()["error"]["message"]
    assert ask(server, "french")[0]
