"""`wayfix train ...`: the search policy's warm start, and its training by reward."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wayfix.errors import InvalidOption
from wayfix.exit_codes import EXIT_FOUND


def add_train(commands: Any) -> None:
    """The command `wayfix train`."""
    train = commands.add_parser("train", help="train a search policy (needs wayfix[train])")
    train.set_defaults(help_of=train)
    kinds = train.add_subparsers(title="kinds", metavar="KIND")
    sft = kinds.add_parser(
        "sft",
        help="the nano model's warm start from demonstrations",
        description="Makes cities, plays searches in them that know the truth, and teaches a small Qwen3-VL to do the "
        "same. Stopped at any time, it goes on where it was when run again with the same --out. With several "
        "processes: torchrun --nproc_per_node 2 -m wayfix.cli train sft ...",
        epilog="docs/training.md tells what each phase is for and what it takes",
    )
    sft.add_argument("--config", default="nano", metavar="NAME", help="a name or a JSON file (default: %(default)s)")
    sft.add_argument("--out", type=Path, default=Path("train-sft"), metavar="DIR", help="(default: %(default)s)")
    sft.add_argument("--data", type=Path, metavar="DIR", help="where cities are kept (default: OUT/data)")
    sft.add_argument("--start", type=Path, metavar="FILE", help="weights.safetensors of a phase, to begin with")
    sft.add_argument("--print-config", action="store_true", help="print the whole configuration and end")
    sft.add_argument("--json", action="store_true", help="print one JSON line a report")
    sft.set_defaults(run=_sft)
    grpo = kinds.add_parser(
        "grpo",
        help="train a checkpoint by the reward of its own searches",
        description="Plays groups of searches in cities and strengthens those that did better than their group (GRPO, "
        "on TRL). Stopped at any time, it goes on from its last save when run again with the same --out.",
        epilog="docs/training.md tells what is logged and how rewards are made up",
    )
    grpo.add_argument("checkpoint", type=Path, nargs="?", help="folder of a Hugging Face checkpoint to start from")
    grpo.add_argument("--config", default="nano", metavar="NAME", help="a name or a JSON file (default: %(default)s)")
    grpo.add_argument("--out", type=Path, default=Path("train-grpo"), metavar="DIR", help="(default: %(default)s)")
    grpo.add_argument("--data", type=Path, metavar="DIR", help="where cities are kept (default: OUT/data)")
    grpo.add_argument("--plot", action="store_true", help="draw the curves of the run in --out, and end")
    grpo.add_argument("--print-config", action="store_true", help="print the whole configuration and end")
    grpo.add_argument("--json", action="store_true", help="print one JSON line a report")
    grpo.set_defaults(run=_grpo)


def _grpo(options: argparse.Namespace) -> int:
    from wayfix_train.grpo_config import load_grpo_config

    config = load_grpo_config(options.config)
    if options.print_config:
        print(config.model_dump_json(indent=2))
        return EXIT_FOUND
    if options.plot:
        from wayfix_train.curves import draw_curves

        print(f"curves: {draw_curves(options.out)}")
        return EXIT_FOUND
    if options.checkpoint is None:
        raise InvalidOption("which checkpoint? wayfix train grpo CHECKPOINT --out DIR")
    from wayfix_train.data.tasks import make_tasks
    from wayfix_train.grpo import run_grpo

    data = options.data or options.out / "data"
    tasks = make_tasks(data, range(config.first_seed, config.first_seed + config.cities), "train", config.queries)
    held_out = make_tasks(data, range(1, 3), "val", config.validate_queries // 2)
    trained = run_grpo(config, options.checkpoint, tasks, held_out, options.out, _reporter(options.json))
    print(json.dumps({"checkpoint": str(trained)}) if options.json else f"checkpoint: {trained}")
    return EXIT_FOUND


def _reporter(as_json: bool) -> Callable[[dict[str, Any]], None]:
    def say(report: dict[str, Any]) -> None:
        if as_json:
            print(json.dumps(report), flush=True)
        else:
            print("  ".join(f"{name} {value}" for name, value in report.items()), file=sys.stderr, flush=True)

    return say


def _sft(options: argparse.Namespace) -> int:
    from wayfix_train.nano.run import load_config, print_config, run_sft

    if options.print_config:
        print(print_config(options.config))
        return EXIT_FOUND
    config = load_config(options.config)

    checkpoint = run_sft(
        config, options.out, options.data or options.out / "data", _reporter(options.json), start=options.start
    )
    print(json.dumps({"checkpoint": str(checkpoint)}) if options.json else f"checkpoint: {checkpoint}")
    return EXIT_FOUND
