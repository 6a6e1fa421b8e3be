"""The results of `analyze invariance` as a chart and as a table for a terminal."""

from collections.abc import Mapping

from vidssl.analysis import TRANSFORMATIONS
from vidssl.commands.measure_network import Results
from vidssl.viz.bars import grouped_bars
from vidssl.viz.figure import png

COMPARED = ("unchanged", "shuffled")  # the baselines of the transformations


def chart(found: Mapping[str, Results]) -> bytes:
    """Draw the scores of networks, one colour each, as PNG."""
    names = _measured(found)
    first = next(iter(found.values()))
    series = {label: [_means(results).get(f"invariance_{name}") for name in names] for label, results in found.items()}
    top, variant = first["measure"]["top_k"], first["measure"]["variant"]
    whose = "of each class" if variant == "class" else "of all"
    figure = grouped_bars(
        names,
        series,
        title=f"Invariance of the {top} best units {whose}: {first['num_samples']} clips",
        unit="invariance score",
        levels={"1: ignores\nthe clip": 1.0, "perfect": _means(first)["invariance_ceiling"]},
        apart=COMPARED,
    )
    return png(figure)


def _means(results: Results) -> Results:
    """The numbers by name; for several splits their means."""
    means: Results = results.get("mean", results)
    return means


def _measured(found: Mapping[str, Results]) -> list[str]:
    """The rows: transformations, baselines, and the mean if all networks have the same transformations."""
    own = [[name for name in TRANSFORMATIONS if f"invariance_{name}" in _means(r)] for r in found.values()]
    names = [name for name in TRANSFORMATIONS if any(name in names for names in own)]
    return [COMPARED[0], *names, *(["mean"] if all(names == own[0] for names in own) else []), COMPARED[1]]


def summary(found: Mapping[str, Results]) -> str:
    """Format the scores of networks as a short table."""
    first = next(iter(found.values()))
    names = _measured(found)
    width = max(map(len, names))
    splits = list(first.get("splits", {}).values())
    videos = ", ".join(map(_count, splits)) or f"{_count(first)}, {first['num_samples']} clips"
    cells = {
        label: [label, *(_cell(results, f"invariance_{name}") for name in names)] for label, results in found.items()
    }
    rows = zip(["", *names], *cells.values(), strict=True)
    widths = [max(map(len, column)) for column in cells.values()]
    lines = [
        f"{videos}; the {first['measure']['top_k']} best of {first['num_units']} units; 1: a unit that ignores "
        f"the clip, {_means(first)['invariance_ceiling']:.4g}: perfect"
        + (f"; mean ± standard deviation of {len(splits)} splits" if len(splits) > 1 else ""),
        *(
            f"{name:<{width}}" + "".join(f"  {cell:>{n}}" for cell, n in zip(row, widths, strict=True))
            for name, *row in rows
        ),
    ]
    for label, results in found.items():
        of = f" of {label}" if len(found) > 1 else ""
        lines += [f"not measured{of}: {name} ({why})" for name, why in results["left_out"].items()]
    if "mean" not in names:
        lines.append("no mean: the networks were not measured with the same transformations")
    return "\n".join(lines)


def _cell(results: Results, name: str) -> str:
    mean, spread = _means(results).get(name), results.get("spread", {}).get(name)
    if mean is None:
        return "–"
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"


def _count(results: Results) -> str:
    lacking, count = len(results["missing"]), results["num_videos"]
    return f"{count} of {count + lacking} videos ({lacking} missing)" if lacking else f"{count} videos"
