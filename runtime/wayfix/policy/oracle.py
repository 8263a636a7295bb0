"""A policy that knows the truth and can only act through the tools: what it misses, the tools lose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wayfix.agent.deadline import Deadline
from wayfix.agent.messages import Prompt
from wayfix.agent.protocol import format_answer, format_call, format_not_found
from wayfix.geo.boxes import WorldBox
from wayfix.policy.interface import Chunk
from wayfix.views.view import ImageSizes, View

AROUND_M = 30.0
"""The first zoom shows this much ground around the target, the second a quarter of its size."""


class OraclePolicy:
    """Zooms to the target, zooms closer, answers its box in the closest view."""

    name = "oracle"

    def __init__(self, truths: Mapping[str, WorldBox | None], sizes: ImageSizes | None = None) -> None:
        """`truths`: the true box by query, None where the scene holds no such object."""
        self.sizes = sizes or ImageSizes()
        self._truths = truths

    def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
        """The next step towards the known box."""
        deadline.check()
        target = self._truths[prompt.query]
        views = [view for message in prompt.messages for view in message.views if view.bev]
        if target is None and not prompt.must_call:
            yield Chunk(format_not_found(), confidence=1.0)
            return
        # In a fixed workflow an absent object still has to be searched; the middle of the scene is as good as any.
        wanted = target or WorldBox(*views[0].region.center, *views[0].region.center).grown(5.0)
        offered = {tool["function"]["name"] for tool in prompt.tools}
        free_zooms = 2 if "zoom_in" in offered and not prompt.must_answer else 0
        tool = prompt.must_call or ("zoom_in" if len(views) - 1 < free_zooms else None)
        yield Chunk(_act(tool, wanted, views, prompt.query)) if tool else Chunk(_answer(wanted, views[-1]), 1.0)

    def forget(self, episode_id: str) -> None:
        """Nothing is kept."""


def _act(tool: str, target: WorldBox, views: list[View], query: str) -> str:
    view = views[-1]
    assert view.transform is not None
    if tool == "landmark_query":
        return format_call(tool, {"landmark_name": query[:200], "source_view_id": view.id})
    margin = AROUND_M if tool == "zoom_in" and len(views) == 1 else 0.25 * max(target.width, target.height)
    box = view.transform.box_to_unit(target.grown(margin) if tool == "zoom_in" else target)
    arguments = {
        "source_view_id": view.id,
        "crop_box" if tool == "zoom_in" else "candidate_box": list(box or (0, 0, 1000, 1000)),
    }
    return format_call(tool, arguments if tool == "zoom_in" else {**arguments, "direction": "south"})


def _answer(target: WorldBox, view: View) -> str:
    assert view.transform is not None
    box = view.transform.box_to_unit(target)
    return format_answer(view.id, box) if box is not None else format_not_found()
