/* Whole blocks with moments in 8 bits by vectors of 512 bits: what `move` and `encode` of coded_adam.c do, to the bit, in
 * a third of their time. Compilers leave codes in vectors of as many numbers as there are bytes, and shuffle them there
 * and back; here four vectors become one of codes by packing, which also cuts off what is below the first code. Dividing
 * and taking roots keep one unit busy for 22 of 34 cycles of 16 numbers on a Skylake. */
#include <immintrin.h>

enum { HAS_LANES = 1, LANES = 16, GROUP = 4 * LANES };

/* Adds what rounds to nearest, ties to even, when the bits below `one` are cut off. */
INLINE __m512i add_half(__m512i raw, int32_t one, int32_t more) {
    __mmask16 odd = _mm512_test_epi32_mask(raw, _mm512_set1_epi32(one));
    __m512i sum = _mm512_add_epi32(raw, _mm512_set1_epi32(one / 2 - 1 + more));
    return _mm512_mask_add_epi32(sum, odd, sum, _mm512_set1_epi32(1));
}

/* The float of a code whose sign, where it has one, is already extended; below its offset from those of numbers. */
INLINE __m512 decode_lanes(__m512i codes, __m512 scale, const int bits) {
    const int32_t last = (1 << bits) - 1, offset = (ONE - last) << SHIFT;
    __mmask16 some = _mm512_test_epi32_mask(codes, _mm512_set1_epi32(last));
    __m512i raw = _mm512_slli_epi32(codes, SHIFT);
    if (bits == 7) raw = _mm512_and_si512(raw, _mm512_set1_epi32((int32_t)(0x80000000u | (uint32_t)last << SHIFT)));
    raw = _mm512_mask_add_epi32(raw, some, raw, _mm512_set1_epi32(offset));
    return _mm512_mul_ps(_mm512_castsi512_ps(raw), scale);
}

INLINE __m512i pack_lanes(__m512i a, __m512i b, __m512i c, __m512i d) {
    return _mm512_packus_epi16(_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d));
}

/* Packing takes 4 of each vector in turn. */
INLINE void store_codes(uint8_t *codes, __m512i packed) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(codes, _mm512_permutexvar_epi32(order, packed));
}

INLINE float encode_lanes(const float *restrict numbers, uint8_t *restrict codes, int32_t largest, const int bits) {
    const int32_t last = (1 << bits) - 1, offset = (ONE - last) << SHIFT;
    if (largest >= 0x7F800000) return encode(numbers, codes, BLOCK, largest, bits); /* codes of what is no number */
    float scale, inverse;
    memcpy(&scale, &largest, 4);
    if (scale < TINY) scale = inverse = 0.0f;
    else inverse = 1.0f / scale;
    const __m512 factor = _mm512_set1_ps(inverse);
    for (int i = 0; i < BLOCK; i += GROUP) {
        __m512i near[4], whole[4];
        for (int j = 0; j < 4; j++) {
            whole[j] = _mm512_load_si512(numbers + i + j * LANES);
            __m512i number = bits == 8 ? whole[j] : _mm512_and_si512(whole[j], _mm512_set1_epi32(0x7FFFFFFF));
            __m512i raw = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(number), factor));
            near[j] = _mm512_srai_epi32(add_half(raw, 1 << SHIFT, -offset), SHIFT);
            if (bits == 8) near[j] = _mm512_max_epi32(near[j], _mm512_min_epu32(raw, _mm512_set1_epi32(1)));
        }
        __m512i packed = pack_lanes(near[0], near[1], near[2], near[3]);
        if (bits == 7) {
            __m512i signs = _mm512_packs_epi16(_mm512_packs_epi32(whole[0], whole[1]),
                                               _mm512_packs_epi32(whole[2], whole[3]));
            packed = _mm512_ternarylogic_epi32(packed, signs, _mm512_set1_epi8(-128), 0xF8); /* a | (b & c) */
        }
        store_codes(codes + i, packed);
    }
    return scale;
}

INLINE __m512i narrow_lanes(const float *weight) {
    __m512 value = _mm512_loadu_ps(weight);
    __m512i rounded = _mm512_srli_epi32(add_half(_mm512_castps_si512(value), 1 << 16, 0), 16);
    __mmask16 none = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(rounded, none, _mm512_set1_epi32(0x7FC0));
}

/* Past the caches, by whole lines. */
static void store_lanes(uint16_t *travel, const float *weight) {
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    for (int i = 0; i < BLOCK; i += 2 * LANES) {
        __m512i packed = _mm512_packus_epi32(narrow_lanes(weight + i), narrow_lanes(weight + i + LANES));
        packed = _mm512_permutexvar_epi64(order, packed);
        if ((uintptr_t)travel % LINE == 0) _mm512_stream_si512((__m512i *)(travel + i), packed);
        else _mm512_storeu_si512(travel + i, packed);
    }
}

