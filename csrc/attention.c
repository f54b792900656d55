/* The faces of the attention: memory, the choice of the walk, and the order of the passes. The work itself is
 * in isa/attention.h and isa/phase.h. */
#include <stdlib.h>
#include <string.h>

#include "isa/kernels.h"
#include "lines.h"
#include "pool.h"

/* Products of sizes stay far below 2^63. */
#define LARGEST_SIZE ((int64_t)1 << 28)
/* Up to this many queries and keys a crowd of problems goes together, if there are enough of them. */
#define CROWD_LIMIT 96
/* Spans in which the queries of a problem go back: as many as bring all problems together to PARTS or
 * more, for workers to share, none shorter than a few tiles. Not a matter of the workers there are, lest they
 * change the order of the sums. */
#define PARTS 16
#define MOST_SPANS 8
#define TILES_OF_SPAN 4
/* Tiles of queries that a worker takes at a time. */
#define TILES_AT_ONCE 2

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t parts_of(int64_t whole, int64_t size) { return (whole + size - 1) / size; }

static const spo_attention_kernels *kernels_for(int32_t single) {
    return spo_kernels_in_use()->attention[single != 0];
}

static int64_t bytes_of(int32_t single) { return single ? (int64_t)sizeof(float) : (int64_t)sizeof(double); }

/* Is a crowd of LANES problems faster than as many, one by one? */
static int crowd_pays(const spo_attention_kernels *kernels, int64_t problems, int64_t queries, int64_t keys) {
    return queries <= CROWD_LIMIT && keys <= CROWD_LIMIT && problems * 2 >= kernels->lanes;
}

/* Boundaries of the spans of n queries, whole tiles, with about as many pairs in each. */
static int64_t spans_of(const spo_attention_kernels *kernels, int64_t problems, int64_t n, int causal,
                        int64_t *span) {
    const int64_t tiles = parts_of(n, kernels->tile);
    int64_t spans = least(parts_of(PARTS, problems), least(MOST_SPANS, tiles / TILES_OF_SPAN));
    if (spans < 1) spans = 1;
    for (int64_t k = 0; k <= spans; ++k) {
        const double share = (double)k / (double)spans;
        span[k] = least(n, (int64_t)((causal ? sqrt(share) : share) * (double)tiles + 0.5) * kernels->tile);
    }
    return spans;
}

/* ---- attention of given queries, keys and values ---- */

/* A call and the memory it took. */
typedef struct {
    spo_attend_job job;
    const spo_attention_kernels *kernels;
    int crowded;
    int64_t problems, tiles, room;
    int64_t span[MOST_SPANS + 1];
    int64_t *places;
    char *compact, *scratch, *partial;
    double *sink_part;
} attend_call;

static void end_call(attend_call *call) {
    free(call->places);
    free_lines(call->compact);
    free_lines(call->scratch);
    free_lines(call->partial);
    free_lines(call->sink_part);
}

/* How many keys each query sees; with a mask, which of them are left, and copies of those. */
static int look_around(attend_call *call) {
    const spo_attention *at = call->job.at;
    const int64_t n = at->queries, m = at->keys, groups = at->key_mask ? at->groups : 1;
    call->places = malloc((size_t)(groups * (n + 1 + m)) * sizeof(int64_t));
    if (!call->places) return 0;
    int64_t *const visible = call->places, *const count = visible + groups * n, *const kept = count + groups;
    for (int64_t g = 0; g < groups; ++g) {
        int64_t found = 0, j = 0;
        for (int64_t i = 0; i < n; ++i) {
            int64_t reach = at->causal ? i + m - n + 1 : m;
            reach = reach < 0 ? 0 : least(reach, m);
            for (; j < reach; ++j)
                if (!at->key_mask || at->key_mask[g * m + j]) kept[g * m + found++] = j;
            visible[g * n + i] = found;
        }
        count[g] = found;
    }
    call->job.visible = visible;
    call->job.k = at->k;
    call->job.v = at->v;
    if (!at->key_mask) return 1;
    call->job.visible_step = n;
    call->job.count = count;
    call->job.kept = kept;
    const int64_t size = bytes_of(at->single), k_row = at->width * size, v_row = at->value_width * size;
    call->compact = lines(call->problems * m * (k_row + v_row));
    if (!call->compact) return 0;
    char *const k = call->compact, *const v = k + call->problems * m * k_row;
    for (int64_t p = 0; p < call->problems; ++p)
        for (int64_t j = 0; j < count[p / at->heads]; ++j) {
            const int64_t to = p * m + j, from = p * m + kept[p / at->heads * m + j];
            memcpy(k + to * k_row, (const char *)at->k + from * k_row, (size_t)k_row);
            memcpy(v + to * v_row, (const char *)at->v + from * v_row, (size_t)v_row);
        }
    call->job.k = k;
    call->job.v = v;
    return 1;
}

