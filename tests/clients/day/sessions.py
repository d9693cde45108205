"""Coding agents that a program speaks to, turn by turn, as editors do."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

Json = dict[str, Any]
Strike = Callable[[], None]

LIMIT_S = 240  # for an agent that hangs
PATIENCE_S = 60


class Agent:
    """An agent's process, which reads and writes lines of JSON."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.seen: list[Json] = []
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._limit = threading.Timer(LIMIT_S, self._process.kill)
        self._limit.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._limit.cancel()
        self._process.kill()
        with self._process:  # closes its pipes
            pass

    def end(self) -> int:
        """End the session; the agent's exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(PATIENCE_S)

    def turn(self, text: str, strike: Strike | None = None) -> str:
        """Let it answer; `strike` is called at the first words."""
        raise NotImplementedError

    def send(self, message: Json) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def messages(self) -> Iterator[Json]:
        """What it says, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.seen.append(json.loads(line))
            yield self.seen[-1]
        last = [json.dumps(each)[:600] for each in self.seen[-8:]]
        raise AssertionError("the agent ended early:\n" + "\n".join(last))


class Codex(Agent):
    """`codex app-server`, which editors run."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        super().__init__([*command, "app-server"], folder, environment)
        self._num = 0
        self._folder = folder
        self.thread = ""
        self.ask("initialize", clientInfo={"name": "day", "version": "1"})
        self.send({"method": "initialized"})

    def begin(self, thread: str = "") -> None:
        """Start a thread, or go on with one; its MCP server is there then."""
        common = {"cwd": str(self._folder), "approvalPolicy": "never"}
        options = {**common, "sandbox": "danger-full-access", "model": "gpt-oss-20b"}
        method = "thread/resume" if thread else "thread/start"
        more = {"threadId": thread} if thread else {}
        self.thread = self.ask(method, **options, **more)["thread"]["id"]
        ready = ("mcpServer/startupStatus/updated", "ready")
        if ready not in [_status(each) for each in self.seen]:
            next(each for each in self.messages() if _status(each) == ready)

    def ask(self, method: str, **parameters: Any) -> Json:
        """Call a method; its result."""
        self._num += 1
        self.send({"id": self._num, "method": method, "params": parameters})
        for message in self.messages():
            if message.get("id") == self._num and "method" not in message:
                assert "result" in message, message
                result: Json = message["result"]
                return result
        raise AssertionError

    def turn(self, text: str, strike: Strike | None = None) -> str:
        self.ask("turn/start", threadId=self.thread, input=[{"type": "text", "text": text}])
        answer = ""
        for message in self.messages():
            given = message.get("params", {})
            match message.get("method"):
                case "item/agentMessage/delta" if strike is not None:
                    strike()
                    strike = None
                case "item/completed" if given["item"]["type"] == "agentMessage":
                    answer = given["item"]["text"]
                case "turn/completed":
                    assert given["turn"]["status"] == "completed", given
                    break
        assert strike is None, "nothing was streamed"
        return answer

    def compact(self) -> None:
        self.ask("thread/compact/start", threadId=self.thread)
        done = next(each for each in self.messages() if each.get("method") == "turn/completed")
        assert done["params"]["turn"]["status"] == "completed", done


def _status(message: Json) -> tuple[str | None, str | None]:
    return message.get("method"), message.get("params", {}).get("status")


class Claude(Agent):
    """`claude --print` with a stream of messages on both sides, as its SDK runs it."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        streams = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
        partial = "--include-partial-messages"
        super().__init__([*command, "--print", *streams, partial], folder, environment)
        self.session = ""

    def turn(self, text: str, strike: Strike | None = None) -> str:
        self.send({"type": "user", "message": {"role": "user", "content": text}})
        for message in self.messages():
            delta = message.get("event", {}).get("delta", {}).get("type")
            if delta == "text_delta" and strike is not None:
                strike()
                strike = None
            if message["type"] == "result":
                assert message["subtype"] == "success", message
                assert not message["is_error"], message
                break
        assert strike is None, "nothing was streamed"
        self.session = message["session_id"]
        said: str = message["result"]
        return said

    def compact(self) -> None:
        self.turn("/compact")
        kinds = [each.get("subtype") for each in self.seen]
        assert "compact_boundary" in kinds, kinds