INLINE void expect_lanes(const stretch *whole, int64_t place) {
    int weights = whole->half_weights ? 2 : 4, gradients = whole->half_gradients ? 2 : 4;
    __builtin_prefetch((char *)whole->weight + place * weights, 1);
    __builtin_prefetch((const char *)whole->gradients + place * gradients, 0);
    if (place % GROUP) return;
    __builtin_prefetch((char *)whole->mean + place, 1);
    __builtin_prefetch((char *)whole->square + place, 1);
}

/* Of a block whose successors are asked for line by line beside it: all at once, they would wait for one another. */
INLINE void move_lanes(const stretch *whole, int64_t at, int64_t later, float *restrict weight, float *restrict mean,
                       float *restrict square, int32_t *largest, const int half_gradients, const int decoupled) {
    const uint8_t *code1 = (const uint8_t *)whole->mean, *code2 = (const uint8_t *)whole->square;
    const uint16_t *half = (const uint16_t *)whole->gradients;
    const float *full = (const float *)whole->gradients;
    const __m512 scale1 = _mm512_set1_ps(whole->mean_scale[at / BLOCK]);
    const __m512 scale2 = _mm512_set1_ps(whole->square_scale[at / BLOCK]);
    const __m512 scale = _mm512_set1_ps(whole->scale), kept = _mm512_set1_ps(whole->kept);
    const __m512 decay = _mm512_set1_ps(whole->decay), beta1 = _mm512_set1_ps(whole->beta1);
    const __m512 new1 = _mm512_set1_ps(whole->new1), beta2 = _mm512_set1_ps(whole->beta2);
    const __m512 new2 = _mm512_set1_ps(whole->new2), step_size = _mm512_set1_ps(whole->step_size);
    const __m512 inverse_root = _mm512_set1_ps(whole->inverse_root), epsilon = _mm512_set1_ps(whole->epsilon);
    const __m512i positive = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i largest1 = _mm512_setzero_si512(), largest2 = largest1;
    for (int i = 0; i < BLOCK; i += LANES) {
        if (later) expect_lanes(whole, later + i);
        __m512i codes1 = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(code1 + at + i)));
        __m512i codes2 = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(code2 + at + i)));
        __m512 gradient, value = _mm512_loadu_ps(weight + i);
        if (half_gradients) {
            __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(half + at + i)));
            gradient = _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
        } else {
            gradient = _mm512_loadu_ps(full + at + i);
        }
        gradient = _mm512_mul_ps(gradient, scale);
        if (decoupled) value = _mm512_mul_ps(value, kept);
        else gradient = _mm512_add_ps(gradient, _mm512_mul_ps(value, decay));
        __m512 first = decode_lanes(codes1, scale1, 7), second = decode_lanes(codes2, scale2, 8);
        first = _mm512_add_ps(_mm512_mul_ps(first, beta1), _mm512_mul_ps(gradient, new1));
        second = _mm512_add_ps(_mm512_mul_ps(second, beta2), _mm512_mul_ps(_mm512_mul_ps(gradient, gradient), new2));
        _mm512_store_ps(mean + i, first);
        _mm512_store_ps(square + i, second);
        __m512 divisor = _mm512_add_ps(_mm512_mul_ps(_mm512_sqrt_ps(second), inverse_root), epsilon);
        value = _mm512_sub_ps(value, _mm512_mul_ps(_mm512_div_ps(first, divisor), step_size));
        _mm512_storeu_ps(weight + i, value);
        largest1 = _mm512_max_epi32(largest1, _mm512_and_si512(_mm512_castps_si512(first), positive));
        largest2 = _mm512_max_epi32(largest2, _mm512_and_si512(_mm512_castps_si512(second), positive));
    }
    largest[0] = _mm512_reduce_max_epi32(largest1);
    largest[1] = _mm512_reduce_max_epi32(largest2);
}

static void update_lanes(const stretch *whole, int64_t at, int64_t later, float *weight) {
    _Alignas(64) float first[BLOCK], second[BLOCK];
    int32_t largest[2];
    if (whole->half_gradients && whole->decoupled) move_lanes(whole, at, later, weight, first, second, largest, 1, 1);
    else if (whole->half_gradients) move_lanes(whole, at, later, weight, first, second, largest, 1, 0);
    else if (whole->decoupled) move_lanes(whole, at, later, weight, first, second, largest, 0, 1);
    else move_lanes(whole, at, later, weight, first, second, largest, 0, 0);
    whole->mean_scale[at / BLOCK] = encode_lanes(first, (uint8_t *)whole->mean + at, largest[0], 7);
    whole->square_scale[at / BLOCK] = encode_lanes(second, (uint8_t *)whole->square + at, largest[1], 8);
}
