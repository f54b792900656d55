"""Attention layers with their parameters.

The parameters of `OscillatorAttention` have the names that `spo_fast.attention.oscillator_attention` takes
them by, so its `state_dict()` is, as arrays, that function's ``params``; the layer's ``score_scale`` is 1/m
unless it is given, the function's 1.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spo_fast.attention import POSITIONS, position_ramp
from spo_fast.torch.eager import rotate
from spo_fast.torch.functional import causal_attention, phase_attention
from spo_fast.validation import integer


def head_width(d_model: int, n_heads: int) -> int:
    """Numbers of a token in a head."""
    if n_heads < 1 or d_model < 1 or d_model % n_heads:
        raise ValueError(f"n_heads must divide d_model, got {n_heads} and {d_model}")
    return d_model // n_heads


def matrix(*shape: int, **factory: Any) -> nn.Parameter:
    """Return a parameter that has yet to be drawn."""
    return nn.Parameter(torch.empty(*shape, **factory))


def reset_linear(weight: Tensor, bias: Tensor | None = None) -> None:
    """Draw as `nn.Linear` does: uniform within ±1 / sqrt(width of the input)."""
    bound = 1.0 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound)
    if bias is not None:
        nn.init.uniform_(bias, -bound, bound)


class CausalSelfAttention(nn.Module):
    """Softmax self-attention with rotary positions: softmax over j <= i of q_i·k_j / sqrt(d_h).

    q = R_i W_q h_i, k = R_j W_k h_j, where R_t turns the pair (2k, 2k + 1) of each head by t base^(-2k/d_h),
    v = W_v h + b_v, out = W_o concat_h sum_j A_ij v_j + b_o.

    Parameters
    ----------
    d_model : int
        Width d of the tokens.
    n_heads : int
        H; the head width d_h = d/H is even.
    bias : bool
        With b_v and b_o.
    freq_base : float
        Base of the rotations.
    implementation : {"kernel", "eager"}, optional
        As for `causal_attention`.
    device, dtype : optional
        Of the parameters; float32 by PyTorch's default.

    Raises
    ------
    ValueError
        When the widths do not fit.

    Notes
    -----
    O(N d^2) for the projections and O(N^2 d) for the attention of a sequence of N tokens; memory linear in N
    (eager: N^2 a head).
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        bias: bool = False,
        freq_base: float = 10000.0,
        implementation: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if head_width(d_model, n_heads) % 2:
            raise ValueError(f"head width must be even for rotations, got {d_model // n_heads}")
        self.n_heads, self.freq_base, self.implementation = n_heads, freq_base, implementation
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.W_q, self.W_k, self.W_v, self.W_o = (matrix(d_model, d_model, **factory) for _ in range(4))
        self.b_v, self.b_o = ((matrix(d_model, **factory) if bias else None) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrices as `nn.Linear` does."""
        for weight, bias in (
            (self.W_q, None),
            (self.W_k, None),
            (self.W_v, self.b_v),
            (self.W_o, self.b_o),
        ):
            reset_linear(weight, bias)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gather the queries, keys and values that `causal_attention` is called with.

        Parameters
        ----------
        x : Tensor, shape (B, N, d)

        Returns
        -------
        tuple of Tensor, shape (B, H, N, d_h)
        """
        heads = (self.n_heads, -1)
        q = rotate(F.linear(x, self.W_q).unflatten(-1, heads), self.freq_base)
        k = rotate(F.linear(x, self.W_k).unflatten(-1, heads), self.freq_base)
        v = F.linear(x, self.W_v, self.b_v).unflatten(-1, heads)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Attend.

        Parameters
        ----------
        x : Tensor, shape (B, N, d)

        Returns
        -------
        Tensor, shape (B, N, d)
        """
        out = causal_attention(*self.projected(x), implementation=self.implementation)
        return F.linear(out.transpose(1, 2).flatten(2), self.W_o, self.b_o)

    def extra_repr(self) -> str:
        """Tell the options."""
        return f"{self.W_o.shape[0]}, n_heads={self.n_heads}, bias={self.b_o is not None}"


class OscillatorAttention(nn.Module):
    """Attention by phase alignment after Kuramoto-Sakaguchi dynamics, see `phase_attention`.

    theta_i(0) = atan2(W_s h_i, W_c h_i) + f_k i with f_k = base^(-k/m), per head m = d/H phases;
    score = beta sum_k score_scale w_k cos(theta_ik - theta_jk - alpha_k); v = W_v h + b_v;
    out_i = W_o concat_h sum_j A_ij(theta(T)) v_j + b_o.

    Parameters
    ----------
    d_model : int
        Width d of the tokens.
    n_heads : int
        H.
    steps : int
        T.
    dt : float
        Time of a step.
    static_query : bool
        Initial phases ask for ever.
    separate_qk : bool
        The asking phases come from their own projection: W_qp and W_kp in the place of W_c and W_s, each with
        cosine and sine parts of m = d/(2H) phases per head. Queries are static then.
    value_consensus : float
        See `phase_attention`.
    pos : {"full", "low", "none"}
        "low" sets f_k = 0 for k < m // 2, the fast half, "none" all.
    lag : bool
        With alpha.
    bias : bool
        With b_v and b_o.
    freq_base : float
        Base of f_k.
    score_scale : float, optional
        1/m by default: the score starts within ±beta, so that attention does not start locked on the token
        itself.
    keep : {"all", "sqrt"}
        See `phase_attention`.
    implementation : {"kernel", "eager"}, optional
        See `phase_attention`.
    device, dtype : optional
        Of the parameters; float32 by PyTorch's default.

    Attributes
    ----------
    w, alpha : Parameter, shape (H, m)
    beta, kappa : Parameter, shape (H,)

    Raises
    ------
    ValueError
        When the widths do not fit, ``pos`` is unknown, or ``steps`` is negative.

    Notes
    -----
    O(N d^2) for the projections and O(N^2 d) for each step and the readout of a sequence of N tokens; for
    memory see `phase_attention`.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        steps: int = 4,
        dt: float = 1.0,
        static_query: bool = False,
        separate_qk: bool = False,
        value_consensus: float = 0.0,
        pos: str = "full",
        lag: bool = True,
        bias: bool = False,
        freq_base: float = 10000.0,
        score_scale: float | None = None,
        keep: str = "all",
        implementation: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        width = head_width(d_model, n_heads)
        if separate_qk and width % 2:
            raise ValueError(f"head width must be even for separate_qk, got {width}")
        if pos not in POSITIONS:
            raise ValueError(f"pos must be one of {', '.join(POSITIONS)}, got {pos!r}")
        steps = integer(steps, "steps", 0)
        m = width // 2 if separate_qk else width
        self.n_heads, self.separate_qk, self.pos = n_heads, separate_qk, pos
        self.steps, self.dt, self.static_query, self.value_consensus = (
            steps,
            dt,
            static_query,
            value_consensus,
        )
        self.score_scale = 1.0 / m if score_scale is None else score_scale
        self.keep, self.implementation = keep, implementation
        self.ramp = position_ramp(m, pos, freq_base)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self._names = ("W_qp", "W_kp") if separate_qk else ("W_c", "W_s")
        for name in self._names:
            self.register_parameter(name, matrix(d_model, d_model, **factory))
        self.W_v, self.W_o = (matrix(d_model, d_model, **factory) for _ in range(2))
        self.b_v, self.b_o = ((matrix(d_model, **factory) if bias else None) for _ in range(2))
        self.w = matrix(n_heads, m, **factory)
        self.alpha = matrix(n_heads, m, **factory) if lag else None
        self.beta, self.kappa = (matrix(n_heads, **factory) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrices as `nn.Linear` does, alpha ~ N(0, 0.1); w = 1, beta = 4, kappa = 0.5."""
        for weight in self._projections():
            reset_linear(weight)
        reset_linear(self.W_v, self.b_v)
        reset_linear(self.W_o, self.b_o)
        nn.init.ones_(self.w)
        nn.init.constant_(self.beta, 4.0)
        nn.init.constant_(self.kappa, 0.5)
        if self.alpha is not None:
            nn.init.normal_(self.alpha, 0.0, 0.1)

    def _projections(self) -> tuple[Tensor, Tensor]:
        first, second = (self.get_parameter(name) for name in self._names)
        return first, second

    def phases(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """Project tokens onto cosine and sine parts.

        Parameters
        ----------
        x : Tensor, shape (B, N, d)

        Returns
        -------
        c, s : Tensor, shape (B, N, H, m)
        queries : pair of Tensors of that shape, or None
            With ``separate_qk``.
        """
        first, second = (F.linear(x, weight) for weight in self._projections())
        if not self.separate_qk:
            return first.unflatten(-1, (self.n_heads, -1)), second.unflatten(-1, (self.n_heads, -1)), None
        cq, sq = first.unflatten(-1, (2, self.n_heads, -1)).unbind(-3)
        c, s = second.unflatten(-1, (2, self.n_heads, -1)).unbind(-3)
        return c, s, (cq, sq)

    def dynamics(
        self, x: Tensor, queries: tuple[Tensor, Tensor] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Gather what `phase_attention` is called with.

        Parameters
        ----------
        x : Tensor, shape (B, N, d)
        queries : pair of Tensors, optional
            See `forward`.

        Returns
        -------
        arguments : tuple
            c, s, v, weight, alpha, kappa, ramp.
        options : dict
            Of the dynamics.
        """
        c, s, own = self.phases(x)
        v = F.linear(x, self.W_v, self.b_v).unflatten(-1, (self.n_heads, -1))
        weight = self.score_scale * self.beta[:, None] * self.w
        return (c, s, v, weight, self.alpha, self.kappa, self.ramp), {
            "steps": self.steps,
            "dt": self.dt,
            "queries": own if queries is None else queries,
            "static_query": self.static_query,
            "value_consensus": self.value_consensus,
        }

    def forward(self, x: Tensor, queries: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Attend.

        Parameters
        ----------
        x : Tensor, shape (B, N, d)
        queries : pair of Tensors of shape (B, N, H, m), optional
            Cosine and sine parts of phases that ask in the place of x's own, such as `phases` returned for
            what the tokens were in an earlier layer.

        Returns
        -------
        Tensor, shape (B, N, d)
        """
        arguments, options = self.dynamics(x, queries)
        out = phase_attention(*arguments, **options, keep=self.keep, implementation=self.implementation)
        return F.linear(out.flatten(2), self.W_o, self.b_o)

    def extra_repr(self) -> str:
        """Tell the options."""
        names = ("n_heads", "steps", "dt", "static_query", "separate_qk", "value_consensus", "pos")
        return ", ".join([str(self.W_o.shape[0]), *(f"{name}={getattr(self, name)}" for name in names)])
