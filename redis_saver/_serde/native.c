/* Encodes and decodes messages as JsonPlusSerializer does with pydantic, several times as fast. This module is
 * optional.
 *
 * If a value is not one that this file knows (a subclass, extra fields, a number beyond 64 bits, a field out of
 * order), a function returns None, and JsonPlusSerializer does the work. It does all the work if this file could not
 * be built.
 *
 * This code never releases the interpreter lock. Other code can only run when an object that the garbage collector
 * tracks is allocated (Python 3.10 and 3.11 collect there). So no borrowed reference into a mutable object is held
 * across such an allocation. `pack` has to do that, so it turns the collector off. `snapshot` calls Python, and then
 * reads only its own copies.
 *
 * `learn` registers a class of messages, and trusts messages.py. A Kind is the tuple of messages.py: types,
 * literals, element, keys, required. None instead of a Kind allows any plain value.
 *
 * It uses the limited API of Python 3.10, so one build serves all later versions. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(PYPY_VERSION) || defined(Py_GIL_DISABLED)
#error "relies on CPython's lock: JsonPlusSerializer does this here"
#endif

enum { DEEPEST = 64, DEEPEST_COPY = 256, EXT_PYDANTIC = 5, KEYS = 1024, MAX_KEY = 32, CLASSES = 32, FIELDS = 15 };
enum { NONE = 1, STR = 2, INT = 4, DICT = 8, LIST = 16 };

/* Effects of LangChain's constructors and validators, numbered as in messages.py. */
enum { NOTHING_CHANGES, CALLS_STAY, UNREADABLE };

/* End of a payload, after the packed fields. It does not include the final NUL. */
static const char suffix[20] = "\263model_validate_json";

enum { FIELDS_SET, EXTRA, PRIVATE, TOOL_CALLS, INVALID_TOOL_CALLS, ADDITIONAL_KWARGS, TEXTS };
static const char *const texts[TEXTS] = {
    "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__", "tool_calls", "invalid_tool_calls", "additional_kwargs",
};

typedef enum {
    OK,
    UNKNOWN, /* JsonPlusSerializer has to do it */
    FAILED,  /* an exception is set */
} Status;

#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        Status status_ = (call);                                                                                                           \
        if (status_ != OK) return status_;                                                                                                 \
    } while (0)

typedef struct {
    PyObject *name, *kind;
    const char *packed; /* the name */
    Py_ssize_t size;
    long types; /* those of the Kind */
} Field;

typedef struct {
    PyObject *type;
    PyObject *empty;  /* a dict of the fields, copied and filled */
    PyObject *names;  /* the set of field names */
    PyObject *owner;  /* keeps all this alive */
    const char *head; /* start of a payload, before the packed fields */
    Py_ssize_t head_size, count;
    int rule;
    Field fields[FIELDS];
} Plan;

typedef struct {
    PyObject *keys[KEYS]; /* cached keys, so that equal keys are one object, as in ormsgpack */
    PyObject *texts[TEXTS];
    PyObject *no_dict, *no_list; /* frozen */
    Plan plans[CLASSES];
    int count, last;
} State;

/* Returns the plan of a class. It is usually one of the last ones used. */
static inline const Plan *find_plan(State *state, PyObject *type) {
    if (state->count && state->plans[state->last].type == type) return &state->plans[state->last];
    for (int i = 0; i < state->count; i++)
        if (state->plans[i].type == type) return &state->plans[state->last = i];
    return NULL;
}

/* -- checking */

/* Returns 1 if a value matches its annotation, else 0, also with an exception. After validation the keys of a
 * TypedDict have the order of its declaration. Before, they may have any order. */
static int fits(PyObject *value, PyObject *kind, int in_order) {
    if (kind == Py_None) return 1;
    long types = PyLong_AsLong(PyTuple_GetItem(kind, 0));
    if (value == Py_None) return types & NONE;
    if (PyUnicode_CheckExact(value)) return (types & STR) || PySet_Contains(PyTuple_GetItem(kind, 1), value) == 1;
    if (PyLong_CheckExact(value)) return types & INT;
    if (PyList_CheckExact(value)) {
        int right = types & LIST;
        for (Py_ssize_t i = 0; right && i < PyList_Size(value); i++)
            right = fits(PyList_GetItem(value, i), PyTuple_GetItem(kind, 2), in_order);
        return right;
    }
    if (!PyDict_CheckExact(value)) return 0;
    PyObject *keys = PyTuple_GetItem(kind, 3), *key, *item, *wanted, *known;
    if (keys == Py_None) return types & DICT;
    Py_ssize_t required = PyLong_AsSsize_t(PyTuple_GetItem(kind, 4)), position = 0, declared = 0;
    while (PyDict_Next(value, &position, &key, &item)) {
        if (!PyUnicode_CheckExact(key)) return 0;
        if (in_order) {
            do {
                if (!PyDict_Next(keys, &declared, &wanted, &known)) return 0;
            } while (key != wanted && PyUnicode_Compare(key, wanted));
        } else if (!(known = PyDict_GetItemWithError(keys, key))) return 0;
        required -= PyTuple_GetItem(known, 1) == Py_True;
        if (!fits(item, PyTuple_GetItem(known, 0), in_order)) return 0;
    }
    return !required;
}

/* Fast path: most fields have one of the types. */
static inline int field_fits(PyObject *value, const Field *field, int in_order) {
    if (PyUnicode_CheckExact(value) && (field->types & STR)) return 1;
    if (value == Py_None && (field->types & NONE)) return 1;
    return fits(value, field->kind, in_order);
}

/* -- writing */

/* A growing output buffer. */
typedef struct {
    char *start, *at, *end;
} Sink;

static Status grow(Sink *sink, Py_ssize_t more) {
    Py_ssize_t used = sink->at - sink->start;
    if (more > PY_SSIZE_T_MAX / 2 - used) {
        PyErr_NoMemory();
        return FAILED;
    }
    char *start = PyMem_Realloc(sink->start, 2 * (used + more));
    if (!start) {
        PyErr_NoMemory();
        return FAILED;
    }
    *sink = (Sink){start, start + used, start + 2 * (used + more)};
    return OK;
}

static inline Status put(Sink *sink, const void *bytes, Py_ssize_t size) {
    if (sink->end - sink->at < size) TRY(grow(sink, size));
    memcpy(sink->at, bytes, size);
    sink->at += size;
    return OK;
}

