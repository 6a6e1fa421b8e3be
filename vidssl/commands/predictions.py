"""Files of predicted classes: CSV tables of videos and of classes, and the confusion matrix."""

from pathlib import Path

import torch
from torch import Tensor

from vidssl.atomic import write_whole
from vidssl.commands.results import write_csv
from vidssl.data.video_list import VideoList
from vidssl.evaluation.metrics import confusion
from vidssl.viz.confusion import confusion_matrix
from vidssl.viz.figure import png


def write_predictions(out: Path, name: str, videos: VideoList, predicted: Tensor) -> None:
    """Write the predictions of a protocol: of each video, of each class, and the confusion matrix as an image.

    Args:
        out: The folder.
        name: The protocol, for the names of the files.
        videos: The videos that were tested.
        predicted: (N,) class of each, -1 where there is none.
    """
    label = torch.from_numpy(videos.labels)
    classes = max(len(videos.classes), int(max(label.max(), predicted.max())) + 1)
    names = [videos.classes[n] if n < len(videos.classes) else str(n) for n in range(classes)]
    counts = confusion(predicted, label, classes)
    rows = [
        (path, names[of], names[p] if p >= 0 else "")
        for path, of, p in zip(videos.names, label.tolist(), predicted.tolist(), strict=True)
    ]
    write_csv(out / f"predictions_{name}.csv", ("path", "class", "predicted"), rows)
    table = [_class_row(n, names, counts) for n in range(classes) if int(counts[n].sum())]
    write_csv(out / f"per_class_{name}.csv", ("class", "videos", "right", "accuracy", "most often taken for"), table)
    write_whole(out / f"confusion_{name}.png", png(confusion_matrix(counts.numpy(), names), dpi=120))


def _class_row(n: int, names: list[str], counts: Tensor) -> tuple[str, int, int, str, str]:
    total, right = int(counts[n].sum()), int(counts[n, n])
    others = counts[n, :-1].clone()
    others[n] = 0
    other = names[int(others.argmax())] if int(others.max()) else ""
    return names[n], total, right, f"{right / total:.4f}", other
