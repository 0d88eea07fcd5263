/* Elementary functions that a compiler turns into vector instructions: no branches, no tables, no calls.

Each is within the units in the last place that operations.py states of it, over all doubles, with NumPy's answers for
NaN, infinities and zeros; tests/frame/test_vector_math.py holds them to it. Those of sine and cosine reduce their
argument with three constants of 33 bits, which is exact up to TRIGONOMETRIC_LIMIT; beyond, the caller asks libm. The
polynomials of log, sin, cos, asin and atan are those of FDLIBM (Sun Microsystems, 1993, freely granted); those of exp
and erf were fitted to the least largest error. */
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

/* Sine of x + quarters * pi/2. */
INLINE double sine(double x, int64_t quarters) {
    double shifted = x * 0x1.45f306dc9c883p-1 + ROUNDER;
    double k = shifted - ROUNDER;
    int64_t quadrant = bits_of(shifted) + quarters;
    double first = x - k * 0x1.921fb54400000p0;
    double second = k * 0x1.0b4611a600000p-34;
    double y = first - second;
    double tail = ((first - y) - second) - k * 0x1.3198a2e037073p-69;
    double z = y * y, v = z * y, w = z * z;
    double r = fused(z, fused(z, fused(z, fused(z, 0x1.5d93a5acfd57cp-33, -0x1.ae5e68a2b9cebp-26), 0x1.71de357b1fe7dp-19),
                              -0x1.a01a019c161d5p-13), 0x1.111111110f8a6p-7);
    double s = y - ((z * (0.5 * tail - v * r) - tail) - v * -0x1.5555555555549p-3);
    double c = fused(z, fused(z, fused(z, -0x1.8fae9be8838d4p-37, 0x1.1ee9ebdb4b1c4p-29), -0x1.27e4f809c52adp-22), 0x1.a01a019cb1590p-16);
    c = fused(w, c, fused(z, -0x1.6c16c16c15177p-10, 0x1.555555555554cp-5)) * w;
    double h = 0.5 * z, one = 1.0 - h;
    c = one + (((1.0 - one) - h) + (c - y * tail));
    double chosen = quadrant & 1 ? c : s;
    return of_bits(bits_of(chosen) ^ ((quadrant & 2) << 62));
}
INLINE double v_sin(double x) { return sine(x, 0); }
INLINE double v_cos(double x) { return sine(x, 1); }

INLINE double arc_ratio(double z) {
    double p = z * fused(z, fused(z, fused(z, fused(z, fused(z, 0x1.23de10dfdf709p-15, 0x1.9efe07501b288p-11),
                         -0x1.48228b5688f3bp-5), 0x1.9c1550e884455p-3), -0x1.4d61203eb6f7dp-2), 0x1.5555555555555p-3);
    double q = fused(z, fused(z, fused(z, fused(z, 0x1.3b8c5b12e9282p-4, -0x1.6066c1b8d0159p-1), 0x1.02ae59c598ac8p1),
                              -0x1.33a271c8a2d4bp1), 1.0);
    return p / q;
}
/* Beyond one half, asin a = pi/2 - 2 asin sqrt((1 - a) / 2), the root in two parts. */
INLINE double v_arcsin(double x) {
    double a = fabs(x);
    double z = a < 0.5 ? x * x : (1.0 - a) * 0.5;
    double r = arc_ratio(z);
    double s = sqrt(z);
    double f = of_bits(bits_of(s) & (int64_t)0xffffffff00000000ULL);
    double c = s > 0.0 ? (z - f * f) / (s + f) : 0.0;
    double far = 0x1.921fb54442d18p-1 - ((2.0 * s * r - (0x1.1a62633145c07p-54 - 2.0 * c)) - (0x1.921fb54442d18p-1 - 2.0 * f));
    return a < 0.5 ? fused(x, r, x) : copysign(far, x);
}
INLINE double v_arccos(double x) {
    double a = fabs(x);
    double z = a < 0.5 ? x * x : (1.0 - a) * 0.5;
    double r = arc_ratio(z);
    double s = sqrt(z);
    double f = of_bits(bits_of(s) & (int64_t)0xffffffff00000000ULL);
    double c = s > 0.0 ? (z - f * f) / (s + f) : 0.0;
    double near = 0x1.921fb54442d18p0 - (x - (0x1.1a62633145c07p-54 - x * r));
    double above = 2.0 * (f + (r * s + c));
    double below = 2.0 * (0x1.921fb54442d18p0 - (s + (r * s - 0x1.1a62633145c07p-54)));
    double far = x < 0.0 ? below : above;
    return a < 0.5 ? near : far;
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
