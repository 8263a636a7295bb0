"""The options that choose a policy, the same for every command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wayfix.errors import InvalidOption

if TYPE_CHECKING:
    from wayfix.policy.interface import Policy


def add_policy_options(parser: Any, names: Sequence[str]) -> None:
    """`--policy` with these choices, and what a remote one needs."""
    parser.add_argument("--policy", default="baseline", choices=names, help="who searches (default: %(default)s)")
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
    """The baseline or the remote policy, and what a report says of it beside its name. Raises InvalidOption.

    Leaving the context ends a remote policy's thread and connections.
    """
    from wayfix.policy.baseline import BaselinePolicy

    if options.policy != "remote":
        if options.endpoint or options.model:
            raise InvalidOption(f"--endpoint and --model belong to --policy remote, not to {options.policy}")
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
