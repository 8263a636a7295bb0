"""One training step: what a city's shard teaches, all its sequences behind one reading of the overview."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from wayfix.geo.boxes import UNIT_MAX, UnitBox
from wayfix_train.data.shards import Picture, Shard, TokenEpisode
from wayfix_train.nano.losses import CellHeads, NumberLoss, cell_loss, heat
from wayfix_train.nano.packed import Batch, Features, Looks, Past, encode_images, pad_batch, read_text
from wayfix_train.nano.rows import Row, RowMaker
from wayfix_train.nano.tokenizer import number_tokens

LOOK_LAYERS = (2, 3)
LOOK_HEADS = 2
CORNERS = 5.0
"""Weight of the distance of corners, in views."""
AIM_SHARE = 0.38
"""An aim off by at most this share of its window still shows the object."""


@dataclass
class Weights:
    """How much each part of the loss counts."""

    cells: float = 0.3
    looks: float = 0.5
    sigma: float = 6.0
    """Of the Gaussian around a right number, units."""


@dataclass
class Plan:
    """What a step takes of a shard."""

    aims: Sequence[TokenEpisode] = ()
    """Decisions that end in a zoom, as short blocks."""
    decisions: Sequence[TokenEpisode] = ()
    searches: Sequence[TokenEpisode] = ()
    taught: bool = True
    """Whether the overview's own encoding is taught; else it is only read."""


