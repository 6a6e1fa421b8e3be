"""Part maps: colours follow the labels, and the legend names them."""

import io

import numpy as np
import pytest
from matplotlib.image import imread


@pytest.fixture(scope="module", autouse=True)
def names(plug_in):
    """What the tests use of the example."""
    global PartCrop, draw_parts, parts_figure
    maps = plug_in("part_maps")
    PartCrop, draw_parts, parts_figure = maps.PartCrop, maps.draw_parts, maps.parts_figure


def crop(truth, predicted, caption="bus"):
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    return PartCrop(np.full((*truth.shape, 3), 7, np.uint8), truth, predicted, caption)


def shown(figure):
    """The pictures of the axes by column and row, and the colours of the legend by name."""
    pictures = [np.asarray(axes.images[0].get_array()) for axes in figure.axes]
    count = len(pictures) // 3
    legend = figure.legends[0]
    colours = {
        text.get_text(): patch.get_facecolor()[:3]
        for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True)
    }
    return [pictures[line * count : (line + 1) * count] for line in range(3)], colours


def test_colours_are_those_of_the_legend():
    first = crop([[0, 1], [2, 255]], [[1, 1], [0, 2]])
    second = crop([[2, 2], [2, 2]], [[0, 0], [0, 0]], "a dog")
    figure = parts_figure([first, second], ["background", "head", "tail", "wing"])
    (images, truths, predicted), colours = shown(figure)
    assert list(colours) == ["background", "head", "tail", "not counted"]  # a wing is nowhere
    assert len(set(colours.values())) == 4
    named = ["background", "head", "tail"]
    for (place, number), name in zip(
        np.ndenumerate(first.truth), ("background", "head", "tail", "not counted"), strict=True
    ):
        assert tuple(truths[0][place]) == pytest.approx(colours[name]), number
    for place, number in np.ndenumerate(first.predicted):
        assert tuple(predicted[0][place]) == pytest.approx(colours[named[number]])
    assert (images[1] == 7).all() and np.allclose(truths[1], colours["tail"])
    assert [axes.get_title() for axes in figure.axes[:2]] == ["bus", "a dog"]


def test_many_parts_have_colours_of_their_own():
    """As many as the classes of Pascal-Part have."""
    numbers = np.arange(19).repeat(2)[:36].reshape(6, 6)
    figure = parts_figure([crop(numbers, numbers)] * 3, [f"part number {n}" for n in range(19)])
    _, colours = shown(figure)
    assert len(set(colours.values())) == len(colours) == 18


@pytest.mark.parametrize(("crops", "parts"), [(1, 2), (1, 40), (10, 25)])
def test_pictures_of_any_number(crops, parts):
    numbers = np.arange(parts).repeat(3)[: parts * 3]
    square = np.resize(numbers, (12, 12))
    names = [f"left lower front wheel {n}" for n in range(parts)]
    names[1] = "pay $5 \\frac{"
    png = draw_parts([crop(square, square, "$x$ a caption that is long")] * crops, names)
    image = imread(io.BytesIO(png))
    assert png.startswith(b"\x89PNG") and 300 < image.shape[0] < 3000 and image.shape[1] < 3000
