/* One event of a trace: text in, the fields that the tables need out; knows no Python object. */
#ifndef OPREPLAY_RECORD_H
#define OPREPLAY_RECORD_H

#include <math.h>
#include <stdlib.h>

#include "layouts.h"

/* An ARROW is a FLOW that may not be needed; a PLACE is where any event stands. */
enum Kind { SKIPPED, OP, KERNEL, LAUNCH, ARROW, FLOW, NOTE, PLACE, KINDS };

typedef struct {
    const char *text; /* of the category */
    size_t size;
    enum Kind kind;
    int64_t index;
} Category;

typedef struct {
    enum Kind kind;
    int64_t category, start, dur, ext, corr, device, stream, id, end, rf, seq, from, until;
    Span pid, tid, name, dims, types, strides, concrete;
} Record;

/* A number that is written as a text, without its quotes; anything else as it is. */
static inline int unquote(Span *span)
{
    if (span->size < 2 || *span->at != '"')
        return 0;
    span->at++, span->size -= 2;
    return 1;
}

/* An integer, or its text, as columns.to_ids reads it: unsigned ones of 64 bits wrap. `absent` where there is none.
 * 0: not one. */
static int read_id(Span span, int64_t absent, int64_t *out)
{
    uint64_t value = 0;
    *out = absent;
    if (!span.size)
        return 1;
    unquote(&span);
    Text p = span.at, end = span.at + span.size;
    if (p == end)
        return 0;
    int negative = *p == '-';
    p += negative;
    if (end - p < 1 || end - p > (negative ? 18 : 19))
        return 0;
    for (; p < end; p++) {
        if ((unsigned)(*p - '0') > 9)
            return 0;
        value = 10 * value + (uint64_t)(*p - '0');
    }
    *out = negative ? -(int64_t)value : (int64_t)value;
    return 1;
}

#define ROUNDS_ONCE_US (1LL << 41) /* columns._ROUNDS_ONCE_US */
#define EXACT_US (1LL << 43)       /* columns.EXACT_LIMIT_US */
#define MAX_US 9223372036854774LL  /* columns._MAX_US, less what decimals may add */

/* Microseconds, a decimal number or its text, as nanoseconds: exact to three decimals, else rounded as columns.to_ns
 * does. Unless `exact`, 0 for numbers with decimals so large that the Python reader starts to read them exactly: it has
 * to know. */
static int read_time(Span span, int exact, int64_t *out)
{
    exact |= unquote(&span);
    Text p = span.at, end = span.at + span.size;
    int64_t value = 0;
    int negative = p < end && *p == '-';
    p += negative;
    Text digits = p;
    for (; p < end && (unsigned)(*p - '0') < 10; p++) {
        if (p - digits >= 16)
            return 0;
        value = 10 * value + (*p - '0');
    }
    if (p == digits || value > MAX_US)
        return 0;
    int64_t scale = 1000, whole = value;
    if (p < end) {
        if (*p++ != '.' || (!exact && whole >= EXACT_US - 1))
            return 0;
        for (; p < end && scale > 1 && (unsigned)(*p - '0') < 10; p++, scale /= 10)
            value = 10 * value + (*p - '0');
    }
    value *= scale;
    if (p < end) { /* more decimals than nanoseconds, or an exponent */
        char text[48], *stop;
        if (whole >= ROUNDS_ONCE_US || span.size >= sizeof text)
            return 0;
        memcpy(text, span.at, span.size);
        text[span.size] = 0;
        for (; p < end; p++)
            if ((unsigned)(*p - '0') > 9)
                return 0;
        *out = (int64_t)rint(strtod(text, &stop) * 1000.0);
        return *stop == 0;
    }
    *out = negative ? -value : value;
    return 1;
}

