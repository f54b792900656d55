/* Drives the C core under the address and undefined-behaviour sanitizers, on every instruction set of this
 * processor: the golden cases (a binary dump that tools/sanitize.py makes) and random cases of 0 ... 70
 * oscillators. Every array has exactly its size, so that a touch outside is seen. Prints "N passed, N
 * failed". */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spo_fast_core.h"

static int passed, failed;

/* Workers of what follows. */
static int32_t crew = 1;

static void check(int good, const char *what, int64_t n) {
    if (good) {
        ++passed;
    } else {
        ++failed;
        fprintf(stderr, "%s: %s fails at n = %lld\n", spo_core_instruction_set(), what, (long long)n);
    }
}

static double *room(int64_t n) { return malloc((size_t)(n > 0 ? n : 1) * sizeof(double)); }

static uint64_t seed = 12345;

/* xorshift64*: G. Marsaglia, J. Stat. Softw. 8 (2003) 14; S. Vigna, ACM Trans. Math. Softw. 42 (2016) 30. */
static double uniform(double low, double high) {
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return low + (high - low) * (double)((seed * 2685821657736338717u) >> 11) * 0x1p-53;
}

static double *random_array(int64_t n, double low, double high) {
    double *x = room(n);
    for (int64_t i = 0; i < n; ++i) x[i] = uniform(low, high);
    return x;
}

/* Symmetric, zero diagonal; some edges missing, some on one side only. */
static double *random_coupling(int64_t n, double density, double one_sided) {
    double *k = room(n * n);
    for (int64_t i = 0; i < n; ++i) {
        k[i * n + i] = 0;
        for (int64_t j = 0; j < i; ++j) {
            k[i * n + j] = k[j * n + i] = uniform(0, 1) < density ? uniform(0, 1) : 0.0;
            if (uniform(0, 1) < one_sided) k[i * n + j] = 1e-13, k[j * n + i] = 0.0;
        }
    }
    return k;
}

typedef struct {
    spo_modulation parameters;
    double *arrays[5];
} modulation;

static modulation random_modulation(int64_t heads, int64_t d_model, int64_t block) {
    modulation m;
    const int64_t sizes[5] = {d_model * d_model, d_model * d_model, d_model * d_model, d_model * d_model,
                              heads};
    for (int k = 0; k < 5; ++k)
        m.arrays[k] = random_array(sizes[k], k == 4 ? 0.02 : -0.6, k == 4 ? 2.0 : 0.6);
    m.parameters = (spo_modulation){heads,       d_model,     block,
                                    m.arrays[0], m.arrays[1], m.arrays[2],
                                    m.arrays[3], m.arrays[4], uniform(0, 1) < 0.1 ? 0.0 : uniform(0, 2)};
    return m;
}

static void release(modulation *m) {
    for (int k = 0; k < 5; ++k) free(m->arrays[k]);
}

static int finite_all(int64_t n, const double *x) {
    for (int64_t i = 0; i < n; ++i)
        if (!isfinite(x[i])) return 0;
    return 1;
}

static int symmetric(int64_t n, const double *x) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < i; ++j)
            if (x[i * n + j] != x[j * n + i]) return 0;
    return 1;
}

static void fuzz_modulate(int64_t n) {
    static const int64_t shapes[][2] = {{1, 2}, {4, 8}, {8, 8}, {2, 8}, {1, 8}, {2, 6}, {4, 16}, {1, 16}};
    const int64_t *shape = shapes[(int)uniform(0, 8)];
    modulation m = random_modulation(shape[0], shape[1], uniform(0, 1) < 0.5 ? -1 : (int64_t)uniform(0, 80));
    const double density = uniform(0, 1) < 0.5 ? 1.0 : uniform(0, 1), reach = uniform(0, 1) < 0.1 ? 1e7 : 7.0;
    double *knm = random_coupling(n, density, uniform(0, 1) < 0.2 ? 0.1 : 0.0),
           *theta = random_array(n, -reach, reach);
    double *out = room(n * n), *factors = room(n * shape[1]), *square = room(n * n);
    check(spo_modulate(n, knm, theta, &m.parameters, out) == SPO_OK, "modulate", n);
    check(finite_all(n * n, out) && (m.parameters.lambda == 0 || symmetric(n, out)), "modulated matrix", n);
    int32_t traits = 0;
    check(spo_core_scan(n, knm, crew, &traits) == SPO_OK, "scan", n);
    double *scratch = room(spo_core_modulation_scratch(n, &m.parameters, NULL, crew));
    check(spo_core_factors(n, knm, traits, theta, &m.parameters, NULL, crew, scratch, square, factors) ==
              SPO_OK,
          "factors", n);
    check(finite_all(n * shape[1], factors), "finite factors", n);
    if (n > 1) {
        knm[n - 1] = NAN;
        check(spo_modulate(n, knm, theta, &m.parameters, out) == SPO_NONFINITE_COUPLING, "refusal of NaN", n);
    }
    free(scratch), free(square), free(factors), free(out), free(theta), free(knm);
    release(&m);
}

