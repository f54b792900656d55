/* How work is shared among threads: how it is cut, and from which size on it is handed over. */
#ifndef SPO_SHARES_H
#define SPO_SHARES_H

#include "../include/spo_fast_core.h"
#include "../pool.h"

#define SPO_PAD 8

static inline int64_t spo_padded(int64_t n) { return (n + SPO_PAD - 1) / SPO_PAD * SPO_PAD; }

/* Work for several threads is cut into parts that depend on its size alone, and what parts have summed up is
 * added in their order: bits do not depend on the number of workers, nor on who was faster. */

static inline int spo_splits(int32_t split) {
    return __builtin_expect(atomic_load_explicit(&spo_pool_split, memory_order_relaxed) >= split, 0);
}

/* Below this no job of a network of n oscillators is worth a second thread. */
#define SPO_SERIAL_BELOW 128

/* The workers of a plan or run that a network of n oscillators can occupy: scratch is made for so many. */
static inline int32_t spo_workers(int32_t workers, int64_t n) {
    const int64_t most =
        spo_padded(n) / SPO_PAD < SPO_MOST_WORKERS ? spo_padded(n) / SPO_PAD : SPO_MOST_WORKERS;
    if (workers > most) workers = (int32_t)most;
    return workers < 1 || (n < SPO_SERIAL_BELOW && !spo_splits(SPO_SPLIT_ALL)) ? 1 : workers;
}

/* Those of a job that is worth handing over from size `from` on. */
static inline int32_t spo_workers_from(int32_t workers, int64_t size, int64_t from) {
    return workers == 1 || (size < from && !spo_splits(SPO_SPLIT_ALL)) ? 1 : workers;
}

/* Rows of a part, a multiple of eight. */
static inline int64_t spo_rows_of_part(int64_t rows) {
    return spo_splits(SPO_SPLIT_SMALLEST) ? SPO_PAD : rows;
}

/* Parts of so many rows; one is found without a division. */
static inline int64_t spo_parts(int64_t n, int64_t rows) { return n <= rows ? n > 0 : (n + rows - 1) / rows; }

/* A part is so many ... */
#define SCAN_PART 32     /* rows of K that are looked at, */
#define PROJECT_PART 512 /* oscillators that are projected, */
#define DIRECT_PART 32   /* queries that attend to all keys (those of the moments: a crowd), */
#define PRODUCT_PART 32  /* rows of K', */
#define DRIFT_PART 32    /* rows of a drift, */
#define WALK_PART 32     /* of a packed matrix without pairs, */
#define EDGE_PART 64     /* of a sparse matrix, */
#define PASS_PART 1024   /* oscillators of a stage, */
#define LAG_PART 16384   /* entries that are multiplied by those of the lags. */

/* A job handed over takes half of its time and, on two threads that look on, 2 us (8 us where they sleep, see
 * pool.c). So those of 10 us and more are, and those of 20 us that come alone: from such a number of
 * oscillators on, measured for AVX-512 with tools/measure_workers.py; narrower vectors could begin earlier.
 */
#define SCAN_FROM 320
#define PROJECT_FROM 2048
#define DIRECT_FROM SPO_SERIAL_BELOW
#define SUMS_FROM 512 /* which have one part below */
#define HEADS_FROM 256
#define OUTPUTS_FROM 256
#define PRODUCT_FROM 256
#define DRIFT_FROM 448
#define FUSED_FROM 256
#define KEPT_FROM 512
#define PASS_FROM 8192
/* and from so many entries: of a sparse matrix in an attention and in a drift, of products with the lags, and
 * of K times steps times blocks of members. */
#define ATTEND_EDGES_FROM 1000
#define PASS_EDGES_FROM 20000
#define LAGS_FROM 65536
#define MEMBERS_FROM 20000.0

/* Parts of a walk over the pairs of n oscillators (isa/fused.h): one below FUSED_FROM, then one for so many
 * rows. */
#define ROWS_OF_PAIRS 64
static inline int64_t spo_pair_parts(int64_t n) {
    const int64_t blocks = spo_padded(n) / SPO_PAD, parts = n / ROWS_OF_PAIRS;
    if (n < FUSED_FROM) return !spo_splits(SPO_SPLIT_ALL) ? 1 : blocks < 4 ? blocks : 4;
    return parts < SPO_MOST_WORKERS ? parts : SPO_MOST_WORKERS;
}

/* A job that is cut, or not. */
static inline void spo_share(int64_t parts, int32_t workers, spo_task *task, void *context) {
    if (parts == 1)
        task(context, 0, 0);
    else
        spo_pool_run(parts, workers, task, context);
}

#endif
