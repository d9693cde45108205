"""Generated token ids to deltas: a state machine over the control tokens.

It never raises on what a model wrote and never loses text: where the output departs from
the format, the text goes where the best evidence says (docs/harmony.md has the table).
Each decision depends on the tokens alone, never on how many came in one call, so an
answer is the same streamed in any step size or parsed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from service.conversation import MESSAGE_BREAK, NO_BUILTINS, Builtins, Delta, DeltaKind, TextPiece
from service.harmony.header import Header, HeaderPart, Reading, Route, recipients_of, route
from service.harmony.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    ENDOFTEXT,
    MESSAGE,
    RETURN,
    START,
    WHOLE_TEXTS,
    decode_bytes,
    is_ordinary,
)
from service.text_decoder import TextDecoder

_CALLS = (DeltaKind.ARGUMENTS, DeltaKind.HOSTED_CALL)


class Parser:
    """Parses the tokens of one choice, whose prompt ended with `<|start|>assistant`."""

    def __init__(
        self,
        tool_names: frozenset[str],
        builtins: Builtins = NO_BUILTINS,
        custom_names: frozenset[str] = frozenset(),
        *,
        is_endless: bool = False,
    ) -> None:
        self.num_reasoning_tokens = 0
        self.num_resyncs = 0  # departures from the format that were repaired
        self._tool_names = tool_names
        self._hosted = recipients_of(builtins.hosted)
        self._returns_others = builtins.returns_others
        self._custom_names = custom_names  # of the tools whose input is not JSON
        self._is_endless = is_endless  # the answer continues after <|return|>
        self._hosted_name = ""  # of the built-in tool that is being called
        self._decoder = TextDecoder(decode_bytes)
        self._num_tokens = 0
        self._header: Header | None = Header(HeaderPart.GIVEN)  # None inside a message's text
        self._is_first_header = True
        self._kind: DeltaKind | None = None  # of the text; None: not known before it ends
        self._held: list[TextPiece] = []  # text whose kind is not known yet
        self._is_opening = False  # the message has no text yet
        self._spoken: set[DeltaKind] = set()
        self._num_calls = 0
        self._has_arguments = False
        self._is_done = False
        self._is_plain = False  # whole text may go straight to the current run
        self._texts: list[str] = []  # the run: text of one kind, not yet a delta
        self._positions: list[int] = []
        self._deltas: list[Delta] = []

    @property
    def is_reasoning(self) -> bool | None:
        if self._header is not None:
            return None if self._is_first_header else False
        return self._kind is DeltaKind.REASONING and not self._is_done

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Take generated ids, one or more; give the deltas that they add to the answer."""
        whole_texts, position = WHOLE_TEXTS, self._num_tokens
        for token_id in token_ids:
            text = whole_texts[token_id] if self._is_plain else None
            if text is not None:
                self._texts.append(text)
                self._positions.append(position)
            elif not self._is_done:
                self._step(token_id, position)
            position += 1
        self._num_tokens = position
        return self._take_deltas()

    def finish(self) -> list[Delta]:
        if not self._is_done:
            self._add(self._decoder.flush())
            if self._header is None or not self._header.is_cut_word:
                self._end_message(None)
            self._end_output()
        return self._take_deltas()

    def resume(self) -> None:
        """Continue after a tool's result, which is followed by another `<|start|>assistant` in the
        prompt."""
        self._header, self._is_first_header = Header(HeaderPart.GIVEN), True
        self._is_done = self._is_plain = False

    # Tokens

    def _step(self, token_id: int, position: int) -> None:
        if is_ordinary(token_id):
            self._add(self._decoder.push(token_id, position))
        else:
            self._add(self._decoder.flush())
            _CONTROLS.get(token_id, Parser._on_unknown)(self, token_id)
        self._is_plain = not (
            self._header
            or self._kind is None
            or self._is_opening
            or self._decoder.is_mid_character
            or self._is_done
        )

    def _on_start(self, token_id: int) -> None:
        self.num_resyncs += self._header is None  # <|end|> was left out
        cut = self._cut_header()
        self._end_message(token_id)
        self._header = Header(HeaderPart.AUTHOR, inherited=cut)

    def _cut_header(self) -> Reading | None:
        """Give what a header said that <|start|> cuts off; the next may say less."""
        if not self._header or self._header.text(continues=False):
            return None
        reading = self._header.reading()
        self.num_resyncs += not reading.is_silent
        return None if reading.is_silent else reading

    def _on_part(self, token_id: int) -> None:
        part = HeaderPart.CHANNEL if token_id == CHANNEL else HeaderPart.TYPE
        if self._header and not self._header.text(continues=True):
            self._header.open_part(part)
        elif part is HeaderPart.CHANNEL:  # a new header that lacks <|end|><|start|>assistant
            self._end_message(token_id)
            self._header = Header(HeaderPart.GIVEN)
            self._header.open_part(part)
        else:
            self._on_unknown(token_id)

    def _on_message(self, token_id: int) -> None:
        if self._header:
            self._begin_message(self._header, is_complete=True)
        else:
            self._on_unknown(token_id)

    def _on_end(self, token_id: int) -> None:
        self._end_message(token_id)
        self._header = Header(HeaderPart.GIVEN)

    def _on_return(self, token_id: int) -> None:
        self._end_message(token_id)
        if self._is_endless:
            self._header = Header(HeaderPart.GIVEN)
        else:
            self._end_output()

    def _on_unknown(self, _token_id: int) -> None:
        self.num_resyncs += 1

    # Messages

    def _begin_message(self, header: Header, *, is_complete: bool) -> None:
        """The header is over: route the message, and its text if it had begun already."""
        text, chosen = header.text(continues=is_complete), self._route(header)
        is_repaired = text or not is_complete or not self._is_well_formed(header, chosen)
        self.num_resyncs += bool(is_repaired)
        self._header, self._is_first_header = None, False
        self._kind, self._is_opening = chosen.kind, True
        if chosen.kind is DeltaKind.ARGUMENTS:
            self._begin_call(chosen.name)
        elif chosen.kind is DeltaKind.HOSTED_CALL:
            self._hosted_name = chosen.name
            self._deltas.append(Delta(DeltaKind.HOSTED_CALL, name=chosen.name))
        for piece in text:
            self._add(piece)

    def _is_well_formed(self, header: Header, chosen: Route) -> bool:
        num_recipients = len(header.reading().recipients)
        return (
            header.is_formal
            and header.has_channel
            and (header.is_started or self._is_first_header)
            and num_recipients == (chosen.kind in _CALLS)
            and chosen.is_offered
        )

    def _route(self, header: Header) -> Route:
        has_spoken = bool(self._spoken) or self._num_calls > 0
        return route(
            header.reading(),
            self._tool_names,
            self._hosted,
            returns_others=self._returns_others,
            has_channel=header.has_channel,
            has_spoken=has_spoken,
        )

    def _begin_call(self, name: str) -> None:
        self._num_calls += 1
        is_custom = name in self._custom_names
        self._has_arguments = is_custom
        kind = DeltaKind.CUSTOM_CALL if is_custom else DeltaKind.TOOL_CALL
        self._deltas.append(Delta(kind, call_index=self._num_calls - 1, name=name))

    def _end_message(self, token_id: int | None) -> None:
        """End the current message at a control token, or at the end of the output (None)."""
        if self._header and not self._has_text(self._header, token_id):
            return
        if self._header:
            self._begin_message(self._header, is_complete=False)
        if self._kind is None:
            is_answer = token_id in (RETURN, ENDOFTEXT, None)
            self._kind = DeltaKind.CONTENT if is_answer else DeltaKind.REASONING
        held, self._held = self._held, []
        for piece in held:
            self._add(piece)
        self._flush_run()
        if self._kind is DeltaKind.ARGUMENTS and token_id is not None and not self._has_arguments:
            self._deltas.append(Delta(self._kind, "{}", call_index=self._num_calls - 1))
        if self._kind is DeltaKind.HOSTED_CALL and token_id is not None:
            self._deltas.append(Delta(DeltaKind.HOSTED_END))
        self._kind = None

    def _has_text(self, header: Header, token_id: int | None) -> bool:
        """Whether a header without <|message|> is a message all the same."""
        is_call = token_id == CALL and self._route(header).kind in _CALLS
        return is_call or bool(header.text(continues=False))

    def _end_output(self) -> None:
        self._is_done, self._is_plain = True, False

    # Text

    def _add(self, piece: TextPiece | None) -> None:
        if piece is None:
            return
        if self._header:
            self._header.add(piece)
            if self._header.is_prose:
                self._begin_message(self._header, is_complete=False)
        elif self._kind is None:
            self._held.append(piece)
        else:
            self._emit(self._kind, piece)

    def _emit(self, kind: DeltaKind, piece: TextPiece) -> None:
        text, positions = piece
        if self._is_opening and kind not in _CALLS:
            if kind in self._spoken:
                self._texts.append(MESSAGE_BREAK)
            self._spoken.add(kind)
        self._is_opening = False
        self._texts.append(text)
        self._positions.extend(positions)

    def _flush_run(self) -> None:
        kind = self._kind
        if kind is None or not self._texts:
            return
        self._deltas.append(self._delta(kind, "".join(self._texts), tuple(self._positions)))
        self._texts, self._positions = [], []

    def _delta(self, kind: DeltaKind, text: str, positions: tuple[int, ...]) -> Delta:
        if kind is DeltaKind.CONTENT:
            return Delta(kind, text, 0, "", positions)
        if kind is DeltaKind.REASONING:
            self.num_reasoning_tokens += len(positions)
            return Delta(kind, text, 0, "", positions)
        if kind is DeltaKind.HOSTED_CALL:
            return Delta(kind, text, 0, self._hosted_name, positions)
        self._has_arguments = self._has_arguments or not text.isspace()
        return Delta(kind, text, self._num_calls - 1, "", positions)

    def _take_deltas(self) -> list[Delta]:
        if self._texts:
            self._flush_run()
        deltas, self._deltas = self._deltas, []
        return deltas


_CONTROLS: dict[int, Callable[[Parser, int], None]] = {
    START: Parser._on_start,
    CHANNEL: Parser._on_part,
    CONSTRAIN: Parser._on_part,
    MESSAGE: Parser._on_message,
    END: Parser._on_end,
    CALL: Parser._on_end,
    RETURN: Parser._on_return,
    ENDOFTEXT: Parser._on_return,
}
