/* The rule of plasticity.py as a C extension. Its functions of the C core come from the installed package. */
#include "spo_fast_api.h"

#include <math.h>
#include <stdlib.h>

static const spo_functions *spo;

enum {
    THETA,
    OMEGA,
    KNM,
    W_Q,
    W_K,
    W_V,
    W_O,
    TEMPERATURE,
    BUFFERS
};

/* Let each pair learn; both its entries get the same bits, so that K stays symmetric. */
static void adapt(int64_t n, double *knm, const double *theta, double rate) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < i; ++j) {
            double *entry = &knm[i * n + j];
            *entry += rate * (cos(theta[j] - theta[i]) - *entry);
            knm[j * n + i] = *entry;
        }
}

/* Steps of length dt on theta and knm in place; a status. Holds no GIL. */
static int32_t learn(double *const at[BUFFERS], int64_t n, int64_t n_steps, double dt, double rate) {
    double *modulated = malloc((size_t)(n * n) * sizeof(double));
    if (!modulated) return SPO_OUT_OF_MEMORY;
    const spo_modulation modulation = {
        .n_heads = 4,
        .d_model = 8,
        .block_size = -1,
        .lambda = 0.5,
        .temperature = at[TEMPERATURE],
        .w_q = at[W_Q],
        .w_k = at[W_K],
        .w_v = at[W_V],
        .w_o = at[W_O],
    };
    const spo_network network = {.n = n, .omega = at[OMEGA], .knm = modulated, .modulate_every = 1};
    const spo_integrator integrator = {.method = SPO_RK4, .dt = dt};
    spo_state state = {.theta = at[THETA], .dt = dt};
    int32_t status = SPO_OK;
    for (int64_t step = 0; step < n_steps && status == SPO_OK; ++step) {
        status = spo->modulate(n, at[KNM], at[THETA], &modulation, modulated);
        if (status != SPO_OK) break;
        for (int64_t k = 0; k < n * n; ++k) modulated[k] /= (double)n;
        status = spo->kuramoto_run(&network, &integrator, &state, 1, NULL);
        if (status == SPO_OK) adapt(n, at[KNM], at[THETA], dt * rate);
    }
    free(modulated);
    return status;
}

/* The buffer of an argument, of so many doubles in C order. */
static int take(PyObject *object, Py_buffer *view, int writable, Py_ssize_t count) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, view, flags) < 0) return -1;
    if (view->format && view->format[0] == 'd' && view->len == count * (Py_ssize_t)sizeof(double)) return 0;
    PyErr_Format(PyExc_ValueError, "expected a buffer of %zd doubles, got %zd bytes of '%s'", count,
                 view->len, view->format ? view->format : "B");
    PyBuffer_Release(view);
    return -1;
}

static PyObject *call(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *objects[BUFFERS];
    long long n_steps;
    double dt, rate;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOOLdd:learn", &objects[0], &objects[1], &objects[2], &objects[3],
                          &objects[4], &objects[5], &objects[6], &objects[7], &n_steps, &dt, &rate))
        return NULL;
    const Py_ssize_t n = PyObject_Length(objects[THETA]);
    if (n < 0) return NULL;
    const Py_ssize_t counts[BUFFERS] = {n, n, n * n, 64, 64, 64, 64, 4};
    Py_buffer views[BUFFERS];
    double *at[BUFFERS];
    int taken = 0;
    for (; taken < BUFFERS; ++taken) {
        if (take(objects[taken], &views[taken], taken == THETA || taken == KNM, counts[taken]) < 0) break;
        at[taken] = views[taken].buf;
    }
    int32_t status = SPO_INVALID_ARGUMENT;
    if (taken == BUFFERS) {
        Py_BEGIN_ALLOW_THREADS;
        status = learn(at, n, n_steps, dt, rate);
        Py_END_ALLOW_THREADS;
    }
    for (int k = 0; k < taken; ++k) PyBuffer_Release(&views[k]);
    if (taken < BUFFERS) return NULL;
    if (status != SPO_OK) return PyErr_Format(PyExc_ValueError, "refused: %s", spo->status_text(status));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"learn", call, METH_VARARGS,
     "learn(theta, omega, knm, w_q, w_k, w_v, w_o, temperature, n_steps, dt, rate)\n\nSteps on theta and knm "
     "in place; all arrays are float64 in C order, the projections those of 4 heads and d = 8."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "learning_c", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_learning_c(void) {
    if (!(spo = spo_fast_import())) return NULL;
    return PyModule_Create(&definition);
}
