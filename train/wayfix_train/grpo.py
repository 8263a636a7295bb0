"""GRPO (Urbex, equations 4 and 5) on TRL: the runtime's episodes are the rollouts, TRL does the rest."""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import numpy as np
import torch
from datasets import Dataset
from PIL import Image
from tokenizers import Tokenizer
from transformers import AutoTokenizer, ProcessorMixin, Qwen3VLForConditionalGeneration, TrainerCallback
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from trl import GRPOConfig, GRPOTrainer

from wayfix.errors import CheckpointNotSaved, InvalidOption
from wayfix.geo.boxes import WorldBox
from wayfix.policy.engine.chat import Chat
from wayfix.policy.engine.images import ImageSpec
from wayfix.views.view import ImageSizes
from wayfix_train.environment import SearchEnvironment, Task
from wayfix_train.grpo_config import GrpoConfig
from wayfix_train.rollout import FeatureCache, Player

Say = Callable[[dict[str, Any]], None]


class SearchProcessor(ProcessorMixin):
    """Tokenizer and image processor as TRL wants them, without the stock one's video branch and what that needs."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)


class SearchTrainer(GRPOTrainer):
    """Plays the runtime's episodes where TRL would generate texts; prompts and tools are those of the service.

    A prompt of the data set is only the JSON of its task.
    """

    def __init__(self, player: Player, sizes: ImageSizes, search: GrpoConfig, **options: Any) -> None:
        super().__init__(reward_funcs=[self.search_reward], **options)
        self._player, self._sizes, self._search = player, sizes, search
        # What is truthy here makes TRL read the images that lie behind the prompt.
        self.tools = [self.search_reward]
        self._played: list[SearchEnvironment] = []
        self.figures: list[dict[str, float]] = []

    def search_reward(self, **_: Any) -> list[float]:
        """What the last played episodes were worth."""
        return [environment.reward().total for environment in self._played]

    def _generate(self, prompts: list[Any]) -> Any:
        mode = "train" if self.model.training else "eval"
        generator = torch.Generator(device=self.accelerator.device)
        # The same for a step whether a run was resumed or not, and different in every process.
        step = self._search.seed * 1_000_003 + self.state.global_step
        generator.manual_seed(step * 1009 + self.accelerator.process_index)
        self._player.model = self.accelerator.unwrap_model(self.model)
        self._played, rollouts = [], []
        for prompt in prompts:
            environment = SearchEnvironment(self._sizes, self._search.rewards, self._search.max_turns)
            environment.reset(_task(json.loads(prompt[0]["content"])))
            rollouts.append(self._player.play(environment, self._search.temperature, generator))
            self._played.append(environment)
            self.figures.append(environment.metrics())
            for name, value in self.figures[-1].items():
                self._metrics[mode][f"search/{name}"].append(value)
        images = [[Image.fromarray(image) for image in rollout.images] for rollout in rollouts]
        texts = [[{"role": "assistant", "content": ""}] for _ in rollouts]
        ids, completions = [r.prompt for r in rollouts], [r.completion for r in rollouts]
        return ids, completions, [r.said for r in rollouts], texts, None, {}, images, images


class _Reporter(TrainerCallback):
    """Writes a line a step, and validates now and then."""

    def __init__(self, out: Path, validate: Callable[[], dict[str, float]], every: int, say: Say | None) -> None:
        self._out, self._validate, self._every, self._say = out, validate, every, say
        self.trainer: SearchTrainer | None = None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """One step's figures."""
        if not state.is_world_process_zero or self.trainer is None or not self.trainer.figures:
            return
        line: dict[str, Any] = {"step": state.global_step}
        line |= {name: round(float(value), 6) for name, value in (logs or {}).items() if name in _LOGGED}
        line |= mean_figures(self.trainer.figures)
        self.trainer.figures = []
        if state.global_step % self._every == 0 or state.global_step == state.max_steps:
            line["validation"] = self._validate()
        with (self._out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if self._say is not None:
            self._say(line)


_LOGGED = ("loss", "grad_norm", "learning_rate", "reward", "reward_std", "kl", "entropy", "clip_ratio/region_mean")


def run_grpo(
    config: GrpoConfig, checkpoint: Path, tasks: list[Task], held_out: list[Task], out: Path, say: Say | None = None
) -> Path:
    """Train `checkpoint` on tasks, or go on where `out` was left; the folder of the trained checkpoint.

    Raises InvalidOption, RewardNotFinite, CheckpointNotSaved, and what opening a scene raises.
    """
    torch.set_num_threads(config.threads)
    world = int(os.environ.get("WORLD_SIZE", 1))
    batch = config.prompts * config.group
    if batch % world:
        raise InvalidOption(f"prompts x group is shared by {world} processes and must be a multiple; got {batch}")
    _check_scenes([*tasks, *held_out])
    out.mkdir(parents=True, exist_ok=True)
    model, processor, player, sizes = open_player(checkpoint, config.max_new_tokens)
    model.model.visual.requires_grad_(False)
    FeatureCache(model)

    def validate() -> dict[str, float]:
        return greedy_figures(player, held_out, sizes, config)

    reporter = _Reporter(out, validate, config.validate_every, say)
    trainer = SearchTrainer(
        player, sizes, config, model=model, args=_arguments(config, out, world),
        train_dataset=Dataset.from_list([_row(task) for task in tasks]), processing_class=processor,
        callbacks=[reporter],
    )  # fmt: skip
    reporter.trainer = trainer
    try:
        trainer.train(resume_from_checkpoint=_latest(out))
    except OSError as error:
        raise CheckpointNotSaved(
            f"a checkpoint could not be written in {out}: {error}; make room and run again: it goes on from "
            f"{_latest(out) or 'the start'}"
        ) from error
    trained = out / "checkpoint"
    if trainer.accelerator.is_main_process:
        _write_checkpoint(trainer, checkpoint, trained)
    return trained


def open_player(checkpoint: Path, max_new_tokens: int) -> tuple[Any, SearchProcessor, Player, ImageSizes]:
    """A checkpoint's model with what plays it. Raises InvalidOption where it is none."""
    try:
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        preparation = json.loads((checkpoint / "preprocessor_config.json").read_text(encoding="utf-8"))
        words = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        template = (checkpoint / "chat_template.jinja").read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidOption(f"{checkpoint} is no checkpoint: {error}") from error
    spec = ImageSpec.from_preprocessor_config(preparation)
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="sdpa"
    )
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    images = Qwen2VLImageProcessorPil.from_pretrained(checkpoint)
    processor = SearchProcessor(images, tokenizer, chat_template=template)
    chat = Chat(template, words, config["image_token_id"], spec)
    sizes = ImageSizes(**config.get("wayfix_image_sizes", {}))
    return model, processor, Player(model, chat, words, spec, max_new_tokens), sizes


