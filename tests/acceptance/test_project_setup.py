"""`make` on a machine that lacks something says so in a sentence."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

OLD = '#!/bin/sh\ncase "$1" in --version) echo "Python 3.9.2";; *) exit 1;; esac\n'
WITHOUT_VENV = '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; *) exit 0;; esac\n'


def setup(tmp_path: Path, python: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`scripts/venv` in a copy of the project whose only python3 is this script."""
    project = tmp_path / "a project"
    (project / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "venv", project / "scripts" / "venv")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "rm"):
        (tools / name).symlink_to(shutil.which(name) or pytest.skip(f"no {name} here"))
    for name in ("python3", "python"):
        (tools / name).write_text(python)
        (tools / name).chmod(0o755)
    return subprocess.run(
        [project / "scripts" / "venv"], env={"PATH": str(tools)} | variables, capture_output=True, text=True, timeout=30
    )


def test_an_old_python_is_named_with_the_way_out(tmp_path: Path) -> None:
    done = setup(tmp_path, OLD)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer and found Python 3.9.2" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_a_python_without_venv_is_named_with_the_package_to_install(tmp_path: Path) -> None:
    done = setup(tmp_path, WITHOUT_VENV)
    assert done.returncode == 1
    assert "python3-venv" in done.stderr


def test_a_python_that_was_named_and_is_none_is_said(tmp_path: Path) -> None:
    done = setup(tmp_path, OLD, PYTHON="/nowhere/python")
    assert done.returncode == 1
    assert "PYTHON=/nowhere/python is not a Python 3.11 or newer." in done.stderr
