"""The job `test` for a detector: average precision on a list of boxes (JSON)."""

from collections.abc import Sequence
from pathlib import Path

from vidssl import distributed
from vidssl.api.job import Model, NetworkOptions
from vidssl.api.results import claim_results, format_table
from vidssl.api.run import JobResults
from vidssl.atomic import file_hash
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

_USED = ("device", "workers", "batch_size", "short_side", "root", "trust", "imports")  # options of networks


def test_detector(
    model: Model, videos: Path, out: Path | None, options: NetworkOptions, others: Sequence[str] = ()
) -> JobResults:
    """Measure a detector on a list of boxes; return the numbers by name. `others` are arguments of clips, if given."""
    if given := [*others, *(name for name in options if name not in _USED)]:
        raise ConfigError(f"{given[0]} does not fit a list of boxes: leave it out")
    if not isinstance(model, str | Path) or out is None:
        raise ConfigError("a detector is measured by its checkpoint, with a folder for the results: give out=FOLDER")
    claim_results(out, "test of a detector", {"list": videos}, [Path(model)])
    results = JobResults(_measure(Path(model), videos, out, options))
    rows = [(name, f"{100 * value:.1f}") for name, value in results["numbers"].items()]
    results.text, results.file = "\n".join(format_table(rows, "<>")), out / "results.json"
    return results


def _measure(checkpoint: Path, videos: Path, out: Path, options: NetworkOptions) -> Results:
    trust = options.get("trust", False)
    content = read_checkpoint(checkpoint, trust)
    settings = bind_stored(content["config"], f"config of {checkpoint}", trust)
    if isinstance(settings, Run):
        raise ConfigError(f"{checkpoint} holds no detector, which {videos}, a list of boxes, needs")
    if isinstance(settings, DetectionRun):
        check_pycocotools()
    root = options.get("root", settings.data.root)
    boxes = read_evaluation_list(settings, videos, root)
    if list(boxes.classes) != content["classes"]:
        raise ConfigError(f"{videos} has other classes than the detector was trained on: prepare it from that set")
    detector = build_detector(settings, build(BACKBONES, settings.backbone), len(boxes.classes))
    load_state(detector, content["method"], str(checkpoint))
    if "workers" in options:
        workers = {"workers": options["workers"]}
        settings = settings.model_copy(update={"data": settings.data.model_copy(update=workers)})
    short = options.get("short_side", settings.evaluate.short_side)
    dataset = evaluation_data(settings, boxes, short)
    device, size = choose_device(options.get("device", "auto")), options.get("batch_size", settings.evaluate.batch_size)
    with distributed.joined(device), StopRequest().listening() as request:
        origin = {"path": str(checkpoint), "sha256": file_hash(checkpoint), "step": content["step"]}
        described = request_of_test({"sha256": origin["sha256"]}, settings, boxes, short)
        distributed.on_main(lambda: existing_results(out, described, reuse=False))
        overlap = measure_overlap(boxes, None, lambda: trained_on(settings, content))
        distributed.on_main(lambda: report_overlap(overlap, videos))
        numbers = measure_detector(detector.to(device), dataset, size, device, request.check)
        results: Results = {
            "numbers": numbers,
            "list": str(videos),
            "fingerprint": boxes.fingerprint,
            **boxes.counts(),
            "short_side": short,
            "checkpoint": origin,
        }
        results = complete(results, request=described, overlap=overlap, query=boxes.fingerprint)
        distributed.on_main(lambda: write_results(out, results))
    return results
