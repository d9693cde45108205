"""Fixtures every area may use."""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib.util
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from profiles.catalogue.catalogue import load
from profiles.store.store import resolve
from service.harmony import vocabulary
from service.harmony.vocabulary import write_vocabulary
from service.run import pythons
from tests.lanes import Lanes
from tests.sharing import Sharing, in_order

GOLDEN = Path(__file__).parent / "golden"
# Loggers whose level service/telemetry/logs.py and parts/otel set.
CONFIGURED = ("asyncio", "uvicorn", "httpx2", "httpcore2", "opentelemetry", "harmonium.access")

# A shell that forbids bytecode makes each of the hundreds of processes that tests start compile
# what it imports: half of a run's CPU. It is kept where it is in nobody's way.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".cache" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# A shell that starts us in the background, or nohup, has us ignore signals, and what we start
# inherits that. It does not inherit a handler, and with this one we still ignore them.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

# Without a GPU kernels run through Triton's interpreter. Triton reads this once, when whatever
# first needs it imports it.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# Each process of pytest-xdist has one core; threads of torch that wait for one another burn it.
os.environ.setdefault("OMP_NUM_THREADS", "1")


# The vocabulary's file, which each start in a cache of its own writes: a second of CPU.
vars(vocabulary)["_content"] = cache(vars(vocabulary)["_content"])

# Engines that `tools/install.py` added to this checkout are not those of a fresh one.
pythons.NOTE = Path(os.devnull)  # type: ignore[misc]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="record tests/golden anew, to review the diff"
    )
    parser.addoption(
        "--fast", action="store_true", help="leave out the tests that are heavy (tests/lanes.py)"
    )
    parser.addoption(
        "--few", action="store_true", help="run few cases of each test (tests/lanes.py)"
    )
    parser.addoption("--only", default="", help="the test files to run, with --fast")


def pytest_configure(config: pytest.Config) -> None:
    is_fast, only = config.getoption("--fast"), config.getoption("--only").split(",")
    if (
        is_fast
    ):  # to read what a system trusts is a quarter of a second for each client that is made
        os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))
    lanes = Lanes(
        Path(__file__).parents[1],
        is_fast=is_fast,
        only={*only} - {""},
        is_few=config.getoption("--few"),
    )
    config.pluginmanager.register(lanes)


class Folder(pytest.Package):
    """A folder without __init__.py: what its tests share (`scope="package"`) ends with them."""

    def setup(self) -> None:
        pass


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> Folder:
    return Folder.from_parent(parent, path=path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Refuse sets as parameters: each process orders them in its own way, and xdist ends."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        if any(isinstance(values, set | frozenset) for values in mark.args[1:]):
            raise pytest.UsageError(f"{metafunc.definition.nodeid}: sort the set of parameters")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Sharing:
    return Sharing(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = in_order(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collection makes stays: nobody looks for garbage in it, now or in a test's time."""
    gc.disable()
    with Path(__file__).open() as checkout:
        if not has_bytecode("torch"):
            # The first process compiles what all import; the others wait rather than do it, too.
            fcntl.flock(checkout, fcntl.LOCK_EX)
            if has_bytecode("torch"):
                fcntl.flock(checkout, fcntl.LOCK_UN)
        yield
    gc.enable()
    gc.freeze()
    # Native libraries complain at exit of what was never let go. At the very end: pytest looks for
    # garbage twice before, in all that is not frozen.
    atexit.register(gc.unfreeze)


def has_bytecode(package: str) -> bool:
    """Whether a package was imported before, so that its bytecode is there."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(importlib.util.cache_from_source(found.origin)).exists()


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def compare(update_golden: bool) -> Callable[[str, str], None]:
    """Hold a text against the recorded one of that name."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if update_golden:
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes of a run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def vocabulary_path(run_folder: Path) -> Path:
    """The vocabulary's file: what reads it keeps it for a path."""
    return write_vocabulary(run_folder / "vocabulary")


@pytest.fixture(scope="session")
def nano_cache(run_folder: Path) -> Path:
    """A model cache that has nano: to expand it takes seconds."""
    nano = next(profile for profile in load().profiles if profile.model.name == "nano")
    resolve(nano, run_folder / "nano-cache")
    return run_folder / "nano-cache"


@pytest.fixture(scope="session")
def nano_checkpoint(nano_cache: Path) -> Path:
    """nano as the published format has it."""
    [folder] = (path for path in (nano_cache / "models").iterdir() if path.is_dir())
    return folder


@pytest.fixture
def no_more_threads() -> Callable[[], AbstractContextManager[None]]:
    """Blocks in which the system starts no thread for us: there is no room for its stack."""

    @contextmanager
    def block() -> Iterator[None]:
        before = threading.stack_size(1 << 47)
        try:
            yield
        finally:
            threading.stack_size(before)

    return block


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the developer's shell reaches a test."""
    for name in list(os.environ):
        if name.startswith(("NIM_", "OTEL_")):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def keep_logging() -> Iterator[None]:
    """Commands configure logging for their process, to a stream that ends with the test; here it
    goes back to what it was."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    levels = {logger: logger.level for logger in (root, *map(logging.getLogger, CONFIGURED))}
    yield
    root.handlers[:] = handlers
    for logger, level in levels.items():
        logger.setLevel(level)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what a default run leaves out and how to run it."""
    if terminalreporter.config.getoption("markexpr").startswith("not "):
        targets = "`make test-slow`, `make faults`, `make browser`, `make oidc`, `make rolling`, "
        targets += (
            "`make image`, `make chart`, `make conformance`, `make clients`, "
            "`make sdks` and `make monitoring`"
        )
        terminalreporter.write_line(f"Left out: {targets} run their own tests.")
    if terminalreporter.config.getoption("--fast"):
        terminalreporter.write_line("Left out: what starts processes; `make test-all` runs it.")
    if terminalreporter.config.getoption("--few"):
        terminalreporter.write_line("Left out: more cases of a test than a few; `make test-all`.")


@pytest.fixture
def closed_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that the user of the test may not open; root becomes another user for it."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(was)
