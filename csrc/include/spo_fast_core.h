/* spo_fast_core.h - what only the C core offers: pieces of the portable functions with the caller's own
 * scratch, so that a plan scans K once and execution allocates nothing. BSD-3-Clause. */
#ifndef SPO_FAST_CORE_H
#define SPO_FAST_CORE_H

#include "spo_fast.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a scan learns about a coupling matrix (bits). */
enum spo_coupling_traits {
    SPO_EXACTLY_SYMMETRIC = 1, /* K_ij == K_ji for all pairs */
    SPO_ALL_EDGES = 2,         /* K_ij != 0 for all i != j */
    SPO_SYMMETRIC_PATTERN = 4  /* K_ij == 0 exactly where K_ji == 0 */
};

/* Where a function takes `workers`, it runs on at most so many threads, its caller among them, at least one;
 * fewer where it is too small to gain. Results do not depend on it by a bit. Threads are kept, asleep, until
 * the process ends; a forked child starts without them. Functions that tell the size of a scratch take the
 * same number, or a larger one, as those that use it. */

/* Which jobs are handed over to threads. */
enum spo_split {
    SPO_SPLIT_WORTHWHILE = 0, /* those that gain */
    SPO_SPLIT_ALL = 1,        /* those of any size, to see from where on they gain */
    SPO_SPLIT_SMALLEST = 2    /* and cut into the smallest parts, for tests */
};

/* Not meant for use while a scratch or a kernel is in use. Sums of steps differ between them in the last
 * bits, not with the number of workers. */
int32_t spo_core_split(int32_t split);

/* Finite, symmetric within 1e-12, diagonal zero within 1e-12? Writes the traits when all three hold. One
 * pass, O(n^2). */
int32_t spo_core_scan(int64_t n, const double *knm, int32_t workers, int32_t *traits);

/* The attention's sums as functions of the order parameters: Fourier series of each head's exponentials,
 * which depend on projections and temperatures alone (some milliseconds and 0.5 MB). A plan may be shared; it
 * is never written to after it was made. */
typedef struct spo_moments spo_moments;
int32_t spo_core_moments_create(const spo_modulation *modulation, spo_moments **plan);
void spo_core_moments_free(spo_moments *plan);

/* Why these projections and temperatures cannot go through order parameters within the promised parity; NULL
 * when they can. */
const char *spo_core_moments_refusal(const spo_moments *plan);

/* Could order parameters be faster at this size, for a K with all edges? Cheap, and known without a plan. */
int32_t spo_core_moments_possible(int64_t n, const spo_modulation *modulation, int32_t traits);

/* Are they faster with this plan, where `absent` pairs of a block of queries and a key (see below) miss an
 * edge? */
int32_t spo_core_moments_pay(int64_t n, const spo_moments *plan, int64_t absent);

/* Missing edges of a K with a symmetric pattern: word w of block b (eight queries) has bit k set where one of
 * them does not see key 64 w + k, the diagonal apart. absent holds spo_core_absent_words; returns the number
 * of bits. O(n^2). */
int64_t spo_core_absent_words(int64_t n);
int64_t spo_core_find_absent(int64_t n, const double *knm, int32_t workers, uint64_t *absent);

/* Kuramoto-Daido order parameters: re + i im = sum_j exp(i k theta_j) for k = 0 ... count - 1, count a
 * multiple of 8. scratch holds spo_core_harmonic_scratch doubles. */
int64_t spo_core_harmonic_scratch(int64_t n, int64_t count);
int32_t spo_core_harmonic_sums(int64_t n, int64_t count, const double *theta, double *scratch, double *re,
                               double *im);

/* How the attention is computed. A NULL, or moments that are NULL, or a K without symmetric pattern, or a
 * band: every exponential of every pair. */
typedef struct spo_attention_path {
    const spo_moments *moments; /* not refused */
    const uint64_t *absent;     /* the missing edges of this K; NULL when it has all */
    int64_t *redone;            /* NULL, or grows by the queries whose sums could not be trusted */
} spo_attention_path;

/* Doubles of scratch that spo_core_modulate and spo_core_factors need. */
int64_t spo_core_modulation_scratch(int64_t n, const spo_modulation *modulation, const spo_moments *moments,
                                    int32_t workers);

