/* Counting rows by bitmaps. A base is a value, or a bin, of one attribute, and has a bit for each row; an item is a
   range of bases of one attribute, its bitmap their union; a set is items of different attributes.

   Rows go by in blocks whose bitmaps stay in the cache, so that memory does not grow with rows, and a set leaves as
   soon as its count is above its limit: of sets that are no likelier among outliers most leave after a few blocks. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_WORDS 512
#define MOST_ORDER 32

#ifdef __AVX2__
#include <immintrin.h>
#endif
#ifdef __ARM_NEON
#include <arm_neon.h>

/* Bytes hold up to 255, eight of which come from each vector. Written out, since compilers count word by word here,
   which takes five times as long. */
static int64_t count_both(const uint64_t *a, const uint64_t *b, int64_t words)
{
    int64_t count = 0, i = 0;
    while (i + 4 <= words) {
        uint8x16_t first = vdupq_n_u8(0), second = first;
        int64_t until = words - i > 120 ? i + 120 : words;
        for (; i + 4 <= until; i += 4) {
            uint64x2_t low = vandq_u64(vld1q_u64(a + i), vld1q_u64(b + i));
            uint64x2_t high = vandq_u64(vld1q_u64(a + i + 2), vld1q_u64(b + i + 2));
            first = vaddq_u8(first, vcntq_u8(vreinterpretq_u8_u64(low)));
            second = vaddq_u8(second, vcntq_u8(vreinterpretq_u8_u64(high)));
        }
        count += vaddlvq_u8(first) + vaddlvq_u8(second);
    }
    for (; i < words; i++)
        count += __builtin_popcountll(a[i] & b[i]);
    return count;
}
#elif defined(__AVX2__) && !defined(__AVX512VPOPCNTDQ__)
#ifdef __AVX512BW__
typedef __m512i vector;
#define OF(name) _mm512_##name
#define ALL_OF(name) _mm512_##name##_si512
#define IN_EACH_QUARTER _mm512_broadcast_i32x4
#else
typedef __m256i vector;
#define OF(name) _mm256_##name
#define ALL_OF(name) _mm256_##name##_si256
#define IN_EACH_QUARTER _mm256_broadcastsi128_si256
#endif
#define VECTOR_WORDS ((int64_t)sizeof(vector) / 8)

/* A word at a time takes 3.4 times as long as vectors of 512 bits, 1.8 times as long as those of 256, for processors
   that count the bits of no vector: both halves of each byte are looked up. Bytes hold up to 255, eight of which come
   from each vector. */
