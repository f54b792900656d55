"""Every public object outlives pickle, copy.deepcopy and the way into a worker that was started from nothing.

Functions and classes arrive as themselves; of objects, what they do afterwards is compared bit for bit.
"""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
import types
from importlib.util import find_spec

import numpy as np
import pytest
from samples import network, phases, same_bits, symmetric

import spo_fast

WAYS = {"pickle": lambda thing: pickle.loads(pickle.dumps(thing)), "deepcopy": copy.deepcopy}
NEED_TORCH = ("spo_fast.torch", "spo_fast.experiments")


def modules():
    """Names of all modules of the package that can be loaded here."""
    names = [module.name for module in pkgutil.walk_packages(spo_fast.__path__, "spo_fast.")]
    left_out = (*(() if find_spec("torch") else NEED_TORCH), "spo_fast._core")
    return ["spo_fast", *(name for name in names if not name.startswith(left_out))]


def public(name):
    """The public functions and classes that a module defines, kernels among them, by name."""
    module = importlib.import_module(name)
    return {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_")
        and callable(value)
        and not isinstance(value, types.ModuleType)
        and getattr(value, "__module__", None) == name
    }


@pytest.mark.parametrize("name", modules())
def test_functions_and_classes_remain_what_they_are(name):
    for key, value in public(name).items():
        for way in WAYS.values():
            assert way(value) is value, key


# ---------------------------------------------------------------- objects, and what each of them does


def draw():
    rng = np.random.default_rng(7)
    theta, omega, knm, alpha = network(rng, 6)
    return rng, theta, omega, knm, alpha, symmetric(rng, 6, 0.8)


def sparse_array():
    return pytest.importorskip("scipy.sparse").csr_array(draw()[5])


def modulators():
    for options in ({}, {"algorithm": "moments"}, {"block_size": 2}):
        for backend in ("numpy", "numba", "cython"):
            if spo_fast.backends()[backend] == "available" and not (options and backend == "numpy"):
                yield spo_fast.Modulator(draw()[5], backend=backend, **options)


def engines():
    from spo_fast import compat

    _, theta, omega, knm, _, _ = draw()
    for build in (spo_fast.Engine, compat.UPDEEngine):
        engine = build(6, 0.05, "rk45")
        engine.step(theta, omega, knm)  # the step size is part of what it holds
        yield engine


def simulations():
    _, theta, omega, knm, _, _ = draw()
    keywords = {"dt": 0.05, "n_steps": 4, "observe": ("R", "psi"), "record_every": 2}
    yield spo_fast.simulate(theta, omega, knm, **keywords)
    yield spo_fast.simulate(np.array([theta, theta + 1.0]), omega, knm, **keywords)


def errors():
    from spo_fast.backends.libraries import Unavailable

    yield spo_fast.SimulationError("the state is lost", next(simulations()))
    yield Unavailable("nothing to load")


def failed_sweeps():
    xarray = pytest.importorskip("xarray")
    results = xarray.Dataset({"result": ("x", [1.0, np.nan])}, {"x": [0.5, 1.5]})
    yield spo_fast.SweepError("one run failed", results, [({"x": 1.5}, ValueError("no such network"))])


def gradients():
    _, theta, omega, knm, alpha, even = draw()
    yield spo_fast.modulate_vjp(even, theta, np.ones((6, 6)))
    yield spo_fast.simulate_vjp(theta, omega, knm, np.ones(6), dt=0.1, n_steps=3, alpha=alpha)
    yield spo_fast.simulate_vjp(theta, 1.0, sparse_array(), np.ones(6), dt=0.1, n_steps=2, modulation={})


