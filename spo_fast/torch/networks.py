"""Modulation and trajectories of tensors, differentiable once.

Tensors are float32 or float64 and on the CPU. The work is done in float64 whatever they are; results have the
wider of their types, and each gradient that of its tensor.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from spo_fast import derivatives, kuramoto, modulation
from spo_fast.torch.boundary import once, opaque, require
from spo_fast.validation import describe, is_sparse

_ADVICE = "there is no other implementation"
_PROJECTIONS = ("w_q", "w_k", "w_v", "w_o")


def modulate(
    knm: Tensor,
    theta: Tensor,
    w_q: Tensor | None = None,
    w_k: Tensor | None = None,
    w_v: Tensor | None = None,
    w_o: Tensor | None = None,
    *,
    n_heads: int = 4,
    block_size: int | None = None,
    temperature: Tensor | float = 1.0,
    lambda_: Tensor | float = 0.5,
    projection_seed: int = 0,
    backend: str | None = None,
) -> Tensor:
    """Modulate a coupling by the phases it couples; see `spo_fast.modulate`.

    Parameters
    ----------
    knm : Tensor, shape (N, N)
        Coupling, symmetric and with a zero diagonal within 1e-12.
    theta : Tensor, shape (N,), radians
        Phases.
    w_q, w_k, w_v : Tensor, shape (H, d, d/H), optional
        Projections; those not given are drawn, and constant.
    w_o : Tensor, shape (d, d), optional
        Output projection.
    n_heads, block_size, projection_seed
        As for `spo_fast.modulate`.
    temperature : float or Tensor, shape () or (H,)
        Softmax temperature, positive.
    lambda_ : float or Tensor, shape ()
        Modulation strength, at least 0.
    backend : {"auto", "cython", "numba", "numpy"}, optional
        The fastest available by default.

    Returns
    -------
    Tensor, shape (N, N)
        Modulated coupling.

    Raises
    ------
    ValueError
        As `spo_fast.modulate`, and for tensors of another type or device.
    RuntimeError
        For second derivatives, and inside `torch.func` transforms.

    Notes
    -----
    The entries of K count as independent of each other, and its zeros do not move, see
    `spo_fast.modulate_vjp`: symmetrise where K is a parameter. Forward as `spo_fast.modulate`, back pair by
    pair: some four times the O(N^2 (d + H exp)) of the direct algorithm. On `torch.get_num_threads()`
    threads.
    """
    settings = {"n_heads": n_heads, "block_size": block_size, "projection_seed": projection_seed}
    given = (knm, theta, w_q, w_k, w_v, w_o, temperature, lambda_)
    return _modulate(given, settings | {"backend": backend})


def simulate(
    theta: Tensor,
    omega: Tensor | float,
    knm: Tensor,
    *,
    dt: float,
    n_steps: int,
    method: str = "rk4",
    alpha: Tensor | float | None = None,
    zeta: Tensor | float = 0.0,
    psi: Tensor | float = 0.0,
    modulation: dict[str, Any] | None = None,
    modulate_every: int = 1,
    record_every: int | None = None,
    checkpoint_every: int | None = None,
    backend: str | None = None,
) -> Tensor:
    """Follow a network from `theta` for `n_steps` steps of fixed size; see `spo_fast.simulate`.

    Parameters
    ----------
    theta : Tensor, shape (N,), radians
        Initial phases.
    omega : float or Tensor, shape () or (N,), rad per time unit
        Natural frequencies.
    knm : Tensor, shape (N, N), rad per time unit
        Coupling.
    dt, n_steps, modulate_every
        As for `spo_fast.simulate`.
    method : {"rk4", "euler"}
        One of the methods with fixed steps.
    alpha : None, float or Tensor, shape () or (N, N), radians
        Phase lag.
    zeta, psi : float or Tensor, shape ()
        Strength and phase of the drive.
    modulation : dict, optional
        Keywords of `spo_fast.Modulator`, of which ``w_q``, ``w_k``, ``w_v``, ``w_o``, ``temperature`` and
        ``lambda_`` may be tensors.
    record_every : int, optional
        Return the states at steps 0, k, 2k, ... and the last.
    checkpoint_every : int, optional
        As for `spo_fast.simulate_vjp`.
    backend : {"auto", "cython", "numba", "numpy"}, optional
        The fastest available by default.

    Returns
    -------
    Tensor, shape (N,) or, with `record_every`, (samples, N), radians
        The last state, or those that are stored, wrapped to [0, 2 pi); wrapping has derivative 1.

    Raises
    ------
    ValueError
        As `spo_fast.simulate` and `spo_fast.simulate_vjp`, and for tensors of another type or device.
    SimulationError
        If the state turns non-finite.
    RuntimeError
        For second derivatives, and inside `torch.func` transforms.

    Notes
    -----
    Nothing but the arguments is kept for the way back, which follows the trajectory again: three to
    four times the cost of the run, with modulation some ten times, see `spo_fast.simulate_vjp`.
    """
    if method == "rk45":
        raise ValueError("method must be 'euler' or 'rk4' for derivatives, got 'rk45'")
    if modulation is not None and not isinstance(modulation, dict):
        raise ValueError(
            f"modulation must be None or a dict, got an object of type {type(modulation).__name__}"
        )
    settings = {
        "dt": dt,
        "n_steps": n_steps,
        "method": method,
        "modulate_every": modulate_every,
        "record_every": record_every,
        "backend": backend,
    }
    return _simulate((theta, omega, knm, alpha, zeta, psi), modulation, settings, checkpoint_every)


# ---------------------------------------------------------------- tensors and arrays


def _checked(given: dict[str, Any]) -> torch.dtype:
    """Refuse what cannot be taken; return the type of the result."""
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    require(_ADVICE, **tensors)
    for name, tensor in tensors.items():
        if tensor.dtype == torch.bool or tensor.layout != torch.strided:
            raise ValueError(
                f"{name} must be a dense tensor of float32 or float64, got {tensor.dtype}, {tensor.layout}"
            )
    wide = not tensors or any(tensor.dtype == torch.float64 for tensor in tensors.values())
    return torch.float64 if wide else torch.float32


def _plain(value: Any) -> Any:
    """A tensor's numbers as a float64 array, or as a number where it is one; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    array = value.detach().numpy().astype(np.float64, copy=False)
    return float(array) if array.ndim == 0 else array