static int64_t count_both(const uint64_t *a, const uint64_t *b, int64_t words)
{
    const vector ones = IN_EACH_QUARTER(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const vector low = OF(set1_epi8)(15), none = ALL_OF(setzero)();
    vector sums = none;
    int64_t count = 0, i = 0;
    while (i + VECTOR_WORDS <= words) {
        vector bytes = none;
        int64_t until = words - i > 31 * VECTOR_WORDS ? i + 31 * VECTOR_WORDS : words;
        for (; i + VECTOR_WORDS <= until; i += VECTOR_WORDS) {
            vector both = ALL_OF(and)(ALL_OF(loadu)((const void *)(a + i)), ALL_OF(loadu)((const void *)(b + i)));
            vector first = OF(shuffle_epi8)(ones, ALL_OF(and)(both, low));
            vector second = OF(shuffle_epi8)(ones, ALL_OF(and)(OF(srli_epi16)(both, 4), low));
            bytes = OF(add_epi8)(bytes, OF(add_epi8)(first, second));
        }
        sums = OF(add_epi64)(sums, OF(sad_epu8)(bytes, none));
    }
    uint64_t each[VECTOR_WORDS];
    memcpy(each, &sums, sizeof(sums));
    for (int k = 0; k < VECTOR_WORDS; k++) count += (int64_t)each[k];
    for (; i < words; i++)
        count += __builtin_popcountll(a[i] & b[i]);
    return count;
}
#else
static int64_t count_both(const uint64_t *a, const uint64_t *b, int64_t words)
{
    int64_t count = 0;
    for (int64_t i = 0; i < words; i++)
        count += __builtin_popcountll(a[i] & b[i]);
    return count;
}
#endif

static void intersect(uint64_t *to, const uint64_t *a, const uint64_t *b, int64_t words)
{
    for (int64_t i = 0; i < words; i++)
        to[i] = a[i] & b[i];
}

/* Whether 128 rows have one code, as in a table that is sorted, which most are by something. */
#define IS_RUN(type) static int is_run_##type(const type *codes) \
{ \
    type differs = 0; \
    for (int k = 0; k < 128; k++) differs |= codes[k] ^ codes[0]; \
    return !differs; \
}
IS_RUN(uint8_t)
IS_RUN(uint16_t)
IS_RUN(uint32_t)

/* How often each of so many codes occurs. `width` is the bytes of a code: 1, 2 or 4. Those of one byte are read eight at
   a time and counted in four tables in turn, so that a code which comes again at once does not wait for its own count;
   few of them are compared with 64 rows at once where there are vectors of so many: 3 codes take an eighth of the time, 16
   two fifths. */
#define FEW_CODES 40
void count_codes(const void *codes, int32_t width, int64_t rows, int64_t values, int64_t *counts)
{
#define COUNT(type) do { \
    const type *mine = codes; \
    for (; i + 128 <= rows; i += 128) \
        if (is_run_##type(mine + i)) counts[mine[i]] += 128; \
        else for (int k = 0; k < 128; k++) counts[mine[i + k]]++; \
    for (; i < rows; i++) counts[mine[i]]++; \
} while (0)
    int64_t i = 0;
    if (width == 1) {
        uint32_t table[4][256] = {{0}};
        const uint8_t *mine = codes;
#ifdef __AVX512BW__
        while (values <= FEW_CODES && i + 512 <= rows) {
            if (is_run_uint8_t(mine + i)) { counts[mine[i]] += 128; i += 128; continue; }
            for (int code = 0; code < values; code++) {
                __m512i wanted = _mm512_set1_epi8((char)code);
                int64_t found = 0;
                for (int k = 0; k < 512; k += 64)
                    found += __builtin_popcountll(_mm512_cmpeq_epi8_mask(_mm512_loadu_si512(mine + i + k), wanted));
                counts[code] += found;
            }
            i += 512;
        }
#else
        (void)values;
#endif
        for (; i + 128 <= rows && i < UINT32_MAX - 128; i += 128) {
            if (is_run_uint8_t(mine + i)) { table[0][mine[i]] += 128; continue; }
            for (int k = 0; k < 128; k += 8) {
                uint64_t eight;
                memcpy(&eight, mine + i + k, 8);
                table[0][eight & 255]++; table[1][eight >> 8 & 255]++;
                table[2][eight >> 16 & 255]++; table[3][eight >> 24 & 255]++;
                table[0][eight >> 32 & 255]++; table[1][eight >> 40 & 255]++;
                table[2][eight >> 48 & 255]++; table[3][eight >> 56]++;
            }
        }
        for (int code = 0; code < 256; code++) {
            int64_t found = (int64_t)table[0][code] + table[1][code] + table[2][code] + table[3][code];
            if (found) counts[code] += found;  /* there may be fewer counts than codes could be */
        }
        COUNT(uint8_t);
    } else if (width == 2) COUNT(uint16_t); else COUNT(uint32_t);
#undef COUNT
}

/* Which rows of a mask, of a byte each, are marked: each is written where the next one will be, which costs less than to
   ask. `found` has room for one more than there are. */
void find_places(const uint8_t *mask, int64_t rows, int64_t *found)
{
    int64_t i = 0;
    for (; i + 8 <= rows; i += 8) {
        uint64_t eight;
        memcpy(&eight, mask + i, 8);
        if (eight)
            for (int k = 0; k < 8; k++) { *found = i + k; found += mask[i + k]; }
    }
    for (; i < rows; i++) { *found = i; found += mask[i]; }
}

/* Which of 64 rows have a code, a bit each: by vectors of 16 rows' bytes, all ones or zero. */
#ifdef __ARM_NEON
typedef uint8x16_t bytes;
static inline bytes same_uint8_t(const uint8_t *codes, uint8_t code) { return vceqq_u8(vld1q_u8(codes), vdupq_n_u8(code)); }
static inline bytes same_uint16_t(const uint16_t *codes, uint16_t code)
{
    uint16x8_t wanted = vdupq_n_u16(code);
    return vuzp1q_u8(vreinterpretq_u8_u16(vceqq_u16(vld1q_u16(codes), wanted)),
                     vreinterpretq_u8_u16(vceqq_u16(vld1q_u16(codes + 8), wanted)));
}
static inline uint64_t bits_of(bytes a, bytes b, bytes c, bytes d)
{
    const bytes bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ull));
    bytes sums = vpaddq_u8(vpaddq_u8(vandq_u8(a, bit), vandq_u8(b, bit)), vpaddq_u8(vandq_u8(c, bit), vandq_u8(d, bit)));
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
}
#elif defined(__AVX512BW__)
static inline uint64_t match_uint8_t(const uint8_t *codes, uint8_t code)
{
    return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(codes), _mm512_set1_epi8((char)code));
}
static inline uint64_t match_uint16_t(const uint16_t *codes, uint16_t code)
{
    __m512i wanted = _mm512_set1_epi16((short)code);
    return (uint64_t)_mm512_cmpeq_epi16_mask(_mm512_loadu_si512(codes), wanted) |
           (uint64_t)_mm512_cmpeq_epi16_mask(_mm512_loadu_si512(codes + 32), wanted) << 32;
}
#elif defined(__SSE2__)
#include <emmintrin.h>
typedef __m128i bytes;
static inline bytes load(const void *at) { return _mm_loadu_si128(at); }
static inline bytes same_uint8_t(const uint8_t *codes, uint8_t code)
{
    return _mm_cmpeq_epi8(load(codes), _mm_set1_epi8((char)code));
}
static inline bytes same_uint16_t(const uint16_t *codes, uint16_t code)
{
    bytes wanted = _mm_set1_epi16((short)code);
    return _mm_packs_epi16(_mm_cmpeq_epi16(load(codes), wanted), _mm_cmpeq_epi16(load(codes + 8), wanted));
}
static inline uint64_t bits_of(bytes a, bytes b, bytes c, bytes d)
{
    return (uint64_t)_mm_movemask_epi8(a) | (uint64_t)_mm_movemask_epi8(b) << 16 |
           (uint64_t)_mm_movemask_epi8(c) << 32 | (uint64_t)_mm_movemask_epi8(d) << 48;
}
#endif
#if defined(__AVX512BW__)
#define MATCH(type)
#elif defined(__ARM_NEON) || defined(__SSE2__)
#define MATCH(type) static inline uint64_t match_##type(const type *codes, type code) \
{ \
    return bits_of(same_##type(codes, code), same_##type(codes + 16, code), same_##type(codes + 32, code), \
                   same_##type(codes + 48, code)); \
}
#else
#define MATCH(type) static inline uint64_t match_##type(const type *codes, type code) \
{ \
    uint64_t found = 0; \
    for (int k = 0; k < 64; k++) found |= (uint64_t)(codes[k] == code) << k; \
    return found; \
}
#endif
MATCH(uint8_t)
MATCH(uint16_t)

/* Matching a word of 64 rows with one code takes about so many times less than to scatter its rows, by bytes of a
   code; codes of four bytes are many, and always scattered. */
#ifdef __AVX512BW__
#define MATCHES_PER_SCATTER 150
#else
#define MATCHES_PER_SCATTER 48
#endif

/* The bitmaps of some bases of one attribute over `rows` rows from `start` on. Where few are asked for, rows are matched
   with the code of each. Else each row's bit is scattered to the bitmap of its base, whichever that is: rows whose base
   nobody asks for go to bitmaps that nobody reads. Two words are filled in turn, so that neither waits for itself. */
#define ASKED(base) (!is_asked || is_asked[base])
static void fill(uint64_t *bitmaps, int64_t words, const void *codes, int32_t width, const int32_t *base_of,
                 const int32_t *code_of, int32_t first, int32_t end, const uint8_t *is_asked, int64_t start, int64_t rows)
{
    const int64_t whole = rows / 64;
    int64_t count = 0;
    for (int32_t b = first; b < end; b++) count += ASKED(b);
    if (!count) return;
#define WORD(code, word) bitmaps[base_of[code] * words + (word)]
#define FILL(type) do { \
    const type *mine = (const type *)codes + start; \
    int64_t i = 0; \
    for (int32_t b = first; b < end; b++) if (ASKED(b)) memset(bitmaps + b * words, 0, (size_t)words * 8); \
    for (; i + 128 <= rows; i += 128) { \
        if (is_run_##type(mine + i)) { WORD(mine[i], i >> 6) = WORD(mine[i], (i >> 6) + 1) = ~0ull; continue; } \
        for (int k = 0; k < 64; k++) { \
            WORD(mine[i + k], i >> 6) |= 1ull << k; \
            WORD(mine[i + 64 + k], (i >> 6) + 1) |= 1ull << k; \
        } \
    } \
    for (; i < rows; i++) WORD(mine[i], i >> 6) |= 1ull << (i & 63); \
} while (0)
#define FILL_OR_MATCH(type) do { \
    const type *mine = (const type *)codes + start; \
    int64_t mixed = 0; \
    for (int64_t i = 0; i + 128 <= rows; i += 128) mixed += 2 * !is_run_##type(mine + i); \
    if (mixed * MATCHES_PER_SCATTER <= whole * count * width) { FILL(type); break; } \
    for (int32_t b = first; b < end; b++) if (ASKED(b)) { \
        uint64_t *bits = bitmaps + b * words; \
        type code = (type)code_of[b]; \
        for (int64_t w = 0; w < whole; w++) bits[w] = match_##type(mine + 64 * w, code); \
        for (int64_t w = whole; w < words; w++) bits[w] = 0; \
        for (int64_t i = 64 * whole; i < rows; i++) bits[whole] |= (uint64_t)(mine[i] == code) << (i & 63); \
    } \
} while (0)
    if (width == 1) FILL_OR_MATCH(uint8_t); else if (width == 2) FILL_OR_MATCH(uint16_t); else FILL(uint32_t);
#undef FILL_OR_MATCH
#undef FILL
#undef WORD
}

