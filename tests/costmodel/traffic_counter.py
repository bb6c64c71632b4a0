"""What the operations of one layer of a real `transformers` model read and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from memory_worlds import make_plan
from saved_tensors import BATCH, SEQUENCE

from costmodel.models.loader import build_model

_PRODUCTS = ("mm", "addmm", "bmm", "_scaled_dot_product_flash_attention")
_NOTHING_MOVED = ("detach", "empty", "empty_like")


@dataclass
class Traffic:
    """Operations, views included, and the elements that all but products and attention read and write."""

    operations: int = 0
    elements: int = 0

    def add(self, name: str, inputs: list[Any], outputs: list[Any]) -> None:
        """Count one operation; a view of its input moves nothing."""
        self.operations += 1
        storages = {tensor.untyped_storage()._cdata for tensor in inputs}
        is_view = bool(outputs) and all(tensor.untyped_storage()._cdata in storages for tensor in outputs)
        if name.startswith(_PRODUCTS) or name in _NOTHING_MOVED or (is_view and not name.endswith("_")):
            return
        self.elements += sum(tensor.numel() for tensor in (*inputs, *outputs))


def count_layer(config: dict[str, Any]) -> tuple[Traffic, Traffic]:
    """Forward and backward of the second layer in fp32."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    from executor.hf_models import Stage

    class Counter(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.traffic = Traffic()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = func._schema.name.split("::")[1]
            tensors = (
                [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
                for tree in ((args, kwargs), result)
            )
            self.traffic.add(name, *tensors)
            return result

    plan = make_plan(build_model(config, name="model"), precision="fp32", sequence=SEQUENCE, micro_batch_size=BATCH)
    stage = Stage(plan, plan.stages[0])
    stage.materialise(torch.device("cpu"))
    hidden = torch.randn(BATCH, SEQUENCE, plan.model.hidden_size, requires_grad=True)
    positions, mask = stage._position_arguments(hidden), stage._mask(stage.windows[1], hidden.device)
    with Counter() as forward:
        output = stage.layers["1"](hidden, attention_mask=mask, **positions)
    gradient = torch.ones_like(output)
    with Counter() as backward:
        output.backward(gradient)
    return forward.traffic, backward.traffic