/* K' into out, K already scanned; scratch of spo_core_modulation_scratch doubles, any alignment. */
int32_t spo_core_modulate(int64_t n, const double *knm, int32_t traits, const double *theta,
                          const spo_modulation *modulation, const spo_attention_path *path, int32_t workers,
                          double *scratch, double *out);

/* The unit outputs (n, d_model) of the attention. square is (n, n) scratch, needed only without
 * SPO_SYMMETRIC_PATTERN. */
int32_t spo_core_factors(int64_t n, const double *knm, int32_t traits, const double *theta,
                         const spo_modulation *modulation, const spo_attention_path *path, int32_t workers,
                         double *scratch, double *square, double *factors);

/* The places of a sparse matrix: row i holds the entries start[i] ... start[i + 1] - 1 in ascending columns.
 * Where a function takes one, knm and alpha hold an entry each for these places; NULL means dense matrices.
 */
typedef struct spo_sparse {
    const int64_t *start;  /* (n + 1) */
    const int32_t *column; /* (start[n]) */
    const double *mean;    /* (start[n]): half of K_ij + K_ji; read by modulation only */
} spo_sparse;

/* spo_core_modulate and spo_core_factors on a sparse K that the caller has found symmetric, in pattern too.
 * O(edges). */
int64_t spo_core_sparse_scratch(int64_t n, const spo_modulation *modulation, int32_t workers);
int32_t spo_core_modulate_sparse(int64_t n, const spo_sparse *sparse, const double *knm, const double *theta,
                                 const spo_modulation *modulation, int32_t workers, double *scratch,
                                 double *out);
int32_t spo_core_factors_sparse(int64_t n, const spo_sparse *sparse, const double *knm, const double *theta,
                                const spo_modulation *modulation, int32_t workers, double *scratch,
                                double *factors);

/* How a run walks the coupling. */
enum spo_walk {
    SPO_WALK_AUTO = 0,  /* whichever is fastest for this size, method and modulation */
    SPO_WALK_WHOLE = 1, /* K, or K' in spo_state.modulated, row by row */
    SPO_WALK_FUSED = 2, /* K with the factor that makes it K', which is never written */
    SPO_WALK_KEPT = 3 /* the same the first time; K' is kept in the scratch for the other times, one entry for
                       * each pair. Without modulation K is so kept: worth it for a run of many steps */
};

/* Doubles of scratch that spo_core_run needs for this network and method. moments: see spo_attention_path;
 * NULL for sparse matrices. moments, walk and workers are the same in all calls for one scratch. */
int64_t spo_core_run_scratch(const spo_network *network, const spo_sparse *sparse, const spo_moments *moments,
                             int64_t method, int32_t walk, int32_t workers);

/* Fills the part of scratch that depends on K and alpha alone; call anew when either changes. A walk that K
 * does not allow gives way to that of the whole matrix. Between runs the scratch takes the place of
 * spo_state.modulated where the walk is another one. */
int32_t spo_core_prepare(const spo_network *network, const spo_sparse *sparse, const spo_moments *moments,
                         int64_t method, int32_t walk, int32_t workers, double *scratch);

/* The walk that a prepared scratch takes. */
int32_t spo_core_walk(double *scratch);

/* spo_kuramoto_run on prepared scratch, by the workers it was prepared for. */
int32_t spo_core_run(const spo_network *network, const spo_sparse *sparse, const spo_integrator *integrator,
                     const spo_moments *moments, spo_state *state, int64_t n_steps, const spo_record *record,
                     double *scratch);

/* Members that share dense K, lags and drive, each with frequencies, phases and perhaps a strength of its
 * own.
 */
typedef struct spo_ensemble {
    int64_t members;
    int64_t step;         /* steps taken by those that did not fail */
    const double *omega;  /* (members, n) */
    const double *lambda; /* (members): strengths of the modulation; NULL: that of the network */
    double *theta;        /* (members, n): wrapped states; of a failed member the last good one */
    int32_t *status;      /* (members) */
    int64_t *steps;       /* (members): steps taken */
} spo_ensemble;

/* n_steps of a fixed-step method for every member; with modulation the lag is uniform. record->theta is
 * (rows, members, n), r and psi are (steps + 1, members); rows of a failed member are NaN from then on.
 * scratch as for spo_core_run with SPO_WALK_WHOLE, prepared; room of spo_core_members_room doubles, kept
 * between calls. */