static inline Status put_byte(Sink *sink, int byte) {
    if (sink->at == sink->end) TRY(grow(sink, 1));
    *sink->at++ = (char)byte;
    return OK;
}

static inline Status put_number(Sink *sink, int tag, uint64_t number, int size) {
    TRY(put_byte(sink, tag));
    while (size--) TRY(put_byte(sink, (int)(number >> (8 * size) & 0xff)));
    return OK;
}

/* Writes the head of an object with this many elements or bytes: in the tag itself, or after a tag for 8 bits (0 if
 * there is none), 16 bits or 32 bits. */
static inline Status put_size(Sink *sink, Py_ssize_t size, int fix, Py_ssize_t most, int tag8, int tag16) {
    if (size < most) return put_byte(sink, fix | (int)size);
    if (tag8 && size <= 0xff) return put_number(sink, tag8, size, 1);
    if (size <= 0xffff) return put_number(sink, tag16, size, 2);
    return (uint64_t)size <= 0xffffffff ? put_number(sink, tag16 + 1, size, 4) : UNKNOWN;
}

static inline Status put_string(Sink *sink, PyObject *string) {
    Py_ssize_t size;
    const char *bytes = PyUnicode_AsUTF8AndSize(string, &size);
    if (!bytes) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return FAILED;
        PyErr_Clear(); /* a lone surrogate */
        return UNKNOWN;
    }
    TRY(put_size(sink, size, 0xa0, 32, 0xd9, 0xda));
    return put(sink, bytes, size);
}

static Status put_int(Sink *sink, PyObject *number) {
    int overflow;
    long long n = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow > 0) {
        unsigned long long large = PyLong_AsUnsignedLongLong(number);
        if (!PyErr_Occurred()) return put_number(sink, 0xcf, large, 8);
        PyErr_Clear();
    }
    if (overflow) return UNKNOWN;
    if (n >= 0) {
        if (n < 0x80) return put_byte(sink, (int)n);
        int power = n <= 0xff ? 0 : n <= 0xffff ? 1 : n <= 0xffffffffLL ? 2 : 3;
        return put_number(sink, 0xcc + power, n, 1 << power);
    }
    if (n >= -32) return put_byte(sink, (int)(n & 0xff));
    int power = n >= -0x80 ? 0 : n >= -0x8000 ? 1 : n >= -0x80000000LL ? 2 : 3;
    return put_number(sink, 0xd0 + power, (uint64_t)n, 1 << power);
}

static Status put_float(Sink *sink, PyObject *number) {
    double value = PyFloat_AsDouble(number);
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return put_number(sink, 0xcb, bits, 8);
}

static Status put_value(Sink *sink, PyObject *value, int depth) {
    if (PyUnicode_CheckExact(value)) return put_string(sink, value);
    if (value == Py_None) return put_byte(sink, 0xc0);
    if (depth > DEEPEST) return UNKNOWN;
    if (PyDict_CheckExact(value)) {
        PyObject *key, *item;
        Py_ssize_t position = 0;
        TRY(put_size(sink, PyDict_Size(value), 0x80, 16, 0, 0xde));
        while (PyDict_Next(value, &position, &key, &item)) {
            if (!PyUnicode_CheckExact(key)) return UNKNOWN;
            TRY(put_string(sink, key));
            TRY(put_value(sink, item, depth + 1));
        }
        return OK;
    }
    if (PyList_CheckExact(value)) {
        Py_ssize_t size = PyList_Size(value);
        TRY(put_size(sink, size, 0x90, 16, 0, 0xdc));
        for (Py_ssize_t i = 0; i < size; i++) TRY(put_value(sink, PyList_GetItem(value, i), depth + 1));
        return OK;
    }
    if (PyBool_Check(value)) return put_byte(sink, value == Py_True ? 0xc3 : 0xc2);
    if (PyLong_CheckExact(value)) return put_int(sink, value);
    if (PyFloat_CheckExact(value)) return put_float(sink, value);
    if (PyBytes_CheckExact(value)) {
        char *bytes;
        Py_ssize_t size;
        PyBytes_AsStringAndSize(value, &bytes, &size);
        TRY(put_size(sink, size, 0, 0, 0xc4, 0xc5));
        return put(sink, bytes, size);
    }
    return UNKNOWN;
}

/* Estimates the memory of a string in bytes, with its UTF-8. */
static Py_ssize_t memory_of(PyObject *string) {
    Py_ssize_t length = PyUnicode_GetLength(string), size, width = 1;
    const unsigned char *bytes = (const unsigned char *)PyUnicode_AsUTF8AndSize(string, &size);
    if (!bytes || size == length) return 56 + length;
    for (Py_ssize_t i = 0; i < size && width < 4; i++)
        if (bytes[i] >= 0xc4) width = bytes[i] >= 0xf0 ? 4 : 2;
    return 80 + width * length + size;
}

/* Freezes a packed value: a dict or list becomes a tuple of its type and its items. Adds its estimated memory in
 * bytes to the size. */
static PyObject *frozen(PyObject *value, const State *state, Py_ssize_t *memory) {
    int is_dict = PyDict_CheckExact(value);
    if (PyUnicode_CheckExact(value)) *memory += memory_of(value);
    else if (PyBytes_CheckExact(value)) *memory += 40 + PyBytes_Size(value);
    else if (PyLong_CheckExact(value) || PyFloat_CheckExact(value)) *memory += 32;
    if (!is_dict && !PyList_CheckExact(value)) return Py_NewRef(value);
    Py_ssize_t size = is_dict ? PyDict_Size(value) : PyList_Size(value), position = 0, at = 1;
    if (!size) return Py_NewRef(is_dict ? state->no_dict : state->no_list);
    PyObject *kept = PyTuple_New(1 + size + (is_dict ? size : 0)), *key, *item;
    if (!kept) return NULL;
    *memory += 64 + 8 * PyTuple_Size(kept);
    PyTuple_SetItem(kept, 0, Py_NewRef((PyObject *)Py_TYPE(value)));
    while (is_dict ? PyDict_Next(value, &position, &key, &item) : position < size && (item = PyList_GetItem(value, position++))) {
        if (is_dict) {
            /* Most short strings are names, and share one object. */
            if (PyUnicode_GetLength(key) > MAX_KEY) *memory += memory_of(key);
            PyTuple_SetItem(kept, at++, Py_NewRef(key));
        }
        if (!(item = frozen(item, state, memory))) {
            Py_DECREF(kept);
            return NULL;
        }
        PyTuple_SetItem(kept, at++, item);
    }
    return kept;
}

