"""Videos in which the instance is partly covered, by boxes that are known for each frame."""

from collections.abc import Mapping

from vidssl.analysis.versions_from_one_decode import Make, VersionRequest
from vidssl.data.instance_boxes import Boxes, pixels_of
from vidssl.transforms.invariance_changes import GRAY
from vidssl.types import Frames

FRACTIONS = (0.25, 0.5, 0.75)  # of the width of the box, covered from the left: version 1 to 3


def covering(boxes: Mapping[str, Boxes]) -> Make:
    """Make versions with a fraction of the instance covered; `boxes` are by the path of the record.

    Frames without a box are equal in all versions.
    """

    def cover(request: VersionRequest) -> Frames:
        covered, fraction = request.frames.copy(), FRACTIONS[request.version - 1]
        for place, rows, columns in pixels_of(boxes.get(request.record.path, {}), request.numbers, fraction):
            covered[place, :, rows, columns] = GRAY
        return covered

    return cover
