"""One chat endpoint over HTTP: requests, their retries, and what its failures mean."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import random
import time
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime

import httpx

from wayfix.agent.deadline import Deadline
from wayfix.agent.protocol import MAX_ACTION_CHARS
from wayfix.errors import EndpointBusy, EndpointFailed, EndpointRefused, EndpointUnreachable, PolicyFailed
from wayfix.policy.chat import NotAReply, Reply, ServerError, error_text
from wayfix.policy.secret import Secret
from wayfix.policy.sse import ReplyReader

RETRIED_STATUS = (408, 429, 500, 502, 503, 504)
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 8.0
MAX_BROKEN = 2
"""Replies that are none of the protocol: the second shows that it is the server's way, not an accident."""

DRAIN_S = 0.1
"""How long the end of a stream is waited for after its last event, so that its connection can be used again."""

ERROR_BODY_S, ERROR_BODY_BYTES, ERROR_CHARS = 2.0, 1 << 16, 300
_BROKEN_OFF = (httpx.HTTPError, OSError)


class _Failed(Exception):
    """One try that failed, and whether another may help."""

    def __init__(
        self, kind: type[PolicyFailed], message: str, *, retry: bool, broken: bool = False, after: str | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry = retry
        self.broken = broken
        self.after = after
        """The server's Retry-After."""


class Endpoint:
    """Sends chat requests to `base`, the URL up to /v1. All but the constructor belongs to one event loop."""

    def __init__(
        self, base: str, model: str, secret: Secret, connect_timeout_s: float, turn_timeout_s: float, retries: int
    ) -> None:
        self.base = base
        self._model = model
        self._secret = secret
        self._turn_timeout_s = turn_timeout_s
        self._retries = retries
        self._client = httpx.AsyncClient(
            # What is compressed could grow without bound while it is read.
            headers={"Accept-Encoding": "identity", "Content-Type": "application/json", **secret.headers()},
            timeout=httpx.Timeout(None, connect=connect_timeout_s),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=8),
            # A proxy that the environment names does not lead back to this machine.
            mounts={"http://": None, "https://": None} if _is_loopback(base) else None,
            # Reading the certificates takes a tenth of a second. Plain http needs none, and redirects are not followed.
            verify=base.startswith("https:"),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def ask(self, body: bytes, deadline: Deadline) -> tuple[str, Reply]:
        """The text of the reply to a request, scrubbed and bounded, and the reply.

        Tries again while that may help, is allowed, and the pause before it ends before the deadline. Raises
        EndpointUnreachable, EndpointBusy, EndpointRefused or EndpointFailed.
        """
        tries = broken = 0
        while True:
            tries += 1
            try:
                reply = await self._try(body)
            except _Failed as failed:
                broken += failed.broken
                again = failed.retry and tries <= self._retries and broken < MAX_BROKEN
                pause_s = _pause_s(failed.after, tries)
                if not again or pause_s >= deadline.remaining():
                    late = f", and the next would begin in {pause_s:.1f} s, after the deadline" if again else ""
                    message = f"{failed} (tries: {tries}{late})" if failed.retry else str(failed)
                    raise failed.kind(self._secret.scrub(message)) from None
                await asyncio.sleep(pause_s)
            else:
                # Scrubbed before it is cut: a cut must not leave part of a key.
                return self._secret.scrub(reply.text)[: MAX_ACTION_CHARS + 1], reply

    async def _try(self, body: bytes) -> Reply:
        reply = Reply()
        try:
            await asyncio.wait_for(self._exchange(body, reply), self._turn_timeout_s)
        except asyncio.TimeoutError:
            if not reply.finished:
                message = f"{self.base} gave no whole reply within {self._turn_timeout_s:g} s"
                raise _Failed(
                    EndpointFailed, f"{message}; allow more time, or use a faster model", retry=True
                ) from None
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            message = (
                f"no connection to {self.base}: {_cause(error)}; check that the server runs and that the URL is right"
            )
            raise _Failed(EndpointUnreachable, message, retry=True) from None
        except _BROKEN_OFF as error:
            if not reply.finished:
                message = f"{self.base} broke off before the end of its reply: {_cause(error)}; see the server's log"
                raise _Failed(EndpointFailed, message, retry=True) from None
        except ServerError as error:
            raise self._failure(error.status, str(error), None) from None
        except NotAReply as error:
            message = f"{self.base} sent no reply of the chat protocol: {error}; expected an OpenAI-compatible endpoint"
            raise _Failed(EndpointFailed, message, retry=True, broken=True) from None
        return reply

    async def _exchange(self, body: bytes, reply: Reply) -> None:
        async with self._client.stream("POST", f"{self.base}/chat/completions", content=body) as response:
            if response.status_code != 200:
                said = await _error_body(response)
                raise self._failure(response.status_code, said, response.headers.get("retry-after"))
            reader, pieces = ReplyReader(reply, MAX_ACTION_CHARS), response.aiter_raw()
            async for piece in pieces:
                if reader.feed(piece):
                    break
            else:
                reader.end()
            if reply.size <= MAX_ACTION_CHARS:
                with contextlib.suppress(*_BROKEN_OFF, asyncio.TimeoutError):
                    await asyncio.wait_for(_drain(pieces), DRAIN_S)

    def _failure(self, status: int, said: str, after: str | None) -> _Failed:
        """What an HTTP status other than 200 means."""
        # Scrubbed before it is cut, and no control characters: it is printed to terminals and written as JSON.
        told = " ".join("".join(c if c.isprintable() else " " for c in self._secret.scrub(said)).split())
        told = f"{told[:ERROR_CHARS]}…" if len(told) > ERROR_CHARS else told or "it gave no reason"
        if status == 429:
            message = f"{self.base} takes no further requests now (429): {told}; wait, or send less"
            return _Failed(EndpointBusy, message, retry=True, after=after)
        if status in RETRIED_STATUS or status >= 500:
            message = f"{self.base} failed ({status}): {told}; see the server's log"
            return _Failed(EndpointFailed, message, retry=status in RETRIED_STATUS, after=after)
        if status < 300:
            message = f"{self.base} answered with status {status} and no reply; expected an OpenAI-compatible endpoint"
            return _Failed(EndpointFailed, message, retry=True, broken=True)
        return _Failed(
            EndpointRefused, f"{self.base} refused the request ({status}): {told}; {self._check(status)}", retry=False
        )

    def _check(self, status: int) -> str:
        key = f"the key in the environment variable {self._secret.variable} (it is {self._secret.state})"
        if status < 400:
            return "it points to another address: give that one as the endpoint"
        if status in (401, 403):
            return f"check {key}"
        if status == 404:
            return f"check the model name {self._model!r}, and the URL, which usually ends in /v1"
        return f"check the model name {self._model!r}, that it takes images and tools (else tools='text'), and {key}"


async def _error_body(response: httpx.Response) -> str:
    """What an error's body says, as far as it comes soon: the status counts more."""
    body = bytearray()

    async def read() -> None:
        async for piece in response.aiter_raw():
            body.extend(piece)
            if len(body) >= ERROR_BODY_BYTES:
                return

    with contextlib.suppress(*_BROKEN_OFF, asyncio.TimeoutError):
        await asyncio.wait_for(read(), ERROR_BODY_S)
    text = body.decode("utf-8", "replace")
    try:
        return error_text(json.loads(text))
    except (ValueError, RecursionError):
        return text


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    async for _ in pieces:
        pass


def _pause_s(after: str | None, tries: int) -> float:
    """Seconds before the next try: what the server asks for, else twice as long every time, less up to a half."""
    if after is not None:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            asked = float(after) if after.strip().isdigit() else parsedate_to_datetime(after).timestamp() - time.time()
            return max(0.0, asked)
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (tries - 1)) * random.uniform(0.5, 1.0)


def _cause(error: Exception) -> str:
    return str(error) or type(error).__name__


def _is_loopback(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