static int same_string(PyObject *one, PyObject *other) {
    return one == other || (PyUnicode_CheckExact(one) && !PyUnicode_Compare(one, other));
}

/* True if a value equals a frozen one. */
static int same(PyObject *value, PyObject *kept, const State *state) {
    if (value == kept) return !PyTuple_CheckExact(kept);
    if (kept == state->no_dict) return PyDict_CheckExact(value) && !PyDict_Size(value);
    if (kept == state->no_list) return PyList_CheckExact(value) && !PyList_Size(value);
    if (PyTuple_CheckExact(kept)) {
        Py_ssize_t size = PyTuple_Size(kept), position = 0, at = 1;
        PyObject *key, *item;
        if ((PyObject *)Py_TYPE(value) != PyTuple_GetItem(kept, 0)) return 0;
        if (PyList_CheckExact(value)) {
            if (PyList_Size(value) != size - 1) return 0;
            while (at < size && same(PyList_GetItem(value, at - 1), PyTuple_GetItem(kept, at), state)) at++;
        } else {
            if (2 * PyDict_Size(value) != size - 1) return 0;
            while (PyDict_Next(value, &position, &key, &item)) {
                if (!same_string(key, PyTuple_GetItem(kept, at)) || !same(item, PyTuple_GetItem(kept, at + 1), state)) return 0;
                at += 2;
            }
        }
        return at == size;
    }
    if (Py_TYPE(value) != Py_TYPE(kept)) return 0;
    if (PyUnicode_CheckExact(value)) return !PyUnicode_Compare(value, kept);
    if (PyFloat_CheckExact(value)) {
        double one = PyFloat_AsDouble(value), other = PyFloat_AsDouble(kept);
        return !memcmp(&one, &other, sizeof one); /* 0.0 equals -0.0, but has other bytes */
    }
    return (PyLong_CheckExact(value) || PyBytes_CheckExact(value)) && PyObject_RichCompareBool(value, kept, Py_EQ) == 1;
}

/* Packs the fields of a message. With `kept`, also freezes them: a tuple of the values, then their memory in bytes. */
static Status put_fields(Sink *sink, PyObject *fields, const Plan *plan, const State *state, PyObject *kept) {
    PyObject *key, *value;
    Py_ssize_t position = 0, memory = 0;
    TRY(put_byte(sink, 0x80 | (int)plan->count));
    for (int i = 0; PyDict_Next(fields, &position, &key, &value); i++) {
        const Field *field = &plan->fields[i];
        if (!same_string(key, field->name)) return UNKNOWN;
        TRY(put(sink, field->packed, field->size));
        if (!field_fits(value, field, 0)) return PyErr_Occurred() ? FAILED : UNKNOWN;
        TRY(put_value(sink, value, 0));
        if (!kept) continue;
        if (!(value = frozen(value, state, &memory))) return FAILED;
        PyTuple_SetItem(kept, i, value);
    }
    if (!kept) return OK;
    PyObject *size = PyLong_FromSsize_t(memory + 128 + 8 * plan->count);
    if (!size) return FAILED;
    PyTuple_SetItem(kept, plan->count, size);
    return OK;
}

/* True if the fields of a message equal frozen ones. */
static int same_fields(PyObject *fields, const Plan *plan, PyObject *kept, const State *state) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int i = 0;
    if (!PyTuple_CheckExact(kept) || PyTuple_Size(kept) != plan->count + 1) return 0;
    while (PyDict_Next(fields, &position, &key, &value)) {
        if (!same_string(key, plan->fields[i].name) || !same(value, PyTuple_GetItem(kept, i), state)) return 0;
        i++;
    }
    return 1;
}

/* Returns the fields of a message without extra fields, or NULL with UNKNOWN or FAILED. */
static PyObject *fields_of(PyObject *message, const Plan *plan, const State *state, Status *status) {
    PyObject *extra = PyObject_GenericGetAttr(message, state->texts[EXTRA]);
    *status = UNKNOWN;
    if (!extra) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) *status = FAILED;
        else PyErr_Clear();
        return NULL;
    }
    int plain = extra == Py_None || (PyDict_CheckExact(extra) && !PyDict_Size(extra));
    Py_DECREF(extra);
    if (!plain) return NULL;
    PyObject *fields = PyObject_GenericGetDict(message, NULL);
    if (!fields) *status = FAILED;
    else if (PyDict_CheckExact(fields) && PyDict_Size(fields) == plan->count) return fields;
    Py_XDECREF(fields);
    return NULL;
}

static Status put_message(Sink *sink, PyObject *message, const Plan *plan, const State *state, PyObject *kept) {
    Status status;
    PyObject *fields = fields_of(message, plan, state, &status);
    if (!fields) return status;
    status = put_fields(sink, fields, plan, state, kept);
    Py_DECREF(fields);
    return status;
}

/* Writes the contents of a message's extension. */
static Status put_payload(Sink *sink, PyObject *message, State *state) {
    const Plan *plan = find_plan(state, (PyObject *)Py_TYPE(message));
    if (!plan) return UNKNOWN;
    TRY(put(sink, plan->head, plan->head_size));
    TRY(put_message(sink, message, plan, state, NULL));
    return put(sink, suffix, sizeof suffix);
}

/* Writes a message as an element of a list: an extension, whose head depends on its size. */
static Status put_element(Sink *sink, PyObject *message, State *state) {
    static const char room[6];
    Py_ssize_t begin = sink->at - sink->start;
    TRY(put(sink, room, sizeof room));
    TRY(put_payload(sink, message, state));
    char *payload = sink->start + begin + sizeof room;
    Py_ssize_t size = sink->at - payload;
    if ((uint64_t)size > 0xffffffff) return UNKNOWN;
    int power = size <= 0xff ? 0 : size <= 0xffff ? 1 : 2, width = 1 << power;
    unsigned char *header = (unsigned char *)sink->start + begin;
    header[0] = (unsigned char)(0xc7 + power);
    for (int i = 0; i < width; i++) header[width - i] = (unsigned char)(size >> (8 * i));
    header[1 + width] = EXT_PYDANTIC;
    memmove(header + 2 + width, payload, size);
    sink->at -= sizeof room - (2 + width);
    return OK;
}

/* Returns None if JsonPlusSerializer has to do it, or NULL with an exception. */
static PyObject *not_ok(Status status) {
    if (status == FAILED) return NULL;
    Py_RETURN_NONE;
}

