"""Batches: every token once a pass, the same samples under every plan."""

import numpy as np
import pytest

from costmodel.specs import InputError
from executor import data
from executor.data import GlobalBatches, check_sample, digest, sample

TOKENS = np.arange(1001, dtype=np.int64)  # token i is i, so a sequence shows where it was cut


def test_a_sequence_is_consecutive_and_overlaps_its_successor_by_the_predicted_token() -> None:
    batches = GlobalBatches(TOKENS, sequence_length=10, global_batch_size=4, seed=0)
    assert batches.num_sequences == 100
    batch = batches.batch(0).numpy()
    assert batch.shape == (4, 11)
    assert (np.diff(batch, axis=1) == 1).all()
    assert (batch[:, 0] % 10 == 0).all()


def test_a_pass_predicts_every_token_exactly_once() -> None:
    batches = GlobalBatches(TOKENS, sequence_length=10, global_batch_size=4, seed=3)
    targets = np.concatenate([batches.batch(number).numpy()[:, 1:].ravel() for number in range(25)])
    assert sorted(targets) == list(range(1, 1001))


def test_the_next_pass_has_another_order() -> None:
    batches = GlobalBatches(TOKENS, sequence_length=10, global_batch_size=4, seed=3)
    assert batches.num_batches_per_pass == 25
    first, second = batches.batch(0).numpy(), batches.batch(25).numpy()
    assert not (first == second).all()


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_the_slices_of_all_ranks_are_the_global_batch(size: int) -> None:
    batches = GlobalBatches(TOKENS, sequence_length=7, global_batch_size=8, seed=5)
    for number in (0, 1, 40):
        whole = batches.batch(number).numpy()
        parts = [batches.batch(number, rank=rank, size=size).numpy() for rank in range(size)]
        assert all(part.shape == (8 // size, 8) for part in parts)
        assert (np.concatenate(parts) == whole).all()


def test_batches_depend_on_the_seed_and_nothing_else() -> None:
    def draw(seed: int) -> np.ndarray:
        return GlobalBatches(TOKENS, sequence_length=10, global_batch_size=4, seed=seed).batch(7).numpy()

    assert (draw(1) == draw(1)).all()
    assert not (draw(1) == draw(2)).all()


def test_what_does_not_fill_a_batch_is_left_out() -> None:
    batches = GlobalBatches(TOKENS[:80], sequence_length=10, global_batch_size=4, seed=0)
    assert (batches.num_sequences, batches.num_batches_per_pass) == (7, 1)


@pytest.mark.parametrize("num_tokens", [0, 1, 40])
def test_too_short_a_text_is_refused_with_the_numbers(num_tokens: int) -> None:
    with pytest.raises(InputError, match=rf"hold {num_tokens} tokens .* needs 4 sequences = 41 tokens"):
        GlobalBatches(TOKENS[:num_tokens], sequence_length=10, global_batch_size=4, seed=0)
    GlobalBatches(TOKENS[:41], sequence_length=10, global_batch_size=4, seed=0)


def test_ranks_must_divide_the_batch() -> None:
    batches = GlobalBatches(TOKENS, sequence_length=10, global_batch_size=4, seed=0)
    with pytest.raises(ValueError, match="4 sequences on 3"):
        batches.batch(0, rank=0, size=3)


def test_an_id_outside_the_vocabulary_is_named_with_its_position() -> None:
    """In the batch that holds it: a file of many gigabytes is not read before training."""
    tokens = TOKENS % 50
    tokens[123] = 50
    batches = GlobalBatches(tokens, sequence_length=10, global_batch_size=4, seed=0, vocab_size=50)
    seen = []
    for number in range(25):
        try:
            batches.batch(number)
        except InputError as error:
            seen.append(str(error))
    assert len(seen) == 1  # sequence 12 of one pass
    assert "token id 50 at position 123, but the model's vocab_size is 50" in seen[0]
    with pytest.raises(InputError, match="token id -1 at position 7"):
        check_sample(np.asarray([*range(7), -1, -2]), 50)


def test_long_data_are_sampled_at_both_ends_and_between(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(start, len(piece)) for start, piece in sample(TOKENS)] == [(0, 1001)]
    monkeypatch.setattr(data, "_READ_WHOLE", 100)
    monkeypatch.setattr(data, "_NUM_PIECES", 3)
    monkeypatch.setattr(data, "_PIECE_LENGTH", 11)
    pieces = list(sample(TOKENS))
    assert [start for start, _ in pieces] == [0, 495, 990]
    assert all((piece == np.arange(start, start + 11)).all() for start, piece in pieces)


def test_the_digest_tells_lengths_and_samples_apart() -> None:
    changed = TOKENS.copy()
    changed[500] += 1
    digests = {digest(tokens) for tokens in (TOKENS, TOKENS[:-1], changed, TOKENS.astype(np.int32))}
    assert len(digests) == 4
    assert digest(TOKENS.copy()) == digest(TOKENS)
