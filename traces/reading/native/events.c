/* Blocks of trace events -> rows of integers, for the common case; whatever else is left to the Python reader.
 *
 * `EventScanner.scan(buffer, start, stop, exact)` reads a run of events separated by commas. It takes all of them or
 * none: a block with anything unusual changes nothing and gives None, and `opreplay.traces.reading.decoding` then reads
 * it. Rows gather
 * until `take()` hands them over.
 */
#define PY_SSIZE_T_CLEAN
#include "record.h"

/* Changes with the columns of any kind and with what is left to Python, so that blocks.py leaves a stale build alone. */
#define ROW_FORMAT 3
#define MAX_CATEGORIES 256
#define MAX_WAITS 16

static const int COLUMNS[KINDS] = {[OP] = 7, [KERNEL] = 9, [LAUNCH] = 4, [ARROW] = 4, [FLOW] = 4, [NOTE] = 4, [PLACE] = 6};

typedef struct {
    int64_t *data;
    size_t rows, capacity;
} Table;

/* Tracks by the texts of process and thread; the last one is asked for most often. */
typedef struct {
    Names names;
    Span last_pid, last_tid;
    int64_t last;
} Tracks;

typedef struct {
    PyObject_HEAD
    Names signatures, kernel_names, note_names;
    Tracks tracks, arrow_tracks;
    Category categories[MAX_CATEGORIES];
    PyObject *category_texts; /* keeps the texts alive */
    size_t n_categories;
    int64_t counts[MAX_CATEGORIES + 2], block_counts[MAX_CATEGORIES + 2]; /* the last: without a category, and tasks */
    Wait waits[MAX_WAITS];
    PyObject *wait_texts;
    size_t n_waits;
    int64_t task_category;
    Layouts layouts;
    Record *records;
    size_t n_records, record_capacity;
    Table tables[KINDS];
    int uncorrelated, block_uncorrelated, busy;
    int places; /* every event is a PLACE */
    uint64_t seed;
} EventScanner;

static int grow_records(EventScanner *self)
{
    size_t capacity = self->record_capacity ? 2 * self->record_capacity : 1024;
    Record *records = realloc(self->records, capacity * sizeof(Record));
    if (!records)
        return -1;
    self->records = records;
    self->record_capacity = capacity;
    return 0;
}

/* Read all events of the text, which begins in `buffer`, into `records`; the number of events, -1 for the Python
 * reader, -2 out of memory. */
static int64_t read_block(EventScanner *self, Text buffer, Text p, Text end, int exact)
{
    Span fields[EVENT_FIELDS + ARGUMENTS] = {{0}};
    int64_t events = 0;
    const Category *last = NULL;
    self->n_records = 0;
    self->block_uncorrelated = 0;
    memset(self->block_counts, 0, sizeof self->block_counts);
    p = skip_space(p, end);
    for (;;) {
        Text start = p;
        if (!(p = read_event(&self->layouts, p, end, fields)))
            return -1;
        Span cat = fields[CAT];
        if (self->n_records == self->record_capacity && grow_records(self))
            return -2;
        Record *record = &self->records[self->n_records];
        const Category *category = NULL;
        int kept = 0;
        if (cat.size) {
            if (!last || cat.size != last->size + 2 || memcmp(cat.at + 1, last->text, last->size) || *cat.at != '"')
                last = find_category(cat, self->categories, self->n_categories);
            category = last;
            if (!category && !(self->places && is_plain(cat)))
                return -1;
        }
        if (self->places) {
            kept = make_place(category, fields, p, exact, record);
            record->from = start - buffer, record->until = p - buffer;
        } else if (category) {
            kept = make_record(category, fields, exact, record);
        } else if (is_complete(fields[PH]) && fields[ARGS].size) {
            kept = make_task(fields, p, self->waits, self->n_waits, self->task_category, exact, record);
        }
        int64_t *count = &self->block_counts[category ? (size_t)(category - self->categories)
                                                      : self->n_categories + (kept > 0)];
        if (kept < 0)
            return -1;
        self->n_records += (size_t)kept;
        if (kept && record->kind == KERNEL && record->end)
            self->block_uncorrelated = 1;
        ++*count;
        events++;
        p = skip_space(p, end);
        if (p == end)
            return events;
        if (*p != ',')
            return -1;
        p = skip_space(p + 1, end);
    }
}

