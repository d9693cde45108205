"""An engine that takes K/V gives the answers that it gives alone, whatever becomes of the peer."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.base import EngineRequest, SamplingParams
from engines.errors import EngineStartError
from engines.native.about import ABOUT
from engines.spec import EngineSpec
from parts.dynamo.handover.spec import PART, prefilled_at
from tests.engines.native.small_model import small_config, write_small
from tests.engines.speculation import NGRAM
from tests.parts.dynamo.handover.pairs import (
    BLOCK,
    SECRET,
    VOCAB_SIZE,
    ask,
    ask_exactly,
    free_endpoint,
    handover,
    prompt,
    running,
)

CACHED = (400 - 1) // BLOCK * BLOCK  # of a prompt, when all of it is there
NUM_WINDOW = 2  # blocks that a window of 8 tokens sees
NUM_BEHIND = 8 * NUM_WINDOW  # blocks behind which a prefill engine sends a window too


def usable(num_arrived: int) -> int:
    """The tokens from which an engine continues that got so many blocks, windows included, of a
    prompt whose peer was lost."""
    return num_arrived // (NUM_BEHIND + NUM_WINDOW) * NUM_BEHIND * BLOCK


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"overlap_steps": True, "speculation": NGRAM},
        {"dtype": "bfloat16"},
        {"kv_dtype": "fp8"},
    ],
)
async def test_prompts_are_found_in_the_cache_and_answered_as_by_one_engine(
    folder: Path, endpoint: str, options: dict[str, Any]
) -> None:
    prompts = [prompt(number) for number in range(4)]
    async with running(folder, **options) as alone:
        computed = [await ask_exactly(alone, each) for each in prompts]
        cached = [await ask_exactly(alone, each) for each in prompts]
    async with (
        running(folder, handover("prefill", endpoint), **options) as giving,
        running(folder, handover("decode"), **options) as taking,
    ):
        # One at a time: what shares a step changes the last bits.
        found = [await ask_exactly(taking, each, endpoint) for each in prompts]
        assert found == cached
        assert [answer.num_cached for answer in found] == [CACHED] * 4
        if options.get("dtype") != "bfloat16":
            # In bfloat16 the number of tokens in a step can change which token is the likeliest.
            token_ids = [answer.token_ids for answer in found]
            assert token_ids == [answer.token_ids for answer in computed]
        stats = await taking.stats()
        assert (stats.extras["handovers"], stats.extras["failed_handovers"]) == (4, 0)
        # All whole blocks of both groups of layers: of the sliding ones, what a window sees.
        assert stats.extras["handover_blocks"] == 4 * (CACHED // BLOCK + 2)
        assert stats.extras["handover_bytes"] % stats.extras["handover_blocks"] == 0
        assert (await giving.stats()).prompt_tokens == 1600


async def test_only_what_is_missing_is_handed_over(folder: Path, endpoint: str) -> None:
    """The next turn of a conversation; and what is cached already, or short, is not asked for."""
    whole = prompt(1, 900)
    async with (
        running(folder, handover("prefill", endpoint)) as giving,
        running(folder, handover("decode")) as taking,
    ):
        await ask(taking, whole[:400], prefill_at=endpoint)
        before = (await taking.stats()).extras["handover_blocks"]
        answer = await ask(taking, whole, prefill_at=endpoint)
        assert answer.num_cached == 896
        assert (await taking.stats()).extras["handover_blocks"] - before == (896 - 400) // BLOCK + 2
        await ask(taking, whole, prefill_at=endpoint)
        await ask(taking, prompt(7, 200), prefill_at=endpoint)
        assert (await taking.stats()).extras["handovers"] == 2
        assert (await giving.stats()).prompt_tokens == 1300


async def test_a_prompt_that_the_peer_has_cached_is_not_computed_again(
    folder: Path, endpoint: str
) -> None:
    async with (
        running(folder, handover("prefill", endpoint)) as giving,
        running(folder, handover("decode")) as taking,
    ):
        await ask(giving, prompt(0))
        before = (await giving.stats()).num_steps
        assert (await ask(taking, prompt(0), prefill_at=endpoint)).num_cached == CACHED
        assert (await giving.stats()).num_steps == before


async def test_no_other_salt_finds_what_was_handed_over(folder: Path, endpoint: str) -> None:
    """Neither where it was computed nor where it came to, and the prompt is computed for each."""
    async with (
        running(folder, handover("prefill", endpoint)) as giving,
        running(folder, handover("decode")) as taking,
    ):
        for salt in ("mine", "theirs", None):
            answer = await ask(taking, prompt(0), prefill_at=endpoint, cache_salt=salt)
            assert answer.num_cached == CACHED
        assert (await taking.stats()).extras["handovers"] == 3
        assert (await giving.stats()).prefix_cache_hits == 0
        assert (await ask(taking, prompt(0), cache_salt="another")).num_cached == 0


async def test_an_answer_that_was_cut_continues(folder: Path, endpoint: str) -> None:
    async with running(folder) as alone:
        expected = (await ask(alone, prompt(0))).token_ids
    async with (
        running(folder, handover("prefill", endpoint)),
        running(folder, handover("decode")) as taking,
    ):
        before = tuple(expected[:5])
        found = await ask(taking, prompt(0), prefill_at=endpoint, generated_token_ids=before)
        assert found.token_ids == expected[5:]
        assert found.num_cached == CACHED


@pytest.mark.parametrize("num_host_blocks", [0, 300])
async def test_blocks_of_a_full_cache_make_room(
    folder: Path, endpoint: str, num_host_blocks: int
) -> None:
    """What they evict is right in host memory, and all is as it would be without a handover."""
    chance = random.Random(4)
    asked = [prompt(chance.randrange(6), chance.choice([350, 400, 450])) for _ in range(24)]
    async with running(folder) as alone:
        expected = [(await ask(alone, each, max_tokens=4)).token_ids for each in asked]
    options = {"num_kv_blocks": 300, "max_model_len": 600}
    size = 300 * 4 * 2 * 16 * 2 * 4
    tight = options | {"host_kv_bytes": size if num_host_blocks else 0}
    async with (
        running(folder, handover("prefill", endpoint)),
        running(folder, handover("decode"), **tight) as taking,
    ):
        for number, each in enumerate(asked):
            peer = endpoint if number % 3 else None
            found = await ask(taking, each, max_tokens=4, prefill_at=peer)
            assert found.token_ids == expected[number]
        stats = await taking.stats()
        assert stats.extras["handovers"] > 4
        assert (stats.extras.get("host_kv_saved_bytes", 0) > 0) == bool(num_host_blocks)


async def test_a_peer_that_is_gone_costs_time_only(folder: Path, endpoint: str) -> None:
    async with running(folder) as alone, running(folder, handover("decode")) as taking:
        for number in range(3):
            found = await ask(taking, prompt(number), prefill_at=endpoint)
            assert found.num_cached == 0
            assert found.token_ids == (await ask(alone, prompt(number))).token_ids
        stats = await taking.stats()
        counts = stats.extras["handovers"], stats.extras["failed_handovers"]
        assert counts == (0, 1)  # then it is avoided


async def test_a_peer_that_dies_between_two_blocks_costs_time_only(
    folder: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parts.dynamo.handover.prefill_source.PIECE_BYTES", 1)  # a block a message
    async with running(folder) as alone:
        expected = (await ask(alone, prompt(0))).token_ids
    async with (
        running(folder, handover("prefill", endpoint)),
        running(folder, handover("decode")) as taking,
    ):
        through = free_endpoint()
        with cutting(through, endpoint, num_bytes=20_000):
            found = await ask(taking, prompt(0), prefill_at=through)
        stats = await taking.stats()
        assert 0 < stats.extras["handover_blocks"] < CACHED // BLOCK
        assert (stats.extras["handovers"], stats.extras["failed_handovers"]) == (0, 1)
        assert found.token_ids == expected
        assert found.num_cached == 0  # the sliding layers' blocks are missing


async def test_what_came_before_a_peer_died_is_used(
    folder: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is computed behind it."""
    monkeypatch.setattr("parts.dynamo.handover.prefill_source.PIECE_BYTES", 1 << 14)
    async with running(folder) as alone:
        expected = (await ask(alone, prompt(0))).token_ids
    async with (
        running(folder, handover("prefill", endpoint), max_num_batched_tokens=NUM_BEHIND * BLOCK),
        running(folder, handover("decode")) as taking,
    ):
        through = free_endpoint()
        with cutting(through, endpoint, num_bytes=70_000):
            found = await ask(taking, prompt(0), prefill_at=through)
        stats = await taking.stats()
        assert stats.extras["failed_handovers"] == 1
        assert found.token_ids == expected
        assert 0 < found.num_cached == usable(int(stats.extras["handover_blocks"]))


