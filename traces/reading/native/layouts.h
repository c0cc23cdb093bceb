/* The members of one event, found by what the events before it looked like.
 *
 * A profiler writes the events of a category all alike: between two values stands the same text, `,\n "dur": `. Such
 * texts are kept as a tree, each below the one that stood before it, so that a member is found by one comparison rather
 * than by reading its key. A text is added only after it was read with all checks, below a path read with all checks:
 * equal bytes then mean the same keys in the same order, with no wanted one twice.
 */
#ifndef OPREPLAY_LAYOUTS_H
#define OPREPLAY_LAYOUTS_H

#include "names.h"

/* Keys of an event and of its arguments whose values are wanted; absent ones have size 0.
 * ARGS is not the value, but whether there is one. */
enum Field { PH, CAT, NAME, PID, TID, TS, DUR, ID, ARGS, EVENT_FIELDS };
enum Argument { EXT, EXT_OLD, CORR, DEVICE, STREAM, DIMS, TYPES, STRIDES, CONCRETE, RF, SEQ, TASK, CONNECTION, ARGUMENTS };

#define MAX_NODES 2048
#define MAX_CHILDREN 24
#define MAX_TEXT 160
#define NOT_WANTED (-1)
#define NO_MORE (-2) /* the text ends the event */

/* A value that is part of the text: the phase and the category, of which there are few. */
typedef struct {
    short field, at, size;
} Inside;

typedef struct {
    short first, next;        /* child and sibling; 0: none (the root is nobody's child) */
    short size, field;        /* of the text, and what the value after it is: a Field or EVENT_FIELDS + an Argument */
    short in_arguments, n_inside;
    Inside inside[4];
    unsigned char text[MAX_TEXT];
} Node;

typedef struct {
    Node *nodes; /* the first is the root: before an event */
    int used;
} Layouts;

/* Where a text between two values led. */
typedef struct {
    int field, in_arguments, n_inside;
    Inside inside[4];
} Step;

static inline int same(Text key, size_t size, const char *text)
{
    return size == strlen(text) && !memcmp(key, text, size);
}

static int event_field(Text key, size_t size)
{
    switch (size) {
    case 2:
        return same(key, 2, "ph") ? PH : same(key, 2, "ts") ? TS : same(key, 2, "id") ? ID : -1;
    case 3:
        if (same(key, 3, "pid"))
            return PID;
        return same(key, 3, "tid") ? TID : same(key, 3, "cat") ? CAT : same(key, 3, "dur") ? DUR : -1;
    case 4:
        return same(key, 4, "name") ? NAME : same(key, 4, "args") ? ARGS : -1;
    default:
        return -1;
    }
}

static int argument_field(Text key, size_t size)
{
    switch (size) {
    case 6:
        return same(key, 6, "device") ? DEVICE : same(key, 6, "stream") ? STREAM : -1;
    case 9:
        return same(key, 9, "Task Type") ? TASK : -1;
    case 10:
        return same(key, 10, "Input Dims") ? DIMS : same(key, 10, "Input type") ? TYPES : -1;
    case 11:
        if (same(key, 11, "External id"))
            return EXT;
        return same(key, 11, "correlation") ? CORR : same(key, 11, "external id") ? EXT_OLD : -1;
    case 13:
        return same(key, 13, "Input Strides") ? STRIDES : same(key, 13, "connection_id") ? CONNECTION : -1;
    case 15:
        return same(key, 15, "Concrete Inputs") ? CONCRETE : same(key, 15, "Sequence number") ? SEQ : -1;
    case 18:
        return same(key, 18, "Record function id") ? RF : -1;
    default:
        return -1;
    }
}

/* Read the text between two values with all checks, to where the next value starts or the event ends. `first`: nothing
 * of the event was read yet. NULL as in tokens.h, and for a wanted key that occurs twice. */
