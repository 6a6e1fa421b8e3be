"""Localisation from features against scikit-learn, and lists with and without positions."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from vidssl.apps.views.colorful_moving_mnist import Localization
from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.data.video_list import read_list

NO_PAIRS = torch.empty(0, 2, dtype=torch.int64)


def made(count, seed, constant=False):
    """Features that hold the position, linearly but for noise."""
    rng = generator(seed)
    position = rng.uniform(14, 50, size=(count, 2))
    x = position @ generator(0).normal(size=(2, 6)) + 3 * rng.normal(size=(count, 6)) + 100
    if constant:
        x[:, 2] = 7.0
    row = torch.arange(count)
    columns = {"x": torch.from_numpy(position[:, 0]), "y": torch.from_numpy(position[:, 1])}
    return Features(torch.from_numpy(x).float(), -torch.ones_like(row), row, columns=columns)


def positions(columns):
    return np.stack([columns["x"], columns["y"]], axis=1)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("penalty", [0.01, 1.0, 300.0])
def test_error_is_that_of_scikit_learn(penalty, constant):
    gallery, query = made(80, 1, constant), made(30, 2, constant)
    actual = Localization(Localization.Config(penalty=penalty))(gallery, query, NO_PAIRS)
    scaler = StandardScaler().fit(gallery.x.double().numpy())
    model = Ridge(alpha=penalty).fit(scaler.transform(gallery.x.double().numpy()), positions(gallery.columns))
    missed = model.predict(scaler.transform(query.x.double().numpy())) - positions(query.columns)
    expected = np.hypot(*missed.T).mean()
    assert actual.numbers["localization_error"] == pytest.approx(expected, rel=1e-6)
    missed = positions(gallery.columns).mean(axis=0) - positions(query.columns)
    assert actual.numbers["mean_position_error"] == pytest.approx(np.hypot(*missed.T).mean())
    assert actual.predicted is None and expected < np.hypot(*missed.T).mean()


def test_features_without_positions():
    features = made(10, 0)
    without = Features(features.x, features.label, features.index)
    with pytest.raises(DataError, match="needs positions: give lists with the columns x and y"):
        Localization(Localization.Config())(features, without, NO_PAIRS)


def test_lists_with_positions(tmp_path):
    path = tmp_path / "list.csv"
    path.write_text("path,end,x,y\na.mp4,1.0,3.5,4\nb.mp4,,0,60\n")
    videos = read_list(path)
    np.testing.assert_array_equal(positions(videos.columns), [[3.5, 4], [0, 60]])
    assert (videos.records[1].end, videos.records[1].columns) == (None, {"x": 0.0, "y": 60.0})
    np.testing.assert_array_equal(positions(videos.rows([1]).columns), [[0, 60]])
    Localization(Localization.Config()).check_lists(videos, videos)
    before = videos.fingerprint
    path.write_text("path,end,x,y\na.mp4,1.0,3.5,4\nb.mp4,,0,\n")
    videos = read_list(path)
    assert videos.records[1].columns == {"x": 0.0} and videos.fingerprint != before
    with pytest.raises(DataError, match=r"needs the columns x and y in all rows of .*list\.csv"):
        Localization(Localization.Config()).check_lists(videos, videos)
    path.write_text("path,x,y\na.mp4,3.5,inf\n")
    with pytest.raises(DataError, match=r"x 3\.5 and y inf must be finite"):
        read_list(path)
