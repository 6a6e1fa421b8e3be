"""Statistics that are logged beside the loss, to detect collapse: similarities of pairs and the rank of keys.

Shapes: N queries and keys, K negatives, R rows, V videos, d embedding dimension; all rows have length 1.
"""

import torch
from torch import Tensor

_NEGATIVES = 4096  # negatives that statistics are computed on


@torch.no_grad()
def key_statistics(query: Tensor, key: Tensor, negatives: Tensor, one_each: Tensor) -> dict[str, Tensor]:
    """Measure whether the keys of different videos differ.

    `positive_similarity` is the mean of query · key (N, d); `negative_similarity` and `negative_spread` are mean and
    standard deviation of key · negative, over the first 4,096 of `negatives` (K, d) or, without any, the other keys of
    the batch; with fewer than two pairs they are 0. `key_rank` is the effective rank of one key of each video (V, d),
    and `key_rank_limit` its maximum, min(V, d).
    """
    similarity = key @ (negatives[:_NEGATIVES] if len(negatives) else key).T
    if not len(negatives):
        similarity = similarity[~torch.eye(len(key), dtype=torch.bool, device=key.device)]
    if similarity.numel() < 2:
        similarity = similarity.new_zeros(2)  # not NaN: logs are JSON
    return {
        "positive_similarity": (query * key).sum(dim=1).mean(),
        "negative_similarity": similarity.mean(),
        "negative_spread": similarity.std(),
        **_rank(one_each),
    }


@torch.no_grad()
def group_statistics(embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
    """Measure the same as `key_statistics` for rows (R, d) that are queries and keys, by their group (R,).

    The negatives are rows of other groups, and the rank is that of the first row of each. Values without pairs are 0.
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


def _rank(one_each: Tensor) -> dict[str, Tensor]:
    limit = one_each.new_tensor(min(one_each.shape))
    return {"key_rank": effective_rank(one_each), "key_rank_limit": limit}


@torch.no_grad()
def effective_rank(rows: Tensor) -> Tensor:
    """Compute the exponential of the entropy of the normalised singular values of rows (R, d).

    It is between 1 (all rows on one line) and min(R, d) (Roy & Vetterli, 2007).
    """
    # svdvals raises on NaN; the loss check reports NaN with step and videos.
    values = torch.linalg.svdvals(torch.nan_to_num(rows))
    return torch.exp(torch.special.entr(values / values.sum()).sum())
