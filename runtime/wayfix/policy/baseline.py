"""The model-free baseline: what a vision-language model has to beat.

It takes the sentence apart, looks its names up, zooms where the relations point to, finds candidates by colour and
height, ranks them by the relations, looks closer at the best one, and answers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from wayfix.agent.deadline import Deadline
from wayfix.agent.messages import Prompt
from wayfix.agent.protocol import format_answer, format_call, format_not_found
from wayfix.geo.boxes import UNIT_MAX, UnitBox, WorldBox, hull, iou_bev
from wayfix.geo.relations import ALONG_ROAD_M, NEAR_GAP_M
from wayfix.policy.detection import Candidate, find_candidates
from wayfix.policy.interface import Alternative, Chunk
from wayfix.policy.query import Description, Query, Relation, parse_query
from wayfix.policy.ranking import Place, Ranked, rank
from wayfix.views.view import ImageSizes, View

MIN_SCORE = 0.4
"""Below it the answer is 'not found'; chosen on training scenes (docs/paper-choices.md)."""

MAX_SEARCH_VIEW_M = 150.0
"""A search view is at most this wide: 768 px then show 0.2 m, and a car is 9 pixels wide."""

MAX_SEARCH_VIEWS = 4
FAR_M = 160.0
"""How far 'left of' and its like reach when a region is chosen."""

CLOSE_UP_M = 24.0
MAX_ALTERNATIVES = 4


@dataclass
class _Seen:
    """What the history tells: names looked up, and the views made by zooming."""

    places: dict[str, Place] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    zooms: list[View] = field(default_factory=list)
    overview: View | None = None


class BaselinePolicy:
    """Keeps nothing between turns: everything is read from the prompt, so episodes may be interleaved freely."""

    name = "baseline"

    def __init__(self, sizes: ImageSizes | None = None) -> None:
        self.sizes = sizes or ImageSizes()
        # The same view is searched in several turns; views are told apart by identity.
        self._find = lru_cache(maxsize=32)(_find)

    def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
        """One turn: look a name up, zoom, look closer, or answer."""
        query = parse_query(prompt.query)
        seen = _read_history(prompt)
        assert seen.overview is not None and seen.overview.transform is not None, "the first view is the whole scene"
        if prompt.must_call:
            yield self._step(prompt.must_call, query, seen)
            return
        can_act = not prompt.must_answer
        offered = {tool["function"]["name"] for tool in prompt.tools}

        unknown = [name for name in query.names if name not in seen.asked]
        if can_act and unknown and "landmark_query" in offered:
            yield Chunk(format_call("landmark_query", {"landmark_name": unknown[0], "source_view_id": "v0"}))
            return
        if query.name and query.name in seen.places and not query.relations:
            yield self._named(query, seen, can_act)
            return
        if query.target.kind is None and not query.relations and query.name in seen.asked:
            yield Chunk(format_not_found())
            return
        regions = _search_regions(query, seen)
        if can_act and len(seen.zooms) < len(regions):
            yield Chunk(_zoom_call(seen.overview, regions[len(seen.zooms)]))
            return
        deadline.check()
        ranked = self._rank(query, seen, seen.zooms[: len(regions)] or [seen.overview])
        deadline.check()
        if can_act and len(seen.zooms) == len(regions) and ranked and ranked[0].score >= MIN_SCORE:
            box = ranked[0].candidate.box
            close = WorldBox(*box.center, *box.center).grown(max(CLOSE_UP_M / 2, max(box.width, box.height)))
            yield Chunk(_zoom_call(seen.overview, close))
            return
        yield self._answer(query, seen, ranked)

    def _step(self, tool: str, query: Query, seen: _Seen) -> Chunk:
        """One step of a fixed workflow: the name, the ground its relation leaves, a look at the best candidate."""
        assert seen.overview is not None
        regions = _search_regions(query, seen)
        if tool == "landmark_query":
            name = next((name for name in query.names if name not in seen.asked), query.name or "landmark")
            return Chunk(format_call(tool, {"landmark_name": name, "source_view_id": "v0"}))
        if tool == "zoom_in":
            return Chunk(_zoom_call(seen.overview, hull(regions)))
        view = seen.zooms[-1] if seen.zooms else seen.overview
        ranked = self._rank(query, seen, [view])
        box = _unit(view, ranked[0].candidate.box if ranked else view.region) or (0, 0, UNIT_MAX, UNIT_MAX)
        return Chunk(format_call(tool, {"source_view_id": view.id, "candidate_box": list(box), "direction": "south"}))

    def forget(self, episode_id: str) -> None:
        """Drop the candidates found so far; they are per view, and views belong to an episode."""
        self._find.cache_clear()

    def _named(self, query: Query, seen: _Seen, can_act: bool) -> Chunk:
        """The named place itself is meant: zoom to it for a finer answer, then give its box."""
        assert seen.overview is not None
        place = seen.places[query.name]
        if can_act and not seen.zooms:
            return Chunk(_zoom_call(seen.overview, place.box.grown(0.1 * max(place.box.width, place.box.height) + 2.0)))
        view = seen.zooms[-1] if seen.zooms else seen.overview
        box = _unit(view, place.box)
        return Chunk(format_answer(view.id, box), confidence=0.9) if box else Chunk(format_not_found())

    def _rank(self, query: Query, seen: _Seen, views: list[View]) -> list[Ranked]:
        target = query.target if query.target.kind else Description("building", "", query.target.color)

        @cache  # asked for once per candidate
        def everywhere(described: Description) -> list[Candidate]:
            return _merged([c for view in views for c in self._find(view, described)])

        return rank(query, everywhere(target), seen.places, everywhere)

    def _answer(self, query: Query, seen: _Seen, ranked: list[Ranked]) -> Chunk:
        if not ranked or ranked[0].score < MIN_SCORE:
            return Chunk(format_not_found(), confidence=1.0 - (ranked[0].score if ranked else 0.0))
        assert seen.overview is not None
        view = seen.zooms[-1] if seen.zooms else seen.overview
        best = ranked[0].candidate.box
        refined = self._refined(query, view, best)
        box = _unit(view, refined) or _unit(seen.overview, best)
        if box is None:
            return Chunk(format_not_found(), confidence=0.5)
        total = sum(r.score for r in ranked[: MAX_ALTERNATIVES + 1])
        rest = [(r, _unit(seen.overview, r.candidate.box)) for r in ranked[1 : MAX_ALTERNATIVES + 1]]
        return Chunk(
            format_answer(view.id if _unit(view, refined) else "v0", box),
            confidence=ranked[0].score ** 2 / total,
            alternatives=tuple(Alternative("v0", unit, r.score**2 / total) for r, unit in rest if unit),
        )

    def _refined(self, query: Query, view: View, box: WorldBox) -> WorldBox:
        """The candidate found anew in the close-up, where its edges are sharper."""
        target = query.target if query.target.kind else Description("building", "", query.target.color)
        closer = [c for c in self._find(view, target) if iou_bev(c.box, box) > 0.3]
        return max(closer, key=lambda c: (c.looks > 0.3, iou_bev(c.box, box))).box if closer else box


def _find(view: View, described: Description) -> list[Candidate]:
    return find_candidates(view, described)


def _read_history(prompt: Prompt) -> _Seen:
    seen = _Seen()
    call: dict[str, Any] = {}
    for message in prompt.messages:
        if message.role == "user" and message.views and seen.overview is None:
            seen.overview = message.views[0]
        elif message.role == "assistant":
            match = re.search(r"<tool_call>(.*?)</tool_call>", message.text, re.DOTALL)
            call = json.loads(match[1]) if match else {}
        elif message.role == "tool":
            _read_result(seen, call, json.loads(message.text.split("\n")[0]), message.views)
    return seen


def _read_result(seen: _Seen, call: dict[str, Any], content: dict[str, Any], views: tuple[View, ...]) -> None:
    if call.get("name") == "landmark_query":
        name = call["arguments"]["landmark_name"]
        seen.asked.add(name)
        described = content if content.get("status") == "found" else (content.get("candidates") or [None])[0]
        if described and seen.overview is not None:
            seen.places[name] = _place(described, seen.overview)
    elif call.get("name") == "zoom_in" and views:
        seen.zooms.append(views[0])


def _place(described: dict[str, Any], overview: View) -> Place:
    (x, y), (width, height) = described["world"]["center"], described["world"]["size_m"]
    box = WorldBox(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    if described.get("box") and overview.transform is not None:
        # The world box is centred on the centroid, which is not the middle of an odd shape; the projected box is.
        projected = overview.transform.box_to_world(tuple(described["box"]))
        cx, cy = projected.center
        box = WorldBox(cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2)
    line = described.get("line")
    if line is None or overview.transform is None:
        return Place(box, None)
    return Place(box, tuple(overview.transform.unit_to_world(u, v) for u, v in line))


def _search_regions(query: Query, seen: _Seen) -> list[WorldBox]:
    """Where to zoom: the ground that all relations to known places leave, cut into views that show a car."""
    assert seen.overview is not None
    scene = seen.overview.region
    region = scene
    for relation in query.relations:
        place = seen.places.get(relation.name)
        if place is not None:
            region = _reach(relation, place).clipped(region) or region
    columns = max(1, math.ceil(region.width / MAX_SEARCH_VIEW_M))
    rows = max(1, math.ceil(region.height / MAX_SEARCH_VIEW_M))
    while columns * rows > MAX_SEARCH_VIEWS:
        columns, rows = (columns - 1, rows) if columns >= rows else (columns, rows - 1)
    width, height = region.width / columns, region.height / rows
    overlap = 6.0
    return [
        WorldBox(
            region.min_x + i * width - overlap,
            region.min_y + j * height - overlap,
            region.min_x + (i + 1) * width + overlap,
            region.min_y + (j + 1) * height + overlap,
        ).clipped(scene)
        or scene
        for j in range(rows)
        for i in range(columns)
    ]


def _reach(relation: Relation, place: Place) -> WorldBox:
    """The ground a relation to a place can mean."""
    box = place.box
    if relation.word == "direction":
        x, y = box.center
        grow_x, grow_y = (FAR_M, FAR_M) if place.line is None else (box.width / 2 + FAR_M, box.height / 2 + FAR_M)
        x0, x1, y0, y1 = x - grow_x, x + grow_x, y - grow_y, y + grow_y
        if place.line is None:
            x0 = x if "east" in relation.direction else x0
            x1 = x if "west" in relation.direction else x1
            y0 = y if "north" in relation.direction else y0
            y1 = y if "south" in relation.direction else y1
        return WorldBox(x0, y0, x1, y1)
    if relation.word in ("side", "on") and place.line is not None:
        return box.grown(ALONG_ROAD_M + 4.0)
    return box.grown(4.0 if relation.word == "in" else NEAR_GAP_M + 6.0)


def _merged(candidates: list[Candidate]) -> list[Candidate]:
    """One candidate for what neighbouring search views both show, the one seen larger."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: -c.area_m2):
        if all(iou_bev(candidate.box, other.box) < 0.3 for other in kept):
            kept.append(candidate)
    return kept


def _zoom_call(overview: View, region: WorldBox) -> str:
    box = _unit(overview, region) or (0, 0, UNIT_MAX, UNIT_MAX)
    return format_call("zoom_in", {"source_view_id": overview.id, "crop_box": list(box)})


def _unit(view: View, box: WorldBox) -> UnitBox | None:
    assert view.transform is not None
    return view.transform.box_to_unit(box)
