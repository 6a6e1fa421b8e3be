"""The pages in a real browser: Chromium, driven by playwright. To add a page, write a function and name it in PAGES."""

import csv
import io
import re
import runpy
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest

from vidssl.apps.analysis.page import analysis_page
from vidssl.apps.compare.page import write_encoders_page
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
        suspects={"Outliers": [(3, NASTY)] * 250, "Near-duplicates": []},
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
    disputed, previews = [(3, 1.0), (9, 0.5)], {3: preview(clip(60))}
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


@EVERY
def test_everything_that_can_be_used_is_reached_with_the_keyboard(open_page, name):
    page = open_page(name)
    usable = "button, select, input, textarea, a[href], canvas[tabindex], summary, .wide[tabindex], .scroll[tabindex]"
    count = page.evaluate(
        f"""() => [...document.querySelectorAll("{usable}")].filter((one) => one.checkVisibility() && !one.disabled)
        .map((one, n) => one.dataset.number = n).length"""
    )
    reached = set()
    for _ in range(500):  # some stops have no number: what a page adds late
        if len(reached) == count:
            break
        page.keyboard.press("Tab")
        number, outline = page.evaluate(
            "[document.activeElement.dataset.number ?? null, getComputedStyle(document.activeElement).outlineStyle]"
        )
        if number is not None:
            reached.add(int(number))
            assert outline != "none", page.evaluate("document.activeElement.outerHTML.slice(0, 120)")
    assert reached == set(range(count))


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
    page.emulate_media(reduced_motion="reduce")
    page.mouse.move(0, 0)
    assert {*page.evaluate(states)} == {"paused"}
    page.locator(".clip").first.hover()
    assert page.evaluate(states).count("running") == 1


# All analyses -----------------------------------------------------------------------------------------------


def test_a_term_is_explained_by_the_pointer_and_the_keyboard(open_page):
    page = open_page("report", NARROW)
    tip, terms = page.locator("#tip"), page.locator(".term")
    assert tip.is_hidden() and terms.count() > 5
    for term in [term for term in terms.all() if term.is_visible()][:6]:
        explained = page.locator(f"#{term.get_attribute('aria-describedby')}").text_content()
        term.scroll_into_view_if_needed()
        page.wait_for_timeout(60)  # until the scrolling is over, which hides it
        term.focus()
        assert tip.is_visible() and tip.text_content() == explained
        box = tip.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= NARROW[0] and box["y"] >= 0
        page.keyboard.press("Escape")
        assert tip.is_hidden()
        term.hover()
        assert tip.is_visible()
        page.mouse.move(0, 0)
        assert tip.is_hidden()


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


def test_names_are_whole_and_hits_and_misses_have_a_sign(open_page):
    page = open_page("retrieval", HIGH)
    page.wait_for_selector(".row >> nth=5")
    names = page.locator(".row .query .file").all_text_contents()
    assert [name.replace("\u200b", "") for name in names] == [NASTY, LONG, "x.mp4"] * 2
    cut = "(one) => one.scrollWidth > one.clientWidth + 3 || getComputedStyle(one).textOverflow === 'ellipsis'"
    assert not any(page.locator(".file, .class").evaluate_all(f"(all) => all.map({cut})"))
    first = page.locator(".row").first
    assert first.locator(".hits > li").evaluate_all("(all) => all.map((one) => one.className)") == ["miss", "hit"]
    signs = first.locator(".mark")
    assert signs.all_inner_texts() == ["✗", "✓"]
    assert [sign.get_attribute("aria-label") for sign in signs.all()] == ["another class", "same class"]
    assert first.locator(".number").all_inner_texts() == ["query", "similarity 0.900", "similarity 0.500"]
    assert first.locator(".moment").all_inner_texts() == ["1.5-4 s"]
    assert page.locator(".same").all_inner_texts() == ["Duplicate of the query"]
    assert first.locator(".none").inner_text() == f"{LONG}: cannot be decoded"
    page.wait_for_function("() => [...document.images].every((image) => image.complete && image.naturalWidth > 0)")
    assert [image.get_attribute("loading") for image in page.locator("img").all()] == ["lazy"] * 12


