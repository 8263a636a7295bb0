"""The warm start of the nano model: vision first, names first, then whole searches; resumable to the same state."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file

from wayfix.errors import InvalidOption
from wayfix_train.data.shards import Shard, load_shard
from wayfix_train.nano.losses import CellHeads
from wayfix_train.nano.model import new_model
from wayfix_train.nano.scene_step import Plan, SceneStep, Weights
from wayfix_train.nano.tokenizer import make_nano_tokenizer

_TIED, _EMBEDDING = "lm_head.weight", "model.language_model.embed_tokens.weight"

Phase = Literal["vision", "text", "joint"]
Say = Callable[[dict[str, Any]], None]


class PhaseConfig(BaseModel):
    """One stretch of training with its own learning rate schedule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    phase: Phase
    steps: int = Field(gt=0)
    learning_rate: float = Field(default=1e-3, gt=0)
    flat: float = Field(default=0.3, ge=0, le=1)
    """Share of the steps before the rate begins to fall."""
    last: float = Field(default=0.04, gt=0, le=1)
    """The rate at the end, as a share."""
    warmup: int = 60
    zooms: int = 8
    """Zooms a step: in `vision` with their dense loss alone, in `joint` with sentences about each."""
    scene_every: int = Field(default=1, gt=0)
    """In `joint`, the overview and what stands behind it are read every so many steps."""
    overview_every: int = Field(default=3, gt=0)
    """An overview is encoded with its dense loss every so many times; in `joint` it is only read between."""
    aims: int = 12
    decisions: int = 12
    searches: int = 4
    sigma_start: float = 8.0
    sigma_end: float = 3.0
    cells: float = 0.3
    looks: float = 0.5
    vision_rate: float = Field(default=1.0, ge=0, le=1)
    """The vision encoder's share of the learning rate; 0 freezes it."""


class ShardPool:
    """Shards of a folder that may still be filling."""

    def __init__(self, folder: Path, split: str) -> None:
        self._folder, self._split = folder, split
        self._paths: list[Path] = []
        self._listed = 0.0

    def draw(self, rng: np.random.Generator) -> Shard:
        """One of those there now."""
        if time.monotonic() - self._listed > 20:
            self._paths = sorted(self._folder.glob(f"{self._split}-*.shard"))
            self._listed = time.monotonic()
        return load_shard(self._paths[int(rng.integers(len(self._paths)))])


@dataclass
class State:
    """All that training needs to go on."""

    model: Any
    heads: CellHeads
    optimizer: torch.optim.AdamW
    rng: np.random.Generator
    step: int = 0


