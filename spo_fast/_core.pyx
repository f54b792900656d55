# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""The Cython face of the C core: plans hold what does not change, calls need no GIL, only data pointers."""

cimport cython
cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_New
from libc.math cimport cos, fmod, sin
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc

import numpy as np

from spo_fast import validation

cnp.import_array()


cdef extern from "spo_fast_core.h" nogil:
    int32_t spo_abi_version()
    const char *spo_status_text(int32_t status)
    int32_t spo_modulate(int64_t, const double *, const double *, const spo_modulation *, double *)
    int32_t spo_order_parameter(int64_t, const double *, double *, double *)
    int32_t spo_kuramoto_run(const spo_network *, const spo_integrator *, spo_state *, int64_t,
                             const spo_record *)
    int32_t spo_core_split(int32_t)
    int32_t spo_core_scan(int64_t, const double *, int32_t, int32_t *)
    ctypedef struct spo_moments:
        pass

    ctypedef struct spo_attention_path:
        const spo_moments *moments
        const uint64_t *absent
        int64_t *redone

    int32_t spo_core_moments_create(const spo_modulation *, spo_moments **)
    void spo_core_moments_free(spo_moments *)
    const char *spo_core_moments_refusal(const spo_moments *)
    int32_t spo_core_moments_possible(int64_t, const spo_modulation *, int32_t)
    int32_t spo_core_moments_pay(int64_t, const spo_moments *, int64_t)
    int64_t spo_core_absent_words(int64_t)
    int64_t spo_core_find_absent(int64_t, const double *, int32_t, uint64_t *)
    int64_t spo_core_harmonic_scratch(int64_t, int64_t)
    int32_t spo_core_harmonic_sums(int64_t, int64_t, const double *, double *, double *, double *)
    int64_t spo_core_modulation_scratch(int64_t, const spo_modulation *, const spo_moments *, int32_t)
    int32_t spo_core_modulate(int64_t, const double *, int32_t, const double *, const spo_modulation *,
                              const spo_attention_path *, int32_t, double *, double *)
    int32_t spo_core_factors(int64_t, const double *, int32_t, const double *, const spo_modulation *,
                             const spo_attention_path *, int32_t, double *, double *, double *)
    ctypedef struct spo_sparse:
        const int64_t *start
        const int32_t *column
        const double *mean

    ctypedef struct spo_ensemble:
        int64_t members
        int64_t step
        const double *omega
        const double *lambda_ "lambda"
        double *theta
        int32_t *status
        int64_t *steps

    int64_t spo_core_sparse_scratch(int64_t, const spo_modulation *, int32_t)
    int32_t spo_core_modulate_sparse(int64_t, const spo_sparse *, const double *, const double *,
                                     const spo_modulation *, int32_t, double *, double *)
    int32_t spo_core_factors_sparse(int64_t, const spo_sparse *, const double *, const double *,
                                    const spo_modulation *, int32_t, double *, double *)
    int64_t spo_core_run_scratch(const spo_network *, const spo_sparse *, const spo_moments *, int64_t,
                                 int32_t, int32_t)
    int32_t spo_core_prepare(const spo_network *, const spo_sparse *, const spo_moments *, int64_t, int32_t,
                             int32_t, double *)
    int32_t spo_core_walk(double *)
    int32_t spo_core_run(const spo_network *, const spo_sparse *, const spo_integrator *, const spo_moments *,
                         spo_state *, int64_t, const spo_record *, double *)
    int64_t spo_core_members_room(const spo_network *, int64_t, int32_t)
    int32_t spo_core_run_members(const spo_network *, const spo_integrator *, spo_ensemble *, int64_t,
                                 const spo_record *, int32_t, double *, double *)
    int32_t spo_core_order_parameters(int64_t, int64_t, const double *, double *, double *)
    void spo_core_exp(int64_t, const double *, double *)
    void spo_core_exp2(int64_t, const double *, double *)
    void spo_core_sincos(int64_t, const double *, double *, double *)
    const char *spo_core_instruction_set()
    const char *spo_core_available_instruction_set(int32_t)
    int32_t spo_core_select_instruction_set(const char *)
    double spo_core_measure_read(int64_t, const double *, int64_t)
    double spo_core_measure_multiply_add()
    enum: SPO_ALL_EDGES
    enum: SPO_SYMMETRIC_PATTERN
    enum: SPO_SPLIT_WORTHWHILE
    enum: SPO_SPLIT_ALL
    enum: SPO_SPLIT_SMALLEST
    enum: SPO_WALK_AUTO
    enum: SPO_WALK_WHOLE
    enum: SPO_WALK_FUSED
    enum: SPO_WALK_KEPT


cdef int32_t modulate(int64_t n, const double *knm, const double *theta, const spo_modulation *modulation,
                      double *out) noexcept nogil:
    return spo_modulate(n, knm, theta, modulation, out)


cdef int32_t kuramoto_run(const spo_network *network, const spo_integrator *integrator, spo_state *state,
                          int64_t n_steps, const spo_record *record) noexcept nogil:
    return spo_kuramoto_run(network, integrator, state, n_steps, record)


cdef int32_t mean_field(int64_t n, const double *theta, double *r, double *psi) noexcept nogil:
    return spo_order_parameter(n, theta, r, psi)


cdef extern from *:
    """
    #include "spo_fast_api.h"
    static const spo_functions functions = {SPO_ABI_VERSION, spo_status_text, spo_modulate,
                                            spo_order_parameter, spo_kuramoto_run};
    """
    const char *SPO_CAPSULE
    void *functions_for_extensions "((void *)&functions)"


c_api = PyCapsule_New(functions_for_extensions, SPO_CAPSULE, NULL)  # what spo_fast_api.h asks for
WALKS = {"auto": SPO_WALK_AUTO, "whole": SPO_WALK_WHOLE, "fused": SPO_WALK_FUSED, "kept": SPO_WALK_KEPT}
SPLITS = {"worthwhile": SPO_SPLIT_WORTHWHILE, "all": SPO_SPLIT_ALL, "smallest": SPO_SPLIT_SMALLEST}
METHODS = {"euler": SPO_EULER, "rk4": SPO_RK4, "rk45": SPO_RK45}
_MOMENTS_LIMIT = 16  # Fourier series kept; one of the default size takes 0.6 MB
_IDLE_SCRATCHES = 8  # kept by a plan for its next calls: as many as threads are likely to share it

cdef double TWO_PI = validation.TWO_PI


cdef inline double *pointer(object array) noexcept:
    """Data of an ndarray (not checked), or NULL for None."""
    return NULL if array is None else <double *> cnp.PyArray_DATA(<cnp.ndarray> array)


cdef inline bint is_plain(object value, int ndim) noexcept:
    """Is this an ndarray that a kernel can read as it is: float64, native, aligned, C order?"""
    return (cnp.PyArray_CheckExact(value)
            and cnp.PyArray_TYPE(<cnp.ndarray> value) == cnp.NPY_DOUBLE
            and cnp.PyArray_NDIM(<cnp.ndarray> value) == ndim
            and cnp.PyArray_ISCARRAY_RO(<cnp.ndarray> value))


cdef inline object coupling_of(object knm):
    if is_plain(knm, 2) and cnp.PyArray_DIM(<cnp.ndarray> knm, 0) == cnp.PyArray_DIM(<cnp.ndarray> knm, 1):
        return knm
    return validation.as_coupling(knm)


cdef inline object phases_of(object theta, int64_t n):
    if is_plain(theta, 1) and cnp.PyArray_DIM(<cnp.ndarray> theta, 0) == n:
        return theta
    return validation.as_phases(theta, n)


cdef inline object output_of(object out, int64_t n, object knm, object coupling):
    """The caller's out once it is known to be usable, or a new matrix."""
    cdef cnp.npy_intp shape[2]
    cdef const char *first
    cdef const char *other
    cdef int64_t size = n * n * <int64_t> sizeof(double)
    if out is None:
        shape[0] = shape[1] = n
        return cnp.PyArray_EMPTY(2, shape, cnp.NPY_DOUBLE, 0)
    if (is_plain(out, 2) and cnp.PyArray_ISWRITEABLE(<cnp.ndarray> out) and is_plain(knm, 2)
            and cnp.PyArray_DIM(<cnp.ndarray> out, 0) == n and cnp.PyArray_DIM(<cnp.ndarray> out, 1) == n):
        first = <const char *> cnp.PyArray_DATA(<cnp.ndarray> out)
        other = <const char *> cnp.PyArray_DATA(<cnp.ndarray> knm)
        if first + size <= other or other + size <= first:
            return out
    return validation.as_output(out, n, knm, coupling)


