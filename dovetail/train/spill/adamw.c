/* One pass of Adam or AdamW over a stretch of parameters: reads the gradient as it came from the device, writes the
 * weights as they travel back. torch has no such kernel: its fused update wants float32 gradients and leaves the
 * conversion of weights to a second pass, which costs a third of the memory traffic again. Called from several
 * threads at once, each with a stretch of its own; no threads of its own, no allocation. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { STRIP = 2048 }; /* its halves stay in the first cache until they are stored */

static inline float widen(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Rounds to nearest, ties to even, as torch does; NaN stays NaN. */
static inline uint16_t narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return value != value ? (uint16_t)0x7FC0 : (uint16_t)rounded;
}

/* The host does not read what travels, so on x86 it is stored past the caches: memory is not read first only to be
 * overwritten, which is 2 of 30 bytes a parameter. */
static inline void store(uint16_t *travel, const uint16_t *halves, int64_t count) {
    int64_t i = 0;
#ifdef __SSE2__
    if ((uintptr_t)travel % 16 == 0)
        for (; i + 8 <= count; i += 8)
            _mm_stream_si128((__m128i *)(travel + i), _mm_load_si128((const __m128i *)(halves + i)));
#endif
    memcpy(travel + i, halves + i, (size_t)(count - i) * sizeof *travel);
}

#define BODY(GRADIENT, STORE)                                                                                  \
    for (int64_t start = 0; start < count; start += STRIP) {                                                   \
        int64_t end = start + STRIP < count ? start + STRIP : count;                                           \
        for (int64_t i = start; i < end; i++) {                                                                \
            float gradient = (GRADIENT) * scale, value = weight[i];                                            \
            if (decoupled) value *= 1.0f - rate * decay; else gradient += decay * value;                       \
            float first = mean[i] + (gradient - mean[i]) * (1.0f - beta1);                                     \
            float second = square[i] * beta2 + (1.0f - beta2) * gradient * gradient;                           \
            mean[i] = first;                                                                                   \
            square[i] = second;                                                                                \
            value -= step_size * first / (sqrtf(second) * inverse_root + epsilon);                             \
            weight[i] = value;                                                                                 \
            STORE;                                                                                             \
        }                                                                                                      \
        if (travel) store(travel + start, halves, end - start);                                                \
    }

/* step_size = rate / (1 - beta1^t); inverse_root = 1 / sqrt(1 - beta2^t); travel may be null where the weights travel
 * as they are. */
void adamw(float *restrict weight, float *restrict mean, float *restrict square, const void *restrict gradients,
           uint16_t *restrict travel, int64_t count, int32_t half_gradients, int32_t decoupled, float scale,
           float rate, float beta1, float beta2, float epsilon, float decay, float step_size, float inverse_root) {
    const uint16_t *half = gradients;
    const float *full = gradients;
    _Alignas(64) uint16_t halves[STRIP];
    if (half_gradients && travel) { BODY(widen(half[i]), halves[i - start] = narrow(value)) }
    else if (half_gradients) { BODY(widen(half[i]), (void)0) }
    else if (travel) { BODY(full[i], halves[i - start] = narrow(value)) }
    else { BODY(full[i], (void)0) }
#ifdef __SSE2__
    _mm_sfence(); /* whoever copies the weights next must find them in memory */
#endif
}