/* Order parameters against pair by pair: K' may differ by roundings alone. */
static void fuzz_moments(int64_t n, const spo_modulation *parameters, const spo_moments *moments) {
    const double density = uniform(0, 1) < 0.5 ? 1.0 : uniform(0.8, 1);
    double *knm = random_coupling(n, density, 0.0), *theta = random_array(n, -7, 7);
    double *out = room(n * n), *expected = room(n * n), *factors = room(n * parameters->d_model);
    uint64_t *absent = malloc((size_t)(spo_core_absent_words(n) + 1) * sizeof *absent);
    int32_t traits = 0;
    int64_t redone = 0;
    check(spo_core_scan(n, knm, crew, &traits) == SPO_OK, "scan", n);
    spo_core_find_absent(n, knm, crew, absent);
    const spo_attention_path path = {moments, absent, &redone};
    double *scratch = room(spo_core_modulation_scratch(n, parameters, moments, crew));
    check(spo_core_modulate(n, knm, traits, theta, parameters, NULL, crew, scratch, expected) == SPO_OK,
          "direct", n);
    check(spo_core_modulate(n, knm, traits, theta, parameters, &path, crew, scratch, out) == SPO_OK,
          "moments", n);
    check(spo_core_factors(n, knm, traits, theta, parameters, &path, crew, scratch, NULL, factors) == SPO_OK,
          "factors through moments", n);
    double error = 0, largest = 1e-300;
    for (int64_t e = 0; e < n * n; ++e)
        error = fmax(error, fabs(out[e] - expected[e])), largest = fmax(largest, fabs(expected[e]));
    check(finite_all(n * n, out) && symmetric(n, out) && error <= 1e-13 * largest, "parity of the moments",
          n);
    check(redone >= 0 && redone <= 2 * n, "rows done again", n);
    if (n > 1) {
        theta[n - 1] = NAN;
        check(spo_core_modulate(n, knm, traits, theta, parameters, &path, crew, scratch, out) ==
                  SPO_NONFINITE_PHASE,
              "refusal of NaN", n);
    }
    free(scratch), free(absent), free(factors), free(expected), free(out), free(theta), free(knm);
}

static void fuzz_plans(void) {
    static const int64_t shapes[][2] = {{1, 2}, {4, 8}, {2, 8}, {1, 8}, {2, 6}, {4, 16}};
    for (int k = 0; k < 6; ++k) {
        modulation m = random_modulation(shapes[k][0], shapes[k][1], -1);
        m.parameters.lambda = 0.7;
        for (int64_t h = 0; h < shapes[k][0]; ++h) m.arrays[4][h] = uniform(0.7, 3.0);
        spo_moments *moments = NULL;
        check(spo_core_moments_create(&m.parameters, &moments) == SPO_OK, "plan", k);
        if (!spo_core_moments_refusal(moments))
            for (int64_t n = 1; n <= 70; n += k == 1 ? 1 : 23) fuzz_moments(n, &m.parameters, moments);
        spo_core_moments_free(moments);
        release(&m);
    }
}

static void fuzz_run(int64_t n) {
    const int64_t steps = 1 + (int64_t)uniform(0, 6), every = (int64_t)uniform(0, 4);
    modulation m = random_modulation(4, 8, -1);
    double *knm = random_coupling(n, 0.8, 0.0), *omega = random_array(n, -2, 2),
           *alpha = random_array(n * n, -1, 1);
    double *theta = random_array(n, -20, 20), *modulated = room(n * n);
    double *states = room((steps / (every ? every : 1) + 1) * n), *t = room(steps + 1), *r = room(steps + 1),
           *psi = room(steps + 1), *seen = room(steps + 1);
    const spo_network network = {n,
                                 omega,
                                 knm,
                                 uniform(0, 1) < 0.5 ? alpha : NULL,
                                 0.3,
                                 0.2,
                                 1.0,
                                 uniform(0, 1) < 0.5 ? &m.parameters : NULL,
                                 1 + (int64_t)uniform(0, 3)};
    const spo_integrator integrator = {(int64_t)uniform(0, 3), uniform(0.001, 0.5), 1e-8, 1e-6};
    spo_state state = {theta, modulated, 0.0, integrator.dt, 0};
    const spo_record record = {every, states, t, r, psi, seen};
    check(spo_kuramoto_run(&network, &integrator, &state, steps - 1, &record) == SPO_OK, "run", n);
    check(spo_kuramoto_run(&network, &integrator, &state, 1, &record) == SPO_OK, "last step", n);
    check(state.step == steps && finite_all(n, theta) && finite_all(steps + 1, r) &&
              finite_all(steps + 1, seen),
          "records", n);
    double one, angle;
    check(spo_order_parameter(n, theta, &one, &angle) == SPO_OK && one >= 0 && one <= 1, "order parameter",
          n);
    check(n == 0 || fabs(one - r[steps]) < 1e-14, "recorded order parameter", n);
    free(seen), free(psi), free(r), free(t), free(states), free(modulated), free(theta), free(alpha),
        free(omega), free(knm);
    release(&m);
}

