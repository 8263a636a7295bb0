"""The body of a chat reply, read from bytes as they come, in bounded memory."""

from __future__ import annotations

import json
from typing import Any

from wayfix.policy.chat import NotAReply, Reply

MAX_EVENT_BYTES = 1 << 20
"""Far above the events of a chat, and little memory."""

DONE = "[DONE]"


class EventReader:
    """Gives the data of each server-sent event once its blank line has come; comments and other fields are skipped."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[str]:
        """The events that this piece of the stream completes. Raises NotAReply for one without end."""
        events = []
        *ended, rest = piece.split(b"\n")
        for part in ended:
            self._append(part)
            events += self._end_line()
        self._append(rest)
        return events

    def end(self) -> list[str]:
        """The event that the end of the stream completes, if any: some servers leave out the last blank line."""
        return self._end_line() + self._end_event()

    def _append(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_EVENT_BYTES:
            raise NotAReply(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        self._line += part

    def _end_line(self) -> list[str]:
        line = bytes(self._line).rstrip(b"\r")
        self._line.clear()
        if not line:
            return self._end_event()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return []

    def _end_event(self) -> list[str]:
        data, self._data, self._size = self._data, [], 0
        return [b"\n".join(data).decode("utf-8", "replace")] if data else []


class ReplyReader:
    """Fills a reply from its stream of events, or from the one JSON body of a server that does not stream."""

    def __init__(self, reply: Reply, max_chars: int) -> None:
        self._reply = reply
        self._max_chars = max_chars
        self._events = EventReader()
        self._whole: bytearray | None = None
        self._begun = False

    def feed(self, piece: bytes) -> bool:
        """Take a piece of the body; whether nothing more is needed: the reply has ended, or is longer than is read.

        Raises NotAReply, or ServerError where the server tells an error in place of a reply.
        """
        if not self._begun:
            piece = piece.lstrip()
            self._begun = bool(piece)
            self._whole = bytearray() if piece.startswith(b"{") else None
        if self._whole is None:
            return self._take(self._events.feed(piece))
        self._whole += piece
        if len(self._whole) > MAX_EVENT_BYTES:
            raise NotAReply(f"the body is longer than {MAX_EVENT_BYTES} bytes")
        return False

    def end(self) -> None:
        """The body has ended. Raises what `feed` does, also where the reply has not ended with it."""
        self._take(self._events.end() if self._whole is None else [self._whole.decode("utf-8", "replace")])
        if not self._reply.finished:
            raise NotAReply("the stream ended within the reply" if self._reply.size else "it holds no reply")

    def _take(self, events: list[str]) -> bool:
        for event in events:
            if event.strip() == DONE:
                self._reply.finished = True
                return True
            self._reply.add(_json(event))
            if self._reply.size > self._max_chars:
                self._reply.finished = True
                return True
        return False


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotAReply(f"it is not JSON: {error}") from None
