"""The command `analyze gradcam`: where networks look, in space and time, as numbers, overlays and a page."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from math import isnan
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import torch

from vidssl import distributed
from vidssl.analysis.grad_cam import coarse, mass_inside, randomized, rank_correlation
from vidssl.atomic import file_hash
from vidssl.commands.arguments import print_results
from vidssl.commands.clip_maps import box_masks, class_maps, layers_of_maps, one_clip, pair_maps
from vidssl.commands.gradcam_page import Explained, legend, table, write_overlay, write_page
from vidssl.commands.load import Subject, class_hash, load_subject, network_options
from vidssl.commands.results import claim_results, format_count, format_table, format_tests
from vidssl.commands.several_networks import each_network
from vidssl.config import Tree, build
from vidssl.data.fingerprint import identify
from vidssl.data.instance_boxes import Boxes, read_instance_boxes
from vidssl.data.overlap import own_rows
from vidssl.data.read_input import read_input
from vidssl.data.video_list import VideoList
from vidssl.distributed import choose_device
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.features import extract
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.evaluation.search import nearest
from vidssl.models.backbones import BACKBONES
from vidssl.randomness import generator


@dataclass(frozen=True)
class CamOptions:
    """What is explained, and on which videos."""

    target: Literal["class", "similarity"] | None = None  # None: class, if the network has a classifier
    layer: str | None = None  # as of `layer_module`; None: as of `layers_of_maps`
    gallery: Path | None = None  # list of the nearest videos; None: the list itself
    boxes: Path | None = None  # as of `read_instance_boxes`
    videos: int = 64  # drawn at random
    overlays: int = 8  # the first of them are drawn
    seed: int = 0
    randomize: bool = False  # also measure the maps of networks whose stages are replaced by untrained ones


def run(parsed: argparse.Namespace) -> None:
    """Measure networks, and print the mass of their maps inside of the boxes."""
    found = measure_parsed(parsed)
    print_results(parsed, found, summary(found), parsed.out / "index.html")


def measure_parsed(parsed: argparse.Namespace) -> dict[str, Results]:
    """Compute the maps of networks; write overlays and `results.json` of each, `index.html` and `gradcam.png`.

    All networks see the same videos.
    """
    claim_results(
        parsed.out,
        "gradcam",
        {"list": parsed.input, "gallery": parsed.gallery},
        [*parsed.checkpoint, parsed.cfg, parsed.boxes],
    )
    cam = CamOptions(**{field.name: getattr(parsed, field.name) for field in fields(CamOptions)})
    found: dict[str, Results] = {}
    shown: dict[str, dict[int, Explained]] = {}
    with distributed.joined(choose_device(parsed.device)):
        listed = read_input(parsed.input, parsed.root, parsed.allow_external)
        gallery = listed if cam.gallery is None else read_input(cam.gallery, parsed.root, parsed.allow_external)
        drawn = generator(cam.seed).permutation(len(listed.records))[: cam.videos].tolist()
        for name, one in each_network(parsed):
            options = replace(network_options(one), layer=None)  # --layer has maps here, not the features
            subject = one_clip(load_subject(options))
            pairs = cache(partial(_nearest_videos, subject, listed, gallery, drawn))  # the same for all layers
            layers = layers_of_maps(subject, cam.layer)
            for layer in layers:
                stream = layer.partition(".")[0] if len(layers) > 1 else ""
                key, out = f"{name} {stream}".rstrip(), one.out / stream
                found[key], shown[key] = _measure(subject, listed, gallery, drawn, out, cam, layer, pairs)
        distributed.on_main(lambda: write_page(parsed.out, listed, drawn, found, shown))
    return found


def _measure(
    subject: Subject,
    listed: VideoList,
    gallery: VideoList,
    drawn: list[int],
    out: Path,
    cam: CamOptions,
    layer: str,
    nearest_videos: Callable[[], dict[int, int]],
) -> tuple[Results, dict[int, Explained]]:
    """Measure one layer of a network; return its results, and by row the videos whose overlays were drawn."""
    claim_results(out, "gradcam", {"list": listed.path, "gallery": cam.gallery}, [subject.origin["path"], cam.boxes])
    target = cam.target or ("similarity" if subject.logits is None else "class")
    if target == "class" and cam.gallery is not None:
        raise ConfigError(f"--gallery {cam.gallery} is for --target similarity: leave it out")
    boxes = None if cam.boxes is None else read_instance_boxes(cam.boxes, listed)
    request = distributed.on_main(lambda: _request(subject, listed, gallery, cam, target, layer))
    distributed.on_main(lambda: existing_results(out, request, reuse=False))
    overlap = subject.check_overlap(listed, None if target == "class" else gallery)
    pairs = nearest_videos() if target == "similarity" else None

    def measure() -> tuple[Results, dict[int, Explained]]:
        found = dict(_explain(subject, listed, gallery, drawn, layer, pairs))
        if not found:
            raise DataError(f"none of the {len(drawn)} videos drawn from {listed.path} can be read")
        kept = {row: found[row] for row in [row for row in drawn if row in found][: cam.overlays]}
        results: Results = {
            "target": target,
            "layer": layer,
            "cells": next(iter(found.values())).clip.cells,
            "num_videos": len(found),
            "zero_maps": sum(not one.clip.map.any() for one in found.values()),
            **(_mass(subject, listed, found, boxes) if boxes is not None else {}),
            "videos": [_describe(listed, gallery, row, one) for row, one in found.items()],
            "missing": [{"path": listed.names[row]} for row in drawn if row not in found],
            "list": str(listed.path),
            "gallery": str(gallery.path) if pairs else None,
            "boxes": None if cam.boxes is None else str(cam.boxes),
            "seed": cam.seed,
            **subject.describe(),
        }
        for row, one in kept.items():
            write_overlay(out / "overlays" / f"{row:05d}", one)
        if cam.randomize:
            results["randomized"] = _randomize(subject, listed, gallery, layer, found)
        of_lists = {"query": listed.fingerprint, "gallery": gallery.fingerprint if pairs else None}
        results = complete(results, request=request, overlap=overlap, **of_lists)
        write_results(out, results)
        return results, kept

    return distributed.on_main(measure)


def _request(subject: Subject, listed: VideoList, gallery: VideoList, cam: CamOptions, target: str, layer: str) -> Tree:
    """What decides the maps."""
    return subject.request(
        command="analyze gradcam",
        list=listed.fingerprint,
        data=identify(listed),
        classes=class_hash(listed),
        gallery=gallery.fingerprint if target == "similarity" else None,
        gallery_data=identify(gallery) if target == "similarity" else None,
        boxes=None if cam.boxes is None else file_hash(cam.boxes),
        maps={"target": target, "layer": layer, "seed": cam.seed, "videos": cam.videos, "randomize": cam.randomize},
    )


def _nearest_videos(subject: Subject, listed: VideoList, gallery: VideoList, drawn: list[int]) -> dict[int, int]:
    """Return the row of the nearest video of the gallery, by row of the list; a video is not its own neighbour."""
    videos = listed.rows(drawn)
    query, found = (extract(subject.encoder, part, subject.test, subject.device) for part in (videos, gallery))
    of_query = {row: n for n, row in enumerate(query.index.tolist())}
    of_gallery = {row: n for n, row in enumerate(found.index.tolist())}
    own = [
        (of_query[q], of_gallery[g]) for q, g in own_rows(gallery, videos).tolist() if q in of_query and g in of_gallery
    ]
    near = nearest(query.x, found.x, 1, torch.tensor(own, dtype=torch.int64).reshape(-1, 2))
    rows, alike = near.index[:, 0].tolist(), near.similarity[:, 0].tolist()
    return {
        drawn[q]: int(found.index[g])
        for q, g, similarity in zip(query.index.tolist(), rows, alike, strict=True)
        if similarity > float("-inf")
    }


def _explain(
    subject: Subject,
    listed: VideoList,
    gallery: VideoList,
    drawn: list[int],
    layer: str,
    pairs: Mapping[int, int] | None,
    classes: Mapping[int, int] | None = None,
) -> Iterator[tuple[int, Explained]]:
    """Yield the rows of the list and their maps: for the similarity of `pairs`, or without pairs for classes."""
    if pairs is None:
        wanted = None if classes is None else {n: classes[row] for n, row in enumerate(drawn)}
        for n, clip, label, probability in class_maps(subject, listed.rows(drawn), layer, wanted):
            yield drawn[n], Explained(clip, probability, label)
        return
    rows = [row for row in drawn if row in pairs]
    others = gallery.rows([pairs[row] for row in rows])
    for n, clip, other, similarity in pair_maps(subject, listed.rows(rows), others, layer):
        yield rows[n], Explained(clip, similarity, neighbour=pairs[rows[n]], other=other)


def _mass(subject: Subject, listed: VideoList, found: Mapping[int, Explained], boxes: Mapping[str, Boxes]) -> Results:
    """Measure the mass inside of the boxes, their area, and the mass that the boxes themselves would have as maps."""
    rows = list(found)
    masks = {rows[n]: mask for n, mask in box_masks(subject, listed.rows(rows), boxes)}
    inside = {row: mass_inside(found[row].clip.map, mask) for row, mask in masks.items()}
    measured = {row: pair for row, pair in inside.items() if not any(map(isnan, pair))}
    limits = [mass_inside(coarse(masks[row], found[row].clip.cells), masks[row])[0] for row in measured]
    if not measured:
        raise ConfigError("no drawn video has both a map that is not zero and a box inside of its clip: draw more")
    return {
        "mass_in_box": mean(mass for mass, _ in measured.values()),
        "box_area": mean(area for _, area in measured.values()),
        "mass_limit": mean(limits),
        "num_boxed": len(measured),
        "mass_of_video": {listed.names[row]: pair for row, pair in measured.items()},
    }


def _describe(listed: VideoList, gallery: VideoList, row: int, one: Explained) -> dict[str, Any]:
    found = {"path": listed.names[row], "class": listed.class_name(listed.records[row].label)}
    if one.other is None:
        return {**found, "predicted": listed.class_name(one.label), "probability": one.number}
    return {**found, "neighbour": gallery.names[one.neighbour], "similarity": one.number}


def _randomize(
    subject: Subject, listed: VideoList, gallery: VideoList, layer: str, found: Mapping[int, Explained]
) -> dict[str, float]:
    """Measure the mean rank correlation with the maps of networks with ever fewer trained stages; the last has none."""
    rows = list(found)
    pairs = {row: one.neighbour for row, one in found.items()} if found[rows[0]].other else None
    classes = {row: one.label for row, one in found.items()}
    torch.manual_seed(subject.run.seed + 1)  # not that of the run, whose weights would be those it started from
    untrained = subject.test.network(build(BACKBONES, subject.run.backbone)).to(subject.device)
    state = {name: value.clone() for name, value in subject.backbone.state_dict().items()}
    correlation = {}
    for stage in randomized(subject.test.network(subject.backbone), untrained):
        changed = dict(_explain(subject, listed, gallery, rows, layer, pairs, classes))
        both = [(found[row].clip.map[None], one.clip.map[None]) for row, one in changed.items()]
        correlation[stage] = mean(rank_correlation(a, b).item() for a, b in both)
    subject.backbone.load_state_dict(state)
    return correlation


def summary(found: Mapping[str, Results]) -> str:
    """Format the numbers of all networks as a short table."""
    first, rows = next(iter(found.values())), table(found)
    lines = [
        f"{format_count(first['num_videos'], first['missing'])} videos; {format_tests(found)}",
        *format_table(rows, "<<<<" + ">" * (len(rows[0]) - 4)),
    ]
    lines += [f"{name.lower()}: {text}" for name, text in legend(found)]
    return "\n".join(lines)
