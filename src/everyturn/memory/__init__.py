"""Memory: what happened (episodic), what is true (semantic), how things are done (procedural).

Each memory is a row of its table and one turn of the log, written in one statement; the tables can be made again from
the log alone.
"""

from .facade import Memory
from .values import ALL, Forgotten, Hit, Kind, Rebuilt, Remembered

__all__ = ["ALL", "Forgotten", "Hit", "Kind", "Memory", "Rebuilt", "Remembered"]