static PyObject *encode(PyObject *module, PyObject *messages) {
    State *state = PyModule_GetState(module);
    if (!PyList_Check(messages)) return PyErr_BadArgument(), NULL;
    Sink sink = {0};
    Py_ssize_t count = PyList_Size(messages);
    Status status = put_size(&sink, count, 0x90, 16, 0, 0xdc);
    for (Py_ssize_t i = 0; status == OK && i < count; i++) {
        PyObject *message = Py_NewRef(PyList_GetItem(messages, i));
        status = put_element(&sink, message, state);
        Py_DECREF(message);
        if (status == OK && PyList_Size(messages) != count) status = UNKNOWN;
    }
    PyObject *found = status == OK ? PyBytes_FromStringAndSize(sink.start, sink.at - sink.start) : not_ok(status);
    PyMem_Free(sink.start);
    return found;
}

static PyObject *payload(PyObject *module, PyObject *message) {
    Sink sink = {0};
    Status status = put_payload(&sink, message, PyModule_GetState(module));
    PyObject *found = status == OK ? PyBytes_FromStringAndSize(sink.start, sink.at - sink.start) : not_ok(status);
    PyMem_Free(sink.start);
    return found;
}

static PyObject *pack(PyObject *module, PyObject *messages) {
    State *state = PyModule_GetState(module);
    if (!PyList_Check(messages)) return PyErr_BadArgument(), NULL;
    int collecting = PyGC_Disable(); /* So the frozen values are the packed ones, on Python 3.10 and 3.11, too. */
    Sink sink = {0};
    PyObject *packed = PyList_New(0), *fields = PyList_New(0);
    Status status = packed && fields ? OK : FAILED;
    for (Py_ssize_t i = 0; status == OK && i < PyList_Size(messages); i++) {
        PyObject *message = PyList_GetItem(messages, i), *bytes = NULL, *kept = NULL;
        const Plan *plan = find_plan(state, (PyObject *)Py_TYPE(message));
        sink.at = sink.start;
        status = !plan ? UNKNOWN : !(kept = PyTuple_New(plan->count + 1)) ? FAILED : put_message(&sink, message, plan, state, kept);
        if (status == OK && !(bytes = PyBytes_FromStringAndSize(sink.start, sink.at - sink.start))) status = FAILED;
        if (status == OK && (PyList_Append(packed, bytes) || PyList_Append(fields, kept))) status = FAILED;
        Py_XDECREF(bytes);
        Py_XDECREF(kept);
    }
    PyObject *kept = status == OK ? PyList_AsTuple(fields) : NULL;
    if (status == OK && !kept) status = FAILED;
    if (collecting) PyGC_Enable();
    PyMem_Free(sink.start);
    PyObject *found = status == OK ? PyTuple_Pack(2, packed, kept) : not_ok(status);
    Py_XDECREF(packed);
    Py_XDECREF(fields);
    Py_XDECREF(kept);
    return found;
}

static PyObject *unchanged(PyObject *module, PyObject *args) {
    State *state = PyModule_GetState(module);
    PyObject *messages, *kinds, *kept;
    Py_ssize_t count = 0;
    if (!PyArg_ParseTuple(args, "O!O!O!:unchanged", &PyList_Type, &messages, &PyTuple_Type, &kinds, &PyTuple_Type, &kept)) return NULL;
    for (int right = 1; right && count < PyList_Size(messages) && count < PyTuple_Size(kinds) && count < PyTuple_Size(kept); count += right) {
        PyObject *message = Py_NewRef(PyList_GetItem(messages, count)), *values = PyTuple_GetItem(kept, count);
        PyObject *type = (PyObject *)Py_TYPE(message), *fields = NULL;
        const Plan *plan = type == PyTuple_GetItem(kinds, count) ? find_plan(state, type) : NULL;
        Status status = OK;
        right = plan && (fields = fields_of(message, plan, state, &status)) && same_fields(fields, plan, values, state);
        Py_XDECREF(fields);
        Py_DECREF(message);
    }
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(count);
}

/* -- copying */

typedef struct {
    State *state;
    PyObject *message; /* returns the packable form of a message */
    int deepest;
} Copier;

static PyObject *copied(PyObject *value, Copier *copier, int depth, Status *status);

/* Copies a list, dict or tuple, without calling methods of its class. Returns NULL with UNKNOWN or FAILED. It is one
 * step, as no garbage is collected. */
static PyObject *shallow(PyObject *value, Status *status) {
    PyObject *copy = NULL, *key, *item;
    Py_ssize_t position = 0;
    int collecting = PyGC_Disable();
    *status = FAILED;
    if (PyTuple_CheckExact(value)) copy = PySequence_List(value);
    else if (PyList_Check(value)) copy = PyList_GetSlice(value, 0, PyList_Size(value));
    else if (PyDict_CheckExact(value)) copy = PyDict_Copy(value);
    else if ((copy = PyDict_New()))
        /* An OrderedDict may have another order. */
        while (copy && PyDict_Next(value, &position, &key, &item)) {
            if (!PyUnicode_CheckExact(key)) *status = UNKNOWN; /* hashing may run any code */
            if (*status == UNKNOWN || PyDict_SetItem(copy, key, item)) Py_CLEAR(copy);
        }
    if (collecting) PyGC_Enable();
    if (copy) *status = OK;
    return copy;
}

/* Copies the contents of a list or dict that no other code has, so other code may run meanwhile. */
static Status copy_items(PyObject *container, Copier *copier, int depth) {
    PyObject *key = NULL, *item, *copy;
    Py_ssize_t position = 0;
    Status status = OK;
    int is_dict = PyDict_CheckExact(container);
    while (is_dict ? PyDict_Next(container, &position, &key, &item)
                   : position < PyList_Size(container) && (item = PyList_GetItem(container, position++))) {
        if (!(copy = copied(item, copier, depth, &status))) return status;
        if (copy == item) {
            Py_DECREF(copy);
        } else if (is_dict) {
            int failed = PyDict_SetItem(container, key, copy);
            Py_DECREF(copy);
            if (failed) return FAILED;
        } else if (PyList_SetItem(container, position - 1, copy)) return FAILED;
    }
    return OK;
}