/* How many rows of each set are among `rows`, and how many of those are marked in `outliers`. Where `rows` are in few
   words only these are looked at. `filled` has room for the numbers of all words, `hits` for a bit for each row. */
void count_among(const uint64_t *marks, const int64_t *chosen, int64_t count, int64_t words, const uint64_t *rows,
                 const uint64_t *outliers, int64_t *filled, uint64_t *hits, int64_t *within, int64_t *inside)
{
    int64_t left = 0;
    for (int64_t w = 0; w < words; w++)
        if (rows[w]) filled[left++] = w;
    intersect(hits, rows, outliers, words);
    for (int64_t i = 0; i < count; i++) {
        const uint64_t *mine = marks + chosen[i] * words;
        within[i] = inside[i] = 0;
        if (left * 8 > words) {
            within[i] = count_both(mine, rows, words);
            inside[i] = count_both(mine, hits, words);
            continue;
        }
        for (int64_t k = 0; k < left; k++) {
            uint64_t both = mine[filled[k]] & rows[filled[k]];
            if (!both) continue;
            within[i] += __builtin_popcountll(both);
            inside[i] += __builtin_popcountll(both & hits[filled[k]]);
        }
    }
}

/* Bitmaps of items over some rows, each of `words`: bases first, each one code, then ranges, each of which ends with
   base `high` and otherwise is the item `rest`, shorter by that base. `bitmaps` has room for items + 1. Items of which
   `is_asked` says no are not filled; without it all are. */
