"""`wayfix demo`: a small city, three sentences, three boxes on the map, each compared with the truth."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from wayfix.agent.draw import draw_episode
from wayfix.agent.loop import Grounder
from wayfix.cli import describe, save_picture
from wayfix.geo.boxes import WorldBox, iou_bev
from wayfix.policy.baseline import BaselinePolicy
from wayfix.scene.scene import Scene
from wayfix.synth.city import CityConfig, build_city
from wayfix.synth.expressions import make_expressions
from wayfix.synth.write import write_city

DEMO_CITY = CityConfig(seed=7, split="test")
DEMO_EXPRESSIONS = 60
DEMO_QUERIES = (
    "the black car next to the orange truck to the south of Aniilo Car Park",
    "the white van parked in the Car Park of Ebeevi Cottage",
    "The building with a blue roof next to the black car to the east of Utouto Car Park.",
)
BUDGET_S = 10.0
GOOD_IOU = 0.5


@dataclass(frozen=True)
class DemoAnswer:
    """One query of the demo, and how well its box fits the truth."""

    query: str
    iou: float
    picture: Path
    geojson: Path


def run_demo(out: Path) -> int:
    """Build the demo city in `out`/scene, answer its queries with a picture and a GeoJSON each. 0 if all are right."""
    print(f"Building a city of {DEMO_CITY.size_m:.0f} x {DEMO_CITY.size_m:.0f} m in {out / 'scene'} ...", flush=True)
    started = time.monotonic()
    city = build_city(DEMO_CITY)
    expressions = make_expressions(city, DEMO_EXPRESSIONS, DEMO_CITY.seed)
    write_city(out / "scene", city, expressions, scene_id="demo", replace=True)
    buildings = sum(o.kind == "building" for o in city.objects)
    cars = sum(o.kind == "car" for o in city.objects)
    print(f"{buildings} buildings, {cars} vehicles, {len(city.landmarks)} names, {time.monotonic() - started:.0f} s\n")
    truths = {e.query: e.box for e in expressions}
    with Scene(out / "scene") as scene:
        grounder = Grounder(scene, BaselinePolicy())
        answers = [_answer(grounder, n, query, truths[query], out) for n, query in enumerate(DEMO_QUERIES, 1)]
    good = sum(answer.iou >= GOOD_IOU for answer in answers)
    print(f"{good} of {len(answers)} boxes are right (IoU at least {GOOD_IOU}).")
    print(f'Ask your own: wayfix ground --scene {out / "scene"} "the tallest building" --show out.png')
    return 0 if good == len(answers) else 1


def _answer(grounder: Grounder, number: int, query: str, truth: WorldBox | None, out: Path) -> DemoAnswer:
    result, episode, trace = grounder.ground(query, BUDGET_S)
    iou = iou_bev(result.box, truth) if result.box is not None and truth is not None else 0.0
    answer = DemoAnswer(query, iou, out / f"answer-{number}.png", out / f"answer-{number}.geojson")
    save_picture(answer.picture, draw_episode(result, episode, trace))
    answer.geojson.write_text(json.dumps(result.feature(grounder.scene), indent=1, ensure_ascii=False) + "\n")
    print(describe(result, grounder.scene))
    print(f"  truth       IoU {iou:.2f}")
    print(f"  files       {answer.picture}, {answer.geojson}\n", flush=True)
    return answer
