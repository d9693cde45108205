"""The CUDA backend: steps are enqueued as CUDA graphs, and read when they are done.

A batch's rows of one token are the decode graph's, the others the prefill graph's; the sampled
tokens stay on the device, where the next step finds them by slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from engines.native.backends.base import Batch, Capacity, Row, Sampled, TokenMasks
from engines.native.backends.cuda.artefact import Artefact
from engines.native.backends.cuda.buffers import Rows, Scratch, SlotTensors
from engines.native.backends.cuda.card import Card
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.decode import DecodeStep
from engines.native.backends.cuda.draws import Draw, Draws
from engines.native.backends.cuda.eagle import DeviceHead, load_head
from engines.native.backends.cuda.graphs import Graphs, in_turn, step_sizes
from engines.native.backends.cuda.limits import check_computable
from engines.native.backends.cuda.measuring import measured
from engines.native.backends.cuda.outcome import Token, sampled_of
from engines.native.backends.cuda.prefill import ON_DEVICE, Prefill, PrefillBuffers, TokenRun
from engines.native.backends.cuda.prompt_scorer import PromptScorer
from engines.native.backends.cuda.replay import Parts, Places, cheapest_parts, equal_parts, joined
from engines.native.backends.cuda.room import Need, check_room, kv_budget, work_bytes
from engines.native.backends.cuda.sampler import Sampler
from engines.native.backends.cuda.shape import Shape
from engines.native.backends.cuda.slots import Slots
from engines.native.backends.cuda.transfer import Transfer
from engines.native.backends.cuda.verify import (
    Guesses,
    Verifier,
    VerifyStep,
    draft_capacity,
    expanded,
)
from engines.native.backends.cuda.weights import ModelWeights
from engines.native.backends.scoring import Scores
from engines.native.config import ModelConfig, NativeConfig
from engines.native.eagle.head import EagleHead
from engines.native.kv_pool import (
    choose_num_blocks,
    layers_per_group,
    longest_sequence,
)


class CudaBackend:
    """Implements engines.native.backends.base.Backend; any device that runs the kernels."""

    def __init__(
        self,
        model: ModelConfig,
        weights: ModelWeights,
        cache: Tensor,
        capacity: Capacity,
        max_num_seqs: int,
        max_num_tokens: int,
        *,
        is_batch_invariant: bool = False,
        head: EagleHead | None = None,
        choices: CardChoices | None = None,
    ) -> None:
        """Compile and capture every size of step: nothing is compiled after this."""
        device, self._capacity = cache.device, capacity
        self._is_batch_invariant, self._most_tokens = is_batch_invariant, max_num_tokens
        shape = Shape(model)
        # Tables for the model's longest sequence: kernels do not depend on the profile's.
        longest = max(capacity.max_model_len, model.max_position_embeddings)
        blocks = -(-longest // capacity.block_size) + 1
        num_slots = max_num_seqs + (head is not None)
        slots = SlotTensors.allocate(num_slots, blocks, device)
        self.transfer = transfer = Transfer(device)
        self._slots = Slots(slots, model.vocab_size, transfer)
        sizes = step_sizes(
            max_num_seqs,
            max_num_tokens,
            has_drafts=capacity.max_drafts > 0,
            is_invariant=is_batch_invariant,
        )
        most = sizes.most_rows
        scratch = Scratch(shape, most, device)
        self._decode, self._first = (
            Sampler(Rows(most, device), slots, model.vocab_size, device) for _ in range(2)
        )
        self._head_in = torch.zeros((most, model.hidden_size), dtype=torch.bfloat16, device=device)
        self._guesses = guesses = Guesses(most, device)
        self._eagle: DeviceHead | None = None
        if head is not None:
            self._eagle = DeviceHead(
                head, capacity.num_blocks, capacity.block_size, slots, most, max_num_tokens
            )
        args = (shape, weights, cache, capacity.block_size)
        is_packed = weights.layers[0].gate_up.is_packed
        of_card = choices or CardChoices.of(device)
        hopper = of_card.hopper(model)
        least_depth = math.inf if hopper is None else hopper.least_depth
        self._buffers = PrefillBuffers(
            shape, max_num_tokens, max_num_seqs, device,
            0 if is_batch_invariant and hopper is not None else least_depth,
        )  # fmt: skip

        def decode(rows: int, sampler: Sampler) -> DecodeStep:
            variants = of_card.decode(rows, is_packed)
            return DecodeStep(*args, rows, variants, slots, sampler.rows, scratch, sampler.logits)

        self._decode_graphs = Graphs(
            {n: self._decoding(n, decode(n, self._decode)) for n in sizes.decode}, device
        )
        self._head_graphs = Graphs(
            {n: partial(decode(n, self._first).head, self._head_in) for n in sizes.decode},
            device,
        )

        self._scorer = PromptScorer(
            self._buffers.normed,
            self._head_in,
            self._head_graphs,
            self._first,
            self._slots,
            transfer,
        )

        def prefill(tokens: int) -> Prefill:
            return Prefill(*args, tokens, slots, self._buffers, of_card.prefill(tokens, model))

        prefills = {n: prefill(n) for n in sizes.prefill}
        self._prefill_graphs = Graphs(
            {n: self._prefilling(n, step) for n, step in prefills.items()}, device
        )
        drawn = {*sizes.decode, *sizes.verify}
        self.draws = Draws((self._decode, self._first), drawn, self._slots, transfer)

        def verify(rows: int) -> VerifyStep:
            variants = of_card.decode(rows, is_packed)
            inputs, logits = self._decode.rows, self._decode.logits
            return VerifyStep(
                *args, rows, variants, slots, inputs, scratch, logits, guesses=guesses
            )

        steps = {n: self._verifying(n, verify(n)) for n in sizes.verify}
        accepted = None if self._eagle is None else self._accepted
        self._verifier = (
            Verifier(steps, guesses, self._decode, slots, device, accepted) if steps else None
        )
        self.draws.verifier = self._verifier

    def _decoding(self, num: int, step: DecodeStep) -> Callable[[], None]:
        head, rows = self._eagle, self._decode.rows
        if head is None:
            return step.run
        step.tap = head.decode_taps
        return in_turn(step.run, partial(head.after_decode, num, rows))

    def _verifying(self, num: int, step: VerifyStep) -> Callable[[], None]:
        head, rows = self._eagle, self._decode.rows
        if head is None:
            return step.run
        step.tap = head.decode_taps
        return in_turn(step.run, partial(head.after_verify, num, rows, self._guesses))

    def _prefilling(self, num: int, step: Prefill) -> Callable[[], None]:
        head = self._eagle
        if head is None:
            return step.run
        step.tap = head.prefill_taps
        return in_turn(step.run, partial(head.after_prefill, num, self._buffers))

    def _accepted(self, num: int) -> None:
        assert self._eagle is not None
        self._eagle.accept(num, self._decode.rows, self._guesses)

    @classmethod
    def load(cls, config: NativeConfig, model: ModelConfig) -> CudaBackend:
        """Load the weights and allocate the cache; raises EngineStartError if either cannot be."""
        check_computable(config, model)
        device = torch.device("cuda")
        artefact = Artefact(config, model)
        longest = config.max_model_len or model.max_position_embeddings
        # A full GPU is told before the load.
        check_room(device, Need.of(model, config, artefact.weights_bytes()))
        weights = artefact.weights(longest, device)
        torch.cuda.empty_cache()

        def tune(choices: CardChoices) -> CardChoices:
            most, size = config.max_num_seqs, config.block_size
            return measured(choices, Shape(model), weights, size, most)

        choices = artefact.choices(Card.of(device), tune)
        torch.cuda.empty_cache()
        head = None if config.draft_dir is None else load_head(config, model, weights, longest)
        beside = 0 if head is None else head.block_bytes(config.block_size)
        check_room(device, Need.of(model, config, torch.cuda.memory_reserved(device), beside))
        memory, work = torch.cuda.mem_get_info(device), work_bytes(model, config)
        budget = kv_budget(*memory, config.memory_fraction, work)
        num_blocks = choose_num_blocks(model, config, budget, beside)
        capacity = Capacity(
            num_blocks,
            config.block_size,
            longest_sequence(model, config, num_blocks),
            **draft_capacity(config, model, 0 if head is None else head.num_values),
        )
        values = config.block_size * 2 * model.kv_size
        cache = torch.zeros(
            (layers_per_group(model), num_blocks, values), dtype=torch.bfloat16, device=device
        )
        with artefact.kernels(torch.cuda.get_device_capability(device)):
            return cls(
                model,
                weights,
                cache,
                capacity,
                config.max_num_seqs,
                config.max_num_batched_tokens,
                is_batch_invariant=config.batch_invariant,
                head=head,
                choices=choices,
            )

    @property
    def capacity(self) -> Capacity:
        """What the loaded model has room for."""
        return self._capacity

    @torch.inference_mode()
    def launch(self, batch: Batch) -> CudaStep:
        """Enqueue a step; its sampling too, unless a row waits for its mask."""
        self._slots.update(batch)
        if self._eagle is not None and batch.starts:
            self._eagle.start(batch, self.transfer.upload)
        parts = self._parts(batch.rows)
        draws = []
        scores: dict[int, Scores] = {}
        if parts.prefilled.rows:
            draws.append(self._launch_prefill(parts.prefilled, scores))
        if parts.replayed and self._verifier is not None:
            self._replay(self._verifier, parts.replayed)
        if parts.decoded.rows:
            draws.append(self._launch_decode(parts.decoded))
        step = CudaStep(self, batch, [draw for draw in draws if draw.rows], scores)
        if not any(row.is_masked for row in batch.rows):
            step.sample({})
        return step

    def _parts(self, rows: tuple[Row, ...]) -> Parts:
        if not self._is_batch_invariant:
            parts = cheapest_parts(rows)
            # An EAGLE head takes in rows that decode from the decode step.
            return joined(parts, self._most_tokens) if self._eagle is None else parts
        return equal_parts(rows, lambda slot: self._slots[slot].num_prompt_tokens)

    def _replay(self, verifier: Verifier, rows: list[Row]) -> None:
        """Decode known tokens for their K/V alone, before the step's own rows."""
        for first in range(0, len(rows), verifier.most_rows):
            piece = rows[first : first + verifier.most_rows]
            known = [self._slots[row.slot].token_ids[row.start] for row in piece]
            verifier.load(self.transfer.to_device(verifier.pack_known(known)))
            self.draws.prepare(self._decode, piece, [])
            verifier.run(len(piece))

    def _launch_decode(self, decoded: Places) -> Draw:
        rows, indices = decoded
        if self._verifier is not None and any(row.drafts for row in rows):
            rows = self._verifier.fitting(rows)
            self._verifier.load(self.transfer.to_device(self._verifier.pack(rows)))
            rows, places = expanded(rows)
            draw = self.draws.prepare(self._decode, rows, [indices[place] for place in places])
            draw.is_verified = True
            self._verifier.run(len(rows))
            return draw
        draw = self.draws.prepare(self._decode, rows, indices)
        self._decode_graphs.run(len(indices))
        return draw

    def _launch_prefill(self, prefilled: Places, scores: dict[int, Scores]) -> Draw:
        rows, indices = prefilled
        chunks = [TokenRun(row.slot, row.start, self._token_ids(row)) for row in rows]
        host = torch.zeros(len(self._buffers.packed), dtype=torch.int32)
        self._buffers.pack(chunks, host)
        self._buffers.packed.copy_(self.transfer.to_device(host))
        self._prefill_graphs.run(sum(len(chunk.token_ids) for chunk in chunks))
        scores |= self._scorer.run(rows, indices)
        last = [place for place, row in enumerate(rows) if row.is_last]
        draw = self.draws.prepare(
            self._first, [rows[place] for place in last], [indices[place] for place in last]
        )
        if last:
            wanted = self._buffers.last_rows[self.transfer.upload(last)].long()
            hidden = self._buffers.normed[wanted, : self._head_in.shape[1]]
            self._head_in[: len(last)] = hidden
            self._head_graphs.run(len(last))
        return draw

    def _token_ids(self, row: Row) -> list[int]:
        """Of a row's positions; one that was only sampled is known on the device alone."""
        if row.is_last and row.end - row.start == 1:
            return [ON_DEVICE]
        return [*self._slots[row.slot].token_ids[row.start : row.end]]

    def propose(self, slots: list[int], wanted: list[int]) -> Tensor:
        """Enqueue so many guesses of each slot: (guesses, slots) on the host, once it is done."""
        assert self._eagle is not None
        return self.transfer.to_host(self._eagle.propose(slots, wanted, self.transfer.upload))


