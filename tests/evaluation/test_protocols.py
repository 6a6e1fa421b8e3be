"""Protocols: what they measure, with and without centring, and that a video is never its own neighbour."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedKFold
from torch.nn import functional

from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.data.find_same_videos import own_rows
from vidssl.data.video_list import read_list
from vidssl.evaluation.measure import check_measurable
from vidssl.evaluation.protocols import KNN, PROTOCOLS, LinearSVM, LowShot, Retrieval, Uniformity


def features(count, seed, shift=0.0, classes=4):
    random = generator(seed)
    label = torch.from_numpy(random.integers(classes, size=count))
    centres = generator(77).normal(size=(classes, 6))
    x = centres[label] + random.normal(size=(count, 6)) + shift
    return Features(torch.from_numpy(x.astype(np.float32)), label, torch.arange(count))


NO_PAIRS = torch.empty(0, 2, dtype=torch.int64)


def loop_recall(gallery, query, k, center):
    g, q = gallery.x.double().numpy(), query.x.double().numpy()
    if center:
        g, q = g - g.mean(axis=0), q - q.mean(axis=0)
    hits = []
    for n in range(len(q)):
        similarity = [q[n] @ row / np.sqrt((q[n] @ q[n]) * (row @ row)) for row in g]
        best = np.argsort(-np.array(similarity))[:k]
        hits.append(any(gallery.label[b] == query.label[n] for b in best))
    return np.mean(hits)


@pytest.mark.parametrize("center", [False, True])
def test_retrieval(center):
    gallery, query = features(90, 0, shift=3.0), features(40, 1, shift=-3.0)
    before = gallery.x.clone(), query.x.clone()
    actual = Retrieval(Retrieval.Config(ks=(1, 3, 7), center=center))(gallery, query, NO_PAIRS).numbers
    assert set(actual) == {"R@1", "R@3", "R@7", "chance"}
    for k in (1, 3, 7):
        assert actual[f"R@{k}"] == pytest.approx(loop_recall(gallery, query, k, center), abs=1e-6)
    assert torch.equal(before[0], gallery.x) and torch.equal(before[1], query.x)


@pytest.mark.parametrize("name", ["retrieval", "knn"])
def test_fault_29_the_query_itself_is_left_out(name):
    """Features without any meaning: a set searched in itself must be at chance, not at 100 %."""
    random = generator(3)
    label = torch.from_numpy(random.integers(4, size=400))
    x = torch.from_numpy(random.normal(size=(400, 16)).astype(np.float32))
    every = Features(x, label, torch.arange(400))
    protocol = PROTOCOLS[name](PROTOCOLS[name].Config(**({"k": 1} if name == "knn" else {})))
    key = "knn" if name == "knn" else "R@1"
    assert protocol(every, every, NO_PAIRS).numbers[key] == 1
    itself = torch.stack([torch.arange(400)] * 2, dim=1)
    assert protocol(every, every, itself).numbers[key] < 0.35


def test_knn_and_uniformity():
    gallery, query = features(90, 0), features(40, 1)
    measured = KNN(KNN.Config(k=1))(gallery, query, NO_PAIRS)
    one = measured.numbers
    assert measured.details == {"note": "knn: k = 1"}  # printed below the numbers
    assert set(one) == {"knn", "knn_mean_class"}
    assert one["knn"] == pytest.approx(loop_recall(gallery, query, 1, False), abs=1e-6)
    actual = Uniformity(Uniformity.Config())(gallery, query, NO_PAIRS).numbers
    assert set(actual) == {"uniformity_loss"} and -4 < actual["uniformity_loss"] < 0
    other = Uniformity(Uniformity.Config())(query, gallery, NO_PAIRS).numbers
    assert actual != other  # that of the gallery


@pytest.mark.parametrize("side", ["gallery", "query"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_a_feature_that_is_not_finite_has_no_accuracy(name, value, side):
    lists = {"gallery": features(40, 0), "query": features(20, 1)}
    lists[side].x[7, 2] = value
    if PROTOCOLS[name].several:
        lists = {key: replace(of, targets=functional.one_hot(of.label)) for key, of in lists.items()}
    if (side == "gallery" and name == "accuracy") or (side == "query" and name == "uniformity"):
        return  # does not look there
    if PROTOCOLS[name].reverse:
        lists = {key: replace(of, reverse=of.x) for key, of in lists.items()}
    if name == "localization":
        lists = {
            key: replace(of, columns={"x": torch.rand(len(of.x)), "y": torch.rand(len(of.x))})
            for key, of in lists.items()
        }
    with pytest.raises(DataError, match=rf"a {side} feature is not finite \(row 7 of "):
        PROTOCOLS[name](PROTOCOLS[name].Config())(lists["gallery"], lists["query"], NO_PAIRS)


def test_settings_that_are_refused():
    for settings in ({"k": 0}, {"temperature": 0.0}, {"neighbours": 3}):
        with pytest.raises(ConfigError):
            KNN.Config(**settings)
    with pytest.raises(ConfigError):
        Retrieval.Config(center=1)
    for ks in ((), (0,), (1, -5)):
        with pytest.raises(ConfigError):
            Retrieval.Config(ks=ks)


def test_fault_29_own_rows(tmp_path):
    """The same span, and what shares time with it; not other files, nor what comes after or before."""
    rows = ["a.mp4,0,,", "b.mp4,0,0,1", "b.mp4,0,1,2", "c.mp4,0,,", "b.mp4,0,1.5,", "b.mp4,0,,"]
    (tmp_path / "gallery.csv").write_text("\n".join(["path,label,start,end", *rows]) + "\n")
    asked = {"c.mp4,1,,": [3], "b.mp4,0,1,2": [2, 4, 5], "b.mp4,0,1,1.5": [2, 5], "d.mp4,0,,": []}
    asked |= {"a.mp4,0,0,": [0], "b.mp4,0,2,9": [4, 5], "b.mp4,0,,": [1, 2, 4, 5], "b.mp4,0,,0.5": [1, 5]}
    (tmp_path / "query.csv").write_text("\n".join(["path,label,start,end", *asked]) + "\n")
    gallery, query = (read_list(tmp_path / f"{name}.csv") for name in ("gallery", "query"))
    expected = [[n, row] for n, actual in enumerate(asked.values()) for row in actual]
    assert own_rows(gallery, query).tolist() == expected
    (tmp_path / "query.csv").write_text("path\nd.mp4\n")
    nobody = own_rows(gallery, read_list(tmp_path / "query.csv"))
    assert nobody.shape == (0, 2) and nobody.dtype == torch.int64


@pytest.mark.parametrize("name", ["retrieval", "knn"])
def test_fault_29_clips_of_one_video_do_not_find_each_other(name, tmp_path):
    """Overlapping spans of a file have nearly the same feature: to find one in another says nothing."""
    rows = [f"{n}.mp4,{n % 2},{start},{start + 2}" for n in range(40) for start in (0, 1)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,start,end", *rows]) + "\n")
    videos = read_list(tmp_path / "list.csv")
    random = generator(5)
    x = random.normal(size=(40, 16)).repeat(2, axis=0) + 0.01 * random.normal(size=(80, 16))
    label = torch.tensor([record.label for record in videos.records])
    every = Features(torch.from_numpy(x.astype(np.float32)), label, torch.arange(80))
    protocol = PROTOCOLS[name](PROTOCOLS[name].Config(**({"k": 1} if name == "knn" else {})))
    itself = torch.stack([torch.arange(80)] * 2, dim=1)
    key = "knn" if name == "knn" else "R@1"
    assert protocol(every, every, itself).numbers[key] == 1
    assert protocol(every, every, own_rows(videos, videos)).numbers[key] < 0.8


def slow_svm(x, label, queries, cost):
    """One-against-rest linear machines with squared hinge by gradient descent in float64; the bias is penalised too."""
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    queries = np.concatenate([queries, np.ones((len(queries), 1))], axis=1)
    classes, rate = np.unique(label), 1 / (1 + 2 * cost * np.linalg.norm(x, 2) ** 2)
    y, w = np.where(label[:, None] == classes, 1.0, -1.0), np.zeros((x.shape[1], len(classes)))
    for _ in range(1500):
        slack = np.maximum(0, 1 - y * (x @ w))
        w -= rate * (w - 2 * cost * x.T @ (y * slack))
    return classes[np.argmax(queries @ w, axis=1)]


def unit(x):
    x = x.double().numpy()
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_svm_is_the_slow_one():
    gallery, query = features(90, 0), features(60, 1)
    for cost in (0.1, 1.0):
        actual = LinearSVM(LinearSVM.Config(costs=(cost,)))(gallery, query, NO_PAIRS)
        expected = slow_svm(unit(gallery.x), gallery.label.numpy(), unit(query.x), cost)
        assert actual.predicted.tolist() == expected.tolist()
        assert actual.numbers["svm"] == pytest.approx((expected == query.label.numpy()).mean())
        assert actual.numbers["svm"] > 0.5


def test_the_cost_of_the_svm_is_chosen_on_the_training_side_alone():
    gallery, query = features(90, 0), features(60, 1)
    costs = (0.001, 0.1, 10.0)
    actual = LinearSVM(LinearSVM.Config(costs=costs, folds=3, seed=5))(gallery, query, NO_PAIRS)
    x, label = unit(gallery.x), gallery.label.numpy()
    scores = {}
    for cost in costs:  # by the loop, with scikit-learn's folds
        right = 0
        for learned, held in StratifiedKFold(3, shuffle=True, random_state=5).split(x, label):
            predicted = slow_svm(x[learned], label[learned], x[held], cost)
            right += sum(int(a == b) for a, b in zip(predicted, label[held], strict=True))
        scores[str(cost)] = right / 90
    assert actual.details["cross_validation"] == pytest.approx(scores)
    best = max(scores.values())
    assert actual.details["cost"] == min(float(cost) for cost, score in scores.items() if score == best)
    other = Features(query.x * 0 + 1, query.label, query.index)  # whatever the queries are
    assert LinearSVM(LinearSVM.Config(costs=costs, folds=3, seed=5))(gallery, other, NO_PAIRS).details == actual.details


def test_svm_needs_two_classes_and_enough_videos():
    small = Features(torch.randn(5, 3), torch.tensor([0, 0, 0, 1, 1]), torch.arange(5))
    with pytest.raises(DataError, match=r"protocol svm needs .* of at least 3 training videos, .* the smallest of 2"):
        LinearSVM(LinearSVM.Config())(small, small, NO_PAIRS)
    one = Features(torch.randn(5, 3), torch.zeros(5, dtype=torch.int64), torch.arange(5))
    with pytest.raises(DataError, match=r"protocol svm needs at least 2 classes .* there are 1, the smallest of 5"):
        LinearSVM(LinearSVM.Config(costs=(1.0,)))(one, one, NO_PAIRS)


def test_low_shot_is_the_loop():
    gallery, query = features(90, 0), features(60, 1)
    protocol = LowShot(LowShot.Config(shots=(1, 3), draws=4, costs=(0.5,), seed=9))
    actual = protocol(gallery, query, NO_PAIRS)
    x, label = unit(gallery.x), gallery.label.numpy()
    for k in (1, 3):
        accuracies = []
        for draw in range(4):
            rows = []
            for number in range(4):
                members = [n for n in range(90) if label[n] == number]
                rows += [members[n] for n in generator(9, draw, number).permutation(len(members))[:k]]
            assert sorted(label[rows].tolist()) == [c for c in range(4) for _ in range(k)]
            predicted = slow_svm(x[rows], label[rows], unit(query.x), 0.5)
            accuracies.append(np.mean(predicted == query.label.numpy()))
        assert actual.numbers[f"lowshot@{k}"] == pytest.approx(np.mean(accuracies))
        assert actual.numbers[f"lowshot@{k}_spread"] == pytest.approx(np.std(accuracies, ddof=1))
    assert actual.numbers["lowshot@3"] > actual.numbers["lowshot@1"]
    assert actual.details == {}


def test_low_shot_skips_shots_that_exceed_the_smallest_class():
    gallery, query = features(40, 0), features(20, 1)
    smallest = int(torch.bincount(gallery.label).min())
    config = LowShot.Config(shots=(1, smallest, smallest + 1, 500), costs=(1.0,))
    actual = LowShot(config)(gallery, query, NO_PAIRS)
    assert set(actual.numbers) == {f"lowshot@{k}{s}" for k in (1, smallest) for s in ("", "_spread")}
    assert actual.details == {"left_out": [smallest + 1, 500], "videos_of_the_smallest_class": smallest}
    with pytest.raises(DataError, match=rf"at least 500 training videos, .* the smallest of {smallest}: lower shots"):
        LowShot(LowShot.Config(shots=(501, 500)))(gallery, query, NO_PAIRS)


def test_low_shot_chooses_its_cost_on_the_videos_of_each_draw():
    gallery, query = features(90, 0), features(60, 1)
    costs = (0.001, 0.1, 10.0)
    config = LowShot.Config(shots=(1, 2, 5), draws=2, costs=costs, folds=3, seed=4)
    actual = LowShot(config)(gallery, query, NO_PAIRS)
    x, label = unit(gallery.x), gallery.label.numpy()
    for k in (2, 5):
        chosen = []
        for draw in range(2):
            rows = np.concatenate([generator(4, draw, c).permutation(np.flatnonzero(label == c))[:k] for c in range(4)])
            folds = StratifiedKFold(min(k, 3), shuffle=True, random_state=4)
            right = []
            for cost in costs:
                parts = [(rows[a], rows[b]) for a, b in folds.split(rows, label[rows])]
                right.append(sum((slow_svm(x[a], label[a], x[b], cost) == label[b]).sum() for a, b in parts))
            chosen.append(costs[int(np.argmax(right))])  # the first of equal ones: the smallest
        assert actual.details["costs"][str(k)] == chosen
    assert actual.details["costs"]["1"] == [0.1, 0.1]  # nothing to validate on: the middle one
    assert LowShot.Config().shots == (1, 2, 4, 8, 16, 32, 64, 96) and LowShot.Config().draws == 5


@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
def test_classes_that_overlap_are_separated_as_well_as_can_be():
    """Features without any meaning at a high cost: coordinate descent in the dual does not converge on them."""
    random = generator(11)
    x = torch.from_numpy(random.normal(size=(600, 8)).astype(np.float32))
    every = Features(x, torch.from_numpy(random.integers(2, size=600)), torch.arange(600))
    actual = LinearSVM(LinearSVM.Config(costs=(1e5,)))(every, every, NO_PAIRS)
    # With a cost so high and classes that overlap, the loss alone decides: least squares over the active rows.
    rows, y = np.concatenate([unit(x), np.ones((600, 1))], axis=1), np.where(every.label == 1, 1.0, -1.0)
    w = np.zeros(9)
    for _ in range(50):
        active = y * (rows @ w) < 1
        w = np.linalg.solve(rows[active].T @ rows[active] + np.eye(9) / 2e5, rows[active].T @ y[active])
    assert actual.predicted.tolist() == (rows @ w > 0).astype(int).tolist()


def lists(tmp_path, gallery, query, classes=("a", "b"), query_classes=None):
    collected = []
    for name, rows, names in (("gallery", gallery, classes), ("query", query, query_classes or classes)):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "root.txt").write_text(f"{tmp_path}\n")
        (folder / "classes.txt").write_text("".join(f"{word}\n" for word in names))
        (folder / "list.csv").write_text("\n".join(["path,label", *rows]) + "\n")
        collected.append(read_list(folder / "list.csv"))
    return collected


def built(*names):
    return {name: PROTOCOLS[name](PROTOCOLS[name].Config()) for name in names}


def test_lists_that_cannot_be_measured(tmp_path, monkeypatch):
    gallery, query = lists(tmp_path, ["1.mp4,0", "2.mp4,1"], ["3.mp4,0", "2.mp4,1"])
    check_measurable(built("retrieval", "knn", "uniformity"), gallery, query, 0)
    with pytest.raises(DataError, match=r"1 videos of .*query.* are in .*gallery.* too, the first '2.mp4': svm, low"):
        check_measurable(built("knn", "svm", "lowshot"), gallery, query, 0)
    with pytest.raises(ConfigError, match="knn compares with training videos: give their list, train_list=FILE"):
        check_measurable(built("accuracy", "knn"), None, query, 2)
    check_measurable(built("accuracy"), None, query, 2)
    gallery, query = lists(tmp_path, ["1.mp4,0", "2.mp4,0", "4.mp4,1", "5.mp4,1"], ["3.mp4,0"])
    of_maps = built("knn")
    monkeypatch.setattr(type(of_maps["knn"]), "maps", True)
    with pytest.raises(ConfigError, match="knn needs feature maps, and these features are vectors: give a layer"):
        check_measurable(of_maps, gallery, query, 0)
    check_measurable(of_maps, gallery, query, 0, cells=4)
    monkeypatch.undo()
    gallery, query = lists(tmp_path, ["1.mp4,0", "2.mp4,1"], ["3.mp4,-1"])
    check_measurable(built("uniformity"), gallery, query, 0)
    with pytest.raises(DataError, match=r"protocol knn needs labels, and 1 of 1 videos of .*query.list.csv have none"):
        check_measurable(built("uniformity", "knn"), gallery, query, 0)


def test_lists_of_other_data_sets_are_refused(tmp_path):
    gallery, query = lists(tmp_path, ["1.mp4,0"], ["3.mp4,0"], ("a", "b"), ("a", "c", "d"))
    with pytest.raises(DataError, match=r"different classes.txt \(2 and 3 classes\)"):
        check_measurable(built("uniformity"), gallery, query, 0)
    gallery, query = lists(tmp_path, ["1.mp4,0"], ["3.mp4,0"], ("a", "b"), ("a", "c"))
    with pytest.raises(DataError, match=r"different classes.txt \(2 and 2 classes\)"):
        check_measurable(built("uniformity"), gallery, query, 0)


def test_lists_with_several_labels_need_equally_many_classes(tmp_path):
    for name, rows in (("gallery", "1.mp4,0 2"), ("query", "2.mp4,0 1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "list.csv").write_text(f"path,labels\n{rows}\n")
    gallery, query = (read_list(tmp_path / name / "list.csv") for name in ("gallery", "query"))
    with pytest.raises(
        DataError, match=r"have labels of 3 and 2 classes: write the names of all classes to classes.txt"
    ):
        check_measurable(built("uniformity"), gallery, query, 0)


def test_classes_that_are_too_small_are_an_error_before_extraction(tmp_path):
    gallery, query = lists(tmp_path, ["1.mp4,0", "2.mp4,0", "3.mp4,1", "4.mp4,1"], ["5.mp4,0"])
    with pytest.raises(DataError, match=r"protocol svm needs .* at least 3 .* the smallest of 2: lower folds"):
        check_measurable(built("svm"), gallery, query, 0)
    check_measurable({"svm": LinearSVM(LinearSVM.Config(costs=(1.0,)))}, gallery, query, 0)
    check_measurable({"svm": LinearSVM(LinearSVM.Config(folds=2))}, gallery, query, 0)
    with pytest.raises(DataError, match=r"protocol lowshot needs .* at least 3 .* the smallest of 2: lower shots"):
        check_measurable({"lowshot": LowShot(LowShot.Config(shots=(3, 4)))}, gallery, query, 0)
    gallery, query = lists(tmp_path, ["1.mp4,0", "2.mp4,0"], ["5.mp4,0"])
    with pytest.raises(DataError, match=r"protocol lowshot needs at least 2 classes .* there are 1"):
        check_measurable(built("lowshot"), gallery, query, 0)


def test_uniformity_of_a_large_gallery_is_that_of_evenly_spaced_rows():
    gallery = features(90, 0)
    actual = Uniformity(Uniformity.Config(rows=30))(gallery, gallery, NO_PAIRS)
    thirds = Features(gallery.x[::3], gallery.label[::3], gallery.index[::3])
    assert actual.numbers == Uniformity(Uniformity.Config())(thirds, thirds, NO_PAIRS).numbers
    assert actual.details == {"rows": 30} and len(thirds.x) == 30
