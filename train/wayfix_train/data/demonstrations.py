"""Scripted searches that know the truth, run through the runtime's own episode: what the nano model starts from.

They look a name up, zoom to where the object is, and answer; some are led astray first and recover, some find that
nothing fits, and some look from the side before they speak of heights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfix.agent.episode import Episode
from wayfix.agent.messages import Prompt
from wayfix.agent.protocol import format_answer, format_call, format_not_found, parse_action
from wayfix.geo.boxes import WorldBox
from wayfix.scene.landmark_index import LandmarkMatches
from wayfix.synth.catalogue import CityObject
from wayfix.synth.city import City
from wayfix.synth.expressions import Expression
from wayfix.tools.toolbox import Toolbox
from wayfix.views.view import View

WINDOW_M = 44.0
"""Side of the ground a zoom shows: small enough to see a car's make, large enough for an aim that is 15 m off."""
WINDOW_SHARE = 1.6
"""Times the longer side of a large building."""
MAX_OFF = 0.38
"""How far off the middle of its window an object is shown, in windows: what a model's own aim will be like."""
ASTRAY_ODDS = 0.14
MISSPELT_ODDS = 0.04
NO_LANDMARK_ODDS = 0.05
LOOK_BEFORE_NOT_FOUND_ODDS = 0.5
OBLIQUE_ODDS = {"tallest": 1.0, "lowest": 1.0, "tower": 0.3}
"""By a word of the sentence, where the scene offers oblique views."""


@dataclass(frozen=True)
class Turn:
    """One assistant turn of a demonstration."""

    text: str
    learned: bool
    """Whether it is what the model should do; a turn that leads astray is only history."""


@dataclass(frozen=True)
class Demonstration:
    """An episode played to its end."""

    prompt: Prompt
    """All messages, the last an assistant's."""
    turns: tuple[Turn, ...]
    views: tuple[View, ...]


class NoLandmarks:
    """A name search that finds nothing, as where a survey lacks names."""

    def query(self, name: str, landmark_type: str | None = None, limit: int = 5) -> LandmarkMatches:
        """Nothing."""
        return LandmarkMatches("not_found", ())


class Demonstrator:
    """Plays episodes in one city."""

    def __init__(self, city: City, toolbox: Toolbox, blind: Toolbox, rng: np.random.Generator) -> None:
        """`blind` is the same toolbox with NoLandmarks."""
        self.city, self.toolbox, self.blind, self.rng = city, toolbox, blind, rng
        self.items = {item.id: item for item in city.objects}
        self.countable = [item for item in city.objects if item.kind in ("building", "car")]

    def decide(self, case: Expression) -> Demonstration:
        """Name, then the aimed zoom (not carried out) or the answer that needs none: what is learned about v0."""
        play = self._start(case)
        if case.target_id is None:
            play.say(format_not_found())
        elif self._named(case) and not play.blind:
            play.say(_answer(play.episode.views["v0"], self.items[case.target_id].box))
        else:
            play.say(_zoom(play.episode.views["v0"], self._window(self.items[case.target_id].box)))
        return play.done()

    def search(self, case: Expression, looks: bool) -> Demonstration:
        """A whole search with aims as inexact as a model's, and with what may go wrong on the way.

        `looks` says whether this city may be looked at from the side.
        """
        play = self._start(case)
        v0 = play.episode.views["v0"]
        if case.target_id is None:
            if self.rng.random() < LOOK_BEFORE_NOT_FOUND_ODDS:
                play.call(_zoom(v0, self._inexact(self._other().box)), learned=False)
            play.say(format_not_found())
            return play.done()
        target = self.items[case.target_id]
        if self._named(case) and not play.blind:
            play.say(_answer(v0, target.box))
            return play.done()
        if self.rng.random() < ASTRAY_ODDS:
            play.call(_zoom(v0, self._inexact(self._other(target.kind).box)), learned=False)
            if not _shown(target.box, play.last):
                if self.rng.random() < 0.5:
                    play.say(_zoom(v0, self._window(target.box)))
                    return play.done()
                play.call(_zoom(v0, self._inexact(target.box)), learned=False)
        else:
            play.call(_zoom(v0, self._inexact(target.box)), learned=False)
        if not _shown(target.box, play.last):
            play.say(_zoom(v0, self._window(target.box)))
            return play.done()
        if looks and self.rng.random() < _oblique_odds(case.query):
            play.call(_oblique(play.last, target.box), learned=True)
        play.say(_answer(play.last, target.box))
        return play.done()

    def _start(self, case: Expression) -> _Play:
        blind = case.landmark is not None and self.rng.random() < NO_LANDMARK_ODDS
        play = _Play(Episode(case.query, self.blind if blind else self.toolbox), blind)
        if case.landmark is not None:
            name = self._spoken(case)
            misspelt = self.rng.random() < MISSPELT_ODDS
            call = {"landmark_name": self._misspelt(name) if misspelt else name, "source_view_id": "v0"}
            play.call(format_call("landmark_query", call), learned=not misspelt)
        return play

    def _spoken(self, case: Expression) -> str:
        """The landmark's name as the sentence gives it."""
        mark = next(mark for mark in self.city.landmarks if mark.name == case.landmark)
        lowered = case.query.lower()
        for name in sorted((mark.name, *mark.aliases), key=len, reverse=True):
            at = lowered.find(name.lower())
            if at >= 0:
                return case.query[at : at + len(name)]
        return mark.name

    def _misspelt(self, name: str) -> str:
        at = int(self.rng.integers(1, len(name)))
        return name[:at] + name[at + 1 :] if self.rng.random() < 0.5 else name[:at] + name[at - 1] + name[at:]

    def _named(self, case: Expression) -> bool:
        return case.target_id is not None and self.items[case.target_id].name == case.landmark is not None

    def _other(self, kind: str | None = None) -> CityObject:
        items = [item for item in self.countable if kind is None or item.kind == kind]
        return items[int(self.rng.integers(len(items)))]

    def _window(self, box: WorldBox) -> WorldBox:
        """The ground to zoom to: the object in its middle, moved into the scene where it stands at the edge."""
        half = max(WINDOW_M, WINDOW_SHARE * max(box.width, box.height)) / 2
        return _placed(box.center, half, self.city.extent)

    def _inexact(self, box: WorldBox) -> WorldBox:
        half = max(WINDOW_M, WINDOW_SHARE * max(box.width, box.height)) / 2
        off = np.clip(self.rng.normal(0, 0.17, 2), -MAX_OFF, MAX_OFF) * 2 * half
        half *= float(self.rng.uniform(0.9, 1.15))
        return _placed((box.center[0] + off[0], box.center[1] + off[1]), half, self.city.extent)


