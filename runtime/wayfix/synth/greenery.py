"""Where trees stand: in greens, gardens and along pavements."""

from __future__ import annotations

import numpy as np

from wayfix.synth.colors import jittered
from wayfix.synth.plan import Footprint, Layout, Tree
from wayfix.synth.streets import stretches


def scatter_trees(rng: np.random.Generator, layout: Layout, greens: list[Footprint]) -> list[Tree]:
    """Trees of the whole scene; which of them would hide a building or a vehicle is for the drawing to find out."""
    density = float(rng.uniform(0.5, 1.3))
    trees = []
    for green in greens:
        count = rng.poisson(green.length * green.width / 190.0 * density)
        for _ in range(int(count)):
            u, v = (float(rng.uniform(-0.46, 0.46)) * side for side in (green.length, green.width))
            x, y = green.to_local(np.array([u]), np.array([v]))[0]
            trees.append(_tree(rng, layout, float(x), float(y), float(rng.uniform(1.2, 4.4))))
    for road in layout.roads:
        if rng.random() < 0.45:
            continue
        step = float(rng.uniform(11, 22)) / density
        for side in (-1, 1):
            across = side * (road.width / 2 + road.pavement * 0.75)
            places = [at for start, end in stretches(road, layout.roads, 6.0) for at in np.arange(start, end, step)]
            for along in places:
                if rng.random() < 0.7:
                    spot = road.band(layout.grid, across, across, float(along), float(along))
                    trees.append(_tree(rng, layout, spot.x, spot.y, float(rng.uniform(1.3, 2.8))))
    size = layout.grid.size
    return [t for t in trees if t.radius < min(t.x, t.y, size - t.x, size - t.y)]


def _tree(rng: np.random.Generator, layout: Layout, x: float, y: float, radius: float) -> Tree:
    height = radius * float(rng.uniform(1.9, 3.0)) + 1.0
    return Tree(x, y, radius, height, jittered(rng, layout.palette.foliage, 9.0))
