"""What a GRPO run needs to know."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wayfix.errors import InvalidOption
from wayfix_train.rewards import RewardConfig

CONFIGS = Path(__file__).parent / "configs"


class GrpoConfig(BaseModel):
    """Defaults are for the nano model on a CPU; the paper's for the 4B are in configs/urbex-grpo.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = 0
    steps: int = Field(default=120, gt=0)
    prompts: int = Field(default=8, gt=0)
    """Queries a step, over all processes."""
    group: int = Field(default=8, ge=2)
    """Trajectories a query."""
    learning_rate: float = Field(default=1e-5, gt=0)
    kl: float = Field(default=0.001, ge=0)
    clip: float = Field(default=0.2, gt=0)
    temperature: float = Field(default=1.0, gt=0)
    max_turns: int = Field(default=8, ge=1)
    max_new_tokens: int = Field(default=96, gt=0)
    """Of one turn."""
    cities: int = Field(default=24, gt=0)
    """Training scenes, of seeds that the warm start has not seen."""
    first_seed: int = 100_001
    queries: int = Field(default=100, gt=0)
    """A scene."""
    validate_every: int = Field(default=20, gt=0)
    validate_queries: int = Field(default=64, gt=0)
    save_every: int = Field(default=10, gt=0)
    threads: int = Field(default=1, gt=0)
    rewards: RewardConfig = RewardConfig()


def load_grpo_config(name_or_path: str) -> GrpoConfig:
    """A configuration that comes with Wayfix, by name, or a JSON file. Raises InvalidOption."""
    path = CONFIGS / f"{name_or_path}-grpo.json"
    path = path if path.exists() else Path(name_or_path)
    known = ", ".join(sorted(p.name.removesuffix("-grpo.json") for p in CONFIGS.glob("*-grpo.json")))
    try:
        return GrpoConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidOption(f"no configuration {name_or_path!r}: give a JSON file, or one of {known}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InvalidOption(f"{path.name}: {where}: {first['msg']}; see `wayfix train grpo --print-config`") from error
