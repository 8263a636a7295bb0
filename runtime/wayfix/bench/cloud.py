"""`wayfix bench import`: how long a generated cloud of any size takes to become a scene, and how much memory."""

from __future__ import annotations

import json
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import laspy
import numpy as np
from tqdm import tqdm

from wayfix.bench.report import environment
from wayfix.scene.importer import ImportOptions, import_scene

CHUNK_POINTS = 2_000_000


@dataclass(frozen=True)
class CloudRecipe:
    """A generated cloud: blocks of houses on rolling ground, like a survey of a town."""

    points: int = 10_000_000
    density: float = 39.0
    """Points per square metre, as the paper's scenes have."""
    classified: bool = False
    """Whether ground points say so; otherwise the ground filter has to find them."""
    seed: int = 0


def bench_import(sizes: tuple[int, ...], classified: bool, keep: Path | None, quiet: bool) -> dict[str, Any]:
    """Import a generated LAZ of each size (points) in a process of its own; seconds and peak resident megabytes."""
    folder = keep or Path(tempfile.mkdtemp(prefix="wayfix-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {}
    try:
        for points in sizes:
            recipe = CloudRecipe(points=points, classified=classified)
            cloud = folder / f"cloud_{points}_{'ground' if classified else 'plain'}.laz"
            if not cloud.exists():
                write_cloud(cloud, recipe, quiet)
            target = folder / f"scene_{points}"
            shutil.rmtree(target, ignore_errors=True)
            seconds, peak = _measure(cloud, target)
            size = sum(p.stat().st_size for p in target.rglob("*") if p.is_file())
            report[f"import_{points // 1_000_000}m"] = {
                "n": 1,
                "points": points,
                "seconds": round(seconds, 2),
                "peak_mb": round(peak, 1),
                "points_per_s": round(points / seconds),
                "source_mb": round(cloud.stat().st_size / 1e6, 1),
                "scene_mb": round(size / 1e6, 1),
            }
            shutil.rmtree(target)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return {
        **report,
        **environment(),
        "config": {"recipe": asdict(CloudRecipe(classified=classified)), "format": "LAZ"},
    }


def _measure(cloud: Path, target: Path) -> tuple[float, float]:
    """Seconds and peak megabytes of one import, in a fresh process so that the peak is its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_import, args=(cloud, target, sender))
    process.start()
    sender.close()
    try:
        seconds, peak = receiver.recv()
    except EOFError as error:
        process.join()
        raise RuntimeError(f"the import of {cloud} died with exit code {process.exitcode}") from error
    process.join()
    return seconds, peak


def _import(cloud: Path, target: Path, sender: Any) -> None:
    started = time.monotonic()
    import_scene(target, ImportOptions(clouds=(cloud,)))
    seconds = time.monotonic() - started
    sender.send((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def write_cloud(path: Path, recipe: CloudRecipe, quiet: bool) -> None:
    """Write the recipe's cloud as LAZ 1.4, point format 7, UTM zone 31N, strip by strip."""
    side = (recipe.points / recipe.density) ** 0.5
    header = laspy.LasHeader(point_format=7, version="1.4")
    header.offsets, header.scales = [500_000, 5_700_000, 0], [0.001, 0.001, 0.001]
    from pyproj import CRS

    header.add_crs(CRS.from_epsg(32631))
    rng = np.random.default_rng(recipe.seed)
    partial = path.with_name(f"part.{path.name}")
    with laspy.open(partial, "w", header=header) as out, tqdm(total=recipe.points, disable=quiet or None) as bar:
        for start in range(0, recipe.points, CHUNK_POINTS):
            count = min(CHUNK_POINTS, recipe.points - start)
            low, high = start / recipe.points * side, (start + count) / recipe.points * side
            out.write_points(_strip(rng, header, count, side, low, high, recipe.classified))
            bar.update(count)
    partial.rename(path)


def _strip(
    rng: np.random.Generator,
    header: laspy.LasHeader,
    count: int,
    side: float,
    low: float,
    high: float,
    classified: bool,
) -> laspy.ScaleAwarePointRecord:
    """Points of one east-west strip: houses of 12 m on a grid of 25 m, some trees, ground between."""
    x, y = rng.uniform(0, side, count), rng.uniform(low, high, count)
    ground = 20 + 3 * np.sin(x / 90) + 2 * np.cos(y / 70)
    house = (np.mod(x, 25) < 12) & (np.mod(y, 25) < 12)
    storeys = 4 + 3 * np.mod(np.floor(x / 25) * 7 + np.floor(y / 25) * 13, 4)
    tree = ~house & (np.mod(x + 9, 25) ** 2 + np.mod(y + 4, 25) ** 2 < 9)
    z = ground + np.where(house, storeys, 0) + np.where(tree, rng.uniform(1, 6, count), 0) + rng.normal(0, 0.03, count)
    record = laspy.ScaleAwarePointRecord.zeros(count, header=header)
    record.x, record.y, record.z = x + 500_000, y + 5_700_000, z
    texture = rng.integers(-12, 12, count)
    red = np.where(house, 150 + 20 * np.mod(storeys, 3), np.where(tree, 60, 110)) + texture
    green = np.where(house, 70, np.where(tree, 95, 112)) + texture
    blue = np.where(house, 60, np.where(tree, 50, 105)) + texture
    record.red, record.green, record.blue = (np.clip(v, 1, 255).astype(np.uint16) * 257 for v in (red, green, blue))
    record.classification = np.where(house, 6, np.where(tree, 5, 2)) if classified else np.zeros(count, np.uint8)
    return record


def print_import(report: dict[str, Any]) -> None:
    """For people."""
    print(
        f"{'case':14} {'points':>12} {'seconds':>9} {'peak MB':>9} {'points/s':>10} {'source MB':>10} {'scene MB':>9}"
    )
    for name, case in report.items():
        if name.startswith("import_"):
            print(
                f"{name:14} {case['points']:12d} {case['seconds']:9.1f} {case['peak_mb']:9.0f} "
                f"{case['points_per_s']:10d} {case['source_mb']:10.1f} {case['scene_mb']:9.1f}"
            )
    print(json.dumps(report["machine"]), file=sys.stderr)