int64_t spo_core_members_room(const spo_network *network, int64_t members, int32_t workers);
int32_t spo_core_run_members(const spo_network *network, const spo_integrator *integrator,
                             spo_ensemble *ensemble, int64_t n_steps, const spo_record *record,
                             int32_t workers, double *scratch, double *room);

/* Order parameter of each row of theta (rows, n). */
int32_t spo_core_order_parameters(int64_t rows, int64_t n, const double *theta, double *r, double *psi);

/* Softmax attention. Arrays of float where `single` is set, else of double, contiguous:
 *
 *   q (groups, heads, queries, width)   k (groups, heads, keys, width)   v (groups, heads, keys, value_width)
 *
 * out = sum_j P_j v_j, P = softmax over j of scale q k_j. causal: query i sees keys j <= i + keys - queries.
 * Keys where key_mask (groups, keys) is 0 are not seen, and what stands there is not read. sink (heads) is
 * the score of one more column, whose value is sink_value (heads, value_width), or zeros where that is NULL;
 * both NULL: none. A query that sees nothing has the sink's value, or zeros, and passes no gradient on. */
typedef struct spo_attention {
    int32_t single, causal;
    int64_t groups, heads, queries, keys, width, value_width;
    double scale;
    const void *q, *k, *v, *sink, *sink_value;
    const uint8_t *key_mask;
} spo_attention;

/* out (groups, heads, queries, value_width), lse (groups, heads, queries): log of each row's denominator. No
 * more than O(queries + keys) is held besides. Results do not depend on the number of workers. */
int32_t spo_core_attend(const spo_attention *attention, void *out, void *lse, int32_t workers);

/* Gradients at every argument, from those at out; weights are computed anew from lse. dsink and dsink_value
 * are read only where there is a sink. */
typedef struct spo_attention_gradients {
    void *q, *k, *v, *sink, *sink_value;
} spo_attention_gradients;
int32_t spo_core_attend_vjp(const spo_attention *attention, const void *out, const void *lse,
                            const void *grad_out, const spo_attention_gradients *gradients, int32_t workers);

/* Attention by phases, whose Kuramoto-Sakaguchi dynamics run for `steps` steps before values are read:
 *
 *   c, s, query_c, query_s (batch, tokens, heads, phases)   v (batch, tokens, heads, value_width)
 *   weight, alpha (heads, phases)   kappa (heads)   ramp (phases) double
 *
 * theta_i = atan2(s_i, c_i) + ramp i; A = softmax over j <= i of sum_k weight cos(theta_i - theta_j - alpha);
 * in each step theta_i += dt kappa sum_j A_ij sin(theta_j + alpha - theta_i) and, where value_consensus is
 * not 0, v += dt value_consensus (A v - v) with the same A; finally out = A v. static_query: the i of A stays
 * as it began; with query_c and query_s (else NULL) it is of that pair, static by nature. */
typedef struct spo_phase_attention {
    int32_t single, static_query;
    int64_t batch, tokens, heads, phases, value_width, steps;
    double dt, value_consensus;
    const void *c, *s, *query_c, *query_s, *v, *weight, *alpha, *kappa;
    const double *ramp;
} spo_phase_attention;

/* What a forward call keeps for the reverse pass. */
enum spo_keep {
    SPO_KEEP_NONE = 0,
    SPO_KEEP_ALL = 1, /* phases, means and denominators of every step */
    SPO_KEEP_SQRT = 2 /* phases at every ceil(sqrt(steps)) steps, from which the others are computed again */
};

/* Bytes of a state, and a number that stands for its layout, which depends on the instruction set. */
int64_t spo_core_phase_state(const spo_phase_attention *attention, int32_t keep, int64_t *layout);

/* out (batch, tokens, heads, value_width), or NULL; state of spo_core_phase_state bytes, NULL for
 * SPO_KEEP_NONE. */
int32_t spo_core_phase_attend(const spo_phase_attention *attention, int32_t keep, void *state, void *out,
                              int32_t workers);

/* Gradients, shaped as their arguments; at the queries' pair only where there is one. state is of a forward
 * call with the same arguments and layout. That of atan2 at the origin is 0. */
