"""Frames, CRS, view <-> world transforms and boxes: pure functions, the ground everything else stands on."""
