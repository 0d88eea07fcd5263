/* What C and NumPy disagree about: division and remainder of whole numbers and floats, and how blocks are reduced. */
#define sine_is_within(x) (fabs(x) <= TRIGONOMETRIC_LIMIT)
#define SQRT(x) _Generic((x), float: sqrtf, default: sqrt)(x)
#define RADIANS(x) _Generic((x), float: (float)(M_PI / 180), default: M_PI / 180)
#define DEGREES(x) _Generic((x), float: (float)(180 / M_PI), default: 180 / M_PI)

/* Towards minus infinity; by zero, zero; the one quotient that does not fit wraps. */
#define FLOOR_DIVIDE(a, b) ((b) == 0 ? 0 : (b) == -1 ? -(a) : (a) / ((b) == 0 ? 1 : (b)) - ((a) % ((b) == 0 ? 1 : (b)) != 0 && (((a) < 0) != ((b) < 0))))
#define REMAINDER(a, b) ((b) == 0 || (b) == -1 ? 0 : (a) % ((b) == 0 ? 1 : (b)) + ((a) % ((b) == 0 ? 1 : (b)) != 0 && (((a) < 0) != ((b) < 0)) ? (b) : 0))

/* As NumPy's npy_divmod has it. */
INLINE double remaindered(double a, double b) {
    double rest = fmod(a, b);
    if (b == 0.0) return rest;
    if (rest == 0.0) return copysign(0.0, b);
    return (b < 0.0) != (rest < 0.0) ? rest + b : rest;
}
INLINE double floor_divided(double a, double b) {
    double rest = fmod(a, b);
    if (b == 0.0) return a / b;
    double quotient = (a - rest) / b;
    if (rest != 0.0 && (b < 0.0) != (rest < 0.0)) quotient -= 1.0;
    if (quotient == 0.0) return copysign(0.0, a / b);
    double down = floor(quotient);
    return quotient - down > 0.5 ? down + 1.0 : down;
}

/* A block has at most 256 elements: eight sums side by side, added pairwise, as NumPy adds 128. */
#define TYPE_f double
#define TYPE_i int64_t
#define TYPE_u uint64_t
#define REDUCE_SUM(slot, into, from, n) do { \
    TYPE_##slot s[8] = {0}; int64_t k = 0; \
    for (; k + 8 <= n; k += 8) for (int j = 0; j < 8; j++) s[j] += (TYPE_##slot)from[k + j]; \
    into = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])); \
    for (; k < n; k++) into += (TYPE_##slot)from[k]; } while (0)
#define REDUCE_MEAN REDUCE_SUM
#define REDUCE_PROD(slot, into, from, n) do { into = (TYPE_##slot)from[0]; for (int64_t k = 1; k < n; k++) into *= (TYPE_##slot)from[k]; } while (0)
#define REDUCE_MIN(slot, into, from, n) do { into = (TYPE_##slot)from[0]; for (int64_t k = 1; k < n; k++) COMBINE_MIN(into, (TYPE_##slot)from[k]); } while (0)
#define REDUCE_MAX(slot, into, from, n) do { into = (TYPE_##slot)from[0]; for (int64_t k = 1; k < n; k++) COMBINE_MAX(into, (TYPE_##slot)from[k]); } while (0)
#define REDUCE_ANY(slot, into, from, n) do { into = 0; for (int64_t k = 0; k < n; k++) into |= from[k]; } while (0)
#define REDUCE_ALL(slot, into, from, n) do { into = 1; for (int64_t k = 0; k < n; k++) into &= from[k]; } while (0)
#define COMBINE_SUM(a, b) a += b
#define COMBINE_MEAN COMBINE_SUM
#define COMBINE_PROD(a, b) a *= b
/* NaN stays. */
#define COMBINE_MIN(a, b) a = (a < (b) || a != a) ? a : (b)
#define COMBINE_MAX(a, b) a = (a > (b) || a != a) ? a : (b)
#define COMBINE_ANY(a, b) a |= b
#define COMBINE_ALL(a, b) a &= b
