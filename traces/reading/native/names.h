/* Text -> index of a Python mapping, remembered by hash so that Python is only asked about texts never met before. */
#ifndef OPREPLAY_NAMES_H
#define OPREPLAY_NAMES_H

#include <Python.h>

#include "tokens.h"

typedef struct {
    Text at;
    size_t size;
} Span;

typedef struct {
    uint64_t hash;
    PyObject *key; /* bytes: the parts joined with NUL; NULL where the slot is free */
    int64_t index;
} Slot;

typedef struct {
    PyObject *ask; /* called with the key, returns its index, or raises */
    Slot *slots;
    size_t capacity, used;
} Names;

static inline uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
    return hash ^ (hash >> 32);
}

static uint64_t hash_parts(uint64_t hash, const Span *parts, int n)
{
    for (int i = 0; i < n; i++) {
        Text p = parts[i].at;
        size_t left = parts[i].size;
        uint64_t word;
        hash = mix(hash, left);
        for (; left >= 8; left -= 8, p += 8) {
            memcpy(&word, p, 8);
            hash = mix(hash, word);
        }
        if (left) {
            word = 0;
            memcpy(&word, p, left);
            hash = mix(hash, word);
        }
    }
    return hash;
}

static int equal_parts(PyObject *key, const Span *parts, int n)
{
    const char *p = PyBytes_AS_STRING(key);
    size_t total = (size_t)n - 1;
    for (int i = 0; i < n; i++)
        total += parts[i].size;
    if ((size_t)PyBytes_GET_SIZE(key) != total)
        return 0;
    for (int i = 0; i < n; i++) {
        if (parts[i].size && memcmp(p, parts[i].at, parts[i].size))
            return 0;
        p += parts[i].size;
        if (i + 1 < n && *p++)
            return 0;
    }
    return 1;
}

static PyObject *join_parts(const Span *parts, int n)
{
    size_t total = (size_t)n - 1;
    for (int i = 0; i < n; i++)
        total += parts[i].size;
    PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (!key)
        return NULL;
    char *p = PyBytes_AS_STRING(key);
    for (int i = 0; i < n; i++) {
        if (parts[i].size)
            memcpy(p, parts[i].at, parts[i].size);
        p += parts[i].size;
        if (i + 1 < n)
            *p++ = 0;
    }
    return key;
}

static int names_grow(Names *names)
{
    size_t capacity = names->capacity ? 2 * names->capacity : 256;
    Slot *slots = PyMem_Calloc(capacity, sizeof(Slot));
    if (!slots) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < names->capacity; i++) {
        if (names->slots[i].key) {
            size_t at = names->slots[i].hash & (capacity - 1);
            while (slots[at].key)
                at = (at + 1) & (capacity - 1);
            slots[at] = names->slots[i];
        }
    }
    PyMem_Free(names->slots);
    names->slots = slots;
    names->capacity = capacity;
    return 0;
}

/* The index of the joined parts, or -1 with an exception set. Needs the GIL. */
static int64_t names_index(Names *names, uint64_t seed, const Span *parts, int n)
{
    uint64_t hash = hash_parts(seed, parts, n);
    if (2 * names->used >= names->capacity && names_grow(names))
        return -1;
    size_t at = hash & (names->capacity - 1);
    for (; names->slots[at].key; at = (at + 1) & (names->capacity - 1))
        if (names->slots[at].hash == hash && equal_parts(names->slots[at].key, parts, n))
            return names->slots[at].index;
    PyObject *key = join_parts(parts, n);
    PyObject *index = key ? PyObject_CallOneArg(names->ask, key) : NULL;
    int64_t value = index ? PyLong_AsLongLong(index) : -1;
    Py_XDECREF(index);
    if (value < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "an index is negative");
        Py_XDECREF(key);
        return -1;
    }
    names->slots[at] = (Slot){.hash = hash, .key = key, .index = value};
    names->used++;
    return value;
}

static void names_clear(Names *names)
{
    for (size_t i = 0; i < names->capacity; i++)
        Py_XDECREF(names->slots[i].key);
    PyMem_Free(names->slots);
    names->slots = NULL;
    names->capacity = names->used = 0;
    Py_CLEAR(names->ask);
}

#endif
