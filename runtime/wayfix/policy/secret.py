"""The key of a service: read from the environment, sent to the service, shown nowhere."""

from __future__ import annotations

import json
import logging
import os
import re

from wayfix.errors import InvalidOption

SHORTEST_SECRET = 8
"""Shorter keys, such as EMPTY, are placeholders that servers without keys are given; they may be shown."""

HIDDEN = "***"
_SHORTEST_PART = 6
_HTTP_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy")


class Secret:
    """The key that an environment variable holds. Raises InvalidOption where it cannot be sent."""

    def __init__(self, variable: str) -> None:
        self.variable = variable
        self._key = os.environ.get(variable, "").strip()
        if not re.fullmatch(r"[!-~]*", self._key):
            raise InvalidOption(f"the key in {variable} must be ASCII without spaces; set it again")
        escaped = json.dumps(self._key)[1:-1]
        spellings = {self._key, escaped, escaped.replace("<", "\\u003c"), escaped.replace("/", "\\/")}
        self._spellings = sorted(spellings, key=len, reverse=True) if len(self._key) >= SHORTEST_SECRET else []

    def __repr__(self) -> str:
        return f"Secret({self.variable}, {self.state})"

    @property
    def state(self) -> str:
        """`set` or `not set`."""
        return "set" if self._key else "not set"

    def headers(self) -> dict[str, str]:
        """What authorizes a request; nothing where there is no key."""
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def scrub(self, text: str) -> str:
        """The text without the key, also where the text was cut within the key."""
        for spelling in self._spellings:
            text = text.replace(spelling, HIDDEN)
        for spelling in self._spellings:
            for length in range(len(spelling) - 1, _SHORTEST_PART - 1, -1):
                if text.endswith(spelling[:length]):
                    return text[:-length] + HIDDEN
        return text


class LogGuard(logging.Filter):
    """Keeps the key out of the HTTP library's logs, which tell what headers a server sends, until it is removed."""

    def __init__(self, secret: Secret) -> None:
        super().__init__()
        self._secret = secret
        for name in _HTTP_LOGGERS:
            logging.getLogger(name).addFilter(self)

    def remove(self) -> None:
        """Leave the loggers as they were."""
        for name in _HTTP_LOGGERS:
            logging.getLogger(name).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, scrubbed."""
        message = record.getMessage()
        scrubbed = self._secret.scrub(message)
        if scrubbed != message:
            record.msg, record.args = scrubbed, ()
        return True
