/* Counting rows by bitmaps. A base is a value, or a bin, of one attribute, and has a bit for each row; an item is a
   range of bases of one attribute, its bitmap their union; a set is items of different attributes.

   Rows go by in blocks whose bitmaps stay in the cache, so that memory does not grow with rows, and a set leaves as
   soon as its count is above its limit: of sets that are no likelier among outliers most leave after a few blocks. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_WORDS 512
#define MOST_ORDER 32

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

/* How often each code occurs. `width` is the bytes of a code: 1, 2 or 4. */
void count_codes(const void *codes, int32_t width, int64_t rows, int64_t *counts)
{
#define COUNT(type) for (int64_t i = 0; i < rows; i++) counts[((const type *)codes)[i]]++
    if (width == 1) COUNT(uint8_t); else if (width == 2) COUNT(uint16_t); else COUNT(uint32_t);
#undef COUNT
}

/* Set the bit of each row, from `start` on, in the bitmap of its base. Rows whose base nobody asks for go to the
   bitmap behind the last, which nobody reads. */
static void fill(uint64_t *bitmaps, int64_t words, const void *codes, int32_t width, const int32_t *base_of,
                 int64_t start, int64_t rows)
{
#define FILL(type) for (int64_t i = 0; i < rows; i++) \
    bitmaps[base_of[((const type *)codes)[start + i]] * words + (i >> 6)] |= 1ull << (i & 63)
    if (width == 1) FILL(uint8_t); else if (width == 2) FILL(uint16_t); else FILL(uint32_t);
#undef FILL
}

/* Bitmaps of all items over some rows, each of `words`: bases first, then ranges, each of which ends with base
   `high` and otherwise is the item `rest`, shorter by that base. `bitmaps` has room for items + 1. */
void fill_items(uint64_t *bitmaps, int64_t words, int64_t start, int64_t rows, int32_t attributes,
                const void *const *codes, const int32_t *widths, const int32_t *const *base_of, int32_t bases,
                int32_t items, const int32_t *rest, const int32_t *high)
{
    /* What nobody reads lies where the first range will be, or behind the last base. */
    memset(bitmaps, 0, (size_t)(bases + 1) * words * 8);
    for (int32_t a = 0; a < attributes; a++) if (codes[a])
        fill(bitmaps, words, codes[a], widths[a], base_of[a], start, rows);
    for (int32_t i = bases; i < items; i++)
        for (int64_t w = 0; w < words; w++)
            bitmaps[i * words + w] = bitmaps[rest[i] * words + w] | bitmaps[high[i] * words + w];
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
                   const int32_t *high, const int32_t *sets, int64_t count, int32_t most, const int64_t *limits,
                   int64_t *counts, uint64_t *marks)
{
    const int64_t words = BLOCK_WORDS < (rows + 63) / 64 ? BLOCK_WORDS : (rows + 63) / 64;
    uint64_t *bitmaps = malloc((size_t)(items + 1) * words * 8);
    uint64_t *partial = malloc((size_t)MOST_ORDER * words * 8);
    int64_t *alive = malloc((size_t)count * 8 + 8), left = count;
    if (!bitmaps || !partial || !alive || most > MOST_ORDER) { free(bitmaps); free(partial); free(alive); return -1; }
    for (int64_t i = 0; i < count; i++) { alive[i] = i; counts[i] = 0; }
    for (int64_t start = 0; start < rows && left; start += words * 64) {
        int64_t block = rows - start < words * 64 ? rows - start : words * 64;
        fill_items(bitmaps, words, start, block, attributes, codes, widths, base_of, bases, items, rest, high);
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
    free(bitmaps); free(partial); free(alive);
    return 0;
}
