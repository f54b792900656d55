"""Attention of tensors by the package's kernels, differentiable once, or by PyTorch's own operations.

``implementation`` says which: "kernel" (the default) takes float32 and float64 tensors on the CPU, runs on
`torch.get_num_threads()` threads and holds no N×M matrix; "eager" takes any device and floating type, has
derivatives of any order, and is what `torch.func` and complete graphs of `torch.compile` need.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from spo_fast import attention
from spo_fast.torch import eager
from spo_fast.torch.boundary import gradients, once, opaque, require, view, wants_eager


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    key_mask: Tensor | None = None,
    sink: Tensor | None = None,
    sink_value: Tensor | None = None,
    implementation: str | None = None,
) -> Tensor:
    """Attend: each query takes the mean of the values, weighted by softmax(scale q·k).

    Parameters
    ----------
    q : Tensor, shape (..., H, N, e)
        Queries.
    k : Tensor, shape (..., H, M, e)
        Keys.
    v : Tensor, shape (..., H, M, f)
        Values.
    scale : float, optional
        1 / sqrt(e) by default.
    causal : bool
        Query i sees keys j <= i + M - N only.
    key_mask : bool Tensor, shape (..., M), optional
        True where a key may be attended to. What stands in the others, NaN too, does not show.
    sink : Tensor, shape (H,), optional
        Score of one more key, which every query sees.
    sink_value : Tensor, shape (H, f), optional
        Its value, zeros by default.
    implementation : {"kernel", "eager"}, optional
        "kernel" by default, see the module.

    Returns
    -------
    Tensor, shape (..., H, N, f)
        A row without any key is the sink's value, or 0.

    Raises
    ------
    ValueError
        For shapes and types that do not fit; for tensors that the kernel cannot take.
    RuntimeError
        By the kernel inside `torch.func` transforms and for second derivatives.

    Notes
    -----
    O(N M (e + f)) time a head, memory linear in N + M (eager: N M).
    """
    if key_mask is not None and key_mask.dtype != torch.bool:
        raise ValueError(f"key_mask must be bool, got {key_mask.dtype}")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    masks: dict[str, Any] = {"scale": scale, "causal": causal, "key_mask": key_mask}
    if wants_eager(implementation):
        return eager.causal_attention(q, k, v, sink=sink, sink_value=sink_value, **masks)
    return _causal_attention(q, k, v, sink, sink_value, masks)


def phase_attention(
    c: Tensor,
    s: Tensor,
    v: Tensor,
    weight: Tensor,
    alpha: Tensor | None,
    kappa: Tensor,
    ramp: np.ndarray,
    *,
    steps: int = 4,
    dt: float = 1.0,
    queries: tuple[Tensor, Tensor] | None = None,
    static_query: bool = False,
    value_consensus: float = 0.0,
    keep: str = "all",
    implementation: str | None = None,
) -> Tensor:
    """Attend by phase alignment after steps of Kuramoto-Sakaguchi dynamics; causal, self included.

    From theta_i = atan2(s_i, c_i) + i ramp, each step takes, for every head,

        A_ij = softmax over j <= i of sum_k weight_k cos(theta_ik - theta_jk - alpha_k)
        theta_ik += dt kappa sum_j A_ij sin(theta_jk + alpha_k - theta_ik)

    and the result is sum_j A_ij v_j with A of the last phases.

    Parameters
    ----------
    c, s : Tensor, shape (B, N, H, m)
        Cosine and sine parts of the phases, of any length.
    v : Tensor, shape (B, N, H, f)
        Values.
    weight : Tensor, shape (H, m)
        Of each phase in the score.
    alpha : Tensor, shape (H, m), rad, optional
        Phase lag, none by default.
    kappa : Tensor, shape (H,)
        Coupling.
    ramp : ndarray, shape (m,), rad
        By how much a phase starts ahead of that of the token before.
    steps : int
        0 is attention by the phases as they come.
    dt : float
        Time of a step.
    queries : pair of Tensors of the shape of ``c``, optional
        Cosine and sine parts of phases that ask in the place of theta, for ever the same.
    static_query : bool
        Initial phases ask for ever; theta still moves.
    value_consensus : float
        In each step v += dt value_consensus (A v - v) too.
    keep : {"all", "sqrt"}
        What the kernel keeps for the reverse pass: the phases of every step, or of each ceil(sqrt(steps))-th.
    implementation : {"kernel", "eager"}, optional
        "kernel" by default, see the module.

    Returns
    -------
    Tensor, shape (B, N, H, f)

    Raises
    ------
    ValueError
        For shapes and types that do not fit; for tensors that the kernel cannot take.
    RuntimeError
        By the kernel inside `torch.func` transforms and for second derivatives.

    Notes
    -----
    O(steps N² m) time a head. The reverse pass holds steps (or sqrt(steps)) times N m numbers a head,
    eager N² times steps.

    The separable form: cos(a - b - l) = cos a cos(b + l) + sin a sin(b + l), so that a step is one softmax
    attention with 2m features F_j = [cos(theta_j + alpha), sin(theta_j + alpha)] as keys and as values,
    [C, S] = A F, and theta_i moves by dt kappa (cos theta_i S_i - sin theta_i C_i).
    """
    dynamics: dict[str, Any] = {
        "steps": steps,
        "dt": dt,
        "static_query": static_query,
        "value_consensus": value_consensus,
    }
    if wants_eager(implementation):
        return eager.phase_attention(c, s, v, weight, alpha, kappa, ramp, queries=queries, **dynamics)
    cq, sq = (None, None) if queries is None else queries
    return _phase_attention(c, s, v, weight, alpha, kappa, cq, sq, ramp, dynamics, keep)


class _CausalAttention(Function):
    """`spo_fast.attention.causal_attention` and its vector-Jacobian product.

    Tensors are saved through the context for its check that nobody wrote to them in between.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, sink_value: Tensor | None, masks: dict
    ) -> Tensor:
        ctx.options = masks | {"key_mask": view(masks["key_mask"])}
        out, lse = attention.causal_attention(
            view(q),
            view(k),
            view(v),
            sink=view(sink),
            sink_value=view(sink_value),
            return_lse=True,
            workers=torch.get_num_threads(),
            **ctx.options,
        )
        result = torch.from_numpy(out)
        ctx.save_for_backward(q, k, v, sink, sink_value, result)
        ctx.lse = lse
        return result

    @staticmethod
    @once()
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sink, sink_value, out = map(view, ctx.saved_tensors)
        arrays = attention.causal_attention_vjp(
            q,
            k,
            v,
            view(grad_out.contiguous()),
            sink=sink,
            sink_value=sink_value,
            out=out,
            lse=ctx.lse,
            workers=torch.get_num_threads(),
            **ctx.options,
        )
        return *gradients(ctx, arrays), None


