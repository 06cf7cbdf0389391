/* Frames and version tables, compiled: what redis_saver/_storage/framing.py and version_table.py do. Each is done once a checkpoint, between others'
 * code: the processor has none of it at hand, and what counts is how much there is to fetch. Of C that is a fraction.
 *
 * Optional. Where it could not be built, Python does the same; where something is not what this file knows (another type, a version of another
 * form, many channels), the functions answer None, and Python goes on.
 *
 * The interpreter's lock is never given up, and no other code is called. Python's garbage collector may run some where something is allocated that it
 * knows of (on 3.10 and 3.11), so that is done last, when nothing is borrowed any more from what others can change.
 *
 * The limited API from Python 3.10 on: what is built for one version serves all later ones. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(PYPY_VERSION) || defined(Py_GIL_DISABLED)
#error "relies on CPython's lock: Python does this here"
#endif

/* NULL where an exception is to be raised, None where Python is to go on: it says what is wrong. */
static PyObject *left(void) {
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* -- frames */

enum { LENGTH = 20 }; /* the most characters of a length with its colon */

/* Writes `<length>:`, and returns its size. */
static Py_ssize_t write_length(char *to, size_t length) {
    char digits[LENGTH];
    Py_ssize_t count = 0, at = 0;
    do digits[count++] = (char)('0' + length % 10);
    while (length /= 10);
    while (count) to[at++] = digits[--count];
    to[at++] = ':';
    return at;
}

/* The frames of the byte strings in a tuple; NULL where one is none. */
static PyObject *packed(PyObject *parts) {
    Py_ssize_t size = 0, each, count = PyTuple_Size(parts);
    char *to, *from, length[LENGTH + 1];
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(parts, i), &from, &each)) return NULL;
        size += write_length(length, (size_t)each) + each;
    }
    PyObject *frames = PyBytes_FromStringAndSize(NULL, size);
    if (!frames) return NULL;
    PyBytes_AsStringAndSize(frames, &to, &size);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyBytes_AsStringAndSize(PyTuple_GetItem(parts, i), &from, &each);
        to += write_length(to, (size_t)each);
        memcpy(to, from, (size_t)each);
        to += each;
    }
    return frames;
}

static PyObject *pack(PyObject *Py_UNUSED(module), PyObject *parts) {
    PyObject *frames = PyTuple_CheckExact(parts) ? packed(parts) : NULL;
    return frames ? frames : left();
}

/* The length of the frame that begins here, and in `at` where its bytes begin. -1 where there is none. */
static Py_ssize_t read_length(const char *bytes, Py_ssize_t size, Py_ssize_t *at) {
    Py_ssize_t length = 0, begin = *at;
    for (Py_ssize_t i = begin; i < size && i < begin + LENGTH; i++) {
        if (bytes[i] == ':' && i > begin) {
            *at = i + 1;
            return length <= size - *at ? length : -1;
        }
        if (bytes[i] < '0' || bytes[i] > '9' || length > (PY_SSIZE_T_MAX - 9) / 10) return -1;
        length = 10 * length + (bytes[i] - '0');
    }
    return -1;
}

static PyObject *take(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *whole;
    Py_ssize_t at, count, size;
    char *bytes;
    if (!PyArg_ParseTuple(args, "O!nn:take", &PyBytes_Type, &whole, &at, &count) || PyBytes_AsStringAndSize(whole, &bytes, &size)) return left();
    PyObject *parts = PyList_New(0);
    while (parts && (count < 0 ? at < size : count-- > 0)) {
        Py_ssize_t length = at < 0 ? -1 : read_length(bytes, size, &at);
        PyObject *part = length < 0 ? NULL : PyBytes_FromStringAndSize(bytes + at, length);
        if (!part || PyList_Append(parts, part)) Py_CLEAR(parts);
        Py_XDECREF(part);
        at += length;
    }
    return parts ? Py_BuildValue("(Nn)", parts, at) : left();
}

/* -- version tables */

enum { NAMES = 64, TOKENS = 64, TOKEN = 13, SEEN = 512 };

