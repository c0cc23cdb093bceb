/* JSON tokens of one block of text: strict, bounds-checked, NULL for whatever is rare.
 *
 * Every function takes the position where a token starts and the end of the text, and returns the position after the
 * token, or NULL when the text is no JSON or is JSON of a kind that the Python reader shall judge: \u escapes, nesting
 * over MAX_DEPTH, numbers that a float64 may not hold. What is accepted here is a subset of what JSON allows, never
 * more, also in values that nobody reads: text is valid UTF-8, numbers are within range.
 */
#ifndef OPREPLAY_TOKENS_H
#define OPREPLAY_TOKENS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MAX_DEPTH 32
#define MAX_DIGITS 200 /* of a number; with an exponent of two digits it is below 1e308 */

typedef const unsigned char *Text;

#define ONES 0x0101010101010101ULL
#define HIGH 0x8080808080808080ULL

/* The high bit of each byte that is below `n` (n <= 128); exact up to and including the lowest such byte. */
#define BYTES_BELOW(v, n) (((v) - ONES * (n)) & ~(v) & HIGH)

/* Whether whole words may be looked at: the first byte must be the lowest. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && defined(__GNUC__)
#define BY_WORDS 1
#define FIRST_BYTE(stop) (__builtin_ctzll(stop) >> 3)
#else
#define BY_WORDS 0
#define FIRST_BYTE(stop) 0
#endif

static inline Text skip_space(Text p, Text end)
{
    for (;;) {
        if (p >= end || *p > ' ')
            return p;
        if (*p == '\n' && BY_WORDS) { /* the indentation of printed JSON: a third of many traces */
            for (p++; end - p >= 8; p += 8) {
                uint64_t v;
                memcpy(&v, p, 8);
                if ((v ^= ONES * ' '))
                    p += FIRST_BYTE(v);
                if (v)
                    break;
            }
        } else if (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t') {
            p++;
        } else {
            return p;
        }
    }
}

/* Whether the text is valid UTF-8: no overlong forms, no surrogates, nothing beyond U+10FFFF. */
static int is_utf8(Text p, Text end)
{
    while (p < end) {
        unsigned char lead = *p++;
        if (lead < 0x80)
            continue;
        int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
        if (lead < 0xC2 || lead > 0xF4 || end - p < more)
            return 0;
        unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (*p < low || *p > high)
            return 0;
        for (p++; --more; p++)
            if ((*p & 0xC0) != 0x80)
                return 0;
    }
    return 1;
}

/* After the bytes of a string that need no look: the next quote, backslash or control character, or the end.
 * `seen` gathers the bits of the bytes that were passed, and of some after them. */
static inline Text skip_plain(Text p, Text end, uint64_t *seen)
{
    for (; BY_WORDS && end - p >= 8; p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        *seen |= v;
        uint64_t stop = BYTES_BELOW(v ^ (ONES * '"'), 1) | BYTES_BELOW(v ^ (ONES * '\\'), 1) | BYTES_BELOW(v, 0x20);
        if (stop)
            return p + FIRST_BYTE(stop);
    }
    for (; p < end && *p != '"' && *p != '\\' && *p >= 0x20; p++)
        *seen |= *p;
    return p;
}

/* `p` is after the opening quote. */
static inline Text skip_string(Text p, Text end)
{
    Text start = p;
    uint64_t seen = 0;
    for (;;) {
        p = skip_plain(p, end, &seen);
        if (p >= end || *p < 0x20)
            return NULL;
        if (*p == '"')
            return !(seen & HIGH) || is_utf8(start, p) ? p + 1 : NULL;
        if (end - p < 2 || p[1] == 0 || !strchr("\"\\/bfnrt", p[1]))
            return NULL;
        p += 2;
    }
}

static inline Text skip_digits(Text p, Text end)
{
    while (p < end && (unsigned)(*p - '0') < 10)
        p++;
    return p;
}

static inline Text skip_number(Text p, Text end)
{
    Text digits, start = p;
    if (p < end && *p == '-')
        p++;
    digits = p;
    p = skip_digits(p, end);
    if (p == digits || (*digits == '0' && p - digits > 1))
        return NULL;
    if (p < end && *p == '.') {
        digits = ++p;
        p = skip_digits(p, end);
        if (p == digits)
            return NULL;
    }
    if (p - start > MAX_DIGITS)
        return NULL;
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < end && (*p == '+' || *p == '-'))
            p++;
        digits = p;
        p = skip_digits(p, end);
        if (p == digits || p - digits > 2)
            return NULL;
    }
    return p;
}

static inline Text skip_literal(Text p, Text end, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(end - p) >= n && !memcmp(p, word, n) ? p + n : NULL;
}

static Text skip_container(Text p, Text end, int depth);

static inline Text skip_value(Text p, Text end, int depth)
{
    if (p >= end)
        return NULL;
    switch (*p) {
    case '"':
        return skip_string(p + 1, end);
    case '{':
    case '[':
        return depth < MAX_DEPTH ? skip_container(p, end, depth + 1) : NULL;
    case 't':
        return skip_literal(p, end, "true");
    case 'f':
        return skip_literal(p, end, "false");
    case 'n':
        return skip_literal(p, end, "null");
    default:
        return skip_number(p, end);
    }
}

static int is_ascii(Text p, Text end)
{
    for (; p < end; p++)
        if (*p >= 0x80)
            return 0;
    return 1;
}

/* The key at `p`, which must be plain ASCII without escapes; `p` then stands at its value. */
static inline Text read_key(Text p, Text end, Text *key, size_t *size)
{
    Text start = p + 1;
    uint64_t seen = 0;
    if (p >= end || *p != '"')
        return NULL;
    p = skip_plain(start, end, &seen);
    if (p >= end || *p != '"' || ((seen & HIGH) && !is_ascii(start, p)))
        return NULL;
    *key = start;
    *size = (size_t)(p - start);
    p = skip_space(p + 1, end);
    if (p >= end || *p != ':')
        return NULL;
    return skip_space(p + 1, end);
}

static Text skip_container(Text p, Text end, int depth)
{
    int object = *p == '{';
    unsigned char close = object ? '}' : ']';
    p = skip_space(p + 1, end);
    if (p < end && *p == close)
        return p + 1;
    for (;;) {
        if (object) {
            Text key;
            size_t size;
            if (!(p = read_key(p, end, &key, &size)))
                return NULL;
        }
        if (!(p = skip_value(p, end, depth)))
            return NULL;
        p = skip_space(p, end);
        if (p >= end)
            return NULL;
        if (*p == close)
            return p + 1;
        if (*p != ',')
            return NULL;
        p = skip_space(p + 1, end);
    }
}

#endif
