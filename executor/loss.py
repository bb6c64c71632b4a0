"""The training loss: mean cross entropy over all tokens of the global batch, in float32 at least.

    (1) loss = 1 / (m D) sum_d sum_j mean_{t in micro batch j of replica d} -log p(target_t)

m micro batches per replica, D replicas; all micro batches hold the same number of tokens, so (1) is the mean over all
tokens. A stage returns the inner mean over m; the gradient reduction and `training_run` divide by D.
"""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel


def micro_batch_loss(logits: torch.Tensor, targets: torch.Tensor, *, num_micro_batches: int) -> torch.Tensor:
    """One micro batch's addend of equation (1) before the mean over replicas, a scalar.

    Args:
        logits: [micro batch, sequence, vocabulary]; with ``loss_parallel`` a DTensor cut along the vocabulary.
        targets: token ids [micro batch, sequence].
        num_micro_batches: m.
    """
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    # The quotient comes last because it is no view: a split backward detaches the loss in place.
    return (loss.to_local() if isinstance(loss, DTensor) else loss) / num_micro_batches


def loss_context(enabled: bool) -> contextlib.AbstractContextManager[None]:
    """The context in which forward and backward of a vocabulary-cut loss must run."""
    return loss_parallel() if enabled else contextlib.nullcontext()