def greedy_figures(player: Player, tasks: list[Task], sizes: ImageSizes, config: GrpoConfig) -> dict[str, float]:
    """Mean figures of greedy searches."""
    environment = SearchEnvironment(sizes, config.rewards, config.max_turns)
    was_training = player.model.training
    player.model.eval()
    figures = []
    for task in tasks:
        environment.reset(task)
        player.play(environment, 0.0, torch.Generator())
        figures.append(environment.metrics())
    player.model.train(was_training)
    return mean_figures(figures)


def mean_figures(figures: list[dict[str, float]]) -> dict[str, float]:
    """Means by name."""
    values: dict[str, list[float]] = defaultdict(list)
    for line in figures:
        for name, value in line.items():
            values[name].append(value)
    return {name: round(float(np.mean(found)), 5) for name, found in values.items()}


def _arguments(config: GrpoConfig, out: Path, world: int) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(out / "steps"), max_steps=config.steps, seed=config.seed,
        # A process takes whole groups, and a step's batch in one piece: one PPO epoch, nothing off policy.
        per_device_train_batch_size=config.group, num_generations=config.group,
        gradient_accumulation_steps=max(1, config.prompts // world),
        num_iterations=1, loss_type="grpo", scale_rewards="group", beta=config.kl, epsilon=config.clip,
        learning_rate=config.learning_rate, lr_scheduler_type="constant", temperature=config.temperature,
        max_completion_length=config.max_turns * 4096, logging_steps=1, save_strategy="steps",
        save_steps=config.save_every, save_total_limit=2, report_to=[], use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(), gradient_checkpointing=False, remove_unused_columns=False,
        disable_tqdm=True,
    )  # fmt: skip


def _check_scenes(tasks: list[Task]) -> None:
    for folder in sorted({task.scene for task in tasks}):
        if not (folder / "scene.json").is_file():
            raise InvalidOption(f"{folder} is no scene: it lacks scene.json; make it with wayfix synth city or import")


def _row(task: Task) -> dict[str, Any]:
    box = None if task.target is None else list(asdict(task.target).values())
    row = {"scene": str(task.scene), "query": task.query, "target": box}
    return {"prompt": [{"role": "user", "content": json.dumps(row)}]}


def _task(row: dict[str, Any]) -> Task:
    box = row["target"]
    return Task(Path(row["scene"]), row["query"], None if box is None else WorldBox(*box))


def _latest(out: Path) -> str | None:
    """The last checkpoint that is whole; one that a full disk or a kill left half-made is put aside."""
    folders = sorted((out / "steps").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    while folders:
        if all((folders[-1] / name).is_file() for name in ("trainer_state.json", "optimizer.pt", "scheduler.pt")):
            return str(folders[-1])
        shutil.rmtree(folders.pop())
    return None


def _write_checkpoint(trainer: SearchTrainer, start: Path, folder: Path) -> None:
    """The trained weights with all that the start's folder holds beside its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in start.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and "index" not in path.name:
            shutil.copyfile(path, folder / path.name)
    config = (folder / "config.json").read_bytes()
    trainer.accelerator.unwrap_model(trainer.model).save_pretrained(folder)
    (folder / "config.json").write_bytes(config)
