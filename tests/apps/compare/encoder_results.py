"""A results.json of a comparison of encoders, for the tests of its page."""

from collections.abc import Mapping, Sequence
from typing import Any


def encoder_results(
    predicted: Mapping[str, Sequence[int]], names: Sequence[str], labels: Sequence[int], class_names: Sequence[str]
) -> dict[str, Any]:
    """Make the results of encoders by the classes that they predict; the last one is a floor."""
    best, *_, floor = predicted
    clip = {"frames": 8, "seconds": 2.0, "sampling_rate": None}

    def accuracy(name: str) -> dict[str, float]:
        right = sum(map(int.__eq__, predicted[name], labels)) / len(labels)
        return {"knn": right, "R@1": right, "chosen": right, "logistic_1": right / 2}

    def encoder(number: int, name: str) -> dict[str, Any]:
        return {
            "floor": name == floor,
            "part": False,
            "protocol": {"clip": clip, "clips": 3, "crops": 1, "size": 112, "short_side": None},
            "checkpoint": {"licence": "MIT", "training": ["kinetics"]},
            "overlap": None,
            "features": f"features/{number}",
            "dimension": 512,
            "megabytes": 40.0,
            "seconds_per_video": 0.02 * 4**number,
            "peak_megabytes": 900.0,
            "gigaflops_per_video": 12.0,
        }

    section = {
        "name": "motion",
        "what": "labels: the list's, 2 classes",
        "rows": [*range(len(labels))],
        "accuracy": {name: accuracy(name) for name in predicted},
        "predicted": {name: {"knn": [*classes]} for name, classes in predicted.items()},
        "neighbours": 20,
        "verdict": {
            "best": best,
            "cheapest": best,
            "is_clear": True,
            "answer": f"{best} is best.",
            "doubts": ["There are few videos."],
        },
        "pairs": [
            {"first": best, "second": name, "difference": 0.1, "interval": [0.02, 0.18], "reason": None}
            for name in predicted
            if name != best
        ],
        "guessing": {"knn": 0.5, "R@1": 0.6, "chosen": 0.5, "logistic_1": 0.6},
        "intervals": {name: [0.1, 0.9] for name in predicted},
        "fewest_labels": 1,
        "labels": [*labels],
        "classes": [
            {"name": name, "videos": labels.count(number), "groups": 2} for number, name in enumerate(class_names)
        ],
    }
    return {
        "sections": [section],
        "encoders": {name: encoder(number, name) for number, name in enumerate(predicted)},
        "groups": {"how": "each name is one", "count": 3},
        "videos": [*names],
        "failed": {},
        "near_copies": [],
        "near_copies_not_searched": "",
        "missing": [],
        "common_neighbours": [
            {"first": best, "second": name, "fraction": 0.5, "chance": 0.1} for name in predicted if name != best
        ],
        "seconds": 12.0,
        "processor": "a processor",
        "date": "2026-01-01",
        "versions": {"vidssl": "0.1.0", "torch": "2.9.0"},
    }
