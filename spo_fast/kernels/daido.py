"""Double Fourier series of the attention's exponentials: what ``moments`` needs of the projections, in NumPy.

For each head

    exp(s(theta, theta') - shift(theta)) = sum over a, b of C_ab phi_a(theta) phi_b(theta'),

with phi_a = cos a theta or sin a theta, and the shift a trigonometric polynomial of degree d. Why that holds
and converges, why there is a shift, and where the tolerances come from is told in ``csrc/daido.c``; the
constants have the same names and values here.

References
----------
.. [1] H. Daido, "Order function and macroscopic mutual entrainment in uniformly coupled limit-cycle
oscillators", Prog. Theor. Phys. 88 (1992) 1213.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

LOG2_E = float(np.log2(np.e))
ROWS = 8  # harmonics of the query that share one number of harmonics of the key
TAIL = 1e-16
SMALLEST_GRID = 256
LARGEST_GRID = 512
NOISE_FACTOR = 2.0
NOISE_LIMIT = 2e-16
CHECK_LIMIT = 1e-13
FAINT = 1e-3
FEW = 0.02
CHECKS = 8
GOLDEN_ANGLE = 2.399963229728653

TOO_WIDE = "the spectrum of exp(logit) is too wide: the logits' range is too large"
TOO_FAINT = "the logits' range is too large: too many rows would be lost in the rounding of the others"
TOO_DEEP = "d_model is too large for the grid of phases"

_STEP = 4  # extents are multiples of it, so that the sums over them fill whole vectors
_LIMIT = 16  # series kept; one of the default size takes 0.7 MB

Arrays = tuple[np.ndarray | float, ...]


@dataclass(frozen=True)
class Series:
    """What a modulation with fixed projections and temperatures needs to go through order parameters.

    Attributes
    ----------
    refusal : str
        Why that would not be accurate enough; empty when it is, and only then the rest means anything.
    harmonics : int
        Number of harmonics kept of each oscillator, a multiple of `ROWS`.
    line : int
        Coefficients of an output of one field of each head, summed: 2 `ROWS` for each block.
    coefficients : int
        Number of coefficients of the series, all heads together.
    arrays : tuple
        What the kernels of ``moments`` take as `series`; none of it is written to.
    """

    refusal: str
    harmonics: int = 0
    line: int = 0
    coefficients: int = 0
    arrays: Arrays = ()


@dataclass(frozen=True)
class _Head:
    """Series of one head: per block of `ROWS` query harmonics a matrix (2 ROWS, 2 extent)."""

    blocks: list[np.ndarray]
    own: np.ndarray
    shift: np.ndarray

    @property
    def reach(self) -> int:
        """Number of harmonics of the key."""
        return max(block.shape[1] for block in self.blocks) // 2


def _embed(theta: np.ndarray, d_model: int) -> np.ndarray:
    """Return [cos t, sin t, cos 2t, sin 2t, ...], shape (..., d_model)."""
    angles = theta[..., None] * np.arange(1, d_model // 2 + 1)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(*theta.shape, d_model)


def _analyse(curve: np.ndarray, degree: int) -> np.ndarray:
    """Return the first cosine and sine coefficients of a function of one phase, shape (degree + 1, 2)."""
    spectrum = 2.0 * np.fft.rfft(curve)[: degree + 1] / curve.size
    spectrum[0] *= 0.5
    return np.stack([spectrum.real, -spectrum.imag], axis=1)


def _synthesise(theta: np.ndarray, series: np.ndarray) -> np.ndarray:
    """Return the value of a trigonometric polynomial at each phase."""
    angles = theta[:, None] * np.arange(series.shape[0])
    return np.cos(angles) @ series[:, 0] + np.sin(angles) @ series[:, 1]


def _exponentials(
    logits: np.ndarray, theta: np.ndarray, degree: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Choose the shift.

    Returns
    -------
    values : ndarray, shape (size, size)
        exp(s - shift), of which the largest is 1.
    own, shift : ndarray, shape (degree + 1, 2)
        Series of s(theta, theta) - shift(theta) and of the shift, times log2(e).
    faint : float
        Share of rows whose mean is under `FAINT` of the largest value.
    """
    top = logits.max(axis=1, keepdims=True)
    shift = _analyse(top[:, 0] + np.log(np.exp(logits - top).mean(axis=1)), degree)
    shift[0, 0] += np.max(logits.max(axis=1) - _synthesise(theta, shift))
    below = logits - _synthesise(theta, shift)[:, None]
    values = np.exp(below)
    faint = 1.0 - float(np.mean(values.mean(axis=1) >= FAINT))
    return values, LOG2_E * _analyse(np.diagonal(below), degree), LOG2_E * shift, faint


