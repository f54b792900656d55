/* See pool.h. Every job is a record on its caller's stack, in a list while others may join it. A thread of
 * the pool joins under the lock, takes parts by a counter, and leaves; its caller, out of parts, takes the
 * record from the list and waits for those inside. Nobody waits for a thread that has not begun.
 *
 * A thread that has nothing to do looks on for a while before it sleeps, and so does a caller whose parts are
 * in other hands: jobs follow each other closely in a run, and to wake a thread takes longer than many of
 * them. It gives way to every other thread of its processor meanwhile. Microseconds for a job of 40 us in
 * eight parts on two workers (virtual processors of Sapphire Rapids; bench of tests/csrc/pool.c):
 *
 *                                   one worker   asleep at once   looking on   looking on, giving way
 *     two processors, least            41            27               22               21
 *     one for both, median             41            42 to 46         41 to 67         41
 */
#include "pool.h"

#include "include/spo_fast_core.h"

_Atomic int32_t spo_pool_split = SPO_SPLIT_WORTHWHILE;

int32_t spo_core_split(int32_t split) {
    if (split < SPO_SPLIT_WORTHWHILE || split > SPO_SPLIT_SMALLEST) return SPO_INVALID_ARGUMENT;
    atomic_store_explicit(&spo_pool_split, split, memory_order_relaxed);
    return SPO_OK;
}

static void run_alone(int64_t parts, spo_task *task, void *context) {
    for (int64_t part = 0; part < parts; ++part) task(context, part, 0);
}

#if defined(_WIN32)

void spo_pool_run(int64_t parts, int32_t workers, spo_task *task, void *context) {
    (void)workers;
    run_alone(parts, task, context);
}

#else

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

/* Threads that a process makes at most. */
#define MOST_THREADS (SPO_MOST_WORKERS - 1)
/* Bytes of a thread's stack: kernels take some kilobytes; the rest, never touched, is for the thread-local
 * variables of all libraries, which may lie there, too. */
#define STACK_SIZE ((size_t)1 << 20)

/* Nanoseconds that a thread looks on before it sleeps. */
#define PATIENCE 20000

typedef struct job {
    spo_task *task;
    void *context;
    int64_t parts;
    _Atomic int64_t begun;  /* parts begun, or more */
    int32_t seats, taken;   /* for threads of the pool */
    _Atomic int64_t inside; /* of them at work */
    fenv_t mode;            /* rounding, subnormal numbers: bits are those of the caller */
    struct job *next;
} job;

static struct {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t work;  /* a job was added */
    pthread_cond_t left;  /* a job has nobody inside any more */
    job *jobs;
    int32_t seats; /* of all jobs */
    int32_t threads;
    int32_t alert;          /* of them looking on */
    _Atomic int64_t posted; /* jobs ever added */
} pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .left = PTHREAD_COND_INITIALIZER};

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Looks on while a number stays what it is; 0: it has for too long. */
static int has_changed(_Atomic int64_t *number, int64_t from) {
    const int64_t start = nanoseconds();
    do {
        for (int k = 0; k < 8; ++k) {
            if (atomic_load_explicit(number, memory_order_relaxed) != from) return 1;
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield");
#endif
        }
        sched_yield();
    } while (nanoseconds() - start < PATIENCE);
    return 0;
}

static void take_parts(job *j, int32_t worker) {
    for (int64_t part; (part = atomic_fetch_add_explicit(&j->begun, 1, memory_order_relaxed)) < j->parts;)
        j->task(j->context, part, worker);
}

/* A job with parts to begin and a seat. */
static job *open_job(void) {
    job *j = pool.jobs;
    while (j && (j->taken == j->seats || atomic_load_explicit(&j->begun, memory_order_relaxed) >= j->parts))
        j = j->next;
    return j;
}

static void *serve(void *unused) {
    (void)unused;
#if defined(__linux__)
    prctl(PR_SET_NAME, "spo_fast"); /* for those who look at the threads of a process */
#endif
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        job *j = open_job();
        if (!j) {
            const int64_t posted = atomic_load_explicit(&pool.posted, memory_order_relaxed);
            ++pool.alert;
            pthread_mutex_unlock(&pool.lock);
            has_changed(&pool.posted, posted);
            pthread_mutex_lock(&pool.lock);
            --pool.alert;
            while (!(j = open_job())) pthread_cond_wait(&pool.work, &pool.lock);
        }
        const int32_t worker = ++j->taken;
        atomic_fetch_add_explicit(&j->inside, 1, memory_order_relaxed);
        pthread_mutex_unlock(&pool.lock);
        fesetenv(&j->mode);
        take_parts(j, worker);
        pthread_mutex_lock(&pool.lock);
        if (atomic_fetch_sub_explicit(&j->inside, 1, memory_order_release) == 1)
            pthread_cond_broadcast(&pool.left);
    }
    return NULL;
}

/* Makes threads until all seats could be taken; under the lock. */
static void add_threads(void) {
    sigset_t blocked, before;
    pthread_attr_t attributes;
    pthread_t thread;
    if (pool.threads >= pool.seats || pool.threads >= MOST_THREADS || pthread_attr_init(&attributes)) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    sigfillset(&blocked);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGFPE);
    sigdelset(&blocked, SIGILL);
    pthread_sigmask(SIG_SETMASK, &blocked, &before); /* what a new thread inherits */
    while (pool.threads < pool.seats && pool.threads < MOST_THREADS &&
           pthread_create(&thread, &attributes, serve, NULL) == 0)
        ++pool.threads;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

void spo_pool_run(int64_t parts, int32_t workers, spo_task *task, void *context) {
    if (parts < 2 || workers < 2) {
        run_alone(parts, task, context);
        return;
    }
    job own = {.task = task, .context = context, .parts = parts};
    own.seats = (int32_t)(parts < workers ? parts : workers) - 1;
    fegetenv(&own.mode);
    pthread_mutex_lock(&pool.lock);
    own.next = pool.jobs;
    pool.jobs = &own;
    pool.seats += own.seats;
    add_threads();
    atomic_fetch_add_explicit(&pool.posted, 1, memory_order_relaxed);
    for (int32_t seat = pool.alert; seat < pool.seats; ++seat) pthread_cond_signal(&pool.work);
    pthread_mutex_unlock(&pool.lock);
    take_parts(&own, 0);
    for (int64_t inside; (inside = atomic_load_explicit(&own.inside, memory_order_acquire)) &&
                         has_changed(&own.inside, inside);)
        continue;
    pthread_mutex_lock(&pool.lock);
    job **link = &pool.jobs;
    while (*link != &own) link = &(*link)->next;
    *link = own.next;
    pool.seats -= own.seats;
    while (atomic_load_explicit(&own.inside, memory_order_acquire)) pthread_cond_wait(&pool.left, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

/* Its parent's threads are not there, and the lock may have been held by one of them. */
static void start_anew(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.left, NULL);
    pool.jobs = NULL;
    pool.seats = pool.threads = pool.alert = 0;
}

/* When the library is loaded: from the first job on it could be too late. */
static __attribute__((constructor)) void expect_forks(void) { pthread_atfork(NULL, NULL, start_anew); }

#endif