/* Every walk over dense K does what the portable function does. */
static void fuzz_walks(int64_t n) {
    static const int64_t shapes[][2] = {{1, 2}, {4, 8}, {2, 8}, {2, 6}, {4, 16}};
    const int64_t *shape = shapes[(int)uniform(0, 5)];
    modulation m = random_modulation(shape[0], shape[1], uniform(0, 1) < 0.8 ? -1 : 5);
    double *knm = random_coupling(n, 0.8, uniform(0, 1) < 0.2 ? 0.1 : 0.0), *omega = random_array(n, -2, 2),
           *alpha = random_array(n * n, -1, 1), *theta = random_array(n, 0, 6), *other = room(n),
           *modulated = room(n * n), *unused = room(n * n);
    const spo_network network = {n,
                                 omega,
                                 knm,
                                 uniform(0, 1) < 0.5 ? alpha : NULL,
                                 uniform(0, 1) < 0.5 ? 0.3 : 0.0,
                                 0.2,
                                 1.0,
                                 uniform(0, 1) < 0.7 ? &m.parameters : NULL,
                                 1 + (int64_t)uniform(0, 3)};
    const spo_integrator integrator = {(int64_t)uniform(0, 2), 0.05 / (double)(n + 1), 1e-8, 1e-6};
    memcpy(other, theta, (size_t)n * sizeof(double));
    spo_state state = {theta, modulated, 0.0, integrator.dt, 0};
    check(spo_kuramoto_run(&network, &integrator, &state, 4, NULL) == SPO_OK, "run", n);
    for (int32_t walk = SPO_WALK_AUTO; walk <= SPO_WALK_KEPT; ++walk) {
        double *scratch = room(spo_core_run_scratch(&network, NULL, NULL, integrator.method, walk, crew)),
               *own = room(n), error = 0;
        memcpy(own, other, (size_t)n * sizeof(double));
        spo_state piece = {own, unused, 0.0, integrator.dt, 0};
        check(spo_core_prepare(&network, NULL, NULL, integrator.method, walk, crew, scratch) == SPO_OK,
              "preparation", n);
        check(spo_core_run(&network, NULL, &integrator, NULL, &piece, 1, NULL, scratch) == SPO_OK &&
                  spo_core_run(&network, NULL, &integrator, NULL, &piece, 3, NULL, scratch) == SPO_OK,
              "walk", n);
        for (int64_t i = 0; i < n; ++i) error = fmax(error, fabs(sin(0.5 * (theta[i] - own[i]))));
        check(error < 1e-12, "parity of the walks", n);
        free(own), free(scratch);
    }
    free(unused), free(modulated), free(other), free(theta), free(alpha), free(omega), free(knm);
    release(&m);
}

typedef struct {
    int64_t *start;
    int32_t *column;
    double *data, *mean;
} edges;

/* The non-zero entries of a dense matrix whose pattern is symmetric. */
static edges edges_of(int64_t n, const double *knm) {
    int64_t count = 0;
    for (int64_t e = 0; e < n * n; ++e) count += knm[e] != 0;
    edges k = {malloc((size_t)(n + 1) * sizeof(int64_t)), malloc((size_t)(count + 1) * sizeof(int32_t)),
               room(count), room(count)};
    count = 0;
    for (int64_t i = 0; i < n; ++i) {
        k.start[i] = count;
        for (int64_t j = 0; j < n; ++j)
            if (knm[i * n + j] != 0) {
                k.column[count] = (int32_t)j;
                k.data[count] = knm[i * n + j];
                k.mean[count++] = 0.5 * (knm[i * n + j] + knm[j * n + i]);
            }
    }
    k.start[n] = count;
    return k;
}