def test_a_video_opens_at_its_moment_and_its_path_is_copied(open_page, files):
    page = open_page("retrieval", HIGH, permissions=["clipboard-read", "clipboard-write"])
    place = files("retrieval").parent / "videos/a b#.txt"
    assert page.locator("a.frame").count() == 1  # the other files are not there
    with page.context.expect_page() as opened:
        page.click("a.frame")
    assert opened.value.url == f"{place.as_uri()}#t=1.5,4" and opened.value.inner_text("body") == "opened"
    for row, path in ((0, place), (1, "/nowhere/1")):
        page.locator(".row").nth(row).locator(".copy").first.click()
        assert page.evaluate("navigator.clipboard.readText()") == str(path)
        assert page.inner_text("#count") == "Path copied"
        assert page.evaluate("document.activeElement.className") == "copy"
    page.wait_for_function("() => document.getElementById('count').innerText === '6 queries'")


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


def test_page_down_and_page_up_go_from_query_to_query(open_page):
    page = open_page("long retrieval")
    page.locator(".copy").first.focus()
    current = "Number(document.activeElement.closest('.row').dataset.query)"
    for n in range(1, 12):
        page.keyboard.press("PageDown")
        assert page.evaluate(current) == n
    box = page.locator(".row:focus").bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= WIDE[1]
    page.keyboard.press("PageUp")
    assert page.evaluate(current) == 10
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "copy" and page.evaluate(current) == 10


def test_six_wide_hits_are_in_one_row(browser, tmp_path):
    """One video of 16:9 makes the cells wider, and they shrink to fit."""
    made = {"wide": preview(clip(10, h=180, w=320)), "other": preview(clip(120, h=112, w=150))}
    assert made["wide"].shown == (160, 90)
    videos = [FoundVideo(LONG, VideoRecord(f"/{name}"), store_preview(one, tmp_path)) for name, one in made.items()]
    hits = tuple(Hit(int(n > 0), 0.9) for n in range(6))
    rows = [QueryRow(1, hits)]
    write_retrieval_page(
        tmp_path / "index.html", title="t", results={"num_queries": 1, "num_gallery": 6}, videos=videos, queries=rows
    )
    page = browser.new_page(viewport={"width": WIDE[0], "height": WIDE[1]})
    page.goto((tmp_path / "index.html").as_uri())
    boxes = [page.locator(".hits > li").nth(n).bounding_box() for n in range(6)]
    images = [page.locator(".hits .clip").nth(n).bounding_box() for n in range(6)]
    page.close()
    assert len({box["y"] for box in boxes}) == 1
    assert all(image["width"] <= box["width"] for box, image in zip(boxes, images, strict=True))
    assert images[0]["width"] / images[0]["height"] == pytest.approx(16 / 9, rel=0.02)


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
    for found, record in zip(pixels(page, at(page, *range(10))), POINTS, strict=True):
        name = {-1: "no value", 0: "<b>Walk</b>", 1: LONG}[record.label]
        wanted = [int(number) for number in re.findall(r"\d+", shown[name][0])]
        assert found[3] > 200 and np.abs(np.array(found[:3]) - wanted).max() <= 3
    assert pixels(page, at(page, 0.5, 3.5)) == [[0, 0, 0, 0]] * 2  # between the points


def test_the_legend_hides_classes_from_the_map_and_the_lasso(open_map):
    page = open_map()
    page.locator("#legend label", has_text="Walk").click()
    assert [pixel[3] > 0 for pixel in pixels(page, at(page, *range(10)))] == [record.label != 0 for record in POINTS]
    page.emulate_media(color_scheme="dark")
    assert [pixel[3] > 0 for pixel in pixels(page, at(page, 0, 1))] == [True, False]
    page.click("#lasso")
    drag(page, around(page, 0, 1, 2))
    assert selection(page) == rows_of(0, 2)
    page.click("#none")
    assert {pixel[3] for pixel in pixels(page, at(page, *range(10)))} == {0}
    page.click("#all")
    assert all(pixel[3] > 0 for pixel in pixels(page, at(page, *range(10))))


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


