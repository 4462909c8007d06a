"""The files of this checkout, without what tools make in it."""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MADE = {"__pycache__", "build", "dist", "node_modules"}


def files(*tops: str) -> Iterator[Path]:
    """Yield the files below these folders, or of the whole tree."""
    for top in tops or (".",):
        for folder, inner, names in os.walk(ROOT / top):
            inner[:] = [
                name
                for name in inner
                if name not in MADE
                and not name.endswith(".egg-info")
                and (not name.startswith(".") or name == ".ci")
            ]
            yield from (Path(folder) / name for name in names)


def modules(*tops: str) -> list[Path]:
    """Return the Python files below these folders."""
    return sorted(path for path in files(*tops) if path.suffix == ".py")


def shown(path: Path) -> str:
    """Return a path as people name it."""
    return path.relative_to(ROOT).as_posix()
