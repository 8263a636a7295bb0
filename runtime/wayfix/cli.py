"""`wayfix ...`: every command and its help."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wayfix
from wayfix.errors import InvalidBudget, InvalidOption, WayfixError

if TYPE_CHECKING:
    from wayfix.agent.result import GroundResult
    from wayfix.policy.interface import Policy
    from wayfix.scene.scene import Scene

EXIT_FOUND, EXIT_NO_ANSWER, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130

_EPILOG = """exit status: 0 found; 1 no final answer (not found, or the budget ended); 2 bad input or a broken scene"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not hasattr(options, "run"):
        options.help_of.print_help()
        return EXIT_BAD_INPUT
    try:
        return options.run(options)
    except WayfixError as error:
        if getattr(options, "json", False):
            print(json.dumps({"error": {"code": error.code, "message": str(error)}}, ensure_ascii=False))
        else:
            print(f"wayfix: {error} [{error.code}]", file=sys.stderr)
        return EXIT_BAD_INPUT
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("wayfix"):
            raise
        print(
            f"wayfix: this command needs {error.name}, which the base install leaves out; "
            "run: pip install 'wayfix[runtime]'",
            file=sys.stderr,
        )
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("\nwayfix: stopped; nothing half-made was kept", file=sys.stderr)
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wayfix",
        description="Find what a sentence means in a real place: a georegistered box, within a latency budget.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"wayfix {wayfix.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(help_of=parser)
    _add_ground(commands)
    _add_scene(commands)
    _add_synth(commands)
    _add_demo(commands)
    _add_bench(commands)
    return parser


def _add_ground(commands: Any) -> None:
    ground = commands.add_parser(
        "ground",
        help="find the object a sentence names in a scene",
        description='Example: wayfix ground --scene demo/scene "the red car left of the police station" --show out.png',
        epilog=_EPILOG,
    )
    ground.add_argument("query", help="the sentence, up to 1000 characters")
    ground.add_argument("--scene", type=Path, required=True, metavar="DIR", help="scene folder")
    ground.add_argument("--policy", default="baseline", choices=["baseline"], help="who searches (%(default)s)")
    ground.add_argument("--budget", metavar="TIME", help="time allowed, such as 3s or 500ms (default: no limit)")
    ground.add_argument("--json", action="store_true", help="print one GeoJSON Feature instead of text")
    ground.add_argument("--show", type=Path, metavar="PNG", help="draw every view and the answer into a picture")
    ground.add_argument("--trace", type=Path, metavar="JSON", help="write every turn, to replay or study it")
    ground.set_defaults(run=_ground)


def _add_scene(commands: Any) -> None:
    scene = commands.add_parser("scene", help="make, describe and check scenes")
    scene.set_defaults(help_of=scene)
    actions = scene.add_subparsers(title="actions", metavar="ACTION")
    imported = actions.add_parser(
        "import",
        help="make a scene from a photo, heights and landmarks",
        description="Make a scene folder. Any projected CRS and unit comes in; the scene is in metres. Example: "
        "wayfix scene import autzen --photo autzen.jpg --crs autzen.prj --landmarks landmarks.geojson",
    )
    imported.add_argument("scene", type=Path, help="folder to make")
    imported.add_argument("--photo", type=Path, required=True, help="orthophoto: GeoTIFF, or image with world file")
    imported.add_argument("--dsm", type=Path, help="surface heights, a raster")
    imported.add_argument("--dtm", type=Path, help="ground heights, a raster")
    imported.add_argument("--landmarks", type=Path, help="GeoJSON or GeoPackage with name, type, aliases")
    imported.add_argument("--crs", help="CRS of rasters that do not say theirs: EPSG:<code>, WKT, or a .prj/.wkt file")
    imported.add_argument(
        "--vertical-datum", metavar="NAME", help="what heights refer to: ellipsoid, local, EPSG:<code> or a name"
    )
    imported.add_argument("--height-unit", metavar="UNIT", help="unit of the heights: m, ft or us-ft")
    imported.add_argument("--id", help="name of the scene in results (default: the folder's)")
    imported.add_argument("--survey-date", metavar="DATE", help="when the photo was taken, such as 2026-05-31")
    imported.add_argument("--attribution", action="append", default=[], help="credit the sources ask for; repeatable")
    imported.add_argument("--replace", action="store_true", help="swap an existing scene for the new one")
    imported.add_argument("--quiet", action="store_true", help="no progress bars")
    imported.add_argument("--json", action="store_true", help="print the manifest as JSON")
    imported.set_defaults(run=_scene_import)
    info = actions.add_parser("info", help="what a scene is, where it lies, and what it holds")
    check = actions.add_parser("check", help="compare every file of a scene with its checksum")
    for action, run in ((info, _scene_info), (check, _scene_check)):
        action.add_argument("scene", type=Path, help="scene folder")
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(run=run)


def _add_synth(commands: Any) -> None:
    synth = commands.add_parser("synth", help="make procedural cities with ground truth")
    synth.set_defaults(help_of=synth)
    actions = synth.add_subparsers(title="actions", metavar="ACTION")
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


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="build a small city and answer three queries in it")
    demo.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="folder (default: %(default)s)")
    demo.set_defaults(run=_demo)


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser("bench", help="measure latency on this machine")
    bench.set_defaults(help_of=bench)
    names = bench.add_subparsers(title="benchmarks", metavar="NAME")
    tools = names.add_parser("tools", help="the three tools: zoom, landmark, oblique, warm and cold")
    tools.add_argument("--repeats", type=int, default=200, metavar="N", help="calls per case (default: %(default)s)")
    tools.add_argument("--data", type=Path, metavar="DIR", help="keep the generated test scene here between runs")
    tools.add_argument("--json", action="store_true", help="print JSON instead of a table")
    tools.add_argument("--html", type=Path, metavar="FILE", help="also draw the result")
    tools.set_defaults(run=_bench_tools)


