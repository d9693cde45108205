"""Fixtures: the shipped catalogue, and a pynvml stand-in that holds boards in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from profiles.catalogue.catalogue import Catalogue, load


@dataclass
class Board:
    """What a fake NVML knows of one GPU; `error` makes every query of it fail."""

    name: str | bytes = "NVIDIA H200"
    pci_device_id: int = 0x233510DE
    capability: tuple[int, int] = (9, 0)
    total: int = 150_754_820_096
    free: int = 150_000_000_000
    mig: list[Board] | None = None
    links: list[int] | None = None  # the state of each NVLink; None: a board that has none
    error: str | None = None
    no_memory: bool = False  # of its own: NVML does not say


@dataclass
class FakeNvml:
    """The calls of pynvml that detection makes."""

    boards: list[Board] = field(default_factory=list)
    init_error: Exception | None = None
    driver: str | bytes = "570.172.08"
    is_open: bool = False

    NVML_DEVICE_MIG_ENABLE = 1
    NVML_NVLINK_MAX_LINKS = 18
    NVML_FEATURE_ENABLED = 1

    class NVMLError(Exception):
        pass

    class NVMLError_LibraryNotFound(NVMLError):
        pass

    class NVMLError_DriverNotLoaded(NVMLError):
        pass

    def nvmlInit(self) -> None:
        if self.init_error:
            raise self.init_error
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Board:
        board = self.boards[index]
        if board.error:
            raise self.NVMLError(board.error)
        return board

    def nvmlDeviceGetMigMode(self, board: Board) -> tuple[int, int]:
        if board.mig is None:
            raise self.NVMLError("Not Supported")
        return 1, 1

    def nvmlDeviceGetNvLinkState(self, board: Board, link: int) -> int:
        if board.links is None or link >= len(board.links):
            raise self.NVMLError("Not Supported")
        return board.links[link]

    def nvmlDeviceGetMaxMigDeviceCount(self, board: Board) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, board: Board, number: int) -> Board:
        if board.mig is None or number >= len(board.mig):
            raise self.NVMLError("Not Found")
        return board.mig[number]

    def nvmlDeviceGetMemoryInfo(self, board: Board) -> Any:
        if board.no_memory:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(total=board.total, free=board.free)

    def nvmlDeviceGetName(self, board: Board) -> str | bytes:
        return board.name

    def nvmlDeviceGetPciInfo(self, board: Board) -> Any:
        return SimpleNamespace(pciDeviceId=board.pci_device_id)

    def nvmlDeviceGetCudaComputeCapability(self, board: Board) -> tuple[int, int]:
        return board.capability

    def nvmlDeviceGetUUID(self, board: Board) -> str:
        return f"GPU-{id(board)}"


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return load()


@pytest.fixture
def nvml() -> type[FakeNvml]:
    return FakeNvml


@pytest.fixture
def board() -> type[Board]:
    return Board
