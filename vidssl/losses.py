"""The objectives as pure functions of unit vectors; those of VICReg and LeJEPA are of vectors of any length.

Shapes, as in the papers:

    N  queries (and keys)       query, key  (N, d) unit rows; row n of `key` is the positive of query n
    K  negatives                negatives   (K, d) unit rows: the queue, or the rows of a memory bank
    d  embedding dimension      result      scalar, the mean over the queries

All are float32 or float64: half precision is too coarse for temperatures of 0.05.

Losses of unit vectors are cross-entropies -Σ_k w_k log p_k, of targets w that sum to 1, with p_k = softmax(q·z_k / τ):

    loss = log Σ_k exp(q·z_k / τ) - q·c / τ    with the centre    c = Σ_k w_k z_k.

So no loss stores the (N, K) similarities: `_attend` computes the log-sums, and the means of the negatives weighted by
the relations of each key, in one pass. The gradient of a log-sum is such a mean too.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from vidssl.base.errors import ConfigError

PositiveSlot = Literal["masked", "zero"]

_BLOCK = {"cpu": 2**20}  # similarities in memory at a time: 4 MiB fit the cache
_BLOCK_ELSEWHERE = 2**23  # few kernel launches


def full(x: Tensor) -> Tensor:
    """Convert to float32; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def unit(x: Tensor) -> Tensor:
    """Normalise rows (…, d) to length 1, in float32 or float64."""
    return functional.normalize(full(x), dim=-1)


def full_precision(device: torch.device) -> torch.autocast:
    """Disable autocast, under which even float32 matrices are multiplied in bfloat16."""
    return torch.autocast(device.type, enabled=False)


