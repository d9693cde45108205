"""What the soak's clients send, and how each answer is judged."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx2

MODEL: Final = "nano"
POISON: Final = "catastrophe"  # the word that makes the scripted engine kill itself
TIMEOUT_S: Final = 180.0
ENDS_WITHIN_S: Final = 1200.0  # of what runs in the background, on a busy machine
WORDS: Final = ("alpha", "beta", "γάμμα", "👩‍🚀", "delta")
FORGERIES: Final = ("<|start|>", "<|return|>")  # a model may repeat them, a script does not
_MARKUP: Final = re.compile(r"<\|")  # no script has it in its text
_ENDS: Final = re.compile(
    r'data: \[DONE\]\s*$|"type":"(response\.(completed|failed|incomplete)|message_stop|error)"'
)
_ENDED: Final = ("completed", "failed", "incomplete", "cancelled")
_TOOL: Final = {
    "name": "f",
    "description": "Looks something up.",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
}
_BAD_BODIES: Final[tuple[bytes, ...]] = (
    b"",
    b"{",
    b"[]",
    b"\xff\xfe\x00",
    b'{"model": "nano"}',
    b'{"model": "nano", "messages": "hello"}',
    b'{"model": "nano", "messages": [], "temperature": "hot"}',
    b'{"model": "nano", "messages": [{"role": "wizard", "content": 1}]}',
    b'{"model": "other", "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "nano", "messages": ' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"model": "nano", "unheard_of": 1, "messages": [{"role": "user", "content": "x"}]}',
)


@dataclass
class Away:
    """A process was killed, and took connections with it until it was back."""

    of: str
    from_s: float
    until_s: float

    def meets(self, begun_s: float) -> bool:
        """Whether a request that began then and ends now may have been on it."""
        return begun_s <= self.until_s and self.from_s <= time.monotonic()


@dataclass
class Place:
    """Where the server is that gets new requests."""

    url: str


@dataclass
class Tally:
    """What came of all requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    unanswered: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    away: list[Away] = field(default_factory=list)

    def cut(self, kind: str, begun_s: float, error: Exception) -> None:
        """Count a request that failed without an answer: only a killed process may do that."""
        by = next((away.of for away in self.away if away.meets(begun_s)), None)
        if by is not None and not isinstance(error, httpx2.TimeoutException):
            self.outcomes[f"cut: {by}"] += 1
        else:
            self.unanswered.append(f"{kind}: {type(error).__name__}: {error}")
            print(f"          WRONG: {self.unanswered[-1]}", flush=True)

    def judge(self, kind: str, status: int, text: str) -> None:
        """Count a whole answer or a whole stream."""
        if found := _MARKUP.search(text):
            around = text[max(0, found.start() - 60) : found.end() + 60]
            self.leaks.append(f"{kind}: {around}")
        if status != 200:
            self._judge_error(kind, status, text)
        elif kind.startswith("stream") and not _ENDS.search(text):
            self.unanswered.append(f"{kind}: a stream broke off: {text[-200:]!r}")
        else:
            is_failed = '"error":{' in text or '"type":"error"' in text
            self.outcomes["error in the stream" if is_failed else "answered"] += 1

    def _judge_error(self, kind: str, status: int, text: str) -> None:
        try:
            error = json.loads(text)["error"]
            code = error.get("code") or error["details"]["error_code"]
        except (ValueError, KeyError, TypeError):
            self.unanswered.append(f"{kind}: {status} without an error: {text[:200]!r}")
        else:
            self.outcomes[f"{status} {code}"] += 1


@dataclass(frozen=True)
class Talk:
    """What one client says, and on which connection."""

    client: httpx2.AsyncClient
    rng: random.Random
    tally: Tally
    words: tuple[str, ...]
    place: Place

    def prompt(self, num_words: int) -> str:
        return " ".join(self.rng.choices(self.words, k=num_words))


Kind = Callable[[Talk], Awaitable[None]]


