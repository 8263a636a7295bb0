"""The options that choose a policy, the same for every command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wayfix.errors import InvalidOption

if TYPE_CHECKING:
    from wayfix.policy.interface import Policy


def add_policy_options(parser: Any, names: Sequence[str]) -> None:
    """`--policy` with these choices, and what a remote one needs."""
    parser.add_argument("--policy", default="baseline", choices=names, help="who searches (default: %(default)s)")
    engine = parser.add_argument_group("engine policy", "a model exported with `wayfix export` (docs/export.md)")
    engine.add_argument("--engine", type=Path, metavar="DIR", help="engine folder")
    engine.add_argument(
        "--providers", default="CPU", metavar="A,B", help="onnxruntime's providers in order (default: %(default)s)"
    )
    engine.add_argument("--threads", type=int, metavar="N", help="threads of a graph (default: by the model's size)")
    engine.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token (default: %(default)s)"
    )
    engine.add_argument("--seed-tokens", type=int, default=0, metavar="N", help="seed of sampling (%(default)s)")
    remote = parser.add_argument_group(
        "remote policy", "any OpenAI-compatible chat endpoint with images (docs/remote.md); its key is never an option"
    )
    remote.add_argument("--endpoint", metavar="URL", help="base URL, such as http://127.0.0.1:8000/v1")
    remote.add_argument("--model", metavar="NAME", help="the model's name at the endpoint")
    remote.add_argument(
        "--key-env", default="WAYFIX_API_KEY", metavar="NAME", help="environment variable of the key (%(default)s)"
    )
    remote.add_argument(
        "--call-format", choices=["native", "text"], default="native", help="text: for servers without tool calls"
    )


@contextmanager
def open_policy(options: argparse.Namespace) -> Iterator[tuple[Policy, str]]:
    """The chosen policy, and what a report says of it beside its name. Raises InvalidOption.

    Leaving the context ends a remote policy's thread and connections.
    """
    from wayfix.policy.baseline import BaselinePolicy

    if options.policy != "remote" and (options.endpoint or options.model):
        raise InvalidOption(f"--endpoint and --model belong to --policy remote, not to {options.policy}")
    if options.policy != "engine" and options.engine:
        raise InvalidOption(f"--engine belongs to --policy engine, not to {options.policy}")
    if options.policy == "engine":
        yield _engine_policy(options)
        return
    if options.policy != "remote":
        yield BaselinePolicy(), ""
        return
    from wayfix.policy.remote import RemoteConfig, RemotePolicy

    if not options.endpoint or not options.model:
        raise InvalidOption("--policy remote needs --endpoint URL and --model NAME")
    config = RemoteConfig(
        endpoint=options.endpoint, model=options.model, key_env=options.key_env, tools=options.call_format
    )
    with RemotePolicy(config) as policy:
        yield policy, f"{config.model} at {config.endpoint}, {config.tools} tool calls"


def _engine_policy(options: argparse.Namespace) -> tuple[Policy, str]:
    from pydantic import ValidationError

    from wayfix.policy.engine.engine import EngineConfig
    from wayfix.policy.engine.policy import EnginePolicy
    from wayfix.policy.engine.sampling import SamplingConfig

    if options.engine is None:
        raise InvalidOption("--policy engine needs --engine DIR, a folder made by: wayfix export CHECKPOINT --out DIR")
    try:
        config = EngineConfig(providers=tuple(options.providers.split(",")), threads=options.threads)
        sampling = SamplingConfig(temperature=options.temperature, seed=options.seed_tokens)
    except ValidationError as error:
        raise InvalidOption("; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors())) from error
    policy = EnginePolicy(options.engine, config, sampling)
    source, precision = policy.engine.manifest.source, policy.engine.manifest.precision
    return policy, f"{source.name} ({source.sha256[:12]}), decoder {precision.decoder}, vision {precision.vision}"
