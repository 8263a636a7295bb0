"""Box conformance: a box means the same pixels for checkpoint and engine, whatever an image was resized to.

Models see integers 0 to 1000 in each view. An engine that resizes, pads or crops otherwise than its checkpoint's
processor answers boxes that are shifted, and no other check shows it. Two things are compared, at many aspect ratios
and resolutions:

- geometry: a mark is drawn where a box is given, and found again in the patches that the model reads;
- forced decoding: the text of an answer with that box is as likely to the engine as to the checkpoint.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wayfix.agent.messages import Message, Prompt
from wayfix.agent.protocol import format_answer
from wayfix.geo.boxes import UNIT_MAX, UnitBox, WorldBox
from wayfix.geo.transforms import ViewTransform
from wayfix.policy.engine.chat import Chat
from wayfix.policy.engine.images import ImageSpec, Patches, make_patches, picture_of
from wayfix.policy.engine.manifest import Precisions
from wayfix.policy.engine.sampling import log_probability
from wayfix.views.view import View
from wayfix_export.checks import BOX_UNITS, FORCED_LOG_PROB, Check
from wayfix_export.reference import Reference, ReferencePatches
from wayfix_export.runner import GraphRunner

ASPECTS = (1 / 4, 1 / 3, 1 / 2, 9 / 16, 2 / 3, 3 / 4, 1.0, 4 / 3, 3 / 2, 16 / 9, 2.0, 3.0)
LONG_SIDES = (250, 333, 448, 600, 777)
_GREY, _MARK = 96, 250


Edges = tuple[float, float, float, float]
"""Left, top, right, bottom in units of 1000, not rounded."""


def box_conformance(
    reference: Reference, runner: GraphRunner, chat: Chat, spec: ImageSpec, precision: Precisions
) -> list[Check]:
    """Both comparisons over all aspect ratios and long sides."""
    rng = np.random.default_rng(12)
    ours_off, theirs_off, differences = [], [], []
    for number, (aspect, side) in enumerate((a, s) for a in ASPECTS for s in LONG_SIDES):
        image, edges = marked_image(aspect, side, rng)
        ours, theirs = make_patches(image, spec), reference.patches(image)
        ours_off.append(units_off(picture_of(ours, spec), edges))
        theirs_off.append(units_off(picture_of(Patches(theirs.pixels, *theirs.grid), spec), edges))
        if number % (len(LONG_SIDES) + 1) == 0:
            differences.append(_forced(reference, runner, chat, ours, theirs, image, edges))
    count = f"{len(ASPECTS)} aspect ratios at {len(LONG_SIDES)} resolutions"
    forced = f"mean log-probability by which forced answers differ, worst of {len(differences)}"
    return [
        Check("boxes, engine", max(ours_off), BOX_UNITS, f"units of 1000 that a mark is off, {count}"),
        Check("boxes, checkpoint", max(theirs_off), BOX_UNITS, f"the same through its own processor, {count}"),
        Check("forced boxes", max(differences), FORCED_LOG_PROB[precision.decoder], forced),
    ]


def marked_image(aspect: float, side: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], Edges]:
    """A grey RGB image of this aspect ratio (width / height) and long side with a bright rectangle, and its edges."""
    height, width = (round(side / aspect), side) if aspect >= 1 else (side, round(side * aspect))
    lengths = [int(rng.integers(extent // 5, extent // 2)) for extent in (width, height)]
    # Off the border, where resizing has no neighbours to mix.
    x, y = (int(rng.integers(8, extent - length - 8)) for extent, length in zip((width, height), lengths, strict=True))
    image = np.full((height, width, 3), _GREY, np.uint8)
    image[y : y + lengths[1], x : x + lengths[0]] = _MARK
    left, top = x / width * UNIT_MAX, y / height * UNIT_MAX
    return image, (left, top, left + lengths[0] / width * UNIT_MAX, top + lengths[1] / height * UNIT_MAX)


def units_off(picture: NDArray[np.float32], edges: Edges) -> float:
    """How far the mark's edges are from where they belong, in units of 1000, whatever size the picture has."""
    mark = (picture.mean(axis=2) - _GREY) / (_MARK - _GREY)
    found: list[float] = []
    for axis in (0, 1):
        profile = mark.sum(axis=axis)
        # A blurred edge keeps its place, though it rings: the rectangle's centre and length follow from sums.
        inside = np.median(profile[profile > profile.max() / 2])
        length = profile.sum() / inside
        centre = (profile * (np.arange(len(profile)) + 0.5)).sum() / profile.sum()
        found += [(centre - length / 2) / len(profile) * UNIT_MAX, (centre + length / 2) / len(profile) * UNIT_MAX]
    wanted = (edges[0], edges[2], edges[1], edges[3])
    return max(abs(a - b) for a, b in zip(found, wanted, strict=True))


def _forced(
    reference: Reference,
    runner: GraphRunner,
    chat: Chat,
    ours: Patches,
    theirs: ReferencePatches,
    image: NDArray[np.uint8],
    edges: Edges,
) -> float:
    """By how much engine and checkpoint differ in how likely they hold an answer with this box, per token."""
    height, width = image.shape[:2]
    extent = WorldBox(0, 0, width, height)
    view = View("v0", image, extent, ViewTransform.north_up(extent, width, height))
    asked = (Message("system", ("Boxes are integers 0 to 1000.",)), Message("user", (view, "Find: the bright box.")))
    box: UnitBox = (math.floor(edges[0]), math.floor(edges[1]), math.ceil(edges[2]), math.ceil(edges[3]))
    before = chat.tokens(Prompt((), asked, "", must_answer=True))
    answered = (*asked, Message("assistant", (format_answer("v0", box),)))
    whole = chat.tokens(Prompt((), answered, "", must_answer=True))
    start, ids = len(before.ids), whole.ids.tolist()
    before_each = np.arange(start - 1, len(ids) - 1)
    both = runner.read(whole, [ours], before_each)["logits"], reference.logits(ids, [theirs], before_each)
    # What follows the answer's own tokens, the end of the turn and the next one's beginning, is the same for every box.
    means = [
        np.mean([log_probability(row, token) for row, token in zip(logits, ids[start:], strict=True)])
        for logits in both
    ]
    return float(abs(means[0] - means[1]))
