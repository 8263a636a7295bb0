"""A real HTTP server on this machine that speaks the chat protocol, well or badly, as a test tells it."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE_S = 20.0
"""The longest that a stalling server waits for its client to leave."""


@dataclass
class Request:
    """What a client sent."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]


class Exchange:
    """One request and the connection to answer it on."""

    def __init__(self, request: Request, handler: BaseHTTPRequestHandler, server: ChatServer) -> None:
        self.request = request
        self._handler = handler
        self._server = server

    def raw(self, data: bytes) -> None:
        self._handler.wfile.write(data)

    def head(self, status: int = 200, content_type: str = "text/event-stream", **headers: str) -> None:
        """Status and headers of a body in chunks."""
        named = {"Content-Type": content_type, "Transfer-Encoding": "chunked"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self.raw(f"HTTP/1.1 {status} Status\r\n{lines}\r\n".encode())

    def chunk(self, data: bytes) -> None:
        if data:  # an empty chunk is the end
            self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        self.chunk(f"data: {text}\n\n".encode())

    def end(self) -> None:
        """The end of a body in chunks; the connection may be used again."""
        self.raw(b"0\r\n\r\n")

    def hang_up(self) -> None:
        self._handler.close_connection = True
        with contextlib.suppress(OSError):
            self._handler.connection.shutdown(socket.SHUT_RDWR)

    def stall(self) -> None:
        """Say nothing more until the client has left."""
        self._handler.close_connection = True
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and not self._server.closing.is_set():
            readable, _, _ = select.select([self._handler.connection], [], [], 0.02)
            if readable and self._handler.connection.recv(1, socket.MSG_PEEK) == b"":
                self._server.left.set()
                return

    def forever(self, data: bytes, every_s: float = 0.0) -> None:
        """Send the same chunk again and again until the client has left."""
        self._handler.close_connection = True
        end = time.monotonic() + PATIENCE_S
        try:
            while time.monotonic() < end and not self._server.closing.is_set():
                self.chunk(data)
                time.sleep(every_s)
        except OSError:
            self._server.left.set()


Behaviour = Callable[[Exchange], None]


class ChatServer:
    """Answers each request by the next of its behaviours, and keeps the requests."""

    def __init__(self, behaviours: Sequence[Behaviour], tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.connections: set[Any] = set()
        """The clients' addresses: a connection that is used again has one."""
        self.left = threading.Event()
        """Whether a client has closed its connection before the end."""
        self.closing = threading.Event()
        self._behaviours = iter(behaviours)
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                outer._answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass  # stderr is the tests'

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.server_bind()
        self._scheme = "https" if tls else "http"
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients leave as they like
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def base(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}/v1"

    def start(self) -> None:
        """Take connections; before that they are refused."""
        self._server.server_activate()
        self._thread.start()

    def __enter__(self) -> ChatServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        request = Request(handler.path, dict(handler.headers.items()), body)
        with self._lock:
            self.requests.append(request)
            self.connections.add(handler.client_address)
            behaviour = next(self._behaviours, status(500, {"error": {"message": "the test's script has ended"}}))
        behaviour(Exchange(request, handler, self))


# ---- what a server may do


def delta(content: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One event of a stream."""
    part = more if content is None else {"content": content, **more}
    return {"choices": [{"index": 0, "delta": part, "finish_reason": finish}]}


def usage(prompt_tokens: Any = 120, completion_tokens: Any = 7) -> dict[str, Any]:
    """The event that tells the tokens."""
    return {"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}}


def call_pieces(name: Any, arguments: str, index: int = 0, size: int = 5) -> list[dict[str, Any]]:
    """A tool call in pieces, as servers stream it."""
    head = {"index": index, "id": f"id{index}", "type": "function", "function": {"name": name, "arguments": ""}}
    pieces = [arguments[i : i + size] for i in range(0, len(arguments), size)]
    rest = [{"index": index, "function": {"arguments": piece}} for piece in pieces]
    return [delta(tool_calls=[piece]) for piece in (head, *rest)]


def streamed(*events: Any) -> Behaviour:
    """A stream that ends well: a text stands for its pieces."""

    def behave(exchange: Exchange) -> None:
        exchange.head()
        exchange.event(delta("", role="assistant"))
        for event in events:
            pieces = [event[i : i + 7] for i in range(0, len(event), 7)] if isinstance(event, str) else []
            for content in [delta(piece) for piece in pieces] if isinstance(event, str) else [event]:
                exchange.event(content)
        exchange.event(delta(finish="stop"))
        exchange.event(usage())
        exchange.event("[DONE]")
        exchange.end()

    return behave


def called(name: Any, arguments: Any) -> Behaviour:
    """A stream with one native tool call."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return streamed(*call_pieces(name, written), delta(finish="tool_calls"))


def whole(message: Any, **more: Any) -> Behaviour:
    """One JSON body, of a server that does not stream."""
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return status(200, {"object": "chat.completion", "choices": [choice], **usage_of_whole(), **more})


def usage_of_whole() -> dict[str, Any]:
    return {"usage": usage()["usage"]}


def status(code: int, content: Any = None, **headers: str) -> Behaviour:
    """A status with a body: bytes as they are, anything else as JSON."""

    def behave(exchange: Exchange) -> None:
        exchange.head(code, "application/json", **headers)
        exchange.chunk(content if isinstance(content, bytes) else json.dumps(content).encode())
        exchange.end()

    return behave


def opened(then: Behaviour) -> Behaviour:
    """The begin of a good stream, and then something else."""

    def behave(exchange: Exchange) -> None:
        exchange.head()
        exchange.event(delta("I begin to "))
        then(exchange)

    return behave


def body_of(data: bytes) -> Behaviour:
    """A stream whose body is these bytes."""

    def behave(exchange: Exchange) -> None:
        exchange.head()
        exchange.chunk(data)
        exchange.end()

    return behave


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port of this machine whose connections are never made: its queue is full and nobody takes from it."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port of this machine that refuses connections, and that nobody else can take."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
