"""What the nano model is taught besides the next token: where numbers lie near each other, and what stands where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from wayfix.geo.boxes import UNIT_MAX, UnitBox
from wayfix_train.data.cells import CLASSES, CellLabels
from wayfix_train.nano.layout import MERGE

CELLS = MERGE * MERGE
"""Cells of a token."""
MAX_BOX_CELLS = 12.0
"""Edges farther than this from a cell are not asked for: no single token knows the ends of a hall."""


class CellHeads(nn.Module):
    """Reads what a state should hold: of an image token, what stands in its cells; in training only."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.present = nn.Linear(hidden, CELLS * len(CLASSES))
        self.main = nn.Linear(hidden, CELLS * (len(CLASSES) + 1))
        self.box = nn.Linear(hidden, CELLS * 4)
        self.place = nn.Linear(hidden, 2)
        self.corners = nn.Linear(hidden, 4)
        """Reads the whole box from the state before each of its numbers."""
        nn.init.constant_(self.present.bias, -4.0)


@dataclass(frozen=True)
class CellLoss:
    """Parts of the dense loss of one image or several of one size."""

    present: Tensor
    main: Tensor
    box: Tensor
    place: Tensor
    accuracy: float
    """Of the main class, over cells where something stands."""

    @property
    def total(self) -> Tensor:
        """The weighted sum: each part is of the order of one when nothing is known."""
        return 12.0 * self.present + self.main + 3.0 * self.box + 5.0 * self.place


def cell_loss(heads: CellHeads, tokens: Tensor, labels: Sequence[CellLabels]) -> CellLoss:
    """Dense loss of images of one size; tokens (N, T, hidden)."""
    count, length, _ = tokens.shape
    device = tokens.device
    rows, columns = labels[0].rows, labels[0].columns
    order = _block_order(rows, columns)
    classes = len(CLASSES)
    present = np.zeros((count, rows * columns, classes), np.float32)
    for number, label in enumerate(labels):
        present[number, label.present[:, 0], label.present[:, 1]] = 1
    main = np.stack([label.main for label in labels]).astype(np.int64) + 1
    boxes = np.stack([label.box for label in labels])
    wanted = torch.from_numpy(present[:, order].reshape(count, length, CELLS, classes)).to(device)
    said = heads.present(tokens).view(count, length, CELLS, classes)
    right = torch.from_numpy(main[:, order]).to(device).flatten()
    guess = heads.main(tokens).view(-1, classes + 1)
    stands = right > 0
    box = torch.from_numpy(boxes[:, order]).to(device).reshape(-1, 4)
    near = stands & (box.abs().amax(1) < MAX_BOX_CELLS)
    said_box = heads.box(tokens).view(-1, 4)[near]
    down, across = np.divmod(np.arange(length), columns // MERGE)
    place = np.stack([(across + 0.5) * MERGE / columns, (down + 0.5) * MERGE / rows], axis=1).astype(np.float32)
    weight = torch.ones(classes + 1, device=device)
    weight[0] = 0.3
    return CellLoss(
        functional.binary_cross_entropy_with_logits(said, wanted),
        functional.cross_entropy(guess, right, weight=weight),
        _edge_error(said_box, box[near]) if bool(near.any()) else said_box.sum(),
        (heads.place(tokens) - torch.from_numpy(place).to(device)).abs().mean(),
        float((guess.detach().argmax(1) == right)[stands].float().mean()) if bool(stands.any()) else 0.0,
    )


def _edge_error(said: Tensor, box: Tensor) -> Tensor:
    """Mean distance of edges in sizes of their object: half a metre is much for a car and little for a hall."""
    size = (box[:, 2:] - box[:, :2]).clamp(min=1.0).repeat(1, 2)
    return ((said - box).abs() / size).mean()


def _block_order(rows: int, columns: int) -> NDArray[np.int64]:
    """Cells in the order of tokens, the cells of each token together."""
    blocks = np.arange(rows * columns).reshape(rows // MERGE, MERGE, columns // MERGE, MERGE)
    return blocks.transpose(0, 2, 1, 3).ravel()


class NumberLoss:
    """Cross-entropy in which a number near the right one is nearly right."""

    def __init__(self, numbers: Sequence[int], vocabulary: int, device: torch.device | None = None) -> None:
        """`numbers` are the tokens of 0 to 1000, in order."""
        self.numbers = torch.tensor(numbers, device=device)
        self.value = torch.full((vocabulary,), -1, device=device)
        self.value[self.numbers] = torch.arange(UNIT_MAX + 1, device=device)

    def __call__(self, logits: Tensor, targets: Tensor, sigma: float) -> Tensor:
        """(R,) losses; a number's target is a Gaussian of `sigma` units around it."""
        log_probs = functional.log_softmax(logits, dim=-1)
        loss = -log_probs.gather(1, targets[:, None])[:, 0]
        value = self.value[targets]
        number = value >= 0
        if sigma > 0 and bool(number.any()):
            away = torch.arange(UNIT_MAX + 1, device=logits.device)[None] - value[number][:, None]
            soft = torch.softmax(-0.5 * (away / sigma) ** 2, dim=1)
            loss = loss.masked_scatter(number, -(soft * log_probs[number][:, self.numbers]).sum(1))
        return loss

    def guess(self, logits: Tensor) -> Tensor:
        """The likeliest number, (R,)."""
        return logits[:, self.numbers].argmax(dim=1)


def heat(box: UnitBox, rows: int, columns: int) -> NDArray[np.float32]:
    """How much of a box in units lies in each token of an image of rows x columns tokens; sums to 1."""
    x = np.arange(columns + 1) * (UNIT_MAX / columns)
    y = np.arange(rows + 1) * (UNIT_MAX / rows)
    across = np.clip(np.minimum(box[2], x[1:]) - np.maximum(box[0], x[:-1]), 0, None)
    down = np.clip(np.minimum(box[3], y[1:]) - np.maximum(box[1], y[:-1]), 0, None)
    found = np.outer(down, across).ravel().astype(np.float32)
    return found / max(float(found.sum()), 1e-6)
