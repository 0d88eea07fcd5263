/* One pass of Adam or AdamW over stretches of parameters: reads the gradient as it came from the device, writes the
 * weights as they travel back. torch has no such kernel: its fused update wants float32 gradients and leaves the
 * conversion of weights to a second pass, which costs a third of the memory traffic again. */
#include "update_pool.h"

enum {
    STRIP = 2048, /* its halves stay in the first cache until they are stored */
    BLOCK = 64,   /* elements whose successors are asked for at once */
    AHEAD = 512   /* how many elements later those are: some 0.5 µs of work, what memory takes when copies share it */
};

#define BODY(GRADIENTS, GRADIENT, STORE)                                                                       \
    for (int64_t start = 0; start < count; start += STRIP) {                                                   \
        int64_t end = start + STRIP < count ? start + STRIP : count;                                           \
        for (int64_t block = start; block < end; block += BLOCK) {                                             \
            int64_t stop = block + BLOCK < end ? block + BLOCK : end, later = block + AHEAD;                   \
            if (later + BLOCK <= count) {                                                                      \
                EXPECT(weight + later, BLOCK, 1)                                                               \
                EXPECT(mean + later, BLOCK, 1)                                                                 \
                EXPECT(square + later, BLOCK, 1)                                                               \
                EXPECT(GRADIENTS + later, BLOCK, 0)                                                            \
            }                                                                                                  \
            for (int64_t i = block; i < stop; i++) {                                                           \
                float gradient = (GRADIENT) * scale, value = weight[i];                                        \
                if (decoupled) value *= 1.0f - rate * decay; else gradient += decay * value;                   \
                float first = mean[i] + (gradient - mean[i]) * (1.0f - beta1);                                 \
                float second = square[i] * beta2 + (1.0f - beta2) * gradient * gradient;                       \
                mean[i] = first;                                                                               \
                square[i] = second;                                                                            \
                value -= step_size * first / (sqrtf(second) * inverse_root + epsilon);                         \
                weight[i] = value;                                                                             \
                STORE;                                                                                         \
            }                                                                                                  \
        }                                                                                                      \
        if (travel) store(travel + start, halves, end - start);                                                \
    }

/* The update of one parameter. step_size = rate / (1 - beta1^t); inverse_root = 1 / sqrt(1 - beta2^t); travel may be
 * null where the weights travel as they are. */
typedef struct {
    float *weight, *mean, *square;
    const void *gradients;
    uint16_t *travel;
    int64_t count;
    int32_t half_gradients, decoupled;
    float scale, rate, beta1, beta2, epsilon, decay, step_size, inverse_root;
} stretch;

static void update(const stretch *whole, int64_t start) {
    int64_t count = whole->count - start < PIECE ? whole->count - start : PIECE;
    float *restrict weight = whole->weight + start, *restrict mean = whole->mean + start;
    float *restrict square = whole->square + start;
    uint16_t *restrict travel = whole->travel ? whole->travel + start : NULL;
    const uint16_t *half = (const uint16_t *)whole->gradients + start;
    const float *full = (const float *)whole->gradients + start;
    const int32_t half_gradients = whole->half_gradients, decoupled = whole->decoupled;
    const float scale = whole->scale, rate = whole->rate, beta1 = whole->beta1, beta2 = whole->beta2;
    const float epsilon = whole->epsilon, decay = whole->decay, step_size = whole->step_size;
    const float inverse_root = whole->inverse_root;
    _Alignas(64) uint16_t halves[STRIP];
    if (half_gradients && travel) { BODY(half, widen(half[i]), halves[i - start] = narrow(value)) }
    else if (half_gradients) { BODY(half, widen(half[i]), (void)0) }
    else if (travel) { BODY(full, full[i], halves[i - start] = narrow(value)) }
    else { BODY(full, full[i], (void)0) }
#ifdef __SSE2__
    _mm_sfence(); /* whoever copies the weights next must find them in memory */
#endif
}

#define UPDATE_POOL
#include "update_pool.h"
