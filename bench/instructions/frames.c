/* Evaluates each Python function under a C function of its own, so that callgrind, which sees only C, tells Python functions apart.
 *
 * The C function frame_N stands for the N-th code object that was evaluated since frames_begin (PEP 523). Its costs are those of the
 * Python function with all that it calls. The hook makes calls a few per cent dearer: figures with it are for comparing functions only.
 */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <internal/pycore_frame.h>

#define MOST 2048

typedef PyObject *(*Eval)(PyThreadState *, struct _PyInterpreterFrame *, int);

static Py_ssize_t extra_index = -1;
static PyObject *codes[MOST];
static int used = 0;

#define ONE(n) \
    static __attribute__((noinline)) PyObject *frame_##n(PyThreadState *ts, struct _PyInterpreterFrame *f, int t) { \
        PyObject *volatile result = _PyEval_EvalFrameDefault(ts, f, t); \
        return result; \
    }
#define NAME(n) frame_##n,
#define X4(M, n) M(n##0) M(n##1) M(n##2) M(n##3)
#define X16(M, n) X4(M, n##0) X4(M, n##1) X4(M, n##2) X4(M, n##3)
#define X64(M, n) X16(M, n##0) X16(M, n##1) X16(M, n##2) X16(M, n##3)
#define X256(M, n) X64(M, n##0) X64(M, n##1) X64(M, n##2) X64(M, n##3)
#define X1024(M, n) X256(M, n##0) X256(M, n##1) X256(M, n##2) X256(M, n##3)
#define X2048(M) X1024(M, 0) X1024(M, 1)

/* numbers are written in base 4 with six digits: frame_000000 to frame_133333 */
X2048(ONE)
static const Eval evals[MOST] = {X2048(NAME)};

static PyObject *evaluate(PyThreadState *ts, struct _PyInterpreterFrame *frame, int throwing) {
    PyObject *code = (PyObject *)frame->f_code;
    void *found = NULL;
    _PyCode_GetExtra(code, extra_index, &found);
    if (found == NULL) {
        int at = used < MOST - 1 ? used++ : MOST - 1; /* the last one stands for all that are too many */
        if (codes[at] == NULL) {
            Py_INCREF(code);
            codes[at] = code;
        }
        found = (void *)evals[at];
        _PyCode_SetExtra(code, extra_index, found);
    }
    return ((Eval)found)(ts, frame, throwing);
}

void frames_begin(void) {
    extra_index = _PyEval_RequestCodeExtraIndex(NULL);
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluate);
}

PyObject *frames_seen(void) {
    PyObject *seen = PyList_New(0);
    for (int at = 0; seen != NULL && at < MOST && codes[at] != NULL; at++) {
        if (PyList_Append(seen, codes[at]) < 0) {
            Py_CLEAR(seen);
        }
    }
    return seen;
}
