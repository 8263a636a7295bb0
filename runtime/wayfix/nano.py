"""The small model that comes with the library."""

from __future__ import annotations

from pathlib import Path

NANO_ENGINE = Path(__file__).parent / "models" / "nano"
"""An engine folder like any other, for CPUs; docs/nano.md is its model card."""
