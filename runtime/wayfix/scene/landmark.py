"""A named place of a scene."""

from __future__ import annotations

from dataclasses import dataclass

from shapely.geometry.base import BaseGeometry


@dataclass(frozen=True)
class Landmark:
    """A named building, road, facility or area; geometry in the scene's CRS (metres)."""

    name: str
    type: str
    """What it is, in OpenStreetMap's words where there is one: building, road, parking, park, river, ..."""
    geometry: BaseGeometry
    """Point, LineString or Polygon, or their Multi kinds; never empty."""
    aliases: tuple[str, ...] = ()
