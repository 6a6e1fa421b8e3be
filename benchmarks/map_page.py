"""Time the frames of the page of `vidssl map`: `python benchmarks/map_page.py [--points N] [--json FILE]`.

Points of random clusters, on a page that headless Chromium draws on the CPU. In each frame the page gets one event of
the wheel, an arrow key or the mouse. Printed are milliseconds from frame to frame; at 60 Hz these are 16.7 or more.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
from measure import finish, table
from playwright.sync_api import sync_playwright

from vidssl.apps.map.page import THUMBNAIL, classes_column, write_map_page
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoRecord
from vidssl.page.previews import preview

EVENTS = {
    "zoom": "new WheelEvent('wheel', {deltaY: n % 80 < 40 ? -70 : 70, cancelable: true, ...at})",
    "move": "new KeyboardEvent('keydown', {key: n % 8 < 4 ? 'ArrowLeft' : 'ArrowRight', cancelable: true})",
    "pointer": "new PointerEvent('pointermove', at)",
}
FRAMES = """async (count) => {
  const canvas = document.getElementById("canvas"), box = canvas.getBoundingClientRect(), times = [];
  let last = 0;
  for (let n = 0; n <= count; n++) {
    const at = {clientX: box.left + box.width * (.3 + .4 * n / count), clientY: box.top + box.height / 2};
    canvas.dispatchEvent(EVENT);
    const now = await new Promise(requestAnimationFrame);
    if (n > 0) times.push(now - last);
    last = now;
  }
  return times;
}"""


def write_page(path: Path, points: int, thumbnails: int) -> None:
    """Write a page with points of 20 clusters; thumbnails are noise, which no JPEG shrinks much."""
    rng = generator(0)
    cluster = rng.integers(20, size=points)
    positions = rng.normal(size=(20, 2))[cluster] * 4 + rng.normal(size=(points, 2)) * 0.5
    records = [VideoRecord(f"class{n:02d}/video{row:06d}.mp4", int(n)) for row, n in enumerate(cluster)]
    names = [f"class {n}" for n in cluster]
    width, height, frames, quality = THUMBNAIL
    clips = [
        preview(rng.integers(256, size=(frames, 3, height, width), dtype=np.uint8), width, height, frames, quality)
        for _ in range(min(thumbnails, 50))
    ]
    write_map_page(
        path,
        title="Map",
        places=positions,
        records=records,
        columns=[classes_column("class", names)],
        previews={n * points // thumbnails: clips[n % len(clips)] for n in range(thumbnails)},
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10000)
    parser.add_argument("--thumbnails", type=int, default=1000)
    parser.add_argument("--frames", type=int, default=160, help="of each kind of event")
    parser.add_argument("--browser", default=shutil.which("chromium"), help="path of Chromium")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parsed = parser.parse_args()
    if parsed.browser is None:
        parser.error("Chromium was not found: install it, or pass --browser PATH")
    times_by_event = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "index.html"
        write_page(page_file, parsed.points, parsed.thumbnails)
        size = page_file.stat().st_size / 1e6
        browser = playwright.chromium.launch(executable_path=parsed.browser, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(page_file.as_uri())
        for name, event in EVENTS.items():
            page.click("#fit")
            times_by_event[name] = page.evaluate(FRAMES.replace("EVENT", event), parsed.frames)
        version = browser.version
        browser.close()
    rows = [
        [name, *(f"{value:.1f}" for value in (np.median(times), np.percentile(times, 95), max(times)))]
        for name, times in times_by_event.items()
    ]
    print(f"{parsed.points} points, {parsed.thumbnails} thumbnails, {size:.1f} MB, Chromium {version}\n")
    print(table(["event", "median ms", "95 %", "slowest"], rows))
    finish({"frames": times_by_event, "page_mb": size, "chromium": version}, parsed.json)


if __name__ == "__main__":
    main()
