"""A point cloud of the city, as a survey from the air sees it: tops from above, facades and crowns from the side."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wayfix.synth.canvas import BUILDING, VEGETATION, Canvas
from wayfix.synth.plan import Building, Tree
from wayfix.synth.solids import base_height

SIDE_SHARE = 0.6
"""Facades and crown sides get this share of the density of top surfaces: from the air they are seen at a slant."""

NOISE_M = 0.02

Points = tuple[NDArray[np.float64], NDArray[np.uint8], NDArray[np.uint8]]
"""Positions (N, 3) in local metres, colours (N, 3), ASPRS classes (N,)."""


def sample_points(
    rng: np.random.Generator,
    canvas: Canvas,
    bev: NDArray[np.uint8],
    buildings: list[Building],
    trees: list[Tree],
    density: float,
) -> Points:
    """Points of the whole scene, `density` per square metre on top surfaces, coloured from the (H, W, 3) `bev`."""
    parts = [_tops(rng, canvas, bev, density)]
    parts += [_facades(rng, canvas, building, density * SIDE_SHARE) for building in buildings]
    parts += [_crown_sides(rng, canvas, tree, density * SIDE_SHARE) for tree in trees]
    xyz, rgb, classes = (np.concatenate(layer) for layer in zip(*parts, strict=True))
    xyz += rng.normal(0, NOISE_M, xyz.shape)
    return xyz, rgb, classes


def _tops(rng: np.random.Generator, canvas: Canvas, bev: NDArray[np.uint8], density: float) -> Points:
    size = canvas.size_m
    count = round(density * size * size)
    xy = rng.uniform(0, size, (count, 2))
    cell = canvas.cell(xy[:, 0], xy[:, 1])
    return np.column_stack([xy, canvas.z[cell]]).astype(np.float64), bev[cell], canvas.classes[cell]


def _facades(rng: np.random.Generator, canvas: Canvas, building: Building, density: float) -> Points:
    """Walls up to the roof above them, with a grid of darker windows."""
    place = building.footprint
    base = base_height(canvas, place)
    half_l, half_w = place.length / 2, place.width / 2
    perimeter = 2 * (place.length + place.width)
    count = int(rng.poisson(density * perimeter * building.height))
    at = rng.uniform(0, perimeter, count)
    # Unroll the walls: two long ones, then two short ones.
    on_long = at < 2 * place.length
    along = np.where(on_long, at % place.length - half_l, (at - 2 * place.length) % place.width - half_w)
    far = np.where(on_long, at >= place.length, at - 2 * place.length >= place.width)
    sign = np.where(far, 1.0, -1.0)
    u = np.where(on_long, along, sign * half_l)
    v = np.where(on_long, sign * half_w, along)
    inwards = place.to_local(u * (1 - 0.15 / half_l), v * (1 - 0.15 / half_w))
    top = canvas.height_at(inwards[:, 0], inwards[:, 1])
    z = base + rng.uniform(0, building.height, count)
    keep = z < top
    xy = place.to_local(u, v)[keep]
    storey, column = (z[keep] - base) % 3.1, (along[keep] + 100.0) % 2.4
    window = (storey > 1.0) & (storey < 2.4) & (column > 0.6) & (column < 1.8)
    shade = np.where(window, 0.42, 1.0) * rng.normal(0.88, 0.04, len(xy))
    rgb = np.clip(np.array(building.wall_rgb)[None, :] * shade[:, None], 0, 255).astype(np.uint8)
    return np.column_stack([xy, z[keep]]), rgb, np.full(len(xy), BUILDING, np.uint8)


def _crown_sides(rng: np.random.Generator, canvas: Canvas, tree: Tree, density: float) -> Points:
    """The lower half of a crown: from its widest level, at half the tree's height, down to a fifth of it."""
    low, high = 0.2 * tree.height, 0.5 * tree.height
    count = int(rng.poisson(density * 2 * np.pi * tree.radius * (high - low)))
    bearing = rng.uniform(0, 2 * np.pi, count)
    share = rng.uniform(0, 1, count)
    radius = tree.radius * np.sqrt(1 - (1 - share) ** 2 * 0.85)
    x, y = tree.x + radius * np.cos(bearing), tree.y + radius * np.sin(bearing)
    ground = canvas.terrain[canvas.cell(np.array([tree.x]), np.array([tree.y]))][0]
    shade = rng.normal(0.75, 0.08, count) * (0.7 + 0.3 * share)
    rgb = np.clip(np.array(tree.rgb)[None, :] * shade[:, None], 0, 255).astype(np.uint8)
    xyz = np.column_stack([x, y, ground + low + share * (high - low)]).astype(np.float64)
    return xyz, rgb, np.full(count, VEGETATION, np.uint8)