async def test_a_peer_that_is_silent_costs_its_time_only(folder: Path, endpoint: str) -> None:
    address = ("127.0.0.1", int(endpoint.rpartition(":")[2]))
    with socket.create_server(address):
        async with running(folder, handover("decode", timeout_s=0.3)) as taking:
            found = await ask(taking, prompt(0), prefill_at=endpoint)
            assert found.num_cached == 0
            assert (await taking.stats()).extras["failed_handovers"] == 1


async def test_a_slow_peer_is_not_waited_for_and_computes_no_more(
    folder: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told by the connection's end, and frees what it holds."""
    # Pieces so small that all of them may wait at once: none keeps a window from being sent.
    monkeypatch.setattr("parts.dynamo.handover.prefill_source.PIECE_BYTES", 1 << 14)
    busy = {"max_num_seqs": 1, "max_num_batched_tokens": 1}
    async with (
        running(folder, handover("prefill", endpoint), **busy) as giving,
        running(folder, handover("decode", timeout_s=0.2)) as taking,
    ):
        found = await ask(taking, prompt(0, 1000), prefill_at=endpoint)
        arrived = await taking.stats()
        assert found.num_cached == usable(int(arrived.extras["handover_blocks"])) < 996
        assert arrived.extras["failed_handovers"] == 1
        async with asyncio.timeout(20):
            while (stats := await giving.stats()).num_running + stats.num_waiting:
                await asyncio.sleep(0.01)
        assert stats.generated_tokens == 0


async def test_a_request_that_is_ended_while_it_waits_leaves_nothing(
    folder: Path, endpoint: str
) -> None:
    busy = {"max_num_seqs": 1, "max_num_batched_tokens": 1}
    async with (
        running(folder, handover("prefill", endpoint), **busy),
        running(folder, handover("decode")) as taking,
    ):
        sampling = SamplingParams(4, temperature=0.0)
        request = EngineRequest("ended", prompt(0, 1000), sampling, extras=prefilled_at(endpoint))
        async with aclosing(taking.generate(request)) as events:
            waiting = asyncio.ensure_future(anext(events))
            async with asyncio.timeout(20):
                while not (await taking.stats()).num_waiting:
                    await asyncio.sleep(0.001)
            waiting.cancel()
            await asyncio.wait([waiting])
        stats = await taking.stats()
        assert (stats.num_running, stats.num_waiting, stats.extras["failed_handovers"]) == (0, 0, 0)
        assert (await ask(taking, prompt(0, 50))).token_ids


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ({"block_size": 8}, "tokens in a block is 8 for the prefill engine and 4 for the decode"),
        ({"kv_dtype": "fp8"}, "K/V dtype is fp8 for the prefill engine and None"),
        ({"other": "weights"}, "checkpoint is "),
    ],
)
async def test_an_engine_that_differs_is_refused_with_the_difference(
    folder: Path,
    endpoint: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    theirs: dict[str, Any],
    reason: str,
) -> None:
    """Also one whose config is equal and of whose tensors only one differs."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.2.self_attn.k_proj.weight"] += 0.01

    options = dict(theirs)
    config = small_config(VOCAB_SIZE) | {"max_position_embeddings": 1024}
    if options.pop("other", None):
        folder_of_theirs = write_small(tmp_path / "other", config, change)
    else:
        folder_of_theirs = folder
    async with (
        running(folder_of_theirs, handover("prefill", endpoint), **options) as giving,
        running(folder, handover("decode")) as taking,
    ):
        assert (await ask(taking, prompt(0), prefill_at=endpoint)).num_cached == 0
        assert (await taking.stats()).extras["failed_handovers"] == 1
        assert (await giving.stats()).prompt_tokens == 0
    assert "it refused: " in caplog.text
    assert reason in caplog.text


async def test_an_engine_with_another_secret_gets_nothing(
    folder: Path, endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(folder, handover("prefill", endpoint)) as giving,
        running(folder, handover("decode", secret="another one, as long")) as taking,
    ):
        assert (await ask(taking, prompt(0), prefill_at=endpoint)).num_cached == 0
        assert (await giving.stats()).prompt_tokens == 0
    assert "it refused the secret" in caplog.text
    assert "it has another secret" in caplog.text
    assert SECRET not in caplog.text


def test_a_secret_is_in_no_message() -> None:
    spec = EngineSpec("native", parts={PART: asdict(handover("decode"))})
    assert SECRET not in repr(spec)


async def test_an_address_that_is_taken_ends_the_start(folder: Path, endpoint: str) -> None:
    async with running(folder, handover("prefill", endpoint)):
        with pytest.raises(EngineStartError, match="use a free port"):
            async with running(folder, handover("prefill", endpoint)):
                pass


def test_without_a_prefix_cache_there_is_no_handover(folder: Path) -> None:
    options = {"enable_prefix_caching": False}
    parts = {PART: asdict(handover("decode"))}
    spec = EngineSpec("native", options, model_dir=str(folder), parts=parts)
    with pytest.raises(EngineStartError, match="there is no dynamo"):
        ABOUT.create(spec)


class cutting:
    """A connection through which only so many bytes come back."""

    def __init__(self, endpoint: str, to: str, num_bytes: int) -> None:
        self._ports = [int(each.rpartition(":")[2]) for each in (endpoint, to)]
        self._left = num_bytes

    def __enter__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._ports[0]))
        self._listener.settimeout(60)
        self._thread = threading.Thread(target=self._relay)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()

    def _relay(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._ports[1]), timeout=60)
        there = threading.Thread(target=self._copy, args=(near, far))
        there.start()
        while self._left > 0 and (data := far.recv(min(4096, self._left))):
            near.sendall(data)
            self._left -= len(data)
        for each in (near, far):
            each.shutdown(socket.SHUT_RDWR)
        there.join()
        near.close()
        far.close()

    @staticmethod
    def _copy(near: socket.socket, far: socket.socket) -> None:
        while data := near.recv(4096):
            far.sendall(data)
