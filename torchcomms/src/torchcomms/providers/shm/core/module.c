/* The group as a Python type, on the limited API. Addresses, sizes and codes cross the border as integers.
 *
 * One thread at a time works on a group: `busy`. Whoever comes meanwhile gets BUSY and tries again. Short operations
 * keep the interpreter for the microsecond that they take; who waits longer, or moves much, lets it go.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "group.h"

enum { LIGHT = 32 << 10, PAUSE_NS = 50000 };

typedef struct {
    PyObject_HEAD
    struct group group;
    void *base;
    size_t bytes;
    uint64_t spin_ns, park_ns;
    size_t weight;   /* bytes that the operation at hand moves, about */
    Py_ssize_t pins; /* tensors in the segment, which keep it mapped */
    bool closed;
    atomic_bool busy;
} Comm;

static uint64_t number(PyObject *value) { return PyLong_AsUnsignedLongLong(value); }
static bool failed(void) { return PyErr_Occurred() != NULL; }

static void unmap(Comm *self) {
    if (!self->base) return;
    group_detach(&self->group);
    munmap(self->base, self->bytes);
    self->base = NULL;
}

static PyObject *comm_new(PyTypeObject *type, PyObject *args, PyObject *names) {
    struct layout layout;
    unsigned int rank;
    int descriptor;
    unsigned long long spin_ns, park_ns, sizes[5];
    if (names && PyDict_Size(names)) return PyErr_SetString(PyExc_TypeError, "no keywords"), NULL;
    if (!PyArg_ParseTuple(args, "iII(KKKKK)KK", &descriptor, &rank, &layout.size, &sizes[0], &sizes[1], &sizes[2],
                          &sizes[3], &sizes[4], &spin_ns, &park_ns))
        return NULL;
    layout.slot = sizes[0], layout.chunk = sizes[1], layout.small = sizes[2], layout.piece = sizes[3];
    layout.heap = sizes[4];
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Comm *self = (Comm *)allocate(type, 0);
    if (!self) return NULL;
    self->bytes = layout_bytes(&layout);
    self->spin_ns = spin_ns;
    self->park_ns = park_ns;
    struct stat state;
    if (fstat(descriptor, &state) || (size_t)state.st_size < self->bytes) {
        Py_DECREF(self);
        return PyErr_SetString(PyExc_ValueError, "the segment is shorter than its layout"), NULL;
    }
    void *base = mmap(NULL, self->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
    if (base == MAP_FAILED) {
        Py_DECREF(self);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    self->base = base;
    madvise(base, self->bytes, MADV_DONTDUMP);
    if (!group_attach(&self->group, base, rank, &layout)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void comm_free(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    unmap((Comm *)object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* DONE if this thread now has the group to itself and an operation may begin (or, if `active`, go on). */
static enum status enter(Comm *self, bool active) {
    if (self->closed) return CLOSED;
    if (atomic_exchange(&self->busy, true)) return BUSY;
    if (self->group.active == active) return DONE;
    atomic_store(&self->busy, false);
    return BUSY;
}

static PyObject *leave(Comm *self, enum status status) {
    atomic_store(&self->busy, false);
    return PyLong_FromLong(status);
}

static enum status step(Comm *self, uint64_t spin_ns, uint64_t park_ns) {
    enum status status = PENDING;
    if (self->weight <= LIGHT) status = operation_step(&self->group, (struct patience){0, 0});
    if (status == PENDING && (park_ns || self->weight > LIGHT)) {
        Py_BEGIN_ALLOW_THREADS
        status = operation_step(&self->group, (struct patience){spin_ns, park_ns});
        Py_END_ALLOW_THREADS
    }
    return status;
}

/* A whole operation on one tensor: begin it and wait a little. BUSY if it has to go the general way. */
static PyObject *whole(Comm *self, enum kind kind, struct block tensor, uint64_t dtype, uint64_t reduction,
                       uint64_t root) {
    if (failed()) return NULL;
    enum status status = enter(self, false);
    if (status != DONE) return PyLong_FromLong(status);
    struct operation *op = &self->group.op;
    op->kind = kind, op->root = (uint32_t)root, op->factor = 0, op->tensor = tensor;
    self->weight = tensor.bytes;
    if ((uintptr_t)tensor.data % fold_item((uint32_t)dtype)) return leave(self, BUSY);
    if (!operation_begin(&self->group, (uint32_t)dtype, (uint32_t)reduction)) return leave(self, BUSY);
    return leave(self, step(self, self->spin_ns, self->park_ns));
}

static PyObject *arguments(const char *name, Py_ssize_t wanted) {
    return PyErr_Format(PyExc_TypeError, "%s takes %zd arguments", name, wanted);
}

/* all_reduce(address, elements, dtype + 256 * reduction) -> status */
static PyObject *comm_all_reduce(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3) return arguments("all_reduce", 3);
    uint64_t code = number(args[2]), dtype = code & 255;
    struct block tensor = {(unsigned char *)number(args[0]), number(args[1]) * fold_item((uint32_t)dtype)};
    return whole((Comm *)self, ALL_REDUCE, tensor, dtype, code >> 8, 0);
}

/* broadcast(address, elements, dtype, root) -> status */

static PyObject *comm_broadcast(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4) return arguments("broadcast", 4);
    uint64_t dtype = number(args[2]);
    struct block tensor = {(unsigned char *)number(args[0]), number(args[1]) * fold_item((uint32_t)dtype)};
    return whole((Comm *)self, BROADCAST, tensor, dtype, REDUCTIONS, number(args[3]));
}

static PyObject *comm_barrier(PyObject *self, PyObject *unused) {
    (void)unused;
    return whole((Comm *)self, BARRIER, (struct block){0}, DTYPES, REDUCTIONS, 0);
}

/* A list of (address, bytes), one for each rank, flat; or None. */
static bool blocks(PyObject *list, struct block *into, uint32_t size) {
    if (list == Py_None) {
        memset(into, 0, size * sizeof *into);
        return true;
    }
    if (!PyTuple_Check(list) || PyTuple_Size(list) != 2 * (Py_ssize_t)size) {
        PyErr_SetString(PyExc_ValueError, "not two numbers for each rank");
        return false;
    }
    for (uint32_t rank = 0; rank < size; rank++) {
        into[rank].data = (unsigned char *)number(PyTuple_GetItem(list, 2 * rank));
        into[rank].bytes = number(PyTuple_GetItem(list, 2 * rank + 1));
    }
    return !failed();
}

static size_t total(const struct block *list, uint32_t size) {
    size_t bytes = 0;
    for (uint32_t rank = 0; rank < size; rank++) bytes += list[rank].bytes;
    return bytes;
}

/* begin(kind, dtype, reduction, root, factor, address, bytes, ins, outs) -> DONE, BUSY or CLOSED */
static PyObject *comm_begin(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Comm *self = (Comm *)object;
    if (count != 9) return arguments("begin", 9);
    uint32_t numbers[4];
    for (int i = 0; i < 4; i++) numbers[i] = (uint32_t)number(args[i]);
    double factor = PyFloat_AsDouble(args[4]);
    struct block tensor = {(unsigned char *)number(args[5]), number(args[6])};
    if (failed()) return NULL;
    enum status status = enter(self, false);
    if (status != DONE) return PyLong_FromLong(status);
    struct group *group = &self->group;
    bool listed = blocks(args[7], group->ins, group->layout.size) && blocks(args[8], group->outs, group->layout.size);
    group->op.kind = numbers[0], group->op.root = numbers[3], group->op.factor = factor, group->op.tensor = tensor;
    self->weight = tensor.bytes + total(group->ins, group->layout.size) + total(group->outs, group->layout.size);
    if (listed && !operation_begin(group, numbers[1], numbers[2]))
        listed = (PyErr_SetString(PyExc_MemoryError, "no such reduction in C, or no memory"), false);
    if (listed) return leave(self, DONE);
    atomic_store(&self->busy, false);
    return NULL;
}

/* step(park_ns) -> status; with 0 it only looks */
static PyObject *comm_step(PyObject *object, PyObject *park) {
    Comm *self = (Comm *)object;
    uint64_t park_ns = number(park);
    if (failed()) return NULL;
    enum status status = enter(self, true);
    if (status != DONE) return PyLong_FromLong(status);
    return leave(self, step(self, park_ns ? self->spin_ns : 0, park_ns));
}

static PyObject *comm_late(PyObject *object, PyObject *unused) {
    (void)unused;
    Comm *self = (Comm *)object;
    PyObject *ranks = PyList_New(0);
    for (uint32_t rank = 0; ranks && self->base && rank < self->group.layout.size; rank++) {
        if (round_reached(&self->group, rank)) continue;
        PyObject *value = PyLong_FromUnsignedLong(rank);
        if (!value || PyList_Append(ranks, value)) Py_CLEAR(ranks);
        Py_XDECREF(value);
    }
    return ranks;
}

static PyObject *comm_odd(PyObject *object, PyObject *unused) {
    (void)unused;
    struct operation *op = &((Comm *)object)->group.op;
    return Py_BuildValue("(IK)", op->odd, (unsigned long long)op->odd_bytes);
}

static PyObject *comm_calls(PyObject *object, PyObject *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(((Comm *)object)->group.calls);
}

static PyObject *comm_tell(PyObject *object, PyObject *text) {
    Comm *self = (Comm *)object;
    char *data;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(text, &data, &length)) return NULL;
    if (self->base) story_tell(&self->group, (unsigned char *)data, (size_t)length);
    Py_RETURN_NONE;
}

static PyObject *comm_hear(PyObject *object, PyObject *rank) {
    Comm *self = (Comm *)object;
    uint64_t wanted = number(rank);
    struct tale tale = {0};
    if (failed()) return NULL;
    if (self->base && wanted < self->group.layout.size) story_hear(&self->group, (uint32_t)wanted, &tale);
    return PyBytes_FromStringAndSize((char *)tale.text, (Py_ssize_t)tale.length);
}

static PyObject *comm_heard(PyObject *object, PyObject *rank) {
    Comm *self = (Comm *)object;
    uint64_t wanted = number(rank);
    if (failed()) return NULL;
    bool there = self->base && wanted < self->group.layout.size;
    struct tale *tale = there ? &self->group.tales[wanted] : &(struct tale){0};
    return PyBytes_FromStringAndSize((char *)tale->text, (Py_ssize_t)tale->length);
}

static PyObject *comm_heap(PyObject *object, PyObject *rank) {
    Comm *self = (Comm *)object;
    uint64_t wanted = number(rank);
    if (failed()) return NULL;
    return PyLong_FromVoidPtr(self->base ? self->group.heaps + wanted * self->group.layout.heap : NULL);
}

/* After it nothing begins; the memory goes when the last thread has left it and the last tensor in it is gone. */
static PyObject *comm_close(PyObject *object, PyObject *unused) {
    (void)unused;
    Comm *self = (Comm *)object;
    self->closed = true;
    while (atomic_load(&self->busy)) {
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
        Py_END_ALLOW_THREADS
    }
    if (!self->pins) unmap(self);
    Py_RETURN_NONE;
}

/* Close in a forked child, where a thread that was busy does not exist. */
static PyObject *comm_abandon(PyObject *object, PyObject *unused) {
    atomic_store(&((Comm *)object)->busy, false);
    return comm_close(object, unused);
}

static PyObject *comm_pin(PyObject *object, PyObject *unused) {
    (void)unused;
    ((Comm *)object)->pins++;
    Py_RETURN_NONE;
}

static PyObject *comm_unpin(PyObject *object, PyObject *unused) {
    (void)unused;
    Comm *self = (Comm *)object;
    if (!--self->pins && self->closed && !atomic_load(&self->busy)) unmap(self);
    Py_RETURN_NONE;
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))comm_##name, METH_FASTCALL, NULL}
static PyMethodDef METHODS[] = {
    FAST(all_reduce), FAST(broadcast), FAST(begin),
    {"barrier", comm_barrier, METH_NOARGS, NULL}, {"step", comm_step, METH_O, NULL},
    {"late", comm_late, METH_NOARGS, NULL},       {"odd", comm_odd, METH_NOARGS, NULL},
    {"tell", comm_tell, METH_O, NULL},            {"hear", comm_hear, METH_O, NULL},
    {"heap", comm_heap, METH_O, NULL},            {"close", comm_close, METH_NOARGS, NULL},
    {"abandon", comm_abandon, METH_NOARGS, NULL}, {"pin", comm_pin, METH_NOARGS, NULL},
    {"unpin", comm_unpin, METH_NOARGS, NULL},     {"calls", comm_calls, METH_NOARGS, NULL},
    {"heard", comm_heard, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot SLOTS[] = {
    {Py_tp_new, comm_new}, {Py_tp_dealloc, comm_free}, {Py_tp_methods, METHODS}, {0, NULL},
};
static PyType_Spec SPEC = {"torchcomms.Comm", sizeof(Comm), 0, Py_TPFLAGS_DEFAULT, SLOTS};

/* count_up(address): one more, for whoever waits for it */
static PyObject *module_count_up(PyObject *module, PyObject *address) {
    (void)module;
    void *counter = PyLong_AsVoidPtr(address);
    if (failed()) return NULL;
    count_up(counter);
    Py_RETURN_NONE;
}

/* count_wait(address, seen, park_ns) -> what it counts now, or within `park_ns` if that is another than `seen` */
static PyObject *module_count_wait(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3) return arguments("count_wait", 3);
    void *counter = PyLong_AsVoidPtr(args[0]);
    uint64_t seen = number(args[1]), park_ns = number(args[2]);
    uint32_t value;
    if (failed()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    value = count_wait(counter, (uint32_t)seen, park_ns);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLong(value);
}

/* fold(dtype, reduction, factor, out, count, parts): the reduction itself, on addresses */
static PyObject *module_fold(PyObject *module, PyObject *args) {
    (void)module;
    unsigned int dtype, reduction;
    unsigned long long out, count;
    double factor;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "IIdKKO", &dtype, &reduction, &factor, &out, &count, &list)) return NULL;
    const void *parts[64];
    Py_ssize_t ranks = PyTuple_Size(list);
    fold_function *fold = fold_find(dtype, reduction);
    if (ranks < 1 || ranks > 64 || !fold) return PyErr_SetString(PyExc_ValueError, "no such reduction"), NULL;
    for (Py_ssize_t rank = 0; rank < ranks; rank++) parts[rank] = PyLong_AsVoidPtr(PyTuple_GetItem(list, rank));
    if (failed()) return NULL;
    fold((void *)(uintptr_t)out, parts, (uint32_t)ranks, count, factor);
    Py_RETURN_NONE;
}

static PyMethodDef FUNCTIONS[] = {
    {"count_up", module_count_up, METH_O, NULL},
    {"count_wait", (PyCFunction)(void (*)(void))module_count_wait, METH_FASTCALL, NULL},
    {"fold", module_fold, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int module_fill(PyObject *module) {
    PyObject *type = PyType_FromSpec(&SPEC);
    int bad = !type || PyModule_AddObjectRef(module, "Comm", type);
    Py_XDECREF(type);
    return bad ? -1 : 0;
}

static PyModuleDef_Slot STAGES[] = {{Py_mod_exec, module_fill}, {0, NULL}};
static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT, .m_name = "_core", .m_methods = FUNCTIONS, .m_slots = STAGES,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&DEFINITION); }
