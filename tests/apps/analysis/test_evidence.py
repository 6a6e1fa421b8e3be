"""What is said of accuracies that answers reach which do not depend on the videos."""

import numpy as np
import pytest
import torch

from vidssl.apps.analysis.all import numbers_section
from vidssl.apps.analysis.background import background_section
from vidssl.apps.analysis.evidence import Evidence
from vidssl.apps.analysis.robustness import robustness_section
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.evaluation.protocols import KNN, Retrieval

SHARES = (60, 80, 90)
# How a sentence begins that says something of a network that recognises classes.
CLAIMS = ("Recognises", "Loses", "Keeps", "Is better", "Uses", "Does not depend")


def constant(label, key):
    """Answers of the larger class, and of constant features with it first in the list, by the protocols."""
    features = Features(torch.ones(len(label), 8), torch.from_numpy(label), torch.arange(len(label)))
    kind = {"R@1": Retrieval, "knn": KNN}.get(key)
    if kind is None:
        return (label == 0).astype(float)
    return kind(kind.Config())(features, features, torch.empty(0, 2, dtype=torch.int64)).per_video[key].double().numpy()


SECTIONS = (numbers_section, robustness_section, background_section)


def sections(values, label, number, key, sections=SECTIONS):
    """What the analyses that need recognition say of a network whose answers are right as in `values` (N,)."""
    ends = ("", "_mPC", "_same", "_other", "_severity_1", "_noise")
    numbers = {f"{key}{end}": float(values.mean()) for end in ends}
    results = {
        **numbers,
        **{"details": {}, "num_videos": len(label), "missing": [], "left_out": {}, "severities": {"1": {}}},
        "protocol": {"clips": 1, "crops": 1, "size": 32},
        **{"groups": {"noise": {key: float(values.mean())}}, "corruptions": {}},
        "per_video": {"rows": [*range(len(label))], **dict.fromkeys(numbers, values.tolist())},
    }
    evidence = Evidence({"trained": results, "untrained": results}, number, label)
    return [section(evidence).verdict for section in sections]


@pytest.mark.parametrize("clips", [1, 4], ids=["a clip a recording", "four"])
@pytest.mark.parametrize("key", ["top1", "R@1", "knn"])
@pytest.mark.parametrize("share", SHARES)
def test_who_always_answers_the_larger_class_recognises_nothing(share, key, clips):
    for count in (20, 100, 1000):
        label = (np.arange(count) >= count * share / 100).astype(np.int64)
        number = np.arange(count) // clips
        values = constant(label, key)
        assert values.mean() == share / 100
        for said in sections(values, label, number, key):
            assert not said.startswith(CLAIMS), said


@pytest.mark.parametrize("share", [50, *SHARES])
def test_answers_by_chance_recognise_nothing(share):
    """Drawn classes, as often as the list has them, or all the same: in at most 6.5 % of sets, and binomial noise."""
    said = []
    for seed in range(100):
        rng = generator(seed, 2)
        label = rng.permutation((np.arange(60) >= 60 * share / 100).astype(np.int64))
        answers = rng.permutation(label) if seed % 2 else (rng.random(60) > 0.5).astype(np.int64)
        said += sections((answers == label).astype(float), label, np.arange(60), "knn", SECTIONS[:1])
    assert sum(text.startswith(CLAIMS) for text in said) <= 15


@pytest.mark.parametrize("share", [50, *SHARES])
def test_a_network_that_recognises_both_classes_is_said_to(share):
    """Also if it is right as often as the answer of the larger class would be."""
    label = (np.arange(200) >= 2 * share).astype(np.int64)
    values = (np.arange(200) % 10 > 0).astype(float)  # 90 % of each class
    for said in sections(values, label, np.arange(200), "top1"):
        assert said.startswith(CLAIMS), said
    text = sections(values, label, np.arange(200), "top1")[0]
    assert "90 % as a mean over classes, where 1 / classes is 50 %" in text


def test_classes_of_one_recording_are_set_beside_the_majority():
    """There is no interval of a mean over them; that all videos are below the majority says nothing then."""
    label = np.array([0] * 8 + [*range(1, 13)])
    above, below = (np.array([right] * 20, float) for right in (1, 0))
    actual = [sections(values, label, np.arange(20), "R@1")[0] for values in (above, below)]
    assert actual[0].startswith("Recognises classes: 100 % where the most frequent class gives 40 %")
    assert "it cannot be said whether it recognises classes: 0 % where the most frequent class gives 40 %" in actual[1]


def test_classes_of_one_recording_are_no_part_of_the_mean_over_classes():
    label = np.array([0] * 8 + [1] * 8 + [2, 3, 4])
    said = sections((label < 2).astype(float), label, np.arange(19), "top1")[0]
    assert said.startswith("Recognises classes: 100 % as a mean over classes, where 1 / classes is 50 %")
