"""The command `test` for a detector: average precision on a list of boxes (JSON)."""

import argparse
from pathlib import Path
from typing import Any

from vidssl import distributed
from vidssl.atomic import check_folder, file_hash, write_json
from vidssl.commands.arguments import print_results
from vidssl.commands.results import Results, format_table
from vidssl.config import build
from vidssl.detection.average_precision import check_pycocotools
from vidssl.detection.measure import measure_detector
from vidssl.engine.config_schema import Run, bind_stored, choose_device
from vidssl.engine.detection import build_detector, evaluation_data, read_evaluation_list
from vidssl.engine.detection_schema import DetectionRun
from vidssl.engine.interrupt import StopRequest
from vidssl.errors import ConfigError
from vidssl.models.backbones import BACKBONES
from vidssl.models.weights import load_state, read_checkpoint

_REFUSED = (
    *("train_list", "protocol", "splits", "cfg", "clips", "crops", "size", "grid", "grid_frames", "layer", "precision"),
    *("allow_missing", "allow_external", "overrides"),
)


def run(parsed: argparse.Namespace) -> None:
    """Measure a detector, and print the numbers."""
    given = [name for name in _REFUSED if getattr(parsed, name)]
    if given:
        raise ConfigError(f"--{given[0].replace('_', '-')} does not fit a list of boxes: leave it out")
    check_folder(parsed.out)
    results = _measure(parsed)
    rows = [(name, f"{100 * value:.1f}") for name, value in results["numbers"].items()]
    print_results(parsed, results, *format_table(rows, "<>"), parsed.out / "results.json")


def _measure(parsed: argparse.Namespace) -> Results:
    content = read_checkpoint(parsed.checkpoint, parsed.trust_checkpoint)
    settings = bind_stored(content["config"], f"config of {parsed.checkpoint}", parsed.trust_checkpoint)
    if isinstance(settings, Run):
        raise ConfigError(f"{parsed.checkpoint} holds no detector, which {parsed.input}, a list of boxes, needs")
    if isinstance(settings, DetectionRun):
        check_pycocotools()
    root = settings.data.root if parsed.root is None else parsed.root
    boxes = read_evaluation_list(settings, parsed.input, root)
    if list(boxes.classes) != content["classes"]:
        raise ConfigError(
            f"{parsed.input} has other classes than the detector was trained on: prepare it from that set"
        )
    detector = build_detector(settings, build(BACKBONES, settings.backbone), len(boxes.classes))
    load_state(detector, content["method"], str(parsed.checkpoint))
    if parsed.workers is not None:
        settings = settings.model_copy(update={"data": settings.data.model_copy(update={"workers": parsed.workers})})
    short = parsed.short_side or settings.evaluate.short_side
    dataset = evaluation_data(settings, boxes, short)
    device, size = choose_device(parsed.device), parsed.batch_size or settings.evaluate.batch_size
    with distributed.joined(device), StopRequest().listening() as request:
        numbers = measure_detector(detector.to(device), dataset, size, device, request.check)
        results: dict[str, Any] = {
            "numbers": numbers,
            "list": str(parsed.input),
            "fingerprint": boxes.fingerprint,
            **boxes.counts(),
            "short_side": short,
            "checkpoint": {
                "path": str(parsed.checkpoint),
                "sha256": file_hash(Path(parsed.checkpoint)),
                "step": content["step"],
            },
        }
        distributed.on_main(lambda: write_json(parsed.out / "results.json", results))
    return results