static int64_t *new_row(EventScanner *self, enum Kind kind)
{
    Table *table = &self->tables[kind];
    if (table->rows == table->capacity) {
        size_t capacity = table->capacity ? 2 * table->capacity : 4096;
        int64_t *data = PyMem_Realloc(table->data, capacity * (size_t)COLUMNS[kind] * sizeof(int64_t));
        if (!data) {
            PyErr_NoMemory();
            return NULL;
        }
        table->data = data;
        table->capacity = capacity;
    }
    return table->data + table->rows++ * (size_t)COLUMNS[kind];
}

static int64_t track_of(Tracks *tracks, uint64_t seed, const Record *r)
{
    if (tracks->last_pid.size == r->pid.size && tracks->last_tid.size == r->tid.size &&
        !memcmp(tracks->last_pid.at, r->pid.at, r->pid.size) && !memcmp(tracks->last_tid.at, r->tid.at, r->tid.size))
        return tracks->last;
    Span parts[2] = {r->pid, r->tid};
    int64_t track = names_index(&tracks->names, seed, parts, 2);
    tracks->last_pid = r->pid, tracks->last_tid = r->tid, tracks->last = track;
    return track;
}

static int add_row(EventScanner *self, const Record *r)
{
    int64_t name = 0, track = track_of(r->kind == ARROW ? &self->arrow_tracks : &self->tracks, self->seed, r);
    if (track < 0)
        return -1;
    if (r->kind == OP) {
        Span parts[5] = {r->name, r->dims, r->types, r->strides, r->concrete};
        name = names_index(&self->signatures, self->seed, parts, 5);
    } else if (r->kind == KERNEL) {
        name = names_index(&self->kernel_names, self->seed, &r->name, 1);
    } else if (r->kind == NOTE) {
        name = names_index(&self->note_names, self->seed, &r->name, 1);
    }
    int64_t *row = name < 0 ? NULL : new_row(self, r->kind);
    if (!row)
        return -1;
    switch (r->kind) {
    case OP:
        row[0] = name, row[1] = track, row[2] = r->start, row[3] = r->dur, row[4] = r->ext, row[5] = r->rf;
        row[6] = r->seq;
        break;
    case KERNEL:
        row[0] = name, row[1] = r->category, row[2] = track, row[3] = r->start, row[4] = r->dur;
        row[5] = r->device, row[6] = r->stream, row[7] = r->ext, row[8] = r->corr;
        break;
    case LAUNCH:
        row[0] = track, row[1] = r->start, row[2] = r->corr, row[3] = r->category;
        break;
    case ARROW:
    case FLOW:
        row[0] = track, row[1] = r->start, row[2] = r->id, row[3] = r->end;
        break;
    case PLACE:
        row[0] = track, row[1] = r->start, row[2] = r->category, row[3] = r->id, row[4] = r->from, row[5] = r->until;
        break;
    default:
        row[0] = name, row[1] = track, row[2] = r->start, row[3] = r->dur;
    }
    return 0;
}

