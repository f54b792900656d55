"""The models of the studies of context pulses: embedding, one attention, readout at every token.

Only the attention differs: no residual, no norm, no MLP. The embedding is N(0, 1), the readout has a
bias; the width is that of the task (`specs.WIDTHS`). One head where the variant has one, else four;
chunks of 16 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from spo_fast.experiments.specs import ALPERT_WIDTHS, MAPPED, PULSES, WIDTHS, PulseSpec
from spo_fast.experiments.tasks import VOCABULARY
from spo_fast.torch import (
    AlpertContextPulse,
    CausalSelfAttention,
    ChunkedContextPulse,
    LeakyContextPulse,
    ParsevalAttention,
    StandardAttention,
)
from spo_fast.torch.context_pulse_eager import leaky_scan

DECAY = 0.9  # of the leaky variant, and of what takes its roles the other way round


class InvertedRoles(StandardAttention):
    """Softmax attention whose keys are a leaky scan and whose queries are those of single tokens."""

    def projected(self, x: Tensor) -> dict[str, Tensor]:
        """As of `StandardAttention`, with k_t = 0.9 k_{t-1} + 0.1 W_K x_t from 0."""
        given = super().projected(x)
        given["k"] = leaky_scan(given["k"].transpose(1, 2), DECAY).transpose(1, 2)
        return given


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "standard": StandardAttention,
    "rope": CausalSelfAttention,
    "leaky": LeakyContextPulse,
    "parseval": ParsevalAttention,
    "chunked": ChunkedContextPulse,
    "alpert": AlpertContextPulse,
    "inverted": InvertedRoles,
}


class PulseModel(nn.Module):
    """Embedding, attention, readout.

    Parameters
    ----------
    spec : PulseSpec
    width : int
        Of the tokens.
    implementation : {"kernel", "eager"}, optional
        Of the attention, see `spo_fast.torch`.
    """

    def __init__(self, spec: PulseSpec, width: int, implementation: str | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.attention = LAYERS[spec.layer](width, implementation=implementation, **spec.options)
        self.readout = nn.Linear(width, VOCABULARY)
        for name, value in spec.held.items():
            nn.init.constant_(self.attention.get_parameter(name).requires_grad_(False), value)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, N) to scores (B, N, 64) of what comes next."""
        out: Tensor = self.readout(self.attention(self.embedding(tokens)))
        return out

    @property
    def masked(self) -> bool:
        """Whether tokens see past ones alone."""
        return bool(self.spec.options.get("mask", True))

    @property
    def may_lose_its_mask(self) -> bool:
        """Whether it has a mask and is one of those that are looked at without."""
        return self.spec.layer in MAPPED and self.masked

    @contextmanager
    def without_mask(self) -> Iterator[None]:
        """Let every token see all others for a while."""
        assert isinstance(self.attention, StandardAttention | LeakyContextPulse)
        before = self.attention.options
        self.attention.options = before | {"mask": False}
        try:
            yield
        finally:
            self.attention.options = before


def build(task: str, name: str, seed: int, implementation: str | None = None) -> PulseModel:
    """Make a model whose initial values depend on the seed alone.

    Parameters
    ----------
    task : str
        One of `specs.WIDTHS`.
    name : str
        One of `specs.PULSES`.
    seed : int
    implementation : {"kernel", "eager"}, optional

    Returns
    -------
    PulseModel

    Raises
    ------
    ValueError
        For an unknown name.
    """
    if name not in PULSES:
        raise ValueError(f"model must be one of {', '.join(PULSES)}, got {name!r}")
    spec = PULSES[name]
    width = WIDTHS[task]
    if spec.layer == "alpert":
        width = ALPERT_WIDTHS.get(task, width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return PulseModel(spec, width, implementation)
