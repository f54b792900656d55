"""Public functions in compiled code of one's own: what Numba takes for them in nopython mode.

Numba finds `init` by the entry point ``numba_extensions`` and calls it before it compiles or loads its first
function, so that ``spo_fast`` itself need not import Numba. Arguments and results are those of the Python
functions, as far as types tell them when the caller is compiled:

* arrays are NumPy arrays of real numbers, of any layout; what is not float64 in C order is copied;
* what is drawn is drawn at compile time: without projections, `n_heads` and `projection_seed` are constants;
* the coupling is dense, the work stays on the calling thread and goes pair by pair, by the Numba kernels.

What types tell is refused with a TypingError when the caller is compiled, the rest with a ValueError when it
runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import overload, register_jitable

from spo_fast import modulation, observables

_VARIABLE = object()  # stands for what is known only when the caller runs
_ALGORITHMS = ("auto", "direct", "band")


def init() -> None:
    """Make the public functions known to Numba; this module's import did, so that more calls do nothing."""


# ---------------------------------------------------------------- what the types tell


def _constant(given: Any) -> Any:
    """Value of an argument that the compiler knows: a default, a literal or None; else `_VARIABLE`."""
    if not isinstance(given, types.Type):
        return given
    if isinstance(given, types.Omitted):
        return given.value
    if isinstance(given, types.NoneType):
        return None
    return given.literal_value if isinstance(given, types.Literal) else _VARIABLE


def _told(given: Any) -> str:
    """An argument in the words of a message."""
    value = _constant(given)
    return str(given) if value is _VARIABLE else repr(value)


def _require_array(given: Any, name: str, *ndims: int) -> None:
    """Refuse all but arrays of real numbers with one of these numbers of dimensions."""
    real = isinstance(given, types.Array) and isinstance(given.dtype, types.Integer | types.Float)
    if not real or given.ndim not in ndims:
        dimensions = " or ".join(map(str, ndims))
        raise TypingError(
            f"{name} must be an array of real numbers of dimension {dimensions}, got {_told(given)}"
        )


def _require_number(given: Any, name: str, *kinds: type, optional: bool = False) -> None:
    """Refuse all but numbers of these kinds; a bool is none."""
    value = _constant(given)
    if value is _VARIABLE:
        inner = given.type if optional and isinstance(given, types.Optional) else given
        good = isinstance(inner, kinds) and not isinstance(inner, types.Boolean)
    else:
        python = (int, float) if types.Float in kinds else (int,)
        good = (optional and value is None) or (isinstance(value, python) and not isinstance(value, bool))
    if not good:
        wanted = "a number" if types.Float in kinds else "an integer"
        raise TypingError(f"{name} must be {wanted}{' or None' if optional else ''}, got {_told(given)}")


def _require_constant(given: Any, name: str, allowed: tuple[Any, ...]) -> None:
    """Refuse all but some constants."""
    if _constant(given) not in allowed:
        listed = ", ".join(map(repr, allowed))
        raise TypingError(f"{name} must be one of {listed} in compiled code, got {_told(given)}")


def _require_output(given: Any) -> None:
    """Refuse an output that could not be written to in place."""
    if _constant(given) is None:
        return
    good = isinstance(given, types.Array) and given.ndim == 2 and given.dtype == types.float64
    if not (good and given.layout == "C" and given.mutable and given.aligned):
        raise TypingError(f"out must be a writable float64 matrix in C order, got {_told(given)}")


# ---------------------------------------------------------------- arguments as the kernels take them


@register_jitable
def _same(array):
    return array


@register_jitable
def _converted(array):
    return np.ascontiguousarray(array.astype(np.float64))


def _as_kernels_take(given: types.Array) -> Callable[..., Any]:
    """What makes a float64 array in C order of an array."""
    plain = given.dtype == types.float64 and given.layout == "C" and given.aligned
    return _same if plain else _converted


