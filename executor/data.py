"""Batches of text: the same samples in the same order under every plan.

A text of N tokens holds K = (N - 1) // S sequences of S + 1 tokens: sequence i covers tokens i S to
(i + 1) S, so that every token but the first is predicted exactly once a pass. Each pass is a new
permutation of the K sequences drawn from (seed, pass); what does not fill a whole batch is left out of
that pass. Batch b is a function of (tokens, S, B, seed, b) alone, so a data-parallel rank just takes
its slice and a resumed run needs no state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from costmodel.specs import InputError

if TYPE_CHECKING:
    import torch

Tokens = NDArray[np.int64]


class GlobalBatches:
    """All global batches of a text, by number.

    Args:
        tokens: int64 [num_tokens].
        sequence_length: S, tokens predicted in one sequence.
        global_batch_size: B, sequences in one optimizer step.
        seed: of the shuffle.

    Raises:
        InputError: when the text does not fill one batch.
    """

    def __init__(self, tokens: Tokens, sequence_length: int, global_batch_size: int, seed: int) -> None:
        self._tokens = tokens
        self._sequence_length = sequence_length
        self._global_batch_size = global_batch_size
        self._seed = seed
        self.num_sequences = max(len(tokens) - 1, 0) // sequence_length
        if self.num_sequences < global_batch_size:
            raise InputError(
                f"the data hold {len(tokens):,} tokens = {self.num_sequences:,} sequences of {sequence_length:,}; "
                f"one global batch needs {global_batch_size:,} sequences = "
                f"{global_batch_size * sequence_length + 1:,} tokens: "
                "give more text, or a smaller sequence_length or global_batch_size"
            )
        self.num_batches_per_pass = self.num_sequences // global_batch_size

    def batch(self, number: int, *, rank: int = 0, size: int = 1) -> torch.Tensor:
        """Global batch ``number`` (0-based), or the slice of one data-parallel rank.

        Args:
            number: of the optimizer step.
            rank: data-parallel rank; takes the contiguous sequences rank B / size to (rank + 1) B / size.
            size: data-parallel ranks; divides B.

        Returns:
            int64 [B / size, S + 1].

        Raises:
            ValueError: when ``size`` does not divide B.
        """
        import torch  # the launcher checks data without it

        if self._global_batch_size % size:
            raise ValueError(f"global batch of {self._global_batch_size} sequences on {size} data-parallel ranks")
        part = self._global_batch_size // size
        passes, index = divmod(number, self.num_batches_per_pass)
        first = index * self._global_batch_size + rank * part
        starts = self._order(passes)[first : first + part, None] * self._sequence_length
        return torch.from_numpy(self._tokens[starts + np.arange(self._sequence_length + 1)])

    def _order(self, passes: int) -> NDArray[np.int64]:
        return np.random.default_rng((self._seed, passes)).permutation(self.num_sequences)
