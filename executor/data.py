"""Batches of tokens: the same samples in the same order under every plan.

N tokens hold K = (N - 1) // S sequences of S + 1 tokens: sequence i covers tokens i S to
(i + 1) S, so that every token but the first is predicted exactly once a pass. Each pass is a new
permutation of the K sequences drawn from (seed, pass); what does not fill a whole batch is left out of
that pass. Batch b is a function of (tokens, S, B, seed, b) alone, so a data-parallel rank just takes
its slice and a resumed run needs no state.

Tokens may lie in a memory-mapped file: nothing here reads more of them than a batch or a sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from costmodel.specs import InputError

if TYPE_CHECKING:
    import torch

Tokens = NDArray[Any]
"""Integers of any width, one dim, in memory or mapped from a file."""
_READ_WHOLE = 2**24
_NUM_PIECES = 256
_PIECE_LENGTH = 2**13


class GlobalBatches:
    """All global batches of a text, by number.

    Args:
        tokens: [num_tokens].
        sequence_length: S, tokens predicted in one sequence.
        global_batch_size: B, sequences in one optimizer step.
        seed: of the shuffle.
        vocab_size: ids of a batch must be below it; None asks nothing.

    Raises:
        InputError: when the data do not fill one batch.
    """

    def __init__(
        self, tokens: Tokens, sequence_length: int, global_batch_size: int, seed: int, vocab_size: int | None = None
    ) -> None:
        self._tokens = tokens
        self._sequence_length = sequence_length
        self._global_batch_size = global_batch_size
        self._seed = seed
        self._vocab_size = vocab_size
        self._pass: tuple[int, NDArray[np.integer[Any]]] | None = None
        self.num_sequences = max(len(tokens) - 1, 0) // sequence_length
        if self.num_sequences < global_batch_size:
            raise InputError(
                f"the data hold {len(tokens):,} tokens = {self.num_sequences:,} sequences of {sequence_length:,}; "
                f"one global batch needs {global_batch_size:,} sequences = "
                f"{global_batch_size * sequence_length + 1:,} tokens: "
                "give more data, or a smaller sequence_length or global_batch_size"
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
            InputError: when an id is outside the vocabulary.
        """
        import torch  # the launcher checks data without it

        if self._global_batch_size % size:
            raise ValueError(f"global batch of {self._global_batch_size} sequences on {size} data-parallel ranks")
        part = self._global_batch_size // size
        passes, index = divmod(number, self.num_batches_per_pass)
        first = index * self._global_batch_size + rank * part
        chosen = self._order(passes)[first : first + part, None].astype(np.int64)
        positions = chosen * self._sequence_length + np.arange(self._sequence_length + 1)
        ids = np.asarray(self._tokens[positions])
        if self._vocab_size is not None:
            check_ids(ids, positions, self._vocab_size)
        return torch.from_numpy(ids.astype(np.int64))

    def _order(self, passes: int) -> NDArray[np.integer[Any]]:
        """The permutation of a pass, kept until another is asked for: drawing it takes longer than a small step."""
        if self._pass is None or self._pass[0] != passes:
            kind = np.uint32 if self.num_sequences < 2**32 else np.int64
            numbers = np.arange(self.num_sequences, dtype=kind)
            self._pass = (passes, np.random.default_rng((self._seed, passes)).permutation(numbers))
        return self._pass[1]


def check_ids(ids: Tokens, positions: Tokens, vocab_size: int) -> None:
    """Make sure that token ids are rows of the model's embedding.

    Args:
        ids: of any shape.
        positions: where they stand in the data, the same shape.
        vocab_size: ids must be below it.

    Raises:
        InputError: names the first id that is not, and its position.
    """
    if not ids.size or (int(ids.min()) >= 0 and int(ids.max()) < vocab_size):
        return
    wrong = (ids < 0) | (ids >= vocab_size)
    position = int(positions[wrong].min())
    found = int(ids[positions == position][0])
    raise InputError(
        f"the data hold token id {found} at position {position:,}, but the model's vocab_size is {vocab_size}: ids are 0 to "
        f"{vocab_size - 1}; the data were made with another model's tokenizer"
    )


def sample(tokens: Tokens) -> Iterator[tuple[int, Tokens]]:
    """(position, tokens there): all of short data; of long data evenly spaced pieces, the first and the last among them."""
    if len(tokens) <= _READ_WHOLE:
        yield 0, tokens
        return
    for start in np.linspace(0, len(tokens) - _PIECE_LENGTH, _NUM_PIECES).astype(np.int64).tolist():
        yield start, tokens[start : start + _PIECE_LENGTH]


def check_sample(tokens: Tokens, vocab_size: int) -> None:
    """`check_ids` of a sample, before anything is trained; batches check the rest."""
    for start, piece in sample(tokens):
        check_ids(np.asarray(piece), np.arange(start, start + len(piece)), vocab_size)


def digest(tokens: Tokens) -> str:
    """A hash of how many tokens there are and of a sample of them."""
    hashed = hashlib.sha256(f"{len(tokens)} {tokens.dtype.str}".encode())
    for _, piece in sample(tokens):
        hashed.update(np.ascontiguousarray(piece).tobytes())
    return hashed.hexdigest()