typedef struct {
    PyObject *names[NAMES]; /* those of channels first; references of its own */
    Py_hash_t hashes[NAMES];
    int count, channels;
    char tokens[TOKENS][TOKEN], slots[NAMES]; /* the versions, each once; and which of them each channel has */
    int token_count;
    char present[NAMES], flags[NAMES];
    unsigned char seen[SEEN];
    int seen_count;
} Table;

/* The number of a name, which gets one if it has none. -1 where that is to be left to Python. */
static int number_of(Table *table, PyObject *name) {
    if (!PyUnicode_CheckExact(name)) return -1;
    for (int i = 0; i < table->count; i++)
        if (table->names[i] == name) return i;
    Py_hash_t hash = PyObject_Hash(name);
    for (int i = 0; i < table->count; i++)
        if (table->hashes[i] == hash && !PyUnicode_Compare(table->names[i], name)) return i;
    if (table->count == NAMES || hash == -1) return -1;
    table->hashes[table->count] = hash;
    table->names[table->count] = Py_NewRef(name);
    return table->count++;
}

/* A number in decimal digits, below 2^64. Returns 0, or -1 where it is none. */
static int read_digits(const char *digits, int count, uint64_t *number) {
    for (*number = 0; count--; digits++) {
        if (*digits < '0' || *digits > '9') return -1;
        uint64_t digit = (uint64_t)(*digits - '0');
        if (*number > (UINT64_MAX - digit) / 10) return -1;
        *number = 10 * *number + digit;
    }
    return 0;
}

/* The slot of a version: its position among the tokens. -1 where it is not as our savers make them (names.py). */
static int slot_of(Table *table, PyObject *version) {
    Py_ssize_t size;
    uint64_t counter, random;
    char token[TOKEN] = "v";
    const char *text = PyUnicode_CheckExact(version) ? PyUnicode_AsUTF8AndSize(version, &size) : NULL;
    if (!text || size != 53 || text[32] != '.' || read_digits(text, 32, &counter) || read_digits(text + 33, 20, &random)) return -1;
    if (counter > UINT32_MAX) return -1;
    for (int i = 4; i; i--, counter >>= 8) token[i] = (char)(counter & 255);
    for (int i = 12; i > 4; i--, random >>= 8) token[i] = (char)(random & 255);
    int slot = table->token_count;
    while (slot--)
        if (!memcmp(table->tokens[slot], token, TOKEN)) return slot;
    if (table->token_count == TOKENS) return -1;
    memcpy(table->tokens[table->token_count], token, TOKEN);
    return table->token_count++;
}

static int add_seen(Table *table, Py_ssize_t number) {
    if (number < 0 || number > 254 || table->seen_count == SEEN) return -1;
    table->seen[table->seen_count++] = (unsigned char)number;
    return 0;
}

/* The channels, their versions, and what is told of their values. Counts in `written` those that are new. */
static int add_channels(Table *table, PyObject *versions, PyObject *values, PyObject *new, Py_ssize_t *written) {
    PyObject *channel, *version;
    Py_ssize_t position = 0;
    while (PyDict_Next(versions, &position, &channel, &version)) {
        int number = number_of(table, channel), slot = slot_of(table, version);
        if (number < 0 || slot < 0) return -1;
        PyObject *newest = PyDict_GetItemWithError(new, channel);
        if (newest && !PyUnicode_CheckExact(newest)) return -1;
        int is_new = newest && !PyUnicode_Compare(newest, version), is_there = PyDict_GetItemWithError(values, channel) != NULL;
        table->slots[number] = (char)slot;
        table->present[number] = is_there ? '1' : '0';
        table->flags[number] = is_there ? (is_new ? 'v' : 'u') : is_new ? 'e' : 'x';
        *written += is_new;
    }
    table->channels = table->count;
    return PyErr_Occurred() ? -1 : 0;
}

static int add_versions_seen(Table *table, PyObject *seen) {
    PyObject *node, *of, *channel, *version;
    Py_ssize_t position = 0;
    while (PyDict_Next(seen, &position, &node, &of)) {
        Py_ssize_t each = 0;
        if (!PyDict_CheckExact(of) || add_seen(table, number_of(table, node)) || add_seen(table, PyDict_Size(of))) return -1;
        while (PyDict_Next(of, &each, &channel, &version))
            if (add_seen(table, number_of(table, channel)) || add_seen(table, slot_of(table, version))) return -1;
    }
    return 0;
}

