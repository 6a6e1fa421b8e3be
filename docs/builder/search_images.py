"""Make an image of the search page: of rendered digits (docs/images/retrieval.png) or of a folder (search.png).

    python docs/builder/search_images.py [FOLDER]

The folder is that of https://github.com/sayibet/fight-detection-surv-dataset (MIT), whose clips may be shown; 48 of
them are the queries, drawn with seed 0. Needs playwright and Chromium.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import vidssl
from vidssl.base.keyed_generators import generator
from vidssl.data.moving_digits import MovingDigits, ensure

IMAGES = Path(__file__).resolve().parents[1] / "images"
SEED, QUERIES, WIDTH = 0, 48, 1280


def main() -> None:
    """Search, and take a screenshot of the page."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if len(sys.argv) > 1:
            search_street(Path(sys.argv[1]).resolve(), folder)
            take_picture(folder / "search/index.html", IMAGES / "search.png", 952)
        else:
            ensure(folder / "digits", MovingDigits(train=240, test=48))
            lists = {
                name: folder / f"digits/motion/{part}.csv" for name, part in (("gallery", "train"), ("query", "test"))
            }
            vidssl.retrieval("vidssl-free", **lists, out=folder / "search", progress=False)
            take_picture(folder / "search/index.html", IMAGES / "retrieval.png", 900)


def search_street(videos: Path, folder: Path) -> None:
    """Search all clips with some of them, drawn at random."""
    names = sorted(str(path.relative_to(videos)) for path in videos.rglob("*.mp4"))
    rows = generator(SEED).permutation(len(names))[:QUERIES]
    (folder / "street").mkdir()
    lists = {}
    for name, paths in (("query", [names[n] for n in rows]), ("gallery", names)):
        lists[name] = folder / f"street/{name}.csv"
        lists[name].write_text("\n".join(["path", *paths]) + "\n")
    vidssl.retrieval("vidssl-default", **lists, root=videos, out=folder / "search", progress=False)


def take_picture(page: Path, image: Path, height: int) -> None:
    """Store the top of a page as a PNG of 256 colours."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": height}, reduced_motion="reduce")
        tab.goto(page.as_uri())
        near = "[...document.images].filter((image) => image.getBoundingClientRect().top < innerHeight)"  # lazy
        tab.wait_for_function(f"() => {near}.every((image) => image.complete)")
        tab.screenshot(path=image)
        browser.close()
    Image.open(image).convert("RGB").quantize(256).save(image, optimize=True)
    print(f"{image}: {image.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
