/* A program without Python: the core is compiled in, in a checkout, by
 *
 *   cc -std=gnu11 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -pthread -Icsrc/include \
 *       examples/c_program/synchronise.c $(find csrc -name '*.c') -lm -o synchronise
 *
 * Prints the order parameter of 100 oscillators, each coupled to all, before and after 1000 steps. */
#include <stdio.h>
#include <stdlib.h>

#include "spo_fast.h"

enum {
    N = 100,
    STEPS = 1000
};

static double omega[N], theta[N], knm[N * N], r[STEPS + 1];

int main(void) {
    for (int i = 0; i < N; ++i) {
        omega[i] = 0.5 * (2.0 * i / (N - 1) - 1.0); /* evenly spread */
        theta[i] = 0.7 * i;
        for (int j = 0; j < N; ++j) knm[i * N + j] = i == j ? 0.0 : 1.5 / N;
    }
    const spo_network network = {.n = N, .omega = omega, .knm = knm, .modulate_every = 1};
    const spo_integrator integrator = {.method = SPO_RK4, .dt = 0.05};
    spo_state state = {.theta = theta, .dt = 0.05};
    const spo_record record = {.r = r};
    const int32_t status = spo_kuramoto_run(&network, &integrator, &state, STEPS, &record);
    if (status != SPO_OK) {
        fprintf(stderr, "%s\n", spo_status_text(status));
        return EXIT_FAILURE;
    }
    printf("%s core: R %.17g -> %.17g at t = %g\n", spo_backend_name(), r[0], r[STEPS], state.t);
    return EXIT_SUCCESS;
}