/* A channel's field: the prefix, its name, a NUL, the version. NULL where the name has to be escaped. */
static PyObject *field_of(const Table *table, int number, const char *prefix, Py_ssize_t length) {
    Py_ssize_t size, whole;
    char *to;
    const char *name = PyUnicode_AsUTF8AndSize(table->names[number], &size);
    if (!name || memchr(name, 0, (size_t)size) || memchr(name, 1, (size_t)size)) return NULL;
    PyObject *field = PyBytes_FromStringAndSize(NULL, length + size + 1 + TOKEN);
    if (!field) return NULL;
    PyBytes_AsStringAndSize(field, &to, &whole);
    memcpy(to, prefix, (size_t)length);
    memcpy(to + length, name, (size_t)size);
    to[length + size] = 0;
    memcpy(to + length + size + 1, table->tokens[(int)table->slots[number]], TOKEN);
    return field;
}

/* The result: names, fields, slots, tokens, seen, which channels have a value, flags, how many channels are new. */
static PyObject *described(const Table *table, const char *prefix, Py_ssize_t length, Py_ssize_t written) {
    char slots[2 * NAMES], tokens[TOKENS * (TOKEN + 3)], *to = tokens;
    unsigned char seen[SEEN + 1] = "~";
    PyObject *fields[NAMES];
    for (int i = 0; i < table->channels; i++) {
        if (!(fields[i] = field_of(table, i, prefix, length))) {
            while (i--) Py_DECREF(fields[i]);
            return NULL;
        }
        slots[2 * i] = 0;
        slots[2 * i + 1] = table->slots[i];
    }
    for (int i = 0; i < table->token_count; i++) {
        memcpy(to, "13:", 3);
        memcpy(to + 3, table->tokens[i], TOKEN);
        to += 3 + TOKEN;
    }
    memcpy(seen + 1, table->seen, (size_t)table->seen_count);
    PyObject *names = PyTuple_New(table->count), *all = PyTuple_New(table->channels);
    for (int i = 0; names && i < table->count; i++) PyTuple_SetItem(names, i, Py_NewRef(table->names[i]));
    for (int i = 0; i < table->channels; i++) {
        if (all) PyTuple_SetItem(all, i, fields[i]);
        else Py_DECREF(fields[i]);
    }
    if (!names || !all) {
        Py_XDECREF(names);
        Py_XDECREF(all);
        return NULL;
    }
    return Py_BuildValue("(NNy#y#y#y#y#n)", names, all, slots, (Py_ssize_t)(2 * table->channels), tokens, (Py_ssize_t)(to - tokens), seen,
                         (Py_ssize_t)(1 + table->seen_count), table->present, (Py_ssize_t)table->channels, table->flags,
                         (Py_ssize_t)table->channels, written);
}

static PyObject *table(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *versions, *seen, *values, *new;
    const char *prefix;
    Py_ssize_t length, written = 0;
    Table table = {.count = 0};
    if (!PyArg_ParseTuple(args, "O!O!O!O!y#:table", &PyDict_Type, &versions, &PyDict_Type, &seen, &PyDict_Type, &values, &PyDict_Type, &new,
                          &prefix, &length))
        return left();
    int is_known = !add_channels(&table, versions, values, new, &written) && !add_versions_seen(&table, seen);
    PyObject *found = is_known ? described(&table, prefix, length, written) : NULL;
    for (int i = 0; i < table.count; i++) Py_DECREF(table.names[i]);
    return found ? found : left();
}

static PyMethodDef methods[] = {
    {"pack", pack, METH_O, "pack(parts)\n--\n\nThe frames of a tuple of byte strings."},
    {"take", take, METH_VARARGS,
     "take(packed, position, count)\n--\n\nThe byte strings of so many frames (all, if negative) from a position on, and the position behind "
     "them."},
    {"table", table, METH_VARARGS,
     "table(versions, seen, values, new_versions, prefix)\n--\n\nWhat `redis_saver._storage.version_table` makes of them."},
    {0}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "native", .m_methods = methods};

PyMODINIT_FUNC PyInit_native(void) { return PyModuleDef_Init(&definition); }
