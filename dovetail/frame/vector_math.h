/* Elementary functions that a compiler turns into vector instructions: no branches, no tables, no calls.

Each is within the units in the last place that operations.py states of it, over all doubles, with NumPy's answers for
NaN, infinities and zeros; tests/frame/test_vector_math.py holds them to it. Those of sine and cosine reduce their
argument with three constants of 33 bits, which is exact up to TRIGONOMETRIC_LIMIT; beyond, the caller asks libm. The
polynomials of log and atan are those of FDLIBM (Sun Microsystems, 1993, freely granted); those of exp, erf, sin and
asin were fitted to the least largest error. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define TRIGONOMETRIC_LIMIT 1e5
#define INLINE static inline __attribute__((always_inline))

INLINE int64_t bits_of(double x) { int64_t i; memcpy(&i, &x, 8); return i; }
INLINE double of_bits(int64_t i) { double x; memcpy(&x, &i, 8); return x; }
/* One rounding where the processor has the instruction, two where it has none; both stay within what is stated. */
INLINE double fused(double a, double b, double c) {
#ifdef __FP_FAST_FMA
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

/* Added and taken away again, this rounds to a whole number, which stands in the low bits in between. */
#define ROUNDER 0x1.8p52

/* a[0] + a[1] x + ... in pairs, whose chains are short: a processor works on several at once. */
#define PAIR(x, a, b) fused(x, b, a)
#define QUAD(x, x2, a, b, c, d) fused(x2, PAIR(x, c, d), PAIR(x, a, b))

/* 2^k e^r, for |x| < 708: neither the result nor 2^k leaves the normal numbers. */
INLINE int64_t exp_is_within(double x) { return fabs(x) < 708.0; }
INLINE double v_exp(double x) {
    double shifted = fused(x, 0x1.71547652b82fep0, ROUNDER);
    double k = shifted - ROUNDER;
    double r = fused(k, -0x1.62e42fee00000p-1, x);
    r = fused(k, -0x1.a39ef35793c76p-33, r);
    double r2 = r * r, r4 = r2 * r2;
    double p = QUAD(r, r2, 0x1.000000000000ap-1, 0x1.55555555554fap-3, 0x1.5555555550828p-5, 0x1.1111111127c52p-7);
    double q = QUAD(r, r2, 0x1.6c16c1843e216p-10, 0x1.a01a012a0732fp-13, 0x1.a01999d13d54dp-16, 0x1.71df265f1dd86p-19);
    q = fused(r4, PAIR(r, 0x1.28adadbba8b3ep-22, 0x1.ad7d6329243bep-26), q);
    p = fused(r4, q, p);
    p = fused(p, r2, r) + 1.0;
    return of_bits(bits_of(p) + (bits_of(shifted) << 52)); /* k stands in the low bits of shifted */
}

/* log m + k log 2 for positive normal x = m 2^k, m in [sqrt(1/2), sqrt(2)). */
INLINE int64_t log_is_within(double x) {
    return (uint64_t)(bits_of(x) - 0x0010000000000000LL) < 0x7fe0000000000000ULL;
}
INLINE double v_log(double x) {
    int64_t bits = bits_of(x);
    int64_t moved = bits - 0x3fe6a09e667f3bcdLL;
    double m = of_bits(bits - (moved & (int64_t)0xfff0000000000000ULL));
    double k = of_bits((moved >> 52) + bits_of(ROUNDER)) - ROUNDER;
    double f = m - 1.0;
    double s = f / (2.0 + f);
    double z = s * s, w = z * z;
    double odd = w * fused(w, fused(w, 0x1.39a09d078c69fp-3, 0x1.c71c51d8e78afp-3), 0x1.999999997fa04p-2);
    double even = z * QUAD(w, w * w, 0x1.5555555555593p-1, 0x1.2492494229359p-2, 0x1.7466496cb03dep-3, 0x1.2f112df3e5244p-3);
    double half = 0.5 * f * f;
    double low = fused(s, half + (odd + even), k * 0x1.a39ef35793c76p-33);
    return k * 0x1.62e42fee00000p-1 - ((half - low) - f);
}

/* Sine of x + ahead * pi, ahead being 0 or 1/2: of what is left to the next multiple of pi, in two parts. */
INLINE double sine(double x, double ahead) {
    double shifted = fused(x, 0x1.45f306dc9c883p-2, ahead) + ROUNDER;
    double k = (shifted - ROUNDER) - ahead;
    double first = x - k * 0x1.921fb54400000p+1;
    double second = k * 0x1.0b4611a600000p-33;
    double y = first - second;
    double tail = ((first - y) - second) - k * 0x1.3198a2e037073p-68;
    double z = y * y, z2 = z * z, z4 = z2 * z2;
    double p = QUAD(z, z2, 0x1.11111111110c9p-7, -0x1.a01a01a014ebep-13, 0x1.71de3a52a9d7fp-19, -0x1.ae6454d8a0a0bp-26);
    double q = fused(z2, 0x1.8839ac0410ed2p-49, PAIR(z, 0x1.6123ce10456edp-33, -0x1.ae43c845930a8p-41));
    double cube = y * z;
    double cosine = fused(z, fused(z, 0x1.5555555555555p-5, -0.5), 1.0); /* near enough for what it multiplies */
    double s = y + fused(cube, -0x1.5555555555555p-3, fused(cube * z, fused(z4, q, p), tail * cosine));
    return of_bits(bits_of(s) ^ (bits_of(shifted) << 63)); /* k stands in the low bits of shifted */
}
INLINE double v_sin(double x) { double s = sine(x, 0.0); return x == 0.0 ? x : s; } /* -0.0 stays what it is */
INLINE double v_cos(double x) { return sine(x, 0.5); }

/* asin s = s + s r, for z = s^2 up to 1/4. */
INLINE double arc_excess(double z) {
    double z2 = z * z, z4 = z2 * z2;
    double p = QUAD(z, z2, 0x1.555555555550ap-3, 0x1.3333333348b25p-4, 0x1.6db6db580aabcp-5, 0x1.f1c725fa90520p-6);
    double q = QUAD(z, z2, 0x1.6e8a7c7d0c806p-6, 0x1.1c6481889bdacp-6, 0x1.c784bcc1480e8p-7, 0x1.8b886bfd8d5e8p-7);
    double t = QUAD(z, z2, 0x1.c60177fe18f43p-8, 0x1.2f102bc163b3dp-6, -0x1.e177d93dbf4ddp-7, 0x1.fa840a91293dbp-6);
    return z * fused(z4, fused(z4, t, q), p);
}
/* What is to be added to twice the root s of z, rounded: (z - s^2) / s, of which few digits count. */
INLINE double root_rest(double z, double s) {
#ifdef __FP_FAST_FMA
    double rest = __builtin_fma(-s, s, z);
#else
    double f = of_bits(bits_of(s) & (int64_t)0xffffffff00000000ULL);
    double rest = (z - f * f) - (s - f) * (s + f);
#endif
    return (float)rest / (float)(s + 0x1p-100);
}
/* a - b - c, for a >= b and a small c. */
INLINE double less_both(double a, double b, double c) {
    double high = a - b;
    return high + (((a - high) - b) - c);
}
#define HALF_PI 0x1.921fb54442d18p0
#define HALF_PI_REST 0x1.1a62633145c07p-54
/* Beyond one half, asin a = pi/2 - 2 asin sqrt((1 - a) / 2). */
INLINE double v_arcsin(double x) {
    double a = fabs(x);
    double z = a > 0.5 ? (1.0 - a) * 0.5 : x * x;
    double s = sqrt(z), r = arc_excess(z);
    double far = less_both(HALF_PI, 2.0 * s, fused(2.0 * s, r, root_rest(z, s)) - HALF_PI_REST);
    return copysign(a > 0.5 ? far : fused(a, r, a), x);
}
INLINE double v_arccos(double x) {
    double a = fabs(x);
    double z = a > 0.5 ? (1.0 - a) * 0.5 : x * x;
    double s = sqrt(z), r = arc_excess(z);
    double rest = fused(2.0 * s, r, root_rest(z, s));
    double near = HALF_PI - (x - (HALF_PI_REST - x * r));
    double below = less_both(2.0 * HALF_PI, 2.0 * s, rest - 2.0 * HALF_PI_REST);
    return a > 0.5 ? (x < 0.0 ? below : 2.0 * s + rest) : near;
}

INLINE double v_arctan(double x) {
    double a = fabs(x);
    int64_t high = a > 0x1.3504f333f9de6p1, middle = a > 0x1.a827999fcef32p-2;
    double top = high ? -1.0 : (middle ? a - 1.0 : a);
    double bottom = high ? a : (middle ? a + 1.0 : 1.0);
    double hi = high ? 0x1.921fb54442d18p0 : (middle ? 0x1.921fb54442d18p-1 : 0.0);
    double lo = high ? 0x1.1a62633145c07p-54 : (middle ? 0x1.1a62633145c07p-55 : 0.0);
    double t = top / bottom, z = t * t, w = z * z;
    double even = z * fused(w, fused(w, fused(w, fused(w, fused(w, 0x1.0ad3ae322da11p-6, 0x1.97b4b24760debp-5), 0x1.10d66a0d03d51p-4),
                            0x1.745cdc54c206ep-4), 0x1.24924920083ffp-3), 0x1.555555555550dp-2);
    double odd = w * fused(w, fused(w, fused(w, fused(w, -0x1.2b4442c6a6c2fp-5, -0x1.dde2d52defd9ap-5), -0x1.3b0f2af749a6dp-4),
                           -0x1.c71c6fe231671p-4), -0x1.999999998ebc4p-3);
    double y = hi - ((t * (even + odd) - lo) - t);
    return copysign(y, x);
}

/* Below one, x + x P(x^2); from there on 1 - e^Q(x), which is 1 from 6 on. */
INLINE double v_erf(double x) {
    double a = fabs(x);
    double z = x * x, z2 = z * z, z4 = z2 * z2;
    double p = QUAD(z, z2, 0x1.06eba8214db68p-3, -0x1.812746b0379c2p-2, 0x1.ce2f21a041015p-4, -0x1.b82ce3120623cp-6);
    double p4 = QUAD(z, z2, 0x1.565bccfa999f0p-8, -0x1.c02db072d5928p-11, 0x1.f9a2bf7161a6fp-14, -0x1.f4ca947580bdbp-17);
    double p8 = QUAD(z, z2, 0x1.b98279da3c8bdp-20, -0x1.5c16dc20acb8bp-23, 0x1.d7846793e7a47p-27, -0x1.acdf81291f529p-31);
    double near = fused(x, fused(z4, fused(z4, p8, p4), p), x);
    double b = a < 6.0 ? a : 6.0;
    double b2 = b * b, b4 = b2 * b2, b8 = b4 * b4;
    double q = QUAD(b, b2, -0x1.15234779c841fp-21, -0x1.20dd1db6e85bcp+0, -0x1.45f639d5f5c62p-1, -0x1.a4aaccd4d8936p-4);
    double q4 = QUAD(b, b2, 0x1.3716f0366b77ep-6, 0x1.b28cd04647762p-12, -0x1.f7484a2bf5759p-10, 0x1.95b0bc5d7a717p-11);
    double q8 = QUAD(b, b2, -0x1.1f601be18e18fp-13, -0x1.438a3b23736e3p-16, 0x1.78751e8fb6fcdp-16, -0x1.1ee036328467cp-17);
    double q12 = QUAD(b, b2, 0x1.1ae71a067f8c1p-19, -0x1.8b72f74d63963p-22, 0x1.891b2213af8f7p-25, -0x1.0a3feb45c7f15p-28);
    q12 = fused(b4, PAIR(b, 0x1.ba57d397f7e45p-33, -0x1.54ba817fdd749p-38), q12);
    q = fused(b8, fused(b4, q12, q8), fused(b4, q4, q));
    double far = copysign(1.0 - v_exp(q), x);
    return a >= 1.0 ? far : near; /* NaN is near */
}
