"""Suspects of a set against what was planted in it."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import vidssl
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoRecord
from vidssl.data.video_list import Records, VideoList
from vidssl.evaluation.leave_recording_out import fold_table, same_group
from vidssl.evaluation.search import nearest
from vidssl.evaluation.suspect_videos import (
    SUSPECT_NEIGHBOURS,
    classes_amid_others,
    doubtful_labels,
    find_outliers,
    find_suspects,
    mean_distances,
    score_labels,
)


def clusters(classes=3, recordings=6, videos=4, dim=16):
    """Features around a centre for each class and recording; class and recording of each video."""
    draw = generator(0, 1).normal
    label, group = (
        np.repeat(np.arange(classes), recordings * videos),
        np.repeat(np.arange(classes * recordings), videos),
    )
    x = 4 * draw(size=(classes, dim))[label] + 0.5 * draw(size=(classes * recordings, dim))[group]
    return torch.from_numpy(x + 0.5 * draw(size=(len(label), dim))).float(), label, group


def neighbours(x):
    return nearest(x, x, min(SUSPECT_NEIGHBOURS, len(x)), same_group(np.arange(len(x))))


def test_wrong_labels_are_found_with_the_right_class():
    x, true, group = clusters()
    label, wrong = true.copy(), [5, 30, 60]
    label[wrong] = (true[wrong] + 1) % 3
    scores = score_labels(x, label, group)
    assert sorted(scores.clearly_wrong) == wrong and (scores.proposed[wrong] == true[wrong]).all()
    assert (np.abs(scores.margin) <= 1).all() and not len(score_labels(x, true, group).clearly_wrong)


def test_a_recording_whose_videos_agree_on_a_wrong_label_has_the_largest_margins():
    x, true, group = clusters()
    label, wrong = true.copy(), [20, 21, 22, 23]
    label[wrong] = 1
    scores = score_labels(x, label, group)
    assert sorted(np.argsort(-scores.margin)[:4]) == wrong and (scores.proposed[wrong] == 0).all()


def test_the_order_of_rows_and_the_numbers_of_classes_and_recordings_do_not_matter():
    x, label, group = clusters()
    label[5] = 1
    order = generator(0, 2).permutation(len(x))
    expected, actual = score_labels(x, label, group), score_labels(x[order], 10 * label[order], group[order])
    np.testing.assert_allclose(actual.margin, expected.margin[order], atol=0.1)  # other folds
    assert (actual.proposed == 10 * expected.proposed[order]).all()


def test_videos_without_label_and_classes_of_one_recording_are_not_judged():
    x, label, group = clusters()
    label[:2], label[-4:] = -1, 7
    scores = score_labels(x, label, group)
    judged = np.isin(label, [0, 1, 2])
    assert np.isnan(scores.margin[~judged]).all() and (scores.proposed[~judged] == -1).all()
    assert np.isfinite(scores.margin[judged]).all()
    assert np.isnan(score_labels(x, np.zeros(len(x), np.int64), group).margin).all()


def test_a_far_video_is_an_outlier():
    x, *_ = clusters()
    plain = {*find_outliers(neighbours(x)).tolist()}
    x[7] = -x.mean(dim=0) + 3 * torch.eye(16)[0]
    near = neighbours(x)
    assert find_outliers(near)[0] == 7 and len(plain) < 4
    unit = torch.nn.functional.normalize(x.double(), dim=1)
    similarity = (unit @ unit.T).fill_diagonal_(-2)
    np.testing.assert_allclose(
        mean_distances(near), 1 - similarity.topk(SUSPECT_NEIGHBOURS).values.mean(dim=1), atol=1e-6
    )
    assert not len(find_outliers(neighbours(torch.ones(1, 3)))) and not len(find_outliers(neighbours(torch.ones(2, 3))))


def probabilities_by_loops(x, label, group):
    """Of each label: the geometric mean of a logistic regression without its fold, and a vote of ten neighbours."""
    x, folds, actual = x.double().numpy(), fold_table(group, label), []
    similarity = cosine_similarity(x)
    for row in range(len(x)):
        rest = folds != folds[row]
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=500)).fit(x[rest], label[rest])
        votes, order = np.zeros(label.max() + 1), [n for n in np.argsort(-similarity[row]) if n != row][:10]
        for neighbour in order:
            votes[label[neighbour]] += np.exp(similarity[row, neighbour] / 0.07)
        both = np.sqrt((model.predict_proba(x[[row]])[0] + 1e-3) * (votes / votes.sum() + 1e-3))
        actual.append(both / both.sum())
    return np.array(actual)


def test_doubtful_labels_are_ranked_by_a_probability_that_has_not_seen_them():
    x, label, group = clusters(recordings=4, videos=3)
    label = label.copy()
    label[[3, 20]] = (label[[3, 20]] + 1) % 3
    scores, expected = score_labels(x, label, group), probabilities_by_loops(x, label, group)
    rows = np.arange(len(label))
    np.testing.assert_allclose(scores.probability, expected[rows, label], atol=2e-4)
    wrong = [row for row in np.argsort(expected[rows, label]) if expected[row].argmax() != label[row]]
    assert scores.doubtful.tolist() == wrong and {*wrong[:2]} == {3, 20}


def listed(label, windows=()):
    """A list of videos with labels; `windows` are seconds at which each row begins, of one file."""
    records = Records(Path("/videos"), [])
    for n, number in enumerate(label):
        span = {"start": windows[n], "end": windows[n] + 1.5} if windows else {}
        records.append(VideoRecord("long.mp4" if windows else f"{n}.mp4", int(number), **span))
    return VideoList(Path("/videos/list.csv"), records, ("jump", "run", "swim"))


@pytest.mark.parametrize(
    ("videos_of_class", "planted", "without", "line"),
    [
        (24, [5], 0, r"72 of 72 videos have a label, 72 are judged, 1 clearly wrong$"),
        (24, [5], 36, r"36 of 72 videos have a label, 36 are judged: too few labels of a class .*; \d+ are doubtful$"),
        (24, [5, 40], 30, r"42 of 72 videos have a label, 41 are judged \(the others .*\), 1 clearly wrong$"),
        (32, [], 0, r"96 of 96 videos have a label, 96 are judged, none clearly wrong$"),
        (4, [2], 0, r"12 of 12 videos have a label, 12 are judged: too few labels of a class .*; \d+ are "),
        (24, [], 72, r"none, as there are no labels$"),
        (24, [], 71, r"1 of 72 videos have a label, none is judged: fewer than two classes have videos of two rec"),
    ],
)
def test_the_sentence_says_how_many_labels_were_judged(videos_of_class, planted, without, line):
    x, label, _ = clusters(recordings=1, videos=videos_of_class)
    label = label.copy()
    label[planted] = (label[planted] + 1) % 3
    label[len(label) - without :] = -1
    results, lists = find_suspects(listed(label), x, neighbours(x), [])
    assert re.match(line, results["labels"])
    rows = [facts["path"] for facts in results["doubtful_labels"]]
    assert "5.mp4" in rows or 5 not in planted
    assert len(lists["Doubtful labels"]) == len(rows)
    number = results["labels"].endswith("1 clearly wrong")
    assert sum(", clearly" in note for _, note in lists["Doubtful labels"]) == number
    if rows:
        facts = results["doubtful_labels"][0]
        assert {facts["label"], facts["proposed"]} <= {"jump", "run", "swim"} and 0 <= facts["probability"] < 0.5


def test_rows_of_windows_have_their_times():
    x, label, _ = clusters(recordings=1, videos=4)
    copies = [(0, 2, 0.98)]
    videos = listed(np.full(len(label), -1), windows=[1.25 * n for n in range(len(label))])
    results, lists = find_suspects(videos, x, neighbours(x), copies)
    expected = [{"path": "long.mp4", "start": 1.25 * n, "end": 1.25 * n + 1.5} for n in (0, 2)]
    assert results["near_copies"] == [{"videos": expected, "similarity": 0.98, "equal_files": False}]
    assert lists["Near copies"] == [(0, "of long.mp4 2.5-4 s, similarity 0.980")]
    assert find_suspects(listed([0, 1, -1], windows=[0.0, 2.0, 4.0]), x[:3], neighbours(x[:3]), [])[0]["labels"] == (
        "2 of 3 windows have a label, none is judged: fewer than two classes have videos of two recordings"
    )


def test_classes_with_fewer_videos_than_folds():
    x, label, group = clusters(classes=4, recordings=3, videos=1)
    assert np.isfinite(score_labels(x, label, group).margin).all()


def amid(rows, x, label, group):
    """The classes that are named, of some rows."""
    named = classes_amid_others(x[rows], label[rows], group[rows])
    return {int(label[rows][row]): int(label[rows][near]) for row, near in named}


@pytest.mark.parametrize("count", [1, 4])
def test_a_class_of_one_recording_amid_another_class_is_named(count):
    """Of one video or several; not a true class that lies apart, and not without a distance to compare with."""
    x, true, group = clusters()
    label, every = true.copy(), np.ones(len(true), bool)
    label[group == 1] = 3
    kept = every & ((group != 1) | (np.arange(len(group)) < 4 + count))
    assert amid(kept, x, label, group) == {3: 0}
    apart = (label != 2) | (group == 12)
    assert amid(kept & apart, x, label, group) == {3: 0}
    assert amid(kept & (label != 0), x, label, group) == {}
    assert amid(kept & ((label != 0) | (group == 0)), x, label, group) == {}


@pytest.fixture(scope="module")
def sports(real):
    """Features, class and recording of 18 clips of each of six sports, each of its own recording."""
    folder, paths = real / "ucf101_6", []
    for class_ in sorted(path for path in folder.iterdir() if path.name != "splits" and path.is_dir()):
        first = {path.stem.split("_")[2]: path for path in sorted(class_.glob("*.mp4"), reverse=True)}
        paths += [first[name] for name in sorted(first)[:18]]
    features = vidssl.extract("vidssl-default", paths, workers=0, progress=False)
    return features.x, np.repeat(np.arange(6), 18), np.arange(108)


@pytest.mark.long
def test_single_examples_of_real_videos(sports):
    """A wrong label is named in half of the cases, a true class of one example in one of twenty."""
    x, true, group = sports
    draw, planted, single = np.random.RandomState(0), [], []
    for _ in range(100):
        rows = np.concatenate([18 * number + draw.permutation(18)[:11] for number in range(6)])
        label, number = true.copy(), draw.randint(6)
        label[rows[11 * number]] = 6
        planted.append(amid(rows, x, label, group).get(6) == number)
        alone = np.delete(rows, np.arange(11 * number + 1, 11 * number + 11))
        single.append(6 in amid(alone, x, label, group))
    assert np.mean(planted) > 0.4 and np.mean(single) < 0.15


@pytest.mark.long
def test_wrong_labels_of_real_videos_are_first(sports):
    x, true, group = sports
    draw, found = np.random.RandomState(1), []
    for _ in range(5):
        rows = np.sort(np.concatenate([18 * number + draw.permutation(18)[:10] for number in range(6)]))
        label, wrong = true[rows], draw.permutation(60)[:3]
        label[wrong] = (label[wrong] + draw.randint(1, 6, 3)) % 6
        doubts, _ = doubtful_labels(replace(listed(label), classes=()), x[rows], group[rows])
        found.append(np.isin([row for row, _ in doubts][:6], wrong).sum())
    assert np.mean(found) >= 2
