"""The objectives as pure functions of unit vectors.

Dimensions, as in the papers: N queries, K negatives, d numbers each. Queries, keys and negatives have unit
length and are float32 or float64: temperatures of 0.05 leave half precision no room. Gradients flow to the
queries only, unless keys or negatives ask for them.
"""

from typing import Literal

import torch
from torch import Tensor

from vidssl.errors import ConfigError

PositiveSlot = Literal["masked", "zero"]


def info_nce(query: Tensor, key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Find each query's key among the negatives (SCE, Eq. 3; MoCo, Eq. 1).

    Args:
        query: (N, d).
        key: (N, d), row n is the positive of query n.
        negatives: (K, d), the queue.
        temperature: tau.

    Returns:
        Scalar, the mean over the queries.
    """
    return -_log_softmax(query, key, negatives, temperature)[:, 0].mean()


def ressl(
    query: Tensor, key: Tensor, negatives: Tensor, temperature: float, target_temperature: float
) -> Tensor:
    """Relate each query to the negatives as its key is related to them (SCE, Eq. 4-6); the positive takes no part.

    Args:
        query: (N, d).
        key: (N, d).
        negatives: (K, d), the queue.
        temperature: tau, of the queries' relations.
        target_temperature: tau_m, of the keys'.

    Returns:
        Scalar, the mean over the queries.
    """
    target = relations(key, negatives, target_temperature)
    return -(target * torch.log_softmax(query @ negatives.T / temperature, dim=1)).sum(dim=1).mean()


def sce(
    query: Tensor,
    key: Tensor,
    negatives: Tensor,
    temperature: float,
    target_temperature: float,
    coefficient: float,
    positive_slot: PositiveSlot = "masked",
) -> Tensor:
    """Contrast softly: the target is the positive and, for the rest, the relations of the key (SCE, Eq. 5, 8-10).

    Args:
        query: (N, d).
        key: (N, d), row n is the positive of query n.
        negatives: (K, d), the queue.
        temperature: tau, of the online distribution.
        target_temperature: tau_m, of the relations.
        coefficient: lambda in [0, 1]; 1 is InfoNCE.
        positive_slot: `masked` leaves the positive out of the relations, as Eq. (5) does; `zero` gives it the
            similarity 0, as Algorithm 1 and the authors' code do.

    Returns:
        Scalar, the mean over the queries.

    Raises:
        ConfigError: `positive_slot` is neither.
    """
    log_p = _log_softmax(query, key, negatives, temperature)  # (N, 1 + K), Eq. 9
    if positive_slot == "masked":
        target = relations(key, negatives, target_temperature)  # (N, K), Eq. 5
        related = (target * log_p[:, 1:]).sum(dim=1)
    elif positive_slot == "zero":
        similarity = torch.cat([key.new_zeros(len(key), 1), key @ negatives.T], dim=1)
        related = (torch.softmax(similarity / target_temperature, dim=1) * log_p).sum(dim=1)
    else:
        raise ConfigError(f"positive_slot '{positive_slot}' is neither masked nor zero")
    return -(coefficient * log_p[:, 0] + (1 - coefficient) * related).mean()  # Eq. 8 in Eq. 10


def relations(key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Give the distribution (N, K) of each key's similarity over the negatives (SCE, Eq. 5)."""
    return torch.softmax(key @ negatives.T / temperature, dim=1)


def _log_softmax(query: Tensor, key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Log-probabilities (N, 1 + K) of the positive, in column 0, and the negatives (SCE, Eq. 9)."""
    positive = (query * key).sum(dim=1, keepdim=True)
    return torch.log_softmax(torch.cat([positive, query @ negatives.T], dim=1) / temperature, dim=1)
