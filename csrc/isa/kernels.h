/* The table of kernels that each instruction set fills once. Arrays of oscillators inside a scratch are
 * padded to SPO_PAD and aligned, so that loops over oscillators have no remainder. */
#ifndef SPO_KERNELS_H
#define SPO_KERNELS_H

#include <math.h>

#include "../include/spo_fast_core.h"
#include "shares.h"

/* The first address from p on that vectors of every instruction set like. */
static inline double *spo_aligned(double *p) { return (double *)(((uintptr_t)p + 63) & ~(uintptr_t)63); }

/* What preparation decides and a modulated step leaves for the next ones; first in a run's scratch. */
typedef struct spo_prepared {
    int32_t traits; /* of K, when it is dense and modulated */
    int32_t wanted; /* walk that the scratch is laid out for */
    int32_t walk;   /* and the one that K allows */
    int32_t workers;
    double *unit; /* unit outputs in force, unless K' is; NULL: none yet */
} spo_prepared;

/* Where a run keeps what it needs; made from the caller's scratch by run_layout (kuramoto.c). */
typedef struct spo_run_scratch {
    double *omega;                     /* (padded) */
    double *theta, *next, *stage;      /* (padded): state, candidate, argument of a stage */
    double *sine, *cosine;             /* (padded) of the last argument */
    double *pull, *push;               /* (padded): P and Q of f = omega + cos P - sin Q + drive */
    double *part_sums;                 /* (parts, 2, padded): P and Q of parts of a walk over pairs */
    double *slopes;                    /* (stages, padded) */
    double *lag_cosine, *lag_sine;     /* (n, n): K cos alpha and K sin alpha; NULL when the lag is uniform */
    double *alpha_cosine, *alpha_sine; /* (n, n): cos alpha and sin alpha, kept only when K changes too */
    double *modulation;                /* scratch of the modulation */
    double *pairs;                     /* (n, 2): sine and cosine side by side, for sparse K */
    spo_prepared *prepared;
    const spo_moments *moments; /* NULL: the attention goes pair by pair */
    uint64_t *absent;           /* K's missing edges, for the moments */
    const spo_sparse *sparse;   /* NULL: K is dense */
    int64_t entries;            /* of K: n^2, or its edges */
    double *packed,
        *packed_lag;         /* K as isa/fused.h walks it; with a lag a pair K cos alpha and K sin alpha */
    double *kept, *kept_lag; /* K' likewise */
    int fresh;               /* K' in force is not kept yet, set by a run */
    int32_t workers;
    double turn_cosine, turn_sine, drive_sine, drive_cosine; /* constants of the drift, set by a run */
} spo_run_scratch;

/* R and psi of n phases from the sums of their sines and cosines. */
static inline double spo_radius(int64_t n, double sine, double cosine) {
    const double length = n > 0 ? hypot(sine, cosine) / (double)n : 0.0;
    return length > 1.0 ? 1.0 : length;
}

static inline double spo_mean_phase(int64_t n, double sine, double cosine) {
    const double two_pi = 0x1.921fb54442d18p2;
    double angle = n > 0 ? atan2(sine, cosine) : 0.0;
    if (angle < 0) angle += two_pi;
    return angle == two_pi ? 0.0 : angle;
}

/* One call of the attention, as its kernels see it; what lies behind void is float or double. */
typedef struct spo_attend_job {
    const spo_attention *at;
    const void *k, *v;      /* (groups, heads, keys, ...): the caller's, or only those that the mask leaves */
    const int64_t *visible; /* (queries) of each group: how many keys a query sees, from the first one on */
    int64_t visible_step;   /* from a group to the next; 0: the same for all */
    const int64_t *count;   /* (groups): keys that the mask leaves; NULL: all */
    const int64_t *kept;    /* (groups, keys): their places */
    void *out, *lse, *grad_out, *dq, *dk, *dv;
    int64_t spans;       /* in which the queries of a problem go back, each by itself */
    const int64_t *span; /* (spans + 1): where they begin */
    void *partial;       /* (problems, spans, keys, padded widths): their gradients at keys and values */
    double *sink_part;   /* (problems, spans, 1 + value width): and at the sink */
} spo_attend_job;

/* Places in the record of a unit, in vectors. */
typedef struct spo_phase_layout {
    int64_t z, mean, norm, value, out, query, end;
    int64_t mean_width; /* of a step's attention: F and, where they change, values */
    int flat;           /* all steps are in one place */
} spo_phase_layout;

/* One call of the phases' attention likewise; see isa/phase.h for units and blocks. */
typedef struct spo_phase_job {
    const spo_phase_attention *at;
    int crowded, fixed_queries;
    int64_t problems, units, blocks;
    const void *turn; /* (blocks, 2, phases, lanes): cosine and sine of the ramp */
    const void *lag;  /* (2, heads, phases): cosine and sine of alpha */
    spo_phase_layout layout;
    void *record;        /* (units, record_size) numbers */
    int64_t record_size; /* 0: the record holds one unit, the one at work */
    void *rows[2];       /* tiles: (units, tokens, mean_width) of even and odd steps */
    void *out;           /* NULL: not wanted */
    void *grad_out, *dc, *ds, *dquery_c, *dquery_s, *dv;
    void *phase_gradient, *query_gradient, *value_gradient; /* (units, blocks, width, lanes) */
    int64_t spans;
    const int64_t *span;
    void *partial; /* tiles: (units, spans, blocks, lanes, partial_row) */
    int64_t partial_row;
    double *parameters; /* (problems, spans, 2 phases + 1): gradients at alpha, weight, kappa */
} spo_phase_job;