static int32_t begin_call(const spo_attention *at, int reverse, int32_t workers, attend_call *call) {
    *call = (attend_call){.job = {.at = at}, .kernels = kernels_for(at->single)};
    call->problems = at->groups * at->heads;
    call->tiles = parts_of(at->queries, call->kernels->tile * TILES_AT_ONCE);
    call->crowded = !at->key_mask && crowd_pays(call->kernels, call->problems, at->queries, at->keys);
    call->job.spans = 1;
    if (!call->crowded)
        call->job.spans = spans_of(call->kernels, call->problems, at->queries, at->causal, call->span);
    call->job.span = call->span;
    call->room = (call->kernels->room(at, call->crowded, reverse) * bytes_of(at->single) + 63) / 64 * 64;
    call->scratch = lines(call->room * workers);
    if (!call->scratch || (!call->crowded && !look_around(call))) return SPO_OUT_OF_MEMORY;
    return SPO_OK;
}

static void attend_part(void *context, int64_t part, int32_t worker) {
    const attend_call *call = context;
    void *scratch = call->scratch + worker * call->room;
    if (call->crowded) {
        call->kernels->crowd(&call->job, part * call->kernels->lanes, scratch);
        return;
    }
    const int64_t rows = call->kernels->tile * TILES_AT_ONCE, first = part % call->tiles * rows;
    call->kernels->rows(&call->job, part / call->tiles, first, least(first + rows, call->job.at->queries),
                        scratch);
}

static void reverse_part(void *context, int64_t part, int32_t worker) {
    const attend_call *call = context;
    void *scratch = call->scratch + worker * call->room;
    if (call->crowded)
        call->kernels->reverse_crowd(&call->job, part * call->kernels->lanes, scratch);
    else
        call->kernels->reverse_rows(&call->job, part / call->job.spans, part % call->job.spans, scratch);
}

static void collect_part(void *context, int64_t part, int32_t worker) {
    const attend_call *call = context;
    (void)worker;
    call->kernels->collect(&call->job, part);
}

static int acceptable(const spo_attention *at, int32_t workers) {
    if (!at || workers < 1 || at->width < 1 || at->value_width < 1) return 0;
    if (at->groups < 0 || at->heads < 0 || at->queries < 0 || at->keys < 0) return 0;
    return at->groups <= LARGEST_SIZE && at->heads <= LARGEST_SIZE && at->queries <= LARGEST_SIZE &&
           at->keys <= LARGEST_SIZE && at->width <= LARGEST_SIZE && at->value_width <= LARGEST_SIZE;
}

static int64_t parts_by_walk(const attend_call *call, int64_t of_a_problem) {
    return call->crowded ? parts_of(call->problems, call->kernels->lanes) : call->problems * of_a_problem;
}

int32_t spo_core_attend(const spo_attention *attention, void *out, void *lse, int32_t workers) {
    if (!acceptable(attention, workers)) return SPO_INVALID_ARGUMENT;
    if (attention->groups * attention->heads * attention->queries == 0) return SPO_OK;
    attend_call call;
    const int32_t status = begin_call(attention, 0, workers, &call);
    call.job.out = out;
    call.job.lse = lse;
    if (status == SPO_OK) spo_pool_run(parts_by_walk(&call, call.tiles), workers, attend_part, &call);
    end_call(&call);
    return status;
}

static void put(int32_t single, void *array, int64_t place, double x) {
    if (single)
        ((float *)array)[place] = (float)x;
    else
        ((double *)array)[place] = x;
}

