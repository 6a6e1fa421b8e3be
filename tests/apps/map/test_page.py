import base64
import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from vidssl.apps.map.page import MapColumn, classes_column, map_column, write_map_page
from vidssl.base.types import VideoRecord
from vidssl.page.previews import preview

PARSED = runpy.run_path(str(Path(__file__).parents[1] / "parsed_page.py"))["ParsedPage"]
NASTY = "a \"b\" 'c'/</script><!-- <b> &amp; \u2028 é 漢 }}.mp4"


def write(path, places, records, **options):
    write_map_page(path, title="Map", places=places, records=records, **{"columns": [], "previews": {}, **options})
    page = path.read_text(encoding="utf-8")
    points, script = PARSED(page).scripts
    assert "JSON.parse" in script
    return page, json.loads(points)


def test_the_page_has_each_feature_with_its_name_label_and_values(tmp_path):
    places = np.array([[-4.0, 1], [4, 3], [0, 2]])
    records = [VideoRecord(NASTY, 1), VideoRecord("b.mp4", -1, 1.5, 3.0), VideoRecord("c.mp4", 0)]
    clip = preview(np.full((3, 3, 48, 64), 90, np.uint8), 80, 60, 6, 60)
    columns = [classes_column("class", ["run", "", NASTY]), map_column("seconds", ["1.5", "", "3"])]
    page, points = write(tmp_path / "x.html", places, records, columns=columns, previews={2: clip})
    assert points["x"] == [-0.5, 0.5, 0.0] and points["y"] == [0.125, -0.125, 0.0]  # y of screens goes down
    assert points["rows"] == [[NASTY, 1, None, None], ["b.mp4", -1, 1.5, 3.0], ["c.mp4", 0, None, None]]
    assert points["columns"][0] == {"name": "class", "classes": [NASTY, "run"], "values": [1, None, 0]}
    assert points["columns"][1] == {"name": "seconds", "classes": [], "values": [1.5, None, 3.0]}
    assert points["clips"] == {"2": [3, 64, 48, base64.b64encode(clip.jpeg).decode()]}
    assert page.count("</script>") == 2 and "<!--" not in page and "<b>" not in page
    assert not re.search(r"https?:|//[a-z]+\.", page) and "default-src 'none'" in page


def test_one_point_and_equal_points_are_in_the_middle(tmp_path):
    for count in (1, 3):
        _, points = write(tmp_path / "x.html", np.full((count, 2), 7.0), [VideoRecord("a")] * count)
        assert points["x"] == points["y"] == [0.0] * count


def test_a_page_stays_small(tmp_path):
    """Without thumbnails 100 bytes and the name a point."""
    records = [VideoRecord(f"{n:06d}.mp4", n % 10) for n in range(10000)]
    places = np.random.Generator(np.random.PCG64(0)).normal(size=(10000, 2))
    page, _ = write(tmp_path / "x.html", places, records, columns=[classes_column("class", ["run"] * 10000)])
    assert len(page) < 1_100_000


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (["1.5", "", "-2e3"], MapColumn("c", (), [1.5, None, -2000.0])),
        (["a", "", "b", "a"], MapColumn("c", ("a", "b"), [0, None, 1, 0])),
        (["1.5", "x"], MapColumn("c", ("1.5", "x"), [0, 1])),
        (["nan", "1.5"], MapColumn("c", ("1.5", "nan"), [1, 0])),
        (
            ["10", "9", " ", "10"],
            MapColumn("c", ("9", "10"), [1, 0, None, 1]),
        ),  # few whole numbers are classes, by value
        ([*map(str, range(13))], MapColumn("c", (), [*map(float, range(13))])),
        (["", ""], MapColumn("c", (), [None, None])),
    ],
)
def test_columns_are_numbers_or_classes(texts, wanted):
    actual = map_column("c", texts)
    assert (actual.name, actual.classes, list(actual.values)) == (wanted.name, wanted.classes, list(wanted.values))


def test_classes_keep_a_given_order_and_rare_ones_of_too_many_are_one():
    assert classes_column("c", ["b", "c", "a", "b"], ("c", "b", "unused")).classes == ("c", "b", "a")
    texts = [f"{n:04d}" for n in range(1200)] + ["1199"]
    actual = classes_column("c", texts)
    assert len(actual.classes) == 1000 and actual.classes[0] == "1199" and actual.classes[-1] == "201 other values"
    assert actual.values[-1] == actual.values[1199] == 0 and [*actual.values].count(999) == 201
