"""Bounds on size: lines of each folder, modules of a folder, settings, words of the documents.

The numbers are those of today. A number that is 10 % too large is lowered; one that is raised has
the reason on its line. The sum of all is bounded too, and only falls (decision 32).
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from engines.parts import folders
from service.settings.settings import Settings

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("auth", "profiles", "engines", "parts", "service", "harmonium.py")

# All lines: what is added deletes as much elsewhere, or raises this with its reason.
# Since decision 32: usage, ollama, sleep, decisions, sandbox with a browser, lora with vLLM, gray
# failures, slow engines, a question before a download, times in answers,
# LoRA in the native engine, 545.
# Ranks on GPUs, 670. A faster start of the native engine on a GPU, 200. GPU-seconds, 190.
# LoRA on GPUs, 600. Adapters of experts, on ranks of CPUs and in a program, 130.
# Adapters of the hub and of buckets, 75. Sandboxes in containers beside the server, 170.
# Adapters of another model are kept from vLLM, 55.
# Routing by prompts, 50.
MOST_LINES: Final = 92_695

# Lines of Python. A file counts for the longest name here that its path begins with.
LINES: Final = {
    "auth/": 755,  # budgets; what a key replaced; when keys expire
    "profiles/": 7190,  # ranks, their place in the order; what serves gpt-oss-safeguard
    "engines/": 2495,  # slow.py: engines that are avoided, 100; routing by prompts, 30
    "engines/process/": 2018,  # pace.py
    "engines/queueing/": 975,  # forwarding.py; adapters that run and wait; tenants that come once
    "engines/recovery/": 691,  # engines, each by itself; no disk before a death
    "engines/native/": 6740,  # loop/ gave worker.py; adapters, 260; uploads of mapped tensors, 130
    "engines/native/tensor_parallel/": 185,  # what a rank has of each tensor; of the head, on GPUs
    "engines/native/backends/cpu/ranks/": 290,  # processes that share each layer; adapters
    "engines/native/loop/": 2500,  # steady rows are arrays; bulk sits out; whose a step is
    "engines/native/backends/cuda/": 10320,  # ranks, 650: exchanges, graphs; adapters, 560
    "engines/vllm/": 510,  # repetition_detection; adapters, 75
    "engines/tensorrt_llm/": 600,
    "engines/llama_cpp/": 820,
    "engines/guest/": 675,
    "parts/batches/": 3175,  # 640 of them its store, twice; its command; message batches, 400
    "parts/compaction/": 200,
    "parts/completions/": 630,  # 110 of them log-probabilities; stop_reason; metrics
    "parts/control/": 220,  # the socket between API workers
    "parts/decisions/": 1075,  # OpenAI's and TypeSafe's schemas, 390
    "parts/dynamo/": 3265,
    "parts/drafts/": 205,
    "parts/habits/": 182,
    "parts/host_kv/": 275,  # its series
    "parts/jwt/": 845,
    "parts/kv_events/": 1145,
    "parts/lora/": 1590,  # merge; serving: files, registry, routes, a download; native engine, 380
    "parts/mcp/": 400,  # the revision of the protocol
    "parts/messages/": 2415,  # citations; foreign parts; Anthropic's tools, 510; compaction
    "parts/ollama/": 1125,  # Ollama's API: schema 205, answers 200, what is told of the model 130
    "parts/moderations/": 346,  # the policy and its file, 110; what it needs
    "parts/otel/": 945,  # NIM's own names of the variables
    "parts/pages/": 220,  # the page for a path that there is not; a service worker
    "parts/plan/": 1320,  # GPUs that share layers, those that PCIe joins too
    "parts/redis/": 335,  # cancelling.py
    "parts/responses/": 7020,  # figures.py; known texts; tools by type, 1,080; WebSocket
    "parts/sandbox/": 1365,  # the jail, what watches it, its host, 115; the browser, 640
    "parts/sleep/": 590,  # the process before the engine, 490: its queue, its starts and ends
    "parts/terminal/": 2515,  # user loads, which tools/benchmarks had
    "parts/usage/": 1495,  # 330 of them its store, twice; two routes; budgets; GPU seconds, 170
    "parts/verify/": 465,  # -tp
    "service/": 5445,  # citations.py; adapters; known_texts.py; tools; decisions.py; budgets
    "service/api/": 3750,  # metrics.py, 95; annotations; foreign.py; about/codex.py
    "service/cli/": 2225,  # a question before a download; keys; server_flags.py; verify -tp
    "service/run/": 2980,  # successors, 20; errors in /openapi.json, 20; a download, 75; texts.py
    "service/http/": 2865,  # schemas of errors, 40; upgrade.py; websocket.py, 370; LostPage
    "service/harmony/": 1685,
    "service/settings/": 986,  # terminal.py: the one writer that wraps
    "service/jobs/": 710,  # 330 of them for the two stores
    "service/store/": 740,  # what nobody closed; a disk that does not answer; a file of 0.2.0 moves
    "service/telemetry/": 1300,  # results.py; when keys expire; a log that nothing waits for
    "harmonium.py": 170,  # adapters
}
MOST_MODULES: Final = 14  # in a folder
# Folders that have more, and how many.
MODULES: Final = {
    "engines": 20,  # slow.py: engines that are avoided
    "engines/native": 22,  # worker.py, step_costs.py, which were in loop/; cuda_context.py
    "engines/native/backends/cuda/kernels": 19,  # exchange.py, adapters.py
    "service/cli": 16,  # download_question.py; server_flags.py, which three parts have
    "service": 15,  # known_texts.py
    "service/http": 15,  # upgrade.py, which protocol.py held
    "service/run": 25,
}
# browser_search, its key; NIM's five of LoRA; moderation, builtin_tools, sleep, usage, ollama_port,
# tenant_budgets
MOST_SETTINGS: Final = 99
# Conversations; batches; WebSocket; tools by type; compaction; names of SDKs; decisions 32 and 33;
# conformance suites; guides of five clients; two commands of keys; Ollama's API; marks of tables
# that are made; merging; usage and budgets; sleep; decisions; the sandbox.
# Fields of the NIM Operator, and what is around a release (canary, load balancers, Argo CD).
# Commands of the runbooks, rules of a network policy, alerts of gray failures.
# Ranks on GPUs, their measurements; a request without a model, the time to the first answer.
MOST_DOCS_WORDS: Final = 69_990


@cache
def files() -> tuple[str, ...]:
    found = (path for name in PRODUCT for path in [ROOT / name, *(ROOT / name).rglob("*.py")])
    return tuple(str(path.relative_to(ROOT)) for path in found if path.is_file())


@cache
def lines() -> Counter[str]:
    found: Counter[str] = Counter()
    for name in files():
        room = max((each for each in LINES if name.startswith(each)), key=len, default="")
        found[room] += len((ROOT / name).read_text(encoding="utf-8").splitlines())
    return found


@pytest.mark.parametrize("room", LINES)
def test_a_folder_stays_within_its_lines(room: str) -> None:
    if room.startswith("parts/") and room.split("/")[1] not in folders():
        pytest.skip("the part was removed")
    num, most = lines()[room], LINES[room]
    assert num <= most, f"{room} has {num} lines of {most}: delete some, or raise it with a reason"
    assert num > 0.9 * most, f"{room} has {num} lines: lower its number, {most}"


def test_all_of_the_product_is_counted() -> None:
    assert lines()[""] == 0


def test_the_product_does_not_grow() -> None:
    num = sum(lines().values())
    assert num <= MOST_LINES, f"{num} lines of {MOST_LINES}: delete some, or raise it with a reason"
    if {f"parts/{name}/" for name in folders()} >= {each for each in LINES if "parts/" in each}:
        assert num > 0.98 * MOST_LINES, f"{num} lines: lower MOST_LINES, {MOST_LINES}"


def test_folders_have_few_modules() -> None:
    modules = Counter(
        str(Path(name).parent) for name in files() if not name.endswith("__init__.py")
    )
    large = {room for room, num in modules.items() if num > MODULES.get(room, MOST_MODULES)}
    assert large == set()
    assert {room for room, num in MODULES.items() if modules[room] <= MOST_MODULES} == set()


def test_settings_and_documents_do_not_grow() -> None:
    assert len(Settings.model_fields) <= MOST_SETTINGS
    pages = (ROOT / "docs").rglob("*.md")
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= MOST_DOCS_WORDS
