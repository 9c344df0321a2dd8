/* Entries of a request in one pass: JSON or NDJSON -> bodies -> stored texts with IDs, no object for each.

   Knows: JSON objects whose values are strings, numbers or booleans, and the stored form (engine/entries.py).
   Must never know: streams, sockets, the words of a refusal. What it cannot prove to be plain and within the
   limits it hands back (None): the Python way reads that, and finds the words.

   Why in C: of a batch of 1,000 entries, half of the processor's time went into making objects of fields and
   texts of entries that are joined again at once (docs/decisions/rows-in-c.md has the figures).

   Bounds. A reader never looks at `end` or beyond, and writes at most 13 bytes for each colon that it reads, one
   for each other byte, and 64:
     a string    never grows: each escape becomes at most as long as it was
     a value     gets two quotation marks where it was a number or a word; a colon stands before it
     an entry    gets `,"fields":` and `}`, 11 bytes; it has a value
   Bodies are limited to 64 MiB, and their shortest line, `{"":1}`, becomes 19 bytes: all offsets fit 32 bits. Texts
   with IDs are checked for it. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* the same file loads in Python 3.11 and later */
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BODY_BYTES_MAX (64 << 20)
#define NAMES_MAX 64               /* each name is compared with all before it */
#define UNLOCKED_BYTES_MIN 65536   /* other threads go on while more than that is read */
#define INT_DIGITS_MAX 18          /* any of these fit 64 bits */
#define FRACTION_DIGITS_MAX 30     /* fits a double */

/* ---- reading: functions return 0 for "not plain" ---------------------------------------------------------- */

typedef struct {
    const uint8_t *at, *end;
    uint8_t *out;
    Py_ssize_t fields_max;
} Reader;

static inline int is_next(const Reader *r, char wanted) { return r->at < r->end && *r->at == (uint8_t)wanted; }

static inline int skip(Reader *r, char wanted) {
    if (!is_next(r, wanted)) return 0;
    r->at++;
    return 1;
}

static inline void skip_blanks(Reader *r) {
    while (is_next(r, ' ') || is_next(r, '\t')) r->at++;
}

static inline void put(Reader *r, const void *bytes, size_t size) {
    memcpy(r->out, bytes, size);
    r->out += size;
}

static int read_hex(Reader *r, uint32_t *code) {
    if (r->end - r->at < 4) return 0;
    *code = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = *r->at++, low = c | 0x20;
        if (c >= '0' && c <= '9') *code = *code << 4 | (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f') *code = *code << 4 | (uint32_t)(low - 'a' + 10);
        else return 0;
    }
    return 1;
}

/* Behind `\u`: a character, of two halves where it is beyond 16 bits. */
static int read_code(Reader *r, uint32_t *code) {
    uint32_t low;
    if (!read_hex(r, code)) return 0;
    if (*code < 0xd800 || *code > 0xdfff) return 1;
    if (*code > 0xdbff || !skip(r, '\\') || !skip(r, 'u') || !read_hex(r, &low)) return 0;
    if (low < 0xdc00 || low > 0xdfff) return 0;
    *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    return 1;
}

static void put_utf8(Reader *r, uint32_t code) {
    static const uint8_t leads[] = {0, 0xc0, 0xe0, 0xf0};
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *r->out++ = (uint8_t)(leads[more] | code >> 6 * more);
    while (more--) *r->out++ = (uint8_t)(0x80 | (code >> 6 * more & 0x3f));
}

/* Behind a backslash. Written in the one form that an encoder gives it. */
static int read_escape(Reader *r) {
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t", digits[] = "0123456789abcdef";
    if (r->at >= r->end) return 0;
    uint8_t letter = *r->at++;
    uint32_t code;
    if (letter == 'u') {
        if (!read_code(r, &code)) return 0;
    } else {
        const char *found = letter ? strchr(letters, letter) : NULL;
        if (found == NULL) return 0;
        code = (uint8_t)meant[found - letters];
    }
    if (code >= 0x20 && code != '"' && code != '\\') {
        put_utf8(r, code);
        return 1;
    }
    const char *found = code && code != '/' ? strchr(meant, (int)code) : NULL;
    *r->out++ = '\\';
    if (found != NULL) {
        *r->out++ = (uint8_t)letters[found - meant];
    } else {
        put(r, "u00", 3);
        *r->out++ = (uint8_t)digits[code >> 4];
        *r->out++ = (uint8_t)digits[code & 15];
    }
    return 1;
}

