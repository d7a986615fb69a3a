"""The demo empties its own folder and nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from example_dags.demo.__main__ import fresh_folder


def test_an_earlier_demo_is_removed(tmp_path: Path) -> None:
    folder = fresh_folder(tmp_path / "demo")
    (folder / "warehouse.db").write_text("old")
    assert fresh_folder(folder) == folder
    assert not (folder / "warehouse.db").exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SystemExit, match="not the demo's"):
        fresh_folder(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_an_airflow_home_made_by_importing_airflow_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "airflow").mkdir()
    assert fresh_folder(tmp_path) == tmp_path
