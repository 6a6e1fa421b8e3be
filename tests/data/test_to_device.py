"""Results of a batch."""

import torch

from vidssl.data.to_device import fetch_later


def test_results_do_not_keep_the_memory_of_their_batch():
    batch = torch.arange(1000)
    (index,) = fetch_later([batch[:3]])()
    assert index.tolist() == [0, 1, 2] and index.untyped_storage().nbytes() == 3 * 8