class CudaStep:
    """A launched step; its tokens are on their way once it is sampled."""

    def __init__(
        self, backend: CudaBackend, batch: Batch, draws: list[Draw], scores: dict[int, Scores]
    ) -> None:
        """`scores` of prompts, by the row of the batch."""
        self._backend, self._draws, self._scores = backend, draws, scores
        self._rows = batch.rows
        self._wanting = [i for i, row in enumerate(batch.rows) if row.is_last and row.num_wanted]
        self._proposed: Tensor | None = None  # (guesses, those that want some), on the host
        self._done = backend.transfer.done()

    def mask(self, masks: Mapping[int, TokenMasks]) -> None:
        """Enqueue the sampling with these masks, by the row of the batch."""
        self.sample(masks)

    @torch.inference_mode()
    def sample(self, masks: Mapping[int, TokenMasks]) -> None:
        """Enqueue the draws."""
        for draw in self._draws:
            self._backend.draws.enqueue(draw, masks)
        if self._wanting:
            wanting = [self._rows[i] for i in self._wanting]
            self._proposed = self._backend.propose(
                [row.slot for row in wanting], [row.num_wanted for row in wanting]
            )
        self._done = self._backend.transfer.done()

    def collect(self) -> list[Sampled]:
        """Wait for the step; what each row with is_last or prompt_logprobs has brought."""
        if self._done is not None:
            self._done.synchronize()
        tokens: dict[int, list[Token]] = {}
        for draw in self._draws:
            if draw.tokens is None:
                continue
            for place, (row, token) in enumerate(zip(draw.rows, draw.tokens.tolist(), strict=True)):
                tokens.setdefault(row, []).append((token, draw.logprobs.get(place)))
        guesses = self._guesses()
        sampled = {
            i: sampled_of(of, self._rows[i].drafts, guesses.get(i, ())) for i, of in tokens.items()
        }
        for i, scores in self._scores.items():
            sampled[i] = sampled.get(i, Sampled(()))._replace(prompt_logprobs=scores.packed())
        return [sampled[i] for i in sorted(sampled)]

    def _guesses(self) -> dict[int, tuple[int, ...]]:
        """What was guessed for each row that wants some."""
        if self._proposed is None:
            return {}
        return {
            i: tuple(column[: self._rows[i].num_wanted])
            for i, column in zip(self._wanting, self._proposed.t().tolist(), strict=True)
        }
