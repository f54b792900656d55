/* Drives the pool of threads: every part once, workers that do not overlap, several callers at once, jobs
 * within jobs, forks in every state. Prints "N passed, N failed"; with the argument "bench" how long a job
 * takes instead. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../csrc/pool.h"

static _Atomic int passed, failed;

static void check(int good, const char *what) {
    if (good) {
        ++passed;
    } else {
        ++failed;
        fprintf(stderr, "%s fails\n", what);
    }
}

enum {
    MOST_PARTS = 200,
    MOST_WORKERS = 9
};

typedef struct {
    int64_t parts;
    int32_t workers;
    _Atomic int done[MOST_PARTS], busy[MOST_WORKERS], wrong;
    int depth; /* of jobs within */
} trial;

static void run_trial(int64_t parts, int32_t workers, int depth);

static void take_part(void *context, int64_t part, int32_t worker) {
    trial *t = context;
    if (worker < 0 || worker >= t->workers || part < 0 || part >= t->parts) {
        t->wrong = 1;
        return;
    }
    if (t->busy[worker]++) t->wrong = 1;
    ++t->done[part];
    if (t->depth > 0) run_trial(3, 2, t->depth - 1);
    if (part % 7 == 0) sched_yield();
    --t->busy[worker];
}

static void run_trial(int64_t parts, int32_t workers, int depth) {
    static const trial none;
    trial t = none;
    int good = 1;
    t.parts = parts, t.workers = workers, t.depth = depth;
    spo_pool_run(parts, workers, take_part, &t);
    for (int64_t part = 0; part < parts; ++part) good &= t.done[part] == 1;
    check(good && !t.wrong, "every part once, by workers one at a time");
}

static void *many_trials(void *unused) {
    for (int k = 0; k < 300; ++k) run_trial(1 + k % 40, 1 + k % MOST_WORKERS, k % 50 == 0);
    return unused;
}

static _Atomic int stop;

static void *trials_until_stopped(void *unused) {
    while (!stop) run_trial(20, 4, 0);
    return unused;
}

/* A child, under an alarm, does a job and ends. */
static void fork_here(const char *when) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(10);
        const int before = failed;
        run_trial(40, 3, 0);
        run_trial(40, 5, 1);
        _exit(failed != before);
    }
    int status = -1;
    check(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
          when);
}

static void fork_within(void *context, int64_t part, int32_t worker) {
    (void)context, (void)worker;
    if (part == 3) fork_here("a fork within a job");
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void work(void *context, int64_t part, int32_t worker) {
    const double start = now();
    (void)part, (void)worker;
    while (now() - start < *(const double *)context) continue;
}

static int ascending(const void *a, const void *b) {
    const double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

/* Jobs of eight parts, one right after the other and 0.1 ms apart. */
static void bench(void) {
    enum {
        REPEATS = 3000
    };
    static double taken[REPEATS];
    printf("us of work  apart  workers     least    median   9 of 10      mean\n");
    for (double us = 0; us <= 80; us = us > 0 ? 2 * us : 10)
        for (double apart = 0; apart <= 100; apart += 100)
            for (int32_t workers = 1; workers <= 2; ++workers) {
                double part = 1e-6 * us / 8, gap = 1e-6 * apart, sum = 0;
                for (int k = 0; k < REPEATS; ++k) {
                    work(&gap, 0, 0);
                    const double start = now();
                    spo_pool_run(8, workers, work, &part);
                    sum += taken[k] = 1e6 * (now() - start);
                }
                qsort(taken, REPEATS, sizeof *taken, ascending);
                printf("%10.0f %6.0f %8d %9.2f %9.2f %9.2f %9.2f\n", us, apart, workers, taken[0],
                       taken[REPEATS / 2], taken[REPEATS * 9 / 10], sum / REPEATS);
            }
}

int main(int count, char **arguments) {
    pthread_t callers[8];
    if (count > 1 && strcmp(arguments[1], "bench") == 0) {
        bench();
        return 0;
    }
    fork_here("a fork before any job");
    many_trials(NULL);
    fork_here("a fork while threads look on");
    usleep(100000);
    fork_here("a fork while threads sleep");
    spo_pool_run(8, 3, fork_within, NULL);
    for (int k = 0; k < 8; ++k) pthread_create(callers + k, NULL, many_trials, NULL);
    for (int k = 0; k < 8; ++k) pthread_join(callers[k], NULL);
    for (int k = 0; k < 2; ++k) pthread_create(callers + k, NULL, trials_until_stopped, NULL);
    for (int k = 0; k < 50; ++k) fork_here("a fork while others run jobs");
    stop = 1;
    for (int k = 0; k < 2; ++k) pthread_join(callers[k], NULL);
    run_trial(MOST_PARTS, MOST_WORKERS, 0);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