def attention_states():
    from spo_fast import attention, context_pulse

    rng = np.random.default_rng(3)
    c, s, v = rng.normal(size=(3, 1, 5, 2, 3))
    weight, alpha = rng.normal(size=(2, 2, 3))
    for keep in ("all", "sqrt"):
        yield attention.phase_attention(
            c, s, v, weight, alpha, np.ones(2), np.zeros(3), steps=3, dt=0.5, keep=keep
        )[1]
    q, k, values = rng.normal(size=(3, 1, 5, 1, 4))
    yield context_pulse.pulse_attention(q, k, values, variant="leaky")[1]


def streams():
    from spo_fast import streaming

    rng = np.random.default_rng(4)
    for variant in ("standard", "leaky", "chunked"):
        shapes = spo_fast.context_pulse.parameter_shapes(variant, 4, 2, 2)
        params = {name: 0.3 * rng.normal(size=shape) for name, shape in shapes.items()}
        heads = 1 if variant in ("standard", "leaky") else 2
        if heads == 1:
            params = {name: 0.3 * rng.normal(size=(4, 4)) for name in ("W_Q", "W_K", "W_V")}
        state = streaming.stream(params, variant=variant, n_heads=heads)
        streaming.step(state, rng.normal(size=(1, 4)))
        yield state


def networks():
    from spo_fast import datasets, validation

    _, _, omega, knm, alpha, _ = draw()
    yield datasets.scpn16_layers(2)
    yield validation.network(6, omega, knm, alpha, 0.1, 0.2)
    yield spo_fast.Modulator(knm * 0.0).parameters


def sparse_networks():
    from spo_fast import datasets, validation

    yield datasets.PowerGrid(sparse_array(), np.ones(6), 100.0)
    yield validation.as_sparse_coupling(sparse_array(), symmetric=True)
    yield spo_fast.Modulator(sparse_array())


def records():
    """Results and settings of the studies."""
    from spo_fast import ablation, bench, demo, physics, tableaux
    from spo_fast.kernels import daido

    yield physics.Setup("default", 16)
    yield from ablation.one_at_a_time()[:2]
    yield tableaux.DORMAND_PRINCE
    yield daido.series_of(*spo_fast.default_projections(), np.ones(4))
    yield demo.scpn16_comparison(3)
    yield bench.Timing(1.0, 2.0)


def torch_layers():
    torch = pytest.importorskip("torch")
    from spo_fast import torch as layers

    torch.manual_seed(0)
    yield layers.CausalSelfAttention(8, 2)
    yield layers.OscillatorAttention(8, 2)
    yield layers.StandardAttention(8)
    yield layers.ParsevalAttention(8)
    yield layers.LeakyContextPulse(8)
    yield layers.ChunkedContextPulse(8, 2)
    yield layers.AlpertContextPulse(8, 2)


def plans():
    from spo_fast.backends import registry

    even = draw()[5]
    for backend in ("numpy", "numba", "cython"):
        if spo_fast.backends()[backend] == "available":
            plan = registry.load(backend).ModulationPlan(spo_fast.Modulator(even).parameters)
            yield from (plan, plan.bind(even))


def use(thing):
    """Numbers that tell whether an object is as good as another one: arrays, or nothing where it has none."""
    from spo_fast import attention, context_pulse, streaming

    _, theta, omega, knm, _, even = draw()
    kind = type(thing).__name__
    if hasattr(thing, "state_dict"):
        import torch

        return thing(torch.linspace(-1.0, 1.0, 24).reshape(1, 3, 8)).detach().numpy()
    if kind in ("Engine", "UPDEEngine"):
        return np.concatenate([thing.step(theta, omega, knm), [thing.last_dt]])
    if kind == "PhaseState":
        return list(attention.phase_attention_vjp(thing, np.ones(thing.shape)).values())
    if kind == "PulseState":
        return list(context_pulse.pulse_attention_vjp(thing, np.ones((1, 5, 1, 4))).values())
    if kind == "PulseStream":
        return streaming.step(thing, np.linspace(-1.0, 1.0, 4)[None])
    if kind == "ModulationPlan":
        return thing(even, theta)
    if callable(thing):
        return thing(theta)
    return contents(thing)


