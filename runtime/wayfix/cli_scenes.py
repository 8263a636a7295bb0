"""`wayfix scene ...` and `wayfix synth ...`: making, describing, drawing and checking scenes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wayfix.cli_export import add_synth_checkpoint
from wayfix.errors import InvalidOption
from wayfix.exit_codes import EXIT_BAD_INPUT, EXIT_FOUND

if TYPE_CHECKING:
    from wayfix.scene.scene import Scene


def add_scene(commands: Any) -> None:
    """The commands `wayfix scene import|map|info|check`."""
    scene = commands.add_parser("scene", help="make, describe and check scenes")
    scene.set_defaults(help_of=scene)
    actions = scene.add_subparsers(title="actions", metavar="ACTION")
    imported = actions.add_parser(
        "import",
        help="make a scene from photos, point clouds, heights, OpenStreetMap and landmarks",
        description="Make a scene folder. Any projected CRS and unit comes in; the scene is in metres. A photo or a "
        "cloud is needed. An import that was stopped goes on when the same command is given again. Examples: "
        "wayfix scene import autzen --photo autzen.jpg --crs autzen.prj --landmarks landmarks.geojson; "
        "wayfix scene import town --cloud north.laz --cloud south.laz --osm town.osm.pbf",
    )
    imported.add_argument("scene", type=Path, help="folder to make")
    imported.add_argument("--photo", type=Path, help="orthophoto: GeoTIFF, or image with world file")
    imported.add_argument(
        "--cloud", type=Path, action="append", default=[], help="points: LAS, LAZ, COPC or PLY; repeatable"
    )
    imported.add_argument("--dsm", type=Path, action="append", default=[], help="surface heights, raster; repeatable")
    imported.add_argument("--dtm", type=Path, action="append", default=[], help="ground heights, raster; repeatable")
    imported.add_argument("--landmarks", type=Path, help="GeoJSON or GeoPackage with name, type, aliases")
    imported.add_argument("--osm", type=Path, help="OpenStreetMap: .osm.pbf, .osm, .osm.gz or Overpass .json")
    imported.add_argument("--crs", help="CRS of sources that do not say theirs: EPSG:<code>, WKT, or a .prj/.wkt file")
    imported.add_argument("--bbox", metavar="X0,Y0,X1,Y1", help="take only this, in the scene's CRS")
    imported.add_argument("--area", type=Path, metavar="FILE", help="take only what lies in this polygon (GeoJSON)")
    imported.add_argument(
        "--color", default="auto", choices=["auto", "rgb8", "rgb16", "intensity", "none"], help="a cloud's colours"
    )
    imported.add_argument(
        "--vertical-datum", metavar="NAME", help="what heights refer to: ellipsoid, local, EPSG:<code> or a name"
    )
    imported.add_argument("--height-unit", metavar="UNIT", help="unit of the heights: m, ft or us-ft")
    imported.add_argument("--id", help="name of the scene in results (default: the folder's)")
    imported.add_argument("--survey-date", metavar="DATE", help="when the photo was taken, such as 2026-05-31")
    imported.add_argument("--attribution", action="append", default=[], help="credit the sources ask for; repeatable")
    imported.add_argument("--replace", action="store_true", help="swap an existing scene for the new one")
    imported.add_argument("--dry-run", action="store_true", help="say what would be made, its size and time")
    imported.add_argument("--quiet", action="store_true", help="no progress bars")
    imported.add_argument("--json", action="store_true", help="print the manifest as JSON")
    imported.set_defaults(run=_scene_import)
    mapped = actions.add_parser("map", help="one HTML page to look at a scene: photo, heights, names, footways")
    mapped.add_argument("scene", type=Path, help="scene folder")
    mapped.add_argument("--out", type=Path, default=Path("map.html"), metavar="HTML", help="file (%(default)s)")
    mapped.add_argument("--pixels", type=int, default=3000, metavar="N", help="long side of the photo (%(default)s)")
    mapped.set_defaults(run=_scene_map)
    info = actions.add_parser("info", help="what a scene is, where it lies, and what it holds")
    check = actions.add_parser("check", help="compare every file of a scene with its checksum")
    for action, run in ((info, _scene_info), (check, _scene_check)):
        action.add_argument("scene", type=Path, help="scene folder")
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(run=run)


def add_synth(commands: Any) -> None:
    """The commands `wayfix synth make|stats`."""
    synth = commands.add_parser("synth", help="make procedural cities with ground truth")
    synth.set_defaults(help_of=synth)
    actions = synth.add_subparsers(title="actions", metavar="ACTION")
    add_synth_checkpoint(actions)
    make = actions.add_parser("make", help="make one city and its queries", description="A city is its seed's, always.")
    make.add_argument("scene", type=Path, help="folder to make")
    make.add_argument("--seed", type=int, default=0, help="which city (default: %(default)s)")
    make.add_argument("--size", type=float, default=300.0, metavar="M", help="edge in metres (default: %(default)s)")
    make.add_argument("--split", default="train", choices=["train", "val", "test"], help="whose names (train)")
    make.add_argument("--queries", type=int, default=60, metavar="N", help="expressions (default: %(default)s)")
    make.add_argument("--replace", action="store_true", help="swap an existing scene for the new one")
    make.add_argument("--json", action="store_true", help="print the statistics as JSON")
    make.set_defaults(run=_synth_make)
    stats = actions.add_parser("stats", help="how hard the expressions of many cities are")
    stats.add_argument("--seed", type=int, default=0, help="first city (default: %(default)s)")
    stats.add_argument("--scenes", type=int, default=20, metavar="N", help="cities (default: %(default)s)")
    stats.add_argument("--split", default="train", choices=["train", "val", "test"], help="whose names (train)")
    stats.add_argument("--queries", type=int, default=60, metavar="N", help="expressions a city (default: %(default)s)")
    stats.add_argument("--json", action="store_true", help="print JSON")
    stats.set_defaults(run=_synth_stats)


def parse_bbox(text: str | None) -> tuple[float, float, float, float] | None:
    """Four numbers separated by commas."""
    if text is None:
        return None
    try:
        x0, y0, x1, y1 = (float(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidOption(f"--bbox is min_x,min_y,max_x,max_y in the scene's CRS, got {text!r}") from error
    return x0, y0, x1, y1


def _scene_import(options: argparse.Namespace) -> int:
    from wayfix.scene.importer import ImportOptions, import_scene
    from wayfix.scene.plan import plan_import, print_plan

    wanted = ImportOptions(
        photo=options.photo,
        clouds=tuple(options.cloud),
        dsm=tuple(options.dsm),
        dtm=tuple(options.dtm),
        landmarks=options.landmarks,
        osm=options.osm,
        crs=options.crs,
        vertical_datum=options.vertical_datum,
        height_unit=options.height_unit,
        color=options.color,
        bbox=parse_bbox(options.bbox),
        area=options.area,
        scene_id=options.id,
        survey_date=options.survey_date,
        attribution=tuple(options.attribution),
        replace=options.replace,
        quiet=options.quiet or options.json,
    )
    if options.dry_run:
        plan = plan_import(wanted)
        print(json.dumps(plan.as_dict())) if options.json else print_plan(plan)
        return EXIT_FOUND
    manifest, remarks = import_scene(options.scene, wanted)
    if options.json:
        print(manifest.model_dump_json(indent=2))
    else:
        _print_info(options.scene)
    for remark in remarks:
        print(f"note: {remark}", file=sys.stderr)
    return EXIT_FOUND


def _scene_info(options: argparse.Namespace) -> int:
    from wayfix.scene.manifest import read_manifest

    if options.json:
        print(read_manifest(options.scene).model_dump_json(indent=2))
    else:
        _print_info(options.scene)
    return EXIT_FOUND


def _print_info(folder: Path) -> None:
    from wayfix.scene.scene import Scene

    with Scene(folder) as scene:
        m, size = scene.manifest, scene.extent
        crs = m.crs if m.crs.startswith("EPSG") else scene.frame.crs.name
        accuracy = "unknown accuracy" if m.wgs84_accuracy_m is None else f"to WGS84 within {m.wgs84_accuracy_m:g} m"
        print(f"{m.id}, revision {m.revision}, imported {m.created}, surveyed {m.survey_date or 'at an unknown date'}")
        print(f"  crs         {crs} ({scene.frame.crs.name}), {accuracy}")
        print(f"  heights     {m.vertical_datum} datum" + ("" if scene.dsm else "; no heights"))
        print(f"  place       {m.origin.lat:.6f}, {m.origin.lon:.6f} (lat, lon)")
        print(f"  extent      {size.width:.1f} x {size.height:.1f} m at {m.gsd_m:g} m per pixel")
        print(f"  true north  grid north lies {m.convergence_deg:+.3f} degrees of it (clockwise positive)")
        for name, layer in m.layers.items():
            print(f"  {name:<11} {sum(f.bytes for f in layer.files) / 1e6:.1f} MB{_content(scene, name)}")


def _content(scene: Scene, layer: str) -> str:
    if layer == "landmarks":
        return f", {len(scene.landmarks)} named places"
    if layer == "network" and scene.network is not None:
        return f", {len(scene.network.ways)} footways and streets, {len(scene.places)} places (same file)"
    if layer == "points" and scene.points is not None:
        return f", {scene.points.count} points"
    return ""


def _scene_map(options: argparse.Namespace) -> int:
    from wayfix.scene.scene import Scene
    from wayfix.scene_map.page import write_map

    if not options.out.absolute().parent.is_dir():
        raise InvalidOption(f"cannot write {options.out}: its folder does not exist")
    if not 100 <= options.pixels <= 10_000:
        raise InvalidOption(f"--pixels is 100 to 10000, got {options.pixels}")
    with Scene(options.scene) as scene:
        write_map(scene, options.out, options.pixels)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB; open it in a browser")
    return EXIT_FOUND


def _scene_check(options: argparse.Namespace) -> int:
    from wayfix.scene.scene import Scene

    with Scene(options.scene) as scene:
        problems = scene.problems()
    if options.json:
        print(json.dumps({"scene": str(options.scene), "problems": problems}))
    elif problems:
        print(f"{options.scene} is damaged; import it again:", *problems, sep="\n  ")
    else:
        print(f"{options.scene} is whole: all files match their checksums")
    return EXIT_BAD_INPUT if problems else EXIT_FOUND


def _synth_make(options: argparse.Namespace) -> int:
    from wayfix.synth.city import CityConfig, build_city
    from wayfix.synth.expressions import make_expressions
    from wayfix.synth.statistics import hardness, print_hardness
    from wayfix.synth.write import QUERIES_FILE, write_city

    city = build_city(CityConfig(seed=options.seed, size_m=options.size, split=options.split))
    expressions = make_expressions(city, options.queries, options.seed)
    write_city(options.scene, city, expressions, replace=options.replace, quiet=options.json)
    if options.json:
        print(json.dumps(hardness(expressions, city)))
    else:
        print(f"{options.scene}: {len(city.objects)} objects, queries in {options.scene / QUERIES_FILE}")
        print_hardness(expressions, city)
    return EXIT_FOUND


def _synth_stats(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from wayfix.synth.city import CityConfig, build_city
    from wayfix.synth.expressions import make_expressions
    from wayfix.synth.statistics import hardness, print_hardness

    expressions, cities = [], []
    for seed in tqdm(range(options.seed, options.seed + options.scenes), desc="cities", disable=options.json or None):
        city = build_city(CityConfig(seed=seed, split=options.split))
        expressions += make_expressions(city, options.queries, seed)
        cities.append(city)
    if options.json:
        print(json.dumps(hardness(expressions, *cities)))
    else:
        print_hardness(expressions, *cities)
    return EXIT_FOUND