/* Sums of the sinks' gradients over groups and spans, in this order. */
static void sum_sinks(const attend_call *call, const spo_attention_gradients *gradients) {
    const spo_attention *at = call->job.at;
    const int64_t wide = 1 + at->value_width, parts = call->job.spans;
    for (int64_t h = 0; h < at->heads; ++h)
        for (int64_t c = 0; c < wide; ++c) {
            double sum = 0;
            for (int64_t g = 0; g < at->groups; ++g)
                for (int64_t part = 0; part < parts; ++part)
                    sum += call->sink_part[((g * at->heads + h) * parts + part) * wide + c];
            if (c == 0)
                put(at->single, gradients->sink, h, sum);
            else if (gradients->sink_value)
                put(at->single, gradients->sink_value, h * at->value_width + c - 1, sum);
        }
}

int32_t spo_core_attend_vjp(const spo_attention *attention, const void *out, const void *lse,
                            const void *grad_out, const spo_attention_gradients *gradients, int32_t workers) {
    if (!acceptable(attention, workers)) return SPO_INVALID_ARGUMENT;
    const int64_t size = bytes_of(attention->single), problems = attention->groups * attention->heads;
    const int64_t keys = problems * attention->keys, wide = 1 + attention->value_width;
    if (problems * attention->queries == 0) {
        memset(gradients->k, 0, (size_t)(keys * attention->width * size));
        memset(gradients->v, 0, (size_t)(keys * attention->value_width * size));
        if (attention->sink) memset(gradients->sink, 0, (size_t)(attention->heads * size));
        if (attention->sink && gradients->sink_value)
            memset(gradients->sink_value, 0, (size_t)(attention->heads * attention->value_width * size));
        return SPO_OK;
    }
    attend_call call;
    int32_t status = begin_call(attention, 1, workers, &call);
    const int64_t lanes = call.kernels->lanes;
    const int64_t row = (parts_of(attention->width, lanes) + parts_of(attention->value_width, lanes)) * lanes;
    if (status == SPO_OK) {
        call.sink_part = lines(problems * call.job.spans * wide * (int64_t)sizeof(double));
        if (!call.crowded) call.partial = lines(keys * call.job.spans * row * size);
        if (!call.sink_part || (!call.crowded && !call.partial)) status = SPO_OUT_OF_MEMORY;
    }
    if (status == SPO_OK) {
        call.job.out = (void *)out;
        call.job.lse = (void *)lse;
        call.job.grad_out = (void *)grad_out;
        call.job.dq = gradients->q;
        call.job.dk = gradients->k;
        call.job.dv = gradients->v;
        call.job.partial = call.partial;
        call.job.sink_part = call.sink_part;
        spo_pool_run(parts_by_walk(&call, call.job.spans), workers, reverse_part, &call);
        if (!call.crowded) spo_pool_run(problems, workers, collect_part, &call);
        if (attention->sink) sum_sinks(&call, gradients);
    }
    end_call(&call);
    return status;
}

/* ---- attention by phases ---- */

/* A call and the memory it took. Steps go in segments: the record holds one at a time. */
typedef struct {
    spo_phase_job job;
    const spo_attention_kernels *kernels;
    int32_t keep;
    int64_t segment, tiles, room, size;
    int64_t checkpoints, checkpoint_size; /* numbers of one checkpoint of a unit */
    int64_t step;
    enum spo_phase_stage stage;
    int64_t span[MOST_SPANS + 1];
    char *tables, *record, *scratch, *rows, *partial, *gradients;
    char *state; /* checkpoints (units, checkpoints, z and values), or the record of all */
    double *parameters;
} phase_call;

static void end_phase_call(phase_call *call) {
    free_lines(call->tables);
    free_lines(call->record);
    free_lines(call->scratch);
    free_lines(call->rows);
    free_lines(call->partial);
    free_lines(call->gradients);
    free_lines(call->parameters);
}

/* The record of `segment` steps; flat: every step overwrites what it has read. */
static spo_phase_layout layout_of(const spo_phase_job *job, int64_t segment, int flat) {
    const spo_phase_attention *at = job->at;
    if (flat) segment = 0;
    const int consensus = at->value_consensus != 0;
    const int64_t n = job->blocks, m = at->phases, f = at->value_width;
    /* Crowds compute means and outputs again: as fast as to write and read them, and half the memory. */
    const int means = !job->crowded;
    spo_phase_layout l = {.mean_width = 2 * m + (consensus ? f : 0), .flat = flat};
    l.mean = l.z + (segment + 1) * n * 2 * m;
    l.norm = l.mean + means * (flat ? 1 : segment) * n * l.mean_width;
    l.value = l.norm + (segment + 1) * n * 2;
    l.out = l.value + (consensus ? segment + 1 : 1) * n * f;
    l.query = l.out + means * n * f;
    l.end = l.query + (job->fixed_queries ? n * 2 * m : 0);
    return l;
}

