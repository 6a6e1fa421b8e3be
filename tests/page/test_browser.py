"""The pages in a real browser: Chromium, driven by playwright. To add a page, write a function and name it in PAGES."""

import csv
import io
import re
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from vidssl.apps.analysis.page import analysis_page
from vidssl.apps.compare.page import disputed_row, write_encoders_page
from vidssl.apps.map.page import classes_column, map_column, write_map_page
from vidssl.apps.search.page import FoundVideo, Hit, QueryRow, store_preview, write_retrieval_page
from vidssl.apps.show import write_views_page
from vidssl.base.atomic import write_whole
from vidssl.base.types import VideoRecord
from vidssl.data.video_list import read_list
from vidssl.page.grad_cam_page import CamCell, CamRow
from vidssl.page.previews import preview
from vidssl.page.section import Point, Quantity, Section

NASTY = "a \"b\" 'c'/</script><script>window.broken = 1</script><img src=x onerror='window.broken=2'> #;&\\ é }.mp4"
LONG = "folder/" + "v_ApplyEyeMakeup_of_a_long_name_without_a_space" * 3 + ".mp4"
RESULTS_FILE = Path(__file__).parents[1] / "apps/compare/encoder_results.py"
ENCODER_RESULTS = runpy.run_path(str(RESULTS_FILE))["encoder_results"]
PNG = cv2.imencode(".png", np.full((400, 1400, 3), 255, np.uint8))[1].tobytes()
WIDE, NARROW, HIGH = (1280, 800), (390, 844), (1280, 4000)


def clip(value: int, t: int = 6, h: int = 60, w: int = 80) -> np.ndarray:
    frames = np.full((t, 3, h, w), value, np.uint8)
    frames += np.arange(0, 10 * t, 10, dtype=np.uint8)[:, None, None, None]
    return frames


# The pages --------------------------------------------------------------------------------------------------


def retrieval_page(path: Path) -> None:
    """Six queries of two classes; the nearest video of the first and the fourth is of the other class.

    The first is a file that is there; a neighbour cannot be decoded.
    """
    opened = path.parent / "videos/a b#.txt"
    opened.parent.mkdir(parents=True, exist_ok=True)
    opened.write_text("opened")
    strips = {"a": clip(10), "b": clip(120), "still": clip(200, t=1)}
    stored = {name: store_preview(preview(frames), path.parent) for name, frames in strips.items()}
    names = {"a": NASTY, "b": LONG, "still": "x.mp4"}
    records = [VideoRecord(str(opened), 0, 1.5, 4.0), *(VideoRecord(f"/nowhere/{n}", n % 2) for n in range(1, 6))]
    keys = ["a", "b", "still"] * 2
    videos = [FoundVideo(names[key], record, stored[key]) for key, record in zip(keys, records, strict=True)]
    videos += [FoundVideo(NASTY, VideoRecord("/nowhere/hit", label), stored["b"]) for label in (0, 1)]
    videos.append(FoundVideo(LONG, VideoRecord("/nowhere/broken", 0)))
    rows = [QueryRow(n, (Hit(6 + (n + (n % 3 == 0)) % 2, 0.9, is_copy=n == 1), Hit(8, 0.5))) for n in range(6)]
    results = {"R@1": 0.5, "R@5": 0.75, "R@10": 0.9, "R@20": 1.0, "knn": 0.5, "majority": 0.5, "num_queries": 6}
    results["num_gallery"] = 9
    write_retrieval_page(
        path,
        title=NASTY,
        results=results,
        videos=videos,
        queries=rows,
        class_names=["<b>Walk</b>", "AVeryLongClassNameWithoutAnySpaceInIt"],
        network=NASTY,
        protocol=[("Checkpoint", LONG)],
        unread=[(LONG, NASTY)],
        copies=[[NASTY, LONG]],
    )


def long_retrieval_page(path: Path) -> None:
    """Each of 1,000 videos and the next six, by 37 cameras."""
    stored = [store_preview(preview(clip(10 * n)), path.parent) for n in range(20)]
    names = [f"a{n % 37}/clip {n:04d}.mp4" for n in range(1000)]
    videos = [FoundVideo(name, VideoRecord(f"/nowhere/{name}"), stored[n % 20]) for n, name in enumerate(names)]
    rows = [QueryRow(n, tuple(Hit((n + k) % 1000, 1 - k / 10) for k in range(1, 7))) for n in range(1000)]
    results = {"num_queries": 2000, "num_gallery": 1000}
    write_retrieval_page(path, title=NASTY, results=results, videos=videos, queries=rows, network=NASTY)