/* Sparse K must give what dense K gives: K', and a step with and without modulation. */
static void fuzz_sparse(int64_t n) {
    modulation m = random_modulation(4, 8, uniform(0, 1) < 0.5 ? -1 : (int64_t)uniform(0, 20));
    double *knm = random_coupling(n, 0.3, 0.0), *theta = random_array(n, 0, 6),
           *omega = random_array(n, -2, 2);
    edges k = edges_of(n, knm);
    const spo_sparse sparse = {k.start, k.column, k.mean};
    double *scratch = room(spo_core_sparse_scratch(n, &m.parameters, crew)), *data = room(k.start[n]),
           *out = room(n * n);
    double *factors = room(n * 8);
    check(spo_core_modulate_sparse(n, &sparse, k.data, theta, &m.parameters, crew, scratch, data) == SPO_OK,
          "sparse K'", n);
    check(spo_core_factors_sparse(n, &sparse, k.data, theta, &m.parameters, crew, scratch, factors) == SPO_OK,
          "factors", n);
    spo_modulate(n, knm, theta, &m.parameters, out);
    double error = 0;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t e = k.start[i]; e < k.start[i + 1]; ++e)
            error = fmax(error, fabs(data[e] - out[i * n + k.column[e]]));
    check(error < 1e-13, "parity of sparse and dense", n);
    const spo_modulation *modulated = uniform(0, 1) < 0.5 ? &m.parameters : NULL;
    spo_network network = {n, omega, knm, NULL, 0.3, 0.2, 1.0, modulated, 1};
    const spo_integrator integrator = {(int64_t)uniform(0, 2), 0.05, 1e-8, 1e-6};
    double *other = room(n);
    memcpy(other, theta, (size_t)n * sizeof(double));
    spo_state state = {theta, out, 0.0, 0.05, 0}, edge_state = {other, data, 0.0, 0.05, 0};
    check(spo_kuramoto_run(&network, &integrator, &state, 2, NULL) == SPO_OK, "dense run", n);
    network.knm = k.data;
    double *work =
        room(spo_core_run_scratch(&network, &sparse, NULL, integrator.method, SPO_WALK_AUTO, crew));
    check(spo_core_prepare(&network, &sparse, NULL, integrator.method, SPO_WALK_AUTO, crew, work) == SPO_OK,
          "preparation", n);
    check(spo_core_run(&network, &sparse, &integrator, NULL, &edge_state, 2, NULL, work) == SPO_OK,
          "sparse run", n);
    for (int64_t i = 0; i < n; ++i) error = fmax(error, fabs(sin(0.5 * (theta[i] - other[i]))));
    check(error < 1e-12, "parity of sparse and dense runs", n);
    free(work), free(other), free(factors), free(out), free(data), free(scratch), free(k.mean), free(k.data);
    free(k.column), free(k.start), free(omega), free(theta), free(knm);
    release(&m);
}

/* Members must do what single runs do; one of them fails and leaves the others alone. */
static void fuzz_members(int64_t n) {
    const int64_t members = 1 + (int64_t)uniform(0, 20), steps = 3;
    double *knm = random_coupling(n, 1.0, 0.0), *alpha = random_array(n * n, -1, 1);
    double *theta = random_array(members * n, 0, 6), *omega = random_array(members * n, -2, 2),
           *single = room(n);
    double *states = room((steps + 1) * members * n), *r = room((steps + 1) * members),
           *psi = room((steps + 1) * members);
    double *t = room(steps + 1), *seen = room(steps + 1), *strengths = random_array(members, 0, 2);
    int32_t *status = calloc((size_t)members, sizeof(int32_t));
    int64_t *taken = calloc((size_t)members, sizeof(int64_t));
    const int following = n <= 40 && uniform(0, 1) < 0.5;
    const int64_t heads = 1 + (int64_t)uniform(0, 4);
    modulation m =
        random_modulation(heads, 2 * heads * (1 + (int64_t)uniform(0, 3)), uniform(0, 1) < 0.3 ? 2 : -1);
    m.parameters.lambda = strengths[0];
    const spo_network network = {n,   omega, knm, following || uniform(0, 1) < 0.5 ? NULL : alpha,
                                 0.2, 0.1,   0.5, following ? &m.parameters : NULL,
                                 2};
    const spo_integrator integrator = {(int64_t)uniform(0, 2), 0.05, 0, 0};
    const spo_record record = {1, states, t, r, psi, seen};
    double *scratch =
               room(spo_core_run_scratch(&network, NULL, NULL, integrator.method, SPO_WALK_WHOLE, crew)),
           *block = room(spo_core_members_room(&network, members, crew)), *written = room(n * n);
    check(spo_core_prepare(&network, NULL, NULL, integrator.method, SPO_WALK_WHOLE, crew, scratch) == SPO_OK,
          "preparation", n);
    memcpy(single, theta, (size_t)n * sizeof(double));
    if (members > 1 && n > 0) omega[n] = INFINITY;
    spo_ensemble all = {members, 0, omega, following ? strengths : NULL, theta, status, taken};
    check(spo_core_run_members(&network, &integrator, &all, steps, &record, crew, scratch, block) == SPO_OK,
          "members", n);
    spo_state state = {single, written, 0.0, 0.05, 0};
    check(spo_kuramoto_run(&network, &integrator, &state, steps, NULL) == SPO_OK, "single run", n);
    double error = 0;
    for (int64_t i = 0; i < n; ++i) error = fmax(error, fabs(sin(0.5 * (theta[i] - single[i]))));
    check(error < 1e-12 && status[0] == SPO_OK && taken[0] == steps, "first member", n);
    if (members > 1 && n > 0) check(status[1] == SPO_NONFINITE_STATE && taken[1] == 0, "failing member", n);
    free(block), free(scratch), free(taken), free(status), free(seen), free(t), free(psi), free(r),
        free(states);
    free(single), free(omega), free(theta), free(alpha), free(knm), free(written), free(strengths);
    release(&m);
}

/* Room for the gradients of a modulation, and its release. */
static spo_modulation_gradients gradients_of(int64_t n, int64_t entries, const spo_modulation *m) {
    const int64_t square = m->d_model * m->d_model;
    return (spo_modulation_gradients){room(entries), room(n),      room(square),     room(square),
                                      room(square),  room(square), room(m->n_heads), room(1)};
}

