"""Embed videos by a file of `vidssl export --to onnx`, without vidssl: its features by PyAV, OpenCV and onnxruntime.

    pip install av opencv-python-headless onnxruntime
    python embed_without_vidssl.py NETWORK.onnx features.npy VIDEO...

The file holds all numbers, and in its `reading` the rules in words. `features.npy` has a row (D,) for each video.

`clips_in_time` is for a variable frame rate, as of phones, `matrix` for frames that are stored turned, `parts` for
networks of two streams: without such videos and networks about 50 lines do.
"""

import json
import sys

import av
import cv2
import numpy as np
import onnxruntime


def decode(path, convert):
    """Return all frames of the first video stream except covers, the header's frame rate, and the clock's unit."""
    with av.open(path) as file:
        stream = next(s for s in file.streams.video if not s.disposition & av.stream.Disposition.attached_pic)
        frames = [convert(n, frame) for n, frame in enumerate(file.decode(stream))]
        return frames, float(stream.average_rate or stream.guessed_rate or 25), float(stream.time_base)


def choose_frames(path, about):
    """Return the numbers of the frames of each clip, (clips, T)."""
    rule, clip, clips = about["reading"], about["clip"], about["test"]["clips"]
    T, short = clip["frames"], clip["short_video"]
    stamps, header, tick = decode(path, lambda n, frame: frame.pts)
    N, timed = len(stamps), len(stamps) > 1 and None not in stamps
    t = (np.sort(stamps) - min(stamps)) * tick if timed else np.arange(N) / header  # seconds at which frames begin
    rates = header, (N - 1) / t[-1] if timed else header
    regular = [fps for fps in rates if abs(t * fps - np.arange(N)).max() <= max(0.25, min(tick * fps, 0.4))]
    fps = regular[0] if regular else rates[1]
    t = np.arange(N + 1) / fps if regular else np.append(t, 2 * t[-1] - t[-2])  # and the end
    seconds = t[-1] if rule["seconds"] == "whole" else rule["seconds"]
    if not regular and not rule["span"]:
        return clips_in_time(t, fps, seconds, T, clips, short)
    span = rule["span"] or max(1, round(seconds * fps))
    last_start = max(N - span, 0)
    starts = [last_start // 2] if clips == 1 else [round(last_start * n / (clips - 1)) for n in range(clips)]
    frames = np.add.outer(starts, np.arange(T) * (span - 1) // max(T - 1, 1))
    return frames % N if short == "loop" else np.minimum(frames, N - 1)


def clips_in_time(t, fps, seconds, T, clips, short_video):
    """As `choose_frames` for a variable rate: frame n is shown from t[n] to t[n + 1]."""

    def since(times):  # the frames that are shown, for how long they were and will be, and half a frame
        n = np.clip(np.searchsorted(t, times, side="right") - 1, 0, len(t) - 2)
        return n, times - t[n], t[n + 1] - times, np.minimum((t[n + 1] - t[n]) / 2, 0.5 / fps)

    def at(times):  # the frame that is shown, or the next one if that begins within half a frame
        n, _, remaining, half = since(times)
        return np.minimum(n + (remaining <= half), len(t) - 2)

    latest = t[at(t[-1] - seconds)] if t[-1] - seconds >= -0.5 / fps else 0
    frames = []
    for start in at(np.array([latest / 2]) if clips == 1 else np.linspace(0, latest, clips)):
        end = t[start] + seconds
        n, elapsed, _, half = since(end)
        final = max(n + (elapsed + 1e-6 >= half) - 1, at(t[start]))
        times = np.linspace(t[start], max(t[final], end - 1 / fps, t[start]), T)
        if end > t[-1] + 0.5 / fps + 1e-6:  # the video is shorter
            times = np.linspace(t[start], max(end - 1 / fps, t[start]), T)
            frames.append(at(times % t[-1] if short_video == "loop" else times))
        else:
            frames.append(np.clip(at(times), start, final))
    return np.array(frames)


def crop(frame, size, short_side, crops):
    """Return the squares of a frame, (crops, S, S, 3): turned as the file asks, and resized to the short side."""
    image, matrix = frame.to_ndarray(format="rgb24"), frame.side_data.get("DISPLAYMATRIX")
    if matrix is not None:
        a, b, _, c, d = np.frombuffer(matrix, np.int32)[:5].tolist()
        if abs(a) + abs(d) < abs(b) + abs(c):
            image, a, d = image.transpose(1, 0, 2), c, b
        image = np.ascontiguousarray(image[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1])
    (height, width), short = image.shape[:2], min(image.shape[:2])
    high, wide = short_side * height // short, short_side * width // short
    method = cv2.INTER_AREA if height > 2 * high and width > 2 * wide else cv2.INTER_LINEAR
    image = image if short == short_side else cv2.resize(image, (wide, high), interpolation=method)
    y, x = [np.full(crops, (side - size + 1) // 2) for side in image.shape[:2]]
    if crops > 1:
        longer = y if high > wide else x
        longer[:] = [(2 * (max(high, wide) - size) * n + crops - 1) // (2 * (crops - 1)) for n in range(crops)]
    return np.stack([image[y[n] : y[n] + size, x[n] : x[n] + size] for n in range(crops)])


def embed(session, about, path):
    """Return the features (D,) of a video."""
    test, clips = about["test"], choose_frames(path, about)
    shape = test["size"], test["short_side"], test["crops"]
    frames = decode(path, lambda n, frame: crop(frame, *shape) if (clips == n).any() else None)[0]
    views = np.concatenate([np.stack([frames[n] for n in clip], axis=1) for clip in clips])  # (views, T, S, S, 3)
    mean, std = (np.array(about["input"][key], np.float32) for key in ("mean", "std"))
    x = ((views.astype(np.float32) / 255 - mean) / std).transpose(0, 4, 1, 2, 3)
    features = session.run(None, {"clips": x})[0].mean(axis=0)
    parts = np.split(features, np.cumsum(about["reading"]["unit_parts"][:-1])) if about["reading"]["unit_parts"] else []
    return np.concatenate([part / np.linalg.norm(part) for part in parts]) if parts else features


if __name__ == "__main__":
    session = onnxruntime.InferenceSession(sys.argv[1])
    about = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}
    np.save(sys.argv[2], np.stack([embed(session, about, path) for path in sys.argv[3:]]))
