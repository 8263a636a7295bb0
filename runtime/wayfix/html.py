"""HTML pages that need no other file: their parts, safe texts and data, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import html
import json
import os
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from wayfix.errors import InvalidOption, StorageFailed, StorageFull


def package_text(package: str, name: str) -> str:
    """A text file that belongs to a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def fill(template: str, parts: dict[str, str]) -> str:
    """Replace each {{part}} once; what a part holds is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def embedded_json(value: Any) -> str:
    """JSON that no text in it can break out of a script element: ASCII only, and `<` escaped."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def escaped(text: object) -> str:
    """A text as HTML that holds no markup, in ASCII."""
    return html.escape(str(text)).encode("ascii", "xmlcharrefreplace").decode()


def check_path(path: Path) -> None:
    """InvalidOption or StorageFailed where no page can be written: to be known before a page is made."""
    target = path.resolve()
    if not target.parent.is_dir():
        raise InvalidOption(f"cannot write {path}: its folder does not exist")
    if target.exists() and not target.is_file():
        raise StorageFailed(f"cannot write {path}: it is no file")


def write_html(path: Path, pieces: Iterable[str]) -> None:
    """Write a page piece by piece beside `path`, then rename it: an older page stays until the new one is whole.

    Raises what `check_path` raises, and StorageFull or StorageFailed.
    """
    check_path(path)
    target = path.resolve()
    temporary = target.with_name(f".wayfix-{os.getpid()}.html")
    try:
        with temporary.open("w", encoding="utf-8") as page:
            page.writelines(pieces)
        temporary.replace(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"no space left on the disk of {path}; the page was not kept") from error
        raise StorageFailed(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