static void release_gradients(const spo_modulation_gradients *g) {
    free(g->knm), free(g->theta), free(g->w_q), free(g->w_k), free(g->w_v), free(g->w_o);
    free(g->temperature), free(g->lambda);
}

static double distance(int64_t n, const double *x, const double *y) {
    double error = 0, largest = 1e-3;
    for (int64_t i = 0; i < n; ++i)
        error = fmax(error, fabs(x[i] - y[i])), largest = fmax(largest, fabs(y[i]));
    return error / largest;
}

/* Gradients at a sparse K are those at a dense one where no gradient comes from elsewhere. */
static void fuzz_gradients(int64_t n) {
    static const int64_t shapes[][2] = {{1, 2}, {4, 8}, {8, 8}, {2, 8}, {1, 8}, {2, 6}, {1, 10}, {4, 16}};
    const int64_t *shape = shapes[(int)uniform(0, 8)];
    modulation m = random_modulation(shape[0], shape[1], uniform(0, 1) < 0.5 ? -1 : (int64_t)uniform(0, 80));
    const double density = uniform(0, 1) < 0.3 ? 1.0 : uniform(0, 1);
    double *knm = random_coupling(n, density, 0.0), *theta = random_array(n, -7, 7);
    double *grad = random_array(n * n, -1, 1);
    edges k = edges_of(n, knm);
    const spo_sparse sparse = {k.start, k.column, k.mean};
    double *entries = room(k.start[n]);
    int64_t *mirror = malloc((size_t)(k.start[n] + 1) * sizeof(int64_t));
    for (int64_t e = 0; e < n * n; ++e)
        if (knm[e] == 0) grad[e] = 0;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t e = k.start[i]; e < k.start[i + 1]; ++e) {
            const int64_t j = k.column[e];
            entries[e] = grad[i * n + j];
            for (int64_t f = k.start[j]; f < k.start[j + 1]; ++f)
                if (k.column[f] == i) mirror[e] = f;
        }
    int32_t traits = 0;
    check(spo_core_scan(n, knm, crew, &traits) == SPO_OK, "scan", n);
    const spo_modulation_gradients dense = gradients_of(n, n * n, &m.parameters);
    const spo_modulation_gradients along = gradients_of(n, k.start[n], &m.parameters);
    double *scratch = room(spo_core_modulate_vjp_scratch(n, &m.parameters, crew));
    double *other = room(spo_core_modulate_sparse_vjp_scratch(n, &sparse, &m.parameters));
    check(spo_core_modulate_vjp(n, knm, uniform(0, 1) < 0.5 ? NULL : knm, traits, theta, &m.parameters, grad,
                                crew, scratch, &dense) == SPO_OK,
          "gradients", n);
    check(spo_core_modulate_sparse_vjp(n, &sparse, k.data, mirror, theta, &m.parameters, entries, other,
                                       &along) == SPO_OK,
          "gradients along edges", n);
    const int64_t square = shape[1] * shape[1];
    check(
        finite_all(n * n, dense.knm) && distance(n, along.theta, dense.theta) < 1e-9 &&
            distance(square, along.w_q, dense.w_q) < 1e-9 && distance(square, along.w_k, dense.w_k) < 1e-9 &&
            distance(square, along.w_v, dense.w_v) < 1e-9 && distance(square, along.w_o, dense.w_o) < 1e-9 &&
            distance(shape[0], along.temperature, dense.temperature) < 1e-9 &&
            distance(1, along.lambda, dense.lambda) < 1e-9,
        "parity of sparse and dense gradients", n);
    if (n > 0) {
        theta[n - 1] = NAN;
        check(spo_core_modulate_vjp(n, knm, NULL, traits, theta, &m.parameters, grad, crew, scratch,
                                    &dense) == SPO_NONFINITE_PHASE,
              "refusal of NaN", n);
    }
    release_gradients(&dense), release_gradients(&along);
    free(scratch), free(other), free(mirror), free(entries), free(grad), free(theta), free(knm);
    free(k.start), free(k.column), free(k.data), free(k.mean);
    release(&m);
}