cdef spo_sparse places_of(object coupling) noexcept:
    """The places of a SparseCoupling, as the core reads them."""
    cdef spo_sparse sparse
    sparse.start = <const int64_t *> cnp.PyArray_DATA(<cnp.ndarray> coupling.indptr)
    sparse.column = <const int32_t *> cnp.PyArray_DATA(<cnp.ndarray> coupling.indices)
    sparse.mean = pointer(coupling.mean)
    return sparse


cdef int refuse(int32_t status, object knm, object theta) except -1:
    """Raise the error that a status stands for, naming the entry to blame."""
    validation.explain_coupling(knm)
    validation.explain_nonfinite(theta=theta)
    raise RuntimeError((<bytes> spo_status_text(status)).decode())


@cython.final
@cython.no_gc
cdef class Scratch:
    """Memory of a call in flight."""

    cdef double *data
    cdef int64_t size

    def __cinit__(self, int64_t size):
        self.data = <double *> malloc(<size_t> size * sizeof(double))
        if not self.data:
            raise MemoryError(f"no memory for a scratch of {size} doubles")
        self.size = size

    def __dealloc__(self):
        free(self.data)


@cython.final
@cython.no_gc
cdef class Moments:
    """Fourier series of the exponentials of the logits, for fixed projections and temperatures."""

    cdef spo_moments *series

    def __dealloc__(self):
        spo_core_moments_free(self.series)

    cdef object refusal(self):
        """Why they cannot be used, or None."""
        cdef const char *reason = spo_core_moments_refusal(self.series)
        return None if reason == NULL else (<bytes> reason).decode()


cdef int32_t _wish = SPO_WALK_AUTO


def prefer_walk(name):
    """Have networks set from now on walk their coupling in one way of `WALKS`, where they can; for tests."""
    global _wish
    _wish = WALKS[name]


def split(name):
    """Choose by a key of `SPLITS` which jobs are handed over to threads, from now on; for tests.

    Plans and runs are not meant to be used before and after.
    """
    spo_core_split(SPLITS[name])


cdef inline int32_t crew_of(object workers) noexcept:
    """Workers as the core takes them: more than there can be threads are as many as there can be."""
    return <int32_t> min(workers, 1 << 16)


cdef dict _moments = {}  # by content, oldest use first
cdef int64_t _made = 0


cdef Moments moments_of(object parameters, const spo_modulation *modulation):
    """The series of these parameters, made when first asked for; whoever loses a race throws his away."""
    global _made
    cdef Moments moments
    cdef int32_t status
    p = parameters
    contents = (p.temperature, p.w_q, p.w_k, p.w_v, p.w_o)
    key = (p.n_heads, p.d_model, *(array.tobytes() for array in contents))
    known = _moments.pop(key, None)
    if known is None:
        moments = Moments()
        with nogil:
            status = spo_core_moments_create(modulation, &moments.series)
        if status != SPO_OK:
            raise MemoryError("no memory for the Fourier series of the attention")
        _made += 1
        known = moments
    _moments[key] = known
    while len(_moments) > _MOMENTS_LIMIT:
        _moments.pop(next(iter(_moments)), None)
    return <Moments> known


def moments_made():
    """Number of Fourier series computed by this process, for tests of the cache."""
    return _made


@cython.final
cdef class ModulationPlan:
    """Modulation with fixed parameters, for any K.

    Parameters
    ----------
    parameters : ModulationParameters
        Checked parameters; their arrays are kept.
    """

    cdef readonly object parameters
    cdef spo_modulation modulation
    cdef Moments moments  # None until an N asks for them
    cdef list idle
    cdef int32_t workers

    def __init__(self, parameters):
        self.parameters = parameters
        self.modulation.n_heads = parameters.n_heads
        self.modulation.d_model = parameters.d_model
        self.modulation.block_size = parameters.block_size
        self.modulation.w_q = pointer(parameters.w_q)
        self.modulation.w_k = pointer(parameters.w_k)
        self.modulation.w_v = pointer(parameters.w_v)
        self.modulation.w_o = pointer(parameters.w_o)
        self.modulation.temperature = pointer(parameters.temperature)
        self.modulation.lambda_ = parameters.lambda_
        self.workers = crew_of(parameters.workers)
        self.idle = []

    def __reduce__(self):
        return ModulationPlan, (self.parameters,)

    cdef Scratch take(self, int64_t size):
        cdef Scratch scratch
        try:
            scratch = <Scratch> self.idle.pop()
        except IndexError:
            return Scratch(size)
        return scratch if scratch.size >= size else Scratch(size)

    cdef int give(self, Scratch scratch) except -1:
        if len(self.idle) < _IDLE_SCRATCHES:
            self.idle.append(scratch)
        return 0

    cdef Moments moments_for(self, int64_t n, int32_t traits, object algorithm):
        """The series where they may serve such a K, else None; "moments" insists and is told why not."""
        cdef bint insists = algorithm == "moments"
        if algorithm == "direct" or n == 0:
            return None
        if insists:
            if not traits & SPO_SYMMETRIC_PATTERN:
                raise ValueError("algorithm 'moments' needs a knm whose zeros lie symmetrically")
            if 0 <= self.modulation.block_size < n - 1:
                raise ValueError(f"algorithm 'moments' needs a block_size that reaches all {n} oscillators, "
                                 f"got {self.modulation.block_size}")
        elif not spo_core_moments_possible(n, &self.modulation, traits):
            return None
        if self.moments is None:
            self.moments = moments_of(self.parameters, &self.modulation)
        reason = self.moments.refusal()
        if reason is None:
            return self.moments
        if insists:
            raise ValueError(f"algorithm 'moments' cannot keep the accuracy with these projections and "
                             f"temperature: {reason}")
        return None

    cdef object execute(self, object knm, int32_t traits, object theta, object out, Moments moments,
                        const uint64_t *absent, Scratch scratch):
        """K' from scanned K; all arrays are checked but for the finiteness of theta."""
        cdef int64_t n = cnp.PyArray_DIM(<cnp.ndarray> knm, 0)
        cdef const double *coupling = pointer(knm)
        cdef const double *phases = pointer(theta)
        cdef double *result = pointer(out)
        cdef spo_attention_path path
        cdef int32_t status
        path.moments = NULL if moments is None else moments.series
        path.absent = absent
        path.redone = NULL
        with nogil:
            status = spo_core_modulate(n, coupling, traits, phases, &self.modulation, &path, self.workers,
                                       scratch.data, result)
        self.give(scratch)
        if status != SPO_OK:
            refuse(status, knm, theta)
        return out

    cdef int64_t room(self, int64_t n, Moments moments) noexcept:
        return spo_core_modulation_scratch(n, &self.modulation, NULL if moments is None else moments.series,
                                           self.workers)

    def __call__(self, knm, theta, out=None, algorithm="auto"):
        """K' of shape (N, N) for the coupling and phases; see `spo_fast.modulate`."""
        cdef object coupling = coupling_of(knm)
        cdef int64_t n = cnp.PyArray_DIM(<cnp.ndarray> coupling, 0)
        cdef object phases = phases_of(theta, n)
        out = output_of(out, n, knm, coupling)
        cdef const double *entries = pointer(coupling)
        cdef int32_t traits = 0
        cdef int32_t status
        cdef int64_t size
        cdef int64_t count
        cdef uint64_t *absent = NULL
        cdef Moments moments
        cdef Scratch scratch
        with nogil:
            status = spo_core_scan(n, entries, self.workers, &traits)
        if status != SPO_OK:
            refuse(status, coupling, phases)
        moments = self.moments_for(n, traits, algorithm)
        size = self.room(n, moments)
        if moments is None:
            return self.execute(coupling, traits, phases, out, None, NULL, self.take(size))
        scratch = self.take(size + spo_core_absent_words(n))
        absent = <uint64_t *> (scratch.data + size)
        count = 0
        if not traits & SPO_ALL_EDGES:
            with nogil:
                count = spo_core_find_absent(n, entries, self.workers, absent)
        if algorithm != "moments" and not spo_core_moments_pay(n, moments.series, count):
            moments = None
        return self.execute(coupling, traits, phases, out, moments, absent, scratch)

    def bind(self, knm, algorithm="auto"):
        """Return this modulation with a copy of K, scanned once."""
        return BoundModulation(self, knm, algorithm)

    def modulate_sparse(self, coupling, theta):
        """Data of K' on the places of a SparseCoupling. O(edges)."""
        return self._by_edges(coupling, theta, np.empty(coupling.data.shape[0]), True)

    def factors_sparse(self, coupling, theta):
        """Unit outputs of the attention over the edges of a SparseCoupling, shape (N, d)."""
        return self._by_edges(coupling, theta, np.empty((coupling.n, self.modulation.d_model)), False)

    cdef object _by_edges(self, object coupling, object theta, object result, bint modulated):
        cdef int64_t n = coupling.n
        cdef spo_sparse sparse = places_of(coupling)
        cdef object phases = phases_of(theta, n)
        cdef const double *entries = pointer(coupling.data)
        cdef const double *angles = pointer(phases)
        cdef double *out = pointer(result)
        cdef Scratch scratch = self.take(spo_core_sparse_scratch(n, &self.modulation, self.workers))
        cdef int32_t status
        with nogil:
            if modulated:
                status = spo_core_modulate_sparse(n, &sparse, entries, angles, &self.modulation,
                                                  self.workers, scratch.data, out)
            else:
                status = spo_core_factors_sparse(n, &sparse, entries, angles, &self.modulation,
                                                 self.workers, scratch.data, out)
        self.give(scratch)
        if status != SPO_OK:
            validation.explain_nonfinite(theta=phases)
            raise RuntimeError(status_text(status))
        return result


