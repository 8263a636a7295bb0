"""The image cache: what was put comes back, the least recently used goes first, and a bad disk is only a miss."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from wayfix.errors import InvalidOption
from wayfix.views.cache import ImageCache

MB = 1_000_000


def picture(seed: int = 0, side: int = 64) -> NDArray[np.uint8]:
    """A smooth image, which JPEG keeps to within a few grey values; its channels differ."""
    ramp = np.linspace(0, 200, side).astype(np.uint8)
    return np.stack(
        [np.broadcast_to(ramp, (side, side)), np.full((side, side), seed), ramp[:, None] + ramp // 8], 2
    ).astype(np.uint8)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_a_memory_hit_is_the_image_that_was_put_and_cannot_be_changed() -> None:
    cache = ImageCache(MB, None, 0)
    image = picture()
    cache.put("a", image, {"m_per_px": 0.25, "box": [1, 2, 3, 4]})
    original = image.copy()
    image[:] = 0
    got = cache.get("a")
    assert got is not None
    np.testing.assert_array_equal(got[0], original)
    assert got[1] == {"m_per_px": 0.25, "box": [1, 2, 3, 4]}
    with pytest.raises(ValueError, match="read-only"):
        got[0][0, 0, 0] = 1


def test_meta_data_handed_out_is_the_callers_own() -> None:
    cache = ImageCache(MB, None, 0)
    cache.put("a", picture(), {"list": [1]})
    first = cache.get("a")
    assert first is not None
    first[1]["list"].append(2)
    second = cache.get("a")
    assert second is not None and second[1] == {"list": [1]}


def test_an_unknown_key_is_a_miss(tmp_path: Path) -> None:
    cache = ImageCache(MB, tmp_path, MB)
    assert cache.get("none") is None
    assert cache.stats.misses == 1


def test_memory_keeps_the_most_recently_used_within_its_bytes() -> None:
    size = picture().nbytes
    cache = ImageCache(3 * size, None, 0)
    for key in "abc":
        cache.put(key, picture(), {})
    cache.get("a")
    cache.put("d", picture(), {})
    assert cache.get("b") is None
    assert all(cache.get(key) is not None for key in "acd")
    assert cache.stats.bytes == 3 * size


def test_putting_a_key_again_replaces_it(tmp_path: Path) -> None:
    cache = ImageCache(MB, tmp_path, MB)
    cache.put("a", picture(10, 64), {"n": 1})
    cache.put("a", picture(90, 32), {"n": 2})
    got = cache.get("a")
    assert got is not None and got[0].shape == (32, 32, 3) and got[1] == {"n": 2}
    assert cache.stats.bytes == picture(0, 32).nbytes
    assert len(files(tmp_path)) == 1
    assert cache.stats.disk_bytes == files(tmp_path)[0].stat().st_size


def test_an_image_larger_than_the_memory_budget_is_served_from_disk(tmp_path: Path) -> None:
    cache = ImageCache(100, tmp_path, MB)
    cache.put("a", picture(), {})
    assert cache.get("a") is not None
    assert (cache.stats.bytes, cache.stats.disk_hits) == (0, 1)


def test_images_survive_a_restart_on_disk(tmp_path: Path) -> None:
    ImageCache(MB, tmp_path / "deep" / "cache", MB).put("schlüssel/€", picture(), {"direction": "north"})
    cache = ImageCache(MB, tmp_path / "deep" / "cache", MB)
    got = cache.get("schlüssel/€")
    assert got is not None
    assert got[0].dtype == np.uint8 and np.abs(got[0].astype(int) - picture()).mean() < 3
    assert got[1] == {"direction": "north"}
    with pytest.raises(ValueError, match="read-only"):
        got[0][0, 0, 0] = 1
    assert cache.get("schlüssel/€") is not None
    assert (cache.stats.disk_hits, cache.stats.memory_hits) == (1, 1)


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "junk", "one byte more"])
def test_a_damaged_file_is_a_miss_and_is_removed(tmp_path: Path, damage: str) -> None:
    ImageCache(MB, tmp_path, MB).put("a", picture(), {})
    (path,) = files(tmp_path)
    data = path.read_bytes()
    flipped = data[:200] + bytes([data[200] ^ 1]) + data[201:]
    path.write_bytes(
        {"empty": b"", "truncated": data[:-20], "flipped": flipped, "junk": b"x" * 500, "one byte more": data + b"x"}[
            damage
        ]
    )
    cache = ImageCache(MB, tmp_path, MB)
    assert cache.get("a") is None
    assert files(tmp_path) == []
    assert (cache.stats.misses, cache.stats.disk_bytes) == (1, 0)
    cache.put("a", picture(), {})
    assert ImageCache(MB, tmp_path, MB).get("a") is not None


def test_the_folder_may_be_deleted_while_in_use(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = ImageCache(0, folder, MB)
    cache.put("a", picture(), {})
    for path in files(folder):
        path.unlink()
    folder.rmdir()
    assert cache.get("a") is None
    cache.put("b", picture(), {})
    assert cache.get("b") is not None


def test_the_files_used_longest_ago_go_first_when_the_disk_budget_is_reached(tmp_path: Path) -> None:
    cache = ImageCache(0, tmp_path, MB)
    cache.put("0", picture(), {})
    size = files(tmp_path)[0].stat().st_size
    cache = ImageCache(0, tmp_path, round(4.5 * size))
    for n in range(1, 4):
        cache.put(str(n), picture(), {})
    for n, path in enumerate(sorted(files(tmp_path), key=lambda p: p.stat().st_mtime_ns)):
        os.utime(path, (1000 + n, 1000 + n))
    assert cache.get("0") is not None  # the oldest, but used just now
    cache.put("4", picture(), {})
    assert sum(p.stat().st_size for p in files(tmp_path)) <= 4.5 * size
    assert cache.get("1") is None
    assert all(cache.get(key) is not None for key in "0234")
    assert cache.stats.disk_bytes == sum(p.stat().st_size for p in files(tmp_path))


def test_files_that_are_not_the_caches_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"x" * 5000)
    cache = ImageCache(0, tmp_path, 3000)
    for n in range(8):
        cache.put(str(n), picture(), {})
    assert (tmp_path / "notes.txt").exists()


def test_a_disk_that_cannot_be_written_is_warned_about_once_and_memory_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way of a folder")
    cache = ImageCache(MB, tmp_path / "file" / "cache", MB)
    with caplog.at_level(logging.WARNING):
        for key in "abc":
            cache.put(key, picture(), {})
    assert len(caplog.records) == 1
    assert cache.get("a") is not None and cache.get("x") is None


@pytest.mark.parametrize(
    "image", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((0, 4, 3), np.uint8)]
)
def test_other_arrays_than_rgb_images_are_refused(image: NDArray[np.uint8]) -> None:
    with pytest.raises(InvalidOption, match="uint8"):
        ImageCache(MB, None, 0).put("a", image, {})


def test_meta_data_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidOption, match="JSON"):
        ImageCache(MB, None, 0).put("a", picture(), {"x": object()})


def test_threads_share_a_cache(tmp_path: Path) -> None:
    cache = ImageCache(5 * picture().nbytes, tmp_path, 20_000)
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for n in rng.integers(0, 20, 150):
            got = cache.get(str(n))
            if got is None:
                cache.put(str(n), picture(int(n) * 10), {"n": int(n)})
            elif got[1]["n"] != n or abs(int(got[0][5, 5, 1]) - int(n) * 10) > 3:
                wrong.append(str(n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    stats = cache.stats
    assert stats.memory_hits + stats.disk_hits + stats.misses == 6 * 150
    assert 0 < stats.bytes <= 5 * picture().nbytes
    assert sum(p.stat().st_size for p in files(tmp_path)) <= 20_000 + 6 * 5000


def test_one_file_per_key_is_named_by_its_hash_and_holds_a_jpeg(tmp_path: Path) -> None:
    ImageCache(MB, tmp_path, MB).put("a", picture(), {"k": 1})
    (path,) = files(tmp_path)
    assert path.stem == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    data = path.read_bytes()
    jpeg = np.frombuffer(data[data.index(b"\xff\xd8") :], np.uint8)
    assert cv2.imdecode(jpeg, cv2.IMREAD_COLOR).shape == (64, 64, 3)
