"""Attention of tensors: both implementations agree, their derivatives are right, and misuse is refused."""

from __future__ import annotations

import attention_cases as samples
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from spo_fast import attention
from spo_fast.torch import causal_attention, phase_attention

PHASES = pytest.mark.parametrize("name", samples.PHASE_OPTIONS)
MASKS = pytest.mark.parametrize("name", samples.MASK_OPTIONS)


def phases(tensors, options, implementation="kernel"):
    return samples.call_phases(phase_attention, tensors, options, implementation=implementation)


def gradients(out, tensors, weights=None):
    weights = samples.draw(*out.shape, seed=9, dtype=out.dtype, grad=False) if weights is None else weights
    return torch.autograd.grad(out, list(tensors.values()), weights, allow_unused=True)


def agree(one, other, tolerance=1e-12):
    for a, b in zip(one, other, strict=True):
        if a is None or b is None:  # a tensor without influence: eager has no gradient, the kernel zeros
            assert all(x is None or not x.any() for x in (a, b))
        else:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@PHASES
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_phases_by_kernel_and_eager_agree(name, dtype, tolerance):
    tensors, options = samples.phase_case(name, dtype)
    kernel, eager = phases(tensors, options), phases(tensors, options, "eager")
    assert kernel.dtype == eager.dtype == dtype
    agree([kernel, *gradients(kernel, tensors)], [eager, *gradients(eager, tensors)], tolerance)


@MASKS
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_attention_by_kernel_and_eager_agrees(name, dtype, tolerance):
    tensors, options = samples.mask_case(name, dtype)
    kernel, eager = (causal_attention(**tensors, **options, implementation=i) for i in ("kernel", "eager"))
    assert kernel.dtype == eager.dtype == dtype
    agree([kernel, *gradients(kernel, tensors)], [eager, *gradients(eager, tensors)], tolerance)


@PHASES
def test_gradients_of_phases_are_those_of_central_differences(name):
    tensors, options = samples.phase_case(name)

    def function(*values):
        return phases(dict(zip(tensors, values, strict=True)), options)

    assert gradcheck(function, tuple(tensors.values()))


@MASKS
def test_gradients_of_attention_are_those_of_central_differences(name):
    tensors, options = samples.mask_case(name)
    some = {name: tensor for name, tensor in tensors.items() if tensor.numel()}

    def function(*values):
        given = tensors | dict(zip(some, values, strict=True))
        return causal_attention(**given, **options)

    assert gradcheck(function, tuple(some.values()))