/* Steps along edges and back are those of the same matrix, dense. */
static void fuzz_flow(int64_t n) {
    const int64_t padded = (n + 7) / 8 * 8, steps = 1 + (int64_t)uniform(0, 6);
    const int64_t stages = uniform(0, 1) < 0.5 ? 1 : 4;
    const int lagged = uniform(0, 1) < 0.5;
    double *knm = random_coupling(n, 0.6, 0.0), *omega = random_array(n, -2, 2);
    double *state[2], *grad[2], *found[2];
    edges k = edges_of(n, knm);
    const spo_sparse sparse = {k.start, k.column, k.mean};
    for (int way = 0; way < 2; ++way) {
        const int64_t entries = way ? k.start[n] : n * n;
        double *values = way ? k.data : knm, *frequencies = calloc((size_t)padded + 1, sizeof(double));
        double *kc = calloc((size_t)entries + 1, sizeof(double)), slopes[3] = {0};
        double *ks = calloc((size_t)entries + 1, sizeof(double));
        double *waiting = room(4 * SPO_FLOW_DEPTH * padded), *scratch = room(spo_core_flow_scratch(n));
        int64_t count = 0;
        const spo_flow flow = {.n = n,
                               .stages = stages,
                               .symmetric = !way && !lagged && uniform(0, 1) < 0.5,
                               .dt = 0.05,
                               .sparse = way ? &sparse : NULL,
                               .omega = omega,
                               .kc = values,
                               .ks = lagged ? values : NULL,
                               .turn_cosine = 1,
                               .zeta = 0.3,
                               .psi_sine = 1,
                               .tape = room(steps * stages * 4 * padded)};
        const spo_flow_gradients to = {frequencies, slopes, kc, lagged ? ks : NULL, waiting, &count};
        double *packed = room(spo_core_packed_size(n));
        spo_flow used = flow;
        spo_core_pack(n, knm, packed);
        if (flow.symmetric && uniform(0, 1) < 0.5) used.packed = packed;
        state[way] = room(n), grad[way] = room(n), found[way] = kc;
        for (int64_t i = 0; i < n; ++i)
            state[way][i] = 0.1 * (double)i, grad[way][i] = 1 - 0.2 * (double)(i % 7);
        spo_core_follow(&used, state[way], steps / 2, -1, scratch);
        spo_core_follow(&used, state[way], steps, 0, scratch);
        spo_core_go_back(&used, grad[way], steps, 0, scratch, &to);
        if (!way) spo_core_collect(n, &to);
        check(finite_all(entries, kc) && finite_all(padded, frequencies) && finite_all(3, slopes), "flow", n);
        free(frequencies), free(ks), free(waiting), free(scratch), free(flow.tape), free(packed);
    }
    double error = 0;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t e = k.start[i]; e < k.start[i + 1]; ++e)
            error = fmax(error, fabs(found[1][e] - found[0][i * n + k.column[e]]));
    check(error < 1e-9 && distance(n, grad[1], grad[0]) < 1e-9, "parity of sparse and dense steps back", n);
    for (int way = 0; way < 2; ++way) free(state[way]), free(grad[way]), free(found[way]);
    free(k.start), free(k.column), free(k.data), free(k.mean), free(omega), free(knm);
}

static void fuzz_vector_functions(int64_t n) {
    double *x = random_array(n, -800, 800), *y = room(n), *z = room(n);
    if (n > 2) x[n / 2] = 1e300, x[0] = INFINITY;
    spo_core_exp(n, x, y);
    spo_core_sincos(n, x, y, z);
    if (n > 0) check(spo_core_measure_read(n, y, 1) >= 0, "read", n);
    free(z), free(y), free(x);
}

/* n random numbers of the size of float (single) or double, exactly. */
static void *random_numbers(int single, int64_t n) {
    const size_t size = single ? sizeof(float) : sizeof(double);
    void *x = malloc(n > 0 ? (size_t)n * size : 1);
    for (int64_t i = 0; i < n; ++i)
        if (single)
            ((float *)x)[i] = (float)uniform(-1.5, 1.5);
        else
            ((double *)x)[i] = uniform(-1.5, 1.5);
    return x;
}

static int all_finite(int single, int64_t n, const void *x) {
    for (int64_t i = 0; i < n; ++i)
        if (!isfinite(single ? (double)((const float *)x)[i] : ((const double *)x)[i])) return 0;
    return 1;
}

static void fuzz_attention(int64_t n) {
    const int single = uniform(0, 1) < 0.5;
    spo_attention at = {.single = single,
                        .causal = uniform(0, 1) < 0.5,
                        .groups = (int64_t)uniform(1, 6),
                        .heads = (int64_t)uniform(1, 4),
                        .queries = n,
                        .keys = uniform(0, 1) < 0.3 ? n : (int64_t)uniform(0, 130),
                        .width = (int64_t)uniform(1, 35),
                        .value_width = (int64_t)uniform(1, 20),
                        .scale = 0.5};
    const int64_t rows = at.groups * at.heads * n, keys = at.groups * at.heads * at.keys;
    const int64_t sizes[5] = {rows * at.width, keys * at.width, keys * at.value_width, at.heads,
                              at.heads * at.value_width};
    void *given[5], *found[5], *out = random_numbers(single, rows * at.value_width);
    void *lse = random_numbers(single, rows), *grad = random_numbers(single, rows * at.value_width);
    uint8_t *mask = malloc((size_t)(at.groups * at.keys + 1));
    for (int k = 0; k < 5; ++k) {
        given[k] = random_numbers(single, sizes[k]);
        found[k] = random_numbers(single, sizes[k]);
    }
    for (int64_t j = 0; j < at.groups * at.keys; ++j) mask[j] = uniform(0, 1) < 0.7;
    at.q = given[0], at.k = given[1], at.v = given[2];
    if (uniform(0, 1) < 0.4) at.key_mask = mask;
    if (uniform(0, 1) < 0.5) at.sink = given[3], at.sink_value = given[4];
    const spo_attention_gradients to = {found[0], found[1], found[2], found[3], found[4]};
    check(spo_core_attend(&at, out, lse, 2) == SPO_OK, "attend", n);
    check(all_finite(single, rows * at.value_width, out), "attend's values", n);
    check(spo_core_attend_vjp(&at, out, lse, grad, &to, 2) == SPO_OK, "attend_vjp", n);
    for (int k = 0; k < 5; ++k) check(all_finite(single, sizes[k], found[k]), "attend_vjp's values", n);
    for (int k = 0; k < 5; ++k) free(given[k]), free(found[k]);
    free(out), free(lse), free(grad), free(mask);
}

