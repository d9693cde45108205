"""Which tests `make test` leaves to `make test-all`, and what holds them to it.

Heavy is what starts processes, runs Triton's interpreter, needs the expanded nano, loads a client's
SDK or transformers (seconds), simulates traffic, waits for seconds, or costs half a second of CPU:
the files and tests below, tests that have a fixture of COSTLY, and tests marked `heavy`. `--fast`
leaves them out; the files, and those that are marked as a whole, are not imported. In both lanes a
test that is not heavy fails if it starts a process, and `--fast` fails if a file imports Triton.

`--few` runs MOST_CASES cases of each test that has more: its first, its last and some between.
"""

from __future__ import annotations

import multiprocessing.util
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import pytest

MOST_CASES: Final = 4  # of a test, in `make test`
# Files and folders of which most is heavy, and tests that cost half a second of CPU.
HEAVY: Final = (
    "tests/parts/jwt/oidc/",
    "tests/parts/jwt/test_secrets.py",
    "tests/parts/lora/test_native.py",
    "tests/auth/test_first_key.py",
    "tests/auth/test_secrets.py",
    "tests/e2e/",
    "tests/engines/contract/",
    "tests/parts/dynamo/handover/",
    "tests/engines/llama_cpp/",
    "tests/engines/native/cuda/",
    "tests/engines/native/grammar/test_compiling.py",
    "tests/engines/native/grammar/test_grammar.py",
    "tests/engines/native/grammar/test_tokenizer.py",
    "tests/engines/native/ranks/test_processes.py",
    "tests/engines/native/traffic/",
    "tests/engines/process/",
    "tests/engines/recovery/",
    "tests/engines/replicas/",
    "tests/packaging/test_before_install.py",
    "tests/packaging/test_foreground.py",
    "tests/packaging/test_install.py",
    "tests/packaging/test_pins.py",
    "tests/packaging/test_wheel.py",
    "tests/profiles/download/test_network.py",
    "tests/profiles/lies/",
    "tests/service/api/chat/test_guided.py",
    "tests/parts/responses/test_restart.py",
    "tests/parts/responses/test_sdk.py",
    "tests/parts/completions/test_guided.py",
    "tests/parts/completions/test_sdk.py",
    "tests/parts/families/test_published.py",
    "tests/parts/messages/test_sdk.py",
    "tests/service/cli/test_build_engine.py",
    "tests/service/run/test_serve.py",
    "tests/service/run/test_starting.py",
    "tests/service/run/workers/",
    "tests/parts/otel/test_otlp.py",
    "tests/service/telemetry/test_shared_metrics.py",
    "tests/engines/native/scheduling/test_real_model.py",
    "tests/parts/host_kv/test_real_model.py",
    "tests/parts/mcp/test_sdk.py",
    "tests/parts/messages/test_client_tools.py",
    "tests/architecture/test_docstrings.py::test_docstrings_describe_parameters_that_exist",
    "tests/engines/native/model/test_threads.py::test_threads_follow_the_work",
    "tests/engines/native/scheduling/test_drafts.py::test_the_tokens_of_a_verified_step_have",
    "tests/parts/batches/test_batches.py::test_a_full_disk_holds_a_batch_up_and_costs_no_line",
    "tests/parts/batches/test_batches.py::test_a_line_over_a_limit_waits",
    "tests/parts/batches/test_batches.py::test_another_worker_continues_where_one_stopped",
    "tests/parts/families/test_tool_corpus.py::test_the_corpus_passes_forced_and_unforced",
    "tests/parts/kv_events/test_exactness.py::test_after_each_of_1000_requests_a_decoder_knows",
    "tests/parts/kv_events/test_port.py::test_100_replaying_clients_that_never_read_cost",
    "tests/parts/responses/socket/test_turns.py::test_turns_that_are_sent_at_once_are_queued",
    "tests/parts/terminal/test_loads.py::test_a_warm_up_is_the_same_load_and_not_in_the_results",
    "tests/parts/terminal/test_loads.py::test_every_load_asks_with_standard_fields_only",
    "tests/parts/test_all.py::test_the_picture_of_rooms_is_current",
    "tests/profiles/checkpoints/test_safetensors_header.py::test_the_largest_header_takes_little",
    "tests/profiles/selection/test_selector.py::test_invariants",
    "tests/service/admission/test_admission.py::test_a_burst_at_a_new_server_is_answered_whole",
    "tests/service/guide/test_reading.py::test_the_loop_is_not_held",
    "tests/service/guide/test_widening.py::test_a_widened_schema_takes_all_that_the_schema_takes",
    "tests/service/guide/test_widening.py::test_each_real_schema_is_enforced_as_far_as_it_can_be",
    "tests/service/guide/test_widening.py::test_the_corpus_is_large_and_its_files_are_not",
    "tests/service/harmony/test_pieces.py::test_a_cut_changes_no_ids",
    "tests/service/harmony/test_pieces.py::test_no_token_is_longer_than_is_said",
    "tests/service/http/test_connections.py::test_probes_are_answered_in_a_flood_of_idle",
    "tests/service/http/test_protocol.py::test_few_pipelined_requests_are_parsed_at_once",
    "tests/service/jobs/test_leases.py::test_a_job_has_one_writer_and_loses_nothing_whatever",
)
# Fixtures that start processes, expand nano, load an SDK or transformers: tests with one are heavy.
COSTLY: Final = {
    *("nano_cache", "nano_checkpoint", "start_engine", "tool_urls", "mortal_tools"),
    *("openai_sdk", "redis_url", "make_checkpoint"),
}
# Tests with targets of their own, such as `make chart`: these may start what they like.
OWN_TARGET: Final = {
    *("browser", "chart", "clients", "cluster", "conformance", "faults", "image", "monitoring"),
    *("dynamo", "oidc", "rolling", "sdks", "slow", "supply"),
}
_MARKED: Final = re.compile(
    rf"^pytestmark = \[?\s*pytest\.mark\.({'|'.join([*OWN_TARGET, 'heavy'])})\b", re.MULTILINE
)
_EVENTS: Final = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
# What the Python library asks the machine once, and no_leaks of tests/engines before each test.
_HARMLESS: Final = {"uname", "/sbin/ldconfig", "true"}