def _chat(talk: Talk, num_words: int = 5, **changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": talk.prompt(num_words)}]
    return {"model": MODEL, "messages": messages, "max_tokens": 100} | changes


async def _post(talk: Talk, kind: str, path: str, body: dict[str, Any]) -> None:
    response = await talk.client.post(path, json=body)
    talk.tally.judge(kind, response.status_code, response.text)


async def stream_chat(talk: Talk) -> None:
    await _post(talk, "stream chat", "/v1/chat/completions", _chat(talk, stream=True))


async def whole_chat(talk: Talk) -> None:
    body = _chat(talk, n=talk.rng.choice((1, 1, 3)), logprobs=talk.rng.random() < 0.2)
    await _post(talk, "chat", "/v1/chat/completions", body)


async def long_prompt(talk: Talk) -> None:
    body = _chat(talk, talk.rng.choice((2_000, 20_000)), stream=True, max_tokens=20)
    await _post(talk, "stream long", "/v1/chat/completions", body)


async def tools(talk: Talk) -> None:
    body = _chat(talk, stream=True, tools=[{"type": "function", "function": _TOOL}])
    await _post(talk, "stream tools", "/v1/chat/completions", body)


async def responses(talk: Talk) -> None:
    body = {"model": MODEL, "input": talk.prompt(5), "max_output_tokens": 100}
    body |= talk.rng.choice(({"stream": True}, {}, {"stream": True, "store": False}))
    kind = "stream responses" if "stream" in body else "responses"
    await _post(talk, kind, "/v1/responses", body)


async def background(talk: Talk) -> None:
    """Ask for what must end whatever is killed, and look until it has."""
    body = {"model": MODEL, "input": talk.prompt(5), "max_output_tokens": 100, "background": True}
    response = await talk.client.post("/v1/responses", json=body)
    talk.tally.judge("background", response.status_code, response.text)
    if response.status_code != 200:
        return
    path = f"/v1/responses/{response.json()['id']}"
    deadline_s = time.monotonic() + ENDS_WITHIN_S
    while time.monotonic() < deadline_s:
        await asyncio.sleep(0.5)
        try:
            response = await talk.client.get(f"{talk.place.url}{path}")
        except httpx2.HTTPError:
            continue  # it is killed, and comes back
        if response.status_code == 404:
            break
        if response.status_code == 200 and (status := response.json()["status"]) in _ENDED:
            talk.tally.outcomes[f"background {status}"] += 1
            return
    talk.tally.unanswered.append(f"background: {path} is lost: {response.text[:200]}")
    print(f"          WRONG: {talk.tally.unanswered[-1]}", flush=True)


async def messages(talk: Talk) -> None:
    body = _chat(talk, stream=True)
    await _post(talk, "stream messages", "/v1/messages", body)


async def completions(talk: Talk) -> None:
    body = {"model": MODEL, "prompt": talk.prompt(5), "max_tokens": 20}
    await _post(talk, "completions", "/v1/completions", body)


async def cancel(talk: Talk) -> None:
    """Leave in the middle of a stream."""
    body, num_lines = _chat(talk, stream=True), talk.rng.randrange(5)
    async with talk.client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for _ in response.aiter_lines():
            if num_lines == 0:
                break
            num_lines -= 1
    talk.tally.outcomes["left"] += 1


async def slow_reader(talk: Talk) -> None:
    body, pieces = _chat(talk, stream=True), []
    async with talk.client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for piece in response.aiter_text():
            pieces.append(piece)
            await asyncio.sleep(0.02)
    talk.tally.judge("stream slowly", response.status_code, "".join(pieces))


async def bad_body(talk: Talk) -> None:
    path = talk.rng.choice(("/v1/chat/completions", "/v1/responses", "/v1/messages"))
    headers = {"Content-Type": "application/json"}
    response = await talk.client.post(path, content=talk.rng.choice(_BAD_BODIES), headers=headers)
    talk.tally.judge("bad body", response.status_code, response.text)


async def half_request(talk: Talk) -> None:
    """Connect, begin to speak, and go."""
    url = talk.client.base_url
    _, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
    await writer.drain()
    writer.close()
    talk.tally.outcomes["left"] += 1


async def reconnect(talk: Talk) -> None:
    async with httpx2.AsyncClient(base_url=talk.client.base_url, timeout=TIMEOUT_S) as another:
        await stream_chat(replace(talk, client=another))


async def look(talk: Talk) -> None:
    path = talk.rng.choice(("/v1/health/ready", "/v1/health/live", "/v1/metrics", "/v1/models"))
    response = await talk.client.get(path)
    talk.tally.judge("look", response.status_code, response.text)


async def poison(client: httpx2.AsyncClient, tally: Tally, number: int) -> None:
    """The request that kills a scripted engine."""
    messages = [{"role": "user", "content": f"{POISON} {number}"}]
    body = {"model": MODEL, "messages": messages}
    response = await client.post("/v1/chat/completions", json=body)
    tally.judge("poison", response.status_code, response.text)


KINDS: Final[tuple[tuple[Kind, int], ...]] = (
    (stream_chat, 6),
    (whole_chat, 4),
    (tools, 4),
    (responses, 3),
    (background, 2),
    (messages, 3),
    (completions, 2),
    (cancel, 4),
    (slow_reader, 1),
    (long_prompt, 1),
    (bad_body, 3),
    (half_request, 1),
    (reconnect, 2),
    (look, 3),
)


async def send_until(
    end: asyncio.Event, place: Place, seed: int, tally: Tally, words: tuple[str, ...]
) -> None:
    """One client: one request after another until the end, the last one to its end."""
    rng = random.Random(seed)
    kinds, weights = zip(*KINDS, strict=True)
    async with httpx2.AsyncClient(base_url=place.url, timeout=TIMEOUT_S) as client:
        talk = Talk(client, rng, tally, words, place)
        while not end.is_set():
            (kind,) = rng.choices(kinds, weights)
            client.base_url, begun_s = place.url, time.monotonic()
            try:
                await kind(talk)
            except (httpx2.HTTPError, OSError) as error:
                tally.cut(kind.__name__, begun_s, error)
                await asyncio.sleep(1.0)
            await asyncio.sleep(rng.uniform(0.0, 0.2))


async def read_nothing(place: Place, tally: Tally, seconds: float) -> None:
    """Ask for much and leave it in the socket for a while."""
    url, begun_s = httpx2.URL(place.url), time.monotonic()
    body: dict[str, Any] = {"max_tokens": 600, "ignore_eos": True, "stream": True, "logprobs": True}
    body |= {"model": MODEL, "top_logprobs": 20, "messages": [{"role": "user", "content": "Hi"}]}
    sent = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}\r\n"
    mine = socket.socket()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    mine.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(mine, (url.host, url.port))
    except OSError as error:
        mine.close()
        tally.cut("slow reader", begun_s, error)
        return
    reader, writer = await asyncio.open_connection(sock=mine, limit=4096)
    try:
        writer.write(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode())
        writer.write(sent)
        await asyncio.sleep(seconds)
        last = b""
        async with asyncio.timeout(TIMEOUT_S):
            while data := await reader.read(65536):
                last = last[-100:] + data
        is_whole = b"[DONE]" in last or b'"error"' in last
        tally.outcomes["slow reader: whole" if is_whole else "slow reader: cut"] += 1
    except ConnectionResetError:
        tally.outcomes["slow reader: cut"] += 1
    except (OSError, TimeoutError) as error:
        tally.cut("slow reader", begun_s, error)
    finally:
        writer.close()