def _handed_over(
    ctx: Any, values: tuple[Any, ...], gradients: tuple[Any, ...], first: int
) -> tuple[Tensor | None, ...]:
    """Gradients in the types of their tensors, for those that want one; arguments begin at place `first`."""
    wanted = ctx.needs_input_grad[first:]
    return tuple(
        torch.as_tensor(gradient, dtype=value.dtype).reshape(value.shape) if wants else None
        for value, gradient, wants in zip(values, gradients, wanted, strict=True)
    )


def _save(ctx: Any, values: tuple[Any, ...]) -> None:
    """Keep tensors through the context, for its check that nobody writes to them, and copies of the rest."""
    ctx.rest = [None if isinstance(value, Tensor) else copy.deepcopy(value) for value in values]
    ctx.save_for_backward(*(value if isinstance(value, Tensor) else None for value in values))


def _saved(ctx: Any) -> tuple[Any, ...]:
    pairs = zip(ctx.saved_tensors, ctx.rest, strict=True)
    return tuple(rest if tensor is None else tensor for tensor, rest in pairs)


class _Modulate(Function):
    """`spo_fast.modulate` and `spo_fast.modulate_vjp`."""

    @staticmethod
    def forward(ctx: Any, settings: dict[str, Any], dtype: torch.dtype, *values: Any) -> Tensor:
        _save(ctx, values)
        ctx.settings = settings | {"workers": torch.get_num_threads()}
        *arrays, temperature, lambda_ = map(_plain, values)
        out = modulation.modulate(*arrays, temperature=temperature, lambda_=lambda_, **ctx.settings)
        return torch.from_numpy(out).to(dtype)

    @staticmethod
    @once(_ADVICE)
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        values = _saved(ctx)
        knm, theta, *weights, temperature, lambda_ = map(_plain, values)
        found = derivatives.modulate_vjp(
            knm,
            theta,
            _plain(grad_out.contiguous()),
            *weights,
            temperature=temperature,
            lambda_=lambda_,
            **ctx.settings,
        )
        gradients = tuple(getattr(found, name) for name in found.__slots__)
        return None, None, *_handed_over(ctx, values, gradients, 2)


