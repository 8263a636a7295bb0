"""The scene benchmarks run on: a mosaic of procedural cities with many named places, made once from a recipe."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import shapely
from numpy.typing import NDArray
from tqdm import tqdm

from wayfix.geo.boxes import WorldBox
from wayfix.scene.folder import new_folder
from wayfix.scene.landmark import Landmark
from wayfix.scene.manifest import FILE_NAME, read_manifest
from wayfix.scene.writer import SceneWriter
from wayfix.synth.city import CityConfig, build_city
from wayfix.synth.heights import HEIGHT_GSD_M
from wayfix.synth.names import BUILDING_WORDS, ROAD_WORDS
from wayfix.synth.write import ATTRIBUTION, CITY_CRS, photo_array_blocks

_VERSION = 1  # raise it when the same recipe gives another scene
_PREFIX = "bench-"
_ORIGIN = (500_000.0, 5_700_000.0)

_QUALIFIERS = ("", "", "", "", "Old", "New", "North", "South", "East", "West", "Upper", "Lower", "Saint", "Great")
_STARTS = (
    "Ash", "Barn", "Birch", "Black", "Bram", "Brook", "Chester", "Clay", "Cold", "Crow", "Dal", "Deer", "Elm", "Fair",
    "Fern", "Glen", "Gold", "Grim", "Hart", "Hazel", "High", "Holm", "Kings", "Lang", "Lin", "Long", "Mal", "Mid",
    "Mill", "Moor", "Nor", "Oak", "Over", "Pen", "Pine", "Quarr", "Raven", "Red", "Rose", "Rush", "Sand", "Shel",
    "Silver", "Stan", "Stone", "Swan", "Thorn", "Under", "Wake", "Wal", "Water", "Well", "Whit", "Wild", "Win", "Wood",
    "Bäcker", "Böhm", "Brûl", "Château", "Çelik", "Dvořák", "Élys", "Fürst", "Góra", "Grün", "Häger", "Jönk", "Königs",
    "Łuk", "Müller", "Muñ", "Øster", "Pérez", "Saône", "Štef",
)  # fmt: skip
_ENDS = (
    "acre", "borough", "bourne", "bridge", "bury", "by", "combe", "cote", "croft", "dale", "den", "field", "ford",
    "gate", "grove", "ham", "hill", "hurst", "ley", "mead", "mere", "mouth", "port", "ridge", "shaw", "stead", "stoke",
    "thorpe", "ton", "wick", "wood", "worth", "brück", "érac", "ström", "ów",
)  # fmt: skip
_KINDS = (
    *(kind for kinds in BUILDING_WORDS.values() for kind in kinds),
    *((word, "road") for word in ROAD_WORDS),
    *(("Park", "park"), ("Car Park", "parking"), ("Bridge", "bridge"), ("Square", "square"), ("Café", "cafe")),
)


@dataclass(frozen=True)
class Recipe:
    """What a scene for benchmarks holds; equal recipes give equal scenes."""

    columns: int = 4
    """Cities from west to east."""
    rows: int = 3
    """Cities from north to south."""
    city_m: float = 150.0
    """Side of one square city, metres."""
    gsd_m: float = 0.05
    """Ground sampling distance of the photo, metres per pixel."""
    points: int = 10_000_000
    names: int = 100_000
    """Named places."""
    seed: int = 0

    @property
    def extent(self) -> WorldBox:
        """The whole scene, metres."""
        x, y = _ORIGIN
        return WorldBox(x, y, x + self.columns * self.city_m, y + self.rows * self.city_m)

    @property
    def scene_id(self) -> str:
        """Differs between recipes."""
        text = json.dumps([_VERSION, asdict(self)])
        return _PREFIX + hashlib.sha256(text.encode()).hexdigest()[:12]


@contextlib.contextmanager
def bench_scene(recipe: Recipe, data: Path | None, quiet: bool) -> Iterator[Path]:
    """The folder of a scene of this recipe: `data`, made where it is not there yet, or a temporary one.

    Another benchmark scene in `data` is replaced. Raises SceneExists where something else is there.
    """
    if data is None:
        with tempfile.TemporaryDirectory(prefix="wayfix-bench-") as name:
            make_scene(Path(name) / "scene", recipe, quiet)
            yield Path(name) / "scene"
    else:
        if not is_complete(data, recipe):
            make_scene(data, recipe, quiet)
        yield data


def is_complete(folder: Path, recipe: Recipe) -> bool:
    """Whether a folder holds a scene of this recipe with all its files. Raises SceneCorrupt for a broken manifest."""
    if not (folder / FILE_NAME).is_file():
        return False
    manifest = read_manifest(folder)
    files = [folder / entry.path for layer in manifest.layers.values() for entry in layer.files]
    sizes = [entry.bytes for layer in manifest.layers.values() for entry in layer.files]
    return manifest.id == recipe.scene_id and sizes == [p.stat().st_size if p.is_file() else -1 for p in files]


def make_scene(target: Path, recipe: Recipe, quiet: bool) -> None:
    """Write the scene of a recipe as `target`, replacing another benchmark scene. Raises SceneExists and its like."""
    replace = (target / FILE_NAME).is_file() and read_manifest(target).id.startswith(_PREFIX)
    with new_folder(target, replace) as folder:
        photo, dsm, dtm, xyz, rgb, classes = _mosaic(recipe, quiet)
        writer = SceneWriter(folder, CITY_CRS, quiet)
        height, width = photo.shape[:2]
        writer.photo((recipe.extent, width, height), photo_array_blocks(photo))
        for name, cells in (("dsm", dsm), ("dtm", dtm)):
            writer.heights(name, (recipe.extent, cells.shape[1], cells.shape[0]), [(0, cells)])
        writer.points(xyz, rgb, classes)
        writer.landmarks(make_landmarks(recipe))
        writer.finish(
            scene_id=recipe.scene_id,
            revision=1,
            grid=(recipe.extent, width, height),
            vertical_datum="local",
            sources=(),
            attribution=(ATTRIBUTION,),
            survey_date=None,
            origin_z=0.0,
        )


_Mosaic = tuple[
    NDArray[np.uint8],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float64],
    NDArray[np.uint8],
    NDArray[np.uint8],
]
"""Photo (H, W, 3), DSM and DTM (h, w), and points: world (N, 3), colours (N, 3), classes (N,)."""


def _mosaic(recipe: Recipe, quiet: bool) -> _Mosaic:
    """The cities side by side. Walls and crowns add points to a city; each is thinned evenly to its share of them."""
    count = recipe.columns * recipe.rows
    side, cells = round(recipe.city_m / recipe.gsd_m), round(recipe.city_m / HEIGHT_GSD_M)
    photo = np.empty((recipe.rows * side, recipe.columns * side, 3), np.uint8)
    dsm, dtm = (np.empty((recipe.rows * cells, recipe.columns * cells), np.float32) for _ in range(2))
    parts: list[tuple[NDArray[np.float64], NDArray[np.uint8], NDArray[np.uint8]]] = []
    for number in tqdm(range(count), desc="cities", leave=False, disable=True if quiet else None):
        row, column = divmod(number, recipe.columns)
        share = recipe.points * (number + 1) // count - recipe.points * number // count
        density = share / recipe.city_m**2
        city = build_city(CityConfig(recipe.seed + number, recipe.city_m, recipe.gsd_m, points_per_m2=density))
        photo[row * side : (row + 1) * side, column * side : (column + 1) * side] = city.bev
        place = slice(row * cells, (row + 1) * cells), slice(column * cells, (column + 1) * cells)
        dsm[place], dtm[place] = city.dsm, city.dtm
        kept = np.random.default_rng([recipe.seed, number]).permutation(len(city.points_xyz))[:share]
        corner_x = recipe.extent.min_x + column * recipe.city_m
        corner_y = recipe.extent.max_y - (row + 1) * recipe.city_m
        shift = (corner_x - city.extent.min_x, corner_y - city.extent.min_y, 0.0)
        parts.append((city.points_xyz[kept] + shift, city.points_rgb[kept], city.points_class[kept]))
    xyz, rgb, classes = (np.concatenate(layer) for layer in zip(*parts, strict=True))
    return photo, dsm, dtm, xyz, rgb, classes


def make_landmarks(recipe: Recipe) -> list[Landmark]:
    """The named places: no two names equal, about a third with accents, a tenth with an alias."""
    rng = np.random.default_rng([recipe.seed, 10_000])
    extent = recipe.extent
    marks: dict[str, Landmark] = {}
    while len(marks) < recipe.names:
        word, kind = _KINDS[rng.integers(len(_KINDS))]
        stem = _STARTS[rng.integers(len(_STARTS))] + _ENDS[rng.integers(len(_ENDS))]
        name = f"{_QUALIFIERS[rng.integers(len(_QUALIFIERS))]} {stem} {word}".strip()
        road = ROAD_WORDS[rng.integers(len(ROAD_WORDS))]
        aliases = (f"{stem} {road} {word}",) if rng.random() < 0.1 else ()
        width, height = rng.uniform(5.0, 40.0, 2)
        x = rng.uniform(extent.min_x, extent.max_x - width)
        y = rng.uniform(extent.min_y, extent.max_y - height)
        line = shapely.LineString([(x, y), (x + width, y + height)])
        marks.setdefault(name, Landmark(name, kind, line if kind == "road" else line.envelope, aliases))
    return list(marks.values())
