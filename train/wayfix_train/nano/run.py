"""`wayfix train sft`: cities in the background, phases one after another, a checkpoint at the end."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wayfix.errors import InvalidOption
from wayfix_train.data.shards import ShardConfig, stream_shards
from wayfix_train.nano.model import save_model
from wayfix_train.nano.sft import PhaseConfig, Say, ShardPool, Trainer, append_json, save_weights
from wayfix_train.nano.tokenizer import make_nano_tokenizer

CONFIGS = Path(__file__).parents[1] / "configs"
_POLL_S = 2.0
_FIRST_CITY_S = 600.0

CARD = """---
license: apache-2.0
---
A search policy of Qwen3-VL's architecture, trained by Wayfix on procedural cities. Steps by phase: {phases}.
"""


class SftConfig(BaseModel):
    """A whole warm start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = 0
    cities: int = Field(default=200, gt=0)
    """Training cities, of seeds 1, 2, ..."""
    first_cities: int = Field(default=8, gt=0)
    """Training begins when so many are made; the rest are made meanwhile."""
    workers: int = Field(default=1, gt=0)
    threads: int = Field(default=1, gt=0)
    device: str = Field(default="cpu", pattern="^(cpu|cuda)$")
    shard: ShardConfig = ShardConfig()
    phases: dict[str, PhaseConfig]
    """In order, by name."""


def load_config(name_or_path: str) -> SftConfig:
    """A configuration that comes with Wayfix, by name, or a JSON file. Raises InvalidOption."""
    path = CONFIGS / f"{name_or_path}-sft.json"
    if not path.exists():
        path = Path(name_or_path)
    known = ", ".join(sorted(p.name.removesuffix("-sft.json") for p in CONFIGS.glob("*-sft.json")))
    try:
        return SftConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidOption(f"no configuration {name_or_path!r}: give a JSON file, or one of {known}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InvalidOption(f"{path.name}: {where}: {first['msg']}; see `wayfix train sft --print-config`") from error


def run_sft(config: SftConfig, out: Path, data: Path, say: Say | None = None, *, start: Path | None = None) -> Path:
    """Train, or go on training, in `out`; the folder of the finished checkpoint. Cities are kept in `data`.

    `start` is a file of `save_weights` to begin with in place of random weights.
    """
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(config.threads)
    if world > 1 and not dist.is_initialized():
        # Processes that wait for the first cities do nothing else.
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    out.mkdir(parents=True, exist_ok=True)
    maker = None
    if rank == 0:
        maker = multiprocessing.get_context("spawn").Process(
            target=_make_cities, args=(config, data), name="cities", daemon=False
        )
        maker.start()
    try:
        _wait_for_cities(config, data, maker)
        for number, (name, phase) in enumerate(config.phases.items()):
            folder = out / f"{number}-{name}"
            folder.mkdir(parents=True, exist_ok=True)
            trainer = Trainer(phase, ShardPool(data, config.shard.split), folder, config.seed, start, config.device)
            log = append_json(folder / "log.jsonl")

            def report(line: dict[str, Any], name: str = name, log: Say = log) -> None:
                log(line)
                if say is not None:
                    say({"phase": name, **line})

            trainer.run(report)
            start = folder / "weights.safetensors"
            if rank == 0 and not start.exists():
                save_weights(start, trainer.state.model, trainer.state.heads)
            if world > 1:
                dist.barrier()
        checkpoint = out / "checkpoint"
        if rank == 0:
            phases = ", ".join(f"{name} {phase.steps}" for name, phase in config.phases.items())
            save_model(trainer.state.model, make_nano_tokenizer(), checkpoint, CARD.format(phases=phases))
        return checkpoint
    finally:
        if maker is not None:
            maker.terminate()
            maker.join()


def _make_cities(config: SftConfig, data: Path) -> None:
    for _ in stream_shards(range(1, config.cities + 1), data, config.shard, config.workers):
        pass


def _wait_for_cities(config: SftConfig, data: Path, maker: Any) -> None:
    wanted = min(config.first_cities, config.cities)
    deadline = time.monotonic() + _FIRST_CITY_S * wanted
    while len(list(data.glob(f"{config.shard.split}-*.shard"))) < wanted:
        if maker is not None and maker.exitcode not in (None, 0):
            raise InvalidOption(f"the cities could not be made in {data}; is there room on the disk?")
        if time.monotonic() > deadline:
            raise InvalidOption(f"no cities appeared in {data}")
        time.sleep(_POLL_S)


def print_config(name: str) -> str:
    """A configuration as JSON, every field shown."""
    return json.dumps(load_config(name).model_dump(), indent=2)