@cython.final
cdef class BoundModulation:
    """A modulation with its coupling.

    Parameters
    ----------
    plan : ModulationPlan
        The modulation.
    knm : array_like, shape (N, N)
        Symmetric coupling; copied.
    """

    cdef readonly object knm
    cdef readonly ModulationPlan plan
    cdef object absent  # K's missing edges, where moments are used
    cdef Moments moments  # None: pair by pair
    cdef object requested
    cdef int32_t traits
    cdef int64_t n

    def __init__(self, ModulationPlan plan, knm, algorithm="auto"):
        self.plan = plan
        self.requested = algorithm
        self.knm = np.array(validation.as_coupling(knm), dtype=np.float64, order="C", copy=True)
        self.knm.setflags(write=False)
        self.n = self.knm.shape[0]
        cdef int32_t status = spo_core_scan(self.n, pointer(self.knm), plan.workers, &self.traits)
        if status != SPO_OK:
            refuse(status, self.knm, np.empty(0))
        self.moments = plan.moments_for(self.n, self.traits, algorithm)
        if self.moments is not None:
            self._find_absent(algorithm == "moments")

    cdef int _find_absent(self, bint insists) except -1:
        cdef const double *entries = pointer(self.knm)
        cdef int64_t count = 0
        if not self.traits & SPO_ALL_EDGES:
            self.absent = np.empty(spo_core_absent_words(self.n), dtype=np.uint64)
            count = spo_core_find_absent(self.n, entries, self.plan.workers,
                                         <uint64_t *> pointer(self.absent))
        if not insists and not spo_core_moments_pay(self.n, self.moments.series, count):
            self.moments = self.absent = None
        return 0

    @property
    def algorithm(self):
        """"moments" or "direct"."""
        return "direct" if self.moments is None else "moments"

    def __reduce__(self):
        return BoundModulation, (self.plan, self.knm, self.requested)

    def __call__(self, theta, out=None):
        """K' of shape (N, N) for the phases (N,)."""
        cdef object phases = phases_of(theta, self.n)
        out = output_of(out, self.n, self.knm, self.knm)
        return self.plan.execute(self.knm, self.traits, phases, out, self.moments,
                                 <const uint64_t *> pointer(self.absent),
                                 self.plan.take(self.plan.room(self.n, self.moments)))

    def factors(self, theta):
        """Unit outputs of the attention, shape (N, d)."""
        return self._factors(theta)[0]

    def rows_redone(self, theta):
        """Number of oscillators whose sums through order parameters could not be trusted."""
        return self._factors(theta)[1]

    cdef tuple _factors(self, theta):
        cdef int64_t redone = 0
        cdef object phases = phases_of(theta, self.n)
        cdef object result = np.empty((self.n, self.plan.modulation.d_model))
        cdef object square = None if self.traits & SPO_SYMMETRIC_PATTERN else np.empty((self.n, self.n))
        cdef const double *coupling = pointer(self.knm)
        cdef const double *angles = pointer(phases)
        cdef double *room = pointer(square)
        cdef double *factors = pointer(result)
        cdef Scratch scratch = self.plan.take(self.plan.room(self.n, self.moments))
        cdef spo_attention_path path
        cdef int32_t status
        path.moments = NULL if self.moments is None else self.moments.series
        path.absent = <const uint64_t *> pointer(self.absent)
        path.redone = &redone
        with nogil:
            status = spo_core_factors(self.n, coupling, self.traits, angles, &self.plan.modulation, &path,
                                      self.plan.workers, scratch.data, room, factors)
        self.plan.give(scratch)
        if status != SPO_OK:
            refuse(status, self.knm, phases)
        return result, redone


@cython.final
cdef class Integration:
    """One trajectory being advanced, with its scratch.

    Parameters
    ----------
    n : int
        Number of oscillators.
    method : {"euler", "rk4", "rk45"}
        Integrator.
    dt : float
        Step; the first one for rk45.
    atol, rtol : float
        Tolerances of rk45.
    """

    cdef readonly object theta
    cdef spo_network network
    cdef spo_sparse sparse
    cdef const spo_sparse *places  # NULL: K is dense
    cdef spo_integrator integrator
    cdef spo_state state
    cdef object held  # what the pointers in network point into
    cdef object modulated
    cdef object plan
    cdef Moments moments  # None: the attention goes pair by pair
    cdef Scratch scratch
    cdef bint busy

    def __init__(self, int64_t n, method, double dt, double atol, double rtol):
        self.network.n = n
        self.integrator.method = METHODS[method]
        self.integrator.dt = dt
        self.integrator.atol = atol
        self.integrator.rtol = rtol
        self.theta = np.zeros(n)
        self.state.theta = pointer(self.theta)
        self.state.dt = dt
        self.busy = False

    @property
    def t(self):
        """Time reached."""
        return self.state.t

    @t.setter
    def t(self, double value):
        self.state.t = value

    @property
    def dt(self):
        """Step size tried next."""
        return self.state.dt

    @dt.setter
    def dt(self, double value):
        self.state.dt = value

    @property
    def step(self):
        """Steps taken."""
        return self.state.step

    @step.setter
    def step(self, int64_t value):
        self.state.step = value

    @property
    def walk(self):
        """How the coupling is walked: a key of `WALKS`, or None before there is one."""
        if self.scratch is None:
            return None
        taken = spo_core_walk(self.scratch.data)
        return next(name for name, number in WALKS.items() if number == taken)

    cdef int acquire(self) except -1:
        if self.busy:
            raise RuntimeError("this integration is being advanced by another thread")
        self.busy = True
        return 0

    def set_network(self, network):
        """Take K, the frequencies, lags, drive and modulation; arrays are kept by reference."""
        cdef int64_t size
        cdef int32_t status
        cdef int32_t wish
        cdef int32_t workers = crew_of(network.workers)
        cdef const spo_moments *series
        cdef object knm = network.knm
        self.acquire()
        try:
            self.held = (network.omega, knm, network.alpha)
            self.places = NULL
            if not cnp.PyArray_Check(knm):
                self.sparse = places_of(knm)
                self.places = &self.sparse
                knm = knm.data
            self.network.omega = pointer(network.omega)
            self.network.knm = pointer(knm)
            self.network.alpha = pointer(network.alpha)
            self.network.uniform_alpha = network.uniform_alpha
            self.network.zeta = network.zeta
            self.network.psi = network.psi
            self.network.modulate_every = network.modulate_every
            self._set_modulation(network.modulation, knm, workers)
            series = NULL if self.moments is None else self.moments.series
            wish = _wish
            if wish == SPO_WALK_AUTO and network.modulation is None and not network.persistent:
                wish = SPO_WALK_WHOLE  # a look at K's symmetry costs more than a few steps
            size = spo_core_run_scratch(&self.network, self.places, series, self.integrator.method, wish,
                                        workers)
            if self.scratch is None or self.scratch.size < size:
                self.scratch = Scratch(size)
            with nogil:
                status = spo_core_prepare(&self.network, self.places, series, self.integrator.method, wish,
                                          workers, self.scratch.data)
        finally:
            self.busy = False
        if status != SPO_OK:
            refuse(status, network.knm, self.theta)

    cdef int _set_modulation(self, object parameters, object entries, int32_t workers) except -1:
        self.moments = None
        if parameters is None:
            self.plan = self.modulated = None
            self.network.modulation = NULL
            self.state.modulated = NULL
            return 0
        self.plan = ModulationPlan(parameters)
        self.network.modulation = &(<ModulationPlan> self.plan).modulation
        if self.modulated is None or self.modulated.shape != entries.shape:
            self.modulated = np.empty(entries.shape)
        self.state.modulated = pointer(self.modulated)
        if self.places == NULL:
            self._choose_path(parameters.algorithm, entries, workers)
        return 0

    cdef int _choose_path(self, object algorithm, object knm, int32_t workers) except -1:
        """Take the moments where they pay; a faulty K is left to be found by the preparation."""
        cdef const double *entries = pointer(knm)
        cdef int64_t n = self.network.n
        cdef int64_t count = 0
        cdef int32_t traits = SPO_SYMMETRIC_PATTERN
        cdef ModulationPlan plan = self.plan
        if algorithm != "moments" and not spo_core_moments_possible(n, &plan.modulation, traits):
            return 0
        if spo_core_scan(n, entries, workers, &traits) != SPO_OK:
            return 0
        self.moments = plan.moments_for(n, traits, algorithm)
        if self.moments is None or algorithm == "moments":
            return 0
        if not traits & SPO_ALL_EDGES:
            absent = np.empty(spo_core_absent_words(n), dtype=np.uint64)
            count = spo_core_find_absent(n, entries, workers, <uint64_t *> pointer(absent))
        if not spo_core_moments_pay(n, self.moments.series, count):
            self.moments = None
        return 0

    def start(self, theta):
        """Begin anew at the given phases (N,), wrapped into [0, 2 pi)."""
        cdef double[::1] phases = self.theta
        cdef int64_t i
        self.acquire()
        try:
            self.theta[:] = theta
            for i in range(self.network.n):
                phases[i] = wrapped(phases[i])
            self.state.t = 0.0
            self.state.step = 0
            self.state.dt = self.integrator.dt
        finally:
            self.busy = False

    def advance(self, int64_t n_steps, record=None):
        """Take `n_steps` steps without the GIL; returns a `Status`; a failure keeps the last good state."""
        cdef spo_record kept = kept_by(record)
        cdef const spo_record *keep = NULL if record is None else &kept
        cdef const spo_moments *series = NULL if self.moments is None else self.moments.series
        cdef int32_t status
        if self.scratch is None:
            raise RuntimeError("set_network comes before advance")
        self.acquire()
        with nogil:
            status = spo_core_run(&self.network, self.places, &self.integrator, series, &self.state, n_steps,
                                  keep, self.scratch.data)
        self.busy = False
        return status