def is_heavy(path: str) -> bool:
    """Whether a file, by its path from the root, or a test by its id, is in HEAVY."""
    return path.startswith(HEAVY)


def _is_marked(file: Path) -> bool:
    """Whether all tests of a file are heavy or have a target of their own."""
    return _MARKED.search(file.read_text(encoding="utf-8")) is not None


def has_target(file: Path) -> bool:
    """Whether all tests of a file have a target of their own."""
    found = _MARKED.search(file.read_text(encoding="utf-8"))
    return found is not None and found[1] != "heavy"


def without_most_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """Take cases of tests out of the list, so that MOST_CASES of each are left; what was taken."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = set[pytest.Item]()
    for cases in tests.values():
        between = (len(cases) - 1) / (MOST_CASES - 1)
        few = {round(number * between) for number in range(MOST_CASES)}
        kept.update(cases if len(cases) <= MOST_CASES else [cases[place] for place in few])
    left_out = [item for item in items if item not in kept]
    items[:] = [item for item in items if item in kept]
    return left_out


class Lanes:
    """The plugin: leaves out, and fails, what is told above."""

    def __init__(
        self, root: Path, *, is_fast: bool, only: Collection[str] = (), is_few: bool = False
    ) -> None:
        """`only`: the paths of the test files to run, if not all; `is_few`: not all cases."""
        self._root, self._is_fast, self._only = root, is_fast, only
        self._is_few = is_few
        self._started: list[str] | None = None  # by the test that runs, unless it is heavy
        sys.addaudithook(self._on_event)
        spawn: Any = multiprocessing.util.spawnv_passfds  # which audits nothing

        def spawn_and_note(path: Any, *rest: Any) -> int:
            self._on_event("subprocess.Popen", (path,))
            pid: int = spawn(path, *rest)
            return pid

        vars(multiprocessing.util)["spawnv_passfds"] = spawn_and_note

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the files and folders of HEAVY, and what is not asked for."""
        if not self._is_fast or not collection_path.is_relative_to(self._root):
            return None
        path = collection_path.relative_to(self._root).as_posix()
        if collection_path.is_dir():
            return is_heavy(f"{path}/") or None
        if collection_path.suffix != ".py":
            return is_heavy(path) or None
        is_asked_for = not self._only or path in self._only
        return is_heavy(path) or not is_asked_for or _is_marked(collection_path) or None

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Mark what HEAVY names; leave out single tests that are marked."""
        for item in items:
            is_costly = bool(COSTLY & {*getattr(item, "fixturenames", ())})
            has_target = bool(OWN_TARGET & {mark.name for mark in item.iter_markers()})
            if is_heavy(item.nodeid) or is_costly or has_target:
                item.add_marker("heavy")
        if self._is_fast:
            if "triton" in sys.modules:
                raise pytest.UsageError("a file outside tests/lanes.py's HEAVY imports triton")
            left_out = [item for item in items if item.get_closest_marker("heavy")]
            items[:] = [item for item in items if not item.get_closest_marker("heavy")]
            config.hook.pytest_deselected(items=left_out)
        if self._is_few:
            left_out = without_most_cases(items)
            config.hook.pytest_deselected(items=left_out)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Note what a test that is not heavy starts, its fixtures included."""
        self._started = None if item.get_closest_marker("heavy") else []
        try:
            return (yield)
        finally:
            self._started = None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Fail a test that is not heavy and has started a process."""
        if self._started:
            pytest.fail(f"{item.nodeid} starts {self._started[0]}: mark it heavy (tests/lanes.py)")

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._started is not None and event in _EVENTS:
            program = str(arguments[0]) if arguments else event
            if program not in _HARMLESS:
                self._started.append(program)
