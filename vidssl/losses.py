"""The objectives as pure functions of unit vectors.

Dimensions, as in the papers: N queries, K negatives, d numbers each. Queries, keys and negatives have unit
length and are float32 or float64: temperatures of 0.05 leave half precision no room. Gradients flow to the
queries only, unless keys or negatives ask for them.

Every loss here is a cross-entropy -Σ_k w_k log p_k of targets w that sum to 1 with p_k = softmax(q·z_k / τ), so

    loss = log Σ_k exp(q·z_k / τ) - q·c / τ    with the centre    c = Σ_k w_k z_k.

Of the queue this takes no (N, K) matrix, only the log-sum of each query and the mean of the negatives in the
relations of each key: `_attend` reads both off in one pass. The gradient of a log-sum is such a mean too.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vidssl.errors import ConfigError

PositiveSlot = Literal["masked", "zero"]

# Similarities that are held at a time. CPU: 4 MiB stay in its cache. Elsewhere: few kernels, 32 MiB.
_BLOCK = {"cpu": 2**20}
_BLOCK_ELSEWHERE = 2**23


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
    return margin_nce(query, key, negatives, temperature, margin=0.0)


def margin_nce(
    query: Tensor,
    key: Tensor,
    negatives: Tensor,
    temperature: float,
    margin: float,
    picks: Tensor | None = None,
) -> Tensor:
    """Find each query's key among the negatives by a margin (InterCLR, Eq. 5); with margin 0 it is InfoNCE.

    Args:
        query: (N, d).
        key: (N, d), row n is the positive of query n.
        negatives: (M, d).
        temperature: tau.
        margin: m, taken from the cosine of query and key: above 0 it asks for more than to be nearest, below for less.
        picks: (N, K) int64, which rows of `negatives` each query has; None: all of them. With picks no gradient flows
            to the negatives.

    Returns:
        Scalar, the mean over the queries.
    """
    query = query / temperature
    log_sum = _attend(query, negatives)[0] if picks is None else _Picked.apply(query, negatives, picks)
    positive = _dot(query, key) - margin / temperature
    return (torch.logaddexp(log_sum, positive) - positive).mean()


def squared_distance(query: Tensor, key: Tensor) -> Tensor:
    """Bring each query to its key, without negatives (BYOL, Eq. 2).

    Args:
        query: (N, d).
        key: (N, d).

    Returns:
        Scalar in [0, 4], the mean over the queries.
    """
    return (2 - 2 * _dot(query, key)).mean()


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
    query = query / temperature
    log_sum, _, related = _attend_both(query, key / target_temperature, negatives)
    return (log_sum - _dot(query, related)).mean()


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
    query = query / temperature
    log_sum, key_log_sum, related = _attend_both(query, key / target_temperature, negatives)
    if positive_slot == "masked":
        relations_of_key = related  # Σ_k s_k z_k, Eq. 5
    elif positive_slot == "zero":
        share = torch.sigmoid(-key_log_sum).unsqueeze(1)  # exp(0) / (exp(0) + Σ_k exp(key·z_k / τ_m))
        relations_of_key = share * key + (1 - share) * related
    else:
        raise ConfigError(f"positive_slot '{positive_slot}' is neither masked nor zero")
    centre = coefficient * key + (1 - coefficient) * relations_of_key  # of the targets of Eq. 8
    return (_with_positive(log_sum, query, key) - _dot(query, centre)).mean()  # Eq. 9 in Eq. 10


def relations(key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Give the distribution (N, K) of each key's similarity over the negatives (SCE, Eq. 5)."""
    return torch.softmax(key @ negatives.T / temperature, dim=1)


def nt_xent(embedding: Tensor, group: Tensor, temperature: float, anchors: slice = slice(None)) -> Tensor:
    """Find the rows of one's own group among all others (Khosla et al., 2020, Eq. 2, L_out).

    Where each video is a group this is NT-Xent, for any number of views (Chen et al., 2020, Eq. 1). A row that is alone
    in its group is a negative only, no anchor. Gradients flow to all rows.

    Args:
        embedding: (R, d), the rows of all processes.
        group: (R,), rows of equal number are one another's positives.
        temperature: tau.
        anchors: The rows of this process; the mean of the processes' losses is the mean over all anchors.

    Returns:
        Scalar; 0 where no row has a positive.
    """
    number = torch.arange(len(group), device=group.device)
    itself = number[anchors, None] == number
    positive = (group[anchors, None] == group) & ~itself
    positives = (group[:, None] == group).sum(dim=1) - 1  # (R,), of each row
    similarity = embedding[anchors] / temperature @ embedding.T
    # Finite, not -inf: a row that is all alone has a gradient of 0 then.
    log_sum = torch.logsumexp(similarity.masked_fill(itself, torch.finfo(similarity.dtype).min), dim=1)
    count = positives[anchors]
    loss = log_sum - (similarity * positive).sum(dim=1) / count.clamp(min=1)
    share = (positives > 0).sum().clamp(min=1) * (len(count) / len(group))
    return (loss * (count > 0)).sum() / share


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=1)


