/* spo_fast.h - the portable law: what a library of every language exports.
 *
 * Plain C types, 64-bit sizes, inputs that are never written to, outputs owned by the caller, a status as
 * result. A matrix is row-major; oscillator i is pulled by row i of its coupling matrix:
 *
 *   d theta_i / dt = omega_i + sum_j K_ij sin(theta_j - theta_i - alpha_ij) + zeta sin(psi - theta_i)
 *
 * Phases are radians, frequencies radians per time unit. No function prints, aborts, keeps a pointer or
 * changes the floating-point mode. Every function may be called from several threads at once as long as their
 * outputs are distinct. SPO_ABI_VERSION grows whenever anything below changes. BSD-3-Clause.
 */
#ifndef SPO_FAST_H
#define SPO_FAST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPO_ABI_VERSION 1

/* Numbers are never reused. */
enum spo_status {
    SPO_OK = 0,
    SPO_INVALID_ARGUMENT = 1,    /* a number out of its range, or a pointer that must not be NULL */
    SPO_OUT_OF_MEMORY = 2,       /* nothing was written */
    SPO_NONFINITE_COUPLING = 3,  /* NaN or infinity in K */
    SPO_ASYMMETRIC_COUPLING = 4, /* |K_ij - K_ji| > 1e-12 (1 + min(|K_ij|, |K_ji|)) */
    SPO_NONZERO_DIAGONAL = 5,    /* |K_ii| > 1e-12 */
    SPO_NONFINITE_PHASE = 6,     /* NaN or infinity in theta */
    SPO_NONFINITE_STATE = 7      /* a step gave NaN or infinity: the state is the last good one */
};

enum spo_method {
    SPO_EULER = 0,
    SPO_RK4 = 1, /* classical, fixed step */
    SPO_RK45 = 2 /* Dormand-Prince 5(4), adaptive */
};

/* Multi-head attention over the phases that rescales K: the parameters, d_h = d_model / n_heads. */
typedef struct spo_modulation {
    int64_t n_heads;           /* >= 1, divides d_model */
    int64_t d_model;           /* even, >= 2 */
    int64_t block_size;        /* pairs with |i - j| > block_size keep K_ij; -1: no limit */
    const double *w_q;         /* (n_heads, d_model, d_h) */
    const double *w_k;         /* (n_heads, d_model, d_h) */
    const double *w_v;         /* (n_heads, d_model, d_h) */
    const double *w_o;         /* (d_model, d_model) */
    const double *temperature; /* (n_heads), each > 0 */
    double lambda;             /* >= 0 */
} spo_modulation;

typedef struct spo_network {
    int64_t n;                        /* oscillators, >= 0 */
    const double *omega;              /* (n) */
    const double *knm;                /* (n, n) */
    const double *alpha;              /* (n, n), or NULL: the lag is uniform */
    double uniform_alpha;             /* the lag of every pair when alpha is NULL */
    double zeta;                      /* strength of the drive */
    double psi;                       /* phase of the drive */
    const spo_modulation *modulation; /* NULL: K stays as it is */
    int64_t modulate_every;           /* K' is made anew at each step that this number divides, >= 1 */
} spo_network;

typedef struct spo_integrator {
    int64_t method; /* enum spo_method */
    double dt;      /* step; for SPO_RK45 the first one, and a tenth of the largest */
    double atol;    /* SPO_RK45 only */
    double rtol;    /* SPO_RK45 only */
} spo_integrator;

/* The state of a run, taken and given back, so that a run may be cut into pieces that end in equal bits. */
typedef struct spo_state {
    double *theta;     /* (n), wrapped into [0, 2 pi) on entry and after each step */
    double *modulated; /* (n, n): K' in force between two calls; NULL without modulation */
    double t;          /* time */
    double dt;         /* step tried next */
    int64_t step;      /* steps taken */
} spo_state;

/* What is kept. NULL: not kept. Index s describes the state at step s, counted like spo_state.step. */
typedef struct spo_record {
    int64_t every;     /* theta and t keep the states after steps that this number divides; 0: none */
    double *theta;     /* row s / every of (rows, n) */
    double *t;         /* (rows) */
    double *r;         /* order parameter, in [0, 1] */
    double *psi;       /* mean phase, in [0, 2 pi) */
    double *t_observe; /* time */
} spo_record;

int32_t spo_abi_version(void);

const char *spo_backend_name(void);

/* The one source of the texts; "unknown status" for numbers that are not in the enumeration. */
const char *spo_status_text(int32_t status);

/* out (n, n) = K' = K with each unmasked pair scaled by 1 + lambda a_ij; out may not overlap knm. O(n^2
 * d_model). Nothing is written to out unless K and theta are acceptable. */
int32_t spo_modulate(int64_t n, const double *knm, const double *theta, const spo_modulation *modulation,
                     double *out);

/* r = |mean exp(i theta)|, psi = its argument; both 0 when n is 0. */
int32_t spo_order_parameter(int64_t n, const double *theta, double *r, double *psi);

/* Advances state by n_steps; record may be NULL. With modulation, K must be symmetric. O(n^2) a stage. */
int32_t spo_kuramoto_run(const spo_network *network, const spo_integrator *integrator, spo_state *state,
                         int64_t n_steps, const spo_record *record);

#ifdef __cplusplus
}
#endif

#endif