class _PhaseAttention(Function):
    """`spo_fast.attention.phase_attention` and its vector-Jacobian product.

    The state for the reverse pass refers to the tensors' memory; they are saved through the context as well,
    for its check that nobody wrote to them in between.
    """

    @staticmethod
    def forward(
        ctx: Any,
        c: Tensor,
        s: Tensor,
        v: Tensor,
        weight: Tensor,
        alpha: Tensor | None,
        kappa: Tensor,
        cq: Tensor | None,
        sq: Tensor | None,
        ramp: np.ndarray,
        dynamics: dict[str, Any],
        keep: str,
    ) -> Tensor:
        out, ctx.state = attention.phase_attention(
            view(c),
            view(s),
            view(v),
            view(weight),
            np.zeros_like(view(weight)) if alpha is None else view(alpha),
            view(kappa),
            ramp,
            queries=None if cq is None else (view(cq), view(sq)),
            keep=keep,
            workers=torch.get_num_threads(),
            **dynamics,
        )
        ctx.save_for_backward(c, s, v, weight, alpha, kappa, cq, sq)
        return torch.from_numpy(out)

    @staticmethod
    @once()
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises when one was written to
        found = attention.phase_attention_vjp(
            ctx.state, view(grad_out.contiguous()), workers=torch.get_num_threads()
        )
        names = ("dc", "ds", "dv", "dweight", "dalpha", "dkappa", "dcq", "dsq")
        return *gradients(ctx, tuple(found.get(name) for name in names)), None, None, None


# ---------------------------------------------------------------- the way to the kernels


@opaque
def _causal_attention(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, sink_value: Tensor | None, masks: dict[str, Any]
) -> Tensor:
    require(q=q, k=k, v=v, key_mask=masks["key_mask"], sink=sink, sink_value=sink_value)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # once, and not again for the reverse pass
    return _CausalAttention.apply(q, k, v, sink, sink_value, masks)


@opaque
def _phase_attention(
    c: Tensor,
    s: Tensor,
    v: Tensor,
    weight: Tensor,
    alpha: Tensor | None,
    kappa: Tensor,
    cq: Tensor | None,
    sq: Tensor | None,
    ramp: np.ndarray,
    dynamics: dict[str, Any],
    keep: str,
) -> Tensor:
    tensors = {"c": c, "s": s, "v": v, "weight": weight, "alpha": alpha, "kappa": kappa, "cq": cq, "sq": sq}
    require(**tensors)
    wanted = any(tensor is not None and tensor.requires_grad for tensor in tensors.values())
    if not (wanted and torch.is_grad_enabled()):
        keep = "none"
    c, s, v = c.contiguous(), s.contiguous(), v.contiguous()  # once, and not again for the reverse pass
    if cq is not None and sq is not None:
        cq, sq = cq.contiguous(), sq.contiguous()
    return _PhaseAttention.apply(c, s, v, weight, alpha, kappa, cq, sq, ramp, dynamics, keep)