def test_second_derivatives_are_right_or_refused():
    tensors, options = samples.phase_case("plain")
    some = {name: tensors[name].detach()[:1, :2].clone().requires_grad_() for name in ("c", "s", "v")}
    rest = {name: tensor.detach() for name, tensor in list(tensors.items())[3:]}

    def by(implementation):
        def function(*values):
            return phases({**dict(zip(some, values, strict=True)), **rest}, options, implementation)

        return function

    assert gradgradcheck(by("eager"), tuple(some.values()), fast_mode=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        gradgradcheck(by("kernel"), tuple(some.values()))
    q = samples.draw(1, 1, 3, 2)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(causal_attention(q, q, q).sum(), q, create_graph=True)


@pytest.mark.parametrize(
    "reduce",
    [
        lambda out: out.sum(),
        lambda out: out[..., ::2].sum(),
        lambda out: (out.transpose(0, -1) * torch.arange(out.numel()).view(out.transpose(0, -1).shape)).sum(),
        lambda out: out.mean((0, 1)).norm(),
    ],
    ids=["expanded", "every other", "transposed", "broadcast"],
)
def test_gradients_that_arrive_with_strides_are_read_right(reduce):
    tensors, options = samples.phase_case("plain")
    masks, _ = samples.mask_case("causal")
    for given, function in (
        (tensors, lambda implementation: phases(tensors, options, implementation)),
        (masks, lambda implementation: causal_attention(**masks, implementation=implementation)),
    ):
        kernel, eager = (
            torch.autograd.grad(reduce(function(name)), list(given.values())) for name in ("kernel", "eager")
        )
        agree(kernel, eager)


def test_inputs_with_strides_are_read_right():
    q = samples.draw(3, 2, 4, 2, grad=False).transpose(0, -1)
    k = samples.draw(1, 2, 4, 3, grad=False).expand(2, -1, -1, -1)
    kernel, eager = (causal_attention(q, k, k, implementation=name) for name in ("kernel", "eager"))
    agree([kernel], [eager])


def test_only_wanted_gradients_come_back():
    q, k = samples.draw(1, 1, 3, 2), samples.draw(1, 1, 3, 2, seed=1, grad=False)
    causal_attention(q, k, k).sum().backward()
    assert q.grad is not None and k.grad is None


def test_without_gradients_nothing_is_kept(monkeypatch):
    seen = []
    original = attention.phase_attention

    def spy(*arguments, **options):
        seen.append((options["keep"], options["workers"]))
        return original(*arguments, **options)

    monkeypatch.setattr(attention, "phase_attention", spy)
    tensors, options = samples.phase_case("plain")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        phases(tensors, options)
        torch.set_num_threads(1)
        with torch.no_grad():
            phases(tensors, options)
    finally:
        torch.set_num_threads(before)
    assert seen == [("all", 2), ("none", 1)]


def test_writing_to_an_input_before_the_reverse_pass_is_noticed():
    tensors, options = samples.phase_case("plain")
    c = tensors["c"].detach().clone()
    out = phases({**tensors, "c": c}, options)
    c.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_phase_without_angle_has_no_gradient():
    tensors, options = samples.phase_case("plain")
    tensors["c"], tensors["s"] = (torch.zeros_like(tensors[name], requires_grad=True) for name in ("c", "s"))
    for implementation in ("kernel", "eager"):
        dc, ds, dv, *_ = gradients(phases(tensors, options, implementation), tensors)
        assert not dc.any() and not ds.any() and dv.any()


@pytest.mark.parametrize("implementation", ["kernel", "eager"])
def test_masked_keys_never_show(implementation):
    tensors, options = samples.mask_case("masked")
    clean = causal_attention(**tensors, **options, implementation=implementation)
    with torch.no_grad():
        for name in ("k", "v"):
            tensors[name][:, :, 1] = torch.nan
    dirty = causal_attention(**tensors, **options, implementation=implementation)
    assert torch.equal(clean, dirty)
    assert all(torch.isfinite(gradient).all() for gradient in gradients(dirty, tensors))


@pytest.mark.parametrize("implementation", ["kernel", "eager"])
def test_rows_without_keys_are_zero_with_zero_gradients(implementation):
    tensors, options = samples.mask_case("masked without sink")
    out = causal_attention(**tensors, **options, implementation=implementation)
    assert not out[1].any() and out[0].any()
    assert not any(gradient[1].any() for gradient in gradients(out, tensors))


def test_a_sink_of_minus_infinity_is_none():
    tensors, _ = samples.mask_case("causal")
    sink = torch.full((samples.HEADS,), -torch.inf, dtype=torch.float64)
    assert torch.equal(causal_attention(**tensors), causal_attention(**tensors, sink=sink))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_types_that_the_kernel_has_not_are_refused(dtype):
    q = torch.ones(1, 1, 3, 2, dtype=dtype)
    with pytest.raises(ValueError, match=r"q must be float32 or float64 .* got torch\..*'eager'"):
        causal_attention(q, q, q)


@pytest.mark.parametrize("implementation", ["kernel", "eager"])
def test_shapes_are_not_broadcast(implementation):
    q, sink = torch.randn(1, 2, 3, 4), torch.randn(2)
    for name, options in {
        "k": {"k": q[..., :3]},
        "v": {"v": q[:, :, :1]},
        "sink": {"sink": torch.randn(1)},
        "sink_value": {"sink": sink, "sink_value": torch.randn(1, 4)},
    }.items():
        with pytest.raises(ValueError, match=f"{name} must have shape"):
            causal_attention(**({"q": q, "k": q, "v": q} | options), implementation=implementation)
    with pytest.raises(ValueError, match=r"key_mask must be bool, got torch\.int64"):
        causal_attention(q, q, q, key_mask=torch.ones(1, 3, dtype=torch.int64), implementation=implementation)
    with pytest.raises(ValueError, match="sink_value must be None without a sink"):
        causal_attention(q, q, q, sink_value=torch.randn(2, 4), implementation=implementation)


def test_half_precision_is_for_the_eager_implementation():
    q = samples.draw(1, 1, 3, 2, grad=False)
    half = causal_attention(*3 * [q.half()], implementation="eager")
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.double(), causal_attention(q, q, q), rtol=0, atol=2e-3)


