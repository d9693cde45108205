"""Machines that are only written down, for `--hardware`.

h200x8            8 GPUs of a kind; also 8xh200
h100x2+l40s       mixed boards
h100:used=15%     in part used by others; also free=40gb
h100:2g.20gbx3    three MIG slices
sm120:24gb        any board, by its compute capability (12.0) and memory; sm89:16gbx2
cpux16:ram=64gb   no GPU; joined to GPUs it says what their host has
gb200x72          more than a host holds: a rack of hosts
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from profiles.errors import InvalidHardware, nearest
from profiles.hardware.gpus import ALIASES, BY_KEY, KnownGpu
from profiles.hardware.machine import GB, Cpu, Gpu, Hardware

# What a machine that is only written down is taken to have beside its GPUs.
ASSUMED_CORES = 2  # without GPUs
ASSUMED_CORES_PER_GPU = 16
ASSUMED_BYTES_PER_CORE = 8 * GB
MIG_SHARE = 0.975  # of its name's GiB is what NVML reports of a slice
ANY_PER_HOST = 8  # boards that are in no table
_MAX_COUNT = 1024  # of GPUs or CPU cores in one machine
_BEFORE = re.compile(r"(?P<count>\d{1,12})\s*x\s*(?P<name>.+)", re.DOTALL)
_AFTER = re.compile(r"(?P<name>.+?)\s*x\s*(?P<count>\d{1,12})", re.DOTALL)
_CAPABILITY = re.compile(r"sm[_-]?(\d{1,2})(\d)")
_BOARD_SIZE = re.compile(r"(\d{1,4})\s*gb")
BOARD_SHARE = 0.98  # of the GiB in a board's name is what NVML reports, or a little more
_MIG = re.compile(r"(\d)g\.(\d{1,3})gb")
_SIZE = re.compile(r"(\d{1,6}(?:\.\d+)?)\s*gb?")
_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?)%")
_FOREIGN = re.compile(r"(mi\d{2,3}x?|instinct|radeon|rx\d+|gaudi\d?|arc|tpu|m[1-9]|apple).*")
_FORM = (
    "is not of the form 'h200x8', 'h100:used=15%', 'h100:2g.20gb', 'sm120:24gb', 'h200+l40s' or "
    "'cpux16'"
)


@dataclass(frozen=True, slots=True)
class _Item:
    """What one part between two '+' says."""

    key: str  # of a GPU, 'sm120', or 'cpu'
    count: int | None
    size: int | None = None  # GiB, of a board that is given by its compute capability
    mig: str = ""
    options: tuple[tuple[str, str], ...] = ()  # free, used or ram, and the amount


def parse_hardware(text: str) -> Hardware:
    """Describe a machine that is written down.

    Raises InvalidHardware with the known names and the nearest one.
    """
    items = [_item(part.strip(), text) for part in text.strip().lower().split("+")]
    boards: list[Gpu] = []
    for item in items:
        if item.key != "cpu":
            boards.extend(_gpus(item, len(boards), text))
    return Hardware(
        _cpu(items, len(boards), text),
        tuple(boards),
        no_gpu_reason="" if boards else "the machine was written down without one",
        is_assumed=True,
    )


def _item(part: str, text: str) -> _Item:
    name, *modifiers = part.split(":")
    key, count = _counted(name, text)
    mig, options, size = "", [], None
    is_any = _CAPABILITY.fullmatch(key) is not None
    for modifier in modifiers:
        option, is_option, amount = modifier.partition("=")
        if is_option and option.strip() in ("free", "used", "ram"):
            options.append((option.strip(), amount.strip()))
            continue
        match = _AFTER.fullmatch(modifier)
        mig, count = (match["name"], int(match["count"])) if match else (modifier, count)
        if is_any and size is None and (board := _BOARD_SIZE.fullmatch(mig)):
            size, mig = int(board[1]), ""
            continue
        if not _MIG.fullmatch(mig) or key == "cpu":
            raise InvalidHardware(f"hardware '{text}': '{modifier}' {_FORM}")
    if count is not None and not 1 <= count <= _MAX_COUNT:
        raise InvalidHardware(f"hardware '{text}': the count must be from 1 to {_MAX_COUNT}")
    if is_any and not size:
        raise InvalidHardware(f"hardware '{text}': say its memory too, e.g. {key}:24gb")
    return _Item(key, count, size, mig, tuple(options))


def _counted(name: str, text: str) -> tuple[str, int | None]:
    """Take the count off a name; 'rtx5090' is a name, not 5,090 boards, with a count too."""
    if known := _known(name):
        return known, None
    before = _BEFORE.fullmatch(name)
    for match in (before, _AFTER.fullmatch(name)):
        if match and (known := _known(match["name"])):
            return known, int(match["count"])
    inner = before["name"] if before else name
    after = _AFTER.fullmatch(inner)
    if not inner or (before and after and _known(after["name"])):
        raise InvalidHardware(f"hardware '{text}' {_FORM}")
    # 'rtx509' is not 509 of 'rt'.
    unknown = after["name"] if after and not after["name"].isalpha() else inner
    if _FOREIGN.fullmatch(unknown):
        raise InvalidHardware(
            f"hardware '{text}': '{name}' is not an NVIDIA GPU; this server runs on those and CPUs"
        )
    listed = ", ".join(["cpu", *BY_KEY])
    raise InvalidHardware(
        f"hardware '{text}': '{unknown}' is not a known name{nearest(unknown, BY_KEY)}; "
        f"known: {listed}"
    )


def _known(name: str) -> str | None:
    """Find a key, whether or not its parts are set apart as in the table."""
    compact = re.sub(r"[\s_-]", "", name)
    if _CAPABILITY.fullmatch(compact):
        return compact
    keys = ("cpu", *BY_KEY, *ALIASES)
    found = next((key for key in keys if key.replace("-", "") == compact), None)
    return ALIASES.get(found, found) if found else None


def _gpus(item: _Item, first: int, text: str) -> Iterable[Gpu]:
    board = _any_board(item) if item.size else _board(BY_KEY[item.key])
    per_host = BY_KEY[item.key].per_host if item.key in BY_KEY else ANY_PER_HOST
    if item.mig:
        board = _slice(board, item.mig, text)
    board = replace(board, free_bytes=_free(item, board, text))
    for number in range(item.count or 1):
        yield replace(board, index=first + number, host=number // per_host)


def _any_board(item: _Item) -> Gpu:
    match = _CAPABILITY.fullmatch(item.key)
    assert match is not None
    assert item.size is not None
    size = int(item.size * 2**30 * BOARD_SHARE)
    name = f"GPU sm_{match[1]}{match[2]} {item.size} GB"
    return Gpu(0, name, None, "", (int(match[1]), int(match[2])), size, size)


def _board(known: KnownGpu) -> Gpu:
    return Gpu(
        index=0,
        name=known.name,
        key=known.key,
        pci_id=f"{known.pci_devices[0]}:10de" if known.pci_devices else "",
        compute_capability=known.compute_capability,
        total_bytes=known.total_bytes,
        free_bytes=known.total_bytes,
        nvlink=known.nvlink,
        is_unified=known.is_unified,
    )


def _slice(board: Gpu, mig: str, text: str) -> Gpu:
    gigabytes = int(mig.partition(".")[2].removesuffix("gb"))
    size = int(gigabytes * 2**30 * MIG_SHARE)
    if not 0 < size <= board.total_bytes:
        raise InvalidHardware(f"hardware '{text}': {board.name} has no slice of {gigabytes} GB")
    name = f"{board.name} MIG {mig}"
    return replace(
        board, name=name, key=None, total_bytes=size, free_bytes=size, is_mig=True, nvlink=1
    )


def _free(item: _Item, board: Gpu, text: str) -> int:
    total = free = board.total_bytes
    for option, amount in item.options:
        if option == "ram":
            continue  # of the host
        part = _bytes(amount, total, text)
        free = part if option == "free" else total - part
    if not 0 <= free <= total:
        raise InvalidHardware(f"hardware '{text}': {board.name} has {total / GB:.1f} GB in all")
    return free


def _cpu(items: list[_Item], num_gpus: int, text: str) -> Cpu:
    given = [item.count or ASSUMED_CORES for item in items if item.key == "cpu"]
    cores = sum(given) or ASSUMED_CORES_PER_GPU * num_gpus
    memory = cores * ASSUMED_BYTES_PER_CORE
    if any(item.key in BY_KEY and BY_KEY[item.key].is_unified for item in items):
        memory = max(BY_KEY[item.key].total_bytes for item in items if item.key in BY_KEY)
    for item in items:
        for option, amount in item.options:
            if option == "ram" or item.key == "cpu":
                memory = _bytes(amount, memory, text)
    return Cpu("an assumed CPU", cores, memory, memory)


def _bytes(amount: str, whole: int, text: str) -> int:
    if match := _SIZE.fullmatch(amount):
        return int(float(match[1]) * GB)
    if match := _SHARE.fullmatch(amount):
        return int(float(match[1]) / 100 * whole)
    raise InvalidHardware(f"hardware '{text}': '{amount}' is not an amount such as '40gb' or '15%'")
