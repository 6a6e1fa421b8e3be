"""Several lists as one: the order of their samples, what a joined list holds, and its fingerprints."""

from fractions import Fraction

import numpy as np
import pytest

from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.data.list_identity import identify
from vidssl.data.loader import StepSampler, keys_of_step
from vidssl.data.video_list import ListPart, join_lists, read_list

MIXES = {
    "equal": (ListPart(40, 40), ListPart(16, 16)),
    "twice": (ListPart(40, 40), ListPart(16, 32)),
    "half": (ListPart(41, 20), ListPart(17, 17)),
    "three": (ListPart(30, 30), ListPart(7, 21), ListPart(20, 6)),
    "five": (ListPart(9, 9), ListPart(30, 41), ListPart(12, 5), ListPart(25, 25), ListPart(8, 8)),
    "one": (ListPart(12, 30),),
}


def of_list(mix, index):
    """The number of the list that a row of the joined list is of."""
    return int(np.searchsorted(np.cumsum([part.records for part in mix]), index, side="right"))


@pytest.fixture(params=MIXES)
def mix(request):
    return MIXES[request.param]


def test_one_list_has_the_order_that_it_always_had():
    orders = [generator(3, epoch).permutation(16) for epoch in range(4)]
    straight = [(n // 16, int(orders[n // 16][n % 16])) for n in range(60)]
    for joined in ((), (ListPart(16, 16),)):
        assert [key for step in range(10) for key in keys_of_step(step, 6, 16, 3, joined)] == straight
    # With a weight alone an epoch is longer, the order is the same.
    assert [key for step in range(10) for key in keys_of_step(step, 6, 16, 3, (ListPart(16, 48),))] == straight


def test_no_two_keys_are_equal_and_each_record_is_used_equally_often(mix):
    samples = sum(part.samples for part in mix)
    keys = [key for step in range(6 * samples) for key in keys_of_step(step, 2, 0, 7, mix)]  # 12 epochs
    assert len({*keys}) == len(keys)
    for number, part in enumerate(mix):
        own = [key for key in keys if of_list(mix, key[1]) == number]
        assert len(own) == 12 * part.samples
        assert [epoch for epoch, _ in own] == [n // part.records for n in range(len(own))]
        rows = {index for _, index in own}
        for epoch in range(len(own) // part.records):
            assert {index for e, index in own if e == epoch} == rows  # a pass over the whole list
        assert len(rows) == part.records


def test_lists_have_orders_of_their_own():
    mix = (ListPart(30, 30), ListPart(30, 30))
    keys = keys_of_step(0, 60, 0, 0, mix)
    first, second = ([index % 30 for _, index in keys if of_list(mix, index) == number] for number in (0, 1))
    assert sorted(first) == sorted(second) and first != second
    assert first == generator(0, 0).permutation(30).tolist()  # as alone


def test_proportions_are_exact_up_to_rounding_at_any_sample(mix):
    samples = sum(part.samples for part in mix)
    lists = [of_list(mix, index) for _, index in keys_of_step(0, 3 * samples + 5, 0, 0, mix)]
    most = Fraction(len(mix) - 1, 2)
    for number, part in enumerate(mix):
        for n in range(1, len(lists) + 1):
            assert abs(lists[:n].count(number) - Fraction(n * part.samples, samples)) <= most


def test_keys_of_a_step_depend_on_nothing_but_the_step(mix):
    records = sum(part.records for part in mix)
    long = list(StepSampler(records, 4, 4, 0, 50, 5, joined=mix))
    assert list(StepSampler(records, 4, 4, 17, 23, 5, joined=mix)) == long[17:23]
    slices = [list(StepSampler(records, 4, 2, 17, 23, 5, rank, 2, mix)) for rank in (0, 1)]
    assert [one + other for one, other in zip(*slices, strict=True)] == long[17:23]


def test_a_batch_with_more_of_a_list_than_it_has_is_refused():
    StepSampler(50, 12, 12, 0, 1, 0, joined=(ListPart(40, 40), ListPart(10, 200)))
    message = r"^batch_size 13 has 10\.8 videos of data\.train\.1, a list of 10: lower its weight or the batch size$"
    with pytest.raises(ConfigError, match=message):
        StepSampler(50, 13, 13, 0, 1, 0, joined=(ListPart(40, 40), ListPart(10, 200)))
    with pytest.raises(ConfigError, match="batch_size 51 is more than the 50 records"):
        StepSampler(50, 51, 51, 0, 1, 0, joined=(ListPart(40, 40), ListPart(10, 10)))


@pytest.fixture
def write(tmp_path):
    """Write a list, its root and classes into a folder: `write("a", "x.mp4,0", …)`."""

    def make(folder, *rows, header="path,label", classes="yes\nno\n", root=None):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / "train.csv").write_text("\n".join([header, *rows]) + "\n")
        (place / "classes.txt").write_text(classes)
        return read_list(place / "train.csv", root or tmp_path / "videos" / folder)

    return make


def test_a_joined_list_has_the_rows_of_all(write, tmp_path):
    one = write("a", "x.mp4,0,1", "y.mp4,1,", header="path,label,start")
    other = write("b", "x.mp4,1,2.5,m.png", header="path,label,end,mask")
    with pytest.raises(DataError, match=r"a/train\.csv has no masks, another list has: train on lists with masks"):
        join_lists([one, other], [1, 1])
    other, third = write("b", "x.mp4,1"), write("c", "z.mp4,0", "x.mp4,0")
    joined = join_lists([one, other, third], [1, 2.5, 0.2])
    assert list(joined.names) == ["x.mp4", "y.mp4", "x.mp4", "z.mp4", "x.mp4"]
    assert list(joined.records) == [*one.records, *other.records, *third.records]
    assert joined.labels.tolist() == [0, 1, 1, 0, 0] and joined.classes == ("yes", "no")
    assert joined.joined == (ListPart(2, 2), ListPart(1, 2), ListPart(2, 1)) and joined.samples_per_epoch == 5
    assert list(joined.rows([4, 1, 2]).records) == [third.records[1], one.records[1], other.records[0]]
    assert joined.rows([4, 1]).samples_per_epoch == 2


def test_masks_of_each_list_are_below_its_root(write, tmp_path):
    header = "path,label,mask"
    lists = [write(folder, "x.png,0,m/x.png", header=header) for folder in "ab"]
    joined = join_lists(lists, [1, 1])
    assert [record.mask for record in joined.records] == [f"{tmp_path}/videos/{folder}/m/x.png" for folder in "ab"]
    moved = [write(folder, "x.png,0,m/x.png", header=header, root=f"/moved/{folder}") for folder in "ab"]
    assert join_lists(moved, [1, 1]).fingerprint == joined.fingerprint


def test_labels_of_lists_with_other_classes_are_unknown(write):
    joined = join_lists([write("a", "x.mp4,0"), write("b", "y.mp4,1", classes="no\nyes\n")], [1, 1])
    assert joined.labels.tolist() == [-1, -1] and joined.classes == ()


def test_one_list_stays_as_it_is(write):
    one = write("a", "x.mp4,0", "y.mp4,1")
    assert join_lists([one], [1]) is one and one.samples_per_epoch == 2
    assert join_lists([one], [2]).samples_per_epoch == 4


def test_the_fingerprint_covers_all_lists_and_weights(write):
    one, other = write("a", "x.mp4,0", "y.mp4,1"), write("b", "z.mp4,0", "w.mp4,1")
    joined = join_lists([one, other], [1, 1]).fingerprint
    moved = [write("a", "x.mp4,0", "y.mp4,1", root="/1"), write("b", "z.mp4,0", "w.mp4,1", root="/2")]
    assert join_lists(moved, [1, 1]).fingerprint == joined
    others = [
        join_lists([one, other], [1, 2]),
        join_lists([other, one], [1, 1]),
        join_lists([one, write("b", "z.mp4,0", "w.mp4,0")], [1, 1]),
        join_lists([write("a", "x.mp4,0", "q.mp4,1"), other], [1, 1]),
        join_lists([write("a", "x.mp4,0", "y.mp4,1", "z.mp4,0"), write("b", "w.mp4,1")], [1, 1]),  # the border moved
        write("a", "x.mp4,0", "y.mp4,1", "z.mp4,0", "w.mp4,1"),
    ]
    assert len({joined, *(videos.fingerprint for videos in others)}) == 1 + len(others)


def test_files_of_all_lists_are_identified(write, tmp_path):
    lists = [write(folder, "x.mp4,0") for folder in "ab"]
    for folder, size in (("a", 5), ("b", 70)):
        (tmp_path / "videos" / folder).mkdir(parents=True)
        (tmp_path / "videos" / folder / "x.mp4").write_bytes(b"x" * size)
    actual = identify(join_lists(lists, [1, 1]))
    assert actual["root"] == [f"{tmp_path}/videos/a", f"{tmp_path}/videos/b"]
    assert (actual["files"], actual["missing"], actual["bytes"]) == (2, 0, 75)
    (tmp_path / "videos/b/x.mp4").write_bytes(b"x")
    assert identify(join_lists(lists, [1, 1]))["sizes"] != actual["sizes"]
