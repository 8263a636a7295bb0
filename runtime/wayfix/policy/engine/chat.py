"""Prompts as tokens: the checkpoint's own chat template and vocabulary, with images standing as runs of pad tokens."""

from __future__ import annotations

import hashlib
import json
import re
import weakref
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
import numpy as np
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray
from tokenizers import Tokenizer

from wayfix.agent.messages import Message, Prompt
from wayfix.errors import EngineMismatch
from wayfix.policy.engine.images import ImageSpec, resized_shape
from wayfix.views.view import View

_KEPT_TEXTS = 256
_TAG = re.compile(r"<(?=[|/A-Za-z])")
_TURN_START = "<|im_start|>"


@dataclass(frozen=True, eq=False)
class PromptImage:
    """An image of a prompt: its pad tokens are ids[start:start + tokens]."""

    start: int
    tokens: int
    key: int
    """The same for images with the same pixels, negative."""
    image: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class TokenPrompt:
    """A whole prompt as tokens."""

    ids: NDArray[np.int64]
    """(N,), an image's pad token as often as the image has tokens."""
    identity: NDArray[np.int64]
    """(N,), ids with every pad replaced by its image's key: where two of these agree, the model has read the same."""
    images: tuple[PromptImage, ...]


class Chat:
    """Turns prompts into tokens, remembering the texts it has seen."""

    def __init__(self, template: str, tokenizer: Tokenizer, image_token: int, spec: ImageSpec) -> None:
        """Raises EngineMismatch where the template is none, or its words are not the tokenizer's."""
        self._tokenizer, self._image_token, self._spec = tokenizer, image_token, spec
        self._pad = tokenizer.id_to_token(image_token)
        if self._pad is None or tokenizer.token_to_id(_TURN_START) is None:
            raise EngineMismatch(
                f"the tokenizer has no image token {image_token} or no {_TURN_START}; it belongs to another checkpoint"
            )
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        # As transformers sets them: what Jinja's own filter escapes for HTML would be read as text.
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False, **options})
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(template)
        except jinja2.TemplateError as error:
            raise EngineMismatch(f"the chat template is not valid: {error}; export the checkpoint again") from error
        # Several threads may ask at once.
        self._encode = lru_cache(maxsize=_KEPT_TEXTS)(self._encoded)
        self._keys: weakref.WeakKeyDictionary[View, int] = weakref.WeakKeyDictionary()

    def tokens(self, prompt: Prompt) -> TokenPrompt:
        """The prompt as the model reads it, up to where the assistant's next turn begins. Raises EngineMismatch."""
        text = self._render(prompt)
        views = [view for message in prompt.messages for view in message.views]
        ids: list[int] = []
        for number, part in enumerate(text.split(_TURN_START)):
            if number or part:
                # A special token ends whatever stands before it, so that texts between them can be read one by one.
                ids += self._encode((_TURN_START if number else "") + part)
        found = ids.count(self._image_token)
        if found != len(views):
            raise EngineMismatch(
                f"the chat template shows {found} of the prompt's {len(views)} images; it is not one of a Qwen3-VL"
            )
        return self._with_images(ids, views)

    def _with_images(self, ids: list[int], views: list[View]) -> TokenPrompt:
        pieces: list[NDArray[np.int64]] = []
        identities: list[NDArray[np.int64]] = []
        images: list[PromptImage] = []
        at, start = 0, 0
        for view in views:
            end = ids.index(self._image_token, at)
            height, width = resized_shape(view.image.shape[0], view.image.shape[1], self._spec)
            count = height * width // (self._spec.patch_size * self._spec.merge_size) ** 2
            text = np.array(ids[at:end], np.int64)
            image = PromptImage(start + len(text), count, self._key(view), view.image)
            pieces += [text, np.full(count, self._image_token, np.int64)]
            identities += [text, np.full(count, image.key, np.int64)]
            images.append(image)
            at, start = end + 1, image.start + count
        rest = np.array(ids[at:], np.int64)
        return TokenPrompt(np.concatenate([*pieces, rest]), np.concatenate([*identities, rest]), tuple(images))

    def _render(self, prompt: Prompt) -> str:
        messages = [_chat_message(message) for message in prompt.messages]
        try:
            return self._template.render(
                messages=messages, tools=list(prompt.tools) or None, add_generation_prompt=True, add_vision_id=False
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise EngineMismatch(f"the chat template does not take a prompt with tools and images: {error}") from error

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _key(self, view: View) -> int:
        if view not in self._keys:
            digest = hashlib.blake2b(np.ascontiguousarray(view.image).data, digest_size=8)
            digest.update(str(view.image.shape).encode())
            self._keys[view] = -1 - (int.from_bytes(digest.digest(), "little") >> 2)
        return self._keys[view]


def _chat_message(message: Message) -> dict[str, Any]:
    # What a person or a map wrote stands in these two; the others are the protocol's own, and hold its tags.
    clean = _untagged if message.role in ("user", "tool") else _plain
    if not message.views:
        return {"role": message.role, "content": clean(message.text)}
    content: list[dict[str, str]] = []
    for part in message.parts:
        if isinstance(part, View):
            content.append({"type": "image"})
        elif content and content[-1]["type"] == "text":
            # One text with line ends: templates join text parts with nothing between.
            content[-1] = {"type": "text", "text": f"{content[-1]['text']}\n{clean(part)}"}
        else:
            content.append({"type": "text", "text": clean(part)})
    return {"role": message.role, "content": content}


def _plain(text: str) -> str:
    """Text in which nothing reads as a special token: none may end its own message, or pose as an image."""
    return text.replace("<|", "< |")


def _untagged(text: str) -> str:
    """Text in which nothing reads as a tag either: a query must not pose as a tool's answer."""
    return _TAG.sub("< ", text)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
