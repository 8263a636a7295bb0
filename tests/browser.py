"""Pages in a real browser: a headless Chromium opens them, and tells what they became."""

from __future__ import annotations

import html.parser
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install it to test the page in a browser")
OPTIONS = shlex.split(
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=6000"
)

HOSTILE = "</script><script>document.documentElement.dataset.hacked = 1</script>"
"""A text that runs as a script wherever it is not kept from it."""


class Document(html.parser.HTMLParser):
    """A page as the browser left it: the attributes of <html>, the texts of <bdi>, scripts, and all text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.state: dict[str, str] = {}
        self.names: list[str] = []
        self.scripts = 0
        self.text = ""
        self._tags: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tags.append(tag)
        if tag == "html":
            self.state = {name.removeprefix("data-"): value or "" for name, value in attrs}
        if tag == "bdi":
            self.names.append("")
        self.scripts += tag == "script"

    def handle_endtag(self, tag: str) -> None:
        if tag in self._tags:
            del self._tags[len(self._tags) - 1 - self._tags[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        if "script" in self._tags or "style" in self._tags:
            return
        self.text += data
        if self._tags and self._tags[-1] == "bdi":
            self.names[-1] += data


def chromium(page: Path, fragment: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page in a new Chromium, which ends by itself."""
    assert CHROMIUM is not None
    # Chromium's children may still write there while it is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", *options, page.as_uri() + fragment]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def opened(page: Path, fragment: str = "", size: str = "1000,700") -> Document:
    """The page after its script ran, which must have been without an error."""
    document = Document(chromium(page, fragment, f"--window-size={size}", "--dump-dom").stdout)
    assert "error" not in document.state, document.state
    assert document.state.get("ready") == "true", document.state
    return document


def with_script(page: Path, script: str, name: str) -> Path:
    """A copy of a page with a script at its end."""
    target = page.with_name(name)
    head, _, tail = page.read_text(encoding="utf-8").rpartition("</body>")
    target.write_text(f"{head}<script>{script}</script></body>{tail}", encoding="utf-8")
    return target
