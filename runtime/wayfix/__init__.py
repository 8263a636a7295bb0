"""Wayfix: a sentence about a real place becomes a georegistered box, within a latency budget."""

__version__ = "0.1.0"
