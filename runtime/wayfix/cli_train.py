"""`wayfix train ...`: the search policy's warm start."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

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
    sft.add_argument("--print-config", action="store_true", help="print the whole configuration and end")
    sft.add_argument("--json", action="store_true", help="print one JSON line a report")
    sft.set_defaults(run=_sft)


def _sft(options: argparse.Namespace) -> int:
    from wayfix_train.nano.run import load_config, print_config, run_sft

    if options.print_config:
        print(print_config(options.config))
        return EXIT_FOUND
    config = load_config(options.config)

    def say(report: dict[str, Any]) -> None:
        if options.json:
            print(json.dumps(report), flush=True)
        else:
            print("  ".join(f"{name} {value}" for name, value in report.items()), file=sys.stderr, flush=True)

    checkpoint = run_sft(config, options.out, options.data or options.out / "data", say)
    print(json.dumps({"checkpoint": str(checkpoint)}) if options.json else f"checkpoint: {checkpoint}")
    return EXIT_FOUND