/* Returns the object to pack instead of a value, or NULL with UNKNOWN or FAILED. */
static PyObject *copied(PyObject *value, Copier *copier, int depth, Status *status) {
    PyTypeObject *type = Py_TYPE(value);
    if (PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value)) return Py_NewRef(value);
    if (PyList_Check(value) || PyDict_Check(value) || PyTuple_CheckExact(value)) {
        *status = UNKNOWN;
        /* A class with a metaclass may be an Enum. */
        if (depth >= DEEPEST_COPY || (PyObject *)Py_TYPE(type) != (PyObject *)&PyType_Type) return NULL;
        PyObject *copy = shallow(value, status);
        if (!copy) return NULL;
        if (depth + 1 > copier->deepest) copier->deepest = depth + 1;
        if ((*status = copy_items(copy, copier, depth + 1)) != OK) Py_CLEAR(copy);
        return copy;
    }
    if (!find_plan(copier->state, (PyObject *)type)) return Py_NewRef(value);
    PyObject *packed = PyObject_CallFunctionObjArgs(copier->message, value, NULL);
    if (!packed) *status = FAILED;
    return packed;
}

static PyObject *snapshot(PyObject *module, PyObject *args) {
    Copier copier = {PyModule_GetState(module), NULL, 0};
    PyObject *value;
    Status status = OK;
    if (!PyArg_ParseTuple(args, "OO:snapshot", &value, &copier.message)) return NULL;
    PyObject *copy = copied(value, &copier, 0, &status);
    return copy ? Py_BuildValue("(Ni)", copy, copier.deepest) : not_ok(status);
}

/* -- reading */

typedef struct {
    const unsigned char *at, *end;
} Source;

static inline int has(const Source *source, uint64_t size) { return (uint64_t)(source->end - source->at) >= size; }

static Status take_number(Source *source, int size, uint64_t *number) {
    if (!has(source, size)) return UNKNOWN;
    for (*number = 0; size; size--) *number = *number << 8 | *source->at++;
    return OK;
}

/* Reads a string. Equal keys are one object. */
static PyObject *take_string(Source *source, uint64_t size, PyObject **keys) {
    const char *bytes = (const char *)source->at;
    if (!has(source, size)) return NULL;
    source->at += size;
    if (!keys || size > MAX_KEY) return PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)size, NULL);
    uint32_t hash = 2166136261u;
    for (uint64_t i = 0; i < size; i++) hash = (hash ^ (unsigned char)bytes[i]) * 16777619u;
    PyObject **kept = &keys[(hash ^ hash >> 10) % KEYS];
    Py_ssize_t length;
    const char *known = *kept ? PyUnicode_AsUTF8AndSize(*kept, &length) : NULL;
    if (*kept && !known) return NULL;
    if (known && (uint64_t)length == size && !memcmp(known, bytes, size)) return Py_NewRef(*kept);
    PyObject *key = PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)size, NULL), *other = *kept;
    if (key) {
        *kept = Py_NewRef(key);
        Py_XDECREF(other);
    }
    return key;
}

static PyObject *take_bytes(Source *source, uint64_t size) {
    if (!has(source, size)) return NULL;
    source->at += size;
    return PyBytes_FromStringAndSize((const char *)source->at - size, (Py_ssize_t)size);
}

static PyObject *take(Source *source, State *state, int depth);

static PyObject *take_list(Source *source, uint64_t size, State *state, int depth) {
    PyObject *list = has(source, size) ? PyList_New(0) : NULL;
    for (uint64_t i = 0; list && i < size; i++) {
        PyObject *value = take(source, state, depth + 1);
        if (!value || PyList_Append(list, value)) Py_CLEAR(list);
        Py_XDECREF(value);
    }
    return list;
}

/* Reads the head of a key, and returns its size in bytes. */
static Status take_key_size(Source *source, uint64_t *size) {
    if (!has(source, 1)) return UNKNOWN;
    int tag = *source->at++;
    *size = tag & 31;
    if (tag >= 0xa0 && tag < 0xc0) return OK;
    return tag < 0xd9 || tag > 0xdb ? UNKNOWN : take_number(source, 1 << (tag - 0xd9), size);
}