void fill_items(uint64_t *bitmaps, int64_t words, int64_t start, int64_t rows, int32_t attributes,
                const void *const *codes, const int32_t *widths, const int32_t *const *base_of, int32_t bases,
                int32_t items, const int32_t *rest, const int32_t *high, const int32_t *attribute_of,
                const int32_t *code_of, const uint8_t *is_asked)
{
    int32_t first = 0, end = 0;
    for (int32_t a = 0; a < attributes; a++, first = end) {
        while (end < bases && attribute_of[end] == a) end++;
        if (codes[a])
            fill(bitmaps, words, codes[a], widths[a], base_of[a], code_of, first, end, is_asked, start, rows);
    }
    for (int32_t i = bases; i < items; i++) if (ASKED(i))
        for (int64_t w = 0; w < words; w++)
            bitmaps[i * words + w] = bitmaps[rest[i] * words + w] | bitmaps[high[i] * words + w];
}

/* Which items some of the sets have, and those that these are made of. */
static void ask_items(uint8_t *is_asked, int32_t bases, int32_t items, const int32_t *rest, const int32_t *high,
                      const int32_t *sets, int32_t most, const int64_t *alive, int64_t left)
{
    memset(is_asked, 0, (size_t)items);
    for (int64_t at = 0; at < left; at++)
        for (int32_t k = 0; k < most && sets[alive[at] * most + k] >= 0; k++) is_asked[sets[alive[at] * most + k]] = 1;
    for (int32_t i = items - 1; i >= bases; i--)
        if (is_asked[i]) is_asked[rest[i]] = is_asked[high[i]] = 1;
}

/* Sets of one more item. `sets` are sorted, of `order` items each; those with the same items but the last are
   neighbours, and each two of them make one, unless their attributes are the same or exclude each other. Gives how
   many have a count of at least `least`, or -1 where there is no room for all. */