@cython.final
cdef class Batch:
    """Many trajectories over one dense coupling, advanced side by side by a fixed-step method.

    Parameters
    ----------
    m, n : int
        Members, and oscillators of each.
    method : {"euler", "rk4"}
        Integrator.
    dt : float
        Step.
    """

    cdef readonly object theta
    cdef readonly object status
    cdef readonly object steps
    cdef spo_network network
    cdef spo_integrator integrator
    cdef spo_ensemble ensemble
    cdef object held
    cdef ModulationPlan plan
    cdef Scratch scratch
    cdef Scratch room
    cdef int32_t workers
    cdef bint busy

    def __init__(self, int64_t m, int64_t n, method, double dt):
        self.network.n = n
        self.integrator.method = METHODS[method]
        self.integrator.dt = dt
        self.theta = np.zeros((m, n))
        self.status = np.zeros(m, dtype=np.int32)
        self.steps = np.zeros(m, dtype=np.int64)
        self.ensemble.members = m
        self.ensemble.theta = pointer(self.theta)
        self.ensemble.status = <int32_t *> cnp.PyArray_DATA(<cnp.ndarray> self.status)
        self.ensemble.steps = <int64_t *> cnp.PyArray_DATA(<cnp.ndarray> self.steps)

    @property
    def t(self):
        """Time reached by the members that did not fail."""
        return self.ensemble.step * self.integrator.dt

    @property
    def step(self):
        """Steps taken by the members that did not fail."""
        return self.ensemble.step

    @step.setter
    def step(self, int64_t value):
        self.ensemble.step = value

    def set_network(self, network, omegas, strengths=None):
        """Take the shared K, lags, drive and modulation, frequencies (M, N) and, where they differ, strengths
        of the modulation (M,); arrays are kept by reference.
        """
        cdef int32_t status
        self.held = (network.knm, network.alpha, network.omega, omegas, strengths)
        self.network.omega = pointer(network.omega)
        self.network.knm = pointer(network.knm)
        self.network.alpha = pointer(network.alpha)
        self.network.uniform_alpha = network.uniform_alpha
        self.network.zeta = network.zeta
        self.network.psi = network.psi
        self.network.modulate_every = network.modulate_every
        self.network.modulation = NULL
        if network.modulation is not None:
            self.plan = ModulationPlan(network.modulation)
            self.network.modulation = &self.plan.modulation
        self.ensemble.omega = pointer(omegas)
        self.ensemble.lambda_ = pointer(strengths)
        self.workers = min(crew_of(network.workers), <int32_t> max(self.ensemble.members, 1))
        size = spo_core_run_scratch(&self.network, NULL, NULL, self.integrator.method, SPO_WALK_WHOLE, 1)
        self.scratch = Scratch(size)
        self.room = Scratch(spo_core_members_room(&self.network, self.ensemble.members, self.workers))
        with nogil:
            status = spo_core_prepare(&self.network, NULL, NULL, self.integrator.method, SPO_WALK_WHOLE, 1,
                                      self.scratch.data)
        if status != SPO_OK:
            refuse(status, network.knm, self.theta)

    def start(self, theta):
        """Begin anew at the given phases (M, N), wrapped into [0, 2 pi)."""
        cdef double[:, ::1] phases = self.theta
        cdef int64_t member, i
        self.theta[:] = theta
        for member in range(phases.shape[0]):
            for i in range(phases.shape[1]):
                phases[member, i] = wrapped(phases[member, i])
        self.status[:] = 0
        self.steps[:] = 0
        self.ensemble.step = 0

    def advance(self, int64_t n_steps, record=None):
        """Take `n_steps` steps without the GIL; what failed stands in `status`."""
        cdef spo_record kept = kept_by(record)
        cdef int32_t status
        if self.scratch is None:
            raise RuntimeError("set_network comes before advance")
        if self.busy:
            raise RuntimeError("this batch is being advanced by another thread")
        self.busy = True
        with nogil:
            status = spo_core_run_members(&self.network, &self.integrator, &self.ensemble, n_steps, &kept,
                                          self.workers, self.scratch.data, self.room.data)
        self.busy = False
        return status


cdef spo_record kept_by(object record) noexcept:
    """The arrays of a Record, or nothing for None."""
    cdef spo_record kept
    kept.every = 0
    kept.theta = kept.t = kept.r = kept.psi = kept.t_observe = NULL
    if record is not None:
        kept.every = record.every
        kept.theta = pointer(record.theta)
        kept.t = pointer(record.t)
        kept.r = pointer(record.R)
        kept.psi = pointer(record.psi)
        kept.t_observe = pointer(record.t_observe)
    return kept


cdef inline double wrapped(double x) noexcept:
    cdef double y = fmod(x, TWO_PI)
    if y < 0.0:
        y += TWO_PI
    return 0.0 if y == TWO_PI else y


def order_parameter(theta):
    """Order parameter and mean phase of each row of theta (T, N), float64 in C order: two arrays (T,)."""
    cdef int64_t rows = theta.shape[0], n = theta.shape[1]
    cdef object length = np.empty(rows)
    cdef object angle = np.empty(rows)
    cdef const double *phases = pointer(theta)
    cdef double *r = pointer(length)
    cdef double *psi = pointer(angle)
    with nogil:
        spo_core_order_parameters(rows, n, phases, r, psi)
    return length, angle


def order_moments(double[::1] theta, int64_t count):
    """Real and imaginary parts of sum_j exp(i k theta_j) for k < count, a multiple of 8, for tests."""
    cdef int64_t n = theta.shape[0]
    cdef double[::1] re = np.empty(count)
    cdef double[::1] im = np.empty(count)
    cdef Scratch scratch = Scratch(spo_core_harmonic_scratch(n, count))
    cdef int32_t status = spo_core_harmonic_sums(n, count, &theta[0], scratch.data, &re[0], &im[0])
    if status != SPO_OK:
        raise ValueError(status_text(status))
    return np.asarray(re), np.asarray(im)


