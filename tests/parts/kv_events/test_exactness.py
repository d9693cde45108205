"""A router that reads the events knows the cache, whatever is evicted."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest

from engines.base import Adapter, EngineRequest, SamplingParams
from engines.native.backends.base import Capacity, Move
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.block_pool import FULL, WINDOW, BlockHasher
from engines.native.loop.core import EngineCore
from engines.native.loop.limits import SchedulerLimits
from engines.native.loop.scheduler import Scheduler
from engines.native.loop.sequence import Sequence as EngineSequence
from engines.parts import folders
from parts.kv_events.events import BlockEvent
from parts.kv_events.recorder import BlockEvents
from parts.kv_events.wire import BlockStored, encoded, number_of, wire_event
from tests.engines.native.scheduling.simulation import Simulation
from tests.parts.kv_events.llm_d import Picker

BLOCK = 64
SALTS = (None, "theirs", "mine\0secret")


class ToPicker:
    """Sends the events of a core to a picker, as bytes."""

    def __init__(self) -> None:
        self.picker = Picker(BLOCK)
        self.sent: list[bytes] = []

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def publish(self, events: Sequence[BlockEvent]) -> None:
        payload = encoded(1.0, map(wire_event, events), 0)
        self.sent.append(payload)
        self.picker.take(payload)


def numbers(keys: Iterable[bytes]) -> set[tuple[int, int]]:
    group = {FULL[0]: 0, WINDOW[0]: 1}
    return {(group[key[0]], number_of(key[1:])) for key in keys}


def prompts(chance: random.Random) -> Iterator[tuple[str | None, list[int]]]:
    """Conversations with one public prefix; three tenants have each of them, in the same words."""
    words = [random.Random(number).choices(range(1000), k=100 * BLOCK) for number in range(12)]
    lengths = dict.fromkeys([(salt, number) for salt in SALTS for number in range(12)], 0)
    while True:
        who = salt, number = chance.choice([*lengths])
        lengths[who] = lengths[who] % (20 * BLOCK) + chance.randrange(20, 5 * BLOCK)
        yield salt, [*words[0][: 3 * BLOCK], *words[number][: lengths[who]]]


def host_places(core: EngineCore) -> Mapping[bytes, int]:
    """What another part has in host memory, if it is there."""
    return next((each._places for each in core.options if hasattr(each, "_places")), {})


def num_full(core: EngineCore, prompt: list[int], salt: str | None = None) -> int:
    """Leading blocks of a prompt of which those of full attention are somewhere, under a salt."""
    blocks = core.scheduler.blocks
    request = EngineRequest("any", tuple(prompt), SamplingParams(1), cache_salt=salt)
    sequence = EngineSequence(request, 1 << 20)
    hashes = BlockHasher(BLOCK, has_separate_answer_keys=False).hashes(
        sequence, len(prompt) // BLOCK
    )
    places = host_places(core)
    here = [FULL + each in blocks.pool.cached or FULL + each in places for each in hashes]
    return [*here, False].index(False)


class Noted:
    """Takes what is published, for a test to read."""

    def __init__(self) -> None:
        self.events: list[BlockEvent] = []
        self.recorder = BlockEvents(self)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def publish(self, events: Sequence[BlockEvent]) -> None:
        self.events += events

    def take(self) -> list[BlockEvent]:
        self.recorder.after_step()
        events, self.events = self.events, []
        return events


def recorded(blocks: BlockManager) -> Noted:
    noted = Noted()
    limits = SchedulerLimits(1000, 8, 64)
    scheduler = Scheduler(blocks, limits)
    noted.recorder.attach(scheduler, Capacity(0, 0, 0))
    scheduler.use([noted.recorder])
    return noted


def answered(core: EngineCore, number: int, salt: str | None, prompt: list[int]) -> int:
    """Compute a request to its end; how many tokens of it were cached."""
    sampling = SamplingParams(70 if number % 20 == 0 else 3)
    request = EngineRequest(str(number), tuple(prompt), sampling, cache_salt=salt)
    sequence = core.scheduler.add(request)
    while core.has_work:
        core.step()
    return sequence.num_cached_tokens


def test_an_adapter_is_named() -> None:
    """Its blocks are no model's: routers that know adapters keep them apart by this name."""
    core, noted = Simulation(max_token_gap_s=None, num_blocks=300).core, Noted()
    core.use([noted.recorder])
    for adapter in (None, Adapter("french", "/adapters/french", "0123")):
        salt = None if adapter is None else f"\1{adapter.key}\0"
        prompt, sampling = tuple(range(2 * BLOCK)), SamplingParams(3)
        core.scheduler.add(EngineRequest("any", prompt, sampling, adapter=adapter, cache_salt=salt))
        while core.has_work:
            core.step()
    stored = [wire_event(each) for each in noted.events]
    names = {each.lora_name for each in stored if isinstance(each, BlockStored)}
    assert names == {None, "french"}


