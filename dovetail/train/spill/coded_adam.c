/* One pass of Adam or AdamW over stretches of parameters that are kept in fewer bits: moments in 8 (blocks of 256 with a
 * scale each), in bf16 by chance, or in 32; weights in 32, or in bf16 by chance, which are then those that travel. 16
 * bytes of memory a parameter with moments in 8 bits where exact ones move 28, 10 with weights in bf16, too. What it
 * computes, and in which order every operation rounds, is docs/numeric.md's; plain torch (train/numeric) gives the same
 * bits. So nothing here may be contracted or reassociated: it is compiled by other flags than adamw.c.
 *
 * A block goes through buffers in the first cache, one short loop after another, each of which compilers turn into
 * vectors. Codes are the upper bits of floats, less an offset: the loops about them keep to numbers of 16 bits where they
 * can, of which a vector holds twice as many. */
#include "update_pool.h"

enum { BLOCK = 256, AHEAD = 512, SHIFT = 20, ONE = 127 << 3 };
#define TINY 0x1p-100f

/* The update of one parameter, whose moments have `bits` each, and scales where these are 8; travel may be null. Of the
 * keys, each is added to an element's place, which decides how it is rounded. */
typedef struct {
    void *weight, *mean, *square;
    float *mean_scale, *square_scale;
    const void *gradients;
    uint16_t *travel;
    int64_t count;
    int32_t bits, half_weights, half_gradients, decoupled;
    uint32_t weight_key, mean_key, square_key;
    float scale, kept, decay, beta1, new1, beta2, new2, step_size, inverse_root, epsilon;
} stretch;

#define INLINE static inline __attribute__((always_inline))

INLINE void widen_all(const uint16_t *restrict halves, float *restrict numbers, int count) {
    for (int i = 0; i < count; i++) numbers[i] = widen(halves[i]);
}

INLINE void narrow_all(const float *restrict numbers, uint16_t *restrict halves, int count) {
    for (int i = 0; i < count; i++) halves[i] = narrow(numbers[i]);
}

/* Rounds to bf16 by chance: 16 random bits of the place and the key are added, the lower half is cut off. */
INLINE void round_by_chance(const float *restrict numbers, uint16_t *restrict halves, int count, uint32_t place) {
    for (int i = 0; i < count; i++) {
        uint32_t mixed = place + (uint32_t)i, raw; /* the finalizer of MurmurHash3 */
        mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6Bu;
        mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35u;
        mixed ^= mixed >> 16;
        memcpy(&raw, numbers + i, 4);
        uint16_t rounded = (uint16_t)((raw + (mixed & 0xFFFFu)) >> 16);
        halves[i] = (raw & 0x7F800000u) == 0x7F800000u ? narrow(numbers[i]) : rounded;
    }
}

INLINE float decode(uint8_t code, float scale, const int bits) {
    const uint16_t last = (uint16_t)((1 << bits) - 1), offset = (uint16_t)(ONE - last);
    uint16_t whole = code, place = whole & last;
    uint16_t upper = (uint16_t)((uint16_t)(place + offset) << (SHIFT - 16)); /* of the float; the lower is none */
    upper = place ? upper : 0;
    if (bits == 7) upper |= (uint16_t)((whole & 128) << 8);
    return widen(upper) * scale;
}

/* Gives the scale; `largest` are the bits of the largest magnitude, whose order is that of numbers, and NaN comes last. */
INLINE float encode(const float *restrict numbers, uint8_t *restrict codes, int count, int32_t largest, const int bits) {
    const uint16_t last = (uint16_t)((1 << bits) - 1), one = ONE, offset = (uint16_t)(one - last);
    float scale, inverse;
    memcpy(&scale, &largest, 4);
    if (scale < TINY) scale = inverse = 0.0f;
    else inverse = 1.0f / scale;
    for (int i = 0; i < count; i++) {
        float part = fabsf(numbers[i]) * inverse;
        uint32_t raw, whole;
        memcpy(&raw, &part, 4);
        memcpy(&whole, numbers + i, 4);
        uint16_t near = (uint16_t)((raw + (0x7FFFFu + ((raw >> SHIFT) & 1u))) >> SHIFT);
        near = near > offset ? near : offset;
        near = near < one ? near : one;
        near = (uint16_t)(near - offset);
        if (bits == 7) {
            near |= (uint16_t)(whole >> 16) >> 8 & 128;
        } else { /* a first moment is divided by the root of it */
            uint16_t least = (uint16_t)(raw < 1u ? raw : 1u);
            near = near > least ? near : least;
        }
        codes[i] = (uint8_t)near;
    }
    return scale;
}

/* Both moments go to buffers where these are not in 32 bits. The divider is what a vector waits for longest: what else
 * there is to do of an element is in the same loop, beside it. */