/* One character beyond ASCII, well-formed as RFC 3629 has it. */
static int read_multibyte(Reader *r) {
    uint8_t first = r->at[0], second_min = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    uint8_t second_max = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    Py_ssize_t size;
    if (first >= 0xc2 && first <= 0xdf) size = 2;
    else if (first >= 0xe0 && first <= 0xef) size = 3;
    else if (first >= 0xf0 && first <= 0xf4) size = 4;
    else return 0;
    if (r->end - r->at < size || r->at[1] < second_min || r->at[1] > second_max) return 0;
    for (Py_ssize_t i = 2; i < size; i++)
        if ((r->at[i] & 0xc0) != 0x80) return 0;
    put(r, r->at, (size_t)size);
    r->at += size;
    return 1;
}

static inline int is_plain(uint8_t c) { return c >= 0x20 && c < 0x80 && c != '"' && c != '\\'; }

/* Behind the quotation mark that begins it. Writes all of it but that. */
static int read_string(Reader *r) {
    for (;;) {
        const uint8_t *start = r->at;
        while (r->at < r->end && is_plain(*r->at)) r->at++;
        put(r, start, (size_t)(r->at - start));
        if (r->at == r->end) return 0;
        if (skip(r, '"')) {
            *r->out++ = '"';
            return 1;
        }
        if (skip(r, '\\')) {
            if (!read_escape(r)) return 0;
        } else if (*r->at < 0x80 || !read_multibyte(r)) return 0;
    }
}

static Py_ssize_t skip_digits(Reader *r) {
    const uint8_t *start = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
    return r->at - start;
}

/* A number that surely fits what numbers may be; its text is kept. */
static int read_number(Reader *r) {
    const uint8_t *start = r->at;
    skip(r, '-');
    int leading_zero = is_next(r, '0');
    Py_ssize_t digits = skip_digits(r);
    if (digits == 0 || digits > INT_DIGITS_MAX || (leading_zero && digits > 1)) return 0;
    if (skip(r, '.')) {
        digits = skip_digits(r);
        if (digits == 0 || digits > FRACTION_DIGITS_MAX) return 0;
    }
    if (is_next(r, 'e') || is_next(r, 'E')) return 0;
    put(r, start, (size_t)(r->at - start));
    return 1;
}

static int read_word(Reader *r, const char *word, size_t size) {
    if ((size_t)(r->end - r->at) < size || memcmp(r->at, word, size) != 0) return 0;
    r->at += size;
    put(r, word, size);
    return 1;
}

static int read_value(Reader *r) {
    *r->out++ = '"';
    if (skip(r, '"')) return read_string(r);
    int found = is_next(r, 't')   ? read_word(r, "true", 4)
                : is_next(r, 'f') ? read_word(r, "false", 5)
                                  : read_number(r);
    *r->out++ = '"';
    return found;
}

typedef struct { const uint8_t *at; size_t size; } Name;

static int is_repeated(const Name *names, Py_ssize_t count) {
    const Name *last = names + count;
    for (const Name *one = names; one < last; one++)
        if (one->size == last->size && memcmp(one->at, last->at, last->size) == 0) return 1;
    return 0;
}

