"""The search as an environment: the runtime's own episode and tools, text in, prompts out, a reward at the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from wayfix.agent.episode import Episode, check_query
from wayfix.agent.messages import Prompt
from wayfix.agent.protocol import MAX_TURNS, Answer, NotFound, parse_action
from wayfix.errors import ToolError
from wayfix.geo.boxes import WorldBox, iou_bev
from wayfix.scene.scene import Scene
from wayfix.tools.arguments import TOOLS, ZoomIn, tool_name
from wayfix.tools.toolbox import Toolbox
from wayfix.views.scene_views import SceneViews
from wayfix.views.view import ImageSizes
from wayfix_train.rewards import RewardConfig, RewardParts, Trajectory, reward

KEPT_SCENES = 8


@dataclass(frozen=True)
class Task:
    """One query and its truth."""

    scene: Path
    query: str
    target: WorldBox | None
    """None where the scene holds no such object."""


@dataclass
class SearchEnvironment:
    """Plays episodes one turn at a time. Nothing that `prompt` shows comes from the truth."""

    sizes: ImageSizes
    rewards: RewardConfig = field(default_factory=RewardConfig)
    max_turns: int = MAX_TURNS
    tools: tuple[str, ...] = tuple(TOOLS)

    def reset(self, task: Task) -> Prompt:
        """Begin an episode. Raises what opening the scene raises, and InvalidQuery."""
        self.task = task
        self.episode = Episode(check_query(task.query), _toolbox(task.scene, self.sizes, self.tools), self.max_turns)
        self.done = False
        self._answer: WorldBox | None = None
        self._not_found = False
        self._zooms: list[tuple[float, float]] = []
        self._obliques: list[WorldBox] = []
        self._counts: Counter[str] = Counter()
        return self.prompt()

    def prompt(self) -> Prompt:
        """What the policy reads before its next turn, as in service."""
        return self.episode.prompt(must_answer=self.episode.turns == self.max_turns - 1)

    def step(self, text: str) -> bool:
        """Take a turn; whether the episode has ended. A turn that cannot be carried out is answered by an error."""
        if self.done:
            raise RuntimeError("the episode has ended; reset it first")
        self.episode.said(text)
        try:
            _, action = parse_action(text)
            if isinstance(action, Answer):
                self._answer = self.episode.world_box(action.view_id, action.box)
                self.done = True
            elif isinstance(action, NotFound):
                self._not_found = self.done = True
            else:
                result = self.episode.execute(action)
                self._counts[tool_name(action)] += 1
                if result.view is not None:
                    region = result.view.region
                    if isinstance(action, ZoomIn):
                        self._zooms.append(region.center)
                    else:
                        self._obliques.append(region)
        except ToolError as error:
            self.episode.refuse(error)
            self._counts["invalid"] += 1
        self.done = self.done or self.episode.turns >= self.max_turns
        return self.done

    def reward(self) -> RewardParts:
        """What the episode was worth so far. Raises RewardNotFinite."""
        return reward(self.trajectory(), self.task.target, self.rewards)

    def trajectory(self) -> Trajectory:
        """What of the episode counts."""
        start = self.episode.views["v0"].region.center
        return Trajectory(
            self.episode.turns, self.max_turns, start, self._answer, self._not_found, tuple(self._zooms),
            tuple(self._obliques), self._counts["invalid"],
        )  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """Figures of the episode for logs: parts of the reward, IoU, counts of tools, turns."""
        target = self.task.target
        iou = iou_bev(self._answer, target) if self._answer is not None and target is not None else 0.0
        right = self._not_found if target is None else iou > 0
        counts = {name: float(self._counts[name]) for name in (*TOOLS, "invalid")}
        parts = {f"reward/{name}": value for name, value in asdict(self.reward()).items()}
        answered = float(self._answer is not None or self._not_found)
        return {**parts, **counts, "iou": iou, "right": float(right), "turns": self.episode.turns, "answered": answered}


@lru_cache(maxsize=KEPT_SCENES)
def _toolbox(folder: Path, sizes: ImageSizes, tools: tuple[str, ...]) -> Toolbox:
    return Toolbox(SceneViews(Scene(folder)), sizes, tools)