def report_page(path: Path) -> None:
    networks = {"trained": Point(0.71, 0.5, 0.87), "untrained": Point(0.42, 0.244, 0.65)}
    scores = {"trained": Point(5.5), "untrained": Point(4.2)}
    wide = {f"column {n}": Point(0.123) for n in range(30)}
    quantities = [
        Quantity("R@1", {"R@1": networks, LONG: {"trained": Point(0.8)}}, {"guessing": 0.17, "most": 0.95}),
        Quantity(
            "Invariance score", {NASTY: scores, "unchanged": scores}, {"shuffled labels": 4.25}, percent=False, digits=2
        ),
        Quantity("Each", {"noise": wide, NASTY: wide}, heat=True),
    ]
    video, map = preview(clip(10)), preview(clip(120))
    cells = (CamCell("trained", (NASTY,), (("this video", map), (LONG, map)), "a.mp4"),)
    maps = (CamRow(video, NASTY, "Walk", cells), CamRow(map, LONG, "", cells))
    sections = [
        Section("one", "Robustness", NASTY, "n = 3 videos.", f"95 % interval, {NASTY}", quantities=quantities),
        Section(
            "two", "Grad-CAM", LONG, verdict=LONG, open=True, maps=maps, notes=[NASTY], links=[("All", "a/b.html")]
        ),
        Section("three", "Background", "masks", reason=NASTY),
    ]
    details = [("Checkpoint", LONG), ("Videos", NASTY)]
    write_whole(path, analysis_page(LONG, sections, details, [f"untrained: {NASTY}"]))


def gradcam_page(path: Path) -> None:
    video, heat = preview(clip(10)), preview(clip(120))
    cells = tuple(
        CamCell(name, ("similarity 0.900",), (("map", heat), ("neighbour", heat)), "a b.mp4") for name in (NASTY, LONG)
    )
    rows = [CamRow(video, NASTY, "", cells), CamRow(video, LONG, "<b>Walk</b>", cells[:1])]
    masses = {f"mass {n}": {NASTY: Point(0.123), LONG: Point(0.5)} for n in range(8)}
    section = Section("gradcam", "Grad-CAM", quantities=[Quantity("Heat in the boxes", masses)], maps=rows)
    write_whole(path, analysis_page(NASTY, [section], [("Videos", LONG)]))


POINTS = [VideoRecord(name, n % 3 - 1) for n, name in enumerate([NASTY, LONG, *(f"c/{n}.mp4" for n in range(8))])]


def map_page(path: Path) -> None:
    """Ten points on a circle, the first to the right, then upwards: three without a class, four and three with one."""
    angle = 2 * np.pi * np.arange(10) / 10
    texts = [("", "<b>Walk</b>", LONG)[record.label + 1] for record in POINTS]
    columns = [
        classes_column("class", texts),
        map_column("seconds", [*(str(n / 2) for n in range(9)), ""]),
        map_column(NASTY, ["<i>"] * 10),
    ]
    previews = {n: preview(clip(20 * n, t=1 if n == 1 else 6)) for n in range(9)}
    places = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    write_map_page(
        path,
        title=NASTY,
        places=places,
        records=POINTS,
        columns=columns,
        previews=previews,
        near=[[(n + 1) % 10, (n + 5) % 10, -1] for n in range(10)],
        suspects={"Outliers": [(3, NASTY)] * 250, "Near copies": []},
        details=[("Layout", LONG)],
    )


