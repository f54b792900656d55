/* The faces of the parts of context-pulse attention: memory, and how the work is shared among workers. The
 * work itself is in isa/pulse.h. */
#include <stdlib.h>
#include <string.h>

#include "isa/kernels.h"
#include "lines.h"
#include "pool.h"

/* Numbers of an elementwise part, columns of a scan's part, and rows of a part that goes row by row: what a
 * worker takes at a time. Not a matter of the workers there are, lest they change the order of sums. */
#define NUMBERS 32768
#define COLUMNS 256
#define ROWS 1024
/* A scan whose result is larger than this goes past the caches, which it would only sweep out. (Not on the
 * way back: its result is new memory, whose pages the system has just cleared, in the caches.) */
#define LARGE_RESULT ((int64_t)8 << 20)
#define LARGEST_SIZE ((int64_t)1 << 28)

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t parts_of(int64_t whole, int64_t size) { return (whole + size - 1) / size; }

static const spo_pulse_kernels *kernels_for(int32_t single) {
    return spo_kernels_in_use()->pulse[single != 0];
}

static int64_t bytes_of(int32_t single) { return single ? (int64_t)sizeof(float) : (int64_t)sizeof(double); }

static int size_fits(int64_t size) { return size >= 0 && size <= LARGEST_SIZE; }

/* What the tasks of this file read; each uses what it needs. */
typedef struct {
    const spo_pulse_kernels *kernels;
    int64_t size; /* of a number */
    int64_t count, tokens, channels, groups, width, room;
    double decay;
    int past;
    const char *x, *second, *grad;
    char *out, *other, *scratch;
    const spo_resonance *resonance;
    spo_turn_job turn;
    double *slopes, *products, *parts;
    const double *factor, *alpha, *beta, *mean;
} call_of;

static void gate_part(void *context, int64_t part, int32_t worker) {
    const call_of *call = context;
    const int64_t first = part * NUMBERS, at = first * call->size;
    (void)worker;
    call->kernels->gate(least(NUMBERS, call->count - first), call->x + at, call->second + at, call->out + at);
}

static void gate_vjp_part(void *context, int64_t part, int32_t worker) {
    const call_of *call = context;
    const int64_t first = part * NUMBERS, at = first * call->size;
    (void)worker;
    call->kernels->gate_vjp(least(NUMBERS, call->count - first), call->x + at, call->second + at,
                            call->grad + at, call->out + at, call->other + at);
}

int32_t spo_core_gate(int32_t single, int64_t count, const void *x, const void *g, void *out,
                      int32_t workers) {
    if (count < 0 || workers < 1) return SPO_INVALID_ARGUMENT;
    call_of call = {kernels_for(single), bytes_of(single), .count = count, .x = x, .second = g, .out = out};
    spo_pool_run(parts_of(count, NUMBERS), workers, gate_part, &call);
    return SPO_OK;
}

int32_t spo_core_gate_vjp(int32_t single, int64_t count, const void *x, const void *g, const void *grad,
                          void *dx, void *dg, int32_t workers) {
    if (count < 0 || workers < 1) return SPO_INVALID_ARGUMENT;
    call_of call = {kernels_for(single), bytes_of(single), .count = count, .x = x,
                    .second = g,         .grad = grad,     .out = dx,      .other = dg};
    spo_pool_run(parts_of(count, NUMBERS), workers, gate_vjp_part, &call);
    return SPO_OK;
}

/* ---- leaky scan ---- */

static void scan_part(void *context, int64_t part, int32_t worker) {
    const call_of *call = context;
    const int64_t first = part % call->groups * COLUMNS, count = least(COLUMNS, call->channels - first);
    const int64_t at = (part / call->groups * call->tokens * call->channels + first) * call->size;
    call->kernels->scan(call->tokens, call->channels, count, call->decay, call->x + at, call->out + at,
                        call->scratch + worker * call->room, call->past);
}

static void scan_vjp_part(void *context, int64_t part, int32_t worker) {
    const call_of *call = context;
    const int64_t first = part % call->groups * COLUMNS, count = least(COLUMNS, call->channels - first);
    const int64_t at = (part / call->groups * call->tokens * call->channels + first) * call->size;
    call->parts[part] =
        call->kernels->scan_vjp(call->tokens, call->channels, count, call->decay, call->x + at,
                                call->second ? call->second + at : NULL, call->grad + at, call->out + at,
                                call->scratch + worker * call->room);
}

static int scan_acceptable(int64_t batch, int64_t tokens, int64_t channels, int32_t workers) {
    return size_fits(batch) && size_fits(tokens) && size_fits(channels) && workers >= 1;
}

