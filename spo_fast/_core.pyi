"""Types of the compiled core."""

from typing import Any

import numpy as np

from spo_fast.backends.record import Record
from spo_fast.validation import ModulationParameters, Network, SparseCoupling

class ModulationPlan:
    parameters: ModulationParameters
    def __init__(self, parameters: ModulationParameters) -> None: ...
    def __call__(self, knm: Any, theta: Any, out: Any = None, algorithm: str = "auto") -> np.ndarray: ...
    def bind(self, knm: Any, algorithm: str = "auto") -> BoundModulation: ...
    def modulate_sparse(self, coupling: SparseCoupling, theta: np.ndarray) -> np.ndarray: ...
    def factors_sparse(self, coupling: SparseCoupling, theta: np.ndarray) -> np.ndarray: ...

class BoundModulation:
    knm: np.ndarray
    plan: ModulationPlan
    algorithm: str
    def __init__(self, plan: ModulationPlan, knm: Any, algorithm: str = "auto") -> None: ...
    def __call__(self, theta: Any, out: Any = None) -> np.ndarray: ...
    def factors(self, theta: Any) -> np.ndarray: ...

class Integration:
    theta: np.ndarray
    t: float
    dt: float
    step: int
    walk: str | None
    def __init__(self, n: int, method: str, dt: float, atol: float, rtol: float) -> None: ...
    def set_network(self, network: Network) -> None: ...
    def start(self, theta: np.ndarray) -> None: ...
    def advance(self, n_steps: int, record: Record | None = None) -> int: ...

class Batch:
    theta: np.ndarray
    status: np.ndarray
    steps: np.ndarray
    t: float
    step: int
    def __init__(self, m: int, n: int, method: str, dt: float) -> None: ...
    def set_network(
        self, network: Network, omegas: np.ndarray, strengths: np.ndarray | None = None
    ) -> None: ...
    def start(self, theta: np.ndarray) -> None: ...
    def advance(self, n_steps: int, record: Record | None = None) -> int: ...

c_api: Any  # a capsule, see spo_fast_api.h
WALKS: dict[str, int]
SPLITS: dict[str, int]

def prefer_walk(name: str) -> None: ...
def split(name: str) -> None: ...
def moments_made() -> int: ...
def order_moments(theta: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]: ...
def order_parameter(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...
def abi_version() -> int: ...
def status_text(status: int) -> str: ...
def exp(x: np.ndarray) -> np.ndarray: ...
def exp2(x: np.ndarray) -> np.ndarray: ...
def sincos(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...
def instruction_set() -> str: ...
def instruction_sets() -> list[str]: ...
def select_instruction_set(name: str) -> None: ...
def measure_read(x: np.ndarray, repeats: int = 10) -> float: ...
def measure_fma() -> float: ...
def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    causal: bool,
    key_mask: np.ndarray | None,
    sink: np.ndarray | None,
    sink_value: np.ndarray | None,
    workers: int,
) -> tuple[np.ndarray, np.ndarray]: ...
def attend_vjp(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    grad_out: np.ndarray,
    *,
    scale: float,
    causal: bool,
    key_mask: np.ndarray | None,
    sink: np.ndarray | None,
    sink_value: np.ndarray | None,
    workers: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]: ...

class PhaseState:
    arguments: dict[str, Any]
    layout: int
    kept: np.ndarray
    def __init__(self, arguments: dict[str, Any], layout: int, kept: np.ndarray) -> None: ...

def phase_attend(
    c: np.ndarray,
    s: np.ndarray,
    v: np.ndarray,
    weight: np.ndarray,
    alpha: np.ndarray,
    kappa: np.ndarray,
    ramp: np.ndarray,
    *,
    steps: int,
    dt: float,
    queries: tuple[np.ndarray, np.ndarray] | None = None,
    static_query: bool,
    value_consensus: float,
    keep: str,
    workers: int,
) -> tuple[np.ndarray, PhaseState | None]: ...
def phase_attend_vjp(state: PhaseState, grad_out: np.ndarray, *, workers: int) -> dict[str, np.ndarray]: ...
def gate(x: np.ndarray, g: np.ndarray, *, workers: int) -> np.ndarray: ...
def gate_vjp(
    x: np.ndarray, g: np.ndarray, grad: np.ndarray, *, workers: int
) -> tuple[np.ndarray, np.ndarray]: ...
def leaky_scan(x: np.ndarray, decay: float, out: np.ndarray, *, workers: int) -> None: ...
def leaky_scan_vjp(
    x: np.ndarray, decay: float, c: np.ndarray | None, grad: np.ndarray, *, workers: int
) -> tuple[np.ndarray, float]: ...
def resonance(
    u: np.ndarray,
    k: np.ndarray,
    *,
    chunk: int,
    scale: float,
    basis: np.ndarray | None,
    last_basis: np.ndarray | None,
    per_token: bool,
    workers: int,
) -> np.ndarray: ...
def resonance_vjp(
    u: np.ndarray,
    k: np.ndarray,
    c: np.ndarray,
    grad: np.ndarray,
    *,
    chunk: int,
    scale: float,
    basis: np.ndarray | None,
    last_basis: np.ndarray | None,
    per_token: bool,
    workers: int,
) -> tuple[np.ndarray, np.ndarray]: ...
def token_moments(x: np.ndarray, *, workers: int) -> tuple[np.ndarray, np.ndarray]: ...
def turn(
    x: np.ndarray,
    shift: np.ndarray,
    factor: np.ndarray,
    twist: np.ndarray | None,
    cosine: np.ndarray,
    sine: np.ndarray,
    *,
    twist_first: bool,
    workers: int,
) -> np.ndarray: ...
def turn_vjp(
    x: np.ndarray,
    shift: np.ndarray,
    factor: np.ndarray,
    twist: np.ndarray | None,
    cosine: np.ndarray,
    sine: np.ndarray,
    grad: np.ndarray,
    *,
    twist_first: bool,
    workers: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]: ...
def unnormalise(
    g: np.ndarray,
    x: np.ndarray,
    factor: np.ndarray,
    alpha: np.ndarray,
    beta: np.ndarray,
    mean: np.ndarray,
    *,
    workers: int,
) -> None: ...

FLOW_DEPTH: int
HALF_FROM: int

def modulate_vjp(
    knm: np.ndarray, theta: np.ndarray, grad: np.ndarray, parameters: ModulationParameters, *, workers: int
) -> dict[str, Any]: ...
def modulate_sparse_vjp(
    coupling: SparseCoupling,
    mirror: np.ndarray,
    theta: np.ndarray,
    grad: np.ndarray,
    parameters: ModulationParameters,
    *,
    workers: int,
) -> dict[str, Any]: ...

class Steps:
    def __init__(
        self,
        omega: np.ndarray,
        coupling: SparseCoupling | None,
        stages: int,
        dt: float,
        lag: float,
        zeta: float,
        psi: float,
    ) -> None: ...
    def receive(
        self,
        omega: np.ndarray,
        slopes: np.ndarray,
        kc: np.ndarray,
        ks: np.ndarray | None,
        buffer: np.ndarray,
    ) -> None: ...
    def couple(self, kc: np.ndarray, ks: np.ndarray | None, symmetric: bool) -> None: ...
    def pack(self) -> None: ...
    def record_on(self, tape: np.ndarray) -> None: ...
    def follow(self, theta: np.ndarray, steps: int, slot: int) -> None: ...
    def go_back(self, grad: np.ndarray, steps: int, slot: int) -> None: ...
    def collect(self) -> None: ...