def info_nce(query: Tensor, key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of each query's key against the negatives (SCE, Eq. 3; MoCo, Eq. 1)."""
    return margin_nce(query, key, negatives, temperature, margin=0.0)


def margin_nce(
    query: Tensor, key: Tensor, negatives: Tensor, temperature: float, margin: float, picks: Tensor | None = None
) -> Tensor:
    """InfoNCE with a margin that is subtracted from the cosine of query and key (MarginNCE; InterCLR, Eq. 5).

    With `picks` (N, K) int64 query n is compared with the rows `negatives[picks[n]]` only, which get no gradient.
    """
    query = query / temperature
    log_sum = _attend(query, negatives)[0] if picks is None else _Picked.apply(query, negatives, picks)
    positive = _dot(query, key) - margin / temperature
    return (torch.logaddexp(log_sum, positive) - positive).mean()


def squared_distance(query: Tensor, key: Tensor) -> Tensor:
    """Squared distance of each query and its key, in [0, 4], without negatives (BYOL, Eq. 2)."""
    return (2 - 2 * _dot(query, key)).mean()


def ressl(query: Tensor, key: Tensor, negatives: Tensor, temperature: float, target_temperature: float) -> Tensor:
    """Cross-entropy of the query's relations to the negatives with those of its key (SCE, Eq. 4-6).

    The positive itself is left out. `temperature` is tau, of the queries; `target_temperature` tau_m, of the keys.
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
    relational: float | None = None,
    ceiling: float | None = None,
) -> Tensor:
    """Soft contrastive loss: the target mixes the positive with the relations of the key (SCE, Eq. 5, 8-10).

    `temperature` is tau, `target_temperature` tau_m, `coefficient` lambda in [0, 1]: 1 is InfoNCE. `masked` leaves the
    positive out of the relations, as Eq. (5) does; `zero` sets its similarity to 0, as Algorithm 1 and their code do.
    `relational` and `ceiling` are mu and eta, the weights of L_ReSSL and L_Ceil in Eq. (11); None: 1 - lambda, as in
    Eq. (10).
    """
    relational, ceiling = (1 - coefficient if weight is None else weight for weight in (relational, ceiling))
    query = query / temperature
    log_sum, key_log_sum, related = _attend_both(query, key / target_temperature, negatives)
    if positive_slot == "zero":
        weight = torch.sigmoid(-key_log_sum).unsqueeze(1)  # exp(0) / (exp(0) + Σ_k exp(key·z_k / τ_m))
        related = weight * key + (1 - weight) * related
    elif positive_slot != "masked":
        raise ConfigError(f"positive_slot '{positive_slot}' is neither masked nor zero")
    centre = coefficient * key + relational * related  # of the targets of Eq. 8; related: Σ_k s_k z_k of Eq. 5
    denominator = torch.logaddexp(log_sum, _dot(query, key))  # of Eq. 9, the logarithm: with the positive
    # Eq. 11: L_InfoNCE and L_Ceil have the denominator of Eq. 9, L_ReSSL that of Eq. 4, and L_Ceil their difference.
    log_sums = (coefficient + ceiling) * denominator + (relational - ceiling) * log_sum
    return (log_sums - _dot(query, centre)).mean()


def nt_xent(embedding: Tensor, group: Tensor, temperature: float, anchors: slice = slice(None)) -> Tensor:
    """Contrast each row with all others, rows of its group being its positives (Khosla et al., 2020, Eq. 2, L_out).

    Where each video is a group this is NT-Xent (Chen et al., 2020, Eq. 1). `embedding` (R, d) has the unit rows of all
    processes; rows of equal number in `group` (R,) are positives of each other; one alone in its group is a negative
    only. `anchors` are the rows of this process: the mean of the processes' losses is the mean over all anchors.
    """
    number = torch.arange(len(group), device=group.device)
    itself = number[anchors, None] == number
    positive = (group[anchors, None] == group) & ~itself
    positives = (group[:, None] == group).sum(dim=1) - 1  # (R,), of each row
    similarity = embedding[anchors] / temperature @ embedding.T
    # Finite, not -inf: the gradient of a row without any other is 0 then, not NaN.
    log_sum = torch.logsumexp(similarity.masked_fill(itself, torch.finfo(similarity.dtype).min), dim=1)
    count = positives[anchors]
    loss = log_sum - (similarity * positive).sum(dim=1) / count.clamp(min=1)
    # Each process divides by its part of all anchors, so that the mean over processes is that over anchors.
    total = (positives > 0).sum().clamp(min=1) * (len(count) / len(group))
    return (loss * (count > 0)).sum() / total


def swapped_prediction(
    scores: Tensor, keys: Sequence[int], temperature: float, epsilon: float, iterations: int
) -> Tensor:
    """Cross-entropy of each key view's assignment with the prediction of each other view (SwAV, Eq. 2 and 6).

    `scores` (N, V, K) are the cosines of V views of N videos with K prototypes; `keys` are numbers of views. The mean
    over all pairs. Assignments get no gradient.
    """
    predicted = functional.log_softmax(scores / temperature, dim=2)
    terms = []
    for key in keys:
        code = sinkhorn(scores[:, key].detach(), epsilon, iterations)
        terms += [-(code * predicted[:, v]).sum(dim=1).mean() for v in range(scores.shape[1]) if v != key]
    return torch.stack(terms).mean()


def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Assign N samples to K prototypes by their scores (N, K), so that all prototypes are used equally (SwAV, Eq. 3-5).

    Sinkhorn-Knopp steps scale exp(scores / epsilon) to equal sums over samples, then over prototypes. Returns (N, K)
    probabilities; rows sum to 1, columns to about N / K.
    """
    logarithm = scores / epsilon
    for _ in range(iterations):
        logarithm = logarithm.log_softmax(dim=0).log_softmax(dim=1)
    return logarithm.exp()


def vicreg(embedding: Tensor) -> dict[str, Tensor]:
    """Invariance, variance and covariance of embeddings (N, V, d), N and V >= 2 (Bardes et al., 2022, Eq. 1-5).

    As in their code the squared distance of two views is a mean over dimensions, and the variance term one over views.
    With more than two views each term is the mean over all pairs of views.
    """
    n, _, d = embedding.shape
    std = (embedding.var(dim=0) + 1e-4).sqrt()  # (V, d)
    centred = (embedding - embedding.mean(dim=0)).transpose(0, 1)  # (V, N, d)
    covariance = centred.mT @ centred / (n - 1)  # (V, d, d)
    off_diagonal = covariance - torch.diag_embed(covariance.diagonal(dim1=1, dim2=2))
    return {
        "invariance": 2 * embedding.var(dim=1).mean(),  # = the mean of (z - z')² over pairs of views
        "variance": functional.relu(1 - std).mean(),
        "covariance": 2 * off_diagonal.square().sum(dim=(1, 2)).mean() / d,  # the sum over both views of a pair
    }


def sigreg(embedding: Tensor, directions: Tensor) -> Tensor:
    """Mean Epps-Pulley statistic of embeddings (N, V, d), for each view and direction (d, M) (Balestriero & LeCun)."""
    return epps_pulley(embedding @ functional.normalize(directions, dim=0)).mean()


def epps_pulley(samples: Tensor) -> Tensor:
    """Distance of N samples (N, …) from N(0, 1): N ∫ |φ_N(t) - φ(t)|² φ(t) dt, φ(t) = exp(-t²/2), for each column (…).

    φ_N(t) = mean exp(itx) is the empirical characteristic function (Epps & Pulley, 1983). Of samples of N(0, 1) the
    expected value is √2π (1 - 1/√3) = 1.06, whatever N; of equal samples at 0 it is 0.41 N.
    """
    t = torch.linspace(0, 5, 17, dtype=samples.dtype, device=samples.device)  # the integrand is even
    phi = torch.exp(-t.square() / 2)
    angle = samples.unsqueeze(-1) * t
    error = (angle.cos().mean(dim=0) - phi).square() + angle.sin().mean(dim=0).square()
    return 2 * len(samples) * torch.trapezoid(error * phi, t, dim=-1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=1)


def _attend_both(query: Tensor, key: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-sums of the queries (N,) and of the keys (N,), and the means of the keys (N, d), in one pass."""
    if key.requires_grad:
        return _attend(query, negatives)[0], *_attend(key, negatives, means_need_gradients=True)
    log_sum, mean = _attend(torch.cat([query, key]), negatives)
    n = len(query)
    return log_sum[:n], log_sum[n:], mean[n:]


def _attend(rows: Tensor, negatives: Tensor, means_need_gradients: bool = False) -> tuple[Tensor, Tensor]:
    """Log-sums (M,) of rows (M, d), log Σ_k exp(row·z_k), and means (M, d) of the z_k weighted by softmax(row·z_k)."""
    if means_need_gradients or negatives.requires_grad:
        similarity = rows @ negatives.T  # (M, K)
        return torch.logsumexp(similarity, dim=1), torch.softmax(similarity, dim=1) @ negatives
    log_sum, mean = _Streamed.apply(rows, negatives)
    return log_sum, mean


class _Streamed(torch.autograd.Function):
    """`_attend` in one pass over chunks of the negatives: memory does not grow with K.

    The running maximum keeps the exponentials finite (as in FlashAttention). The gradient of a log-sum is the mean.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        m = len(rows)
        size = min(len(negatives), max(256, _BLOCK.get(rows.device.type, _BLOCK_ELSEWHERE) // m))
        block = rows.new_empty(m, size)  # reused for each chunk: new memory costs 20 % on a CPU
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
    """log Σ_k exp(row·z_k) (M,) over the negatives picked for each row, gathered for a few rows at a time."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, negatives: Tensor, picks: Tensor) -> Tensor:
        size = max(1, _BLOCK.get(rows.device.type, _BLOCK_ELSEWHERE) // (picks.shape[1] * rows.shape[1]))
        parts = []
        for some, chosen in zip(torch.split(rows, size), torch.split(picks, size), strict=True):
            # (m, K, d); index_select is twice as fast as negatives[chosen]
            z = negatives.index_select(0, chosen.flatten()).view(*chosen.shape, -1)
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