def parse_budget(text: str | None) -> float | None:
    """Seconds from '3s', '500ms', '2 min' or a plain number of seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(-?[\d.]+)\s*(ms|s|min|)\s*", text)
    try:
        value = float(match[1]) if match else None
    except ValueError:
        value = None
    if match is None or value is None:
        raise InvalidBudget(f"a budget is a time such as 3s or 500ms, got {text!r}")
    return value * {"ms": 0.001, "s": 1.0, "min": 60.0, "": 1.0}[match[2]]


def _policy(name: str) -> Policy:
    from wayfix.policy.baseline import BaselinePolicy

    if name == "baseline":
        return BaselinePolicy()
    raise InvalidOption(f"there is no policy {name!r}; there is: baseline")


def _ground(options: argparse.Namespace) -> int:
    from wayfix.agent.loop import Grounder
    from wayfix.scene.scene import Scene

    budget = parse_budget(options.budget)
    if options.show:
        check_picture_path(options.show)
    with Scene(options.scene) as scene:
        result, episode, trace = Grounder(scene, _policy(options.policy)).ground(options.query, budget)
        if options.show:
            from wayfix.agent.draw import draw_episode

            save_picture(options.show, draw_episode(result, episode, trace))
        if options.trace:
            trace.save(options.trace)
        if options.json:
            print(json.dumps(result.feature(scene), ensure_ascii=False))
        else:
            print(describe(result, scene))
            if options.show:
                print(f"  picture     {options.show}")
    return EXIT_FOUND if result.code == "ok" else EXIT_NO_ANSWER


def describe(result: GroundResult, scene: Scene) -> str:
    """An answer as a person wants it."""
    lines = [result.query]
    if result.box is None:
        lines.append(f"  {result.code}: {result.message}")
    else:
        box, pose = result.box, scene.frame.enu_pose(result.box)
        lon, lat = scene.frame.lonlat(*box.center)
        height = f", ground at {box.min_z:.1f} m" if box.min_z is not None else ", height unknown"
        size = f"{pose.size_x:.1f} x {pose.size_y:.1f}"
        size += f" x {pose.size_z:.1f} m (east, north, up)" if pose.size_z is not None else " m (east, north)"
        if result.partial:
            lines.append(f"  partial     {result.code}: {result.message}; this is the best region so far")
        lines += [
            f"  name        {scene.name_at(box) or '(not a named place)'}",
            f"  position    east {pose.x:.1f} m, north {pose.y:.1f} m in wayfix/{scene.id}{height}",
            f"  WGS84       {lat:.7f}, {lon:.7f} (lat, lon), +-{result.uncertainty_m:.1f} m"
            if result.uncertainty_m is not None
            else f"  WGS84       {lat:.7f}, {lon:.7f} (lat, lon)",
            f"  size        {size}",
        ]
    confidence = "-" if result.confidence is None else f"{result.confidence:.2f}"
    lines.append(f"  confidence  {confidence} by {result.policy}")
    lines.append(f"  time        {result.time_ms:.0f} ms, {result.turns} turns")
    return "\n".join(lines)


def check_picture_path(path: Path) -> None:
    """Refuse a picture's path before work is spent on it. Raises InvalidOption."""
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise InvalidOption(f"a picture is a .png or .jpg file, got {path}")
    if not path.absolute().parent.is_dir():
        raise InvalidOption(f"cannot write {path}: its folder does not exist")


def save_picture(path: Path, image: Any) -> None:
    """Write an RGB picture. Raises InvalidOption where it cannot be written."""
    import cv2

    check_picture_path(path)
    if not cv2.imwrite(str(path), cv2.cvtColor(image, cv2.COLOR_RGB2BGR)):
        raise InvalidOption(f"cannot write {path}; may it be written, and is there space?")


def _scene_import(options: argparse.Namespace) -> int:
    from wayfix.scene.importer import ImportOptions, import_scene

    manifest, remarks = import_scene(
        options.scene,
        ImportOptions(
            photo=options.photo,
            dsm=options.dsm,
            dtm=options.dtm,
            landmarks=options.landmarks,
            crs=options.crs,
            vertical_datum=options.vertical_datum,
            height_unit=options.height_unit,
            scene_id=options.id,
            survey_date=options.survey_date,
            attribution=tuple(options.attribution),
            replace=options.replace,
            quiet=options.quiet or options.json,
        ),
    )
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
    if layer == "points" and scene.points is not None:
        return f", {scene.points.count} points"
    return ""


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


def _demo(options: argparse.Namespace) -> int:
    from wayfix.demo import run_demo

    return run_demo(options.out)


def _bench_tools(options: argparse.Namespace) -> int:
    from wayfix.bench.report import print_table, write_html
    from wayfix.bench.tools import bench_tools

    report = bench_tools(options.repeats, options.data, quiet=options.json)
    if options.html:
        write_html(report, options.html)
    if options.json:
        print(json.dumps(report))
    else:
        print_table(report)
    return EXIT_FOUND


if __name__ == "__main__":
    sys.exit(main())
