"""What learned nothing, measured beside a network: thumbnails, differences of frames, an untrained network."""

from collections.abc import Callable, Mapping

from vidssl import distributed
from vidssl.api.format_results import format_clips, format_count, format_table
from vidssl.api.job_arguments import NetworkOptions
from vidssl.api.measured_network import Subject, describe_clips, joined_clips, load_subject
from vidssl.data.find_same_videos import own_rows
from vidssl.data.video_list import VideoList
from vidssl.evaluation.features import extract, split_features
from vidssl.evaluation.measure import apply_protocols
from vidssl.evaluation.metrics import level_of
from vidssl.evaluation.protocols import EvaluationProtocol
from vidssl.evaluation.result_files import Results
from vidssl.models.floors import FLOORS
from vidssl.models.joined import Joined

_OF_DIRECTIONS = ("order", "order_pairs")  # accuracies of two classes of equal size
LEVELS = ("chance", "majority", "majority_mean_class")  # numbers that do not depend on the network
_NONE = "–"


def measure_floors(
    subject: Subject,
    protocols: Mapping[str, EvaluationProtocol],
    query: VideoList,
    gallery: VideoList | None,
    check: Callable[[], None],
) -> Results:
    """Measure what learned nothing by the protocols of a network; each video is decoded once for all floors.

    Returns `floors`, the numbers of each by its name, and `floors_details`. `check` is that of `extract`.
    """
    left_out = {name: reason for name, protocol in protocols.items() if (reason := _why_left_out(protocol))}
    applied = {name: protocol for name, protocol in protocols.items() if name not in left_out}
    if not applied:
        return {"floors": {}, "floors_details": {"left_out": left_out}}
    options: NetworkOptions = {"workers": subject.test.workers, "allow_missing": subject.test.allow_missing}
    floors = {name: load_subject(f"floor:{name}", {**options, "device": "cpu"}) for name in FLOORS}
    clips = joined_clips([floor.test for floor in floors.values()])
    clips = clips.skipping_few() if subject.test.skips else clips
    encoder = Joined([floor.encoder for floor in floors.values()]).to(subject.device).eval()
    reverse = any(protocol.reverse for protocol in applied.values())
    g = None
    if gallery is not None:
        g = extract(encoder, gallery, clips, subject.device, "gallery of floors", check=check, reverse=reverse)
    q = extract(encoder, query, clips, subject.device, "queries of floors", check=check, reverse=reverse)

    def compute() -> Results:
        queries = query.rows(q.index.tolist())
        galleries = None if g is None or gallery is None else gallery.rows(g.index.tolist())
        own = own_rows(galleries or queries, queries)
        of_galleries = [None] * len(floors) if g is None else split_features(g, encoder.dims)
        numbers = {}
        for name, of_gallery, of_query in zip(floors, of_galleries, split_features(q, encoder.dims), strict=True):
            found = apply_protocols(applied, of_gallery, of_query, own)
            numbers[name] = {key: value for measured in found.values() for key, value in measured.numbers.items()}
        return {"floors": numbers}

    details = {
        "protocol": describe_clips(clips),
        "left_out": left_out,
        "num_videos": len(q),
        "num_train": None if g is None else len(g),
        "missing": [{"path": path, "reason": reason} for path, reason in q.missing],
        "missing_train": [{"path": path, "reason": reason} for path, reason in (g.missing if g else ())],
    }
    return {**distributed.on_main(compute), "floors_details": details}


def _why_left_out(protocol: EvaluationProtocol) -> str | None:
    if protocol.probabilities:
        return "they have no classifier"
    return "they have no feature maps" if protocol.maps else None


def format_floors(network: str, results: Results, cell: Callable[[str, float], str]) -> list[str]:
    """Format the numbers of a network and of floors: a row for each, and what was measured; `cell` formats a number."""
    splits = list(results.get("splits", {}).values())

    def text(name: str, found: Results) -> str:
        number = (found["mean"] if splits else found).get(name)
        spread = found["spread"].get(name) if splits else found.get(f"{name}_spread")
        if number is None:
            return _NONE
        return cell(name, number) + ("" if spread is None else f" ± {cell(name, spread)}")

    def of_majority(name: str) -> str:
        return cell(name, 0.5) if name in _OF_DIRECTIONS else text(level_of(name) or "", results)

    numbers = results["mean"] if splits else {name: v for name, v in results.items() if isinstance(v, float)}
    columns = [name for name in numbers if name not in LEVELS and not name.endswith("_spread")]
    rows = [["", *columns], [network, *(text(name, results) for name in columns)]]
    rows += [[floor, *(text(name, found) for name in columns)] for floor, found in results["floors"].items()]
    levels = [of_majority(name) for name in columns]
    if {*levels} != {_NONE}:
        rows.append(["majority", *levels])
    lines = format_table(rows, "<" + ">" * len(columns))
    details = [one["floors_details"] for one in splits or [results]]
    if "protocol" in details[0]:
        counts = ", ".join(f"{format_count(one['num_videos'], one['missing'])} videos" for one in details)
        lines.append(f"floors: {counts}; {format_clips(details[0]['protocol'])}")
    return lines + [f"floors without {name}: {reason}" for name, reason in details[0]["left_out"].items()]
