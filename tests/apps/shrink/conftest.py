"""Folders of videos and their lists."""

import csv

import pytest


@pytest.fixture(scope="session")
def write_list():
    """Write rows as a list: `write_list(folder, rows, header, name)` gives its path."""

    def write(folder, rows, header="path,label", name="all.csv"):
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / name, "w", newline="") as file:
            csv.writer(file).writerows([header.split(","), *rows])
        return folder / name

    return write


@pytest.fixture
def videos(tmp_path):
    (tmp_path / "videos").mkdir()
    return tmp_path / "videos"