INLINE void move(const stretch *whole, int64_t at, int count, float *restrict weight, float *restrict mean,
                 float *restrict square, int32_t *largest, const int bits, const int half_gradients) {
    const uint8_t *restrict code1 = (const uint8_t *)whole->mean + at, *restrict code2 = (const uint8_t *)whole->square + at;
    const uint16_t *restrict half1 = (const uint16_t *)whole->mean + at;
    const uint16_t *restrict half2 = (const uint16_t *)whole->square + at;
    const uint16_t *restrict half = (const uint16_t *)whole->gradients + at;
    const float *restrict full = (const float *)whole->gradients + at;
    const float scale1 = bits == 8 ? whole->mean_scale[at / BLOCK] : 0.0f;
    const float scale2 = bits == 8 ? whole->square_scale[at / BLOCK] : 0.0f;
    const int decoupled = whole->decoupled;
    const float scale = whole->scale, kept = whole->kept, decay = whole->decay, beta1 = whole->beta1;
    const float new1 = whole->new1, beta2 = whole->beta2, new2 = whole->new2, step_size = whole->step_size;
    const float inverse_root = whole->inverse_root, epsilon = whole->epsilon;
    int32_t largest1 = 0, largest2 = 0;
    for (int i = 0; i < count; i++) {
        float gradient = (half_gradients ? widen(half[i]) : full[i]) * scale, value = weight[i];
        if (decoupled) value = value * kept; else gradient = gradient + value * decay;
        float first = bits == 8 ? decode(code1[i], scale1, 7) : bits == 16 ? widen(half1[i]) : mean[i];
        float second = bits == 8 ? decode(code2[i], scale2, 8) : bits == 16 ? widen(half2[i]) : square[i];
        first = first * beta1 + gradient * new1;
        second = second * beta2 + (gradient * gradient) * new2;
        mean[i] = first;
        square[i] = second;
        weight[i] = value - first / (sqrtf(second) * inverse_root + epsilon) * step_size;
        int32_t raw1, raw2;
        memcpy(&raw1, &first, 4);
        memcpy(&raw2, &second, 4);
        raw1 &= 0x7FFFFFFF;
        raw2 &= 0x7FFFFFFF;
        largest1 = raw1 > largest1 ? raw1 : largest1;
        largest2 = raw2 > largest2 ? raw2 : largest2;
    }
    largest[0] = largest1;
    largest[1] = largest2;
}

static void expect(const stretch *whole, int64_t later) {
    int moments = whole->bits / 8, weights = whole->half_weights ? 2 : 4, gradients = whole->half_gradients ? 2 : 4;
    EXPECT((char *)whole->weight + later * weights, BLOCK * weights, 1)
    EXPECT((char *)whole->mean + later * moments, BLOCK * moments, 1)
    EXPECT((char *)whole->square + later * moments, BLOCK * moments, 1)
    EXPECT((const char *)whole->gradients + later * gradients, BLOCK * gradients, 0)
}

#ifdef __AVX512BW__
#include "coded_vectors.h"
#else
enum { HAS_LANES = 0 };
static void update_lanes(const stretch *whole, int64_t at, int64_t later, float *weight) {}
static void store_lanes(uint16_t *travel, const float *weight) {}
#endif

/* `later` is the place of the block that is asked for beside this one, 0 where there is none. */
static void update_block(const stretch *whole, int64_t at, int count, int64_t later) {
    _Alignas(64) float first[BLOCK], second[BLOCK], value[BLOCK];
    _Alignas(64) uint16_t halves[BLOCK];
    float *weight = whole->half_weights ? value : (float *)whole->weight + at;
    int32_t largest[2], half = whole->half_gradients;
    if (whole->half_weights) widen_all((const uint16_t *)whole->weight + at, value, count);
    if (HAS_LANES && whole->bits == 8 && count == BLOCK) {
        update_lanes(whole, at, later, weight);
    } else if (whole->bits == 8) {
        if (half) move(whole, at, count, weight, first, second, largest, 8, 1);
        else move(whole, at, count, weight, first, second, largest, 8, 0);
        whole->mean_scale[at / BLOCK] = encode(first, (uint8_t *)whole->mean + at, count, largest[0], 7);
        whole->square_scale[at / BLOCK] = encode(second, (uint8_t *)whole->square + at, count, largest[1], 8);
    } else if (whole->bits == 16) {
        if (half) move(whole, at, count, weight, first, second, largest, 16, 1);
        else move(whole, at, count, weight, first, second, largest, 16, 0);
        round_by_chance(first, (uint16_t *)whole->mean + at, count, (uint32_t)at + whole->mean_key);
        round_by_chance(second, (uint16_t *)whole->square + at, count, (uint32_t)at + whole->square_key);
    } else {
        float *mean = (float *)whole->mean + at, *square = (float *)whole->square + at;
        if (half) move(whole, at, count, weight, mean, square, largest, 32, 1);
        else move(whole, at, count, weight, mean, square, largest, 32, 0);
    }
    if (whole->half_weights) {
        round_by_chance(value, (uint16_t *)whole->weight + at, count, (uint32_t)at + whole->weight_key);
    } else if (HAS_LANES && whole->travel && count == BLOCK) {
        store_lanes(whole->travel + at, weight);
    } else if (whole->travel) {
        narrow_all(weight, halves, count);
        store(whole->travel + at, halves, count);
    }
}

static void update(const stretch *whole, int64_t start) {
    int64_t end = whole->count - start < PIECE ? whole->count : start + PIECE;
    for (int64_t at = start; at < end; at += BLOCK) {
        int64_t later = at + AHEAD + BLOCK <= end ? at + AHEAD : 0;
        if (later && !(HAS_LANES && whole->bits == 8)) expect(whole, later);
        update_block(whole, at, end - at < BLOCK ? (int)(end - at) : BLOCK, later);
    }
#ifdef __SSE2__
    _mm_sfence(); /* whoever copies the weights next must find them in memory */
#endif
}

#define UPDATE_POOL
#include "update_pool.h"