int64_t extend_sets(const uint64_t *bitmaps, int64_t words, const int32_t *attribute_of, int32_t attributes,
                    const uint8_t *exclude, const int32_t *sets, int64_t count, int32_t order, int64_t least,
                    int32_t *found, int64_t *counts, int64_t room)
{
    int64_t made = 0;
    uint64_t *prefix = malloc((size_t)words * 8);
    if (!prefix) return -1;
    for (int64_t i = 0; i < count; i++) {
        const int32_t *one = sets + i * order;
        int32_t last = attribute_of[one[order - 1]];
        const uint64_t *own = bitmaps + (int64_t)one[0] * words;
        int is_ready = order == 1;
        for (int64_t j = i + 1; j < count; j++) {
            const int32_t *other = sets + j * order;
            if (order > 1 && memcmp(one, other, (size_t)(order - 1) * 4)) break;
            int32_t attribute = attribute_of[other[order - 1]];
            if (attribute == last || exclude[last * attributes + attribute]) continue;
            if (!is_ready) {
                for (int32_t k = 1; k < order; k++) {
                    intersect(prefix, own, bitmaps + (int64_t)one[k] * words, words);
                    own = prefix;
                }
                is_ready = 1;
            }
            int64_t both = count_both(own, bitmaps + (int64_t)other[order - 1] * words, words);
            if (both < least) continue;
            if (made == room) { free(prefix); return -1; }
            memcpy(found + made * (order + 1), one, (size_t)order * 4);
            found[made * (order + 1) + order] = other[order - 1];
            counts[made++] = both;
        }
    }
    free(prefix);
    return made;
}

/* How many rows each set has; a set whose count goes above its limit is left, with a count above it. `sets` are
   sorted and padded with -1 to `most` items. Attributes of no set have no codes. With `marks`, of which each set has
   one bit for each row, also which rows these are. Gives 0, or -1 where there is no memory. */
int64_t count_sets(int64_t rows, int32_t attributes, const void *const *codes, const int32_t *widths,
                   const int32_t *const *base_of, int32_t bases, int32_t items, const int32_t *rest,
                   const int32_t *high, const int32_t *attribute_of, const int32_t *code_of, const int32_t *sets,
                   int64_t count, int32_t most, const int64_t *limits, int64_t *counts, uint64_t *marks)
{
    const int64_t words = BLOCK_WORDS < (rows + 63) / 64 ? BLOCK_WORDS : (rows + 63) / 64;
    uint64_t *bitmaps = malloc((size_t)(items + 1) * words * 8);
    uint64_t *partial = malloc((size_t)MOST_ORDER * words * 8);
    int64_t *alive = malloc((size_t)count * 8 + 8), left = count, failed = 0;
    uint8_t *is_asked = malloc((size_t)items + 1);
    if (!bitmaps || !partial || !alive || !is_asked || most > MOST_ORDER) { failed = -1; left = 0; }
    else for (int64_t i = 0; i < count; i++) { alive[i] = i; counts[i] = 0; }
    for (int64_t start = 0; start < rows && left; start += words * 64) {
        int64_t block = rows - start < words * 64 ? rows - start : words * 64;
        ask_items(is_asked, bases, items, rest, high, sets, most, alive, left);
        fill_items(bitmaps, words, start, block, attributes, codes, widths, base_of, bases, items, rest, high,
                   attribute_of, code_of, is_asked);
        const uint64_t *prefix[MOST_ORDER];  /* of the set before: its first item, its first two, ... */
        const int32_t *before = NULL;
        int32_t ready = 0;
        int64_t kept = 0;
        for (int64_t at = 0; at < left; at++) {
            int64_t i = alive[at];
            const int32_t *set = sets + i * most;
            int32_t order = 1, same = 0;
            while (order < most && set[order] >= 0) order++;
            while (same < ready && same < order - 1 && before[same] == set[same]) same++;
            for (int32_t k = same; k < order - 1; k++) {
                const uint64_t *item = bitmaps + (int64_t)set[k] * words;
                if (k) {
                    intersect(partial + k * words, prefix[k - 1], item, words);
                    item = partial + k * words;
                }
                prefix[k] = item;
            }
            before = set;
            ready = order - 1;
            const uint64_t *last = bitmaps + (int64_t)set[order - 1] * words;
            if (marks)
                intersect(marks + i * ((rows + 63) / 64) + start / 64, order > 1 ? prefix[order - 2] : last, last,
                          (block + 63) / 64);
            counts[i] += count_both(order > 1 ? prefix[order - 2] : last, last, words);
            if (counts[i] <= limits[i]) alive[kept++] = i;
        }
        left = kept;
    }
    free(bitmaps); free(partial); free(alive); free(is_asked);
    return failed;
}
