"""GRPO on the runtime's own episodes: real gradients, resumed to the same losses, in two processes, named errors."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import torch

from wayfix.agent.protocol import format_answer, format_call
from wayfix.errors import CheckpointNotSaved, InvalidOption, RewardNotFinite
from wayfix.geo.boxes import WorldBox
from wayfix.policy.engine.images import make_patches
from wayfix.scene.scene import Scene
from wayfix.synth.city import CityConfig, build_city
from wayfix.synth.write import write_city
from wayfix.views.view import ImageSizes
from wayfix_train.curves import draw_curves
from wayfix_train.environment import SearchEnvironment, Task
from wayfix_train.grpo import open_player, run_grpo
from wayfix_train.grpo_config import GrpoConfig, load_grpo_config
from wayfix_train.nano.model import new_model, save_model
from wayfix_train.nano.tokenizer import make_nano_tokenizer
from wayfix_train.rollout import FeatureCache, Player

SIZES = ImageSizes(overview=128, zoom=64, oblique=64)
TURNS = (
    format_call("zoom_in", {"source_view_id": "v0", "crop_box": [100, 100, 600, 600]}),
    format_call("zoom_in", {"source_view_id": "v0", "crop_box": [500, 500, 1000, 1000]}),
    "what now",
    format_answer("v0", (200, 200, 400, 400)),
    format_answer("v0", (600, 600, 700, 800)),
)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grpo-city") / "scene"
    write_city(path, build_city(CityConfig(seed=5, size_m=150.0)))
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = make_nano_tokenizer()
    save_model(new_model(tokenizer), tokenizer, folder, "test")
    config = json.loads((folder / "config.json").read_text())
    config["wayfix_image_sizes"] = {"overview": SIZES.overview, "zoom": SIZES.zoom, "oblique": SIZES.oblique}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def tasks(scene: Path) -> list[Task]:
    with Scene(scene) as opened:
        e = opened.extent
    target = WorldBox(e.min_x + 30, e.max_y - 60, e.min_x + 60, e.max_y - 30)
    return [Task(scene, query, target) for query in ("the red car", "the tallest building")]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model never writes an action; here its sampled turns are drawn from a few texts."""

    def turn(self: Player, logits: Any, cache: Any, at: int, temperature: float, generator: torch.Generator) -> Any:
        choice = int(torch.randint(len(TURNS), (1,), generator=generator)) if temperature > 0 else 3
        ids = [*self.tokenizer.encode(TURNS[choice], add_special_tokens=False).ids, self.end]
        for token in ids[:-1]:
            _, at = self._read(torch.tensor([token]).numpy(), [], cache, at)
        return ids, at

    monkeypatch.setattr(Player, "_turn", turn)


CONFIG = GrpoConfig(
    steps=3, prompts=1, group=4, learning_rate=1e-3, max_turns=3, validate_every=2, validate_queries=1, save_every=1
)


def _losses(out: Path) -> list[tuple[int, float, float]]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["reward"]) for line in lines]


