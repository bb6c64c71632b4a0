"""What a stage of a pipeline returns can be detached in place, as torch's split backward does, and costs no memory."""

from __future__ import annotations

import pytest
import torch

from executor.pipeline import without_view


def test_a_view_becomes_a_tensor_that_can_be_detached() -> None:
    weight = torch.arange(6.0, requires_grad=True)
    view = (weight * weight).view(2, 3)
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        view.detach_()
    output = without_view(view)
    assert output.data_ptr() == view.data_ptr()
    (output * torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).sum().backward()
    output.detach_()
    assert weight.grad is not None
    assert weight.grad.tolist() == [0.0, 4.0, 12.0, 24.0, 40.0, 60.0]
