"""Remembering pairs: does attention by oscillators do it, and which of its parts matter.

Eight pairs of tokens, then one of the keys: which value came with it? Ten models of about 58,000 parameters
(the two-layer softmax has 107,968) see the same fresh sequences, 64 in each of 4,000 steps, at two learning
rates; the better rate of each model, by its mean accuracy over the learning curve, counts. Picking one of the
eight shown values at random gives 12.5 % (about 15 % with repeated values). After training the same models
are tested on 12, 16 and 24 pairs.

Criterion, fixed beforehand: each claim below with the bounds that its row states, over five seeds. Two runs
of one seed that differ in rounding alone differ by 13 k sequences to 95 %, so a single seed decides nothing.
"""

from __future__ import annotations

from spo_fast.experiments.specs import PROTOCOL
from spo_fast.experiments.study import claim, trained
from spo_fast.experiments.summary import Outcome, thousands

LENGTHS = ("12", "16", "24")


def _stays_low(outcome: Outcome) -> tuple[str, bool]:
    return f"{outcome.final:.3f} final", outcome.final < 0.3


def _first(*outcomes: Outcome) -> tuple[str, bool]:
    looped, *others = outcomes
    text = (
        f"{thousands(looped.to_95)}, {looped.final:.3f} final; next {thousands(min(o.to_95 for o in others))}"
    )
    return text, looped.to_95 < min(o.to_95 for o in others) and looped.final >= 0.99


def _learns(outcome: Outcome) -> tuple[str, bool]:
    text = f"{thousands(outcome.to_95)}, {outcome.final:.3f} final"
    return text, outcome.to_95 <= 115_000 and outcome.final >= 0.98


def _lengths(outcome: Outcome) -> str:
    return "/".join(f"{outcome.other(name):.2f}" for name in LENGTHS)


def _generalises(static: Outcome, moving: Outcome) -> tuple[str, bool]:
    text = f"{_lengths(static)} against {_lengths(moving)}"
    return text, all(static.other(name) > moving.other(name) + 0.1 for name in LENGTHS)


def _as_fast(static: Outcome, moving: Outcome) -> tuple[str, bool]:
    text = f"{thousands(static.to_95)} against {thousands(moving.to_95)}"
    return text, static.to_95 <= 1.25 * moving.to_95 < float("inf")


def _separate(separate: Outcome, moving: Outcome, static: Outcome) -> tuple[str, bool]:
    alike = all(abs(separate.other(name) - static.other(name)) <= 0.15 for name in LENGTHS)
    text = f"{thousands(separate.to_95)} against {thousands(moving.to_95)}; {_lengths(separate)}"
    return text, separate.to_95 > moving.to_95 and alike


def _never(outcome: Outcome) -> tuple[str, bool]:
    text = f"{outcome.final:.3f} final, {len(outcome.reached)} of {outcome.seeds} seeds reach 95 %"
    return text, not outcome.reached


def _slower(looped: Outcome, moving: Outcome) -> tuple[str, bool]:
    ratio = looped.to_95 / moving.to_95 if moving.to_95 < float("inf") else float("nan")
    text = f"{thousands(looped.to_95)} against {thousands(moving.to_95)}"
    return text, 1.3 <= ratio <= 2.5


CLAIMS = (
    claim("softmax with one layer stays near 20 % (< 0.3)", "0.21 final", ("softmax",), _stays_low),
    claim(
        "softmax looped ×4 reaches 95 % before all others and ends at 1 (≥ 0.99)",
        "51 k, 1.0 final",
        ("softmax-looped", *(name for name in PROTOCOL if name != "softmax-looped")),
        _first,
    ),
    claim(
        "the oscillator with T 4 reaches 95 % by about 100 k sequences (≤ 115 k) and ends at ≥ 0.98",
        "96 k, 0.99 final",
        ("oscillator",),
        _learns,
    ),
    claim(
        "static queries generalise to 12/16/24 pairs clearly better (by > 0.1 at each)",
        ".78/.62/.41 against .31/.26/.14",
        ("static", "oscillator"),
        _generalises,
    ),
    claim(
        "static queries learn as fast (at most 1.25 times the sequences)",
        "as fast",
        ("static", "oscillator"),
        _as_fast,
    ),
    claim(
        "separate q, k learn slower and generalise as static ones do (within 0.15 at each)",
        "slower, alike",
        ("separate", "oscillator", "static"),
        _separate,
    ),
    claim("without dynamics (T 0) it stays near 20 % (< 0.3)", "0.18 final", ("no-steps",), _stays_low),
    claim("without lag it never reaches 95 %", "0.89 final, never", ("no-lag",), _never),
    claim("T 1 looped ×4 with moving receivers fails (< 0.3)", "0.25 final", ("looped",), _stays_low),
    claim(
        "T 1 looped ×4 with static queries learns about 1.8 times slower than T 4 (1.3 to 2.5)",
        "1.8 times",
        ("static-looped", "oscillator"),
        _slower,
    ),
)

STUDY = trained(
    "association", "Remembering pairs", __doc__, PROTOCOL, task="association", seeds=5, claims=CLAIMS
)