/* Sizes and walk of a call: all that needs no memory. */
static phase_call phase_plan(const spo_phase_attention *at, int32_t keep, int reverse) {
    phase_call call = {.job = {.at = at}, .kernels = kernels_for(at->single), .keep = keep};
    spo_phase_job *job = &call.job;
    const int64_t lanes = call.kernels->lanes, steps = at->steps;
    job->problems = at->batch * at->heads;
    job->crowded = crowd_pays(call.kernels, job->problems, at->tokens, at->tokens);
    job->fixed_queries = at->static_query || at->query_c;
    job->units = job->crowded ? parts_of(job->problems, lanes) : job->problems;
    job->blocks = job->crowded ? at->tokens : parts_of(at->tokens, lanes);
    call.size = bytes_of(at->single);
    call.tiles = parts_of(at->tokens, call.kernels->tile);
    call.segment = keep == SPO_KEEP_SQRT ? (int64_t)ceil(sqrt((double)steps)) : steps;
    job->layout = layout_of(job, call.segment, keep != SPO_KEEP_ALL && !reverse);
    call.checkpoints = call.segment ? parts_of(steps, call.segment) : 1;
    call.checkpoint_size =
        job->blocks * (2 * at->phases + (at->value_consensus != 0 ? at->value_width : 0)) * lanes;
    job->record_size = job->layout.end * lanes;
    job->spans = 1;
    if (!job->crowded) job->spans = spans_of(call.kernels, job->problems, at->tokens, 1, call.span);
    const int64_t m = at->phases, f = at->value_width, pad = lanes - 1;
    job->partial_row = (2 * m + f + pad) / lanes * lanes; /* F and v, padded whichever way they are written */
    if (job->partial_row < 2 * m + (f + pad) / lanes * lanes)
        job->partial_row = 2 * m + (f + pad) / lanes * lanes;
    return call;
}

static int phase_acceptable(const spo_phase_attention *at, int32_t keep, int32_t workers) {
    if (!at || workers < 1 || at->phases < 1 || at->value_width < 1 || at->steps < 0) return 0;
    if (at->batch < 0 || at->heads < 1 || at->tokens < 0) return 0;
    if (keep != SPO_KEEP_NONE && keep != SPO_KEEP_ALL && keep != SPO_KEEP_SQRT) return 0;
    return at->batch <= LARGEST_SIZE && at->heads <= LARGEST_SIZE && at->tokens <= LARGEST_SIZE &&
           at->phases <= LARGEST_SIZE && at->value_width <= LARGEST_SIZE && at->steps <= LARGEST_SIZE;
}

int64_t spo_core_phase_state(const spo_phase_attention *attention, int32_t keep, int64_t *layout) {
    if (!phase_acceptable(attention, keep, 1)) return 0;
    const phase_call call = phase_plan(attention, keep, 0);
    *layout = 2 * call.kernels->lanes + call.job.crowded;
    if (keep == SPO_KEEP_ALL) return call.job.units * call.job.record_size * call.size;
    if (keep == SPO_KEEP_SQRT) return call.job.units * call.checkpoints * call.checkpoint_size * call.size;
    return 0;
}

static double get(int32_t single, const void *array, int64_t place) {
    return single ? (double)((const float *)array)[place] : ((const double *)array)[place];
}

/* Cosines and sines of the ramp (as isa/phase.h wants them) and of the lags. */
static int make_tables(phase_call *call) {
    spo_phase_job *job = &call->job;
    const spo_phase_attention *at = job->at;
    const int64_t m = at->phases, n = at->tokens, lanes = call->kernels->lanes, lags = at->heads * m;
    const int64_t turns = job->blocks * 2 * m * lanes;
    const int64_t angles = n * m > lags ? n * m : lags;
    call->tables = lines((turns + 2 * lags) * call->size);
    double *const angle = malloc((size_t)(3 * angles) * sizeof(double));
    if (!call->tables || !angle) {
        free(angle);
        return 0;
    }
    double *const sine = angle + angles, *const cosine = sine + angles;
    char *const lag = call->tables + turns * call->size;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t k = 0; k < m; ++k) angle[i * m + k] = at->ramp[k] * (double)i;
    spo_core_sincos(n * m, angle, sine, cosine);
    for (int64_t block = 0; block < job->blocks; ++block)
        for (int64_t k = 0; k < m; ++k)
            for (int64_t lane = 0; lane < lanes; ++lane) {
                const int64_t token = job->crowded ? block : least(block * lanes + lane, n - 1);
                put(at->single, call->tables, (block * 2 * m + k) * lanes + lane, cosine[token * m + k]);
                put(at->single, call->tables, (block * 2 * m + m + k) * lanes + lane, sine[token * m + k]);
            }
    for (int64_t k = 0; k < lags; ++k) angle[k] = get(at->single, at->alpha, k);
    spo_core_sincos(lags, angle, sine, cosine);
    for (int64_t k = 0; k < lags; ++k) {
        put(at->single, lag, k, cosine[k]);
        put(at->single, lag, lags + k, sine[k]);
    }
    free(angle);
    job->turn = call->tables;
    job->lag = lag;
    return 1;
}

