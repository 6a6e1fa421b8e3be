"""The protocol `localization`: where an object is, by linear regression from frozen features."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from vidssl.config import Settings
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol, Measured
from vidssl.evaluation.search import check_finite
from vidssl.types import Features


@PROTOCOLS.register("localization")
class Localization(EvaluationProtocol):
    """Error of ridge regression from features to the position in the columns `x` and `y` of the lists.

    Features are standardised with mean and deviation of the gallery's.
    """

    learns: ClassVar[bool] = True
    labels: ClassVar[bool] = False

    class Config(Settings):
        penalty: float = Field(default=1.0, gt=0)  # of the squared weights, for standardised features

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `localization_error`, the mean distance in pixels, and `mean_position_error`, that of a constant."""
        position, wanted = _positions(gallery.columns), _positions(query.columns)
        if position is None or wanted is None:
            raise DataError("protocol localization needs positions: give lists with the columns x and y")
        for name, features in (("gallery", gallery), ("query", query)):
            check_finite(name, features.x)
        x = gallery.x.double()
        shift, scale = x.mean(dim=0), x.std(dim=0, correction=0).clamp(min=1e-6)
        x, queries = ((rows - shift) / scale for rows in (x, query.x.double()))
        mean = position.mean(dim=0)
        gram = x.T @ x + self.config.penalty * torch.eye(x.shape[1], dtype=torch.float64)
        weights = torch.linalg.solve(gram, x.T @ (position - mean))
        errors = {"localization_error": queries @ weights + mean, "mean_position_error": mean}
        return Measured({name: float((found - wanted).norm(dim=1).mean()) for name, found in errors.items()})

    def check_lists(self, gallery: VideoList, query: VideoList) -> None:
        """Check that all rows have a position."""
        for videos in (gallery, query):
            if _positions({name: torch.from_numpy(column) for name, column in videos.columns.items()}) is None:
                raise DataError(f"protocol localization needs the columns x and y in all rows of {videos.path}")


def _positions(columns: Mapping[str, Tensor]) -> Tensor | None:
    """Return the position of an object in each row (N, 2), x and y in pixels; None if a row has none."""
    if not {"x", "y"} <= {*columns}:
        return None
    found = torch.stack([columns["x"], columns["y"]], dim=1).double()
    return None if found.isnan().any() else found
