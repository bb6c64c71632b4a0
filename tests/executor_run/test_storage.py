"""Storage bytes and their peak, against sums done by hand. float32 is 4 bytes."""

import gc

import pytest
import torch

from executor.storage import StorageTracker, resident_bytes, storage_bytes, track_peak

CPU = torch.device("cpu")


def test_views_share_their_storage() -> None:
    whole = torch.zeros(10, 10)
    assert storage_bytes([whole, whole[3:], whole.t(), None]) == 400
    assert storage_bytes([whole, whole.clone()]) == 800


def test_a_view_alone_holds_the_whole_storage() -> None:
    assert storage_bytes([torch.zeros(100)[:1]]) == 400


def test_meta_tensors_hold_nothing() -> None:
    assert storage_bytes([torch.zeros(100, device="meta")]) == 0


def test_the_peak_of_a_chain_is_two_tensors() -> None:
    """x -> x + 1 -> (x + 1) * 2: the input is alive throughout, the first result dies after the second is made."""
    x = torch.zeros(1000)
    with StorageTracker(CPU) as tracker:
        before = tracker.live_bytes
        y = x + 1
        y = y * 2
        assert tracker.live_bytes - before == 4000
    assert tracker.peak_bytes - before == 8000
    assert y.shape == (1000,)


def test_what_was_alive_before_counts_and_may_die() -> None:
    gc.collect()
    with StorageTracker(CPU) as empty:
        base = empty.live_bytes
    x = torch.zeros(1000)
    with StorageTracker(CPU) as tracker:
        assert tracker.live_bytes - base == 4000
        del x
        assert tracker.live_bytes == base
    assert tracker.peak_bytes - base == 4000


def test_a_view_keeps_its_storage_alive() -> None:
    with StorageTracker(CPU) as tracker:
        before = tracker.live_bytes
        x = torch.zeros(1000)
        tail = x[-1:]
        del x
        assert tracker.live_bytes - before == 4000
        del tail
        assert tracker.live_bytes == before


def test_storages_that_are_resized_in_place_are_followed() -> None:
    """FSDP2 frees and refills its gathered parameters this way."""
    with StorageTracker(CPU) as tracker:
        before = tracker.live_bytes
        x = torch.zeros(1000)
        x.untyped_storage().resize_(0)
        assert tracker.live_bytes == before
        x.untyped_storage().resize_(8000)
        assert tracker.live_bytes - before == 8000
    assert tracker.peak_bytes - before == 8000
    x.untyped_storage().resize_(0)
    assert tracker.live_bytes - before == 8000  # no longer followed


@pytest.mark.parametrize(
    ("layers", "width", "rows", "peak"),
    [
        # Wide layers, few rows: in the product of the first layer's backward all weight gradients are there, and the
        # gradient that enters the product.
        (3, 64, 4, 4 * (3 * 64**2 + 4 * 64)),
        # Narrow layers, many rows: in the product of the last layer's backward the relus below are saved, one
        # gradient enters, one leaves, and the first weight gradient is made.
        (3, 8, 256, 4 * ((2 + 1 + 1) * 256 * 8 + 8**2)),
    ],
)
def test_the_peak_of_a_training_step(layers: int, width: int, rows: int, peak: int) -> None:
    """Layers x -> relu(x W) of one width, loss the sum; above what is there before. Loss and its gradient: 4 bytes each."""
    weights = [torch.randn(width, width, requires_grad=True) for _ in range(layers)]
    inputs = torch.randn(rows, width)

    def step() -> None:
        x = inputs
        for weight in weights:
            x = torch.relu(x @ weight)
        loss = x.sum()
        del x
        loss.backward()

    step()
    for weight in weights:
        weight.grad = None
    with track_peak(CPU) as tracker:
        before = tracker.live_bytes
        step()
    assert tracker.live_bytes - before == 4 * layers * width**2  # the gradients stay
    assert tracker.peak_bytes - before == peak + 4 + 4


def test_a_failing_step_leaves_no_patch_behind() -> None:
    original = torch.UntypedStorage.resize_
    with pytest.raises(ZeroDivisionError), StorageTracker(CPU):
        raise ZeroDivisionError
    assert torch.UntypedStorage.resize_ is original


def test_the_resident_set_is_larger_than_a_tensor_it_holds() -> None:
    block = torch.ones(25_000_000)  # 100 MB, every page touched
    resident = resident_bytes()
    assert resident is not None
    assert resident > storage_bytes([block])
