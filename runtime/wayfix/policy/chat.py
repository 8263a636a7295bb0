"""Prompts as OpenAI chat messages, and chat replies as the text protocol: pure functions, no network."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from wayfix.agent.messages import Message, Prompt
from wayfix.agent.protocol import format_call
from wayfix.views.view import View

ToolMode = Literal["native", "text"]
"""`native`: the tools go in the request and calls come as `tool_calls`. `text`: all is plain messages."""

ImageFormat = Literal["jpeg", "png"]
ImageLink = Callable[[View], str]

TOOLS_TEXT = "The tools, one JSON schema a line:\n<tools>\n{schemas}\n</tools>"
VIEW_TEXT = "View {id}."
EMPTY_TURN_TEXT = "(nothing)"
"""Stands for an empty turn: several services refuse a history that holds an empty message."""

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CALL_CHARS = 64
"""What a call counts beside its name and arguments: calls without either must not grow without end."""


# ---- a prompt becomes a request


def image_link(image: NDArray[np.uint8], image_format: ImageFormat, jpeg_quality: int) -> str:
    """An RGB image as a data: URI."""
    flags = [cv2.IMWRITE_JPEG_QUALITY, jpeg_quality] if image_format == "jpeg" else []
    _, encoded = cv2.imencode(f".{image_format}", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), flags)
    return f"data:image/{image_format};base64,{base64.b64encode(encoded.tobytes()).decode('ascii')}"


def chat_request(prompt: Prompt, mode: ToolMode, link: ImageLink) -> dict[str, Any]:
    """The members of a chat request that the prompt decides: `messages` and, in native mode, the tools."""
    request: dict[str, Any] = {"messages": chat_messages(prompt, mode, link)}
    if mode == "native" and prompt.tools:
        request["tools"] = list(prompt.tools)
        if prompt.must_answer:
            request["tool_choice"] = "none"
    return request


def chat_messages(prompt: Prompt, mode: ToolMode, link: ImageLink) -> list[dict[str, Any]]:
    """The history as chat messages in which user and assistant alternate.

    A tool's answer has the role `tool` only after a native call, and is text only: its view follows as the user's.
    """
    chat: list[dict[str, Any]] = []
    call_id = None
    for number, message in enumerate(prompt.messages):
        if message.role == "system":
            chat.append({"role": "system", "content": _system_text(message, prompt, mode)})
        elif message.role == "assistant":
            # Nine letters and digits: the strictest rule that a service has for ids.
            call_id = f"call{number:05d}"
            said = _native_call(message.text, call_id) if mode == "native" else None
            if said is None:
                call_id, said = None, {"role": "assistant", "content": _clean(message.text) or EMPTY_TURN_TEXT}
            chat.append(said)
        elif message.role == "tool" and call_id is not None:
            chat.append({"role": "tool", "tool_call_id": call_id, "content": _clean(message.text)})
            for view in message.views:
                _add_user(chat, (view, VIEW_TEXT.format(id=view.id)), link)
        else:
            _add_user(chat, message.parts, link)
    return chat


def _system_text(message: Message, prompt: Prompt, mode: ToolMode) -> str:
    if mode == "native" or not prompt.tools:
        return _clean(message.text)
    schemas = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in prompt.tools)
    return _clean(f"{message.text}\n\n{TOOLS_TEXT.format(schemas=schemas)}")


def _native_call(text: str, call_id: str) -> dict[str, Any] | None:
    """A turn as an assistant's message with `tool_calls`; None where servers would not take it as one."""
    calls = list(_CALL.finditer(text))
    if len(calls) != 1 or "<answer>" in text:
        return None
    try:
        content = json.loads(calls[0][1])
        name, arguments = content["name"], content["arguments"]
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name) or not isinstance(arguments, dict):
        return None
    function = {"name": name, "arguments": _clean(written)}
    thought = _clean(text[: calls[0].start()].strip())
    return {
        "role": "assistant",
        "content": thought or None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def _add_user(chat: list[dict[str, Any]], parts: tuple[str | View, ...], link: ImageLink) -> None:
    """Append to the user's message, a new one unless the last is the user's: templates want the roles to alternate."""
    if not chat or chat[-1]["role"] != "user":
        chat.append({"role": "user", "content": ""})
    content = chat[-1]["content"]
    parted = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    for part in parts:
        if isinstance(part, View):
            parted.append({"type": "image_url", "image_url": {"url": link(part)}})
        elif parted and parted[-1]["type"] == "text":
            # One text with line ends: templates join text parts with nothing between.
            parted[-1] = {"type": "text", "text": f"{parted[-1]['text']}\n{_clean(part)}"}
        else:
            parted.append({"type": "text", "text": _clean(part)})
    only_text = len(parted) == 1 and parted[0]["type"] == "text"
    chat[-1]["content"] = parted[0]["text"] if only_text else parted


def _clean(text: str) -> str:
    """Text that is valid Unicode: the halves of a character joined, single halves replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# ---- a reply becomes text


class NotAReply(ValueError):
    """What came is no chat reply, or no whole one."""


class ServerError(Exception):
    """The server told an error in place of a reply, or within it."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status
        """As an HTTP status; 500 where the server gave none."""


def error_text(body: Any) -> str:
    """What an error's JSON body says, in any of the usual forms."""
    for _ in range(2):
        if isinstance(body, dict):
            body = next((body[name] for name in ("error", "message", "detail") if body.get(name)), body)
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)