class Trainer:
    """Runs one phase. Under torchrun, each process takes scenes of its own and gradients are averaged."""

    def __init__(
        self, config: PhaseConfig, pool: ShardPool, folder: Path, seed: int, start: Path | None, device: str = "cpu"
    ) -> None:
        self.config, self.pool, self.folder = config, pool, folder
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        tokenizer = make_nano_tokenizer()
        model = new_model(tokenizer, seed)
        model = model.to(device)
        heads = CellHeads(model.config.text_config.hidden_size).to(device)
        if start is not None:
            load_weights(start, model, heads)
        if config.vision_rate == 0:
            model.model.visual.requires_grad_(False)
        self.state = State(model, heads, _optimizer(model, heads, config), np.random.default_rng([seed, self.rank]))
        self.scene_step = SceneStep(model, heads, tokenizer, self.state.rng)
        latest = folder / f"latest-{self.rank}.pt"
        if latest.exists():
            self._restore(torch.load(latest, weights_only=False, map_location=device))

    def run(self, say: Say, every: int = 20, save_every: int = 100) -> None:
        """Train to the end of the phase."""
        means: dict[str, list[float]] = defaultdict(list)
        started = time.monotonic()
        state = self.state
        while state.step < self.config.steps:
            for group in state.optimizer.param_groups:
                group["lr"] = self.config.learning_rate * self._rate() * group["share"]
            loss, log = self._loss()
            loss.backward()
            self._average_gradients()
            norm = torch.nn.utils.clip_grad_norm_(_trained(state), 1.0)
            if not torch.isfinite(norm):
                raise FloatingPointError(f"step {state.step}: the gradient is not finite; lower the learning rate")
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=True)
            state.step += 1
            for name, value in {"loss": float(loss.detach()), **log}.items():
                means[name].append(value)
            if state.step % every == 0 and self.rank == 0:
                seconds = (time.monotonic() - started) / every
                say(
                    {
                        "step": state.step,
                        "s": round(seconds, 2),
                        **{k: round(float(np.mean(v)), 4) for k, v in means.items()},
                    }
                )
                means.clear()
                started = time.monotonic()
            if state.step % save_every == 0 or state.step == self.config.steps:
                self._save()

    def _loss(self) -> tuple[torch.Tensor, dict[str, float]]:
        config, rng = self.config, self.state.rng
        shard = self.pool.draw(rng)
        sigma = config.sigma_start + (config.sigma_end - config.sigma_start) * self.state.step / config.steps
        if config.phase == "text":
            picked = _some(shard.decisions, config.decisions, rng)
            losses = self.scene_step.text_loss(shard, picked, sigma)
            return losses["call"] + losses["number"], {k: float(v.detach()) for k, v in losses.items()}
        if config.phase == "vision":
            common = [p for p in shard.pictures[1:] if p.labels is not None and p.image.shape == (320, 320, 3)]
            loss, log = self.scene_step.picture_loss(_some(common, config.zooms, rng))
            if self.state.step % config.overview_every == 0:
                more, seen = self.scene_step.picture_loss(shard.pictures[:1])
                loss, log = loss + more, log | {f"v0_{k}": v for k, v in seen.items()}
            return loss, log
        weights = Weights(config.cells, config.looks, sigma)
        loss, log = torch.zeros((), device=self.scene_step.device), {}
        if config.zooms:
            zooms = _some([e for e in shard.searches if e.local], config.zooms, rng)
            loss, log = self.scene_step.crops_loss(shard, zooms, weights)
        if self.state.step % config.scene_every:
            return loss, log
        aims = [e for e in shard.decisions if self.scene_step.rows.is_aim(e)]
        plan = Plan(
            _some(aims, config.aims, rng),
            _some(shard.decisions, config.decisions, rng),
            _some(shard.searches, config.searches, rng),
            self.state.step % (config.scene_every * config.overview_every) == 0 and config.vision_rate > 0,
        )
        more, seen = self.scene_step.scene_loss(shard, plan, weights)
        return loss + more, log | seen

    def _rate(self) -> float:
        done, config = self.state.step / self.config.steps, self.config
        warm = min(1.0, (self.state.step + 1) / config.warmup)
        fall = 1.0 if done < config.flat else max(config.last, (1 - done) / (1 - config.flat))
        return warm * fall

    def _average_gradients(self) -> None:
        if self.world == 1:
            return
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in _trained(self.state)]
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat)
        flat /= self.world
        at = 0
        for parameter in _trained(self.state):
            parameter.grad = flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()

    def _save(self) -> None:
        state = self.state
        saved = {
            "model": state.model.state_dict(),
            "heads": state.heads.state_dict(),
            "optimizer": state.optimizer.state_dict(),
            "rng": state.rng.bit_generator.state,
            "step": state.step,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f"latest-{self.rank}.tmp"
        torch.save(saved, temporary)
        temporary.replace(self.folder / f"latest-{self.rank}.pt")

    def _restore(self, saved: dict[str, Any]) -> None:
        state = self.state
        state.model.load_state_dict(saved["model"])
        state.heads.load_state_dict(saved["heads"])
        state.optimizer.load_state_dict(saved["optimizer"])
        state.rng.bit_generator.state = saved["rng"]
        state.step = saved["step"]


def save_weights(path: Path, model: Any, heads: CellHeads, dtype: torch.dtype = torch.float32) -> None:
    """Weights of the model and of what reads its states in training, as one safetensors file."""
    state = {f"model.{name}": value for name, value in model.state_dict().items() if name != _TIED}
    state |= {f"heads.{name}": value for name, value in heads.state_dict().items()}
    save_file({name: value.detach().to("cpu", dtype).contiguous() for name, value in state.items()}, path)


def load_weights(path: Path, model: Any, heads: CellHeads) -> None:
    """What save_weights wrote. Raises InvalidOption where the file is another model's."""
    saved = load_file(path)
    try:
        kept = {name.removeprefix("model."): value for name, value in saved.items() if name.startswith("model.")}
        model.load_state_dict({**kept, _TIED: kept[_EMBEDDING]})
        heads.load_state_dict(
            {name.removeprefix("heads."): value for name, value in saved.items() if name.startswith("heads.")}
        )
    except (KeyError, RuntimeError) as error:
        raise InvalidOption(f"{path} holds the weights of another model: {str(error).splitlines()[0]}") from error


def _trained(state: State) -> list[torch.nn.Parameter]:
    return [p for module in (state.model, state.heads) for p in module.parameters() if p.requires_grad]


def _optimizer(model: Any, heads: CellHeads, config: PhaseConfig) -> torch.optim.AdamW:
    groups = []
    visual = model.model.visual
    seen = {id(p) for p in visual.parameters()}
    rest = [p for module in (model, heads) for p in module.parameters() if id(p) not in seen]
    for parameters, share in ((list(visual.parameters()), config.vision_rate), (rest, 1.0)):
        trained = [p for p in parameters if p.requires_grad]
        groups += [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.05, "share": share},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0, "share": share},
        ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.97))


def _some(items: Any, count: int, rng: np.random.Generator) -> list[Any]:
    return [items[int(i)] for i in rng.permutation(len(items))[:count]]


def append_json(path: Path) -> Say:
    """A reporter that writes one JSON line a report."""

    def say(report: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")

    return say