def abi_version():
    """Version of the C interface."""
    return spo_abi_version()


def status_text(int32_t status):
    """Text of a status code."""
    return (<bytes> spo_status_text(status)).decode()


def exp(double[::1] x):
    """e^x by the kernels' own vector function, for tests."""
    cdef double[::1] y = np.empty(x.shape[0])
    if x.shape[0]:
        spo_core_exp(x.shape[0], &x[0], &y[0])
    return np.asarray(y)


def exp2(double[::1] x):
    """2^x for -1021 <= x <= 1023 by the kernels' own vector function, for tests."""
    cdef double[::1] y = np.empty(x.shape[0])
    if x.shape[0]:
        spo_core_exp2(x.shape[0], &x[0], &y[0])
    return np.asarray(y)


def sincos(double[::1] x):
    """Sine and cosine of x by the kernels' own vector function, for tests."""
    cdef double[::1] sine = np.empty(x.shape[0])
    cdef double[::1] cosine = np.empty(x.shape[0])
    if x.shape[0]:
        spo_core_sincos(x.shape[0], &x[0], &sine[0], &cosine[0])
    return np.asarray(sine), np.asarray(cosine)


def instruction_set():
    """Name of the instruction set in use."""
    return (<bytes> spo_core_instruction_set()).decode()


def instruction_sets():
    """Names of the instruction sets that this processor can run, fastest first."""
    names = []
    while spo_core_available_instruction_set(<int32_t> len(names)) != NULL:
        names.append((<bytes> spo_core_available_instruction_set(<int32_t> len(names))).decode())
    return names


def select_instruction_set(name):
    """Run the kernels of another instruction set from now on; for tests, while no kernel runs.

    Raises
    ------
    ValueError
        If this processor does not have it.
    """
    if spo_core_select_instruction_set(name.encode()) != SPO_OK:
        raise ValueError(f"name must be one of {', '.join(instruction_sets())}, got {name!r}")


def measure_read(const double[::1] x, int64_t repeats=10):
    """Seconds that the fastest of `repeats` passes over x takes."""
    return spo_core_measure_read(x.shape[0], &x[0], repeats)


def measure_fma():
    """Multiply-adds a second that this processor reaches on one core in registers."""
    return spo_core_measure_multiply_add()


# ---- attention ----

cdef extern from "spo_fast_core.h" nogil:
    ctypedef struct spo_attention:
        int32_t single
        int32_t causal
        int64_t groups
        int64_t heads
        int64_t queries
        int64_t keys
        int64_t width
        int64_t value_width
        double scale
        const void *q
        const void *k
        const void *v
        const void *sink
        const void *sink_value
        const uint8_t *key_mask

    ctypedef struct spo_attention_gradients:
        void *q
        void *k
        void *v
        void *sink
        void *sink_value

    ctypedef struct spo_phase_attention:
        int32_t single
        int32_t static_query
        int64_t batch
        int64_t tokens
        int64_t heads
        int64_t phases
        int64_t value_width
        int64_t steps
        double dt
        double value_consensus
        const void *c
        const void *s
        const void *query_c
        const void *query_s
        const void *v
        const void *weight
        const void *alpha
        const void *kappa
        const double *ramp

    ctypedef struct spo_phase_gradients:
        void *c
        void *s
        void *query_c
        void *query_s
        void *v
        void *weight
        void *alpha
        void *kappa

    enum: SPO_KEEP_NONE
    enum: SPO_KEEP_ALL
    enum: SPO_KEEP_SQRT
    int32_t spo_core_attend(const spo_attention *, void *, void *, int32_t)
    int32_t spo_core_attend_vjp(const spo_attention *, const void *, const void *, const void *,
                                const spo_attention_gradients *, int32_t)
    int64_t spo_core_phase_state(const spo_phase_attention *, int32_t, int64_t *)
    int32_t spo_core_phase_attend(const spo_phase_attention *, int32_t, void *, void *, int32_t)
    int32_t spo_core_phase_attend_vjp(const spo_phase_attention *, int32_t, const void *, const void *,
                                      const spo_phase_gradients *, int32_t)

KEEP = {"none": SPO_KEEP_NONE, "all": SPO_KEEP_ALL, "sqrt": SPO_KEEP_SQRT}


cdef object operand(object array, tuple shape, object dtype):
    """The array, if it is what a kernel may read: an ndarray of this shape and type in C order."""
    if array.shape != shape or array.dtype != dtype or not cnp.PyArray_ISCARRAY_RO(<cnp.ndarray> array):
        raise ValueError(f"expected a C-contiguous {dtype} array of shape {shape}, got {array.dtype} "
                         f"of shape {array.shape}")
    return array


cdef int raise_for(int32_t status) except -1:
    if status == SPO_OK:
        return 0
    raise (MemoryError if status == SPO_OUT_OF_MEMORY else ValueError)(status_text(status))


cdef object attention_of(spo_attention *at, q, k, v, scale, causal, key_mask, sink, sink_value):
    """Fills the C description; returns the dtype."""
    groups, heads, queries, width = q.shape
    keys, value_width = v.shape[2], v.shape[3]
    dtype = q.dtype
    if dtype != np.float64 and dtype != np.float32:
        raise ValueError(f"expected float32 or float64 arrays, got {dtype}")
    at.single = dtype == np.float32
    at.causal = bool(causal)
    at.groups, at.heads, at.queries, at.keys = groups, heads, queries, keys
    at.width, at.value_width, at.scale = width, value_width, scale
    at.q = pointer(operand(q, (groups, heads, queries, width), dtype))
    at.k = pointer(operand(k, (groups, heads, keys, width), dtype))
    at.v = pointer(operand(v, (groups, heads, keys, value_width), dtype))
    at.key_mask = NULL
    if key_mask is not None:
        at.key_mask = <const uint8_t *> pointer(operand(key_mask, (groups, keys), np.dtype(bool)))
    at.sink = at.sink_value = NULL
    if sink is not None:
        at.sink = pointer(operand(sink, (heads,), dtype))
        if sink_value is not None:
            at.sink_value = pointer(operand(sink_value, (heads, value_width), dtype))
    return dtype


def attend(q, k, v, *, double scale, causal, key_mask, sink, sink_value, int32_t workers):
    """Softmax attention of q (G, H, N, e), k (G, H, M, e), v (G, H, M, f): out (G, H, N, f) and lse."""
    cdef spo_attention at
    cdef int32_t status
    dtype = attention_of(&at, q, k, v, scale, causal, key_mask, sink, sink_value)
    out = np.empty((at.groups, at.heads, at.queries, at.value_width), dtype)
    lse = np.empty((at.groups, at.heads, at.queries), dtype)
    cdef void *to = pointer(out)
    cdef void *norm = pointer(lse)
    with nogil:
        status = spo_core_attend(&at, to, norm, workers)
    raise_for(status)
    return out, lse


def attend_vjp(q, k, v, out, lse, grad_out, *, double scale, causal, key_mask, sink, sink_value,
               int32_t workers):
    """Gradients (dq, dk, dv, dsink, dsink_value) of attend from that at out; None where there is no sink."""
    cdef spo_attention at
    cdef spo_attention_gradients to
    cdef int32_t status
    dtype = attention_of(&at, q, k, v, scale, causal, key_mask, sink, sink_value)
    shape = (at.groups, at.heads, at.queries, at.value_width)
    cdef const void *values = pointer(operand(out, shape, dtype))
    cdef const void *norm = pointer(operand(lse, shape[:3], dtype))
    cdef const void *gradient = pointer(operand(grad_out, shape, dtype))
    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    dsink = None if sink is None else np.empty_like(sink)
    dsink_value = None if sink is None or sink_value is None else np.empty_like(sink_value)
    to.q, to.k, to.v = pointer(dq), pointer(dk), pointer(dv)
    to.sink, to.sink_value = pointer(dsink), pointer(dsink_value)
    with nogil:
        status = spo_core_attend_vjp(&at, values, norm, gradient, &to, workers)
    raise_for(status)
    return dq, dk, dv, dsink, dsink_value


cdef object in_lines(array, int64_t size):
    """A copy of the bytes (or room for them) that begins a cache line; the array itself where it does."""
    if array is not None and <size_t> pointer(array) % 64 == 0:
        return array
    room = np.empty(size + 64, np.uint8)
    cdef int64_t begin = -<int64_t> (<size_t> pointer(room)) & 63
    room = room[begin:begin + size]
    if array is not None:
        room[:] = array
    return room