static void fuzz_phases(int64_t n) {
    const int single = uniform(0, 1) < 0.5, queries = uniform(0, 1) < 0.3;
    spo_phase_attention at = {.single = single,
                              .static_query = uniform(0, 1) < 0.3,
                              .batch = (int64_t)uniform(1, 5),
                              .tokens = uniform(0, 1) < 0.2 ? 2 * n : n,
                              .heads = (int64_t)uniform(1, 4),
                              .phases = (int64_t)uniform(1, 18),
                              .value_width = (int64_t)uniform(1, 20),
                              .steps = (int64_t)uniform(0, 6),
                              .dt = uniform(0.1, 2),
                              .value_consensus = uniform(0, 1) < 0.3 ? 0.4 : 0};
    const int32_t keep = uniform(0, 1) < 0.5 ? SPO_KEEP_ALL : SPO_KEEP_SQRT;
    const int64_t rows = at.batch * at.tokens * at.heads, pair = rows * at.phases;
    const int64_t sizes[8] = {
        pair, pair, pair, pair, rows * at.value_width, at.heads * at.phases, at.heads * at.phases, at.heads};
    void *given[8], *found[8], *out = random_numbers(single, sizes[4]),
                               *grad = random_numbers(single, sizes[4]);
    double *ramp = random_array(at.phases, 0, 1);
    for (int k = 0; k < 8; ++k) {
        given[k] = random_numbers(single, sizes[k]);
        found[k] = random_numbers(single, sizes[k]);
    }
    at.c = given[0], at.s = given[1], at.v = given[4];
    if (queries) at.query_c = given[2], at.query_s = given[3];
    at.weight = given[5], at.alpha = given[6], at.kappa = given[7], at.ramp = ramp;
    const spo_phase_gradients to = {found[0], found[1], found[2], found[3],
                                    found[4], found[5], found[6], found[7]};
    int64_t layout = 0;
    const int64_t size = spo_core_phase_state(&at, keep, &layout);
    void *state = aligned_alloc(64, (size_t)(size / 64 + 1) * 64);
    check(spo_core_phase_attend(&at, keep, state, out, 2) == SPO_OK, "phase_attend", n);
    check(all_finite(single, sizes[4], out), "phase_attend's values", n);
    check(spo_core_phase_attend_vjp(&at, keep, state, grad, &to, 2) == SPO_OK, "phase_attend_vjp", n);
    for (int k = 0; k < 8; ++k) check(all_finite(single, sizes[k], found[k]), "phase_attend_vjp's values", n);
    for (int k = 0; k < 8; ++k) free(given[k]), free(found[k]);
    free(out), free(grad), free(ramp), free(state);
}

