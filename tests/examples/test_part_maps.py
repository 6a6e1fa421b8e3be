"""Part maps: colours follow the labels, and the legend names them."""

import numpy as np
import pytest


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