class PhaseState:
    """What the reverse pass of a phase attention needs: its arguments, by reference, and what was kept.

    Attributes
    ----------
    arguments : dict
        Those of phase_attend but for workers.
    layout : int
        Stands for the order in which the kernels of the instruction set in use kept their numbers.
    kept : ndarray of uint8
        The numbers.
    """

    def __init__(self, arguments, layout, kept):
        self.arguments = arguments
        self.layout = layout
        self.kept = kept


cdef object phases_in(spo_phase_attention *at, dict by):
    """Fills the C description from the arguments of phase_attend; returns the dtype."""
    c, v = by["c"], by["v"]
    batch, tokens, heads, phases = shape = c.shape
    dtype = c.dtype
    if dtype != np.float64 and dtype != np.float32:
        raise ValueError(f"expected float32 or float64 arrays, got {dtype}")
    at.single = dtype == np.float32
    at.static_query = bool(by["static_query"])
    at.batch, at.tokens, at.heads, at.phases = batch, tokens, heads, phases
    at.value_width, at.steps = v.shape[3], by["steps"]
    at.dt, at.value_consensus = by["dt"], by["value_consensus"]
    at.c = pointer(operand(c, shape, dtype))
    at.s = pointer(operand(by["s"], shape, dtype))
    at.v = pointer(operand(v, (batch, tokens, heads, at.value_width), dtype))
    at.weight = pointer(operand(by["weight"], (heads, phases), dtype))
    at.alpha = pointer(operand(by["alpha"], (heads, phases), dtype))
    at.kappa = pointer(operand(by["kappa"], (heads,), dtype))
    at.ramp = pointer(operand(by["ramp"], (phases,), np.dtype(float)))
    at.query_c = at.query_s = NULL
    if by["queries"] is not None:
        query_c, query_s = by["queries"]
        at.query_c = pointer(operand(query_c, shape, dtype))
        at.query_s = pointer(operand(query_s, shape, dtype))
    return dtype


def phase_attend(c, s, v, weight, alpha, kappa, ramp, *, int64_t steps, double dt, queries=None,
                 static_query, double value_consensus, keep, int32_t workers):
    """Values v (B, N, H, f) read by phases (c, s) (B, N, H, m) after their dynamics: out, state or None."""
    cdef spo_phase_attention at
    cdef int64_t layout = 0, size
    cdef int32_t status, kept = KEEP[keep]
    arguments = {"c": c, "s": s, "v": v, "weight": weight, "alpha": alpha, "kappa": kappa, "ramp": ramp,
                 "steps": steps, "dt": dt, "queries": queries, "static_query": static_query,
                 "value_consensus": value_consensus, "keep": keep}
    dtype = phases_in(&at, arguments)
    out = np.empty((at.batch, at.tokens, at.heads, at.value_width), dtype)
    size = spo_core_phase_state(&at, kept, &layout)
    state = None
    if kept != SPO_KEEP_NONE:
        state = PhaseState(arguments, layout, in_lines(None, size))
    cdef void *room = NULL if state is None else pointer(state.kept)
    cdef void *to = pointer(out)
    with nogil:
        status = spo_core_phase_attend(&at, kept, room, to, workers)
    raise_for(status)
    return out, state


def phase_attend_vjp(state, grad_out, *, int32_t workers):
    """Gradients of phase_attend: dc, ds, dv, dweight, dalpha, dkappa, and with queries dcq, dsq."""
    cdef spo_phase_attention at
    cdef spo_phase_gradients to
    cdef int64_t layout = 0, size
    cdef int32_t status, kept = KEEP[state.arguments["keep"]]
    by = state.arguments
    dtype = phases_in(&at, by)
    cdef const void *gradient = pointer(operand(grad_out, by["v"].shape, dtype))
    size = spo_core_phase_state(&at, kept, &layout)
    if state.layout != layout:  # kept by the kernels of another instruction set
        _, state = phase_attend(**by, workers=workers)
    held = in_lines(operand(state.kept, (size,), np.dtype(np.uint8)), size)
    cdef const void *room = pointer(held)
    found = {"d" + name: np.empty_like(by[name]) for name in ("c", "s", "v", "weight", "alpha", "kappa")}
    to.query_c = to.query_s = NULL
    if by["queries"] is not None:
        found["dcq"], found["dsq"] = (np.empty_like(part) for part in by["queries"])
        to.query_c, to.query_s = pointer(found["dcq"]), pointer(found["dsq"])
    to.c, to.s, to.v = pointer(found["dc"]), pointer(found["ds"]), pointer(found["dv"])
    to.weight, to.alpha = pointer(found["dweight"]), pointer(found["dalpha"])
    to.kappa = pointer(found["dkappa"])
    with nogil:
        status = spo_core_phase_attend_vjp(&at, kept, room, gradient, &to, workers)
    raise_for(status)
    return found


# ---- parts of context-pulse attention ----

cdef extern from "spo_fast_core.h" nogil:
    ctypedef struct spo_resonance:
        int32_t single
        int32_t per_token
        int64_t batch
        int64_t tokens
        int64_t heads
        int64_t width
        int64_t chunk
        int64_t moments
        double scale
        const void *u
        const void *k
        const void *basis
        const void *last_basis

    ctypedef struct spo_turn:
        int32_t single
        int32_t twist_first
        int64_t batch
        int64_t tokens
        int64_t heads
        int64_t width
        const void *x
        const void *twist
        const void *cosine
        const void *sine
        const double *shift
        const double *factor

    int32_t spo_core_gate(int32_t, int64_t, const void *, const void *, void *, int32_t)
    int32_t spo_core_gate_vjp(int32_t, int64_t, const void *, const void *, const void *, void *, void *,
                              int32_t)
    int32_t spo_core_leaky_scan(int32_t, int64_t, int64_t, int64_t, double, const void *, void *, int32_t)
    int32_t spo_core_leaky_scan_vjp(int32_t, int64_t, int64_t, int64_t, double, const void *, const void *,
                                    const void *, void *, double *, int32_t)
    int32_t spo_core_resonance(const spo_resonance *, void *, int32_t)
    int32_t spo_core_resonance_vjp(const spo_resonance *, const void *, const void *, void *, void *, int32_t)
    int32_t spo_core_token_moments(int32_t, int64_t, int64_t, const void *, double *, double *, int32_t)
    int32_t spo_core_turn(const spo_turn *, void *, int32_t)
    int32_t spo_core_turn_vjp(const spo_turn *, const void *, void *, double *, double *, double *, int32_t)
    int32_t spo_core_unnormalise(int32_t, int64_t, int64_t, void *, const void *, const double *,
                                 const double *, const double *, const double *, int32_t)

FLOAT64 = np.dtype(float)


cdef int32_t is_single(object dtype) except -1:
    if dtype != np.float64 and dtype != np.float32:
        raise ValueError(f"expected float32 or float64 arrays, got {dtype}")
    return dtype == np.float32


def gate(x, g, *, int32_t workers):
    """sigmoid(g) x."""
    cdef int32_t status, single = is_single(x.dtype)
    cdef int64_t count = x.size
    out = np.empty_like(x)
    cdef const void *from_x = pointer(operand(x, x.shape, x.dtype))
    cdef const void *from_g = pointer(operand(g, x.shape, x.dtype))
    cdef void *to = pointer(out)
    with nogil:
        status = spo_core_gate(single, count, from_x, from_g, to, workers)
    raise_for(status)
    return out


def gate_vjp(x, g, grad, *, int32_t workers):
    """Gradients of gate at x and g."""
    cdef int32_t status, single = is_single(x.dtype)
    cdef int64_t count = x.size
    dx, dg = np.empty_like(x), np.empty_like(x)
    cdef const void *from_x = pointer(operand(x, x.shape, x.dtype))
    cdef const void *from_g = pointer(operand(g, x.shape, x.dtype))
    cdef const void *gradient = pointer(operand(grad, x.shape, x.dtype))
    cdef void *to_x = pointer(dx)
    cdef void *to_g = pointer(dg)
    with nogil:
        status = spo_core_gate_vjp(single, count, from_x, from_g, gradient, to_x, to_g, workers)
    raise_for(status)
    return dx, dg


