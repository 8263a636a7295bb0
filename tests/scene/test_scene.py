"""A scene on disk: what a changed byte, a newer format or a missing file leads to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from wayfix import errors
from wayfix.geo.boxes import WorldBox
from wayfix.scene.importer import ImportOptions, import_scene
from wayfix.scene.manifest import read_manifest
from wayfix.scene.scene import Scene
from wayfix.views.scene_views import SceneViews


@pytest.fixture
def scene_folder(tmp_path: Path, options: ImportOptions, heights: Callable[..., Path]) -> Path:
    """A scene with photo, heights and landmarks."""
    target = tmp_path / "place"
    import_scene(
        target,
        ImportOptions(photo=options.photo, landmarks=options.landmarks, dsm=(heights(),), dtm=(heights("dtm.tif"),)),
    )
    return target


def flip(path: Path, position: int) -> None:
    """Change one bit of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(bytes(data))


def look_everywhere(scene: Scene) -> None:
    """Read every layer."""
    views = SceneViews(scene)
    views.overview(1024)
    views.zoom(scene.extent, 2000)
    assert scene.dsm is not None and scene.dtm is not None
    scene.heights_in(scene.extent)
    scene.landmark_index.query("Red Hall")


def test_every_flipped_byte_of_the_manifest_is_noticed(scene_folder: Path) -> None:
    path = scene_folder / "scene.json"
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        flip(path, position)
        with pytest.raises(errors.SceneError):
            read_manifest(scene_folder)
        path.write_bytes(whole)
    assert read_manifest(scene_folder).id == "place"


@pytest.mark.parametrize("name", ["bev.tif", "dsm.tif", "dtm.tif", "bev.crc", "dsm.crc", "vectors.gpkg"])
def test_a_flipped_byte_of_data_is_noticed_when_it_is_read_and_by_check(scene_folder: Path, name: str) -> None:
    path = scene_folder / name
    flip(path, path.stat().st_size * 2 // 3)
    with Scene(scene_folder) as scene, pytest.raises(errors.SceneCorrupt) as caught:
        look_everywhere(scene)
    assert "import the scene again" in str(caught.value)
    with Scene(scene_folder) as scene:
        assert any(name in problem for problem in scene.problems())


def test_a_damaged_tile_does_not_keep_others_from_being_read(tmp_path: Path, scene_folder: Path) -> None:
    with Scene(scene_folder) as scene:
        data = scene.bev.tile_bytes(0, 0, 1)
    whole = (scene_folder / "bev.tif").read_bytes()
    flip(scene_folder / "bev.tif", whole.index(data) + len(data) // 2)
    with Scene(scene_folder) as scene:
        x, y = scene.extent.min_x, scene.extent.max_y
        assert scene.bev.read(0, 0, 0, 200, 200).shape == (200, 200, 3)
        with pytest.raises(errors.SceneCorrupt, match="row 0, column 1"):
            SceneViews(scene).zoom(WorldBox(x + 130, y - 40, x + 150, y - 20), 768)
        assert scene.problems() == [
            "bev.tif does not match its checksum",
            "bev.tif: tile (level 0, row 0, column 1) is damaged",
        ]


def test_a_missing_file_is_noticed(scene_folder: Path) -> None:
    (scene_folder / "bev.tif").unlink()
    with Scene(scene_folder) as scene:
        assert "bev.tif is missing" in scene.problems()
        with pytest.raises(errors.SceneCorrupt):
            scene.bev.read(0, 0, 0, 10, 10)


def test_a_newer_format_says_to_update(scene_folder: Path) -> None:
    path = scene_folder / "scene.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format_version": 2, "a_new_field": []}))
    with pytest.raises(errors.SceneTooNew, match="update Wayfix"):
        Scene(scene_folder)


def test_no_scene_says_how_to_make_one(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", tmp_path / "photo.tif"):
        with pytest.raises(errors.SceneNotFound, match="wayfix scene import"):
            Scene(path)


def test_reading_changes_nothing_on_disk(scene_folder: Path) -> None:
    before = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in scene_folder.iterdir() if p.is_file()}
    with Scene(scene_folder) as scene:
        look_everywhere(scene)
    assert {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in scene_folder.iterdir() if p.is_file()} == before
