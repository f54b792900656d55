"""Context-pulse attention of tensors, and its layers with their parameters.

Parameters have the names that `spo_fast.attention.context_pulse_attention` takes them by, so a layer's
`state_dict()` is, as arrays, that function's ``params``. ``implementation`` is that of
`spo_fast.torch.functional`: "kernel" by default, "eager" for other devices and types and for derivatives of
any order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from spo_fast import context_pulse
from spo_fast.context_pulse import PulseOptions, parameter_shapes
from spo_fast.torch import context_pulse_eager
from spo_fast.torch.boundary import gradients, once, opaque, require, view, wants_eager
from spo_fast.torch.layers import head_width, matrix, reset_linear
from spo_fast.validation import integer

_NAMES = ("q", "k", "v", "gate", "decay_logit", "A", "sink", "v_null")


def pulse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    variant: str = "standard",
    gate: Tensor | None = None,
    decay_logit: Tensor | None = None,
    A: Tensor | None = None,
    sink: Tensor | None = None,
    v_null: Tensor | None = None,
    implementation: str | None = None,
    **options: Any,
) -> Tensor:
    """Attend with queries that are states of a recurrence; see `spo_fast.attention.pulse_attention`.

    Parameters
    ----------
    q, k, v : Tensor, shape (B, N, H, d)
        Queries, keys and values.
    variant : {"standard", "leaky", "parseval", "chunked", "alpert"}
        Which one.
    gate : Tensor, shape (B, N, H, d), optional
        Of "parseval" and "chunked".
    decay_logit : Tensor, shape (1,), optional
        Of "parseval".
    A : Tensor, shape (H, d, d), optional
        Of "parseval", "chunked" and "alpert", as the two that follow.
    sink : Tensor, shape (H,), optional
    v_null : Tensor, shape (H, d), optional
    implementation : {"kernel", "eager"}, optional
        "kernel" by default, see the module.
    **options
        chunk_size, poly_order, decay, mask, strict_causal, wedge, rotary, normalise, as in
        `spo_fast.attention.context_pulse_attention`.

    Returns
    -------
    Tensor, shape (B, N, H, d)

    Raises
    ------
    ValueError
        For shapes, types and options that do not fit; for tensors that the kernel cannot take.
    RuntimeError
        By the kernel inside `torch.func` transforms and for second derivatives.

    Notes
    -----
    Cost as `spo_fast.attention.context_pulse_attention`; back some three times as much, memory linear in N
    (eager: N^2 a head).
    """
    extras = {"gate": gate, "decay_logit": decay_logit, "A": A, "sink": sink, "v_null": v_null}
    if wants_eager(implementation):
        checked = PulseOptions.checked(variant, **options)
        return context_pulse_eager.pulse_attention(q, k, v, checked, **extras)
    return _pulse_attention(dict(zip(_NAMES, (q, k, v, *extras.values()), strict=True)), variant, options)


class _PulseAttention(Function):
    """`spo_fast.attention.pulse_attention` and its vector-Jacobian product.

    The state for the reverse pass refers to the tensors' memory; they are saved through the context as well,
    for its check that nobody wrote to them in between.
    """

    @staticmethod
    def forward(ctx: Any, variant: str, options: dict[str, Any], *tensors: Tensor | None) -> Tensor:
        arrays: dict[str, Any] = dict(zip(_NAMES, map(view, tensors), strict=True))
        out, ctx.state = context_pulse.pulse_attention(
            **arrays, variant=variant, workers=torch.get_num_threads(), **options
        )
        ctx.save_for_backward(*tensors)
        return torch.from_numpy(out)

    @staticmethod
    @once()
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises when one was written to
        found = context_pulse.pulse_attention_vjp(ctx.state, view(grad_out), workers=torch.get_num_threads())
        return gradients(ctx, (None, None, *(found.get(name) for name in _NAMES)))


@opaque
def _pulse_attention(tensors: dict[str, Tensor | None], variant: str, options: dict[str, Any]) -> Tensor:
    require(**tensors)
    return _PulseAttention.apply(variant, options, *tensors.values())


class _ContextPulse(nn.Module):
    """What the layers have in common.

    Parameters
    ----------
    variant : str
        Which one.
    d_model, n_heads, d_head : int
        Widths of the tokens, number of heads and their width.
    options : dict
        Of the variant.
    implementation : {"kernel", "eager"} or None
        As for `pulse_attention`.
    device, dtype : optional
        Of the parameters; float32 by PyTorch's default.
    """

    def __init__(
        self,
        variant: str,
        d_model: int,
        n_heads: int,
        d_head: int,
        options: dict[str, Any],
        implementation: str | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        checked = PulseOptions.checked(variant, **options)
        integer(d_model, "d_model", 1)
        integer(d_head, "d_head", 1)
        context_pulse.check_heads(checked, n_heads, d_head)
        self.variant, self.n_heads, self.options, self.implementation = (
            variant,
            n_heads,
            options,
            implementation,
        )
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        for name, shape in parameter_shapes(variant, d_model, n_heads, d_head).items():
            if not name.startswith("gate_proj"):
                self.register_parameter(name, matrix(*shape, **factory))
            elif name == "gate_proj.weight":
                self.gate_proj = nn.Linear(d_model, shape[0], **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw as published.

        Standard and leaky: matrices as `nn.Linear` does. Others: W_Q orthogonal, W_K ~ N(0, 0.02), W_V Xavier
        normal, W_O and the gate as `nn.Linear` does, all else 0.
        """
        matrices = {"W_Q", "W_K", "W_V", "W_O"}
        for name, parameter in self.named_parameters(recurse=False):
            if name in matrices:
                reset_linear(parameter)
            else:
                nn.init.zeros_(parameter)
        if self.variant in ("standard", "leaky"):
            return
        nn.init.orthogonal_(self.get_parameter("W_Q"))
        nn.init.normal_(self.get_parameter("W_K"), 0.0, 0.02)
        nn.init.xavier_normal_(self.get_parameter("W_V"))
        self.gate_proj.reset_parameters()

    def projected(self, x: Tensor) -> dict[str, Tensor]:
        """Gather the tensors that `pulse_attention` is called with.

        Parameters
        ----------
        x : Tensor, shape (B, N, d)

        Returns
        -------
        dict of str to Tensor
            By the names of the arguments.
        """
        p = dict(self.named_parameters(recurse=False))
        heads = (self.n_heads, -1)
        given = {
            name[-1].lower(): F.linear(x, p[name]).unflatten(-1, heads) for name in ("W_Q", "W_K", "W_V")
        }
        if "A" in p:
            given |= {"A": p["A"], "sink": p["sink"].flatten()}
            given["v_null"] = p["v_null"].reshape(self.n_heads, -1)
        if "decay_logit" in p:
            given["decay_logit"] = p["decay_logit"]
        if self.variant in ("parseval", "chunked"):
            given["gate"] = self.gate_proj(x).unflatten(-1, heads)
        return given

    def forward(self, x: Tensor) -> Tensor:
        """Attend.

        Parameters
        ----------
        x : Tensor, shape (B, N, d)

        Returns
        -------
        Tensor, shape (B, N, d), or (B, N, d_head) of one head
        """
        given: dict[str, Any] = self.projected(x) | self.options
        out = pulse_attention(**given, variant=self.variant, implementation=self.implementation).flatten(2)
        return F.linear(out, self.get_parameter("W_O")) if hasattr(self, "W_O") else out

    def extra_repr(self) -> str:
        """Tell the options."""
        width, d_model = self.get_parameter("W_Q").shape
        options = (f"{name}={value!r}" for name, value in self.options.items())
        return ", ".join([f"{d_model}, n_heads={self.n_heads}, d_head={width // self.n_heads}", *options])