static PyObject *scan(EventScanner *self, PyObject *args)
{
    Py_buffer buffer;
    Py_ssize_t start, stop;
    int64_t events;
    int exact;
    if (!PyArg_ParseTuple(args, "y*nnp:scan", &buffer, &start, &stop, &exact))
        return NULL;
    if (start < 0 || stop < start || stop > buffer.len || self->busy) {
        PyBuffer_Release(&buffer);
        PyErr_SetString(PyExc_ValueError, self->busy ? "the scanner is in use" : "start and stop are no range in it");
        return NULL;
    }
    self->busy = 1;
    Py_BEGIN_ALLOW_THREADS
    events = read_block(self, buffer.buf, (Text)buffer.buf + start, (Text)buffer.buf + stop, exact);
    Py_END_ALLOW_THREADS
    int failed = events == -2;
    if (failed)
        PyErr_NoMemory();
    self->tracks.last_pid.size = self->arrow_tracks.last_pid.size = 0; /* they point into the text of an earlier call */
    for (size_t i = 0; events > 0 && i < self->n_records && !failed; i++)
        failed = add_row(self, &self->records[i]) < 0;
    PyBuffer_Release(&buffer);
    self->busy = 0;
    if (failed)
        return NULL;
    if (events < 0)
        Py_RETURN_NONE;
    for (size_t i = 0; i < self->n_categories + 2; i++)
        self->counts[i] += self->block_counts[i];
    self->uncorrelated |= self->block_uncorrelated;
    int64_t bare = self->block_counts[self->n_categories] + self->block_counts[self->n_categories + 1];
    return Py_BuildValue("LL", (long long)events, (long long)bare);
}

/* The rows of a table as bytes, column after column: what follows looks at whole columns. */
static PyObject *columns_of(const Table *table, int columns)
{
    size_t rows = table->rows, width = (size_t)columns;
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(rows * width * sizeof(int64_t)));
    if (!made || !rows)
        return made;
    char *out = PyBytes_AS_STRING(made);
    for (size_t column = 0; column < width; column++)
        for (size_t row = 0; row < rows; row++, out += sizeof(int64_t))
            memcpy(out, table->data + row * width + column, sizeof(int64_t));
    return made;
}

/* ([events of each category, then of none, then tasks], [columns of each kind as bytes], whether a kernel is uncorrelated) */
static PyObject *take(EventScanner *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *counts = PyList_New((Py_ssize_t)self->n_categories + 2), *tables = PyList_New(KINDS);
    for (size_t i = 0; counts && tables && i < self->n_categories + 2; i++) {
        PyObject *count = PyLong_FromLongLong(self->counts[i]);
        if (!count)
            goto fail;
        PyList_SET_ITEM(counts, (Py_ssize_t)i, count);
    }
    for (int kind = 0; counts && tables && kind < KINDS; kind++) {
        PyObject *columns = columns_of(&self->tables[kind], COLUMNS[kind]);
        if (!columns)
            goto fail;
        PyList_SET_ITEM(tables, kind, columns);
    }
    if (!counts || !tables)
        goto fail;
    memset(self->counts, 0, sizeof self->counts);
    for (int kind = 0; kind < KINDS; kind++)
        self->tables[kind].rows = 0;
    return Py_BuildValue("NNN", counts, tables, PyBool_FromLong(self->uncorrelated));
fail:
    Py_XDECREF(counts);
    Py_XDECREF(tables);
    return NULL;
}

static PyObject *pending_rows(EventScanner *self, void *Py_UNUSED(closure))
{
    size_t rows = 0;
    for (int kind = 0; kind < KINDS; kind++)
        rows += self->tables[kind].rows;
    return PyLong_FromSize_t(rows);
}

static int set_categories(EventScanner *self, PyObject *categories)
{
    Py_ssize_t n = PyTuple_GET_SIZE(categories);
    if (n > MAX_CATEGORIES) {
        PyErr_Format(PyExc_ValueError, "%zd categories, at most %d are possible", n, MAX_CATEGORIES);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *text;
        int kind, index;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(categories, i), "O!ii", &PyBytes_Type, &text, &kind, &index))
            return -1;
        if (kind < 0 || kind >= KINDS) {
            PyErr_Format(PyExc_ValueError, "%d is no kind of event", kind);
            return -1;
        }
        self->categories[i] = (Category){PyBytes_AS_STRING(text), (size_t)PyBytes_GET_SIZE(text), kind, index};
    }
    self->n_categories = (size_t)n;
    self->category_texts = Py_NewRef(categories);
    return 0;
}