def test_other_devices_are_for_the_eager_implementation():
    q = torch.ones(1, 1, 3, 2, device="meta")
    with pytest.raises(ValueError, match=r"q must be on the CPU .* got meta: implementation='eager'"):
        causal_attention(q, q, q)
    assert causal_attention(q, q, q, implementation="eager").device.type == "meta"


def test_unknown_implementations_are_refused():
    q = torch.ones(1, 1, 3, 2)
    with pytest.raises(ValueError, match="implementation must be one of kernel, eager, got 'fast'"):
        causal_attention(q, q, q, implementation="fast")


def test_mixed_precisions_are_refused():
    q = torch.ones(1, 1, 3, 2)
    with pytest.raises(ValueError, match=r"float64|precision"):
        causal_attention(q, q.double(), q)


def test_vmap_is_refused_and_works_eagerly():
    q = samples.draw(5, 1, 3, 2, grad=False)
    with pytest.raises(RuntimeError, match=r"torch\.func transforms such as vmap: implementation='eager'"):
        torch.vmap(lambda x: causal_attention(x, x, x))(q)
    eager = torch.vmap(lambda x: causal_attention(x, x, x, implementation="eager"))(q)
    agree([eager], [causal_attention(q, q, q)])


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # PyTorch's own, on its way
def test_compiled_code_ends_its_graph_before_a_kernel_and_gives_the_same():
    def function(q, implementation):
        return 2.0 * causal_attention(q + 1.0, q, q, implementation=implementation)

    q = samples.draw(1, 1, 3, 2)
    plain = function(q, "kernel")
    for compiled in (
        torch.compile(function, backend="eager")(q, "kernel"),
        torch.compile(function, backend="eager", fullgraph=True)(q, "eager"),
    ):
        agree(
            [compiled, *gradients(compiled, {"q": q})], [plain, *gradients(function(q, "kernel"), {"q": q})]
        )
    whole = torch.compile(lambda x: causal_attention(x, x, x), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="kernels of spo_fast"):
        whole(q)


def test_autocast_is_told_what_to_do():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = torch.nn.Linear(2, 2)(torch.ones(1, 1, 3, 2))
        with pytest.raises(ValueError, match="bfloat16"):
            causal_attention(q, q, q)


def test_the_result_does_not_depend_on_threads():
    tensors, options = samples.phase_case("plain", torch.float32)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            out = phases(tensors, options)
            results.append([out, *gradients(out, tensors)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_steps_keep_what_the_arrays_keep():
    """The tensors of a call and of the package's function of arrays are the same numbers."""
    tensors, options = samples.phase_case("queries")
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    queries = (arrays.pop("cq"), arrays.pop("sq"))
    expected, state = attention.phase_attention(
        **arrays, ramp=samples.RAMP, queries=queries, dt=1.0, keep="all", **options
    )
    out = phases(tensors, options)
    grad = np.random.default_rng(9).standard_normal(expected.shape)
    found = attention.phase_attention_vjp(state, grad)
    assert np.array_equal(out.detach().numpy(), expected)
    for name, gradient in zip(tensors, gradients(out, tensors, torch.from_numpy(grad)), strict=True):
        assert np.array_equal(gradient.numpy(), found[f"d{name}"])