@register_jitable
def _spread(temperature, n_heads):
    return np.full(n_heads, np.float64(temperature))


@register_jitable
def _each(temperature, n_heads):
    return temperature.astype(np.float64)


@register_jitable
def _reach(block_size):
    if block_size is None:
        return np.int64(-1)
    return np.int64(block_size + 0)  # the sum is a number where the size may be None


@register_jitable
def _as_rows(theta):
    return theta.reshape(1, theta.size)


@register_jitable
def _first_of(pair):
    return pair[0][0], pair[1][0]


def _temperatures(given: Any) -> Callable[..., Any]:
    """What makes an array (H,) of a temperature."""
    if isinstance(given, types.Array):
        _require_array(given, "temperature", 1)
        return _each
    _require_number(given, "temperature", types.Integer, types.Float)
    return _spread


def _drawn(n_heads: Any, seed: Any, d_model: Any, names: tuple[str, ...]) -> Callable[..., Any]:
    """What gives the default projections of numbers that must be constants, named in this order."""
    numbers = [_constant(given) for given in (n_heads, seed, d_model)]
    for name, number, given in zip(names, numbers, (n_heads, seed, d_model), strict=True):
        if number is _VARIABLE:
            raise TypingError(
                f"{name} must be a constant in compiled code, where projections are drawn at compile time; "
                f"or give all four, from spo_fast.default_projections, got {_told(given)}"
            )
    try:
        w_q, w_k, w_v, w_o = modulation.default_projections(*numbers)
    except ValueError as error:
        raise TypingError(str(error)) from error

    @register_jitable
    def drawn(*unused):
        return w_q.copy(), w_k.copy(), w_v.copy(), w_o.copy()

    return drawn


def _given_projections(given: tuple[Any, ...]) -> Callable[..., Any]:
    """What makes the kernels' projections of the caller's."""
    for weights, name, ndim in zip(given, ("w_q", "w_k", "w_v", "w_o"), (3, 3, 3, 2), strict=True):
        if _constant(weights) is None:
            raise TypingError(f"{name} must be given in compiled code where one of the projections is")
        _require_array(weights, name, ndim)
    as_q, as_k, as_v, as_o = (_as_kernels_take(weights) for weights in given)

    @register_jitable
    def projections(w_q, w_k, w_v, w_o):
        return as_q(w_q), as_k(w_k), as_v(w_v), as_o(w_o)

    return projections


# ---------------------------------------------------------------- modulation


@overload(modulation.default_projections, prefer_literal=True)
def _default_projections(n_heads=4, seed=0, d_model=modulation.MODEL_WIDTH):
    drawn = _drawn(n_heads, seed, d_model, ("n_heads", "seed", "d_model"))

    def default_projections(n_heads=4, seed=0, d_model=modulation.MODEL_WIDTH):
        return drawn()

    return default_projections