@pytest.mark.usefixtures("scripted")
def test_it_learns_from_real_gradients_and_leaves_vision_alone(
    checkpoint: Path, tasks: list[Task], tmp_path: Path
) -> None:
    trained = run_grpo(CONFIG, checkpoint, tasks, tasks[:1], tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert {"reward/iou", "reward/total", "turns", "invalid", "zoom_in", "iou"} <= set(lines[0])
    assert "validation" in lines[1] and "validation" in lines[2]
    before, after = (open_player(folder, 8)[0].state_dict() for folder in (checkpoint, trained))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("language_model" in name for name in changed)
    assert not any("visual" in name for name in changed)
    assert draw_curves(tmp_path).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("scripted")
def test_a_killed_run_goes_on_to_the_same_losses(checkpoint: Path, tasks: list[Task], tmp_path: Path) -> None:
    run_grpo(CONFIG, checkpoint, tasks, tasks[:1], tmp_path / "whole")

    def stop(line: dict[str, Any]) -> None:
        if line["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grpo(CONFIG, checkpoint, tasks, tasks[:1], tmp_path / "cut", stop)
    run_grpo(CONFIG, checkpoint, tasks, tasks[:1], tmp_path / "cut")
    cut = {step: figures for step, *figures in _losses(tmp_path / "cut")}
    for step, loss, worth in _losses(tmp_path / "whole"):
        assert cut[step] == pytest.approx([loss, worth], abs=1e-6)


@pytest.mark.slow
def test_two_processes(checkpoint: Path, tasks: list[Task], tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    rows = [(str(task.scene), task.query) for task in tasks]
    box = tasks[0].target
    script.write_text(
        "from pathlib import Path\n"
        "from wayfix.geo.boxes import WorldBox\n"
        "from wayfix_train.environment import Task\n"
        "from wayfix_train.grpo import run_grpo\n"
        "from wayfix_train.grpo_config import GrpoConfig\n"
        f"tasks = [Task(Path(folder), query, {box!r}) for folder, query in {rows!r}]\n"
        "config = GrpoConfig(steps=1, prompts=2, group=2, max_turns=2, max_new_tokens=4, validate_queries=1)\n"
        f"run_grpo(config, Path({str(checkpoint)!r}), tasks, tasks[:1], Path({str(tmp_path / 'out')!r}))\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "out" / "checkpoint" / "config.json").is_file()


@pytest.mark.usefixtures("scripted")
def test_a_truth_that_is_no_number_is_named(checkpoint: Path, scene: Path, tmp_path: Path) -> None:
    damaged = [Task(scene, "the red car", WorldBox(math.nan, 0.0, 1.0, 1.0))]
    with pytest.raises(RewardNotFinite, match="nan"):
        run_grpo(CONFIG, checkpoint, damaged, damaged, tmp_path)


@pytest.mark.usefixtures("scripted")
def test_a_full_disk_is_named_and_loses_nothing_saved(
    checkpoint: Path, tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def full(value: Any, file: Any, *rest: Any, **options: Any) -> None:
        if "checkpoint-2" in str(file):
            raise OSError(28, "No space left on device")
        save(value, file, *rest, **options)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointNotSaved, match="No space left"):
        run_grpo(CONFIG, checkpoint, tasks, tasks[:1], tmp_path)
    monkeypatch.setattr(torch, "save", save)
    assert (tmp_path / "steps" / "checkpoint-1" / "optimizer.pt").is_file()
    run_grpo(CONFIG, checkpoint, tasks, tasks[:1], tmp_path)
    assert _losses(tmp_path)[-1][0] == 3


def test_missing_scenes_checkpoints_and_unknown_keys_are_named(
    checkpoint: Path, tasks: list[Task], tmp_path: Path
) -> None:
    lost = [Task(tmp_path / "lost", "the red car", None)]
    with pytest.raises(InvalidOption, match="lost"):
        run_grpo(CONFIG, checkpoint, lost, tasks, tmp_path / "out")
    with pytest.raises(InvalidOption, match="no checkpoint"):
        run_grpo(CONFIG, tmp_path, tasks, tasks, tmp_path / "out")
    path = tmp_path / "mine.json"
    path.write_text('{"rewards": {"iuo": 1}}')
    with pytest.raises(InvalidOption, match=r"rewards\.iuo"):
        load_grpo_config(str(path))


def test_cached_features_are_the_encoders_own(checkpoint: Path, tasks: list[Task]) -> None:
    model, _, player, sizes = open_player(checkpoint, 4)
    environment = SearchEnvironment(sizes)
    environment.reset(tasks[0])
    image = next(iter(environment.episode.views.values())).image
    patches = [make_patches(i, player.spec) for i in (image, image[::-1].copy(), image)]
    pixels = torch.cat([torch.from_numpy(p.pixels) for p in patches])
    grids = torch.tensor([(1, p.rows, p.columns) for p in patches])
    with torch.no_grad():
        plain = model.model.get_image_features(pixels, grids)
        cache = FeatureCache(model)
        for _ in range(2):
            cached = cache(pixels, grids)
            assert all(
                torch.allclose(a, b, atol=1e-5) for a, b in zip(plain.pooler_output, cached.pooler_output, strict=True)
            )
            for one, other in zip(plain.deepstack_features, cached.deepstack_features, strict=True):
                assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one, other, strict=True))