static void fuzz_pulses(int64_t n) {
    const int single = uniform(0, 1) < 0.5, moments = (int)uniform(0, 4);
    spo_resonance at = {.single = single,
                        .per_token = !moments || uniform(0, 1) < 0.5,
                        .batch = (int64_t)uniform(1, 4),
                        .tokens = n,
                        .heads = (int64_t)uniform(1, 4),
                        .width = 2 * (int64_t)uniform(1, 12),
                        .chunk = 1 + (int64_t)uniform(n / 8.0, n + 2.0),
                        .moments = moments,
                        .scale = 0.5};
    const int64_t rows = at.batch * n * at.heads, count = rows * at.width, square = at.width * at.width;
    void *x = random_numbers(single, count), *k = random_numbers(single, count);
    void *c = random_numbers(single, count), *grad = random_numbers(single, count);
    void *to = random_numbers(single, count), *other = random_numbers(single, count);
    const int64_t last = n > 0 ? (n - 1) % at.chunk + 1 : 0, half = at.width / 2;
    void *basis = random_numbers(single, at.chunk * moments), *end = random_numbers(single, last * moments);
    double ddecay = 0;
    check(spo_core_gate(single, count, x, k, c, 2) == SPO_OK, "gate", n);
    check(spo_core_gate_vjp(single, count, x, k, grad, to, other, 2) == SPO_OK, "gate_vjp", n);
    const int64_t columns = at.heads * at.width;
    check(spo_core_leaky_scan(single, at.batch, n, columns, 0.9, x, c, 2) == SPO_OK, "leaky_scan", n);
    check(spo_core_leaky_scan_vjp(single, at.batch, n, columns, 0.9, x, c, grad, to, &ddecay, 2) == SPO_OK,
          "leaky_scan_vjp", n);
    check(isfinite(ddecay) && all_finite(single, count, to), "leaky_scan_vjp's values", n);
    at.u = x, at.k = k;
    if (moments) at.basis = basis, at.last_basis = end;
    check(spo_core_resonance(&at, c, 2) == SPO_OK, "resonance", n);
    if (all_finite(single, count, c)) /* states may double from chunk to chunk */
        check(spo_core_resonance_vjp(&at, c, grad, to, other, 2) == SPO_OK, "resonance_vjp", n);
    double *mean = room(rows), *squares = room(rows), *factor = random_array(rows, 0.5, 2);
    double *dtwist = room(at.heads * square);
    check(spo_core_token_moments(single, rows, at.width, x, mean, squares, 2) == SPO_OK, "moments", n);
    void *twist = random_numbers(single, at.heads * square);
    void *cosine = random_numbers(single, n * half), *sine = random_numbers(single, n * half);
    const spo_turn turn = {.single = single,
                           .twist_first = uniform(0, 1) < 0.5,
                           .batch = at.batch,
                           .tokens = n,
                           .heads = at.heads,
                           .width = at.width,
                           .x = x,
                           .twist = uniform(0, 1) < 0.7 ? twist : NULL,
                           .cosine = cosine,
                           .sine = sine,
                           .shift = mean,
                           .factor = factor};
    check(spo_core_turn(&turn, to, 2) == SPO_OK && all_finite(single, count, to), "turn", n);
    double *slopes = room(rows), *products = room(rows);
    check(spo_core_turn_vjp(&turn, grad, to, slopes, products, dtwist, 2) == SPO_OK, "turn_vjp", n);
    check(all_finite(single, count, to), "turn_vjp's values", n);
    check(spo_core_unnormalise(single, rows, at.width, to, x, factor, slopes, products, mean, 2) == SPO_OK,
          "unnormalise", n);
    free(x), free(k), free(c), free(grad), free(to), free(other), free(basis), free(end), free(mean);
    free(squares), free(factor), free(dtwist), free(twist), free(cosine), free(sine), free(slopes);
    free(products);
}

/* A dump holds, case after case: n, heads, d_model, block as int64; lambda, temperature, w_q, w_k, w_v, w_o,
 * knm, theta, expected. */
static double *take(FILE *file, int64_t n) {
    double *x = room(n);
    if (fread(x, sizeof(double), (size_t)n, file) != (size_t)n) exit(2);
    return x;
}

static void golden(const char *path) {
    FILE *file = fopen(path, "rb");
    int64_t head[4];
    if (!file) exit(2);
    while (fread(head, sizeof(int64_t), 4, file) == 4) {
        const int64_t n = head[0], heads = head[1], d_model = head[2], weights = d_model * d_model;
        double *lambda = take(file, 1), *temperature = take(file, heads), *w[4];
        for (int k = 0; k < 4; ++k) w[k] = take(file, weights);
        double *knm = take(file, n * n), *theta = take(file, n), *expected = take(file, n * n),
               *out = room(n * n);
        const spo_modulation m = {heads, d_model, head[3], w[0], w[1], w[2], w[3], temperature, *lambda};
        check(spo_modulate(n, knm, theta, &m, out) == SPO_OK, "golden case", n);
        double largest = 0, error = 0, reach = 0;
        for (int64_t e = 0; e < n * n; ++e)
            largest = fmax(largest, fabs(expected[e])), error = fmax(error, fabs(out[e] - expected[e]));
        for (int64_t i = 0; i < n; ++i) reach = fmax(reach, fabs(theta[i]));
        check(error <= 1e-13 * largest + reach * (double)d_model * 2e-16, "golden parity", n);
        free(out), free(expected), free(theta), free(knm), free(temperature), free(lambda);
        for (int k = 0; k < 4; ++k) free(w[k]);
    }
    fclose(file);
}

int main(int count, char **arguments) {
    const char *name;
    for (int32_t set = 0; (name = spo_core_available_instruction_set(set)); ++set) {
        spo_core_select_instruction_set(name);
        for (int k = 1; k < count; ++k) golden(arguments[k]);
        fuzz_plans();
        for (int64_t n = 0; n <= 70; ++n)
            for (int round = 0; round < 6; ++round) {
                crew = 1 + 2 * (round % 3); /* one, three, five, with work cut as small as it can be */
                spo_core_split(crew > 1 ? SPO_SPLIT_SMALLEST : SPO_SPLIT_WORTHWHILE);
                fuzz_modulate(n);
                fuzz_run(n);
                fuzz_walks(n);
                fuzz_sparse(n);
                fuzz_members(n);
                fuzz_gradients(n);
                fuzz_flow(n);
                fuzz_vector_functions(n);
                if (n % 3) continue;
                fuzz_attention(n);
                fuzz_phases(n);
                fuzz_pulses(n);
            }
        spo_core_split(SPO_SPLIT_WORTHWHILE);
    }
    for (int32_t status = -1; status <= 8; ++status)
        check(spo_status_text(status) != NULL, "status text", status);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