enum spo_phase_stage {
    SPO_STAGE_ROWS,
    SPO_STAGE_STEP,
    SPO_STAGE_READ
};

/* The attention's kernels for one type of number (isa/attention.h, isa/phase.h). Rooms are counted in
 * numbers.
 */
typedef struct spo_attention_kernels {
    int64_t lanes, tile; /* queries of a vector and of a tile */
    int64_t (*room)(const spo_attention *at, int crowded, int reverse);
    void (*rows)(const spo_attend_job *job, int64_t problem, int64_t first, int64_t end, void *scratch);
    void (*crowd)(const spo_attend_job *job, int64_t problem, void *scratch);
    void (*reverse_rows)(const spo_attend_job *job, int64_t problem, int64_t span, void *scratch);
    void (*reverse_crowd)(const spo_attend_job *job, int64_t problem, void *scratch);
    void (*collect)(const spo_attend_job *job, int64_t problem);
    int64_t (*phase_room)(const spo_phase_attention *at, int crowded, int reverse);
    void (*phase_begin)(const spo_phase_job *job, int64_t unit, int64_t block, void *scratch);
    void (*phase_crowd)(const spo_phase_job *job, int64_t unit, int64_t first, int64_t last, void *scratch);
    void (*reverse_phase_crowd)(const spo_phase_job *job, int64_t unit, int64_t first, int64_t last,
                                void *scratch);
    void (*phase_tile)(const spo_phase_job *job, int64_t unit, int64_t tile, int64_t step,
                       enum spo_phase_stage stage, void *scratch);
    void (*reverse_phase_span)(const spo_phase_job *job, int64_t unit, int64_t span, int64_t step, int read,
                               void *scratch);
    void (*collect_phase_span)(const spo_phase_job *job, int64_t unit, int64_t span, int64_t step,
                               void *scratch);
    void (*phase_finish)(const spo_phase_job *job, int64_t unit, int64_t block, void *scratch);
} spo_attention_kernels;

/* One call of spo_core_turn, with its tables in lanes: (blocks, width / 2, lanes). */
typedef struct spo_turn_job {
    const spo_turn *at;
    const void *cosine, *sine;
} spo_turn_job;

/* Kernels of the parts of context-pulse attention for one type of number (isa/pulse.h). */
typedef struct spo_pulse_kernels {
    int64_t lanes;
    void (*gate)(int64_t count, const void *x, const void *g, void *out);
    void (*gate_vjp)(int64_t count, const void *x, const void *g, const void *grad, void *dx, void *dg);
    void (*scan)(int64_t tokens, int64_t step, int64_t count, double decay, const void *x, void *c,
                 void *state, int past);
    double (*scan_vjp)(int64_t tokens, int64_t step, int64_t count, double decay, const void *x,
                       const void *c, const void *grad, void *dx, void *state);
    void (*moments)(int64_t rows, int64_t width, const void *x, double *mean, double *squares, void *scratch);
    void (*unnormalise)(int64_t rows, int64_t width, void *grad, const void *x, const double *factor,
                        const double *alpha, const double *beta, const double *mean);
    void (*lay_table)(int64_t tokens, int64_t half, const void *table, void *to);
    int64_t (*turn_room)(const spo_turn *at, int reverse);
    void (*turn)(const spo_turn_job *job, int64_t problem, void *y, void *scratch);
    void (*turn_vjp)(const spo_turn_job *job, int64_t problem, const void *grad, void *g, double *slopes,
                     double *products, double *dtwist, void *scratch);
    int64_t (*resonance_room)(const spo_resonance *at, int reverse);
    void (*resonance)(const spo_resonance *at, int64_t problem, void *c, void *scratch);
    void (*resonance_vjp)(const spo_resonance *at, int64_t problem, const void *c, const void *grad, void *du,
                          void *dk, void *scratch);
} spo_pulse_kernels;

/* Kernels of the way back (isa/reverse_modulation.h, isa/reverse_steps.h). Scratches are counted in doubles.
 */
typedef struct spo_derivative_kernels {
    int64_t (*scratch)(int64_t n, const spo_modulation *modulation, int32_t workers);
    int64_t (*sparse_scratch)(int64_t n, const spo_sparse *sparse, const spo_modulation *modulation);
    int32_t (*modulate)(int64_t n, const double *knm, const double *mean, int32_t traits, const double *theta,
                        const spo_modulation *modulation, const double *grad, int32_t workers,
                        double *scratch, const spo_modulation_gradients *gradients);
    int32_t (*modulate_sparse)(int64_t n, const spo_sparse *sparse, const double *knm, const int64_t *mirror,
                               const double *theta, const spo_modulation *modulation, const double *grad,
                               double *scratch, const spo_modulation_gradients *gradients);
    int64_t (*flow_scratch)(int64_t n);
    void (*follow)(const spo_flow *flow, double *state, int64_t steps, int64_t slot, double *scratch);
    void (*go_back)(const spo_flow *flow, double *grad, int64_t steps, int64_t slot, double *scratch,
                    const spo_flow_gradients *gradients);
    void (*collect)(int64_t n, double *waiting, int64_t count, const spo_flow_gradients *gradients);
} spo_derivative_kernels;