static int32_t begin_phase_call(phase_call *call, int reverse, int32_t workers) {
    spo_phase_job *job = &call->job;
    const spo_phase_attention *at = job->at;
    job->span = call->span;
    call->room = (call->kernels->phase_room(at, job->crowded, reverse) * call->size + 63) / 64 * 64;
    if (reverse && !job->crowded) { /* which may run a segment again */
        const int64_t forward = (call->kernels->phase_room(at, 0, 0) * call->size + 63) / 64 * 64;
        if (forward > call->room) call->room = forward;
    }
    call->scratch = lines(call->room * workers);
    if (!call->scratch || !make_tables(call)) return SPO_OUT_OF_MEMORY;
    if (call->keep != SPO_KEEP_ALL) {
        call->record = lines(job->record_size * call->size * (job->crowded ? workers : job->units));
        if (!call->record) return SPO_OUT_OF_MEMORY;
    }
    job->record = call->keep == SPO_KEEP_ALL ? call->state : call->record;
    if (!job->crowded) {
        const int64_t side = job->units * at->tokens * job->layout.mean_width * call->size;
        call->rows = lines(2 * side + 64);
        if (!call->rows) return SPO_OUT_OF_MEMORY;
        job->rows[0] = call->rows;
        job->rows[1] = call->rows + (side + 63) / 64 * 64;
    }
    return SPO_OK;
}

/* The job of a unit that goes through all its steps at once, with the worker's own record if not all is kept.
 */
static spo_phase_job crowd_job(const phase_call *call, int32_t worker) {
    spo_phase_job job = call->job;
    if (call->keep != SPO_KEEP_ALL) {
        job.record = call->record + worker * job.record_size * call->size;
        job.record_size = 0;
    }
    return job;
}

/* The first states of a record (and values, which change with a consensus) of one unit: to a checkpoint or
 * back.
 */
static void checkpoint(const phase_call *call, const spo_phase_job *job, int64_t unit, int64_t segment,
                       int back) {
    const spo_phase_attention *at = job->at;
    const int64_t line = job->blocks * call->kernels->lanes * call->size;
    const int64_t z = line * 2 * at->phases, v = at->value_consensus != 0 ? line * at->value_width : 0;
    char *const kept =
        call->state + (unit * call->checkpoints + segment) * call->checkpoint_size * call->size;
    char *const states = (char *)job->record + unit * job->record_size * call->size;
    char *const values = states + job->layout.value * call->kernels->lanes * call->size;
    memcpy(back ? states : kept, back ? kept : states, (size_t)z);
    memcpy(back ? values : kept + z, back ? kept + z : values, (size_t)v);
}

static void crowd_part(void *context, int64_t unit, int32_t worker) {
    const phase_call *call = context;
    const spo_phase_job job = crowd_job(call, worker);
    const int64_t steps = job.at->steps;
    void *scratch = call->scratch + worker * call->room;
    for (int64_t i = 0; i < job.blocks; ++i) call->kernels->phase_begin(&job, unit, i, scratch);
    for (int64_t segment = 0; segment < call->checkpoints; ++segment) {
        const int64_t first = segment * call->segment, last = least(first + call->segment, steps);
        if (call->keep == SPO_KEEP_SQRT) checkpoint(call, &job, unit, segment, 0);
        call->kernels->phase_crowd(&job, unit, first, last, scratch);
    }
}