static PyObject *take_dict(Source *source, uint64_t size, State *state, int depth) {
    PyObject *dict = has(source, 2 * size) ? PyDict_New() : NULL;
    for (uint64_t i = 0; dict && i < size; i++) {
        uint64_t length;
        PyObject *key = take_key_size(source, &length) == OK ? take_string(source, length, state->keys) : NULL;
        PyObject *value = key ? take(source, state, depth + 1) : NULL;
        if (!value || PyDict_SetItem(dict, key, value)) Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return dict;
}

/* Reads a value. Returns NULL if JsonPlusSerializer has to do it, or with an exception. */
static PyObject *take(Source *source, State *state, int depth) {
    uint64_t number;
    if (depth > DEEPEST || !has(source, 1)) return NULL;
    int tag = *source->at++;
    if (tag < 0x80) return PyLong_FromLong(tag);
    if (tag < 0x90) return take_dict(source, tag & 15, state, depth);
    if (tag < 0xa0) return take_list(source, tag & 15, state, depth);
    if (tag < 0xc0) return take_string(source, tag & 31, NULL);
    if (tag >= 0xe0) return PyLong_FromLong(tag - 256);
    switch (tag) {
    case 0xc0: Py_RETURN_NONE;
    case 0xc2: Py_RETURN_FALSE;
    case 0xc3: Py_RETURN_TRUE;
    case 0xc4:
    case 0xc5:
    case 0xc6: return take_number(source, 1 << (tag - 0xc4), &number) ? NULL : take_bytes(source, number);
    case 0xcb: {
        double value;
        if (take_number(source, 8, &number)) return NULL;
        memcpy(&value, &number, 8);
        return PyFloat_FromDouble(value);
    }
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf: return take_number(source, 1 << (tag - 0xcc), &number) ? NULL : PyLong_FromUnsignedLongLong(number);
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3: {
        int bits = 8 << (tag - 0xd0);
        if (take_number(source, bits / 8, &number)) return NULL;
        return PyLong_FromLongLong((int64_t)(number << (64 - bits)) >> (64 - bits));
    }
    case 0xd9:
    case 0xda:
    case 0xdb: return take_number(source, 1 << (tag - 0xd9), &number) ? NULL : take_string(source, number, NULL);
    case 0xdc:
    case 0xdd: return take_number(source, 2 << (tag - 0xdc), &number) ? NULL : take_list(source, number, state, depth);
    case 0xde:
    case 0xdf: return take_number(source, 2 << (tag - 0xde), &number) ? NULL : take_dict(source, number, state, depth);
    }
    return NULL;
}

/* Reads the fields of a message, which must have the order and the kinds of its class. */
static PyObject *take_fields(Source *source, const Plan *plan, State *state) {
    if (!has(source, 1) || *source->at != (0x80 | plan->count)) return NULL;
    source->at++;
    PyObject *fields = PyDict_Copy(plan->empty);
    for (const Field *field = plan->fields; fields && field < plan->fields + plan->count; field++) {
        PyObject *value = NULL;
        if (has(source, field->size) && !memcmp(source->at, field->packed, field->size)) {
            source->at += field->size;
            value = take(source, state, 0);
        }
        if (!value || !field_fits(value, field, 1) || PyDict_SetItem(fields, field->name, value)) Py_CLEAR(fields);
        Py_XDECREF(value);
    }
    return fields;
}

/* Returns a new value made of a frozen one. */
static PyObject *thawed(PyObject *kept, const State *state) {
    if (kept == state->no_dict) return PyDict_New();
    if (kept == state->no_list) return PyList_New(0);
    if (!PyTuple_CheckExact(kept)) return Py_NewRef(kept);
    int is_dict = PyTuple_GetItem(kept, 0) == (PyObject *)&PyDict_Type;
    PyObject *value = is_dict ? PyDict_New() : PyList_New(0);
    for (Py_ssize_t at = 1; value && at < PyTuple_Size(kept); at++) {
        PyObject *key = is_dict ? PyTuple_GetItem(kept, at++) : NULL, *item = thawed(PyTuple_GetItem(kept, at), state);
        if (!item || (is_dict ? PyDict_SetItem(value, key, item) : PyList_Append(value, item))) Py_CLEAR(value);
        Py_XDECREF(item);
    }
    return value;
}

static PyObject *thawed_fields(PyObject *kept, const Plan *plan, const State *state) {
    if (!PyTuple_CheckExact(kept) || PyTuple_Size(kept) != plan->count + 1) return NULL;
    PyObject *fields = PyDict_Copy(plan->empty);
    for (int i = 0; fields && i < plan->count; i++) {
        PyObject *value = thawed(PyTuple_GetItem(kept, i), state);
        if (!value || PyDict_SetItem(fields, plan->fields[i].name, value)) Py_CLEAR(fields);
        Py_XDECREF(value);
    }
    return fields;
}

/* Makes a message with these fields, as validation would leave it. Steals the reference. */
static PyObject *make_message(PyObject *fields, const Plan *plan, State *state) {
    PyTypeObject *type = (PyTypeObject *)plan->type;
    PyObject *message = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    PyObject *names = PySet_New(plan->names), *extra = PyDict_New();
    if (message &&
        (!names || !extra || PyObject_GenericSetDict(message, fields, NULL) ||
         PyObject_GenericSetAttr(message, state->texts[FIELDS_SET], names) ||
         PyObject_GenericSetAttr(message, state->texts[EXTRA], extra) || PyObject_GenericSetAttr(message, state->texts[PRIVATE], Py_None)))
        Py_CLEAR(message);
    Py_XDECREF(names);
    Py_XDECREF(extra);
    Py_DECREF(fields);
    return message;
}

/* True if LangChain would not change the tool calls in these fields. */
static int calls_stay(PyObject *fields, State *state) {
    PyObject *calls = PyDict_GetItemWithError(fields, state->texts[TOOL_CALLS]);
    PyObject *invalid = PyDict_GetItemWithError(fields, state->texts[INVALID_TOOL_CALLS]);
    PyObject *more = PyDict_GetItemWithError(fields, state->texts[ADDITIONAL_KWARGS]);
    if (!calls || !invalid || !more) return 0;
    if (!PyList_CheckExact(calls) || !PyList_CheckExact(invalid) || !PyDict_CheckExact(more)) return 0;
    return !PyList_Size(invalid) && (PyList_Size(calls) || !PyDict_GetItemWithError(more, state->texts[TOOL_CALLS]));
}

/* Returns NULL with an exception, or None if JsonPlusSerializer has to raise the right error. */
static PyObject *left(void) {
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* Returns the plan of the class that a payload names. */
static const Plan *plan_of(const char *bytes, Py_ssize_t size, const State *state) {
    for (const Plan *plan = state->plans; plan < state->plans + state->count; plan++)
        if (size >= plan->head_size && !memcmp(bytes, plan->head, plan->head_size)) return plan;
    return NULL;
}

static PyObject *read_message(PyObject *module, PyObject *payload) {
    State *state = PyModule_GetState(module);
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(payload, &bytes, &size)) return NULL;
    const Plan *plan = plan_of(bytes, size, state);
    if (!plan || plan->rule == UNREADABLE) return left();
    Source source = {(unsigned char *)bytes + plan->head_size, (unsigned char *)bytes + size};
    PyObject *fields = take_fields(&source, plan, state);
    if (!fields) return left();
    int right = source.end - source.at == sizeof suffix && !memcmp(source.at, suffix, sizeof suffix);
    if (right && (plan->rule != CALLS_STAY || calls_stay(fields, state))) return make_message(fields, plan, state);
    Py_DECREF(fields);
    return left();
}

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

static void prefetch_items(PyObject *kept) {
    for (Py_ssize_t i = 0; PyTuple_CheckExact(kept) && i < PyTuple_Size(kept); i++) PREFETCH(PyTuple_GetItem(kept, i));
}

/* Prefetches the next message: the messages are old objects, scattered over memory. */
static void prefetch(PyObject *fields, Py_ssize_t at) {
    Py_ssize_t left = PyTuple_Size(fields) - at;
    if (left > 6) PREFETCH(PyTuple_GetItem(fields, at + 6));
    if (left > 3) prefetch_items(PyTuple_GetItem(fields, at + 3));
    PyObject *next = left > 2 ? PyTuple_GetItem(fields, at + 2) : Py_None;
    for (Py_ssize_t i = 0; PyTuple_CheckExact(next) && i < PyTuple_Size(next); i++) prefetch_items(PyTuple_GetItem(next, i));
}

static PyObject *make(PyObject *module, PyObject *args) {
    State *state = PyModule_GetState(module);
    PyObject *kinds, *kept;
    if (!PyArg_ParseTuple(args, "O!O!:make", &PyTuple_Type, &kinds, &PyTuple_Type, &kept)) return NULL;
    PyObject *messages = PyList_New(0);
    for (Py_ssize_t i = 0; messages && i < PyTuple_Size(kinds); i++) {
        const Plan *plan = i < PyTuple_Size(kept) ? find_plan(state, PyTuple_GetItem(kinds, i)) : NULL;
        prefetch(kept, i);
        PyObject *fields = plan ? thawed_fields(PyTuple_GetItem(kept, i), plan, state) : NULL;
        PyObject *message = fields ? make_message(fields, plan, state) : NULL;
        if (!message || PyList_Append(messages, message)) Py_CLEAR(messages);
        Py_XDECREF(message);
    }
    return messages ? messages : left();
}

/* -- the module */

static void drop(Plan *plan) {
    Py_XDECREF(plan->owner);
    memset(plan, 0, sizeof *plan);
}

static PyObject *learn(PyObject *module, PyObject *args) {
    State *state = PyModule_GetState(module);
    PyObject *names, *packed, *kinds;
    Plan plan = {.owner = args};
    if (!PyArg_ParseTuple(args, "O!O!O!O!y#O!O!i:learn", &PyType_Type, &plan.type, &PyTuple_Type, &names, &PyTuple_Type, &packed,
                          &PyTuple_Type, &kinds, &plan.head, &plan.head_size, &PyDict_Type, &plan.empty, &PyFrozenSet_Type, &plan.names,
                          &plan.rule))
        return NULL;
    plan.count = PyTuple_Size(names);
    int room = state->count < CLASSES && plan.count <= FIELDS && PyTuple_Size(packed) == plan.count && PyTuple_Size(kinds) == plan.count;
    for (int i = 0; room && i < plan.count; i++) {
        char *bytes;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(packed, i), &bytes, &plan.fields[i].size)) return NULL;
        PyObject *kind = PyTuple_GetItem(kinds, i);
        long types = kind == Py_None ? NONE | STR : PyLong_AsLong(PyTuple_GetItem(kind, 0));
        plan.fields[i] = (Field){PyTuple_GetItem(names, i), kind, bytes, plan.fields[i].size, types};
    }
    if (room) {
        Py_INCREF(args);
        state->plans[state->count++] = plan;
    }
    return PyBool_FromLong(room);
}