def views_page(path: Path) -> None:
    """A video in two epochs with two views each, and one that cannot be decoded."""
    clips, views = [], []
    for n in (0, 1):
        middles = [n / 2 + 0.2, n / 2 + 0.8]
        clips.append({"name": f"clip {n}", "color": n, "first": n / 2, "end": n / 2 + 1, "frames": middles})
        view = {"name": f"view {n}", "color": n, "clip": preview(clip(60 * n + 10), height=128)}
        views.append({**view, "notes": ["8 x 32²", "0.20–0.80 s"], "box": (0.1, 0.2, 0.5, 0.5)})
    draw = {"title": "Epoch 0", "notice": None, "start": 0.0, "end": 2.0, "clips": clips, "views": views}
    broken = {**draw, "notice": NASTY, "clips": [], "views": []}
    cards = [{"name": NASTY, "facts": "class rock", "draws": [draw, {**draw, "title": "Epoch 1"}]}]
    cards.append({"name": LONG, "facts": NASTY, "draws": [broken]})
    settings = [("<b>sampler</b>", f"name: random\nfile: {LONG}\n{NASTY}")]
    write_views_page(path, NASTY, [("List", LONG)], settings, cards)


def encoders_page(path: Path) -> None:
    """The ten videos of the map by three encoders; one of those to label next has no preview."""
    names, labels = [record.path for record in POINTS], [max(0, record.label) for record in POINTS]
    guesses = {name: [n % 2 for n in range(10)] for name in (NASTY, "second", LONG)}
    results = ENCODER_RESULTS(guesses, names, labels, ["<b>Walk</b>", LONG])
    disputed, previews = [disputed_row(3, 1.0, results), disputed_row(9, 0.5, results)], {3: preview(clip(60))}
    write_encoders_page(path, results, NASTY, f"vidssl compare {LONG}", disputed, previews)


PAGES = {
    "retrieval": retrieval_page,
    "long retrieval": long_retrieval_page,
    "report": report_page,
    "gradcam": gradcam_page,
    "map": map_page,
    "show": views_page,
    "encoders": encoders_page,
}


# The browser ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Chromium, one for all tests."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no browser tests without playwright")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no browser: apt-get install chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write a page once: `files("map")` gives its file."""
    folder = tmp_path_factory.mktemp("pages")

    def file(name: str) -> Path:
        path = folder / name / "index.html"
        if not path.exists():
            PAGES[name](path)
        return path

    return file


@pytest.fixture
def open_page(browser, files) -> Iterator[Callable]:
    """Open a page: `open_page("map", NARROW, color_scheme="dark")`. An error or another request fails the test."""
    contexts, problems = [], []

    def opened(name: str, size: tuple[int, int] = WIDE, **settings: object):
        address = files(name).as_uri()
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda message: message.type == "error" and problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))

        def requested(request) -> None:
            beside = f"{address.removesuffix('index.html')}previews/"
            if request.url.partition("#")[0] != address and not request.url.startswith(("data:", "blob:", beside)):
                problems.append(f"request: {request.url[:200]}")

        page.on("request", requested)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not problems


# What holds for all pages -----------------------------------------------------------------------------------

EVERY = pytest.mark.parametrize("name", PAGES)
OVERFLOWING = """() => [...document.querySelectorAll("main *")].filter((one) => one.checkVisibility()
  && one.getBoundingClientRect().right > innerWidth + 1 && !one.closest("pre, .wide, .scroll, textarea, .clip"))
  .map((one) => one.outerHTML.slice(0, 120))"""

WITHOUT_SHADOW = """() => [...document.querySelectorAll("table")].map((one) => one.parentElement).filter((box) =>
  box.scrollWidth > box.clientWidth && !getComputedStyle(box).backgroundAttachment.startsWith("local, scroll"))
  .map((box) => box.outerHTML.slice(0, 120))"""