class _Play:
    """An episode under way."""

    def __init__(self, episode: Episode, blind: bool) -> None:
        self.episode, self.blind = episode, blind
        self.turns: list[Turn] = []

    @property
    def last(self) -> View:
        """The last view in which a box can be given."""
        return [view for view in self.episode.views.values() if view.bev][-1]

    def call(self, text: str, learned: bool) -> None:
        """Say a call and carry it out."""
        self.say(text, learned)
        _, action = parse_action(text)
        self.episode.execute(action)  # type: ignore[arg-type]

    def say(self, text: str, learned: bool = True) -> None:
        """Say a turn."""
        self.turns.append(Turn(text, learned))
        self.episode.said(text)

    def done(self) -> Demonstration:
        """The played episode."""
        prompt = self.episode.prompt(must_answer=False)
        return Demonstration(prompt, tuple(self.turns), tuple(self.episode.views.values()))


def _placed(center: tuple[float, float], half: float, scene: WorldBox) -> WorldBox:
    half = min(half, scene.width / 2, scene.height / 2)
    x = min(max(center[0], scene.min_x + half), scene.max_x - half)
    y = min(max(center[1], scene.min_y + half), scene.max_y - half)
    return WorldBox(x - half, y - half, x + half, y + half)


def _shown(box: WorldBox, view: View) -> bool:
    """Whether a view shows nearly all of an object."""
    part = box.clipped(view.region)
    return part is not None and part.area >= 0.9 * box.area


def _zoom(view: View, region: WorldBox) -> str:
    return format_call("zoom_in", {"source_view_id": view.id, "crop_box": _unit(view, region)})


def _oblique(view: View, box: WorldBox) -> str:
    arguments: dict[str, Any] = {"source_view_id": view.id, "candidate_box": _unit(view, box), "direction": "south"}
    return format_call("oblique_render", arguments)


def _answer(view: View, box: WorldBox) -> str:
    return format_answer(view.id, tuple(_unit(view, box)))  # type: ignore[arg-type]


def _unit(view: View, box: WorldBox) -> list[int]:
    """The nearest whole units: an answer's edge is as often inside the true one as outside."""
    assert view.transform is not None
    x0, y0 = view.transform.world_to_unit(box.min_x, box.max_y)
    x1, y1 = view.transform.world_to_unit(box.max_x, box.min_y)
    a, b, c, d = (min(1000, max(0, round(v))) for v in (x0, y0, x1, y1))
    return [min(a, 999), min(b, 999), max(c, min(a, 999) + 1), max(d, min(b, 999) + 1)]


def _oblique_odds(query: str) -> float:
    return max((odds for word, odds in OBLIQUE_ODDS.items() if word in query.lower()), default=0.0)