static PyObject *forget(PyObject *module, PyObject *type) {
    State *state = PyModule_GetState(module);
    for (int i = 0; i < state->count; i++)
        if (state->plans[i].type == type) {
            drop(&state->plans[i]);
            state->plans[i] = state->plans[--state->count];
            memset(&state->plans[state->count], 0, sizeof(Plan));
            state->last = 0;
            break;
        }
    Py_RETURN_NONE;
}

static int execute(PyObject *module) {
    State *state = PyModule_GetState(module);
    for (int i = 0; i < TEXTS; i++)
        if (!(state->texts[i] = PyUnicode_InternFromString(texts[i]))) return -1;
    state->no_dict = PyTuple_Pack(1, &PyDict_Type);
    state->no_list = PyTuple_Pack(1, &PyList_Type);
    return state->no_dict && state->no_list ? 0 : -1;
}

static void release(void *module) {
    State *state = PyModule_GetState(module);
    if (!state) return;
    for (int i = 0; i < TEXTS; i++) Py_CLEAR(state->texts[i]);
    for (int i = 0; i < KEYS; i++) Py_CLEAR(state->keys[i]);
    Py_CLEAR(state->no_dict);
    Py_CLEAR(state->no_list);
    for (int i = 0; i < state->count; i++) drop(&state->plans[i]);
}

/* -- cutting: the rule of cutter.py */

enum { OPENED = 2048, LEAST = 128, NORMAL = 512, MOST = 2048, LONG = 512, WINDOW = 64, SHORT = 1 << 19 };
static const uint64_t RARE = 1ull << 22, OFTEN = 1ull << 24; /* of 1 << 32 */

typedef struct {
    PyObject *pieces;
    int coarse;                              /* binary digits by which pieces of strings are larger */
    const unsigned char *start, *at, *hashed; /* of the piece, of the element, of the hash */
    uint64_t hash, gear[256];
} Cutter;

typedef struct {
    enum { SCALAR, ARRAY, MAP, EXTENSION } kind;
    uint64_t size, count; /* of its data in bytes, of its contents in objects */
    int code;
} Head;

/* Reads the head of an object. */
static Status take_head(Source *source, Head *head) {
    /* By the tag, from 0xc4 on: the size of a length, and what to add to it. */
    static const unsigned char widths[] = {1, 2, 4, 1, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4};
    static const unsigned char sizes[] = {0, 0, 0, 0, 0, 0, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17, 0, 0, 0, 0, 0, 0, 0};
    *head = (Head){SCALAR, 0, 0, 0};
    if (!has(source, 1)) return UNKNOWN;
    int tag = *source->at++;
    if (tag >= 0xa0 && tag < 0xc0) head->size = tag & 31;
    if (tag >= 0x80 && tag < 0xa0) head->kind = tag < 0x90 ? MAP : ARRAY, head->count = tag & 15;
    if (tag >= 0xc4 && tag < 0xe0) {
        uint64_t number;
        TRY(take_number(source, widths[tag - 0xc4], &number));
        if (tag >= 0xdc) head->kind = tag < 0xde ? ARRAY : MAP, head->count = number;
        else head->size = number + sizes[tag - 0xc4];
    }
    if (tag >= 0xc7 && tag <= 0xc9) {
        if (!has(source, 1)) return UNKNOWN;
        head->code = *source->at++;
        if (tag > 0xc7 && head->code < 6) head->kind = EXTENSION;
    }
    if (head->kind == MAP) head->count *= 2;
    return OK;
}

static Status skip(Source *source) {
    Head head;
    for (uint64_t left = 1; left; left--) {
        TRY(take_head(source, &head));
        if (!has(source, head.size)) return UNKNOWN;
        source->at += head.size;
        left += head.count;
        if (!has(source, left - 1)) return UNKNOWN; /* each object has a byte */
    }
    return OK;
}

static Status end_piece(Cutter *cutter, const unsigned char *place) {
    PyObject *piece = PyBytes_FromStringAndSize((const char *)cutter->start, place - cutter->start);
    int failed = !piece || PyList_Append(cutter->pieces, piece);
    Py_XDECREF(piece);
    cutter->start = place;
    return failed ? FAILED : OK;
}