class SceneStep:
    """Computes the losses of a shard."""

    def __init__(
        self,
        model: torch.nn.Module,
        heads: CellHeads,
        tokenizer: Tokenizer,
        rng: np.random.Generator | None = None,
    ) -> None:
        """With `rng` the letters of names are exchanged in every episode, so that copying is learned, not names."""
        self.visual, self.text = model.model.visual, model.model.language_model
        self.head, self.heads = model.lm_head, heads
        self.rows = RowMaker(tokenizer, rng)
        self.device = model.lm_head.weight.device
        self.numbers = NumberLoss(number_tokens(tokenizer), model.config.text_config.vocab_size, self.device)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def overview(self, shard: Shard) -> Features:
        """Features of the overview."""
        return encode_images(self.visual, shard.pictures[0].image[None])

    def picture_loss(self, pictures: Sequence[Picture]) -> tuple[Tensor, dict[str, float]]:
        """Dense loss of pictures of one size."""
        features = encode_images(self.visual, np.stack([p.image for p in pictures]))
        loss = cell_loss(self.heads, features.tokens, [p.labels for p in pictures if p.labels is not None])
        parts = {"present": loss.present, "main": loss.main, "box": loss.box, "place": loss.place}
        return loss.total, {**{name: float(part.detach()) for name, part in parts.items()}, "cell_acc": loss.accuracy}

    def text_loss(self, shard: Shard, episodes: Sequence[TokenEpisode], sigma: float) -> dict[str, Tensor]:
        """Losses of decisions without any image: names are copied, and numbers follow from a landmark's."""
        rows = [self.rows.row(shard, episode, local=False) for episode in episodes]
        first = episodes[0].ids.astype(np.int64)
        end = int(np.flatnonzero(first == self.rows.find)[0])
        positions, _ = self.rows.positions(shard, episodes[0])
        words = np.flatnonzero(first[:end] != self.rows.pad)
        nothing = torch.zeros((0, 2), dtype=torch.int64, device=self.device)
        prefix = Batch(self._tensor(first[words][None]), positions[:, None, words], None, nothing)
        _, past = read_text(self.text, prefix)
        losses, _, _ = self._rows_loss(rows, past, None, sigma, None)
        return losses

    def crops_loss(
        self, shard: Shard, searches: Sequence[TokenEpisode], weights: Weights
    ) -> tuple[Tensor, dict[str, float]]:
        """Perception alone: what is where in zooms, many short sentences on each, without an episode around them."""
        rows = [self.rows.crop_row(shard, episode) for episode in searches]
        features, cells, accuracy = self._zooms(shard, rows)
        losses, looks, scores = self._rows_loss(rows, None, features, weights.sigma, 0)
        total = weights.cells * cells + 0.2 * losses["call"] + _taught(losses) + weights.looks * looks
        found = {"acc": accuracy, **_floats(losses), "look": float(looks.detach()), **scores}
        return total, {f"crop_{name}": value for name, value in found.items()}

    def scene_loss(self, shard: Shard, plan: Plan, weights: Weights) -> tuple[Tensor, dict[str, float]]:
        """What is learned behind one reading of the overview."""
        log: dict[str, float] = {}
        total = torch.zeros((), device=self.device)
        with torch.set_grad_enabled(plan.taught):
            overview = self.overview(shard)
        if plan.taught:
            labels = shard.pictures[0].labels
            assert labels is not None
            cells = cell_loss(self.heads, overview.tokens, [labels])
            total = total + weights.cells * cells.total
            log["v0_acc"] = cells.accuracy
        past, start = self._read_prefix(shard, shard.decisions[0], overview)
        aims = [self.rows.aim_row(shard, episode) for episode in plan.aims]
        # Half of the decisions are short: padding those to the longest would cost as much again.
        rows = sorted((self.rows.row(shard, e, local=False) for e in plan.decisions), key=lambda row: len(row.ids))
        groups: list[tuple[str, list[Row], dict[int, tuple[Tensor, list[Tensor]]] | None]]
        groups = [("aim", aims, None), ("short", rows[: len(rows) // 2], None), ("long", rows[len(rows) // 2 :], None)]
        if plan.searches:
            rows = [self.rows.row(shard, e, local=True) for e in plan.searches]
            features, cells_total, log["zoom_acc"] = self._zooms(shard, rows)
            total = total + weights.cells * cells_total
            groups.append(("search", rows, features))
        for name, part, seen in groups:
            if part:
                losses, looks, scores = self._rows_loss(part, past, seen, weights.sigma, start)
                total = total + losses["call"] + _taught(losses) + weights.looks * looks
                log |= {f"{name}_{key}": value for key, value in {**_floats(losses), **scores}.items()}
                log[f"{name}_look"] = float(looks.detach())
        return total, log

    def _read_prefix(self, shard: Shard, episode: TokenEpisode, overview: Features) -> tuple[Past, int]:
        """Keys and values of the shared prefix, and where the overview begins in it."""
        ids = episode.ids.astype(np.int64)
        end = int(np.flatnonzero(ids == self.rows.find)[0])
        positions, _ = self.rows.positions(shard, episode)
        places = np.flatnonzero(ids[:end] == self.rows.pad)
        image_rows = self._tensor(np.stack([np.zeros_like(places), places], axis=1))
        batch = Batch(self._tensor(ids[None, :end]), positions[:, None, :end], None, image_rows)
        batch.images, batch.deep = overview.tokens[0], [deep[0] for deep in overview.deep]
        return read_text(self.text, batch)[1], int(places[0])

    def _zooms(self, shard: Shard, rows: Sequence[Row]) -> tuple[dict[int, tuple[Tensor, list[Tensor]]], Tensor, float]:
        """Features of the pictures of rows, by number, and their dense loss."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for number in dict.fromkeys(n for row in rows for n in row.pictures):
            groups.setdefault(shard.pictures[number].image.shape, []).append(number)
        found: dict[int, tuple[Tensor, list[Tensor]]] = {}
        total, accuracy = torch.zeros((), device=self.device), []
        for numbers in groups.values():
            features = encode_images(self.visual, np.stack([shard.pictures[n].image for n in numbers]))
            for k, n in enumerate(numbers):
                found[n] = features.tokens[k], [deep[k] for deep in features.deep]
            labels = [label for n in numbers if (label := shard.pictures[n].labels) is not None]
            if labels:
                cells = cell_loss(self.heads, features.tokens, labels)
                total = total + cells.total * (len(labels) / sum(len(g) for g in groups.values()))
                accuracy.append(cells.accuracy)
        return found, total, float(np.mean(accuracy)) if accuracy else 0.0

    def _rows_loss(
        self,
        rows: Sequence[Row],
        past: Past | None,
        features: dict[int, tuple[Tensor, list[Tensor]]] | None,
        sigma: float,
        overview_start: int | None,
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, float]]:
        """Losses of calls and of numbers, the loss of where they look, and how good the numbers are.

        `overview_start` is where the overview begins in the prefix, None where it is left out.
        """
        prefix = past.length if past is not None else 0
        batch = pad_batch(
            [r.ids for r in rows], [r.positions for r in rows], [r.seen for r in rows], prefix, self.device
        )
        if features:
            at = [(b, int(i)) for b, row in enumerate(rows) for i in np.flatnonzero(row.ids == self.rows.pad)]
            batch.image_rows = torch.tensor(at, device=self.device).view(-1, 2)
            order = [features[n] for row in rows for n in row.pictures]
            if order:
                batch.images = torch.cat([tokens for tokens, _ in order])
                batch.deep = [torch.cat(level) for level in zip(*(deep for _, deep in order), strict=True)]
        spots = [(b, i - 1) for b, row in enumerate(rows) for span in row.learned for i in range(*span)]
        seen = [(b, i - 1, v, box) for b, row in enumerate(rows) for span, v, box in row.looked_at for i in span]
        looks = None
        if overview_start is not None and seen:
            looks = Looks(LOOK_LAYERS, LOOK_HEADS, torch.tensor([(b, i) for b, i, _, _ in seen], device=self.device))
        hidden, _ = read_text(self.text, batch, past, looks)
        where = torch.tensor(spots, device=self.device)
        logits = self.head(hidden[where[:, 0], where[:, 1]])
        targets = batch.ids[where[:, 0], where[:, 1] + 1]
        loss = self.numbers(logits, targets, sigma)
        is_number = self.numbers.value[targets] >= 0
        zero = torch.zeros((), device=self.device)
        parts = {
            "call": loss[~is_number].mean() if bool((~is_number).any()) else zero,
            "number": loss[is_number].mean() if bool(is_number.any()) else zero,
        }
        parts["corners"] = self._corners_loss(hidden, rows)
        scores = self._scores(logits.detach(), where, rows)
        if looks is None or overview_start is None:
            return parts, zero, scores
        return parts, self._look_loss(looks, rows, seen, prefix, overview_start), scores

    def _corners_loss(self, hidden: Tensor, rows: Sequence[Row]) -> Tensor:
        """Mean distance of all four numbers, in views, read before each: it brings the place to where it is said."""
        spots = [(b, i - 1) for b, row in enumerate(rows) for span, _, _ in row.looked_at for i in span]
        if not spots:
            return torch.zeros((), device=self.device)
        boxes = [self.rows.values[row.ids[list(span)]] for row in rows for span, _, _ in row.looked_at for _ in span]
        at = torch.tensor(spots, device=self.device)
        said = self.heads.corners(hidden[at[:, 0], at[:, 1]])
        return (said - self._tensor(np.stack(boxes).astype(np.float32) / UNIT_MAX)).abs().mean()

    def _look_loss(
        self,
        looks: Looks,
        rows: Sequence[Row],
        seen: Sequence[tuple[int, int, int, UnitBox]],
        prefix: int,
        overview_start: int,
    ) -> Tensor:
        losses = []
        for number, (b, _, view, box) in enumerate(seen):
            if view == 0:
                start, shape = overview_start, (24, 24)
            else:
                pads = np.flatnonzero(rows[b].ids == self.rows.pad)
                runs = np.split(pads, np.flatnonzero(np.diff(pads) > 1) + 1)
                start, length = prefix + int(runs[view - 1][0]), len(runs[view - 1])
                side = int(np.sqrt(length))
                if side * side != length:
                    continue
                shape = (side, side)
            warm = self._tensor(heat(box, *shape))
            for logits in looks.logits:
                part = logits[number, :, start : start + len(warm)].log_softmax(-1)
                losses.append(-(part * warm).sum(-1).mean())
        return torch.stack(losses).mean() if losses else torch.zeros((), device=self.device)

    def _scores(self, logits: Tensor, where: Tensor, rows: Sequence[Row]) -> dict[str, float]:
        """Mean IoU of boxes and share of good aims, each number written after the right ones before it."""
        guess = self.numbers.guess(logits).cpu()
        index = {(int(b), int(i)): n for n, (b, i) in enumerate(where.tolist())}
        ious, aims = [], []
        for b, row in enumerate(rows):
            for span, view, _ in row.looked_at:
                found = [index.get((b, i - 1)) for i in span]
                if len(found) != 4 or None in found:
                    continue
                said = [int(guess[n]) for n in found if n is not None]
                true = [int(self.rows.values[row.ids[i]]) for i in span]
                ious.append(_iou(said, true))
                if view == 0:
                    # The far corner follows from the near one, so the near one tells whether the object will be seen.
                    off = max(abs(said[0] - true[0]), abs(said[1] - true[1]))
                    aims.append(off <= AIM_SHARE * (true[2] - true[0]))
        scores = {"iou": float(np.mean(ious))} if ious else {}
        return scores | ({"aim": float(np.mean(aims))} if aims else {})


def _taught(losses: dict[str, Tensor]) -> Tensor:
    return losses["number"] + CORNERS * losses["corners"]


def _floats(losses: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(loss.detach()) for name, loss in losses.items()}


def _iou(a: Sequence[int], b: Sequence[int]) -> float:
    w = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    h = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    union = max(0, a[2] - a[0]) * max(0, a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h
    return w * h / union if union > 0 else 0.0
