"""`wayfix ...`: every command and its help."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wayfix
from wayfix.cli_eval import add_eval, add_trace
from wayfix.cli_export import add_bench_engine, add_engine, add_export
from wayfix.cli_policy import add_policy_options, open_policy
from wayfix.cli_scenes import add_scene, add_synth
from wayfix.cli_train import add_train
from wayfix.errors import InvalidBudget, InvalidOption, WayfixError
from wayfix.exit_codes import EXIT_BAD_INPUT, EXIT_FOUND, EXIT_INTERRUPTED, EXIT_NO_ANSWER

if TYPE_CHECKING:
    from wayfix.agent.result import GroundResult
    from wayfix.scene.scene import Scene

_TRAIN_MODULES = ("trl", "datasets", "accelerate", "matplotlib")
_EXPORT_MODULES = ("onnx", "ml_dtypes", "safetensors", "torch", "transformers")

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
        extra = "export" if error.name in _EXPORT_MODULES else "train" if error.name in _TRAIN_MODULES else "runtime"
        print(
            f"wayfix: this command needs {error.name}, which is not installed; run: pip install 'wayfix[{extra}]'",
            file=sys.stderr,
        )
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        # The reader (head, say) has seen enough; what is still buffered must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FOUND
    except KeyboardInterrupt:
        message = (
            "stopped; no half-made scene was left; an import, and an evaluation with --json, goes on when run again"
        )
        print(f"\nwayfix: {message}", file=sys.stderr)
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
    add_scene(commands)
    add_synth(commands)
    _add_demo(commands)
    add_eval(commands)
    add_trace(commands)
    add_train(commands)
    add_export(commands)
    add_engine(commands)
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
    ground.add_argument("--budget", metavar="TIME", help="time allowed, such as 3s or 500ms (default: no limit)")
    ground.add_argument("--json", action="store_true", help="print one GeoJSON Feature instead of text")
    ground.add_argument("--show", type=Path, metavar="PNG", help="draw every view and the answer into a picture")
    ground.add_argument("--trace", type=Path, metavar="JSON", help="write every turn, to replay or study it")
    add_policy_options(ground, ("baseline", "engine", "remote"))
    ground.set_defaults(run=_ground)


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
    imports = names.add_parser("import", help="import of generated clouds: seconds and peak memory by size")
    imports.add_argument("--points", default="10", metavar="M", help="sizes in millions, such as 10,30,100 (10)")
    imports.add_argument("--classified", action="store_true", help="the clouds tell their ground points")
    imports.add_argument("--data", type=Path, metavar="DIR", help="keep the generated clouds here between runs")
    imports.add_argument("--json", action="store_true", help="print JSON instead of a table")
    imports.set_defaults(run=_bench_import)
    add_bench_engine(names)


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


def _ground(options: argparse.Namespace) -> int:
    from wayfix.agent.loop import Grounder
    from wayfix.scene.scene import Scene

    budget = parse_budget(options.budget)
    if options.show:
        check_picture_path(options.show)
    with open_policy(options) as (policy, _), Scene(options.scene) as scene:
        result, episode, trace = Grounder(scene, policy).ground(options.query, budget)
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


def _bench_import(options: argparse.Namespace) -> int:
    from wayfix.bench.cloud import bench_import, print_import

    try:
        sizes = tuple(round(float(part) * 1_000_000) for part in options.points.split(","))
    except ValueError as error:
        raise InvalidOption(f"--points is millions separated by commas, got {options.points!r}") from error
    report = bench_import(sizes, options.classified, options.data, quiet=options.json)
    if options.json:
        print(json.dumps(report))
    else:
        print_import(report)
    return EXIT_FOUND


if __name__ == "__main__":
    sys.exit(main())