def _signal(spectrum: np.ndarray, most: int, edge: int) -> np.ndarray | None:
    """Return what stands above the noise, by block of query harmonics and by key harmonic.

    None where the spectrum has not decayed at the outer edge of the grid.
    """
    size = spectrum.shape[0]
    size_of = np.abs(spectrum)
    outer = slice(9 * size // 20, size // 2)
    by_query = NOISE_FACTOR * size_of[:, outer].max(axis=1)
    by_key = NOISE_FACTOR * size_of[outer].max(axis=0)
    if not (by_query.max() <= NOISE_LIMIT and by_key.max() <= NOISE_LIMIT):
        return None
    above = np.maximum(size_of - np.maximum(by_query[:, None], by_key), 0.0)[:, : edge + 1]
    both = above[: most * ROWS] + above[-np.arange(most * ROWS)]
    return both.reshape(most, ROWS, edge + 1).sum(axis=1)


def _extents(spectrum: np.ndarray, d_model: int) -> list[int] | None:
    """Return how many key harmonics each block of query harmonics needs; None: the grid is too coarse."""
    size = spectrum.shape[0]
    edge = 2 * size // 5
    most = edge // ROWS
    gap = max(d_model // 2, ROWS)
    share = TAIL / most
    signal = _signal(spectrum, most, edge)
    if signal is None:
        return None
    extents: list[int] = []
    used = 0
    for j, line in enumerate(signal):
        extent = int(np.argmax(line[:edge])) + 1 if line[:edge].max() > share else 0
        run, b = 0.0, extent
        while extent > 0 and b < extent + gap:
            if b == edge:
                return None
            run += line[b]
            if run > share:
                extent, run = b + 1, 0.0
            b += 1
        extents.append(max(extent, 1))
        used = j + 1 if extent > 0 else used
        if (j + 1 - used) * ROWS >= gap:
            return extents[:used]
    return None


def _coefficients(spectrum: np.ndarray, extents: list[int]) -> list[np.ndarray]:
    """Return the real coefficients of the support, a matrix for each block.

    From P = F_ab and Q = F_a,-b: 2 Re(P exp(i (x + y)) + Q exp(i (x - y))), halved where a = 0 and where
    b = 0. Rows are ROWS cosines and ROWS sines of the query, columns cosine and sine of each harmonic of the
    key in turn.
    """
    blocks = []
    for j, exact in enumerate(extents):
        extent = -(-exact // _STEP) * _STEP
        a, b = np.arange(j * ROWS, (j + 1) * ROWS)[:, None], np.arange(extent)
        p, q = spectrum[a, b], spectrum[-a, b]  # the latter is the conjugate of Q
        scale = np.where(a > 0, 2.0, 1.0) * np.where(b > 0, 1.0, 0.5)
        block = np.empty((2, ROWS, extent, 2))
        block[0, ..., 0] = scale * (p.real + q.real)
        block[1, ..., 0] = scale * (q.imag - p.imag) * (a > 0)
        block[0, ..., 1] = scale * (-q.imag - p.imag) * (b > 0)
        block[1, ..., 1] = scale * (q.real - p.real) * ((a > 0) & (b > 0))
        blocks.append(block.reshape(2 * ROWS, 2 * extent))
    return blocks


def _worst_error(head: _Head, w_q: np.ndarray, w_k: np.ndarray, scale: float) -> float:
    """Compare a series with the exponentials themselves at some phases that lie on no grid."""
    theta = GOLDEN_ANGLE * np.arange(1, CHECKS + 1)
    d_model = w_q.shape[0]
    logits = scale * (_embed(theta, d_model) @ w_q) @ (_embed(-theta, d_model) @ w_k).T
    expected = np.exp(logits - _synthesise(theta, head.shift)[:, None] / LOG2_E)
    angles = -theta[:, None] * np.arange(head.reach)
    keys = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(CHECKS, -1)
    result = np.zeros((CHECKS, CHECKS))
    for j, block in enumerate(head.blocks):
        turns = theta[:, None] * np.arange(j * ROWS, (j + 1) * ROWS)
        result += np.hstack([np.cos(turns), np.sin(turns)]) @ block @ keys[:, : block.shape[1]].T
    return float(np.max(np.abs(result - expected)))


def _make_head(w_q: np.ndarray, w_k: np.ndarray, temperature: float) -> _Head | str:
    """Return the series of one head, on a grid as large as it needs, or why there is none."""
    d_model, per_head = w_q.shape
    scale = 1.0 / (np.sqrt(per_head) * temperature)
    size = SMALLEST_GRID
    while size <= LARGEST_GRID:
        theta = 2.0 * np.pi * np.arange(size) / size
        x = _embed(theta, d_model)
        with np.errstate(all="ignore"):  # logits of any size; what overflows is faint
            logits = (x @ (scale * w_q)) @ (x @ w_k).T
            values, own, shift, faint = _exponentials(logits, theta, d_model)
        if not faint <= FEW:
            return TOO_FAINT
        spectrum = np.fft.rfft2(values) / size**2
        extents = _extents(spectrum, d_model)
        if extents:
            head = _Head(_coefficients(spectrum, extents), own, shift)
            if _worst_error(head, w_q, w_k, scale) <= CHECK_LIMIT:
                return head
        size *= 2
    return TOO_WIDE


def _interleave(series: np.ndarray, blocks: int) -> np.ndarray:
    """Return cosine and sine coefficients, shape (K, 2), in the order of the query harmonics of `_Head`."""
    padded = np.zeros((blocks * ROWS, 2))
    padded[: series.shape[0]] = series
    return padded.reshape(blocks, ROWS, 2).transpose(0, 2, 1).ravel()


def _local_rows(heads: list[_Head], w_v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what an oscillator's own harmonics give: own logits, values and shifts, a row for each.

    With the number of blocks that each row fills.
    """
    d_model = w_v.shape[1]
    values = np.zeros((d_model, d_model // 2 + 1, 2))
    values[:, 1:] = w_v.transpose(0, 2, 1).reshape(d_model, d_model // 2, 2)
    curves = [head.own for head in heads] + list(values) + [head.shift for head in heads]
    spans = np.array([(len(curve) - 1) // ROWS + 1 for curve in curves])
    return np.array([_interleave(curve, spans.max()) for curve in curves]), spans


def _padded(rows: np.ndarray) -> np.ndarray:
    """Return the rows with zeros up to a multiple of eight columns."""
    return np.pad(np.ascontiguousarray(rows), ((0, 0), (0, -rows.shape[1] % ROWS)))


def make_series(
    w_q: np.ndarray, w_k: np.ndarray, w_v: np.ndarray, w_o: np.ndarray, temperature: np.ndarray
) -> Series:
    """Make the series of all heads.

    Parameters
    ----------
    w_q, w_k, w_v : ndarray, shape (H, d, d/H)
        Projections; d even.
    w_o : ndarray, shape (d, d)
        Output projection.
    temperature : ndarray, shape (H,)
        Temperature of each head, positive.

    Returns
    -------
    Series
        Some 30 ms for default projections: 256 x 256 exponentials and a transform of them for each head.
    """
    n_heads, d_model, _ = w_q.shape
    if d_model > SMALLEST_GRID // 8:
        return Series(TOO_DEEP)
    heads: list[_Head] = []
    for h in range(n_heads):
        head = _make_head(w_q[h], w_k[h], float(temperature[h]))
        if isinstance(head, str):
            return Series(head)
        heads.append(head)
    local, spans = _local_rows(heads, w_v)
    most = max(len(head.blocks) for head in heads)
    reach = max(head.reach for head in heads)
    extents = np.zeros((n_heads, max(most, int(spans.max()))), dtype=np.int64)
    weight = np.zeros((n_heads, 2 * reach))
    for h, head in enumerate(heads):
        for j, block in enumerate(head.blocks):
            extents[h, j] = block.shape[1] // 2
            weight[h, : block.shape[1]] += (block**2).sum(axis=0)
    coefficient = np.concatenate([block.ravel() for head in heads for block in head.blocks])
    values = _padded(w_v.transpose(0, 2, 1).reshape(d_model, d_model))
    with np.errstate(over="ignore"):  # an infinite one trusts no sum
        gain = np.sqrt((w_o.reshape(n_heads, -1) ** 2).sum(axis=1))
    top = max(reach + d_model // 2, extents.shape[1] * ROWS)
    return Series(
        refusal="",
        harmonics=-(-top // ROWS) * ROWS,
        line=2 * ROWS * sum(len(head.blocks) for head in heads),
        coefficients=coefficient.size,
        arrays=(extents, coefficient, weight, values, local, spans, gain, _padded(w_o.T), TAIL),
    )


@lru_cache(maxsize=_LIMIT)
def _by_content(n_heads: int, d_model: int, *contents: bytes) -> Series:
    shape = (n_heads, d_model, d_model // n_heads)
    w_q, w_k, w_v = (np.frombuffer(content).reshape(shape) for content in contents[:3])
    w_o = np.frombuffer(contents[3]).reshape(d_model, d_model)
    return make_series(w_q, w_k, w_v, w_o, np.frombuffer(contents[4]))


def series_of(
    w_q: np.ndarray, w_k: np.ndarray, w_v: np.ndarray, w_o: np.ndarray, temperature: np.ndarray
) -> Series:
    """Return what a modulation through order parameters takes, made when first asked for.

    Parameters
    ----------
    w_q, w_k, w_v : ndarray, shape (H, d, d/H)
        Projections to queries, keys and values.
    w_o : ndarray, shape (d, d)
        Projection of the heads' outputs.
    temperature : ndarray, shape (H,)
        Of the softmax, positive.

    Returns
    -------
    Series
        With ``arrays``, and with ``refusal``, why these weights cannot go this way, or an empty text. The
        last ones are kept by content.

    Notes
    -----
    A double Fourier series of each head: some milliseconds when made, O(d^2) to find one that is kept.
    """
    arrays = (w_q, w_k, w_v, w_o, temperature)
    contents = (np.ascontiguousarray(array, dtype=np.float64).tobytes() for array in arrays)
    return _by_content(w_q.shape[0], w_q.shape[1], *contents)


def series_made() -> int:
    """Return the number of series that `series_of` has made in this process."""
    return _by_content.cache_info().misses