def _with_positive(log_sum: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Let the positive into the log-sum over the negatives (N,): the denominator of Eq. 9."""
    return torch.logaddexp(log_sum, _dot(query, key))


def _attend_both(query: Tensor, key: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-sums of the queries (N,) and the keys (N,), and the means of the keys (N, d), in one pass."""
    if key.requires_grad:
        return _attend_plainly(query, negatives)[0], *_attend_plainly(key, negatives)
    log_sum, mean = _attend(torch.cat([query, key]), negatives)
    n = len(query)
    return log_sum[:n], log_sum[n:], mean[n:]


def _attend(rows: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    if negatives.requires_grad:
        return _attend_plainly(rows, negatives)
    log_sum, mean = _Streamed.apply(rows, negatives)
    return log_sum, mean


def _attend_plainly(rows: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Attend to the negatives z: log Σ_k exp(row·z_k), and the mean of the z_k with weights softmax(row·z_k).

    This is what `_Streamed` computes, as it is written on paper. It holds (M, K) matrices, and is for small K
    and for gradients to keys and negatives.

    Args:
        rows: (M, d), divided by their temperature.
        negatives: (K, d).

    Returns:
        The log-sums (M,) and the means (M, d).
    """
    similarity = rows @ negatives.T
    return torch.logsumexp(similarity, dim=1), torch.softmax(similarity, dim=1) @ negatives


class _Streamed(torch.autograd.Function):
    """`_attend_plainly` in one pass over chunks of the negatives: memory does not grow with K.

    The running maximum keeps the exponentials finite at any temperature. Gradients flow through the log-sums to
    the rows only: there the gradient is the mean, which is known already.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        m, k = len(rows), len(negatives)
        size = min(k, max(256, _BLOCK.get(rows.device.type, _BLOCK_ELSEWHERE) // m))
        block = rows.new_empty(m, size)  # used again for each chunk: fresh memory costs a CPU 20 %
        top = rows.new_full((m, 1), -torch.inf)
        total = rows.new_zeros(m, 1)  # Σ exp(row·z - top), over the chunks so far
        mean = torch.zeros_like(rows)  # Σ exp(row·z - top) z
        for chunk in torch.split(negatives, size):
            weight = torch.mm(rows, chunk.T, out=block[:, : len(chunk)])
            new_top = torch.maximum(top, weight.amax(dim=1, keepdim=True))
            weight.sub_(new_top).exp_()
            shrink = (top - new_top).exp_()
            total.mul_(shrink).add_(weight.sum(dim=1, keepdim=True))
            mean.mul_(shrink).addmm_(weight, chunk)
            top = new_top
        mean /= total
        ctx.save_for_backward(mean)
        ctx.mark_non_differentiable(mean)
        return (top + total.log()).squeeze(1), mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, log_sum_gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (mean,) = ctx.saved_tensors
        return log_sum_gradient.unsqueeze(1) * mean, None


class _Picked(torch.autograd.Function):
    """log Σ_k exp(row·z_k) (M,) over negatives that each row has for itself; gradients flow to the rows only.

    The negatives of a few rows are held at a time: (M, K, d) numbers would be gigabytes.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, negatives: Tensor, picks: Tensor) -> Tensor:
        size = max(1, _BLOCK.get(rows.device.type, _BLOCK_ELSEWHERE) // (picks.shape[1] * rows.shape[1]))
        parts = []
        for some, chosen in zip(torch.split(rows, size), torch.split(picks, size), strict=True):
            z = negatives.index_select(0, chosen.flatten()).view(
                *chosen.shape, -1
            )  # (m, K, d); twice as fast as [chosen]
            similarity = torch.bmm(z, some.unsqueeze(2)).squeeze(2)
            log_sum = torch.logsumexp(similarity, dim=1, keepdim=True)
            parts.append((log_sum, torch.bmm((similarity - log_sum).exp_().unsqueeze(1), z)))
        log_sums, means = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(means.squeeze(1))
        return log_sums.squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (mean,) = ctx.saved_tensors
        return gradient.unsqueeze(1) * mean, None, None
