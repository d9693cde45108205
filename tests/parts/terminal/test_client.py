"""What the terminal's client says of a server that goes away."""

from __future__ import annotations

import socket
import threading

import pytest

from parts.terminal.client import Answer, ChatError, Client

EVENT = b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(HEAD + b"Connection: close\r\n\r\n" + EVENT, id="without an end mark"),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(EVENT), EVENT),
            id="within its chunks",
        ),
    ],
)
def test_a_stream_that_is_cut_is_told_as_such(sent: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=_send_and_go, args=(listener, sent))
        server.start()
        answer = Answer()
        with (
            Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client,
            pytest.raises(ChatError, match="The answer is incomplete"),
        ):
            list(client.ask({"model": "m", "messages": []}, answer))
        server.join()
    assert answer.content == "Hel"


def _send_and_go(listener: socket.socket, sent: bytes) -> None:
    listener.settimeout(60)
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(60)
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):  # a socket that is closed with something unread is reset
            pass