def test_search_shows_what_it_finds_and_the_keyboard_goes_there(open_map):
    page = open_map()
    page.fill("#search", "C/")
    assert page.locator("#matches").inner_text() == "8 videos found"
    faint = [pixel[3] for pixel in pixels(page, at(page, *range(10)))]
    assert max(faint[:2]) < 60 and min(faint[2:]) > 200
    page.click("#shown")
    assert selection(page) == rows_of(*range(2, 10))
    page.fill("#search", "C/3")
    page.focus("#search")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("#tip b").inner_text() == "c/3.mp4" and "fixed" in page.get_attribute("#tip", "class")
    box = page.locator("#canvas").bounding_box()
    (middle,) = pixels(page, [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)])
    assert middle[3] > 200
    page.keyboard.press("Escape")
    page.wait_for_selector("#tip", state="hidden")
    page.fill("#search", "nothing of this name")
    assert page.locator("#matches").inner_text() == "0 videos found"


def test_the_video_under_the_pointer_plays_and_a_click_keeps_it(open_map):
    page = open_map()
    state = partial(page.evaluate, "getComputedStyle(document.querySelector('#tip .clip')).animationPlayState")
    assert page.locator("#tip").is_hidden()
    page.mouse.move(*at(page, 0)[0])
    page.wait_for_selector("#tip:not([hidden]) .clip")
    texts = page.locator("#tip b, #tip div").all_inner_texts()
    assert texts[0] == NASTY and texts[1] == "seconds: 0" and "<i>" in texts[2]
    assert state() == "running"
    page.check("#pause")
    page.mouse.move(*at(page, 4)[0])
    page.wait_for_function("document.querySelector('#tip b').innerText === 'c/2.mp4'")
    assert state() == "paused" and page.locator("#tip b, #tip div").all_inner_texts()[1] == "class: <b>Walk</b>"
    page.mouse.click(*at(page, 4)[0])
    page.mouse.move(*at(page, 8)[0])
    pixels(page, [])  # a frame later
    assert page.locator("#tip b").inner_text() == "c/2.mp4" and "fixed" in page.get_attribute("#tip", "class")
    page.mouse.click(*at(page, 6.5)[0])  # beside all points
    page.wait_for_selector("#tip", state="hidden")
    page.mouse.move(*at(page, 9)[0])  # it has no thumbnail
    page.wait_for_selector("#tip:not([hidden])")
    assert page.locator("#tip .clip").count() == 0 and page.locator("#tip b").inner_text() == "c/7.mp4"


def test_the_map_zooms_and_moves_by_wheel_mouse_and_keys(open_map):
    page = open_map()

    def drawn() -> str:
        pixels(page, [])  # a frame later
        return page.evaluate("document.getElementById('canvas').toDataURL()")

    start, place = drawn(), at(page, 3)[0]
    page.mouse.move(*place)
    for _ in range(5):
        page.mouse.wheel(0, -200)
    page.wait_for_function("(start) => document.getElementById('canvas').toDataURL() !== start", arg=start)
    assert pixels(page, [place])[0][3] > 200  # the point under the pointer stays there
    assert pixels(page, at(page, 0))[0][3] == 0
    drag(page, [place, (place[0] + 100, place[1] + 50)])
    assert pixels(page, [(place[0] + 100, place[1] + 50)])[0][3] > 200
    page.mouse.move(0, 0)
    page.focus("#canvas")
    page.keyboard.press("0")
    assert drawn() == start
    for key, back in (("ArrowLeft", "ArrowRight"), ("ArrowUp", "ArrowDown"), ("+", "0")):
        page.keyboard.press(key)
        assert drawn() != start
        page.keyboard.press(back)
        assert drawn() == start