/* Hashes the bytes before a place. */
static uint64_t hash_at(Cutter *cutter, const unsigned char *place) {
    const unsigned char *from = place - WINDOW;
    if (cutter->hashed < from) cutter->hash = 0;
    else from = cutter->hashed;
    while (from < place) cutter->hash = (cutter->hash << 1) + cutter->gear[*from++];
    cutter->hashed = place;
    return cutter->hash >> 32;
}

static Status end_element(Cutter *cutter, const unsigned char *place) {
    Py_ssize_t length = place - cutter->at, size;
    if (length >= LONG && cutter->at > cutter->start) TRY(end_piece(cutter, cutter->at));
    cutter->at = place;
    size = place - cutter->start;
    if (!length || size < LEAST) return OK;
    if (size < MOST && hash_at(cutter, place) >= (uint64_t)length * (size < NORMAL ? RARE : OFTEN)) return OK;
    return end_piece(cutter, place);
}

static Status border(Cutter *cutter, const unsigned char *place) {
    TRY(end_element(cutter, place));
    return place > cutter->start ? end_piece(cutter, place) : OK;
}

static Status cut_string(Cutter *cutter, const unsigned char *end) {
    int coarse = cutter->coarse;
    for (Py_ssize_t parts = (end - cutter->start) / SHORT; parts; parts >>= 1) coarse++;
    const Py_ssize_t least = (Py_ssize_t)LEAST << coarse, normal = (Py_ssize_t)NORMAL << coarse, most = (Py_ssize_t)MOST << coarse;
    while (end - cutter->start > least) {
        const unsigned char *place = cutter->start + least, *often = cutter->start + normal;
        const unsigned char *last = end - cutter->start < most ? end : cutter->start + most;
        uint64_t hash = 0;
        for (const unsigned char *at = place - WINDOW; at < place; at++) hash = (hash << 1) + cutter->gear[*at];
        for (; place < last && hash >> 32 >= (place < often ? RARE : OFTEN) >> coarse; place++) hash = (hash << 1) + cutter->gear[*place];
        TRY(end_piece(cutter, place));
    }
    cutter->at = end;
    return OK;
}

static Status cut_elements(Cutter *cutter, Source source, int step, int fields, int depth);

/* Cuts within an object. `fields` is the number of levels that are fields of an extension, not values of their own. */
static Status open_object(Cutter *cutter, Source object, int fields, int depth) {
    const unsigned char *begin = object.at;
    Head head;
    TRY(take_head(&object, &head));
    int is_extension = head.kind == EXTENSION && depth, is_field = fields && head.kind != SCALAR && depth && !is_extension;
    int inner = is_extension ? (head.code == 0 || head.code == 3 ? 1 : 2) : is_field ? fields - 1 : 0;
    if (!is_field) TRY(border(cutter, is_extension ? begin : object.at));
    if (head.kind == SCALAR || !depth) TRY(cut_string(cutter, object.end));
    else TRY(cut_elements(cutter, object, head.kind == MAP ? 2 : 1, inner, depth - 1));
    return is_field ? OK : border(cutter, object.end);
}

static Status cut_elements(Cutter *cutter, Source source, int step, int fields, int depth) {
    while (source.at < source.end) {
        if (step > 1) TRY(skip(&source));
        const unsigned char *begin = source.at;
        TRY(skip(&source));
        if (source.at - begin >= OPENED) TRY(open_object(cutter, (Source){begin, source.at}, fields, depth));
        TRY(end_element(cutter, source.at));
    }
    return OK;
}

static PyObject *cut(PyObject *module, PyObject *args) {
    const char *data, *gear;
    Py_ssize_t size, gear_size, start;
    int step, coarse;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#y#ini", &data, &size, &gear, &gear_size, &coarse, &start, &step)) return NULL;
    Cutter cutter = {.pieces = NULL, .coarse = coarse};
    if (gear_size != sizeof cutter.gear || start < 0 || start > size || coarse < 0 || coarse > 8) return PyErr_BadArgument(), NULL;
    memcpy(cutter.gear, gear, sizeof cutter.gear);
    Source source = {(const unsigned char *)data + start, (const unsigned char *)data + size};
    cutter.start = cutter.at = cutter.hashed = source.at;
    if (!(cutter.pieces = PyList_New(0))) return NULL;
    Status status = step ? cut_elements(&cutter, source, step, 0, DEEPEST) : cut_string(&cutter, source.end);
    if (status == OK) status = border(&cutter, source.end);
    if (status == OK) return cutter.pieces;
    Py_DECREF(cutter.pieces);
    return not_ok(status);
}

static PyMethodDef methods[] = {
    {"learn", learn, METH_VARARGS,
     "learn(type, names, packed_names, kinds, head, template, fields, rule)\n--\n\nWhat there is to know of a class. "
     "False where that is more than there is room for."},
    {"forget", forget, METH_O, "forget(type)\n--\n\nLeave a class to JsonPlusSerializer."},
    {"encode", encode, METH_O, "encode(messages)\n--\n\nThe list of these messages, as msgpack; None where one is not plain."},
    {"payload", payload, METH_O, "payload(message)\n--\n\nWhat is in the Ext of a message; None where it is not plain."},
    {"pack", pack, METH_O,
     "pack(messages)\n--\n\nThe packed fields of each message, and those of each as a tuple of their values, frozen. None where one is not "
     "plain."},
    {"unchanged", unchanged, METH_VARARGS,
     "unchanged(messages, kinds, fields)\n--\n\nHow many messages at the front are of these classes and have these fields, of which "
     "`pack` told."},
    {"snapshot", snapshot, METH_VARARGS,
     "snapshot(value, message)\n--\n\nWhat `fallback._copy_of` says of a value; `message` is called with each message in it. None where "
     "that is not to be told here."},
    {"cut", cut, METH_VARARGS,
     "cut(data, gear, coarse, start, step)\n--\n\nWhat `cutter.pieces_of` says; None where the bytes are not msgpack."},
    {"read", read_message, METH_O, "read(payload)\n--\n\nThe message of an Ext; None where that is not to be told here."},
    {"make", make, METH_VARARGS,
     "make(kinds, fields)\n--\n\nMessages of these classes and of these fields, of which `pack` told; None where that is not to be told "
     "here."},
    {0}};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0}};

/* No m_traverse: the registered classes live as long as the interpreter. */
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "native", .m_size = sizeof(State),
                                 .m_methods = methods,  .m_slots = slots,   .m_free = release};

PyMODINIT_FUNC PyInit_native(void) { return PyModuleDef_Init(&definition); }
