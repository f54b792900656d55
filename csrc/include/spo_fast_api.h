/* spo_fast_api.h - the functions of spo_fast.h for C extensions of Python: fetched from the installed package
 * when the extension is imported, so nothing is linked.
 *
 *   static const spo_functions *spo;
 *   PyMODINIT_FUNC PyInit_mine(void) {
 *       if (!(spo = spo_fast_import())) return NULL;
 *       ...
 *
 * The functions need neither the GIL nor Python objects. BSD-3-Clause. */
#ifndef SPO_FAST_API_H
#define SPO_FAST_API_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "spo_fast.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPO_CAPSULE "spo_fast._core.c_api"

/* Named as in spo_fast.h, without the prefix. */
typedef struct spo_functions {
    int32_t abi_version; /* SPO_ABI_VERSION of the installed package */
    const char *(*status_text)(int32_t status);
    int32_t (*modulate)(int64_t n, const double *knm, const double *theta, const spo_modulation *modulation,
                        double *out);
    int32_t (*order_parameter)(int64_t n, const double *theta, double *r, double *psi);
    int32_t (*kuramoto_run)(const spo_network *network, const spo_integrator *integrator, spo_state *state,
                            int64_t n_steps, const spo_record *record);
} spo_functions;

/* NULL with an ImportError set: no package, no C core in it, or one of another version of spo_fast.h. */
static inline const spo_functions *spo_fast_import(void) {
    PyObject *core = PyImport_ImportModule("spo_fast._core");
    PyObject *capsule = core ? PyObject_GetAttrString(core, "c_api") : NULL;
    Py_XDECREF(core);
    if (core && !capsule) PyErr_SetString(PyExc_ImportError, "the installed spo_fast is too old for this");
    if (!capsule) return NULL;
    const spo_functions *functions = (const spo_functions *)PyCapsule_GetPointer(capsule, SPO_CAPSULE);
    Py_DECREF(capsule); /* the module keeps it */
    if (functions && functions->abi_version != SPO_ABI_VERSION) {
        PyErr_Format(
            PyExc_ImportError,
            "the installed spo_fast implements version %d of spo_fast.h, this extension was compiled "
            "with version %d; compile it again",
            (int)functions->abi_version, SPO_ABI_VERSION);
        return NULL;
    }
    return functions;
}

#ifdef __cplusplus
}
#endif

#endif