@dataclass
class _Call:
    name: Any = ""
    arguments: Any = ""

    @property
    def text(self) -> str:
        """The call as the loop reads it. What is no JSON or of a wrong type stays so: the loop says what is wrong."""
        arguments = self.arguments or {}
        try:
            return format_call(self.name, json.loads(arguments) if isinstance(arguments, str) else arguments)
        except (ValueError, RecursionError):
            half = f'{{"name": {json.dumps(self.name)}, "arguments": {arguments}}}'.replace("<", "\\u003c")
            return f"<tool_call>{half}</tool_call>"


@dataclass
class Reply:
    """A chat reply as it comes, whole or in pieces."""

    finished: bool = False
    """Whether the server has said that the reply ends here."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    size: int = 0
    """Characters of content and calls so far."""
    _content: list[str] = field(default_factory=list)
    _calls: dict[int, _Call] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Content and calls in the text protocol. Reasoning is not part of it."""
        parts = [*("".join(self._content).strip(),), *(call.text for call in self._calls.values())]
        return _clean("\n".join(part for part in parts if part))

    def add(self, body: Any) -> None:
        """Take one event of a stream, or a whole body. Raises NotAReply, or ServerError where it tells an error."""
        if not isinstance(body, dict):
            raise NotAReply(f"it is JSON of type {type(body).__name__}, not an object")
        if error := body.get("error"):
            code = error.get("code") if isinstance(error, dict) else None
            raise ServerError(code if isinstance(code, int) and 400 <= code < 600 else 500, error_text(body))
        usage = body.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens, self.completion_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        choices = body.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise NotAReply("its choices are no list of objects")
        for choice in choices[:1]:
            part = choice.get("delta") or choice.get("message") or {}
            if not isinstance(part, dict):
                raise NotAReply("its message is no object")
            self._add_content(part.get("content"))
            for call in _listed(part.get("tool_calls")):
                self._add_call(call)
            self.finished |= choice.get("finish_reason") is not None or bool(choice.get("message"))

    def _add_content(self, content: Any) -> None:
        for piece in content if isinstance(content, list) else [content]:
            text = piece.get("text") if isinstance(piece, dict) else piece
            if isinstance(text, str):
                self._content.append(text)
                self.size += len(text)

    def _add_call(self, delta: dict[str, Any]) -> None:
        function = delta.get("function")
        function = function if isinstance(function, dict) else {}
        name, arguments, index = function.get("name"), function.get("arguments"), delta.get("index")
        if not isinstance(index, int):
            # Some servers number nothing: a name then begins a call.
            index = max(self._calls, default=-1) + (1 if name or not self._calls else 0)
        if index not in self._calls:
            self._calls[index] = _Call()
            self.size += _CALL_CHARS
        call = self._calls[index]
        if name and name != call.name:  # some servers repeat it with every piece
            call.name = _joined(call.name, name)
        if arguments:
            call.arguments = _joined(call.arguments, arguments)
        self.size += sum(len(str(value)) for value in (name, arguments) if value)


def _joined(old: Any, new: Any) -> Any:
    return old + new if isinstance(old, str) and isinstance(new, str) else new


def _listed(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