static void reverse_crowd_part(void *context, int64_t unit, int32_t worker) {
    const phase_call *call = context;
    spo_phase_job job = crowd_job(call, worker);
    void *scratch = call->scratch + worker * call->room;
    job.out = NULL;
    if (call->keep != SPO_KEEP_ALL)
        for (int64_t i = 0; i < job.blocks; ++i) call->kernels->phase_begin(&job, unit, i, scratch);
    for (int64_t segment = call->checkpoints - 1; segment >= 0; --segment) {
        const int64_t first = segment * call->segment, last = least(first + call->segment, job.at->steps);
        if (call->keep != SPO_KEEP_ALL) {
            checkpoint(call, &job, unit, segment, 1);
            call->kernels->phase_crowd(&job, unit, first, last, scratch);
        }
        call->kernels->reverse_phase_crowd(&job, unit, first, last, scratch);
    }
    for (int64_t i = 0; i < job.blocks; ++i) call->kernels->phase_finish(&job, unit, i, scratch);
}

static void begin_part(void *context, int64_t part, int32_t worker) {
    const phase_call *call = context;
    call->kernels->phase_begin(&call->job, part / call->job.blocks, part % call->job.blocks,
                               call->scratch + worker * call->room);
}

static void tile_part(void *context, int64_t part, int32_t worker) {
    const phase_call *call = context;
    /* the last tiles have the most keys: first things first */
    call->kernels->phase_tile(&call->job, part / call->tiles, call->tiles - 1 - part % call->tiles,
                              call->step, call->stage, call->scratch + worker * call->room);
}

static void run_tiles(phase_call *call, enum spo_phase_stage stage, int64_t step, int32_t workers) {
    call->stage = stage;
    call->step = step;
    spo_pool_run(call->job.units * call->tiles, workers, tile_part, call);
}

/* Steps first ... last - 1 of all units, and the read-out if the last one is the end. */
static void run_segment(phase_call *call, int64_t first, int64_t last, int32_t workers) {
    run_tiles(call, SPO_STAGE_ROWS, 0, workers);
    for (int64_t t = first; t < last; ++t) run_tiles(call, SPO_STAGE_STEP, t - first, workers);
    if (last == call->job.at->steps) run_tiles(call, SPO_STAGE_READ, last - first, workers);
}

int32_t spo_core_phase_attend(const spo_phase_attention *attention, int32_t keep, void *state, void *out,
                              int32_t workers) {
    if (!phase_acceptable(attention, keep, workers)) return SPO_INVALID_ARGUMENT;
    if (attention->batch * attention->tokens == 0) return SPO_OK;
    phase_call call = phase_plan(attention, keep, 0);
    spo_phase_job *job = &call.job;
    call.state = state;
    job->out = out;
    const int32_t status = begin_phase_call(&call, 0, workers);
    if (status == SPO_OK && job->crowded)
        spo_pool_run(job->units, workers, crowd_part, &call);
    else if (status == SPO_OK) {
        spo_pool_run(job->units * job->blocks, workers, begin_part, &call);
        for (int64_t segment = 0; segment < call.checkpoints; ++segment) {
            const int64_t first = segment * call.segment,
                          last = least(first + call.segment, attention->steps);
            if (keep == SPO_KEEP_SQRT)
                for (int64_t unit = 0; unit < job->units; ++unit) checkpoint(&call, job, unit, segment, 0);
            run_segment(&call, first, last, workers);
        }
    }
    end_phase_call(&call);
    return status;
}

static void reverse_span_part(void *context, int64_t part, int32_t worker) {
    const phase_call *call = context;
    call->kernels->reverse_phase_span(&call->job, part / call->job.spans, part % call->job.spans, call->step,
                                      call->stage == SPO_STAGE_READ, call->scratch + worker * call->room);
}

static void collect_span_part(void *context, int64_t part, int32_t worker) {
    const phase_call *call = context;
    call->kernels->collect_phase_span(&call->job, part / call->job.spans, part % call->job.spans, call->step,
                                      call->scratch + worker * call->room);
}

static void finish_part(void *context, int64_t part, int32_t worker) {
    const phase_call *call = context;
    call->kernels->phase_finish(&call->job, part / call->job.blocks, part % call->job.blocks,
                                call->scratch + worker * call->room);
}

