"""Statistics that are logged beside the loss, to detect collapse: similarities of unit rows and the rank of keys."""

from math import log

import torch
from torch import Tensor

from vidssl import losses
from vidssl.base import distributed


@torch.no_grad()
def key_statistics(
    query: Tensor, key: Tensor, negatives: Tensor, one_each: Tensor, temperature: float | None = None
) -> dict[str, Tensor]:
    """Measure whether the keys of different videos differ, over all processes.

    The negatives of each key (N, d) are the first 4,096 of `negatives` (K, d) or, without any, the other keys of the
    batch. `key_rank` is the effective rank of one key of each video (V, d), `key_rank_limit` its maximum, min(V, d).
    With a temperature there is also InfoNCE's bound `i_nce`, in nats.
    """
    with losses.full_precision(query.device):
        query, key, one_each = (distributed.gather(rows) for rows in (query, key, one_each))
        similarity = key @ (negatives[:4096] if len(negatives) else key).T
        if not len(negatives):
            similarity = similarity[~torch.eye(len(key), dtype=torch.bool, device=key.device)]
        if similarity.numel() < 2:
            similarity = similarity.new_zeros(2)  # not NaN: logs are JSON
        scalars = {
            "positive_similarity": (query * key).sum(dim=1).mean(),
            "negative_similarity": similarity.mean(),
            "negative_spread": similarity.std(),
            **_rank(one_each),
        }
        if temperature is not None:
            scalars["i_nce"] = log(len(negatives) + 1) - losses.info_nce(query, key, negatives, temperature)
    return scalars


@torch.no_grad()
def group_statistics(embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
    """Measure the same for rows (R, d) that are queries and keys, by their group (R,); 0 without pairs.

    The negatives are rows of other groups, and the rank is that of the first row of each.
    """
    similarity = embedding @ embedding.T
    same = group[:, None] == group
    itself = torch.eye(len(group), dtype=torch.bool, device=group.device)

    def mean(x: Tensor, pairs: Tensor) -> Tensor:
        return (x * pairs).sum() / pairs.sum().clamp(min=1)

    negative = mean(similarity, ~same)
    return {
        "positive_similarity": mean(similarity, same & ~itself),
        "negative_similarity": negative,
        "negative_spread": mean((similarity - negative) ** 2, ~same).sqrt(),
        **_rank(embedding[~same.tril(-1).any(dim=1)]),
    }


def _rank(rows: Tensor) -> dict[str, Tensor]:
    """Effective rank (Roy & Vetterli, 2007): the exponential of the entropy of the normalised singular values."""
    # svdvals raises on NaN; the loss check reports NaN with step and videos.
    values = torch.linalg.svdvals(torch.nan_to_num(rows))
    rank = torch.exp(torch.special.entr(values / values.sum()).sum())
    return {"key_rank": rank, "key_rank_limit": rows.new_tensor(min(rows.shape))}