static int set_waits(EventScanner *self, PyObject *waits)
{
    Py_ssize_t n = PyTuple_GET_SIZE(waits);
    if (n > MAX_WAITS) {
        PyErr_Format(PyExc_ValueError, "%zd types of tasks that wait, at most %d are possible", n, MAX_WAITS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *text = PyTuple_GET_ITEM(waits, i);
        if (!PyBytes_Check(text)) {
            PyErr_SetString(PyExc_TypeError, "a type of task that waits is no bytes");
            return -1;
        }
        self->waits[i] = (Wait){PyBytes_AS_STRING(text), (size_t)PyBytes_GET_SIZE(text)};
    }
    self->n_waits = (size_t)n;
    self->wait_texts = Py_NewRef(waits);
    return 0;
}

static void clear(EventScanner *self)
{
    names_clear(&self->signatures);
    names_clear(&self->kernel_names);
    names_clear(&self->note_names);
    names_clear(&self->tracks.names);
    names_clear(&self->arrow_tracks.names);
    Py_CLEAR(self->category_texts);
    Py_CLEAR(self->wait_texts);
    self->n_categories = 0;
}

static int init(EventScanner *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"categories", "waits", "task_category", "signatures", "kernel_names",
                            "note_names", "tracks", "arrow_tracks", "seed", "places", NULL};
    PyObject *categories, *waits, *signatures, *kernel_names, *note_names, *tracks, *arrow_tracks;
    unsigned long long seed;
    int task_category;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!iOOOOOK|p", names, &PyTuple_Type, &categories, &PyTuple_Type,
                                     &waits, &task_category, &signatures, &kernel_names, &note_names, &tracks,
                                     &arrow_tracks, &seed, &self->places))
        return -1;
    if (self->category_texts) {
        PyErr_SetString(PyExc_ValueError, "a scanner is set up once");
        return -1;
    }
    self->signatures.ask = Py_NewRef(signatures);
    self->kernel_names.ask = Py_NewRef(kernel_names);
    self->note_names.ask = Py_NewRef(note_names);
    self->tracks.names.ask = Py_NewRef(tracks);
    self->arrow_tracks.names.ask = Py_NewRef(arrow_tracks);
    self->seed = seed;
    if (!(self->layouts.nodes = PyMem_Calloc(MAX_NODES, sizeof(Node)))) {
        PyErr_NoMemory();
        return -1;
    }
    self->layouts.used = 1;
    self->task_category = task_category;
    return set_waits(self, waits) || set_categories(self, categories) ? -1 : 0;
}

static void dealloc(EventScanner *self)
{
    clear(self);
    free(self->records);
    PyMem_Free(self->layouts.nodes);
    for (int kind = 0; kind < KINDS; kind++)
        PyMem_Free(self->tables[kind].data);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef methods[] = {
    {"scan", (PyCFunction)scan, METH_VARARGS, "Read the events in buffer[start:stop]; their number and how many have no category, or None."},
    {"take", (PyCFunction)take, METH_NOARGS, "Counts, and columns of the rows, since the last call."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"pending_rows", (getter)pending_rows, NULL, "Rows that take() would hand over.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject EventScannerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "opreplay.traces.reading.native._events.EventScanner",
    .tp_doc = "Reads blocks of trace events into rows of integers.",
    .tp_basicsize = sizeof(EventScanner),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)init,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = methods,
    .tp_getset = attributes,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "opreplay.traces.reading.native._events",
    .m_doc = "The compiled half of the trace reader.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__events(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made && (PyModule_AddType(made, &EventScannerType) < 0 || PyModule_AddIntConstant(made, "ROW_FORMAT", ROW_FORMAT) < 0))
        Py_CLEAR(made);
    return made;
}
