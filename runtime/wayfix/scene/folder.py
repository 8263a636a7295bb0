"""A scene folder appears whole or not at all: one writer at a time, a temporary folder, a rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rasterio.errors import RasterioError

from wayfix.errors import SceneBusy, SceneExists, StorageFailed, StorageFull
from wayfix.scene.journal import fingerprint_of
from wayfix.scene.manifest import FILE_NAME

_ALMOST_FULL_BYTES = 64 * 1024


@contextlib.contextmanager
def new_folder(target: Path, replace: bool, fingerprint: str | None = None) -> Iterator[Path]:
    """Yield a temporary folder beside `target`; it becomes `target` when the block ends without an error.

    With `replace`, an existing scene there is swapped for the new one at that moment, never before. The folder is
    empty, unless a `fingerprint` is given and an import with the same one was killed or interrupted: then it holds what
    that one had made (see Journal). Raises SceneExists, SceneBusy (another process is importing there), StorageFull or
    StorageFailed; on any error nothing is left behind.
    """
    target = target.absolute()
    temporary = target.parent / f".{target.name}.importing"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target):
            _check_target(target, replace)
            if fingerprint is None or fingerprint_of(temporary) != fingerprint:
                shutil.rmtree(temporary, ignore_errors=True)  # left by an import that was killed
                temporary.mkdir()
            try:
                yield temporary
                _flush(temporary)
                _publish(temporary, target)
            except KeyboardInterrupt:
                if fingerprint is None:
                    shutil.rmtree(temporary, ignore_errors=True)
                raise
            except BaseException as error:
                almost_full = _free_bytes(target.parent) < _ALMOST_FULL_BYTES
                shutil.rmtree(temporary, ignore_errors=True)
                # GDAL reports a full disk as a failed write of its own, without the errno.
                if almost_full and isinstance(error, RasterioError):
                    raise _full(target) from error
                raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(target) from error
        raise StorageFailed(f"cannot write {target}: {error.strerror or error}") from error
    except RasterioError as error:
        raise StorageFailed(f"cannot write {target}: {error}") from error


def _full(target: Path) -> StorageFull:
    return StorageFull(f"no space left on the disk of {target}; nothing was kept; free some space and import again")


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


@contextlib.contextmanager
def _lock(target: Path) -> Iterator[None]:
    path = target.parent / f".{target.name}.lock"
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise SceneBusy(
                f"another import into {target} is running; wait for it, or choose another folder"
            ) from error
        # The holder before us may have removed the file between our open and our lock: then we hold a lock on nothing.
        if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
            break
        os.close(descriptor)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _check_target(target: Path, replace: bool) -> None:
    if not target.exists():
        return
    if not (target / FILE_NAME).is_file():
        if target.is_dir() and not any(target.iterdir()):
            return
        raise SceneExists(f"{target} exists and is not a scene; choose a folder that does not exist yet")
    if not replace:
        raise SceneExists(f"{target} already holds a scene; give --replace to import it anew, or another folder")


def _flush(folder: Path) -> None:
    """Have everything on the disk before the rename, so that a power cut cannot leave a whole-looking half scene."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _publish(temporary: Path, target: Path) -> None:
    if target.exists():
        old = target.parent / f".{target.name}.old"
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        temporary.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.rename(target)
