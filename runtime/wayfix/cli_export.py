"""`wayfix export ...` and `wayfix engine ...`: engines made of checkpoints, looked at, and checked with TensorRT."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from wayfix.errors import InvalidOption
from wayfix.exit_codes import EXIT_FOUND

_TARGETS = ("cpu", "cuda", "jetson-orin", "jetson-thor")


def add_export(commands: Any) -> None:
    """The command `wayfix export`."""
    export = commands.add_parser(
        "export",
        help="turn a Qwen3-VL checkpoint into an engine, with a proof that it still says the same",
        description="Writes a folder with graphs, tokenizer, chat template and engine.json, and compares it "
        "with the checkpoint part by part; where they differ too much nothing is written. Needs wayfix[export]. "
        "Example: wayfix export Qwen3-VL-4B-Instruct --out engine --target cpu --precision int8",
        epilog="docs/export.md tells what each precision costs and what each comparison means",
    )
    export.add_argument("checkpoint", type=Path, help="folder of a Hugging Face checkpoint")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    export.add_argument(
        "--target",
        default="cpu",
        choices=_TARGETS,
        help="where it will run (default: %(default)s); all but cpu: TensorRT",
    )
    export.add_argument(
        "--precision",
        metavar="P",
        help="fp32, fp16, int8 or int4 of the decoder, or by part: decoder=int4,vision=fp16 (default: by target)",
    )
    export.add_argument(
        "--image-sizes", metavar="A,B,C", help="long sides the model was trained on: overview,zoom,oblique in pixels"
    )
    export.add_argument(
        "--episodes",
        type=int,
        default=3,
        metavar="N",
        help="recorded searches to calibrate and compare on (%(default)s)",
    )
    export.add_argument(
        "--parity",
        default="auto",
        choices=["auto", "whole", "layers"],
        help="compare with the whole checkpoint in memory, or layer by layer; auto: whole where it fits",
    )
    export.add_argument("--build-check", action="store_true", help="also parse and build the graphs with TensorRT here")
    export.add_argument("--overwrite", action="store_true", help="replace an engine that is there")
    export.add_argument("--json", action="store_true", help="print engine.json instead of a table")
    export.set_defaults(run=_export)


def add_engine(commands: Any) -> None:
    """The commands `wayfix engine info|check|calibrate`."""
    engine = commands.add_parser("engine", help="describe and check engine folders")
    engine.set_defaults(help_of=engine)
    actions = engine.add_subparsers(title="actions", metavar="ACTION")
    info = actions.add_parser(
        "info", help="where an engine came from, its precision, and its parity with its checkpoint"
    )
    check = actions.add_parser("check", help="compare every file of an engine with its checksum")
    add_engine_calibrate(actions)
    for action, run in ((info, _engine_info), (check, _engine_check)):
        action.add_argument("engine", type=Path, help="engine folder")
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(run=run)


def add_engine_calibrate(actions: Any) -> None:
    """The command `wayfix engine calibrate`."""
    fit = actions.add_parser(
        "calibrate",
        help="make confidence the probability of a right answer",
        description="Searches cities of the validation split, fits a curve from how sure the model was of its tokens "
        "to how often it was right, and writes it into engine.json. Half of the cities judge what the other half gave.",
    )
    fit.add_argument("engine", type=Path, help="engine folder")
    fit.add_argument("--n", type=int, default=500, metavar="N", help="queries (default: %(default)s)")
    fit.add_argument("--seed", type=int, default=2001, metavar="N", help="first city (default: %(default)s)")
    fit.add_argument("--data", type=Path, metavar="DIR", help="where the cities are kept between runs")
    fit.add_argument("--json", action="store_true", help="print JSON")
    fit.set_defaults(run=_engine_calibrate)


def add_bench_engine(names: Any) -> None:
    """The command `wayfix bench engine`."""
    bench = names.add_parser(
        "engine",
        help="an engine part by part: images, prefill, decode, turns with and without kept caches",
        description="With --checkpoint, transformers runs the same in the same rounds (needs wayfix[export]).",
    )
    bench.add_argument("engine", type=Path, help="engine folder")
    bench.add_argument("--checkpoint", type=Path, metavar="DIR", help="compare with transformers' generate() on this")
    bench.add_argument("--threads", type=int, metavar="N", help="threads of a graph (default: by the model's size)")
    bench.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of a case in a round (%(default)s)")
    bench.add_argument("--turns", default="1,2,4,8", metavar="A,B", help="turns measured (default: %(default)s)")
    bench.add_argument("--json", action="store_true", help="print JSON instead of a table")
    bench.add_argument("--html", type=Path, metavar="FILE", help="also draw the result")
    bench.set_defaults(run=_bench_engine)


def add_synth_checkpoint(actions: Any) -> None:
    """The command `wayfix synth checkpoint`."""
    made = actions.add_parser(
        "checkpoint",
        help="make a Qwen3-VL checkpoint with random weights, to try and measure export and engine",
        description="Config, tokenizer layout and weights' names are Qwen3-VL's own; what it says means nothing.",
    )
    made.add_argument("out", type=Path, help="folder to make")
    made.add_argument(
        "--size", default="14m", choices=["tiny", "14m", "4b-2layers", "4b"], help="(default: %(default)s)"
    )
    made.add_argument("--seed", type=int, default=0, help="which weights (default: %(default)s)")
    made.add_argument("--half", action="store_true", help="weights in float16 instead of float32")
    made.set_defaults(run=_synth_checkpoint)


def _export(options: argparse.Namespace) -> int:
    from wayfix_export.export import ExportOptions, export_checkpoint, parse_precision

    options_of = ExportOptions(
        target=options.target,
        precision=parse_precision(options.precision, options.target),
        sizes=_image_sizes(options.image_sizes),
        episodes=_positive(options.episodes, "--episodes"),
        parity=options.parity,
        build_check=options.build_check,
        overwrite=options.overwrite,
    )

    def progress(text: str) -> None:
        if not options.json:
            print(f"  {text} ...", file=sys.stderr, flush=True)

    done = export_checkpoint(options.checkpoint, options.out, options_of, progress)
    _show(done.folder, done.manifest, as_json=options.json)
    return EXIT_FOUND


def _engine_info(options: argparse.Namespace) -> int:
    from wayfix.policy.engine.manifest import read_manifest

    _show(options.engine, read_manifest(options.engine, verify=False), as_json=options.json)
    return EXIT_FOUND


def _engine_check(options: argparse.Namespace) -> int:
    from wayfix.policy.engine.manifest import read_manifest

    manifest = read_manifest(options.engine)
    if options.json:
        print(json.dumps({"ok": True, "files": sorted(manifest.files)}))
    else:
        print(f"{options.engine}: {len(manifest.files)} files are as they were written")
    return EXIT_FOUND


def _engine_calibrate(options: argparse.Namespace) -> int:
    from wayfix.evaluation.calibrate import calibrate_engine

    found = calibrate_engine(
        options.engine, _positive(options.n, "--n"), options.seed, data=options.data, quiet=options.json
    )
    if options.json:
        print(json.dumps(found))
        return EXIT_FOUND
    print(
        f"{options.engine}: confidence fitted to {found['answers']} answers, {100 * found['right']:.1f} % of them right"
    )
    before, after = found["error_before"], found["error_after"]
    print(f"  expected calibration error on cities it was not fitted to: {after:.3f}, before {before:.3f}")
    return EXIT_FOUND


def _bench_engine(options: argparse.Namespace) -> int:
    from wayfix.bench.engine import EngineBenchConfig, bench_engine
    from wayfix.bench.report import print_table, write_html
    from wayfix.policy.engine.engine import EngineConfig

    try:
        turns = tuple(_positive(int(part), "--turns") for part in options.turns.split(","))
    except ValueError as error:
        raise InvalidOption(f"--turns is numbers separated by commas, got {options.turns!r}") from error
    config = EngineBenchConfig(repeats=_positive(options.repeats, "--repeats"), turns=turns)
    threads = None if options.threads is None else _positive(options.threads, "--threads")
    report = bench_engine(options.engine, options.checkpoint, EngineConfig(threads=threads), config, quiet=options.json)
    if options.html:
        write_html(report, options.html)
    if options.json:
        print(json.dumps(report))
        return EXIT_FOUND
    print_table(report)
    for name in ("figures", "memory"):
        print("\n".join((f"{name}:", *(f"  {key:<28}{value}" for key, value in report[name].items()))))
    return EXIT_FOUND


def _synth_checkpoint(options: argparse.Namespace) -> int:
    import numpy as np

    from wayfix_export.synthetic import write_checkpoint

    if options.out.exists() and any(options.out.iterdir()):
        raise InvalidOption(f"{options.out} is not empty; choose another folder")
    write_checkpoint(options.out, options.size, options.seed, np.float16 if options.half else np.float32)
    print(f"{options.out}: a random checkpoint of size {options.size}")
    return EXIT_FOUND


def _show(folder: Path, manifest: Any, *, as_json: bool) -> None:
    if as_json:
        print(manifest.model_dump_json())
        return
    total = sum(entry.bytes for entry in manifest.files.values())
    precision = ", ".join(f"{part} {value}" for part, value in manifest.precision.model_dump().items())
    print(f"{folder}: engine for {manifest.target}, {total / 1e6:.1f} MB")
    source = manifest.source
    print(f"  source      {source.name} ({source.sha256[:12]}), licence {source.weights_licence or 'not told'}")
    print(f"  precision   {precision}")
    print(f"  made        {manifest.created} with {', '.join(f'{k} {v}' for k, v in manifest.versions.items())}")
    for name, entry in manifest.parity.items():
        bound = f"at least {entry['at_least']:g}" if "at_least" in entry else f"at most {entry['at_most']:g}"
        print(f"  {name:<22}{entry['value']:>10.3g}   {bound:<14} {entry['what']}")


def _image_sizes(text: str | None) -> Any:
    from wayfix.views.view import ImageSizes

    if text is None:
        return None
    try:
        sizes = [_positive(int(part), "--image-sizes") for part in text.split(",")]
        return ImageSizes(*sizes)
    except (ValueError, TypeError) as error:
        raise InvalidOption(f"--image-sizes is three numbers of pixels such as 1024,768,512, got {text!r}") from error


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise InvalidOption(f"{name} must be at least 1, got {value}")
    return value
