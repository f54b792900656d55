"""Where tensors go over to the package's kernels and gradients come back."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

IMPLEMENTATIONS = ("kernel", "eager")
ADVICE = "implementation='eager' can do it"
opaque = torch.compiler.disable(reason="kernels of spo_fast cannot be traced: a graph ends before them")


def wants_eager(implementation: str | None) -> bool:
    """Whether PyTorch's own operations are asked for; None means the kernel."""
    if implementation not in (None, *IMPLEMENTATIONS):
        listed = ", ".join(IMPLEMENTATIONS)
        raise ValueError(f"implementation must be one of {listed}, got {implementation!r}")
    return implementation == "eager"


def require(advice: str = ADVICE, /, **tensors: Tensor | None) -> None:
    """Refuse what the kernels cannot take, with advice what to do instead."""
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(f"the kernel does not work inside torch.func transforms such as vmap: {advice}")
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.device.type != "cpu":
            raise ValueError(f"{name} must be on the CPU for the kernel, got {tensor.device}: {advice}")
        if tensor.dtype not in (torch.float32, torch.float64, torch.bool):
            raise ValueError(
                f"{name} must be float32 or float64 for the kernel, got {tensor.dtype}: {advice}"
            )


def view(tensor: Tensor | None) -> np.ndarray | None:
    """Look at a tensor's memory as an array, whatever its strides."""
    return None if tensor is None else tensor.detach().numpy()


def gradients(ctx: Any, arrays: tuple[np.ndarray | None, ...]) -> tuple[Tensor | None, ...]:
    """Hand gradients over for the inputs that want one."""
    wanted = ctx.needs_input_grad
    return tuple(
        torch.from_numpy(array) if array is not None and wanted[i] else None for i, array in enumerate(arrays)
    )


_Backward = Callable[..., tuple[Tensor | None, ...]]


def once(advice: str = ADVICE) -> Callable[[_Backward], _Backward]:
    """Refuse to be part of a graph of the gradients.

    PyTorch's `once_differentiable` hands gradients over as constants when only saved tensors, not the
    incoming gradient, depend on what is differentiated a second time: that would be silently wrong.
    """

    def refusing(backward: _Backward) -> _Backward:
        @wraps(backward)
        def checked(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
            if torch.is_grad_enabled():
                raise RuntimeError(f"the kernel has no second derivatives (create_graph=True): {advice}")
            return backward(ctx, *gradients)

        return checked

    return refusing
