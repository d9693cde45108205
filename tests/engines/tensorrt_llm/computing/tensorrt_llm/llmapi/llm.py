"""The LLM: requests go into a loop of steps in a thread, whose tokens come back to the caller."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from transformers import DynamicCache, GptOssForCausalLM

from tensorrt_llm.llmapi.arguments import TorchLlmArgs
from tensorrt_llm.llmapi.grammar import Matcher, Matchers
from tensorrt_llm.llmapi.sampling import SamplingParams

NUM_BLOCKS = 512  # of K/V
TOP = 20


class RequestError(RuntimeError):
    """An error of one request, in words: it comes from another process in the real library."""


@dataclass(eq=False)
class Sequence:
    """A request inside the loop."""

    prompt: list[int]
    sampling: SamplingParams
    salt: str | None
    result: RequestOutput
    cache: DynamicCache = field(default_factory=DynamicCache)
    generated: list[int] = field(default_factory=list)
    matcher: Matcher | None = None


class RequestOutput:
    """One object, whose state each step of the iterator renews."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._steps: asyncio.Queue[Any] = asyncio.Queue()
        self.finished = self.is_aborted = False
        self.cached_tokens = 0
        self.outputs: list[Any] = []

    def abort(self) -> None:
        self.is_aborted = True

    def put(self, step: Any) -> None:
        """Hand a step over, from the loop's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._steps.put_nowait, step)

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        step = await self._steps.get()
        if isinstance(step, Exception):
            self.finished = True
            raise step
        self.outputs = [step]
        self.finished = step.finish_reason is not None
        return self


class LLM:
    """Takes the arguments of TorchLlmArgs."""

    def __init__(self, **given: Any) -> None:
        self.args = TorchLlmArgs(**given)
        self.args.max_batch_size = self.args.max_batch_size or 2048
        self.args.max_num_tokens = self.args.max_num_tokens or 8192
        self._model = GptOssForCausalLM.from_pretrained(
            self.args.model, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.args.max_seq_len = self.args.max_seq_len or self._model.config.max_position_embeddings
        has_grammars = self.args.guided_decoding_backend == "llguidance"
        vocab_size = self._model.config.vocab_size
        self._matchers = Matchers(str(self.args.tokenizer), vocab_size) if has_grammars else None
        self._arriving: queue.Queue[Sequence | None] = queue.Queue()
        self._active: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._known: set[tuple[str | None, tuple[int, ...]]] = set()  # prefixes of whole blocks
        self._iterations: deque[dict[str, Any]] = deque(maxlen=1000)
        self._is_down = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        streaming: bool = False,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        if self._is_down:
            raise RuntimeError("LLM is shutting down")
        if cache_salt == "":
            raise ValueError("cache_salt must be a non-empty string")
        prompt, sampling = list(inputs["prompt_token_ids"]), sampling_params
        assert sampling is not None
        assert streaming
        assert self.args.max_seq_len is not None
        if len(prompt) + sampling.max_tokens > self.args.max_seq_len:
            sampling.max_tokens = self.args.max_seq_len - len(prompt)
        if sampling.max_tokens <= 0:
            raise ValueError(f"the prompt of {len(prompt)} tokens leaves no room for an answer")
        result = RequestOutput(asyncio.get_running_loop())
        self._arriving.put(Sequence(prompt, sampling, cache_salt, result))
        return result

    async def get_stats_async(self, timeout: float = 2) -> AsyncIterator[dict[str, Any]]:
        """Yield what the steps told; it ends when there was none for `timeout` seconds, or
        nothing runs any longer."""
        waited = 0.0
        while waited < timeout and not self._is_down:
            if self._iterations:
                waited = 0.0
                yield self._iterations.popleft()
            elif not self._active and not self._waiting and self._arriving.empty():
                return
            else:
                waited += 0.01
                await asyncio.sleep(0.01)

    def shutdown(self) -> None:
        if not self._is_down:
            self._is_down = True
            self._arriving.put(None)
            self._thread.join()

    # The loop.

    def _run(self) -> None:
        while not self._is_down:
            is_idle = not self._active and not self._waiting
            try:
                arrived = self._arriving.get(timeout=0.5 if is_idle else 0)
            except queue.Empty:
                arrived = None
            if arrived is not None:
                self._waiting.append(arrived)
                continue  # all that have come, before a step
            assert self.args.max_batch_size is not None
            while self._waiting and len(self._active) < self.args.max_batch_size:
                self._begin(self._waiting.popleft())
            self._active = [s for s in self._active if not s.result.is_aborted]
            if self._active:
                for sequence in list(self._active):
                    self._step(sequence)
            if not is_idle:
                self._tell()

    def _begin(self, sequence: Sequence) -> None:
        guide = sequence.sampling.guided_decoding
        if guide is not None:
            assert self._matchers is not None
            try:
                sequence.matcher = self._matchers.of(str(guide.grammar))
            except ValueError as error:
                sequence.result.put(RequestError(str(error)))
                return
        sequence.result.cached_tokens = self._num_cached(sequence)
        self._active.append(sequence)

    def _num_cached(self, sequence: Sequence) -> int:
        """Tokens of the prompt whose blocks another request left; the last one is computed."""
        size = self.args.kv_cache_config.tokens_per_block
        if not self.args.kv_cache_config.enable_block_reuse:
            return 0
        most = (len(sequence.prompt) - 1) // size
        known = (
            num
            for num in range(most, 0, -1)
            if (sequence.salt, tuple(sequence.prompt[: num * size])) in self._known
        )
        return next(known, 0) * size

    def _step(self, sequence: Sequence) -> None:
        try:
            token, logprobs = self._next(sequence)
        except ValueError as error:
            self._end(sequence)
            sequence.result.put(RequestError(str(error)))
            return
        sequence.generated.append(token)
        reason = None
        if token in (sequence.sampling.stop_token_ids or ()):
            reason = "stop"
        elif len(sequence.generated) >= sequence.sampling.max_tokens:
            reason = "length"
        sequence.result.put(
            SimpleNamespace(
                token_ids_diff=[token],
                logprobs_diff=[logprobs] if sequence.sampling.logprobs is not None else [],
                finish_reason=reason,
            )
        )
        if reason is not None:
            self._end(sequence)

    def _next(self, sequence: Sequence) -> tuple[int, dict[int, Any]]:
        ids = sequence.generated[-1:] or sequence.prompt
        with torch.inference_mode():
            output = self._model(
                torch.tensor([ids]), past_key_values=sequence.cache, use_cache=True
            )
        logits = output.logits[0, -1].float()
        sampling = sequence.sampling
        logprobs = torch.log_softmax(logits, -1)
        if sampling.embedding_bias is not None:
            logits = logits + sampling.embedding_bias
        if sequence.matcher is not None:
            logits = sequence.matcher.masked(logits)
        token = _drawn(logits, sampling)
        if sequence.matcher is not None:
            sequence.matcher.accept(token)
        best = torch.topk(logprobs, TOP)
        ranked = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return token, {
            id: SimpleNamespace(logprob=value, rank=rank)
            for rank, (id, value) in enumerate(ranked, 1)
        }

    def _end(self, sequence: Sequence) -> None:
        self._active.remove(sequence)
        size = self.args.kv_cache_config.tokens_per_block
        tokens = [*sequence.prompt, *sequence.generated[:-1]]
        for num in range(1, len(tokens) // size + 1):
            self._known.add((sequence.salt, tuple(tokens[: num * size])))

    def _tell(self) -> None:
        size = self.args.kv_cache_config.tokens_per_block
        used = sum(-(-(len(s.prompt) + len(s.generated)) // size) for s in self._active)
        if self.args.enable_iter_perf_stats:
            self._iterations.append(
                {
                    "numActiveRequests": len(self._active),
                    "numQueuedRequests": len(self._waiting),
                    "kvCacheStats": {
                        "maxNumBlocks": NUM_BLOCKS,
                        "usedNumBlocks": used,
                        "freeNumBlocks": NUM_BLOCKS - used,
                        "tokensPerBlock": size,
                    },
                    "inflightBatchingStats": {"numPausedRequests": 0},
                }
            )


def _drawn(logits: torch.Tensor, sampling: SamplingParams) -> int:
    if not sampling.temperature:
        return int(logits.argmax())
    logits = logits / sampling.temperature
    if sampling.top_k:
        lowest = torch.topk(logits, sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    probabilities = torch.softmax(logits, -1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        kept = ordered.cumsum(-1) - ordered < sampling.top_p
        probabilities = torch.zeros_like(probabilities).scatter(0, order[kept], ordered[kept])
    return int(torch.multinomial(probabilities, 1))