/* Fields, behind their brace. Returns 2 behind `"fields":{`, if that comes first and may: it is an envelope. */
static int read_fields(Reader *r, int may_be_envelope) {
    Name names[NAMES_MAX];
    uint8_t *start = r->out;
    *r->out++ = '{';
    for (Py_ssize_t count = 0;; count++) {
        skip_blanks(r);
        if (count == NAMES_MAX || count == r->fields_max || !skip(r, '"')) return 0;
        if (count) *r->out++ = ',';
        *r->out++ = '"';
        names[count].at = r->out;
        if (!read_string(r)) return 0;
        names[count].size = (size_t)(r->out - names[count].at);
        if (is_repeated(names, count)) return 0;
        skip_blanks(r);
        if (!skip(r, ':')) return 0;
        skip_blanks(r);
        if (may_be_envelope && count == 0 && is_next(r, '{')) {
            int is_envelope = names[0].size == 7 && memcmp(names[0].at, "fields\"", 7) == 0;
            r->at++;
            r->out = start;
            return is_envelope ? 2 : 0;
        }
        *r->out++ = ':';
        if (!read_value(r)) return 0;
        skip_blanks(r);
        if (skip(r, '}')) break;
        if (!skip(r, ',')) return 0;
    }
    *r->out++ = '}';
    return 1;
}

/* One entry: an envelope of nothing but fields, or its fields alone (a row). Its body is written. */
static int read_entry(Reader *r, int may_be_row) {
    put(r, ",\"fields\":", 10);
    skip_blanks(r);
    if (!skip(r, '{')) return 0;
    int found = read_fields(r, 1);
    if (found == 2) {
        if (!read_fields(r, 0)) return 0;
        skip_blanks(r);
        if (!skip(r, '}')) return 0;
    } else if (!found || !may_be_row) return 0;
    *r->out++ = '}';
    skip_blanks(r);
    return 1;
}

/* ---- many entries ------------------------------------------------------------------------------------------ */

typedef enum { LINES, LIST, BATCH, ONE } Form;

typedef struct { uint32_t *at; Py_ssize_t count, room; } Ends; /* where each text ends */

static int add_end(Ends *ends, size_t end) { /* -1: no memory */
    if (ends->count == ends->room) {
        Py_ssize_t room = ends->room ? 2 * ends->room : 16;
        uint32_t *more = realloc(ends->at, (size_t)room * sizeof *more);
        if (more == NULL) return -1;
        ends->at = more;
        ends->room = room;
    }
    ends->at[ends->count++] = (uint32_t)end;
    return 1;
}

static int read_start(Reader *r, Form form) {
    skip_blanks(r);
    if (form == BATCH) {
        static const char member[] = "\"entries\"";
        if (!skip(r, '{')) return 0;
        skip_blanks(r);
        if ((size_t)(r->end - r->at) < sizeof member - 1 || memcmp(r->at, member, sizeof member - 1) != 0) return 0;
        r->at += sizeof member - 1;
        skip_blanks(r);
        if (!skip(r, ':')) return 0;
        skip_blanks(r);
    }
    return form == ONE || skip(r, '[');
}

/* Behind an entry. Returns 2 if it was the last. */
static int read_end(Reader *r, Form form) {
    if (form == LINES) {
        skip(r, '\r');
        return r->at == r->end ? 2 : skip(r, '\n');
    }
    if (form != ONE) {
        if (skip(r, ',')) return 1;
        if (!skip(r, ']')) return 0;
        skip_blanks(r);
        if (form == BATCH && !skip(r, '}')) return 0;
    }
    skip_blanks(r);
    skip(r, '\r');
    skip(r, '\n');
    return r->at == r->end ? 2 : 0;
}

static void skip_empty_lines(Reader *r) {
    while (is_next(r, '\n') || is_next(r, '\r') || is_next(r, ' ') || is_next(r, '\t')) r->at++;
}

/* 1: all were read; 0: not plain, or beyond a limit; -1: no memory. */
static int read_entries(Reader *r, Form form, Py_ssize_t entries_max, Py_ssize_t bytes_max, Ends *ends) {
    const uint8_t *text = r->out;
    if (form != LINES && !read_start(r, form)) return 0;
    for (int found = 1; found != 2;) {
        if (form == LINES) skip_empty_lines(r);
        if (r->at == r->end) return form == LINES && ends->count > 0;
        const uint8_t *start = r->out;
        if (ends->count == entries_max || !read_entry(r, form == LINES || form == LIST)) return 0;
        if (r->out - start > bytes_max) return 0;
        if (add_end(ends, (size_t)(r->out - text)) < 0) return -1;
        found = read_end(r, form);
        if (!found) return 0;
    }
    return 1;
}