class StandardAttention(_ContextPulse):
    """Softmax attention with one head, without positions and without a projection of the output.

    Parameters
    ----------
    d_model : int
        Width of the tokens.
    d_head : int, optional
        Width of the head and of the output; d_model by default.
    mask : bool
        Whether tokens see past ones alone.
    implementation : {"kernel", "eager"}, optional
        As for `pulse_attention`.
    device, dtype : optional
        Of the parameters; float32 by PyTorch's default.

    Raises
    ------
    ValueError
        When options are not valid.
    """

    def __init__(
        self,
        d_model: int,
        d_head: int | None = None,
        *,
        mask: bool = True,
        implementation: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        width = d_model if d_head is None else d_head
        super().__init__("standard", d_model, 1, width, {"mask": mask}, implementation, device, dtype)


class LeakyContextPulse(_ContextPulse):
    """`StandardAttention` whose queries are c_t = decay c_{t-1} + (1 - decay) q_t.

    Parameters
    ----------
    d_model : int
        Width of the tokens.
    d_head : int, optional
        Width of the head and of the output; d_model by default.
    decay : float
        Between 0 and 1.
    mask : bool
        Whether tokens see past ones alone.
    implementation : {"kernel", "eager"}, optional
        As for `pulse_attention`.
    device, dtype : optional
        Of the parameters; float32 by PyTorch's default.

    Raises
    ------
    ValueError
        When options are not valid.
    """

    def __init__(
        self,
        d_model: int,
        d_head: int | None = None,
        *,
        decay: float = 0.9,
        mask: bool = True,
        implementation: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        width = d_model if d_head is None else d_head
        options = {"decay": decay, "mask": mask}
        super().__init__("leaky", d_model, 1, width, options, implementation, device, dtype)


class ParsevalAttention(_ContextPulse):
    """One head whose queries are a gated leaky scan with a learned decay, normalised, rotated and twisted.

    Parameters
    ----------
    d_model : int
        Width of the tokens.
    d_head : int, optional
        Width of the head and of the output, even; d_model by default.
    mask, strict_causal, wedge, rotary, normalise
        As for `spo_fast.attention.context_pulse_attention`.
    implementation : {"kernel", "eager"}, optional
        As for `pulse_attention`.
    device, dtype : optional
        Of the parameters; float32 by PyTorch's default.

    Raises
    ------
    ValueError
        When options or widths are not valid.
    """

    def __init__(
        self,
        d_model: int,
        d_head: int | None = None,
        *,
        mask: bool = True,
        strict_causal: bool = False,
        wedge: str = "published",
        rotary: bool = True,
        normalise: bool = True,
        implementation: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        width = d_model if d_head is None else d_head
        options = {"mask": mask, "strict_causal": strict_causal, "wedge": wedge}
        options |= {"rotary": rotary, "normalise": normalise}
        super().__init__("parseval", d_model, 1, width, options, implementation, device, dtype)


class ChunkedContextPulse(_ContextPulse):
    """Heads whose queries are gated running sums in chunks with resonance of past chunks' states.

    Parameters
    ----------
    d_model : int
        Width of the tokens.
    n_heads : int
        Number of heads, of even width.
    chunk_size : int
        Tokens of a chunk.
    mask, wedge, rotary, normalise
        As for `spo_fast.attention.context_pulse_attention`.
    implementation : {"kernel", "eager"}, optional
        As for `pulse_attention`.
    device, dtype : optional
        Of the parameters; float32 by PyTorch's default.

    Raises
    ------
    ValueError
        When options or widths are not valid.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        chunk_size: int = 16,
        mask: bool = True,
        wedge: str = "published",
        rotary: bool = True,
        normalise: bool = True,
        implementation: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        width = head_width(d_model, n_heads)
        options: dict[str, Any] = {"chunk_size": chunk_size, "mask": mask, "wedge": wedge}
        options |= {"rotary": rotary, "normalise": normalise}
        super().__init__("chunked", d_model, n_heads, width, options, implementation, device, dtype)


class AlpertContextPulse(_ContextPulse):
    """Heads whose queries are running sums in chunks with resonance of past chunks' moments.

    Its gate, ``jump_scale`` and ``jump_bias`` are published with it and have no effect.

    Parameters
    ----------
    d_model : int
        Width of the tokens.
    n_heads : int
        Number of heads, of even width.
    chunk_size, poly_order
        Tokens of a chunk, and the last moment.
    mask, strict_causal, wedge, rotary, normalise
        As for `spo_fast.attention.context_pulse_attention`.
    implementation : {"kernel", "eager"}, optional
        As for `pulse_attention`.
    device, dtype : optional
        Of the parameters; float32 by PyTorch's default.

    Raises
    ------
    ValueError
        When options or widths are not valid.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        chunk_size: int = 16,
        poly_order: int = 1,
        mask: bool = True,
        strict_causal: bool = False,
        wedge: str = "published",
        rotary: bool = True,
        normalise: bool = True,
        implementation: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        width = head_width(d_model, n_heads)
        options: dict[str, Any] = {"chunk_size": chunk_size, "poly_order": poly_order, "mask": mask}
        options |= {"strict_causal": strict_causal, "wedge": wedge}
        options |= {"rotary": rotary, "normalise": normalise}
        super().__init__("alpert", d_model, n_heads, width, options, implementation, device, dtype)