typedef struct spo_phase_gradients {
    void *c, *s, *query_c, *query_s, *v, *weight, *alpha, *kappa;
} spo_phase_gradients;
int32_t spo_core_phase_attend_vjp(const spo_phase_attention *attention, int32_t keep, const void *state,
                                  const void *grad_out, const spo_phase_gradients *gradients,
                                  int32_t workers);

/* The vector functions the kernels stand on, for tests. Worst errors: see csrc/isa/vectormath.h. */
void spo_core_exp(int64_t n, const double *x, double *y);
void spo_core_exp2(int64_t n, const double *x, double *y); /* -1021 <= x <= 1023 */
void spo_core_sincos(int64_t n, const double *x, double *sine, double *cosine);

/* Instruction sets: the one in use, the k-th of those this processor can run (NULL past the last), and a
 * switch for tests. The fastest is chosen when first needed. The switch is not meant for use while another
 * thread is inside a kernel. */
const char *spo_core_instruction_set(void);
const char *spo_core_available_instruction_set(int32_t index);
int32_t spo_core_select_instruction_set(const char *name);

/* Limits of this machine, for benchmarks: seconds for the fastest of repeats passes over n doubles, and
 * multiply-adds a second. */
double spo_core_measure_read(int64_t n, const double *x, int64_t repeats);
double spo_core_measure_multiply_add(void);

/* Parts of context-pulse attention. void stands for float where `single` is set, else for double; everything
 * is contiguous, and no result depends on the number of workers.
 *
 * out = sigmoid(g) x, of `count` numbers, and the gradients at both. */
int32_t spo_core_gate(int32_t single, int64_t count, const void *x, const void *g, void *out,
                      int32_t workers);
int32_t spo_core_gate_vjp(int32_t single, int64_t count, const void *x, const void *g, const void *grad,
                          void *dx, void *dg, int32_t workers);

/* c_t = decay c_{t-1} + (1 - decay) x_t from 0; arrays (batch, tokens, channels). The gradient at the decay
 * is only taken where c is not NULL, else ddecay becomes 0. */
int32_t spo_core_leaky_scan(int32_t single, int64_t batch, int64_t tokens, int64_t channels, double decay,
                            const void *x, void *c, int32_t workers);
int32_t spo_core_leaky_scan_vjp(int32_t single, int64_t batch, int64_t tokens, int64_t channels, double decay,
                                const void *x, const void *c, const void *grad, void *dx, double *ddecay,
                                int32_t workers);

/* Running sums of u in chunks with what was remembered of past chunks; u, k, c (batch, tokens, heads, width).
 * moments = 0: a chunk is remembered by its last state, and each token recalls by its key. Otherwise by its
 * moments, the products of basis (chunk, moments), of the last chunk last_basis, with its states, and
 * recalled by those of the keys: of all the chunk at once or, per_token, of those up to each token. per_token
 * is set where moments = 0. */
typedef struct spo_resonance {
    int32_t single, per_token;
    int64_t batch, tokens, heads, width, chunk, moments;
    double scale;
    const void *u, *k, *basis, *last_basis;
} spo_resonance;
int32_t spo_core_resonance(const spo_resonance *resonance, void *c, int32_t workers);
int32_t spo_core_resonance_vjp(const spo_resonance *resonance, const void *c, const void *grad, void *du,
                               void *dk, int32_t workers);

/* Mean of each row's numbers and the sum of their squared distances from it. */
int32_t spo_core_token_moments(int32_t single, int64_t rows, int64_t width, const void *x, double *mean,
                               double *squares, int32_t workers);

/* y (batch, heads, tokens, width) of x (batch, tokens, heads, width), width even: (x - shift) factor, both
 * (batch, tokens, heads), times the twist (heads, width, width), unless that is NULL, and the rotation of
 * pairs by the angles whose cosine and sine (tokens, width / 2) are given, in some order. */
typedef struct spo_turn {
    int32_t single, twist_first;
    int64_t batch, tokens, heads, width;
    const void *x, *twist, *cosine, *sine;
    const double *shift, *factor;
} spo_turn;
int32_t spo_core_turn(const spo_turn *turn, void *y, int32_t workers);

/* g, the gradient at (x - shift) factor, its sums over each token alone and times that, (batch, tokens,
 * heads), and the gradient at the twist, not touched where there is none. */
int32_t spo_core_turn_vjp(const spo_turn *turn, const void *grad, void *g, double *slopes, double *products,
                          double *dtwist, int32_t workers);

