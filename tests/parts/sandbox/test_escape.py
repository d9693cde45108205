"""What code in the sandbox tries to get out, or to take the machine: each attempt fails."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from service.tools import ToolSession

pytestmark = pytest.mark.heavy  # it starts interpreters

# What is tried, and what the code sees of it.
REFUSED = {
    "files of the machine": ("open('/etc/passwd')", "No such file"),
    "other processes": ("import os; os.listdir('/proc')", "No such file"),
    "its parent's memory": ("open('/proc/1/mem', 'rb')", "No such file"),
    "writing outside /tmp": ("open('/usr/x', 'w')", "Read-only file system"),
    "writing in the root": ("open('/x', 'w')", "Read-only file system"),
    "writing devices": ("open('/dev/x', 'w')", "Read-only file system"),
    "a disk": ("open('/dev/sda')", "No such file"),
    "a symbolic link to a file": (
        "import os; os.symlink('/etc/passwd', '/tmp/p'); open('/tmp/p')",
        "No such file",
    ),
    "the metadata address": (
        "import socket; socket.create_connection(('169.254.169.254', 80), 2)",
        "unreachable",
    ),
    "a name": ("import socket; socket.getaddrinfo('example.com', 80)", "gaierror"),
    "a raw socket": (
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "not permitted",
    ),
    "more memory": ("x = bytearray(600 << 20)", "MemoryError"),
    "more disk": (
        "f = open('/tmp/f', 'wb')\nfor _ in range(100): f.write(bytes(1 << 20))",
        "Errno",
    ),
    "shared memory": (
        "f = open('/dev/shm/f', 'wb')\nfor _ in range(100): f.write(bytes(1 << 20))",
        "No space left",
    ),
    "open files": ("x = [open('/dev/null') for _ in range(1000)]", "Too many open files"),
    "root": ("import os; os.setuid(0)", "Invalid argument"),
    "the host's name": ("import socket; socket.sethostname('x')", "not permitted"),
    "higher limits": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))",
        "not allowed to raise",
    ),
}
LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
# Calls of the system, and that they fail: (code, which prints the result).
SYSTEM = {
    "another user namespace": "libc.unshare(0x10000000)",
    "another mount": "libc.mount(b'none', b'/tmp', b'proc', 0, None)",
    "a chroot": "libc.chroot(b'/tmp')",
    "another time": "libc.stime(b'')",
}


@pytest.mark.parametrize("name", REFUSED)
async def test_it_is_refused(session: ToolSession, name: str) -> None:
    code, said = REFUSED[name]
    found = await session.call("python", code)
    assert "Traceback" in found.text
    assert said in found.text
    assert (await session.call("python", "1 + 1")).text == "2\n"


@pytest.mark.parametrize("name", SYSTEM)
async def test_the_system_refuses(session: ToolSession, name: str) -> None:
    found = await session.call(
        "python", LIBC + f"try:\n    print({SYSTEM[name]})\nexcept AttributeError:\n    print(-1)"
    )
    assert found.text == "-1\n"


async def test_a_server_of_the_machine_cannot_be_reached(session: ToolSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert "refused" in (await session.call("python", code)).text
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_signals_reach_nobody_outside(session: ToolSession) -> None:
    number = threading.get_native_id()
    code = f"import os, signal\nfor pid in ({os.getpid()}, {number}, -1):\n" + (
        "    try: os.kill(pid, signal.SIGTERM)\n    except OSError as error: print(error)"
    )
    assert (await session.call("python", code)).text  # and this process goes on


async def test_a_fork_bomb_is_bounded_and_ended(session: ToolSession) -> None:
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    found = await session.call("python", code)
    assert found.is_error  # too many, or too much memory; a system that counts them ends it later
    assert (await session.call("python", "1 + 1")).text == "2\n"


async def test_memory_of_all_its_processes_counts(session: ToolSession) -> None:
    code = (
        "import os, time\nfor _ in range(4):\n    if not os.fork():\n"
        "        x = bytearray(b'x') * (200 << 20); time.sleep(60); os._exit(0)\ntime.sleep(25)"
    )
    found = await session.call("python", code)
    assert found.is_error
    assert "more than 512 MB of memory" in found.text


async def test_ten_gigabytes_of_output_end_it(session: ToolSession) -> None:
    code = "import os\nfor _ in range(10 << 10): os.write(1, bytes(1 << 20))"
    found = await session.call("python", code)
    assert found.is_error
    assert "past print()" in found.text


async def test_a_file_of_the_server_is_not_there(
    session: ToolSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys.json").write_text("secret")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NIM_API_KEY", "secret")
    code = (
        f"import os; print(dict(os.environ).get('NIM_API_KEY'), os.path.exists({str(tmp_path)!r}))"
    )
    assert (await session.call("python", code)).text == "None False\n"
