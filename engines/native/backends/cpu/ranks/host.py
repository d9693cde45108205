"""The process of another rank: `python -m engines.native.backends.cpu.ranks.host FD`.

FD is its connection to the first rank, which tells it what to load and then each step. It ends with
that connection; a step that fails ends it too, because the others are in the middle of the same.
"""

from __future__ import annotations

import logging
import signal
import sys
from multiprocessing.connection import Connection

from engines.native.backends.cpu.backend import TorchModel
from engines.native.backends.cpu.exchange import Other
from engines.native.backends.cpu.ranks.adapters import RankAdapter
from engines.native.backends.cpu.ranks.plan import RankStep, follow
from engines.native.backends.cpu.ranks.team import facts
from engines.native.config import ModelConfig, NativeConfig
from engines.native.host.slots import Slots

log = logging.getLogger(__name__)


def run(first: Connection) -> None:
    """Serve until the first rank closes the connection, which raises EOFError or OSError."""
    rank, config, level = first.recv()
    logging.basicConfig(level=level, format=f"%(levelname)s rank {rank}: %(message)s")
    first.send(facts(config))
    first.recv()
    network = _load(first, rank, config)
    if network is None:
        return
    slots = Slots()
    while True:
        told = first.recv()
        if isinstance(told, RankAdapter):
            told.change(network.adapters)
        else:
            _step(network, told, slots)


def _load(first: Connection, rank: int, config: NativeConfig) -> TorchModel | None:
    exchange = Other(rank, config.tensor_parallel, first)
    try:
        network = TorchModel(config, ModelConfig.from_dir(config.model_dir), exchange)
    except EOFError:
        raise
    except Exception as error:
        first.send(f"{type(error).__name__}: {error}")
        return None
    exchange.agree(lambda: 0)
    return network


def _step(network: TorchModel, plan: RankStep, slots: Slots) -> None:
    network.move(plan.batch.moves)
    spans = follow(plan, slots)
    network.forward(spans)
    if any(span.prompt_logprobs is not None for span in spans):
        network.score(spans)


def main() -> int:
    """The exit status is 0 where the first rank ended it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the first rank decides
    try:
        run(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):
        return 0
    except Exception:
        log.exception("A step failed on this rank, which ends")
        return 1
    return 1


if __name__ == "__main__":
    sys.exit(main())
