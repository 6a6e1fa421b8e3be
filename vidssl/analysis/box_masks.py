"""Videos that show where the boxes of instances are: white inside of the box, black outside."""

from collections.abc import Mapping

import numpy as np

from vidssl.analysis.versions_from_one_decode import Make, VersionRequest
from vidssl.data.instance_boxes import Boxes, pixels_of
from vidssl.types import Frames


def box_masks(boxes: Mapping[str, Boxes]) -> Make:
    """Make a version that shows the boxes; `boxes` are by the path of the record. Frames without a box are black."""

    def draw(request: VersionRequest) -> Frames:
        masks = np.zeros_like(request.frames)  # the size is known after decoding only
        for place, rows, columns in pixels_of(boxes.get(request.record.path, {}), request.numbers):
            masks[place, :, rows, columns] = 255
        return masks

    return draw