/* ---- texts as Python has them ------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    PyObject *text; /* bytes: all texts, with `gap` bytes between two */
    uint32_t *ends;
    Py_ssize_t count, gap;
} Texts;

static PyTypeObject *texts_type;
static PyObject *texts_new(PyObject *text, uint32_t *ends, Py_ssize_t count, Py_ssize_t gap) { /* takes both */
    Texts *self = text ? PyObject_New(Texts, texts_type) : NULL;
    if (self == NULL) {
        Py_XDECREF(text);
        free(ends);
        return NULL;
    }
    self->text = text;
    self->ends = ends;
    self->count = count;
    self->gap = gap;
    return (PyObject *)self;
}

static void texts_dealloc(Texts *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_DECREF(self->text);
    free(self->ends);
    PyObject_Free(self);
    Py_DECREF(type);
}

static Py_ssize_t start_of(const Texts *self, Py_ssize_t place) {
    return place ? (Py_ssize_t)self->ends[place - 1] + self->gap : 0;
}

static PyObject *cut(const Texts *self, Py_ssize_t start, Py_ssize_t stop) {
    Py_ssize_t from = start_of(self, start);
    return PyBytes_FromStringAndSize(PyBytes_AsString(self->text) + from, self->ends[stop - 1] - from);
}

static Py_ssize_t texts_length(Texts *self) { return self->count; }

static PyObject *texts_item(Texts *self, Py_ssize_t place) {
    if (place >= 0 && place < self->count) return cut(self, place, place + 1);
    PyErr_SetString(PyExc_IndexError, "no such text");
    return NULL;
}

static PyObject *texts_subscript(Texts *self, PyObject *key) {
    Py_ssize_t start, stop, step;
    if (!PySlice_Check(key)) {
        Py_ssize_t place = PyNumber_AsSsize_t(key, PyExc_IndexError);
        if (place == -1 && PyErr_Occurred()) return NULL;
        return texts_item(self, place < 0 ? place + self->count : place);
    }
    if (PySlice_Unpack(key, &start, &stop, &step) < 0) return NULL;
    Py_ssize_t count = PySlice_AdjustIndices(self->count, &start, &stop, step);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *one = cut(self, start + i * step, start + i * step + 1);
        if (one == NULL || PyList_SetItem(list, i, one) < 0) Py_CLEAR(list);
    }
    return list;
}

/* join(start, stop) -> bytes: those texts as they stand together; at least one */
static PyObject *texts_join(Texts *self, PyObject *args) {
    Py_ssize_t start, stop;
    if (!PyArg_ParseTuple(args, "nn", &start, &stop)) return NULL;
    if (start >= 0 && start < stop && stop <= self->count)
        return start == 0 && stop == self->count ? Py_NewRef(self->text) : cut(self, start, stop);
    PyErr_SetString(PyExc_IndexError, "no such texts");
    return NULL;
}

static PyObject *texts_size(Texts *self, void *unused) {
    (void)unused;
    return PyLong_FromSsize_t(PyBytes_Size(self->text) - self->gap * (self->count - 1));
}

static size_t digits_of(uint64_t number) {
    size_t digits = 1;
    while (number /= 10) digits++;
    return digits;
}

static uint8_t *put_number(uint8_t *at, uint64_t number) {
    uint8_t *end = at + digits_of(number), *digit = end;
    do *--digit = (uint8_t)('0' + number % 10);
    while (number /= 10);
    return end;
}

