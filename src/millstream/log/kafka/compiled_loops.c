/* Calls a function of librdkafka for each message of a batch, without Python in between.

   Optional: loops.py does the same through ctypes where this was not built. Functions and messages are addresses. The
   interpreter's lock is held throughout, so no other thread can destroy a message meanwhile. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef int64_t (*Timestamp)(const void *message, void *kind);
typedef int (*Headers)(const void *message, void **found);
typedef void (*Destroy)(void *message);

static Py_ssize_t length(const Py_buffer *addresses) { return addresses->len / (Py_ssize_t)sizeof(uint64_t); }

static void *address(const Py_buffer *addresses, Py_ssize_t place) {
    return (void *)(uintptr_t)((const uint64_t *)addresses->buf)[place];
}

/* The arguments of both loops that fill an array: a function, addresses, and as many results of a size. */
static int parsed(PyObject *arguments, Py_ssize_t size, uintptr_t *function, Py_buffer *addresses, Py_buffer *results) {
    unsigned long long given;
    if (!PyArg_ParseTuple(arguments, "Ky*w*", &given, addresses, results))
        return 0;
    *function = (uintptr_t)given;
    if (results->len == length(addresses) * size)
        return 1;
    PyBuffer_Release(addresses);
    PyBuffer_Release(results);
    PyErr_SetString(PyExc_ValueError, "there must be one result per address");
    return 0;
}

static PyObject *times(PyObject *module, PyObject *arguments) {
    uintptr_t function;
    Py_buffer addresses, results;
    if (!parsed(arguments, sizeof(int64_t), &function, &addresses, &results))
        return NULL;
    for (Py_ssize_t place = 0; place < length(&addresses); place++)
        ((int64_t *)results.buf)[place] = ((Timestamp)function)(address(&addresses, place), NULL);
    PyBuffer_Release(&addresses);
    PyBuffer_Release(&results);
    Py_RETURN_NONE;
}

static PyObject *header_codes(PyObject *module, PyObject *arguments) {
    uintptr_t function;
    Py_buffer addresses, results;
    void *found;
    if (!parsed(arguments, sizeof(int32_t), &function, &addresses, &results))
        return NULL;
    for (Py_ssize_t place = 0; place < length(&addresses); place++)
        ((int32_t *)results.buf)[place] = ((Headers)function)(address(&addresses, place), &found);
    PyBuffer_Release(&addresses);
    PyBuffer_Release(&results);
    Py_RETURN_NONE;
}

/* Counts in `destroyed` before each call: whatever is raised later, no message is destroyed twice. */
static PyObject *destroy(PyObject *module, PyObject *arguments) {
    unsigned long long function;
    Py_buffer addresses, destroyed;
    Py_ssize_t until;
    if (!PyArg_ParseTuple(arguments, "Ky*w*n", &function, &addresses, &destroyed, &until))
        return NULL;
    if (destroyed.len != sizeof(int64_t) || until > length(&addresses)) {
        PyBuffer_Release(&addresses);
        PyBuffer_Release(&destroyed);
        PyErr_SetString(PyExc_ValueError, "destroyed must be one number, and until at most that of the addresses");
        return NULL;
    }
    int64_t *count = destroyed.buf;
    while (*count < until)
        ((Destroy)(uintptr_t)function)(address(&addresses, (Py_ssize_t)(*count)++));
    PyBuffer_Release(&addresses);
    PyBuffer_Release(&destroyed);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"times", times, METH_VARARGS, "times(function, addresses, results)"},
    {"header_codes", header_codes, METH_VARARGS, "header_codes(function, addresses, results)"},
    {"destroy", destroy, METH_VARARGS, "destroy(function, addresses, destroyed, until)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "compiled_loops", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_compiled_loops(void) { return PyModule_Create(&definition); }
