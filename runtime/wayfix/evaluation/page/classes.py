"""What became of a query, in one word: how a page groups its queries."""

from __future__ import annotations

from wayfix.agent.result import NOT_FOUND, OK
from wayfix.evaluation.outcome import Outcome

TIGHT_IOU = 0.5
"""The BEV IoU from which a hit is called tight (Urbex, Equation 6)."""

CLASSES: dict[str, tuple[str, str]] = {
    "tight": (f"Hit, IoU ≥ {TIGHT_IOU:g}", "the target, with a box that fits it"),
    "loose": ("Hit, loose box", f"the target is overlapped best, with an IoU below {TIGHT_IOU:g}"),
    "wrong": ("Reached, wrong object", "some zoom held the target's centre, the answer is another object"),
    "away": ("Region never reached", "no zoom held the target's centre, and the answer is another object"),
    "false_none": ("False “not found”", "the target is there, the answer was that it is not"),
    "right_none": ("Right “not found”", "the scene holds no such object, and that was the answer"),
    "missed_none": ("Missed absence", "the scene holds no such object, but a box was answered"),
    "failed": ("Partial or failed", "the search ended without a final answer"),
}
"""Key -> title and explanation, in the order they are shown."""


def class_of(outcome: Outcome) -> str:
    """The class of an outcome, a key of CLASSES.

    Where candidates are not known, an answer that overlaps the target counts as a hit: nothing better can be told.
    """
    if outcome.code not in (OK, NOT_FOUND):
        return "failed"
    if outcome.target is None:
        return "right_none" if outcome.code == NOT_FOUND else "missed_none"
    if outcome.code == NOT_FOUND:
        return "false_none"
    overlap = outcome.iou_2d or 0.0
    if outcome.hit() if outcome.candidates else overlap > 0:
        return "tight" if overlap >= TIGHT_IOU else "loose"
    return "wrong" if outcome.region_reached else "away"
