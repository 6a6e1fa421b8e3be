"""The job `test` for a detector: average precision on a list of boxes (JSON)."""

from collections.abc import Sequence
from pathlib import Path

from vidssl import distributed
from vidssl.api.format_results import claim_results, format_table
from vidssl.api.job_arguments import Model, NetworkOptions
from vidssl.api.measure_networks import JobResults
from vidssl.atomic import file_hash
from vidssl.config import build
from vidssl.distributed import choose_device
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.training_lists import known_lists
from vidssl.errors import ConfigError
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.evaluation.train_test_overlap import measure_overlap, report_overlap
from vidssl.models.backbones import BACKBONES
from vidssl.models.weights import load_state, read_checkpoint
from vidssl.projects.detection.lists_with_boxes import read_boxes
from vidssl.projects.detection.measure_detector import (
    describe_list,
    measure_detector,
    request_of_test,
    task_of,
    test_list,
)
from vidssl.projects.detection.schema import bind_stored

_USED = ("device", "workers", "batch_size", "short_side", "root", "trust", "imports")  # options of networks


def test(
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
    run = bind_stored(content["config"], f"config of {checkpoint}", trust)
    if "workers" in options:
        data = run.data.model_copy(update={"workers": options["workers"]})
        run = run.model_copy(update={"data": data})
    task = task_of(run)
    boxes = test_list(task, videos, options.get("root", run.data.root))
    if list(boxes.classes) != content["classes"]:
        raise ConfigError(f"{videos} has other classes than the detector was trained on: prepare it from that set")
    detector = task.detector(build(BACKBONES, run.backbone), len(boxes.classes))
    load_state(detector, content["method"], str(checkpoint))
    short_side = options.get("short_side", run.evaluate.short_side)
    dataset = task.test_data(boxes, short_side)
    device, size = choose_device(options.get("device", "auto")), options.get("batch_size", run.evaluate.batch_size)
    trained = [run.data.train] if isinstance(run.data.train, str) else run.data.train
    with distributed.joined(device), StopRequest().listening() as request:
        origin = {"path": str(checkpoint), "sha256": file_hash(checkpoint), "step": content["step"]}
        described = request_of_test({"sha256": origin["sha256"]}, task, boxes, short_side)
        distributed.on_main(lambda: existing_results(out, described, reuse=False))
        overlap = measure_overlap(
            boxes,
            None,
            lambda: known_lists(trained, lambda: read_boxes(trained, run.data.root).images_with_objects(), content),
        )
        distributed.on_main(lambda: report_overlap(overlap, videos))
        numbers = measure_detector(detector.to(device), dataset, size, device, request.check)
        found: Results = {"numbers": numbers, **describe_list(boxes), "short_side": short_side, "checkpoint": origin}
        results = complete(found, request=described, overlap=overlap, query=boxes.fingerprint)
        distributed.on_main(lambda: write_results(out, results))
    return results
