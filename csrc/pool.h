/* A few threads for kernels that are asked for more than one worker.
 *
 * They are made when first needed and kept, asleep, for the next job; a process that never asks for two
 * workers has none. A forked child starts without any and makes its own, whatever its parent was doing. They
 * leave signals to the threads of the program, but for those that a fault of their own raises, which end the
 * process as anywhere else. Where there are no POSIX threads (Windows) every job runs on its caller. */
#ifndef SPO_POOL_H
#define SPO_POOL_H

#include <stdatomic.h>
#include <stdint.h>

typedef void spo_task(void *context, int64_t part, int32_t worker);

/* task(context, part, worker) once for each part 0 ... parts - 1, on at most `workers` threads, the caller
 * among them; 0 <= worker < workers, and two calls with the same worker never overlap. Returns when all are
 * done. Parts are begun in ascending order by whoever is free, so that nothing may depend on which worker
 * takes which. One worker or one part: a plain loop. Threads that cannot be made, or that the machine has
 * no time for, only make it slower: the caller takes every part that nobody else has begun. May be called by
 * several threads at once, and by a task. */
void spo_pool_run(int64_t parts, int32_t workers, spo_task *task, void *context);

/* Workers that a caller may count on at most. */
#define SPO_MOST_WORKERS 256

/* An enum spo_split: which jobs are handed over, see spo_core_split. */
extern _Atomic int32_t spo_pool_split;

#endif