/* A process or thread id that Python reads the same whatever it holds: an integer or a short plain text. */
static int is_track_id(Span span)
{
    if (!span.size || span.size > 200)
        return 0;
    for (size_t i = 0; i < span.size; i++)
        if (span.at[i] >= 0x80 || span.at[i] == '\\' || span.at[i] == '.' || span.at[i] == 'e' || span.at[i] == 'E')
            if (*span.at != '"' || span.at[i] >= 0x80 || span.at[i] == '\\')
                return 0;
    return *span.at == '"' || *span.at == '-' || (unsigned)(*span.at - '0') < 10;
}

static const Category *find_category(Span cat, const Category *categories, size_t n)
{
    if (cat.size < 2 || *cat.at != '"')
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (categories[i].size == cat.size - 2 && !memcmp(categories[i].text, cat.at + 1, cat.size - 2))
            return &categories[i];
    return NULL;
}

static inline int is_complete(Span ph)
{
    return ph.size == 3 && ph.at[1] == 'X';
}

static int contains(Span text, const char *word)
{
    size_t size = strlen(word);
    for (size_t i = 0; i + size <= text.size; i++)
        if (text.at[i] == *word && !memcmp(text.at + i, word, size))
            return 1;
    return 0;
}

/* What a runtime call starts on the device, by its name as it is written; fields.call_kind does the same. */
static int64_t call_kind(Span name)
{
    if (contains(name, "GraphLaunch"))
        return 2;
    if (contains(name, "Launch"))
        return !contains(name, "HostFunc");
    return contains(name, "Mem") ? 3 : 0;
}

/* 1: `out` is a row to keep. 0: nothing to keep of this event. -1: the Python reader shall judge. */
static int make_record(const Category *category, const Span *values, int exact, Record *out)
{
    const Span *fields = values, *arguments = values + EVENT_FIELDS;
    Span ph = fields[PH];
    out->kind = category->kind;
    if (out->kind == SKIPPED)
        return 0;
    if (ph.size != 3 || *ph.at != '"' || ph.at[1] >= 0x80)
        return -1;
    out->dur = 0;
    if (!read_time(fields[TS], exact, &out->start))
        return -1;
    int flow = out->kind == FLOW || out->kind == ARROW;
    if (fields[DUR].size && !flow && out->kind != LAUNCH && !read_time(fields[DUR], exact, &out->dur))
        return -1;
    out->category = category->index;
    out->end = ph.at[1] == 'f';
    if (!flow && ph.at[1] != 'X')
        return -1; /* half of an event, or lost */
    if (flow && !out->end && ph.at[1] != 's')
        return 0;
    if (out->kind == LAUNCH && !arguments[CORR].size)
        return 0;
    out->pid = fields[PID], out->tid = fields[TID], out->name = fields[NAME];
    if (!is_track_id(out->pid) || !is_track_id(out->tid))
        return -1;
    switch (out->kind) {
    case OP:
        out->dims = arguments[DIMS], out->types = arguments[TYPES];
        out->strides = arguments[STRIDES], out->concrete = arguments[CONCRETE];
        return read_id(arguments[EXT], -1, &out->ext) && read_id(arguments[RF], -1, &out->rf) &&
                       read_id(arguments[SEQ], -1, &out->seq)
                   ? 1
                   : -1;
    case KERNEL:
        out->end = !arguments[CORR].size; /* without a correlation id */
        return read_id(arguments[arguments[EXT].size ? EXT : EXT_OLD], -1, &out->ext) &&
                       read_id(arguments[CORR], -1, &out->corr) &&
                       /* What names no device or stream is told by its process and thread. */
                       read_id(arguments[DEVICE].size ? arguments[DEVICE] : out->pid, -1, &out->device) &&
                       read_id(arguments[STREAM].size ? arguments[STREAM] : out->tid, -1, &out->stream)
                   ? 1
                   : -1;
    case LAUNCH:
        out->category = call_kind(out->name);
        return read_id(arguments[CORR], -1, &out->corr) ? 1 : -1;
    case ARROW:
    case FLOW:
        return read_id(fields[ID], -1, &out->id) ? 1 : -1;
    default:
        return 1;
    }
}

/* How the "Task Type" begins, in upper case, of what waits or marks and does no work. */
typedef struct {
    const char *text;
    size_t size;
} Wait;

