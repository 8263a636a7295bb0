"""A shard's episodes as rows of tokens: what stands behind the shared prefix, and what is to be learned of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from wayfix.agent.protocol import format_answer
from wayfix.geo.boxes import UnitBox
from wayfix.policy.engine.positions import token_positions
from wayfix_train.data.shards import Picture, Shard, TokenEpisode
from wayfix_train.nano.layout import MERGE, PATCH
from wayfix_train.nano.tokenizer import number_tokens

LOWER = "abcdefghijklmnopqrstuvwxyz"


@dataclass
class Row:
    """A sequence after the shared prefix, with what is to be learned of it."""

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    learned: list[tuple[int, int]]
    """Ranges of `ids`."""
    pictures: list[int]
    """Beyond the overview."""
    seen: NDArray[np.bool_] | None = None
    looked_at: list[tuple[range, int, UnitBox]] = field(default_factory=list)
    """(tokens that are numbers, picture by place in the episode, box): where a good reader would look."""


class RowMaker:
    """Makes rows of the four forms: whole episodes, aims, and sentences on a zoom alone or behind an episode."""

    def __init__(self, tokenizer: Tokenizer, rng: np.random.Generator | None = None) -> None:
        """With `rng` the letters of names are exchanged in every episode, so that copying is learned, not names."""
        self.tokenizer, self.rng = tokenizer, rng
        self.vocabulary = tokenizer.get_vocab()
        self._letters = [np.array([self.vocabulary[sign] for sign in case]) for case in (LOWER, LOWER.upper())]
        self._numbers = number_tokens(tokenizer)
        self.values = np.full(max(self.vocabulary.values()) + 1, -1)
        """The number that a token is, or -1."""
        self.values[self._numbers] = np.arange(len(self._numbers))
        self.pad, self.end = self.vocabulary["<|image_pad|>"], self.vocabulary["<|im_end|>"]
        self.find, self.left = self.vocabulary["\nFind: "], self.vocabulary["\nTurns left: "]

    def is_aim(self, episode: TokenEpisode) -> bool:
        """Whether a decision ends in a zoom to its target."""
        if episode.target is None or not episode.learned:
            return False
        start, end = episode.learned[-1]
        return self.vocabulary['zoom_in", "arguments": {"source_view_id": "'] in episode.ids[start:end]

    def row(self, shard: Shard, episode: TokenEpisode, local: bool) -> Row:
        """The part of an episode after the prefix, with further sentences about its last zoom behind it."""
        ids = self._renamed(episode.ids.astype(np.int64))
        prefix = int(np.flatnonzero(ids == self.find)[0])
        positions, _ = self.positions(shard, episode)
        learned = [(start - prefix, end - prefix) for start, end in episode.learned]
        row = Row(ids[prefix:], positions[:, prefix:], learned, list(episode.pictures[1:]))
        if episode.learned:
            self._look(row, episode, learned[-1])
        if local and episode.local:
            self._add_local(row, episode)
        return row

    def crop_row(self, shard: Shard, episode: TokenEpisode) -> Row:
        """A zoom, and behind it its sentences, each seeing only the zoom and itself."""
        picture = episode.pictures[episode.answer_view]
        rows, columns = grid_of(shard.pictures[picture])
        opened, closed = (self.vocabulary[f"<|vision_{end}|>"] for end in ("start", "end"))
        trunk = np.array([opened, *[self.pad] * (rows * columns // MERGE**2), closed], np.int64)
        positions, after = token_positions(trunk, [(rows, columns)], self.pad, 0, MERGE)
        row = Row(trunk, positions, [], [picture])
        blocks = []
        for query in episode.local:
            words = self.tokenizer.encode(query.query, add_special_tokens=False).ids
            blocks.append((self._short(words, '", "box": [', query.box), query.box))
        self._append(row, blocks, len(trunk), after, 1)
        return row

    def aim_row(self, shard: Shard, episode: TokenEpisode) -> Row:
        """A decision as one short block: the sentence, where its landmark lies, and the aim."""
        whole = self.row(shard, episode, local=False)
        words = whole.ids[1 : int(np.flatnonzero(whole.ids == self.end)[0])]
        told = np.flatnonzero(whole.ids == self.vocabulary['], "world": {"center": ['])
        if len(told):
            first = np.flatnonzero(whole.ids[: told[0]] == self.vocabulary['", "box": ['])
            words = np.concatenate([words, whole.ids[first[-1] : told[0]]]) if len(first) else words
        numbers, view, box = whole.looked_at[-1]
        values = self.values[whole.ids[list(numbers)]].tolist()
        ids = self._short(words.tolist(), '", "crop_box": [', (values[0], values[1], values[2], values[3]))
        positions = whole.positions[:, :1] + np.arange(len(ids))
        span = range(len(ids) - 7, len(ids), 2)
        return Row(ids, positions, [(len(ids) - 7, len(ids))], [], None, [(span, view, box)])

    def positions(self, shard: Shard, episode: TokenEpisode) -> tuple[NDArray[np.int64], int]:
        """M-RoPE positions (3, N) of a whole episode, and the one after it."""
        grids = [grid_of(shard.pictures[n]) for n in episode.pictures]
        return token_positions(episode.ids.astype(np.int64), grids, self.pad, 0, MERGE)

    def _renamed(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """An episode with other letters in its names: words are tokens of their own, letters spell only names."""
        if self.rng is None:
            return ids
        exchanged = np.arange(len(self.values))
        for letters in self._letters:
            exchanged[letters] = self.rng.permutation(letters)
        return exchanged[ids]

    def _look(self, row: Row, episode: TokenEpisode, span: tuple[int, int]) -> None:
        """Supervise where the last turn looks: its target in the overview, or in the zoom it answers in."""
        numbers = self._number_range(row.ids, span)
        if episode.target is None or len(numbers) != 4:
            return
        if episode.answer_view > 0:
            values = self.values[row.ids[list(numbers)]].tolist()
            row.looked_at.append((numbers, episode.answer_view, (values[0], values[1], values[2], values[3])))
        else:
            row.looked_at.append((numbers, 0, episode.target))

    def _number_range(self, ids: NDArray[np.int64], span: tuple[int, int]) -> range:
        at = [i for i in range(*span) if self.values[ids[i]] >= 0]
        return range(at[0], at[-1] + 1, 2) if len(at) == 4 else range(0)

    def _short(self, words: Sequence[int], opening: str, box: UnitBox) -> NDArray[np.int64]:
        comma = self.vocabulary[", "]
        numbers = [self._numbers[value] for value in box]
        coordinates = [token for number in numbers for token in (number, comma)][:-1]
        return np.array([self.find, *words, self.vocabulary[opening], *coordinates], np.int64)

    def _append(
        self, row: Row, blocks: Sequence[tuple[NDArray[np.int64], UnitBox]], split: int, after: int, view: int
    ) -> None:
        """Put blocks that end in a box behind a row; they see its first `split` tokens and themselves."""
        n = len(row.ids)
        total = n + sum(len(block) for block, _ in blocks)
        seen = np.zeros((total, total), np.bool_)
        seen[:n, :n] = np.tril(np.ones((n, n), np.bool_))
        ids, positions, at = [row.ids], [row.positions], n
        for block, box in blocks:
            end = at + len(block)
            seen[at:end, :split] = True
            seen[at:end, at:end] = np.tril(np.ones((len(block), len(block)), np.bool_))
            ids.append(block)
            positions.append(np.tile(after + np.arange(len(block)), (3, 1)))
            row.learned.append((end - 7, end))
            row.looked_at.append((range(end - 7, end, 2), view, box))
            at = end
        row.ids, row.positions, row.seen = np.concatenate(ids), np.concatenate(positions, axis=1), seen

    def _add_local(self, row: Row, episode: TokenEpisode) -> None:
        """Blocks that see what stands before the last restated query, and each itself."""
        n = len(row.ids)
        split = int(np.flatnonzero(row.ids == self.find)[-1])
        tail = row.ids[int(np.flatnonzero(row.ids == self.left)[-1]) : row.learned[-1][0]]
        blocks = []
        for query in episode.local:
            words = self.tokenizer.encode(query.query, add_special_tokens=False).ids
            answer = self.tokenizer.encode(
                format_answer(f"v{episode.answer_view}", query.box) + "<|im_end|>", add_special_tokens=False
            ).ids
            blocks.append((np.array([self.find, *words, *tail, *answer], np.int64), len(answer), query.box))
        total = n + sum(len(block) for block, _, _ in blocks)
        seen = np.zeros((total, total), np.bool_)
        seen[:n, :n] = np.tril(np.ones((n, n), np.bool_))
        ids, positions, at = [row.ids], [row.positions], n
        for block, size, box in blocks:
            end = at + len(block)
            seen[at:end, :split] = True
            seen[at:end, at:end] = np.tril(np.ones((len(block), len(block)), np.bool_))
            ids.append(block)
            positions.append(np.tile(row.positions[:, split][0] + np.arange(len(block)), (3, 1)))
            row.learned.append((end - size, end))
            numbers = self._number_range(block, (len(block) - size, len(block)))
            row.looked_at.append((range(numbers.start + at, numbers.stop + at, 2), episode.answer_view, box))
            at = end
        row.ids, row.positions, row.seen = np.concatenate(ids), np.concatenate(positions, axis=1), seen


def grid_of(picture: Picture) -> tuple[int, int]:
    """Rows and columns of patches."""
    return picture.image.shape[0] // PATCH, picture.image.shape[1] // PATCH
