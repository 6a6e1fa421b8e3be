"""The command `test` for a detector: average precision on a list of boxes (JSON)."""

import argparse
from pathlib import Path

from vidssl import distributed
from vidssl.atomic import file_hash
from vidssl.commands.arguments import print_results
from vidssl.commands.results import claim_results, format_table
from vidssl.config import build
from vidssl.detection.average_precision import check_pycocotools
from vidssl.detection.measure import measure_detector
from vidssl.distributed import choose_device
from vidssl.engine.config_schema import Run, bind_stored
from vidssl.engine.detection import build_detector, evaluation_data, read_evaluation_list, request_of_test
from vidssl.engine.detection_schema import DetectionRun
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.trained_lists import trained_on
from vidssl.errors import ConfigError
from vidssl.evaluation.overlap import measure_overlap, report_overlap
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.models.backbones import BACKBONES
from vidssl.models.weights import load_state, read_checkpoint

_REFUSED = (
    *("train_list", "protocol", "splits", "cfg", "clips", "crops", "size", "stream", "grid", "grid_frames", "layer"),
    *("precision", "allow_missing", "allow_external", "overrides"),
)


def run(parsed: argparse.Namespace) -> None:
    """Measure a detector, and print the numbers."""
    given = [name for name in _REFUSED if getattr(parsed, name)]
    if given:
        raise ConfigError(f"--{given[0].replace('_', '-')} does not fit a list of boxes: leave it out")
    claim_results(parsed.out, "test of a detector", {"list": parsed.input}, [parsed.checkpoint])
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
        origin = {"path": str(parsed.checkpoint), "sha256": file_hash(Path(parsed.checkpoint)), "step": content["step"]}
        described = request_of_test({"sha256": origin["sha256"]}, settings, boxes, short)
        distributed.on_main(lambda: existing_results(parsed.out, described, reuse=False))
        overlap = measure_overlap(boxes, None, lambda: trained_on(settings, content))
        distributed.on_main(lambda: report_overlap(overlap, parsed.input))
        numbers = measure_detector(detector.to(device), dataset, size, device, request.check)
        results: Results = {
            "numbers": numbers,
            "list": str(parsed.input),
            "fingerprint": boxes.fingerprint,
            **boxes.counts(),
            "short_side": short,
            "checkpoint": origin,
        }
        results = complete(results, request=described, overlap=overlap, query=boxes.fingerprint)
        distributed.on_main(lambda: write_results(parsed.out, results))
    return results