int32_t spo_core_leaky_scan(int32_t single, int64_t batch, int64_t tokens, int64_t channels, double decay,
                            const void *x, void *c, int32_t workers) {
    if (!scan_acceptable(batch, tokens, channels, workers)) return SPO_INVALID_ARGUMENT;
    call_of call = {kernels_for(single), bytes_of(single), .tokens = tokens, .channels = channels,
                    .decay = decay,      .x = x,           .out = c,         .room = 4096};
    call.groups = parts_of(channels, COLUMNS);
    const int64_t row = channels * call.size;
    call.past = batch * tokens * row > LARGE_RESULT && row % 16 == 0 && (uintptr_t)c % 16 == 0;
    call.scratch = lines(call.room * workers);
    if (!call.scratch) return SPO_OUT_OF_MEMORY;
    spo_pool_run(batch * call.groups, workers, scan_part, &call);
    free_lines(call.scratch);
    return SPO_OK;
}

int32_t spo_core_leaky_scan_vjp(int32_t single, int64_t batch, int64_t tokens, int64_t channels, double decay,
                                const void *x, const void *c, const void *grad, void *dx, double *ddecay,
                                int32_t workers) {
    if (!scan_acceptable(batch, tokens, channels, workers)) return SPO_INVALID_ARGUMENT;
    call_of call = {kernels_for(single), bytes_of(single), .tokens = tokens, .channels = channels,
                    .decay = decay,      .x = x,           .second = c,      .grad = grad,
                    .out = dx,           .room = 8192};
    call.groups = parts_of(channels, COLUMNS);
    const int64_t parts = batch * call.groups;
    call.scratch = lines(call.room * workers);
    call.parts = lines(parts * (int64_t)sizeof(double));
    const int32_t status = call.scratch && call.parts ? SPO_OK : SPO_OUT_OF_MEMORY;
    if (status == SPO_OK) {
        spo_pool_run(parts, workers, scan_vjp_part, &call);
        *ddecay = 0;
        for (int64_t part = 0; part < parts; ++part) *ddecay += call.parts[part];
    }
    free_lines(call.scratch);
    free_lines(call.parts);
    return status;
}

/* ---- normalisation, twist and rotation ---- */

static void moments_part(void *context, int64_t part, int32_t worker) {
    const call_of *call = context;
    const int64_t first = part * ROWS;
    call->kernels->moments(least(ROWS, call->count - first), call->width,
                           call->x + first * call->width * call->size, call->slopes + first,
                           call->products + first, call->scratch + worker * call->room);
}

int32_t spo_core_token_moments(int32_t single, int64_t rows, int64_t width, const void *x, double *mean,
                               double *squares, int32_t workers) {
    if (rows < 0 || !size_fits(width) || width < 1 || workers < 1) return SPO_INVALID_ARGUMENT;
    call_of call = {kernels_for(single), bytes_of(single),   .count = rows, .width = width, .x = x,
                    .slopes = mean,      .products = squares};
    call.room = parts_of(call.kernels->lanes * width * call.size, 64) * 64;
    call.scratch = lines(call.room * workers);
    if (!call.scratch) return SPO_OUT_OF_MEMORY;
    spo_pool_run(parts_of(rows, ROWS), workers, moments_part, &call);
    free_lines(call.scratch);
    return SPO_OK;
}

static void unnormalise_part(void *context, int64_t part, int32_t worker) {
    const call_of *call = context;
    const int64_t first = part * ROWS, at = first * call->width * call->size;
    (void)worker;
    call->kernels->unnormalise(least(ROWS, call->count - first), call->width, call->out + at, call->x + at,
                               call->factor + first, call->alpha + first, call->beta + first,
                               call->mean + first);
}

int32_t spo_core_unnormalise(int32_t single, int64_t rows, int64_t width, void *grad, const void *x,
                             const double *factor, const double *alpha, const double *beta,
                             const double *mean, int32_t workers) {
    if (rows < 0 || !size_fits(width) || width < 1 || workers < 1) return SPO_INVALID_ARGUMENT;
    call_of call = {kernels_for(single), bytes_of(single), .count = rows,  .width = width, .x = x,
                    .out = grad,         .factor = factor, .alpha = alpha, .beta = beta,   .mean = mean};
    spo_pool_run(parts_of(rows, ROWS), workers, unnormalise_part, &call);
    return SPO_OK;
}

static void turn_part(void *context, int64_t part, int32_t worker) {
    const call_of *call = context;
    call->kernels->turn(&call->turn, part, call->out, call->scratch + worker * call->room);
}

static void turn_vjp_part(void *context, int64_t part, int32_t worker) {
    const call_of *call = context;
    call->kernels->turn_vjp(&call->turn, part, call->grad, call->out, call->slopes, call->products,
                            call->parts + part * call->width * call->width,
                            call->scratch + worker * call->room);
}

static int turn_acceptable(const spo_turn *turn, int32_t workers) {
    return turn && workers >= 1 && size_fits(turn->batch) && size_fits(turn->tokens) &&
           size_fits(turn->heads) && size_fits(turn->width) && turn->width >= 2 && turn->width % 2 == 0;
}

