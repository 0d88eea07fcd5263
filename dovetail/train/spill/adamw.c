/* One pass of Adam or AdamW over a stretch of parameters: reads the gradient as it came from the device, writes the
 * weights as they travel back. torch has no such kernel: its fused update wants float32 gradients and leaves the
 * conversion of weights to a second pass, which costs a third of the memory traffic again. Called from several
 * threads at once, each with a stretch of its own; no threads of its own, no allocation. */
#include <math.h>
#include <stdint.h>
#include <string.h>

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

#define BODY(GRADIENT, STORE)                                                                                  \
    for (int64_t i = 0; i < count; i++) {                                                                      \
        float gradient = (GRADIENT) * scale, value = weight[i];                                                \
        if (decoupled) value *= 1.0f - rate * decay; else gradient += decay * value;                           \
        float first = mean[i] + (gradient - mean[i]) * (1.0f - beta1);                                         \
        float second = square[i] * beta2 + (1.0f - beta2) * gradient * gradient;                               \
        mean[i] = first;                                                                                       \
        square[i] = second;                                                                                    \
        value -= step_size * first / (sqrtf(second) * inverse_root + epsilon);                                 \
        weight[i] = value;                                                                                     \
        STORE;                                                                                                 \
    }

/* step_size = rate / (1 - beta1^t); inverse_root = 1 / sqrt(1 - beta2^t); travel may be null where the weights travel
 * as they are. */
void adamw(float *restrict weight, float *restrict mean, float *restrict square, const void *restrict gradients,
           uint16_t *restrict travel, int64_t count, int32_t half_gradients, int32_t decoupled, float scale,
           float rate, float beta1, float beta2, float epsilon, float decay, float step_size, float inverse_root) {
    const uint16_t *half = gradients;
    const float *full = gradients;
    if (half_gradients && travel) { BODY(widen(half[i]), travel[i] = narrow(value)) }
    else if (half_gradients) { BODY(widen(half[i]), (void)0) }
    else if (travel) { BODY(full[i], travel[i] = narrow(value)) }
    else { BODY(full[i], (void)0) }
}