def test_touch_a_tap_opens_a_video_and_two_fingers_zoom(open_map, browser):
    page = open_map(NARROW, has_touch=True, is_mobile=True)
    page.touchscreen.tap(*at(page, 3)[0])
    page.wait_for_selector("#tip.fixed")
    assert page.locator("#tip b").inner_text() == "c/1.mp4"
    page.touchscreen.tap(*at(page, 6.5)[0])  # beside all points
    page.wait_for_selector("#tip", state="hidden")
    (x, y), devtools = at(page, 3)[0], page.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        touched = [{"x": x + dx, "y": y + dy, "id": n} for n, (dx, dy) in enumerate(points)]
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touched})

    outside = at(page, 9)
    assert pixels(page, outside)[0][3] > 200
    touch("touchStart", (0, 0), (20, 0))
    for distance in (40, 60, 80):
        touch("touchMove", (0, 0), (distance, 0))
    touch("touchEnd")
    assert pixels(page, outside)[0][3] == 0
    assert pixels(page, [(x, y)])[0][3] > 200  # the finger that did not move is on its point
    touch("touchStart", (0, 0))
    for distance in (20, 40, 60, 80):
        touch("touchMove", (0, -distance))
    touch("touchEnd")
    assert pixels(page, [(x, y - 80)])[0][3] > 200 and page.evaluate("scrollY") == 0  # the map moves, not the page


def test_a_column_of_numbers_is_a_scale(open_map):
    page = open_map()
    page.select_option("#column", label="seconds")
    assert [page.locator(name).inner_text() for name in ("#low", "#high")] == ["0", "4"]
    assert {name: count for name, (_, count) in legend(page).items()} == {"no value": 1}
    ramp = page.evaluate("getComputedStyle(document.getElementById('ramp')).backgroundImage")
    stops = re.findall(r"rgb\((\d+), (\d+), (\d+)\)", ramp)
    low, high = (np.array([*map(int, stops[n])]) for n in (0, -1))
    first, last = pixels(page, at(page, 0, 8))
    assert np.abs(first[:3] - low).max() <= 3 and np.abs(last[:3] - high).max() <= 3
    page.select_option("#column", label="one colour")
    colours = {tuple(pixel[:3]) for pixel in pixels(page, at(page, *range(10)))}
    assert len(colours) == 1


def test_thumbnails_are_drawn_at_their_points(open_page):
    page = open_page("map")
    page.wait_for_function("""() => {
      const canvas = document.getElementById("canvas"), pen = canvas.getContext("2d");
      const all = pen.getImageData(0, 0, canvas.width, canvas.height).data;
      const isGrey = (n) => [1, 2, 3].every((k) => Math.abs(all[n - k] - 190) < 4);
      return all.some((value, n) => n % 4 === 3 && value === 255 && isGrey(n));
    }""")
    (last, *_), (x, y) = pixels(page, at(page, 8)), at(page, 8)[0]
    assert np.abs(np.array(last[:3]) - (20 * 8 + 30)).max() < 4  # the middle of six frames, each 10 lighter
    corners = pixels(page, [(x - 28, y - 20), (x + 28, y + 20)])
    assert all(np.abs(np.array(corner[:3]) - 190).max() < 4 for corner in corners)
    page.mouse.move(x + 28, y + 20)
    page.wait_for_selector("#tip:not([hidden])")
    assert page.locator("#tip b").inner_text() == "c/6.mp4"


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


def test_videos_to_look_at_are_listed(open_map):
    page = open_map()
    assert page.locator("#suspects option").all_inner_texts() == ["Outliers (250)"]
    assert "The first 200 of 250" in page.inner_text("#cut")
    page.locator("#suspected button").first.click()
    assert POINTS[3].path in page.inner_text("#near-of")


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
