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

typedef struct {
    Text at;
    size_t size;
} Span;

#if defined(__SSE2__) && defined(__GNUC__)
#include <emmintrin.h>
#define AT_ONCE 16
typedef unsigned Bits;
/* Bit i: whether byte i is none of the spaces that indent a line. */
static inline unsigned not_spaces(Text p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    return 0xFFFF ^ (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_set1_epi8(' ')));
}
/* Bit i: whether byte i is a quote, a backslash or a control character; `high`: whether it is 0x80 or more. */
static inline unsigned needs_a_look(Text p, unsigned *high)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(0x1F)), v);
    __m128i mark = _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('"')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\\')));
    *high = (unsigned)_mm_movemask_epi8(v);
    return (unsigned)_mm_movemask_epi8(_mm_or_si128(control, mark));
}
/* Bit i: whether byte i is no digit. */
static inline unsigned no_digits(Text p)
{
    __m128i v = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)p), _mm_set1_epi8('0'));
    return 0xFFFF ^ (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(9)), v));
}
#define FIRST(bits) (__builtin_ctz(bits))
#define BEFORE_FIRST(bits) (((bits) & -(bits)) - 1)
#else
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && defined(__GNUC__)
#define AT_ONCE 8
#else
#define AT_ONCE 0 /* the first byte must be the lowest: one by one */
#endif
typedef uint64_t Bits;
#define ONES 0x0101010101010101ULL
#define HIGH 0x8080808080808080ULL
/* The high bit of each byte that is below `n` (n <= 128); exact up to and including the lowest such byte. */
#define BYTES_BELOW(v, n) (((v) - ONES * (n)) & ~(v) & HIGH)
static inline uint64_t load_word(Text p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}
/* As above, with the bits at the top of each byte, exact up to and including the lowest. */
static inline uint64_t not_spaces(Text p)
{
    uint64_t v = load_word(p) ^ (ONES * ' ');
    return (v | ((v & ~HIGH) + ~HIGH)) & HIGH;
}
static inline uint64_t needs_a_look(Text p, uint64_t *high)
{
    uint64_t v = load_word(p);
    *high = v & HIGH;
    return BYTES_BELOW(v ^ (ONES * '"'), 1) | BYTES_BELOW(v ^ (ONES * '\\'), 1) | BYTES_BELOW(v, 0x20);
}
/* The top bit of each byte that is no digit, exact up to and including the lowest. */
static inline uint64_t no_digits(Text p)
{
    uint64_t v = load_word(p) ^ (ONES * '0');
    return ((v & ~HIGH) + ONES * (0x80 - 10) | v) & HIGH;
}
#define FIRST(bits) (__builtin_ctzll(bits) >> 3)
#define BEFORE_FIRST(bits) (((bits) & -(bits)) - 1)
#endif

static inline Text skip_space(Text p, Text end)
{
    for (;;) {
        if (p >= end || *p > ' ')
            return p;
        if (*p == '\n' && AT_ONCE) { /* the indentation of printed JSON: a third of many traces */
            for (p++; end - p >= AT_ONCE; p += AT_ONCE) {
                Bits other = not_spaces(p);
                if (other) {
                    p += FIRST(other);
                    break;
                }
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
 * `high` becomes non-zero when a byte of 0x80 or more was passed. */
static inline Text skip_plain(Text p, Text end, Bits *high)
{
    for (; AT_ONCE && end - p >= AT_ONCE; p += AT_ONCE) {
        Bits above, stop = needs_a_look(p, &above);
        if (stop) {
            *high |= above & BEFORE_FIRST(stop);
            return p + FIRST(stop);
        }
        *high |= above;
    }
    for (; p < end && *p != '"' && *p != '\\' && *p >= 0x20; p++)
        *high |= *p & 0x80;
    return p;
}

/* `p` is after the opening quote. */
static inline Text skip_string(Text p, Text end)
{
    Text start = p;
    Bits high = 0;
    for (;;) {
        p = skip_plain(p, end, &high);
        if (p >= end || *p < 0x20)
            return NULL;
        if (*p == '"')
            return !high || is_utf8(start, p) ? p + 1 : NULL;
        if (end - p < 2 || p[1] == 0 || !strchr("\"\\/bfnrt", p[1]))
            return NULL;
        p += 2;
    }
}

static inline Text skip_digits(Text p, Text end)
{
    for (; AT_ONCE && end - p >= AT_ONCE; p += AT_ONCE) {
        Bits other = no_digits(p);
        if (other)
            return p + FIRST(other);
    }
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
    Bits high = 0;
    if (p >= end || *p != '"')
        return NULL;
    p = skip_plain(start, end, &high);
    if (p >= end || *p != '"' || (high && !is_ascii(start, p)))
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