/* Whether the text has what Python looks for in arguments before it decodes them. */
static int names_task_type(Text p, Text end)
{
    static const char wanted[] = "\"Task Type\"";
    const size_t size = sizeof wanted - 1;
    for (p++; (size_t)(end - p) >= size && (p = memchr(p, 'T', (size_t)(end - p))); p++)
        if ((size_t)(end - p) >= size - 1 && !memcmp(p - 1, wanted, size))
            return 1;
    return 0;
}

/* A complete event without a category, with arguments, that ends at `end`. 1: it is a row of torch_npu's device, `out`;
 * 0: it is none, or one that does no work; -1: the Python reader shall judge. */
static int make_task(const Span *values, Text end, const Wait *waits, size_t n_waits, int64_t category, int exact,
                     Record *out)
{
    const Span *fields = values;
    Span type = values[EVENT_FIELDS + TASK];
    if (!type.size)
        return -names_task_type(fields[ARGS].at, end);
    if (!unquote(&type))
        return -1;
    for (size_t i = 0; i < type.size; i++)
        if (type.at[i] >= 0x80 || type.at[i] == '\\')
            return -1;
    for (size_t i = 0; i < n_waits; i++) {
        size_t k = 0;
        while (k < waits[i].size && k < type.size &&
               (type.at[k] & ~(type.at[k] >= 'a' && type.at[k] <= 'z' ? 0x20 : 0)) == waits[i].text[k])
            k++;
        if (k == waits[i].size)
            return 0;
    }
    *out = (Record){.kind = KERNEL, .category = category, .ext = -1, .corr = -1, .end = 1};
    out->pid = fields[PID], out->tid = fields[TID], out->name = fields[NAME];
    return read_time(fields[TS], exact, &out->start) &&
                   (!fields[DUR].size || read_time(fields[DUR], exact, &out->dur)) && is_track_id(out->pid) &&
                   is_track_id(out->tid) && read_id(out->pid, -1, &out->device) && read_id(out->tid, -1, &out->stream)
               ? 1
               : -1;
}

#define NO_TIME INT64_MIN      /* columns.INVALID */
#define METADATA 64            /* what a PLACE is whose phase is M */
#define ARROW_HEAD (ARROW + METADATA) /* and an end of an arrow that is not its start */

/* A text without escapes: what it says is what stands there. */
static inline int is_plain(Span text)
{
    return *text.at == '"' && !memchr(text.at, '\\', text.size);
}

/* What decides whether the event that ends at `end` is copied: its kind, time, track, and the id that device work shares
 * with its launch. 1, or -1: the Python reader shall judge. */
static int make_place(const Category *category, const Span *values, Text end, int exact, Record *out)
{
    const Span *fields = values, *arguments = values + EVENT_FIELDS;
    Span ph = fields[PH];
    if (ph.size != 3 || *ph.at != '"' || ph.at[1] >= 0x80)
        return -1;
    int kind = category ? category->kind : SKIPPED;
    if (!fields[CAT].size && is_complete(ph) && fields[ARGS].size) {
        if (!arguments[TASK].size && names_task_type(fields[ARGS].at, end))
            return -1;
        kind = arguments[TASK].size ? KERNEL : SKIPPED;
    }
    if (kind == ARROW && ph.at[1] != 's')
        kind = ARROW_HEAD;
    Span id = kind == ARROW || kind == ARROW_HEAD ? fields[ID] : arguments[arguments[CORR].size ? CORR : CONNECTION];
    *out = (Record){.kind = PLACE, .category = ph.at[1] == 'M' ? METADATA : kind, .start = NO_TIME, .id = -1};
    out->pid = fields[PID], out->tid = fields[TID];
    return is_track_id(out->pid) && is_track_id(out->tid) &&
                   (!fields[TS].size || read_time(fields[TS], exact, &out->start)) &&
                   (kind == SKIPPED || read_id(id, -1, &out->id))
               ? 1
               : -1;
}

#endif
