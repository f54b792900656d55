"""Modulation and trajectories of tensors: against PyTorch's own derivatives of the formulas, and misuse."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from samples import relative, symmetric
from torch.autograd import gradcheck

import spo_fast
from spo_fast.torch import modulate, simulate

NAMES = ("w_q", "w_k", "w_v", "w_o")


def eager_modulate(knm, theta, w_q, w_k, w_v, w_o, temperature, lambda_, block_size=None):
    """The formulas, by operations that PyTorch can differentiate."""
    _, d, width = w_q.shape
    n = theta.shape[0]
    angles = theta[:, None] * torch.arange(1, d // 2 + 1, dtype=theta.dtype)
    x = torch.stack([angles.cos(), angles.sin()], dim=-1).reshape(n, d)
    index = torch.arange(n)
    distance = (index[:, None] - index).abs()
    mask = (knm != 0) & (distance > 0) & (distance <= (n if block_size is None else block_size))
    logits = (x @ w_q) @ (x @ w_k).transpose(1, 2) / (width**0.5 * temperature[:, None, None])
    weights = torch.softmax(logits.masked_fill(~mask, -torch.inf), dim=2)
    weights = torch.where(mask.any(1)[None, :, None], weights, 0.0)
    outputs = torch.cat(list(weights @ (x @ w_v)), dim=1) @ w_o
    units = outputs / (torch.linalg.vector_norm(outputs, dim=1, keepdim=True) + 1e-12)
    stronger = knm * (1 + lambda_ * 0.5 * (1 + units @ units.T) * mask)
    return (0.5 * (stronger + stronger.T)).fill_diagonal_(0.0)


def eager_run(theta, omega, knm, alpha, zeta, psi, weights=None, *, dt, n_steps, method, every=1):
    def drift(theta):
        pulls = used * torch.sin(theta - theta[:, None] - alpha)
        return omega + pulls.sum(1) + zeta * torch.sin(psi - theta)

    states, used = [theta], knm
    for step in range(n_steps):
        if weights is not None and step % every == 0:
            used = eager_modulate(knm, theta, *weights)
        k1 = drift(theta)
        if method == "euler":
            theta = theta + dt * k1
        else:
            k2 = drift(theta + dt / 2 * k1)
            k3 = drift(theta + dt / 2 * k2)
            k4 = drift(theta + dt * k3)
            theta = theta + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        states.append(theta)
    return torch.stack(states)


def tensor(value, grad=True):
    return torch.tensor(np.asarray(value, dtype=float), dtype=torch.float64, requires_grad=grad)


def modulation_tensors(rng, n=6, density=0.8, heads=2, width=8):
    drawn = spo_fast.default_projections(heads, 1, width)
    values = {"knm": symmetric(rng, n, density), "theta": rng.uniform(-9, 9, n)}
    values |= dict(zip(NAMES, drawn, strict=True))
    return {k: tensor(v) for k, v in values.items()} | {
        "temperature": tensor(rng.uniform(0.5, 2.0, heads)),
        "lambda_": tensor(0.7),
    }


def run_tensors(rng, n=5):
    knm = rng.uniform(0, 1, (n, n))
    np.fill_diagonal(knm, 0.0)
    return {
        "theta": tensor(rng.uniform(0, 6, n)),
        "omega": tensor(rng.normal(size=n)),
        "knm": tensor(knm),
        "alpha": tensor(rng.uniform(-1, 1, (n, n))),
        "zeta": tensor(0.4),
        "psi": tensor(1.2),
    }


def agree(found, expected, tolerance=1e-11):
    floor = max(float(value.abs().max()) for value in expected) * 1e-3
    for a, b in zip(found, expected, strict=True):
        assert relative(a.numpy(), b.numpy(), floor) <= tolerance


@pytest.mark.parametrize("n, block_size", [(6, None), (17, 4), (40, None), (1, None), (2, None)])
def test_modulation_has_the_derivatives_of_the_formulas(n, block_size, rng):
    tensors = modulation_tensors(rng, n)
    grad = tensor(rng.standard_normal((n, n)), False)
    out = modulate(**tensors, n_heads=2, block_size=block_size)
    eager = eager_modulate(*tensors.values(), block_size)
    agree([out.detach()], [eager.detach()])
    one, two = (torch.autograd.grad(result, list(tensors.values()), grad) for result in (out, eager))
    agree(one, two)


@pytest.mark.parametrize("method, every", [("rk4", None), ("euler", 1), ("euler", 2), ("rk4", 3)])
def test_runs_have_the_derivatives_of_the_formulas(method, every, rng):
    tensors, n_steps = run_tensors(rng), 7
    out = simulate(**tensors, dt=0.1, n_steps=n_steps, method=method, record_every=every)
    states = eager_run(*tensors.values(), dt=0.1, n_steps=n_steps, method=method)
    kept = [n_steps] if every is None else sorted({*range(0, n_steps, every), n_steps})
    eager = states[kept][0] if every is None else states[kept]
    agree([torch.exp(1j * out).detach()], [torch.exp(1j * eager).detach()])
    grad = tensor(rng.standard_normal(out.shape), False)
    one, two = (torch.autograd.grad(result, list(tensors.values()), grad) for result in (out, eager))
    agree(one, two)


@pytest.mark.parametrize("every", [1, 2])
def test_modulated_runs_have_the_derivatives_of_the_formulas(every, rng):
    tensors = run_tensors(rng) | modulation_tensors(rng, 5)
    run = {name: tensors[name] for name in ("theta", "omega", "knm", "alpha", "zeta", "psi")}
    inner = {name: tensors[name] for name in (*NAMES, "temperature", "lambda_")}
    settings = {"dt": 0.1, "n_steps": 5, "method": "rk4"}
    out = simulate(**run, **settings, modulation=inner | {"n_heads": 2}, modulate_every=every)
    eager = eager_run(*run.values(), tuple(inner.values()), **settings, every=every)[-1]
    grad = tensor(rng.standard_normal(5), False)
    both = [*run.values(), *inner.values()]
    agree(*(torch.autograd.grad(result, both, grad) for result in (out, eager)))


def test_modulation_by_central_differences(rng):
    tensors = modulation_tensors(rng, 4, 1.0)
    upper = tensor(np.triu(np.ones((4, 4)), 1), False)

    def function(knm, *others):
        triangle = knm * upper
        return modulate(triangle + triangle.T, **dict(zip(list(tensors)[1:], others, strict=True)), n_heads=2)

    assert gradcheck(function, tuple(tensors.values()))


def test_runs_by_central_differences(rng):
    tensors = run_tensors(rng, 3)

    def function(*values):
        state = simulate(**dict(zip(tensors, values, strict=True)), dt=0.2, n_steps=4)
        return torch.stack([state.cos(), state.sin()])

    assert gradcheck(function, tuple(tensors.values()))


def test_numbers_and_drawn_projections_are_constants(rng):
    knm, theta = symmetric(rng, 5), rng.uniform(0, 6, 5)
    found = modulate(tensor(knm), tensor(theta))
    assert np.array_equal(found.detach().numpy(), spo_fast.modulate(knm, theta))
    plain = simulate(tensor(theta), 1.0, tensor(knm), dt=0.1, n_steps=3, alpha=0.1, modulation={})
    run = spo_fast.simulate(theta, 1.0, knm, dt=0.1, n_steps=3, alpha=0.1, modulation={})
    assert np.array_equal(plain.detach().numpy(), run.final)
    plain.sum().backward()


def test_single_precision_is_rounded_once(rng):
    tensors = {k: v.detach().float().requires_grad_() for k, v in modulation_tensors(rng).items()}
    out = modulate(**tensors, n_heads=2)
    wide = {k: v.detach().double().requires_grad_() for k, v in tensors.items()}
    expected = modulate(**wide, n_heads=2)
    assert out.dtype == torch.float32 and expected.dtype == torch.float64
    assert torch.equal(out, expected.float())
    out.sum().backward()
    expected.sum().backward()
    for name, value in tensors.items():
        assert value.grad.dtype == torch.float32
        assert torch.equal(value.grad, wide[name].grad.float()), name


def test_only_wanted_gradients_come_back(rng):
    tensors = run_tensors(rng)
    tensors["knm"].requires_grad_(False)
    simulate(**tensors, dt=0.1, n_steps=2).sum().backward()
    assert tensors["knm"].grad is None and tensors["theta"].grad is not None


def test_gradients_that_arrive_with_strides_are_read_right(rng):
    tensors = modulation_tensors(rng)
    for reduce in (torch.sum, lambda out: out.T[::2].sum(), lambda out: out.mean(0).norm()):
        results = modulate(**tensors, n_heads=2), eager_modulate(*tensors.values())
        agree(*(torch.autograd.grad(reduce(out), list(tensors.values())) for out in results))


def test_misuse_is_refused(rng):
    knm, theta = tensor(symmetric(rng, 3)), tensor(np.arange(3.0))
    run = {"omega": 1.0, "knm": knm, "dt": 0.1, "n_steps": 2}
    out = modulate(knm, theta)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(out.sum(), theta, create_graph=True)
    with pytest.raises(RuntimeError, match=r"torch\.func transforms such as vmap"):
        torch.vmap(lambda t: modulate(knm, t))(theta[None].detach())
    with pytest.raises(ValueError, match="knm must be on the CPU for the kernel, got meta"):
        modulate(knm.to("meta"), theta)
    with pytest.raises(ValueError, match="theta must be on the CPU for the kernel, got meta"):
        simulate(theta.to("meta"), **run)
    with pytest.raises(ValueError, match=r"theta must be float32 or float64 .*torch\.float16"):
        modulate(knm, theta.half())
    with pytest.raises(ValueError, match=r"theta must be a dense tensor .* got torch\.bool"):
        simulate(theta.detach() > 1.0, **run)
    with pytest.raises(ValueError, match=r"knm must be a dense tensor .* torch\.sparse_coo"):
        modulate(knm.to_sparse(), theta)
    with pytest.raises(ValueError, match="method must be 'euler' or 'rk4' for derivatives, got 'rk45'"):
        simulate(theta, **run, method="rk45")
    with pytest.raises(ValueError, match="modulation must be None or a dict, got"):
        simulate(theta, **run, modulation=spo_fast.Modulator(np.zeros((3, 3))))
    with pytest.raises(ValueError, match=r"modulation\['n_heads'\] must not be a tensor"):
        simulate(theta, **run, modulation={"n_heads": torch.tensor(4)})
    with pytest.raises(ValueError, match="knm must be symmetric"):
        modulate(tensor(np.triu(np.ones((3, 3)), 1)), theta)
    with pytest.raises(ValueError, match=r"theta must have shape \(N,\) for derivatives"):
        simulate(theta.expand(2, 3), **run)
    with pytest.raises(ValueError, match=r"theta must have shape \(N,\) for derivatives, got \(\)"):
        simulate(1.0, **run)
    with pytest.raises(ValueError, match="knm must be dense, since the result is a tensor, got"):
        modulate(scipy.sparse.csr_array(np.zeros((3, 3))), theta)


def test_arrays_may_change_before_the_reverse_pass(rng):
    knm, theta = tensor(symmetric(rng, 3)), tensor(np.arange(3.0))
    weights = dict(zip(("w_q", "w_k", "w_v", "w_o"), spo_fast.default_projections(), strict=True))
    alpha = rng.normal(size=(3, 3))
    found = []
    for change in (False, True):
        own, lag = {name: array.copy() for name, array in weights.items()}, alpha.copy()
        end = simulate(theta, 1.0, knm, alpha=lag, dt=0.1, n_steps=3, modulation=own)
        if change:
            own["w_q"][...], lag[...] = 0.0, 0.0
        found.append(torch.autograd.grad(end.square().sum(), (knm, theta)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_writing_to_an_input_before_the_reverse_pass_is_noticed(rng):
    knm, theta = tensor(symmetric(rng, 3)), tensor(np.arange(3.0), False)
    out = modulate(knm, theta)
    theta.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # PyTorch's own, on its way
def test_compiled_code_ends_its_graph_before_a_kernel(rng):
    knm, theta = tensor(symmetric(rng, 3)), tensor(np.arange(3.0))
    compiled = torch.compile(lambda t: 2.0 * modulate(knm, t + 1.0), backend="eager")
    assert torch.equal(compiled(theta), 2.0 * modulate(knm, theta + 1.0))