static Text read_between(Text p, Text end, int first, int in_arguments, Span *values, Step *step)
{
    Text start = p, key;
    size_t size;
    int opened = first;
    step->n_inside = 0;
    if (first) {
        if (p >= end || *p != '{')
            return NULL;
        p = skip_space(p + 1, end);
    }
    for (;;) {
        if (!opened) {
            p = skip_space(p, end);
            if (p >= end)
                return NULL;
            if (*p == '}') {
                p++;
                if (in_arguments) {
                    in_arguments = 0;
                    continue;
                }
                step->field = NO_MORE;
                return p;
            }
            if (*p != ',')
                return NULL;
            p = skip_space(p + 1, end);
        }
        opened = 0;
        if (!(p = read_key(p, end, &key, &size)))
            return NULL;
        int field = in_arguments ? argument_field(key, size) : event_field(key, size);
        if (in_arguments && field >= 0)
            field += EVENT_FIELDS;
        if (field >= 0 && values[field].size)
            return NULL;
        if (field == ARGS) {
            if (p >= end || *p != '{' || step->n_inside == 4)
                return NULL;
            values[ARGS] = (Span){p, 1};
            step->inside[step->n_inside++] = (Inside){ARGS, (short)(p - start), 1};
            p = skip_space(p + 1, end);
            if (p < end && *p == '}')
                p++;
            else
                in_arguments = opened = 1;
            continue;
        }
        if ((field == PH || field == CAT) && step->n_inside < 4 && p < end && *p == '"' && p - start < MAX_TEXT) {
            Text value = p;
            if (!(p = skip_string(p + 1, end)))
                return NULL;
            values[field] = (Span){value, (size_t)(p - value)};
            if (p - start <= MAX_TEXT)
                step->inside[step->n_inside++] = (Inside){(short)field, (short)(value - start), (short)(p - value)};
            continue;
        }
        step->field = field;
        step->in_arguments = in_arguments;
        return p;
    }
}

static inline int equal_text(Text p, const unsigned char *text, size_t size)
{
    uint64_t a, b;
    for (; size >= 8; size -= 8, p += 8, text += 8) {
        memcpy(&a, p, 8);
        memcpy(&b, text, 8);
        if (a != b)
            return 0;
    }
    for (; size; size--)
        if (*p++ != *text++)
            return 0;
    return 1;
}

/* The child of `node` that stands at `p`, or 0; it becomes the first one, to be tried first. */
static inline int find_child(Layouts *layouts, int node, Text p, Text end)
{
    Node *nodes = layouts->nodes;
    int before = 0, child = nodes[node].first;
    for (; child; before = child, child = nodes[child].next) {
        if (end - p < nodes[child].size || !equal_text(p, nodes[child].text, (size_t)nodes[child].size))
            continue;
        if (before) {
            nodes[before].next = nodes[child].next;
            nodes[child].next = nodes[node].first;
            nodes[node].first = (short)child;
        }
        return child;
    }
    return 0;
}

/* A new child of `node` with the text that was just read; 0 where there is no room. */
static int add_child(Layouts *layouts, int node, Text p, size_t size, const Step *step)
{
    Node *nodes = layouts->nodes, *made;
    int children = 0;
    for (int child = nodes[node].first; child; child = nodes[child].next)
        children++;
    if (size > MAX_TEXT || children >= MAX_CHILDREN || layouts->used >= MAX_NODES)
        return 0;
    made = &nodes[layouts->used];
    made->first = 0, made->next = nodes[node].first;
    made->size = (short)size, made->field = (short)step->field;
    made->in_arguments = (short)step->in_arguments, made->n_inside = (short)step->n_inside;
    memcpy(made->inside, step->inside, sizeof made->inside);
    memcpy(made->text, p, size);
    nodes[node].first = (short)layouts->used;
    return layouts->used++;
}

/* The wanted values of one event: EVENT_FIELDS of its own, then ARGUMENTS; NULL as in tokens.h. */
static Text read_event(Layouts *layouts, Text p, Text end, Span *values)
{
    int node = 0, known = 1, field, in_arguments = 0;
    for (int i = 0; i < EVENT_FIELDS + ARGUMENTS; i++)
        values[i].size = 0;
    for (int first = 1;; first = 0) {
        int child = known ? find_child(layouts, node, p, end) : 0;
        Text start = p;
        if (child) {
            const Node *found = &layouts->nodes[child];
            for (int i = 0; i < found->n_inside; i++)
                values[found->inside[i].field] = (Span){p + found->inside[i].at, (size_t)found->inside[i].size};
            field = found->field, in_arguments = found->in_arguments;
            p += found->size;
            if (field != NO_MORE)
                p = skip_space(p, end); /* more of it than last time */
        } else {
            Step step;
            if (!(p = read_between(p, end, first, in_arguments, values, &step)))
                return NULL;
            field = step.field, in_arguments = step.field == NO_MORE ? 0 : step.in_arguments;
            if (known)
                child = add_child(layouts, node, start, (size_t)(p - start), &step);
            known = child != 0;
        }
        if (field == NO_MORE)
            return p;
        node = child;
        start = p;
        if (!(p = skip_value(p, end, in_arguments ? 2 : 1)))
            return NULL;
        if (field >= 0)
            values[field] = (Span){start, (size_t)(p - start)};
    }
}

#endif