class _Simulate(Function):
    """`spo_fast.simulate` and `spo_fast.simulate_vjp`."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: dict[str, Any],
        checkpoint_every: int | None,
        names: tuple[str, ...],
        others: dict[str, Any] | None,
        dtype: torch.dtype,
        *values: Any,
    ) -> Tensor:
        _save(ctx, values)
        ctx.settings, ctx.names, ctx.others = settings, names, copy.deepcopy(others)
        ctx.checkpoint_every = checkpoint_every
        given = _arguments(values, names, others)
        run = kuramoto.simulate(**given, **settings, observe=(), workers=torch.get_num_threads())
        return torch.from_numpy(run.final if settings["record_every"] is None else run.theta).to(dtype)

    @staticmethod
    @once(_ADVICE)
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        values = _saved(ctx)
        found = derivatives.simulate_vjp(
            **_arguments(values, ctx.names, ctx.others),
            grad_out=_plain(grad_out.contiguous()),
            **ctx.settings,
            checkpoint_every=ctx.checkpoint_every,
            workers=torch.get_num_threads(),
        )
        gradients = tuple(getattr(found, name) for name in (*_RUN, *ctx.names))
        return *(None,) * 5, *_handed_over(ctx, values, gradients, 5)


_RUN = ("theta", "omega", "knm", "alpha", "zeta", "psi")


def _arguments(
    values: tuple[Any, ...], names: tuple[str, ...], others: dict[str, Any] | None
) -> dict[str, Any]:
    """Arguments of `spo_fast.simulate` that may be tensors, by name, as arrays."""
    arrays = [_plain(value) for value in values]
    given = dict(zip(_RUN, arrays, strict=False))
    inner = dict(zip(names, arrays[len(_RUN) :], strict=True))
    return given | {"modulation": None if others is None else others | inner}


# ---------------------------------------------------------------- the way to the kernels


@opaque
def _modulate(given: tuple[Any, ...], settings: dict[str, Any]) -> Tensor:
    names = ("knm", "theta", *_PROJECTIONS, "temperature", "lambda_")
    if is_sparse(given[0]):
        raise ValueError(f"knm must be dense, since the result is a tensor, got {describe(given[0])}")
    dtype = _checked(dict(zip(names, given, strict=True)))
    return _Modulate.apply(settings, dtype, *given)


@opaque
def _simulate(
    given: tuple[Any, ...],
    modulation: dict[str, Any] | None,
    settings: dict[str, Any],
    checkpoint_every: int | None,
) -> Tensor:
    inner = {k: v for k, v in (modulation or {}).items() if isinstance(v, Tensor)}
    others = None if modulation is None else {k: v for k, v in modulation.items() if k not in inner}
    unknown = set(inner) - {*_PROJECTIONS, "temperature", "lambda_"}
    if unknown:
        raise ValueError(f"modulation[{min(unknown)!r}] must not be a tensor")
    dtype = _checked(dict(zip(_RUN, given, strict=True)) | inner)
    shape = np.shape(_plain(given[0]))
    if len(shape) != 1:
        raise ValueError(f"theta must have shape (N,) for derivatives, got {shape}")
    return _Simulate.apply(settings, checkpoint_every, tuple(inner), others, dtype, *given, *inner.values())