/* encode(ms, sequence) -> Texts: bodies -> stored texts with IDs from there on, commas between them */
static PyObject *texts_encode(Texts *self, PyObject *args) {
    unsigned long long ms, sequence;
    if (!PyArg_ParseTuple(args, "KK", &ms, &sequence)) return NULL;
    uint8_t head[32] = ",{\"id\":\"";
    uint8_t *head_end = put_number(head + 8, ms);
    *head_end++ = '-';
    size_t head_size = (size_t)(head_end - head), count = (size_t)self->count;
    size_t size = (head_size + 1) * count - 1 + (size_t)PyBytes_Size(self->text);
    for (size_t i = 0; i < count; i++) size += digits_of(sequence + i);
    uint32_t *ends = size > UINT32_MAX ? NULL : malloc(count * sizeof *ends);
    PyObject *text = ends ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size) : NULL;
    if (text == NULL) {
        free(ends);
        return PyErr_NoMemory();
    }
    uint8_t *start = (uint8_t *)PyBytes_AsString(text), *out = start;
    const char *bodies = PyBytes_AsString(self->text);
    for (size_t i = 0; i < count; i++) {
        size_t from = (size_t)start_of(self, (Py_ssize_t)i), body_size = self->ends[i] - from, comma = i == 0;
        memcpy(out, head + comma, head_size - comma);
        out = put_number(out + head_size - comma, sequence + i);
        *out++ = '"';
        memcpy(out, bodies + from, body_size);
        out += body_size;
        ends[i] = (uint32_t)(out - start);
    }
    return texts_new(text, ends, self->count, 1);
}

static size_t bound_of(const uint8_t *text, size_t size) {
    size_t colons = 0;
    for (size_t i = 0; i < size; i++) colons += text[i] == ':';
    return size + 13 * colons + 64;
}

/* read(body, form, entries_max, fields_max, entry_bytes_max) -> Texts | None */
static PyObject *rows_read(PyObject *module, PyObject *args) {
    PyObject *body, *text = NULL;
    int form, found = 0;
    Py_ssize_t entries_max, fields_max, bytes_max;
    (void)module;
    if (!PyArg_ParseTuple(args, "Sinnn", &body, &form, &entries_max, &fields_max, &bytes_max)) return NULL;
    Py_ssize_t size = PyBytes_Size(body);
    if (size > BODY_BYTES_MAX) Py_RETURN_NONE;
    const uint8_t *start = (const uint8_t *)PyBytes_AsString(body);
    uint8_t *out = malloc(bound_of(start, (size_t)size));
    if (out == NULL) return PyErr_NoMemory();
    Reader reader = {start, start + size, out, fields_max};
    Ends ends = {NULL, 0, 0};
    if (size < UNLOCKED_BYTES_MIN) {
        found = read_entries(&reader, (Form)form, entries_max, bytes_max, &ends);
    } else {
        Py_BEGIN_ALLOW_THREADS
        found = read_entries(&reader, (Form)form, entries_max, bytes_max, &ends);
        Py_END_ALLOW_THREADS
    }
    if (found > 0) text = PyBytes_FromStringAndSize((char *)out, reader.out - out);
    free(out);
    if (found > 0) return texts_new(text, ends.at, ends.count, 0);
    free(ends.at);
    if (found < 0) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyMethodDef texts_methods[] = {
    {"encode", (PyCFunction)texts_encode, METH_VARARGS, NULL}, {"join", (PyCFunction)texts_join, METH_VARARGS, NULL}, {0}};
static PyGetSetDef texts_members[] = {{"size", (getter)texts_size, NULL, NULL, NULL}, {0}};
static PyType_Slot texts_slots[] = {
    {Py_tp_dealloc, texts_dealloc}, {Py_tp_methods, texts_methods}, {Py_tp_getset, texts_members},
    {Py_sq_length, texts_length},   {Py_sq_item, texts_item},       {Py_mp_length, texts_length},
    {Py_mp_subscript, texts_subscript}, {0}};
static PyType_Spec texts_spec = {
    "engine._rows.Texts", sizeof(Texts), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, texts_slots};
static PyMethodDef functions[] = {{"read", (PyCFunction)rows_read, METH_VARARGS, NULL}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_rows", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__rows(void) {
    texts_type = (PyTypeObject *)PyType_FromSpec(&texts_spec);
    PyObject *module = texts_type ? PyModule_Create(&definition) : NULL;
    if (module == NULL || PyModule_AddObjectRef(module, "Texts", (PyObject *)texts_type) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