@overload(modulation.modulate, prefer_literal=True)
def _modulate(
    knm, theta, w_q=None, w_k=None, w_v=None, w_o=None, n_heads=4, block_size=None, temperature=1.0,
    lambda_=0.5, projection_seed=0, out=None, algorithm="auto", backend=None, workers=1,
):  # fmt: skip
    from spo_fast.kernels import embedded

    _require_array(knm, "knm", 2)
    _require_array(theta, "theta", 1)
    for given, name in ((n_heads, "n_heads"), (projection_seed, "projection_seed"), (workers, "workers")):
        _require_number(given, name, types.Integer)
    _require_number(block_size, "block_size", types.Integer, optional=True)
    _require_number(lambda_, "lambda_", types.Integer, types.Float)
    _require_output(out)
    _require_constant(algorithm, "algorithm", _ALGORITHMS)
    _require_constant(backend, "backend", (None, "auto", "numba"))
    if _constant(algorithm) == "band" and _constant(block_size) is None:
        raise TypingError("algorithm 'band' needs a block_size, got block_size None")
    given_weights = (w_q, w_k, w_v, w_o)
    if all(_constant(weights) is None for weights in given_weights):
        names = ("n_heads", "projection_seed", "d_model")
        projections = _drawn(n_heads, projection_seed, modulation.MODEL_WIDTH, names)
    else:
        projections = _given_projections(given_weights)
    temperatures = _temperatures(temperature)
    as_knm, as_theta = _as_kernels_take(knm), _as_kernels_take(theta)

    def modulate(
        knm, theta, w_q=None, w_k=None, w_v=None, w_o=None, n_heads=4, block_size=None, temperature=1.0,
        lambda_=0.5, projection_seed=0, out=None, algorithm="auto", backend=None, workers=1,
    ):  # fmt: skip
        reach = _reach(block_size)
        if block_size is not None:
            embedded.check_block_size(reach)
        heads, strength = np.int64(n_heads), np.float64(lambda_)
        embedded.check_numbers(heads, strength, np.int64(projection_seed), np.int64(workers))
        q, k, v, o = projections(w_q, w_k, w_v, w_o)
        embedded.check_projections(q, k, v, o, heads)
        tau = temperatures(temperature, heads)
        embedded.check_temperature(tau, heads)
        embedded.check_range(q, k, v, o, tau)
        coupling, phases = as_knm(knm), as_theta(theta)
        if out is None:
            result = np.empty(coupling.shape)
        else:
            result = out
            embedded.check_apart(knm, out)
        embedded.check_shapes(phases, coupling, result)
        embedded.modulate_checked(coupling, phases, q, k, v, o, reach, tau, strength, result)
        return result

    return modulate


# ---------------------------------------------------------------- observables


@overload(observables.order_parameter, prefer_literal=True)
def _order_parameter(theta, backend=None):
    from spo_fast.kernels import embedded

    _require_array(theta, "theta", 1, 2)
    _require_constant(backend, "backend", (None, "auto", "numba"))
    as_theta = _as_kernels_take(theta)

    def of_state(theta, backend=None):
        return _first_of(embedded.order_parameters(_as_rows(as_theta(theta))))

    def of_trajectory(theta, backend=None):
        return embedded.order_parameters(as_theta(theta))

    return of_state if theta.ndim == 1 else of_trajectory


@overload(observables.layer_coherence, prefer_literal=True)
def _layer_coherence(theta, layer, backend=None):
    from spo_fast.kernels import embedded

    _require_array(theta, "theta", 1, 2)
    _require_constant(backend, "backend", (None, "auto", "numba"))
    kinds = types.Boolean | types.Integer
    if not (isinstance(layer, types.Array) and layer.ndim == 1 and isinstance(layer.dtype, kinds)):
        raise TypingError(f"layer must be an array, a boolean mask or integer indices, got {_told(layer)}")
    masked = isinstance(layer.dtype, types.Boolean)
    members = embedded.members_of_mask if masked else embedded.members_of_indices
    as_theta = _as_kernels_take(theta)

    def of_state(theta, layer, backend=None):
        return embedded.coherence(_as_rows(as_theta(theta)), members(layer, theta.shape[0]))[0]

    def of_trajectory(theta, layer, backend=None):
        return embedded.coherence(as_theta(theta), members(layer, theta.shape[1]))

    return of_state if theta.ndim == 1 else of_trajectory


@overload(observables.plv)
def _plv(a, b):
    from spo_fast.kernels import embedded

    _require_array(a, "a", 1, 2)
    _require_array(b, "b", a.ndim)
    as_a, as_b = _as_kernels_take(a), _as_kernels_take(b)

    def of_series(a, b):
        return embedded.locking(as_a(a).reshape(a.size, 1), as_b(b).reshape(b.size, 1))[0]

    def of_trajectories(a, b):
        return embedded.locking(as_a(a), as_b(b))

    return of_series if a.ndim == 1 else of_trajectories