@EVERY
def test_a_page_opens_alone_on_wide_and_narrow_screens_with_names_as_text(open_page, files, name):
    source = files(name).read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]+\.|@import", source, re.IGNORECASE)
    page = open_page(name)
    assert page.evaluate("window.broken") is None
    assert page.locator("h1").inner_text().startswith(("a", "folder"))
    texts = page.locator("h1, dd, p, figcaption").all_text_contents()
    assert any(NASTY in text for text in texts)  # whole, as text
    assert page.evaluate(
        "[...document.images].every((image) => /^(data:|previews\\/)/.test(image.getAttribute('src')))"
    )
    assert page.evaluate("[...document.links].every((link) => link.protocol === 'file:')")
    assert page.locator("[onerror], main :is(b b, i i, u)").count() == 0
    for scheme, is_dark in (("light", False), ("dark", True)):
        page.emulate_media(color_scheme=scheme)
        red, *_ = map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor")))
        assert (red < 60) == is_dark
    page = open_page(name, NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
    assert page.evaluate(OVERFLOWING) == []
    assert page.evaluate(WITHOUT_SHADOW) == []


@EVERY
def test_axe_finds_nothing_serious(open_page, name):
    """Names of what can be used, texts of images, contrast of texts and more, in both schemes."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-playwright-python")
    page = open_page(name)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        violations = axe.Axe().run(page).response["violations"]
        serious = [
            (one["id"], one["nodes"][0]["html"]) for one in violations if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], scheme


MOVING = {"retrieval": ".clip img", "gradcam": ".clip", "show": ".clip"}  # what plays in a page


@pytest.mark.parametrize("name", MOVING)
def test_videos_play_stop_under_the_pointer_and_pause(open_page, name):
    page = open_page(name)
    moving = f"[...document.querySelectorAll('{MOVING[name]}')].map((one) => getComputedStyle(one))"
    states = f"{moving}.filter((own) => own.animationName !== 'none').map((own) => own.animationPlayState)"
    assert {*page.evaluate(states)} == {"running"}
    place = f"({moving})[0]"
    before = page.evaluate(f"{place}.backgroundPositionX + {place}.transform")
    page.wait_for_function(f"(before) => {place}.backgroundPositionX + {place}.transform !== before", arg=before)
    page.locator(".clip").first.hover()
    assert page.evaluate(states).count("paused") == 1
    page.mouse.move(0, 0)
    page.focus("#pause")
    page.keyboard.press("Space")
    assert {*page.evaluate(states)} == {"paused"}
    page.keyboard.press("Space")
    assert {*page.evaluate(states)} == {"running"}


# All analyses -----------------------------------------------------------------------------------------------


def test_the_points_of_a_chart_are_where_its_axis_says(open_page):
    page = open_page("report")
    chart = page.locator(".plot").first

    def at(selector: str) -> float:
        track, mark = (chart.locator(one).first.bounding_box() for one in (".first .track", selector))
        return 100 * (mark["x"] + mark["width"] / 2 - track["x"]) / track["width"]

    assert at(".first .dot") == pytest.approx(71, abs=0.7) and at(".other .dot") == pytest.approx(42, abs=0.7)
    assert at(".first .span") == pytest.approx((50 + 87) / 2, abs=0.7)
    assert at(".first .line") == pytest.approx(17, abs=0.7)
    rows = [row.split() for row in chart.locator("[role=row]").all_inner_texts()]
    assert rows[0] == ["R@1", "71", "(50", "to", "87)"] and rows[1][-4:] == ["42", "(24", "to", "65)"]
    overlaid = page.locator(".plot").nth(1).locator("[role=row]")
    assert overlaid.count() == 2 and overlaid.first.locator(".dot").count() == 2
    assert overlaid.nth(1).inner_text().split() == ["unchanged", "5.50", "untrained", "4.20"]


# Retrieval --------------------------------------------------------------------------------------------------


def rows_shown(page) -> list[int]:
    """Numbers of the queries that are in the page, in order."""
    return page.evaluate("[...document.querySelectorAll('.row')].map((row) => Number(row.dataset.query))")


def test_the_filters_of_the_retrieval_page(open_page):
    page = open_page("retrieval", HIGH)
    page.wait_for_selector(".row >> nth=5")
    assert rows_shown(page) == [0, 1, 2, 3, 4, 5] and page.locator("#empty").is_hidden()
    assert page.inner_text("#count") == "6 queries"
    first = page.locator(".row").first
    assert first.locator(".hits > li").evaluate_all("(all) => all.map((one) => one.className)") == ["miss", "hit"]
    assert first.locator(".none").inner_text() == f"{LONG}: cannot be decoded"
    assert page.locator(".same").all_inner_texts() == ["Duplicate of the query"]
    assert page.get_attribute("a.frame", "href") == "videos/a%20b%23.txt#t=1.5,4"  # the other files are not there
    page.click("#misses")
    assert rows_shown(page) == [0, 3] and page.get_attribute("#misses", "aria-pressed") == "true"
    assert page.inner_text("#count") == "2 of 6 queries"
    page.select_option("#class", label="<b>Walk</b>")
    assert rows_shown(page) == [0]
    page.focus("#misses")
    page.keyboard.press("Enter")
    assert rows_shown(page) == [0, 2, 4]
    page.select_option("#class", label="All classes")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search" and page.input_value("#search") == ""
    for text, expected in (("X.MP4", [2, 5]), ("x.mp4 <b>walk", [2]), ("averylong", [1, 3, 5]), ("folder/", [1, 4])):
        page.fill("#search", text)
        assert rows_shown(page) == expected, text
    page.fill("#search", "nothing of this name")
    assert rows_shown(page) == [] and page.locator("#empty").is_visible()
    page.keyboard.press("Escape")
    page.wait_for_selector(".row >> nth=5")
    assert rows_shown(page) == [0, 1, 2, 3, 4, 5] and page.input_value("#search") == ""


def test_rows_are_drawn_as_one_scrolls_and_only_near_the_screen(open_page):
    page = open_page("long retrieval")
    page.wait_for_function("() => document.querySelectorAll('.row').length > 0")
    first, height = rows_shown(page), page.evaluate("document.documentElement.scrollHeight")
    assert first == [*range(len(first))] and 4 <= len(first) <= 40
    assert page.locator("article").first.get_attribute("aria-setsize") == "1000"
    assert "The page has 1,000 of 2,000 queries" in page.locator(".legend").inner_text()
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    page.wait_for_function("() => [...document.querySelectorAll('.row')].at(-1)?.dataset.query === '999'")
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    page.wait_for_function("() => document.querySelectorAll('.row').length <= 60")
    last = rows_shown(page)
    assert last == [*range(1000 - len(last), 1000)] and 0 not in last
    assert page.evaluate("document.documentElement.scrollHeight") == pytest.approx(height, rel=0.2)
    page.fill("#search", "a5/")
    page.wait_for_function("() => document.querySelectorAll('.row').length > 0")
    numbers = [n for n in range(1000) if n % 37 == 5]
    assert page.inner_text("#count") == f"{len(numbers)} of 1,000 queries"
    assert rows_shown(page) == numbers[: len(rows_shown(page))]
    assert 0 <= page.locator(".row").first.bounding_box()["y"] <= WIDE[1]  # the first that fits is on the screen


# The map ----------------------------------------------------------------------------------------------------


def at(page, *points: int) -> list[tuple[float, float]]:
    """Where points of the map are on the screen: the circle of `map_page`, fitted with a margin of 40 pixels."""
    box, angle = page.locator("#canvas").bounding_box(), 2 * np.pi * np.array(points) / 10
    radius = min(box["width"] - 80, (box["height"] - 80) / np.sin(0.4 * np.pi)) / 2
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    return [(middle[0] + radius * np.cos(a), middle[1] - radius * np.sin(a)) for a in angle]


def pixels(page, places: list[tuple[float, float]], canvas: str = "#canvas") -> list[list[int]]:
    """Read the pixels (red, green, blue, alpha) of a map at places on the screen."""
    script = """([places, name]) => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
      const canvas = document.querySelector(name), box = canvas.getBoundingClientRect();
      const pen = canvas.getContext("2d");
      done(places.map(([x, y]) => [...pen.getImageData(Math.round(x - box.left), Math.round(y - box.top), 1, 1).data]));
    })))"""
    return page.evaluate(script, [places, canvas])


def drag(page, places: list[tuple[float, float]]) -> None:
    """Press at the first place, move over the others, release."""
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=3)
    page.mouse.up()


def around(page, *points: int) -> list[tuple[float, float]]:
    """Corners of a box around points, 20 pixels larger."""
    x, y = zip(*at(page, *points), strict=True)
    low, high = (min(x) - 20, min(y) - 20), (max(x) + 20, max(y) + 20)
    return [low, (high[0], low[1]), high, (low[0], high[1]), low]


def selection(page) -> list[list[str]]:
    return list(csv.reader(io.StringIO(page.input_value("#list"))))[1:]


def rows_of(*points: int) -> list[list[str]]:
    return [[POINTS[n].path, str(POINTS[n].label)] for n in points]


@pytest.fixture
def open_map(open_page) -> Callable:
    """Open the map without thumbnails, which cover points."""

    def opened(*arguments, **settings):
        page = open_page("map", *arguments, **settings)
        page.uncheck("#thumbnails")
        return page

    return opened


def legend(page) -> dict[str, tuple[str, int]]:
    """Name: colour and count of each class."""
    rows = """() => [...document.querySelectorAll("#legend label")].map((row) => [row.querySelector("span").innerText,
      getComputedStyle(row.querySelector("i")).backgroundColor, row.querySelector(".count").innerText])"""
    return {name: (color, int(count)) for name, color, count in page.evaluate(rows)}


def test_the_points_are_where_the_features_are_in_the_colours_of_the_legend(open_map):
    page = open_map()
    shown = legend(page)
    assert {name: count for name, (_, count) in shown.items()} == {"<b>Walk</b>": 3, LONG: 3, "no value": 4}
    for actual, record in zip(pixels(page, at(page, *range(10))), POINTS, strict=True):
        name = {-1: "no value", 0: "<b>Walk</b>", 1: LONG}[record.label]
        expected = [int(number) for number in re.findall(r"\d+", shown[name][0])]
        assert actual[3] > 200 and np.abs(np.array(actual[:3]) - expected).max() <= 3
    assert pixels(page, at(page, 0.5, 3.5)) == [[0, 0, 0, 0]] * 2  # between the points


def test_the_lasso_writes_a_list_that_commands_read(open_map, tmp_path):
    page = open_map(NARROW)
    assert page.locator("#chosen").is_hidden()
    page.click("#lasso")
    drag(page, around(page, 0, 1, 2))
    assert page.locator("#selected").inner_text() == "3 videos selected." and selection(page) == rows_of(0, 1, 2)
    with page.expect_download() as event:
        page.click("#download")
    event.value.save_as(tmp_path / event.value.suggested_filename)
    videos = read_list(tmp_path / "selection.csv", tmp_path)
    assert [videos.records.row(n) for n in range(3)] == POINTS[:3] and len(videos) == 3
    page.click("#clear")
    page.click("#pan")
    assert page.locator("#chosen").is_hidden()
    page.keyboard.down("Shift")  # draws the lasso too
    drag(page, around(page, 5, 6))
    assert selection(page) == rows_of(5, 6)
    page.keyboard.down("Control")  # adds
    drag(page, around(page, 1, 2))
    assert selection(page) == rows_of(1, 2, 5, 6)


def test_the_map_zooms_at_the_pointer_and_moves(open_map):
    page = open_map()
    start, place = page.evaluate("document.getElementById('canvas').toDataURL()"), at(page, 3)[0]
    page.mouse.move(*place)
    for _ in range(5):
        page.mouse.wheel(0, -200)
    page.wait_for_function("(start) => document.getElementById('canvas').toDataURL() !== start", arg=start)
    assert pixels(page, [place])[0][3] > 200  # the point under the pointer stays there
    assert pixels(page, at(page, 0))[0][3] == 0
    drag(page, [place, (place[0] + 100, place[1] + 50)])
    assert pixels(page, [(place[0] + 100, place[1] + 50)])[0][3] > 200


def test_a_click_lists_and_marks_the_nearest_videos(open_map):
    page = open_map()
    assert page.locator("#near button").count() == 0 and "Click a point" in page.inner_text("#near-of")
    (x, y), (beside_x, beside_y) = at(page, 3, 4)
    line = [(x + beside_x) / 2, (y + beside_y) / 2]
    assert pixels(page, [line])[0][3] == 0
    page.mouse.click(x, y)
    listed = page.locator("#near button").all_inner_texts()
    assert [text.split("\n")[0] for text in listed] == [POINTS[4].path, POINTS[8].path]
    assert any(pixels(page, [[line[0] + dx, line[1] + dy]])[0][3] > 0 for dx in (-1, 0, 1) for dy in (-1, 0, 1))
    page.locator("#near button").first.click()
    assert POINTS[4].path in page.inner_text("#near-of")
    page.keyboard.press("Escape")
    assert page.locator("#near button").count() == 0


# The comparison of encoders ---------------------------------------------------------------------------------


def test_videos_to_label_play_while_they_are_pointed_at_or_their_table_has_the_focus(open_page):
    page = open_page("encoders")
    state = "getComputedStyle(document.querySelector('.next .clip')).animationPlayState"
    assert page.evaluate(state) == "paused"
    page.hover(".next .clip")
    assert page.evaluate(state) == "running"
    page.mouse.move(0, 0)
    page.focus("a[href='disagreements.csv']")
    page.keyboard.press("Tab")
    assert page.evaluate(state) == "running"