static void end_turn(call_of *call) {
    free_lines(call->other);
    free_lines(call->scratch);
    free_lines(call->parts);
}

/* Tables in lanes, and scratch. */
static int32_t begin_turn(const spo_turn *turn, int reverse, int32_t workers, call_of *call) {
    *call = (call_of){kernels_for(turn->single), bytes_of(turn->single), .width = turn->width};
    const int64_t half = turn->width / 2, lanes = call->kernels->lanes;
    const int64_t table = parts_of(turn->tokens, lanes) * lanes * half * call->size;
    call->room = parts_of(call->kernels->turn_room(turn, reverse) * call->size, 64) * 64;
    call->scratch = lines(call->room * workers);
    call->other = lines(2 * table);
    if (!call->scratch || !call->other) return SPO_OUT_OF_MEMORY;
    call->kernels->lay_table(turn->tokens, half, turn->cosine, call->other);
    call->kernels->lay_table(turn->tokens, half, turn->sine, call->other + table);
    call->turn = (spo_turn_job){turn, call->other, call->other + table};
    return SPO_OK;
}

int32_t spo_core_turn(const spo_turn *turn, void *y, int32_t workers) {
    if (!turn_acceptable(turn, workers)) return SPO_INVALID_ARGUMENT;
    call_of call;
    const int32_t status = begin_turn(turn, 0, workers, &call);
    call.out = y;
    if (status == SPO_OK) spo_pool_run(turn->batch * turn->heads, workers, turn_part, &call);
    end_turn(&call);
    return status;
}

int32_t spo_core_turn_vjp(const spo_turn *turn, const void *grad, void *g, double *slopes, double *products,
                          double *dtwist, int32_t workers) {
    if (!turn_acceptable(turn, workers)) return SPO_INVALID_ARGUMENT;
    const int64_t square = turn->width * turn->width, all = turn->heads * square;
    call_of call;
    int32_t status = begin_turn(turn, 1, workers, &call);
    call.grad = grad;
    call.out = g;
    call.slopes = slopes;
    call.products = products;
    if (turn->twist) call.parts = lines(turn->batch * all * (int64_t)sizeof(double));
    if (turn->twist && !call.parts) status = SPO_OUT_OF_MEMORY;
    if (status == SPO_OK) {
        spo_pool_run(turn->batch * turn->heads, workers, turn_vjp_part, &call);
        if (turn->twist) {
            memset(dtwist, 0, (size_t)all * sizeof(double));
            for (int64_t b = 0; b < turn->batch; ++b)
                for (int64_t i = 0; i < all; ++i) dtwist[i] += call.parts[b * all + i];
        }
    }
    end_turn(&call);
    return status;
}

/* ---- resonance ---- */

static void resonance_part(void *context, int64_t part, int32_t worker) {
    const call_of *call = context;
    call->kernels->resonance(call->resonance, part, call->out, call->scratch + worker * call->room);
}

static void resonance_vjp_part(void *context, int64_t part, int32_t worker) {
    const call_of *call = context;
    call->kernels->resonance_vjp(call->resonance, part, call->x, call->grad, call->out, call->other,
                                 call->scratch + worker * call->room);
}

static int resonance_acceptable(const spo_resonance *at, int32_t workers) {
    return at && workers >= 1 && size_fits(at->batch) && size_fits(at->tokens) && size_fits(at->heads) &&
           size_fits(at->width) && at->width >= 1 && at->chunk >= 1 && size_fits(at->moments);
}

static int32_t run_resonance(const spo_resonance *at, int reverse, int32_t workers, call_of *call) {
    call->kernels = kernels_for(at->single);
    call->resonance = at;
    call->room = parts_of(call->kernels->resonance_room(at, reverse) * bytes_of(at->single), 64) * 64;
    call->scratch = lines(call->room * workers);
    if (!call->scratch) return SPO_OUT_OF_MEMORY;
    spo_pool_run(at->batch * at->heads, workers, reverse ? resonance_vjp_part : resonance_part, call);
    free_lines(call->scratch);
    return SPO_OK;
}

int32_t spo_core_resonance(const spo_resonance *resonance, void *c, int32_t workers) {
    if (!resonance_acceptable(resonance, workers)) return SPO_INVALID_ARGUMENT;
    call_of call = {.out = c};
    return run_resonance(resonance, 0, workers, &call);
}

int32_t spo_core_resonance_vjp(const spo_resonance *resonance, const void *c, const void *grad, void *du,
                               void *dk, int32_t workers) {
    if (!resonance_acceptable(resonance, workers)) return SPO_INVALID_ARGUMENT;
    call_of call = {.x = c, .grad = grad, .out = du, .other = dk};
    return run_resonance(resonance, 1, workers, &call);
}
