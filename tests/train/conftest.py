from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from wayfix_train.data.shards import Shard


@pytest.fixture(scope="session")
def shard() -> Shard:
    """A small shard of a real city."""
    pytest.importorskip("torch")
    from wayfix_train.data.shards import ShardConfig, make_shard
    from wayfix_train.nano.layout import make_chat
    from wayfix_train.nano.tokenizer import make_nano_tokenizer

    tokenizer = make_nano_tokenizer()
    return make_shard(3, ShardConfig(decisions=10, searches=14), make_chat(tokenizer), tokenizer)