def leaky_scan(x, double decay, out, *, int32_t workers):
    """c_t = decay c_{t-1} + (1 - decay) x_t along the second axis of x (B, N, C), into out."""
    cdef int32_t status, single = is_single(x.dtype)
    cdef int64_t batch, tokens, channels
    batch, tokens, channels = x.shape
    if not out.flags.writeable:
        raise ValueError("expected a writable array to write to")
    cdef const void *source = pointer(operand(x, x.shape, x.dtype))
    cdef void *to = pointer(operand(out, x.shape, x.dtype))
    with nogil:
        status = spo_core_leaky_scan(single, batch, tokens, channels, decay, source, to, workers)
    raise_for(status)


def leaky_scan_vjp(x, double decay, c, grad, *, int32_t workers):
    """Gradients of leaky_scan at x and, unless c is None, at the decay."""
    cdef int32_t status, single = is_single(x.dtype)
    cdef int64_t batch, tokens, channels
    cdef double ddecay = 0.0
    batch, tokens, channels = x.shape
    dx = np.empty_like(x)
    cdef const void *source = pointer(operand(x, x.shape, x.dtype))
    cdef const void *states = NULL if c is None else pointer(operand(c, x.shape, x.dtype))
    cdef const void *gradient = pointer(operand(grad, x.shape, x.dtype))
    cdef void *to = pointer(dx)
    with nogil:
        status = spo_core_leaky_scan_vjp(single, batch, tokens, channels, decay, source, states, gradient, to,
                                         &ddecay, workers)
    raise_for(status)
    return dx, ddecay


cdef int resonance_of(spo_resonance *at, u, k, chunk, scale, basis, last_basis, per_token) except -1:
    """Fills the C description."""
    cdef int64_t tail
    dtype = u.dtype
    at.single = is_single(dtype)
    at.batch, at.tokens, at.heads, at.width = u.shape
    at.chunk, at.scale, at.per_token = chunk, scale, bool(per_token)
    if at.chunk < 1 or at.tokens < 1:
        raise ValueError(status_text(SPO_INVALID_ARGUMENT))
    at.u = pointer(operand(u, u.shape, dtype))
    at.k = pointer(operand(k, u.shape, dtype))
    at.moments = 0
    at.basis = at.last_basis = NULL
    if basis is None:
        at.per_token = 1
    else:
        at.moments = basis.shape[1]
        tail = (at.tokens - 1) % at.chunk + 1
        at.basis = pointer(operand(basis, (at.chunk, at.moments), dtype))
        at.last_basis = pointer(operand(last_basis, (tail, at.moments), dtype))
    return 0


def resonance(u, k, *, chunk, scale, basis, last_basis, per_token, int32_t workers):
    """Running sums of u in chunks, with what was remembered of past chunks that resemble the keys."""
    cdef spo_resonance at
    cdef int32_t status
    resonance_of(&at, u, k, chunk, scale, basis, last_basis, per_token)
    c = np.empty_like(u)
    cdef void *to = pointer(c)
    with nogil:
        status = spo_core_resonance(&at, to, workers)
    raise_for(status)
    return c


def resonance_vjp(u, k, c, grad, *, chunk, scale, basis, last_basis, per_token, int32_t workers):
    """Gradients of resonance at u and k."""
    cdef spo_resonance at
    cdef int32_t status
    resonance_of(&at, u, k, chunk, scale, basis, last_basis, per_token)
    du, dk = np.empty_like(u), np.empty_like(u)
    cdef const void *states = pointer(operand(c, u.shape, u.dtype))
    cdef const void *gradient = pointer(operand(grad, u.shape, u.dtype))
    cdef void *to_u = pointer(du)
    cdef void *to_k = pointer(dk)
    with nogil:
        status = spo_core_resonance_vjp(&at, states, gradient, to_u, to_k, workers)
    raise_for(status)
    return du, dk


def token_moments(x, *, int32_t workers):
    """Mean of each token's numbers in a head and the sum of their squared distances from it."""
    cdef int32_t status, single = is_single(x.dtype)
    cdef int64_t width = x.shape[3], rows = x.size // width
    mean, squares = np.empty(x.shape[:3]), np.empty(x.shape[:3])
    cdef const void *source = pointer(operand(x, x.shape, x.dtype))
    cdef double *to_mean = pointer(mean)
    cdef double *to_squares = pointer(squares)
    with nogil:
        status = spo_core_token_moments(single, rows, width, source, to_mean, to_squares, workers)
    raise_for(status)
    return mean, squares


