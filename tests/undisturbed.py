"""What finds no host of a fleet disturbed, where another process can import it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from asv_bench.subjects.lives import Place

FOLDER = Path(__file__).parent


def undisturbed(place: Place, is_alone: Callable[[], bool]) -> list[str]:
    """Nothing, however busy this machine is."""
    return []