/* grad becomes factor (grad + alpha + beta (x - mean)), one of each for a row. */
int32_t spo_core_unnormalise(int32_t single, int64_t rows, int64_t width, void *grad, const void *x,
                             const double *factor, const double *alpha, const double *beta,
                             const double *mean, int32_t workers);

/* Gradients of sum K' grad at what spo_core_modulate takes, shaped as that; the entries of K count as
 * independent of each other, and which edges there are does not change. */
typedef struct spo_modulation_gradients {
    double *knm, *theta, *w_q, *w_k, *w_v, *w_o, *temperature, *lambda;
} spo_modulation_gradients;

/* Gradients of one modulation of a scanned K; `mean` holds half of K + K^T, NULL where K is exactly
 * symmetric. Every exponential of every pair, twice. scratch of so many doubles, any alignment. */
int64_t spo_core_modulate_vjp_scratch(int64_t n, const spo_modulation *modulation, int32_t workers);
int32_t spo_core_modulate_vjp(int64_t n, const double *knm, const double *mean, int32_t traits,
                              const double *theta, const spo_modulation *modulation, const double *grad,
                              int32_t workers, double *scratch, const spo_modulation_gradients *gradients);

/* The same on a sparse K that the caller has found symmetric; mirror holds for each entry the place of its
 * mirror image. */
int64_t spo_core_modulate_sparse_vjp_scratch(int64_t n, const spo_sparse *sparse,
                                             const spo_modulation *modulation);
int32_t spo_core_modulate_sparse_vjp(int64_t n, const spo_sparse *sparse, const double *knm,
                                     const int64_t *mirror, const double *theta,
                                     const spo_modulation *modulation, const double *grad, double *scratch,
                                     const spo_modulation_gradients *gradients);

/* Fixed steps that are followed and then gone back. What the way back needs of each stage stands on the tape:
 * rows of its sines, cosines and two sums over K, of n rounded up to a multiple of eight. */
typedef struct spo_flow {
    int64_t n, stages; /* 1: Euler, 4: classical Runge-Kutta */
    int32_t symmetric; /* kc is dense and equals its transpose, and there is no ks */
    double dt;
    const spo_sparse *sparse; /* NULL: K is dense */
    const double *omega;      /* (n) */
    const double *kc, *ks;    /* K cos alpha, K sin alpha; K and NULL where there is no lag of each pair */
    double turn_cosine, turn_sine;     /* of the lag of all pairs */
    double zeta, psi_sine, psi_cosine; /* the drive, and sine and cosine of its phase */
    double *tape;                      /* (room, stages, 4, n rounded up) */
    const double *packed; /* NULL, or a symmetric kc without a diagonal as spo_core_pack leaves it */
} spo_flow;

/* A symmetric K whose diagonal is zero, from the diagonal on: half as much to read, which is worth it where K
 * leaves the first cache and serves for many steps. */
#define SPO_HALF_FROM 96 /* oscillators; measured, see kuramoto.c */
int64_t spo_core_packed_size(int64_t n);
void spo_core_pack(int64_t n, const double *knm, double *packed);

/* Evaluations of a dense K whose share of its gradient waits to be added. */
#define SPO_FLOW_DEPTH 16

/* What grows on the way back; omega is rounded up, too. */
typedef struct spo_flow_gradients {
    double *omega, *slopes; /* slopes (3): at the lag of all pairs, zeta and psi */
    double *kc, *ks;        /* ks NULL where that of the flow is */
    double *waiting;        /* (4, SPO_FLOW_DEPTH, n rounded up), of a dense K */
    int64_t *count;         /* evaluations that wait */
} spo_flow_gradients;

/* Takes steps from the state (n), which becomes the last one, wrapped; they are kept from place slot of the
 * tape on, or nothing where slot is -1. */
int64_t spo_core_flow_scratch(int64_t n);
void spo_core_follow(const spo_flow *flow, double *state, int64_t steps, int64_t slot, double *scratch);

/* The gradient at the state after steps that stand on the tape becomes that at the state before them. */
void spo_core_go_back(const spo_flow *flow, double *grad, int64_t steps, int64_t slot, double *scratch,
                      const spo_flow_gradients *gradients);

/* Adds what waits. */
void spo_core_collect(int64_t n, const spo_flow_gradients *gradients);

#ifdef __cplusplus
}
#endif

#endif
