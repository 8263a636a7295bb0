"""Demonstrations are episodes of the runtime that end right, and their tokens say what was said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch")

from wayfix.agent.protocol import Answer, NotFound, parse_action
from wayfix.geo.boxes import UNIT_MAX
from wayfix_train.data.cells import CLASSES, NOTHING
from wayfix_train.nano.tokenizer import make_nano_tokenizer

if TYPE_CHECKING:
    from wayfix_train.data.shards import Shard, TokenEpisode

TOKENIZER = make_nano_tokenizer()


def _learned(episode: TokenEpisode) -> list[str]:
    return [TOKENIZER.decode([int(i) for i in episode.ids[a:b]], skip_special_tokens=False) for a, b in episode.learned]


def test_every_learned_turn_is_one_valid_action(shard: Shard) -> None:
    for episode in (*shard.decisions, *shard.searches):
        for text in _learned(episode):
            assert text.endswith("<|im_end|>")
            parse_action(text.removesuffix("<|im_end|>"))


def test_present_targets_end_in_a_box_or_a_zoom_and_absent_ones_in_not_found(shard: Shard) -> None:
    for episode in shard.searches:
        _, action = parse_action(_learned(episode)[-1].removesuffix("<|im_end|>"))
        assert isinstance(action, NotFound) == (episode.target is None)


def test_an_answer_in_the_overview_is_the_target_there(shard: Shard) -> None:
    found = 0
    for episode in shard.decisions:
        _, action = parse_action(_learned(episode)[-1].removesuffix("<|im_end|>"))
        if isinstance(action, Answer):
            assert episode.target is not None
            assert np.abs(np.subtract(action.box, episode.target)).max() <= 1
            found += 1
    assert found or shard.decisions


def test_all_episodes_share_what_stands_before_the_query(shard: Shard) -> None:
    find = TOKENIZER.token_to_id("\nFind: ")
    prefixes = {e.ids[: int(np.flatnonzero(e.ids == find)[0])].tobytes() for e in (*shard.decisions, *shard.searches)}
    assert len(prefixes) == 1


def test_local_queries_lie_in_their_view(shard: Shard) -> None:
    queries = [query for episode in shard.searches for query in episode.local]
    assert queries
    for query in queries:
        x0, y0, x1, y1 = query.box
        assert 0 <= x0 < x1 <= UNIT_MAX and 0 <= y0 < y1 <= UNIT_MAX


def test_cells_of_the_overview(shard: Shard) -> None:
    labels = shard.pictures[0].labels
    assert labels is not None and (labels.rows, labels.columns) == (48, 48)
    stands = labels.main != NOTHING
    assert stands.sum() > 200
    assert labels.main.max() < len(CLASSES)
    # The object of a cell covers some of it, so its box reaches into the cell.
    box = labels.box[stands]
    assert (box[:, 0] <= 0.5).all() and (box[:, 2] >= -0.5).all()
    # Whatever fills most of a cell is also listed as standing there.
    listed = {(int(cell), int(kind)) for cell, kind in labels.present}
    assert all((int(cell), int(labels.main[cell])) in listed for cell in np.flatnonzero(stands))