cdef int turn_of(spo_turn *at, x, shift, factor, twist, cosine, sine, twist_first) except -1:
    """Fills the C description."""
    dtype = x.dtype
    at.single = is_single(dtype)
    at.twist_first = bool(twist_first)
    at.batch, at.tokens, at.heads, at.width = x.shape
    small, table = x.shape[:3], (x.shape[1], x.shape[3] // 2)
    at.x = pointer(operand(x, x.shape, dtype))
    at.shift = pointer(operand(shift, small, FLOAT64))
    at.factor = pointer(operand(factor, small, FLOAT64))
    at.cosine = pointer(operand(cosine, table, dtype))
    at.sine = pointer(operand(sine, table, dtype))
    at.twist = NULL
    if twist is not None:
        at.twist = pointer(operand(twist, (at.heads, at.width, at.width), dtype))
    return 0


def turn(x, shift, factor, twist, cosine, sine, *, twist_first, int32_t workers):
    """Normalised, twisted and rotated tokens, heads first."""
    cdef spo_turn at
    cdef int32_t status
    turn_of(&at, x, shift, factor, twist, cosine, sine, twist_first)
    y = np.empty((at.batch, at.heads, at.tokens, at.width), x.dtype)
    cdef void *to = pointer(y)
    with nogil:
        status = spo_core_turn(&at, to, workers)
    raise_for(status)
    return y


def turn_vjp(x, shift, factor, twist, cosine, sine, grad, *, twist_first, int32_t workers):
    """Gradient of turn at the normalised tokens, its sums, and that at the twist or None."""
    cdef spo_turn at
    cdef int32_t status
    turn_of(&at, x, shift, factor, twist, cosine, sine, twist_first)
    cdef const void *gradient = pointer(operand(grad, (at.batch, at.heads, at.tokens, at.width), x.dtype))
    g, slopes, products = np.empty_like(x), np.empty(x.shape[:3]), np.empty(x.shape[:3])
    dtwist = None if twist is None else np.empty((at.heads, at.width, at.width))
    cdef void *to = pointer(g)
    cdef double *to_slopes = pointer(slopes)
    cdef double *to_products = pointer(products)
    cdef double *to_twist = pointer(dtwist)
    with nogil:
        status = spo_core_turn_vjp(&at, gradient, to, to_slopes, to_products, to_twist, workers)
    raise_for(status)
    return g, slopes, products, dtwist


def unnormalise(g, x, factor, alpha, beta, mean, *, int32_t workers):
    """g (B, N, H, d) becomes factor (g + alpha + beta (x - mean))."""
    cdef int32_t status, single = is_single(x.dtype)
    cdef int64_t width = x.shape[3], rows = x.size // width
    small = x.shape[:3]
    cdef void *to = pointer(operand(g, x.shape, x.dtype))
    cdef const void *source = pointer(operand(x, x.shape, x.dtype))
    cdef const double *by = pointer(operand(factor, small, FLOAT64))
    cdef const double *plus = pointer(operand(alpha, small, FLOAT64))
    cdef const double *slope = pointer(operand(beta, small, FLOAT64))
    cdef const double *middle = pointer(operand(mean, small, FLOAT64))
    with nogil:
        status = spo_core_unnormalise(single, rows, width, to, source, by, plus, slope, middle, workers)
    raise_for(status)


# ---- derivatives ----

cdef extern from "spo_fast_core.h" nogil:
    ctypedef struct spo_modulation_gradients:
        double *knm
        double *theta
        double *w_q
        double *w_k
        double *w_v
        double *w_o
        double *temperature
        double *lambda_ "lambda"

    ctypedef struct spo_flow:
        int64_t n
        int64_t stages
        int32_t symmetric
        double dt
        const spo_sparse *sparse
        const double *omega
        const double *kc
        const double *ks
        double turn_cosine
        double turn_sine
        double zeta
        double psi_sine
        double psi_cosine
        double *tape
        const double *packed

    ctypedef struct spo_flow_gradients:
        double *omega
        double *slopes
        double *kc
        double *ks
        double *waiting
        int64_t *count

    int64_t spo_core_modulate_vjp_scratch(int64_t, const spo_modulation *, int32_t)
    int32_t spo_core_modulate_vjp(int64_t, const double *, const double *, int32_t, const double *,
                                  const spo_modulation *, const double *, int32_t, double *,
                                  const spo_modulation_gradients *)
    int64_t spo_core_modulate_sparse_vjp_scratch(int64_t, const spo_sparse *, const spo_modulation *)
    int32_t spo_core_modulate_sparse_vjp(int64_t, const spo_sparse *, const double *, const int64_t *,
                                         const double *, const spo_modulation *, const double *, double *,
                                         const spo_modulation_gradients *)
    int64_t spo_core_packed_size(int64_t)
    void spo_core_pack(int64_t, const double *, double *)
    int64_t spo_core_flow_scratch(int64_t)
    void spo_core_follow(const spo_flow *, double *, int64_t, int64_t, double *)
    void spo_core_go_back(const spo_flow *, double *, int64_t, int64_t, double *, const spo_flow_gradients *)
    void spo_core_collect(int64_t, const spo_flow_gradients *)
    enum: SPO_EXACTLY_SYMMETRIC
    enum: SPO_FLOW_DEPTH
    enum: SPO_HALF_FROM

FLOW_DEPTH = SPO_FLOW_DEPTH
HALF_FROM = SPO_HALF_FROM
INT64 = np.dtype(np.int64)


cdef dict gradients_for(object parameters, object knm, int64_t n, spo_modulation_gradients *to):
    """Arrays that receive the gradients of a modulation, by name; that at lambda is of shape (1,)."""
    names = ("w_q", "w_k", "w_v", "w_o", "temperature")
    found = {name: np.empty_like(getattr(parameters, name)) for name in names}
    found["knm"], found["theta"], found["lambda_"] = np.empty(knm.shape), np.empty(n), np.empty(1)
    to.knm, to.theta, to.lambda_ = pointer(found["knm"]), pointer(found["theta"]), pointer(found["lambda_"])
    to.w_q, to.w_k, to.w_v = pointer(found["w_q"]), pointer(found["w_k"]), pointer(found["w_v"])
    to.w_o, to.temperature = pointer(found["w_o"]), pointer(found["temperature"])
    return found


def modulate_vjp(knm, theta, grad, parameters, *, workers):
    """Gradients by name of sum(K' * grad), all of shape (N, N) and float64 in C order."""
    cdef ModulationPlan plan = ModulationPlan(parameters)
    cdef spo_modulation_gradients to
    cdef int64_t n = theta.shape[0]
    cdef int32_t traits = 0, status, crew = crew_of(workers)
    cdef object mean = None
    cdef const double *coupling = pointer(operand(knm, (n, n), FLOAT64))
    cdef const double *phases = pointer(operand(theta, (n,), FLOAT64))
    cdef const double *gradient = pointer(operand(grad, (n, n), FLOAT64))
    with nogil:
        status = spo_core_scan(n, coupling, crew, &traits)
    if status != SPO_OK:
        refuse(status, knm, theta)
    if not traits & SPO_EXACTLY_SYMMETRIC:
        mean = 0.5 * knm + 0.5 * knm.T
    cdef const double *halves = pointer(mean)
    cdef dict found = gradients_for(parameters, knm, n, &to)
    cdef Scratch scratch = Scratch(spo_core_modulate_vjp_scratch(n, &plan.modulation, crew))
    with nogil:
        status = spo_core_modulate_vjp(n, coupling, halves, traits, phases, &plan.modulation, gradient, crew,
                                       scratch.data, &to)
    if status != SPO_OK:
        refuse(status, knm, theta)
    found["lambda_"] = float(found["lambda_"][0])
    return found


def modulate_sparse_vjp(coupling, mirror, theta, grad, parameters, *, workers):
    """Gradients by name of the K' of a SparseCoupling; grad and mirror (E,), on its places."""
    cdef ModulationPlan plan = ModulationPlan(parameters)
    cdef spo_modulation_gradients to
    cdef spo_sparse sparse = places_of(coupling)
    cdef int64_t n = coupling.n
    cdef int32_t status
    cdef const double *entries = pointer(coupling.data)
    cdef const int64_t *places = <const int64_t *> pointer(operand(mirror, coupling.data.shape, INT64))
    cdef const double *phases = pointer(operand(theta, (n,), FLOAT64))
    cdef const double *gradient = pointer(operand(grad, coupling.data.shape, FLOAT64))
    cdef dict found = gradients_for(parameters, coupling.data, n, &to)
    cdef Scratch scratch = Scratch(spo_core_modulate_sparse_vjp_scratch(n, &sparse, &plan.modulation))
    with nogil:
        status = spo_core_modulate_sparse_vjp(n, &sparse, entries, places, phases, &plan.modulation, gradient,
                                              scratch.data, &to)
    if status != SPO_OK:
        validation.explain_nonfinite(theta=theta)
        raise RuntimeError(status_text(status))
    found["lambda_"] = float(found["lambda_"][0])
    return found


cdef object writable(object array):
    """The array, if a kernel may write to it."""
    if not array.flags.writeable:
        raise ValueError("expected a writable array to write to")
    return array


@cython.final
cdef class Steps:
    """Fixed steps of a network that are followed and gone back; see spo_flow.

    Parameters
    ----------
    omega : ndarray, shape (N,)
        Frequencies.
    coupling : SparseCoupling or None
        Places of a sparse coupling.
    stages : int
        1 or 4.
    dt : float
        Step size.
    lag, zeta, psi : float
        The one lag of all pairs, and the drive.
    """

    cdef spo_flow flow
    cdef spo_flow_gradients to
    cdef spo_sparse sparse
    cdef int64_t waiting
    cdef object held
    cdef Scratch scratch
    cdef Scratch packed

    def __init__(self, omega, coupling, int64_t stages, double dt, double lag, double zeta, double psi):
        self.flow.n = omega.shape[0]
        self.flow.omega = pointer(operand(omega, omega.shape, FLOAT64))
        self.flow.stages, self.flow.dt = stages, dt
        self.flow.sparse = NULL
        if coupling is not None:
            self.sparse = places_of(coupling)
            self.flow.sparse = &self.sparse
        self.flow.turn_cosine, self.flow.turn_sine = cos(lag), sin(lag)
        self.flow.zeta, self.flow.psi_sine, self.flow.psi_cosine = zeta, sin(psi), cos(psi)
        self.waiting = 0
        self.held = {"omega": omega, "coupling": coupling}
        self.scratch = Scratch(spo_core_flow_scratch(self.flow.n))

    def receive(self, omega, slopes, kc, ks, buffer):
        """Where gradients go; kept by reference. ks None where there is no lag of each pair."""
        self.held["to"] = (omega, slopes, kc, ks, buffer)
        self.to.omega, self.to.slopes = pointer(writable(omega)), pointer(writable(slopes))
        self.to.kc, self.to.ks = pointer(writable(kc)), pointer(ks)
        self.to.waiting, self.to.count = pointer(writable(buffer)), &self.waiting

    def couple(self, kc, ks, bint symmetric):
        """Go through another coupling, kept by reference; tell whether a dense one equals its transpose."""
        self.flow.symmetric = symmetric and ks is None and self.flow.sparse == NULL
        self.held["knm"] = (kc, ks)
        self.flow.kc = pointer(operand(kc, kc.shape, FLOAT64))
        self.flow.ks = pointer(ks)
        self.flow.packed = NULL

    def pack(self):
        """Read a symmetric coupling with a zero diagonal from a copy of half its size from now on."""
        self.packed = Scratch(spo_core_packed_size(self.flow.n))
        self.flow.packed = self.packed.data
        with nogil:
            spo_core_pack(self.flow.n, self.flow.kc, self.packed.data)

    def record_on(self, tape):
        """Keep stages on another tape, (room, stages, 4, N rounded up to a multiple of eight)."""
        self.held["tape"] = tape
        self.flow.tape = pointer(writable(tape))

    def follow(self, theta, int64_t steps, int64_t slot):
        """Take steps from theta (N,), in place."""
        cdef double *state = pointer(writable(operand(theta, (self.flow.n,), FLOAT64)))
        with nogil:
            spo_core_follow(&self.flow, state, steps, slot, self.scratch.data)

    def go_back(self, grad, int64_t steps, int64_t slot):
        """Go steps back from the gradient at their end (N,), in place."""
        cdef double *state = pointer(writable(operand(grad, (self.flow.n,), FLOAT64)))
        with nogil:
            spo_core_go_back(&self.flow, state, steps, slot, self.scratch.data, &self.to)

    def collect(self):
        """Add what waits to the gradients at the coupling."""
        if self.waiting:
            with nogil:
                spo_core_collect(self.flow.n, &self.to)
