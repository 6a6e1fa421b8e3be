"""Labels and predictions of BORIS and Label Studio: samples of what they write, and back and forth."""

import csv
import json

import numpy as np
import pytest

from vidssl.apps.predict.formats import ANNOTATIONS
from vidssl.base.errors import DataError
from vidssl.base.types import VideoRecord
from vidssl.data.annotation_forms import read_annotations

AGGREGATED = """Observation id,Observation date,Description,Observation type,Source,Time offset (s),Coding duration,\
Media duration (s),FPS (frame/s),Subject,Observation duration by subject by observation,Behavior,Behavioral category,\
Behavior type,Start (s),Stop (s),Duration (s),Media file name,Image index start,Image index stop,\
Image file path start,Image file path stop,Comment start,Comment stop
0001_a,2025-09-06 14:58:19,,Media file(s),player #1:a.mp4,0.0,32.4,300.0,25.0,Himal,32.4,Tear,,STATE,0.0,30.199,30.199,\
a.mp4,0,755,,,,
0001_a,2025-09-06 14:58:19,,Media file(s),player #1:a.mp4,0.0,32.4,300.0,25.0,Himal,32.4,Call,,POINT,31.0,31.0,0,\
a.mp4,775,775,,,,
0001_a,2025-09-06 14:58:19,,Media file(s),player #1:a.mp4,0.0,32.4,300.0,25.0,Himal,32.4,Walk,,STATE,30.2,32.4,2.2,\
a.mp4,755,810,,,,
"""
TABULAR = """Observation id,Subject,Behavior,Behavior type,Time,Media file name
o,Himal,Tear,START,1.5,a.mp4
o,Nina,Tear,START,2,a.mp4
o,Himal,Tear,STOP,3.25,a.mp4
o,Nina,Tear,STOP,4,a.mp4
"""
TASKS = [
    {
        "id": 1,
        "data": {"video": "/data/local-files/?d=videos/a.mp4", "fps": 25},
        "annotations": [
            {
                "id": 7,
                "result": [
                    {
                        "id": "x",
                        "type": "timelinelabels",
                        "from_name": "label",
                        "to_name": "video",
                        "value": {"ranges": [{"start": 26, "end": 50}], "timelinelabels": ["Walk"]},
                    },
                    {"id": "y", "type": "rectanglelabels", "value": {}},
                ],
            }
        ],
    },
    {
        "data": {"video": "/data/upload/3/3d3ad63e-b.mp4"},
        "annotations": [{"result": [{"type": "choices", "value": {"choices": ["Tear"]}}]}],
    },
]


def spans(labels):
    return [(label.name, label.label, label.start, label.end) for label in labels]


def test_samples(tmp_path, caplog):
    (tmp_path / "boris.csv").write_text(AGGREGATED)
    assert spans(read_annotations(tmp_path / "boris.csv")) == [
        ("a.mp4", "Tear", 0.0, 30.199),
        ("a.mp4", "Walk", 30.2, 32.4),
    ]
    assert "1 events without a duration are left out" in caplog.text
    (tmp_path / "tabular.csv").write_text(TABULAR)
    assert spans(read_annotations(tmp_path / "tabular.csv")) == [
        ("a.mp4", "Tear", 1.5, 3.25),
        ("a.mp4", "Tear", 2.0, 4.0),
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(TASKS))
    expected = [("videos/a.mp4", "Walk", 1.0, 2.0), ("b.mp4", "Tear", None, None)]  # frames 26 to 50 of 25 a second
    assert spans(read_annotations(tmp_path / "tasks.json")) == expected


def test_back_and_forth(tmp_path, write_video):
    for name in ("a.mp4", "b.mp4"):
        write_video(tmp_path / name, np.full((50, 32, 32, 3), 90, np.uint8))
    moments = [("a.mp4", 0.0, 0.8, "Walk"), ("a.mp4", 0.8, 1.6, "Tear"), ("b.mp4", None, None, "Walk")]
    keys = ("path", "start", "end", "class")
    rows = [
        {**dict(zip(keys, row, strict=True)), "confidence": 0.9, "file": file, "record": VideoRecord(file)}
        for row in moments
        for file in [str(tmp_path / row[0])]
    ]
    for to, (name, write) in ANNOTATIONS.items():
        write(tmp_path / name, rows)
        if to == "label-studio":  # a prediction is no label until somebody accepts it
            tasks = json.loads((tmp_path / name).read_text())
            for nothing in ({}, {"annotations": None}):
                (tmp_path / name).write_text(json.dumps([task | nothing for task in tasks]))
                assert read_annotations(tmp_path / name) == []
            accepted = [{"data": task["data"], "annotations": task["predictions"]} for task in tasks]
            (tmp_path / name).write_text(json.dumps(accepted))
        listed = spans(read_annotations(tmp_path / name))
        whole = ("b.mp4", "Walk", 0.0, 2.0) if to == "boris" else ("b.mp4", "Walk", None, None)
        assert listed == [("a.mp4", "Walk", 0.0, 0.8), ("a.mp4", "Tear", 0.8, 1.6), whole]
    with open(tmp_path / "predictions.boris.csv", newline="") as file:
        assert [row["Comment start"] for row in csv.DictReader(file)] == ["0.9"] * 3


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", '[{"data": {}}]', "is not a JSON file of Label Studio"),
        ("a.json", json.dumps([{**TASKS[0], "data": {"video": "a.mp4"}}]), "a.json: task 1: its data has no fps"),
        ("a.csv", TABULAR.replace("o,Nina,Tear,STOP,4,a.mp4\n", ""), "Tear starts, and does not stop"),
        ("a.csv", TABULAR.replace("o,Nina,Tear,START,2,a.mp4\n", ""), "a.csv:4: Tear stops, and has not started"),
        ("a.csv", AGGREGATED.replace("30.199", "x", 1), "a.csv:2: 'x' is not a number"),
        ("a.csv", AGGREGATED.replace("0.0,30.199", "31,30.199"), "a.csv:2: end 30.199 is not after start 31.0"),
        ("a.csv", TABULAR.replace("o,Himal,Tear,STOP", "o,Himal,Tear,START"), "a.csv:4: Tear starts again"),
        ("a.csv", TABULAR + "o\n", "a.csv:6: 'Behavior type': it is not a table of events of BORIS"),
        ("a.json", '{"a": 1}', "it is not a list of tasks"),
        ("a.json", json.dumps(TASKS).replace('["Tear"]', '["Tear", "Walk"]'), "videos of one class each"),
    ],
)
def test_mistakes(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=None) as error:
        read_annotations(tmp_path / name)
    assert words in str(error.value)