def contents(thing):
    """What a result or a record holds, in an order."""
    if isinstance(thing, type):
        return thing
    if isinstance(thing, BaseException):
        held = [contents(getattr(thing, name, None)) for name in ("result", "dataset", "failures")]
        return [type(thing).__name__, str(thing), held]
    if hasattr(thing, "data_vars"):
        return [array.values for array in thing.variables.values()]
    if dataclasses.is_dataclass(thing):
        return [contents(getattr(thing, field.name)) for field in dataclasses.fields(thing)]
    if hasattr(thing, "toarray"):
        return thing.toarray()
    if isinstance(thing, list | tuple):
        return [contents(entry) for entry in thing]
    return thing


def alike(first, second):
    """Whether all of two results are equal, arrays to the last bit."""
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(alike, first, second))
    if hasattr(first, "toarray") and not isinstance(first, type):
        return alike(first.toarray(), second.toarray())
    if isinstance(first, np.ndarray):
        return isinstance(second, np.ndarray) and same_bits(first, second)
    return type(first) is type(second) and first == second


FAMILIES = (
    modulators, engines, simulations, errors, failed_sweeps, gradients, attention_states, streams, networks,
    sparse_networks, records, torch_layers, plans,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_objects_do_the_same_afterwards(family, way):
    for thing in family():
        other = WAYS[way](thing)
        assert other is not thing or dataclasses.is_dataclass(thing)
        assert alike(use(thing), use(other)), thing


def test_cloudpickle_takes_them_too():
    cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    for name in spo_fast.__all__:
        value = getattr(spo_fast, name)
        if not isinstance(value, types.ModuleType):
            assert pickle.loads(cloudpickle.dumps(value)) is value
    for family in (modulators, engines, simulations):
        for thing in family():
            other = pickle.loads(cloudpickle.dumps(thing))
            assert alike(use(thing), use(other))


def names_of(things):
    """In a worker: what functions and classes are called there."""
    return [f"{thing.__module__}.{getattr(thing, '__qualname__', thing.__name__)}" for thing in things]


def order_by(kernel, theta):
    """In a worker: call a kernel of Numba that came as an argument."""
    r, psi = np.empty(1), np.empty(1)
    return kernel(theta[None], r, psi), r[0]


def test_they_reach_workers_that_were_started_from_nothing():
    everything = [value for name in modules() for value in public(name).values()]
    kernel = importlib.import_module("spo_fast.kernels").order_parameter
    theta = phases(np.random.default_rng(1), 5)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(names_of, everything).result(timeout=300) == names_of(everything)
        status, r = pool.submit(order_by, kernel, theta).result(timeout=300)
        assert status == 0 and abs(r - spo_fast.order_parameter(theta)[0]) < 1e-15
        for family in FAMILIES:
            if family is torch_layers and not find_spec("torch"):
                continue
            things = list(family())
            sent = pickle.dumps(things)  # before they are used: engines and streams go on from where they are
            there = pool.submit(use_all, sent).result(timeout=300)
            assert alike([use(thing) for thing in things], there), family.__name__


def use_all(sent):
    """In a worker: what each of some pickled objects does."""
    return [use(thing) for thing in pickle.loads(sent)]


def test_all_classes_that_users_meet_are_here():
    families = [family for family in FAMILIES if find_spec("torch") or family is not torch_layers]
    made = {type(thing) for family in families for thing in family()}
    homes = ["spo_fast", "spo_fast.compat", "spo_fast.streaming", "spo_fast.datasets"]
    for home in [*homes, *(["spo_fast.torch"] if find_spec("torch") else [])]:
        module = importlib.import_module(home)
        for name in getattr(module, "__all__", dir(module)):
            value = getattr(module, name)
            offered = hasattr(module, "__all__") or getattr(value, "__module__", None) == home
            if inspect.isclass(value) and offered and not name.startswith("_"):
                assert value in made, value
