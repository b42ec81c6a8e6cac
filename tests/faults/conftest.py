from __future__ import annotations

from pathlib import Path

import pytest

from everyturn import embedded


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that was used and stopped, to be copied."""
    directory = tmp_path_factory.mktemp("made") / "data"
    embedded.start(directory).close()
    return directory