@pytest.mark.parametrize(
    ("num_requests", "num_host_blocks"),
    [(300, 0), pytest.param(1000, 150, marks=pytest.mark.heavy)],
)
def test_after_each_of_1000_requests_a_decoder_knows_exactly_the_cached_blocks(
    num_requests: int, num_host_blocks: int
) -> None:
    simulation = Simulation(max_token_gap_s=None, num_blocks=300, num_host_blocks=num_host_blocks)
    core, sink = simulation.core, ToPicker()
    core.use([BlockEvents(sink)])
    blocks = core.scheduler.blocks
    num_beliefs = num_hits = num_right = 0
    asking = prompts(random.Random(29))
    for number in range(num_requests):
        salt, prompt = next(asking)
        reusable = prompt[: (len(prompt) - 1) // BLOCK * BLOCK]
        num_believed = sink.picker.num_believed(reusable)
        assert num_believed == num_full(core, reusable), "another tenant's, or not all"
        num_found = answered(core, number, salt, prompt) // BLOCK
        if salt is None:
            num_beliefs += num_believed > 3
            num_hits += num_found > 3
            num_right += num_found == num_believed
        assert sink.picker.held["gpu"] == numbers(blocks.pool.cached)
        assert sink.picker.held["cpu"] == numbers(host_places(core))
    blocks.check_integrity()
    assert len(blocks.pool.cached) > 250, "the pool was never full: nothing was evicted"
    assert num_beliefs > num_requests / 10
    # It cannot know when the blocks of sliding layers are gone, which a hit needs too.
    assert num_hits > num_requests / 10
    assert num_right > num_requests / 4
    sent = b"".join(sink.sent)
    assert b"secret" not in sent
    assert b"theirs" not in sent


def test_where_an_answer_is_apart_its_blocks_are_not_told() -> None:
    """Under batch_invariant no prompt finds what an answer left."""
    blocks, sink = BlockManager(41, 4, 6, has_separate_answer_keys=True), Picker(4)
    noted = recorded(blocks)
    sequence = EngineSequence(EngineRequest("any", tuple(range(10)), SamplingParams(9)), 100)
    sequence.token_ids += range(10, 17)
    assert blocks.reserve(sequence, 16)
    blocks.commit(sequence, 16)
    blocks.free(sequence)
    sink.take(encoded(1.0, map(wire_event, noted.take()), 0))
    assert sink.num_believed(range(16)) == 2
    others = EngineSequence(EngineRequest("all", tuple(range(50, 90)), SamplingParams(1)), 100)
    assert blocks.reserve(others, 80)  # all blocks: evicts what is cached
    sink.take(encoded(1.0, map(wire_event, noted.take()), 0))
    assert sink.num_believed(range(16)) == 0
    assert sink.held["gpu"] == set()


def test_blocks_that_another_engine_handed_over_are_told_as_any_others() -> None:
    blocks, sink = BlockManager(41, 4, 6), Picker(4)
    noted = recorded(blocks)
    sequence = EngineSequence(EngineRequest("any", tuple(range(30)), SamplingParams(1)), 100)
    keys = [*blocks.prefix_keys(sequence)]
    assert blocks.take_in(sequence, keys[:6])
    sink.take(encoded(1.0, map(wire_event, noted.take()), 0))
    assert sink.num_believed(range(28)) == 3
    assert blocks.take_in(sequence, keys)
    sink.take(encoded(1.0, map(wire_event, noted.take()), 0))
    assert sink.num_believed(range(28)) == 7
    assert sink.held["gpu"] == numbers(blocks.pool.cached)


@pytest.mark.skipif("host_kv" not in folders(), reason="the part host_kv was removed")
def test_blocks_that_a_failed_step_loses_are_told_removed() -> None:
    simulation = Simulation(max_token_gap_s=None, num_blocks=120, num_host_blocks=150)
    core, sink = simulation.core, ToPicker()
    core.use([BlockEvents(sink)])
    asking = prompts(random.Random(1))
    for number in range(40):
        answered(core, number, *next(asking))
    blocks = core.scheduler.blocks
    assert sink.picker.held["cpu"]
    blocks.lose([Move(1, 0, is_save=True)])
    blocks.forget([*blocks.pool.cached.values()])
    answered(core, 40, None, [7] * 200)
    assert sink.picker.held["cpu"] == set()
    assert sink.picker.held["gpu"] == numbers(blocks.pool.cached)