/* Back through steps last - 1 ... first of all units, and before them the read-out. */
static void reverse_segment(phase_call *call, int64_t first, int64_t last, int32_t workers) {
    const int64_t parts = call->job.units * call->job.spans;
    for (int64_t t = last; t >= first; --t) {
        const int read = t == call->job.at->steps;
        if (t == last && !read) continue;
        run_tiles(call, SPO_STAGE_ROWS, t - first, workers);
        call->stage = read ? SPO_STAGE_READ : SPO_STAGE_STEP;
        spo_pool_run(parts, workers, reverse_span_part, call);
        spo_pool_run(parts, workers, collect_span_part, call);
    }
}

/* Gradients at the parameters of each head: sums over batch and spans, in this order. */
static void sum_parameters(const phase_call *call, const spo_phase_gradients *gradients) {
    const spo_phase_job *job = &call->job;
    const spo_phase_attention *at = job->at;
    const int64_t m = at->phases, wide = 2 * m + 1;
    for (int64_t h = 0; h < at->heads; ++h)
        for (int64_t k = 0; k < wide; ++k) {
            double sum = 0;
            for (int64_t b = 0; b < at->batch; ++b)
                for (int64_t part = 0; part < job->spans; ++part)
                    sum += call->parameters[((b * at->heads + h) * job->spans + part) * wide + k];
            if (k < m)
                put(at->single, gradients->alpha, h * m + k, sum);
            else if (k < 2 * m)
                put(at->single, gradients->weight, h * m + k - m, sum);
            else
                put(at->single, gradients->kappa, h, sum);
        }
}

int32_t spo_core_phase_attend_vjp(const spo_phase_attention *attention, int32_t keep, const void *state,
                                  const void *grad_out, const spo_phase_gradients *gradients,
                                  int32_t workers) {
    if (!phase_acceptable(attention, keep, workers) || keep == SPO_KEEP_NONE) return SPO_INVALID_ARGUMENT;
    phase_call call = phase_plan(attention, keep, 1);
    spo_phase_job *job = &call.job;
    const int64_t m = attention->phases, f = attention->value_width, lanes = call.kernels->lanes;
    const int64_t empty = attention->batch * attention->tokens == 0;
    const int64_t gradient = job->units * job->blocks * lanes * call.size;
    const int64_t parameters = job->problems * job->spans * (2 * m + 1) * (int64_t)sizeof(double);
    call.state = (char *)state;
    call.parameters = lines(parameters);
    call.gradients = lines(gradient * (2 * m + f));
    int32_t status = call.parameters && call.gradients ? SPO_OK : SPO_OUT_OF_MEMORY;
    if (status == SPO_OK && !empty) status = begin_phase_call(&call, 1, workers);
    if (status == SPO_OK && !empty && !job->crowded) {
        call.partial = lines(job->units * job->spans * job->blocks * lanes * job->partial_row * call.size);
        if (!call.partial) status = SPO_OUT_OF_MEMORY;
    }
    if (status == SPO_OK) {
        memset(call.parameters, 0, (size_t)parameters);
        memset(call.gradients, 0, (size_t)(gradient * (2 * m + f)));
        job->phase_gradient = call.gradients;
        job->query_gradient = call.gradients + gradient * m;
        job->value_gradient = call.gradients + gradient * 2 * m;
        job->partial = call.partial;
        job->parameters = call.parameters;
        job->grad_out = (void *)grad_out;
        job->dc = gradients->c;
        job->ds = gradients->s;
        job->dquery_c = gradients->query_c;
        job->dquery_s = gradients->query_s;
        job->dv = gradients->v;
    }
    if (status == SPO_OK && !empty && job->crowded)
        spo_pool_run(job->units, workers, reverse_crowd_part, &call);
    else if (status == SPO_OK && !empty) {
        if (keep != SPO_KEEP_ALL) spo_pool_run(job->units * job->blocks, workers, begin_part, &call);
        for (int64_t segment = call.checkpoints - 1; segment >= 0; --segment) {
            const int64_t first = segment * call.segment,
                          last = least(first + call.segment, attention->steps);
            if (keep != SPO_KEEP_ALL) {
                for (int64_t unit = 0; unit < job->units; ++unit) checkpoint(&call, job, unit, segment, 1);
                run_segment(&call, first, last, workers);
            }
            reverse_segment(&call, first, last, workers);
        }
        spo_pool_run(job->units * job->blocks, workers, finish_part, &call);
    }
    if (status == SPO_OK) sum_parameters(&call, gradients);
    end_phase_call(&call);
    return status;
}
