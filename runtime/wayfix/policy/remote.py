"""A vision-language model behind an OpenAI-compatible chat endpoint decides (docs/remote.md)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from wayfix.agent.deadline import Deadline
from wayfix.agent.messages import Prompt
from wayfix.errors import InvalidOption, PolicyFailed
from wayfix.policy.chat import ImageFormat, ToolMode, chat_request, image_link
from wayfix.policy.endpoint import Endpoint
from wayfix.policy.interface import Chunk
from wayfix.policy.secret import LogGuard, Secret
from wayfix.views.view import ImageSizes, View

POLL_S = 0.02
"""How soon a cancelled turn is noticed."""

Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


class RemoteConfig(BaseModel):
    """Where the model is, and how it is asked. Raises InvalidOption, whose message shows no values."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    endpoint: str
    """Base URL, such as http://127.0.0.1:8000/v1."""
    model: Annotated[str, Field(min_length=1, max_length=500)]
    key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = "WAYFIX_API_KEY"
    """Name of the environment variable that holds the key; without that variable no key is sent."""
    tools: ToolMode = "native"
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = 0.0
    """None leaves it to the server: some models refuse any value but their own."""
    seed: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] = 512
    """Tokens of one turn, reasoning included."""
    sizes: ImageSizes = ImageSizes()
    image_format: ImageFormat = "jpeg"
    jpeg_quality: Annotated[int, Field(ge=1, le=100)] = 90
    connect_timeout_s: Seconds = 3.0
    turn_timeout_s: Seconds = 60.0
    """The longest time for one try of a turn, where the deadline leaves more."""
    retries: Annotated[int, Field(ge=0, le=20)] = 2
    """Further tries of a turn."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors())
            raise InvalidOption(f"remote policy: {problems}") from None

    @field_validator("endpoint")
    @classmethod
    def _base_url(cls, text: str) -> str:
        base = text.strip().rstrip("/")
        try:
            parts = urlsplit(base)
            _ = parts.port, httpx.URL(base)
        except (ValueError, httpx.InvalidURL):
            raise ValueError("this is no URL; expected one such as http://127.0.0.1:8000/v1") from None
        if "@" in parts.netloc:
            raise ValueError("a URL with a user or password is not taken, as it shows in logs; use key_env")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected an http or https URL, such as http://127.0.0.1:8000/v1")
        base = f"{parts.scheme}{base[len(parts.scheme) :]}"  # in small letters
        if parts.query or parts.fragment or base.endswith("/chat/completions"):
            raise ValueError("expected the base URL, without /chat/completions, query and fragment")
        return base


class RemotePolicy:
    """Asks a remote model for every turn. May be shared by threads; `close` ends its own thread and connections.

    Raises InvalidOption where the environment's key cannot be sent.
    """

    def __init__(self, config: RemoteConfig) -> None:
        self.config = config
        self.name = f"remote:{config.model}"
        self.sizes = config.sizes
        secret = Secret(config.key_env)
        self._endpoint = Endpoint(
            config.endpoint, config.model, secret, config.connect_timeout_s, config.turn_timeout_s, config.retries
        )
        self._log_guard = LogGuard(secret)
        self._links: dict[str, dict[str, str]] = {}
        self._closing = threading.Lock()
        self._closed = False
        # The requests run in an event loop of their own, where they can be cancelled whatever they wait for.
        self._requests = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._requests.run_forever, name="wayfix-remote", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"RemotePolicy({self.config!r})"

    def __enter__(self) -> RemotePolicy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel running turns, close all connections, end the thread. May be called again."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._requests).result()
        self._requests.call_soon_threadsafe(self._requests.stop)
        self._thread.join()
        self._requests.close()
        self._log_guard.remove()

    async def _shut_down(self) -> None:
        for turn in asyncio.all_tasks() - {asyncio.current_task()}:
            turn.cancel()
        await self._others()
        await self._endpoint.close()
        await self._requests.shutdown_asyncgens()
        await self._others()

    async def _others(self) -> None:
        """Wait for all other tasks of the event loop, also those that are just being made."""
        await asyncio.sleep(0)
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    def forget(self, episode_id: str) -> None:
        """Drop the episode's encoded images."""
        self._links.pop(episode_id, None)

    def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
        """The model's turn, in one piece: a try that broke off has then left nothing behind.

        Raises EndpointUnreachable, EndpointBusy, EndpointRefused or EndpointFailed once no try or time is left, and
        DeadlineExceeded or Cancelled as soon as they hold; the request is then cancelled.
        """
        deadline.check()
        body = self._body(episode_id, prompt)
        with self._closing:
            if self._closed:
                raise PolicyFailed("this remote policy has been closed; make a new one")
            turn = asyncio.run_coroutine_threadsafe(self._endpoint.ask(body, deadline), self._requests)
        try:
            while not turn.done():
                deadline.check()
                concurrent.futures.wait([turn], timeout=max(0.0, min(POLL_S, deadline.remaining())))
            text, reply = turn.result()
        except concurrent.futures.CancelledError:
            raise PolicyFailed("this remote policy was closed during the turn") from None
        finally:
            turn.cancel()
        yield Chunk(text, prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens)

    def _body(self, episode_id: str, prompt: Prompt) -> bytes:
        config = self.config
        links = self._links.setdefault(episode_id, {})

        def link(view: View) -> str:
            if view.id not in links:
                links[view.id] = image_link(view.image, config.image_format, config.jpeg_quality)
            return links[view.id]

        request = {
            "model": config.model,
            **chat_request(prompt, config.tools, link),
            "max_tokens": config.max_tokens,
            "temperature": config.temperature,
            "seed": config.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps({name: value for name, value in request.items() if value is not None}).encode("ascii")
