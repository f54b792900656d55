"""The models that are compared: a block of attention and MLP between embedding and readout.

Only the attention differs. d = 64, 4 heads, 64 tokens, MLP of width 256; block: x += attention(LN x), x +=
MLP(LN x); no LayerNorm before the readout, which is not tied to the embedding and sees the last token alone.
Initial values are PyTorch's, but for the few of the oscillators (`OscillatorAttention.reset_parameters`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spo_fast.experiments.specs import MODELS, Spec
from spo_fast.experiments.tasks import VOCABULARY
from spo_fast.torch import CausalSelfAttention, OscillatorAttention

WIDTH, HEADS, HIDDEN = 64, 4, 256


class Block(nn.Module):
    """Attention and MLP, each behind a LayerNorm and added to what comes in.

    Parameters
    ----------
    attention : Module
        (B, N, d) to (B, N, d).
    """

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = attention
        self.mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: Tensor, queries: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Map (B, N, d) to (B, N, d); with queries, of `OscillatorAttention`, these phases ask."""
        h = self.norm_attention(x)
        x = x + (self.attention(h) if queries is None else self.attention(h, queries))
        return x + self.mlp(self.norm_mlp(x))


class Model(nn.Module):
    """Embedding, blocks, readout at the last token.

    Parameters
    ----------
    spec : Spec
    implementation : {"kernel", "eager"}, optional
        Of every attention, see `spo_fast.torch`.
    """

    def __init__(self, spec: Spec, implementation: str | None = None) -> None:
        super().__init__()
        self.loops, self.first_asks = spec.loops, spec.first_asks
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(_attention(spec, implementation)) for _ in range(spec.layers))
        self.readout = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, N) to scores (B, 64) of what comes next."""
        x = self.embedding(tokens)
        queries = self.asking(x)
        for _ in range(self.loops):
            for block in self.blocks:
                x = block(x, queries)
        return self.readout(x[:, -1])

    def asking(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the phases that ask in every loop, where those of what stands before the first one do.

        Parameters
        ----------
        x : Tensor, shape (B, N, d)

        Returns
        -------
        tuple of Tensor, shape (B, N, H, m), or None
            Cosine and sine parts; None where the tokens of each loop ask with phases of their own.
        """
        if not self.first_asks:
            return None
        (block,) = self.blocks
        assert isinstance(block, Block) and isinstance(block.attention, OscillatorAttention)
        c, s, _ = block.attention.phases(block.norm_attention(x))
        return c, s


def _attention(spec: Spec, implementation: str | None) -> nn.Module:
    if spec.oscillators:
        return OscillatorAttention(WIDTH, HEADS, bias=True, implementation=implementation, **spec.options)
    return CausalSelfAttention(WIDTH, HEADS, bias=True, implementation=implementation)


def build(name: str, seed: int, implementation: str | None = None) -> Model:
    """Make a model whose initial values depend on the seed alone.

    Parameters
    ----------
    name : str
        One of `MODELS`.
    seed : int
    implementation : {"kernel", "eager"}, optional

    Returns
    -------
    Model

    Raises
    ------
    ValueError
        For an unknown name.
    """
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(MODELS[name], implementation)


def parameters(model: nn.Module) -> int:
    """Count the numbers that are learned.

    Parameters
    ----------
    model : Module

    Returns
    -------
    int
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