typedef struct spo_kernels {
    const char *name;
    void (*exp)(int64_t n, const double *x, double *y);
    void (*exp2)(int64_t n, const double *x, double *y); /* -1021 <= x <= 1023 */
    void (*sincos)(int64_t n, const double *x, double *sine, double *cosine);
    int32_t (*scan)(int64_t n, const double *knm, int32_t workers, int32_t *traits);
    int64_t (*find_absent)(int64_t n, const double *knm, int32_t workers, uint64_t *absent);
    void (*symmetrise)(int64_t n, const double *knm, double *out);
    void (*transpose)(int64_t n, const double *knm, double *out);
    int32_t (*units)(int64_t n, const double *knm, int32_t traits, const double *theta,
                     const spo_modulation *modulation, int32_t workers, double *scratch, double **unit);
    int32_t (*units_moments)(int64_t n, const double *knm, const double *theta,
                             const spo_modulation *modulation, const spo_moments *plan,
                             const uint64_t *absent, int64_t *redone, int32_t workers, double *scratch,
                             double **unit);
    int (*harmonic_sums)(int64_t n, int64_t count, const double *theta, double *scratch, double *re,
                         double *im);
    void (*scale)(int64_t n, const double *knm, int exact, const spo_modulation *modulation, int32_t workers,
                  double *unit, double *out);
    int32_t (*units_sparse)(int64_t n, const spo_sparse *sparse, const double *knm, const double *theta,
                            const spo_modulation *modulation, int32_t workers, double *scratch,
                            double **unit);
    void (*scale_sparse)(int64_t n, const spo_sparse *sparse, const spo_modulation *modulation,
                         int32_t workers, const double *unit, double *out);
    void (*run_members)(const spo_network *network, const spo_integrator *integrator,
                        const spo_ensemble *ensemble, int64_t n_steps, const spo_record *record,
                        int32_t workers, const spo_run_scratch *scratch, double *room);
    void (*pack)(int64_t n, const double *knm, int pairs, double *packed);
    int (*mirrored)(int64_t n, const double *knm);
    void (*order)(int64_t n, const double *theta, double *sine_sum, double *cosine_sum);
    int32_t (*run)(const spo_network *network, const spo_integrator *integrator, spo_state *state,
                   int64_t n_steps, const spo_record *record, const spo_run_scratch *scratch);
    double (*read)(int64_t n, const double *x);
    double (*multiply_add)(int64_t n); /* ten times lanes multiply-adds, n times */
    int32_t lanes;
    const spo_attention_kernels *attention[2]; /* for double, for float */
    const spo_pulse_kernels *pulse[2];
    const spo_derivative_kernels *derivatives;
} spo_kernels;

extern const spo_kernels spo_kernels_baseline;
#if defined(__x86_64__)
extern const spo_kernels spo_kernels_avx2;
extern const spo_kernels spo_kernels_avx512;
#endif

/* The table in use (dispatch.c). */
const spo_kernels *spo_kernels_in_use(void);

/* Unit outputs (d_model, padded), somewhere in scratch. K has a symmetric pattern. (modulation.c) */
int32_t spo_unit_outputs(int64_t n, const double *knm, int32_t traits, const double *theta,
                         const spo_modulation *modulation, const spo_attention_path *path, int32_t workers,
                         double *scratch, double **unit);

/* Doubles that each worker of an attention has of its own: outputs of a block of queries, a head's vectors,
 * its longest keys (isa/modulation.h). */
static inline int64_t spo_attention_own(const spo_modulation *m) {
    return SPO_PAD * (m->d_model + 2 * (m->d_model / m->n_heads)) + spo_padded(m->n_heads);
}

/* And of an attention along edges beside that (isa/sparse.h). */
static inline int64_t spo_edges_own(int64_t n, const spo_modulation *m) {
    return 2 * SPO_PAD * m->d_model + spo_padded(m->d_model) + 2 * spo_padded(n) + SPO_PAD;
}

/* Doubles of scratch from which the members of a block make their K'; a block has at most SPO_PAD. */
static inline int64_t spo_members_modulation(int64_t n, const spo_modulation *m) {
    return (4 * n * m->d_model + m->d_model + m->n_heads) * SPO_PAD;
}

/* Doubles of the room of members that each worker has of its own; after them the K' of all (isa/members.h).
 */
int64_t spo_members_own(const spo_network *network);

/* Are sizes, pointers and numbers of a modulation in their ranges? (modulation.c) */
int spo_modulation_acceptable(int64_t n, const spo_modulation *modulation);

#endif
