/* What the host's kernels share: how weights travel, and a pool of threads that shares each call.
 *
 * A kernel has a `stretch`, the update of one parameter, with its number of elements in `count`, and
 * `update(stretch, start)`, which updates PIECE elements of it from `start` on; it includes this file before, for the
 * tools, and says UPDATE_POOL before it includes it again, for the pool.
 *
 * Threads of Python shared calls before: fifteen of them that woke and asked for the interpreter's lock at every turn kept
 * the one thread that launches kernels from it, and the device idled. */
#ifndef UPDATE_TOOLS
#define UPDATE_TOOLS
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { LINE = 64 }; /* bytes */

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

/* Asks memory for what comes later. Left to itself a core has too few reads under way over so many streams to fill its
 * share of the memory's bandwidth: 14 cores of an H200's host update 4.8 instead of 4.0 billion parameters a second
 * beside copies, 5.2 instead of 4.6 alone. */
#define EXPECT(FIRST, COUNT, WRITES)                                                                           \
    for (size_t byte = 0; byte < (COUNT) * sizeof *(FIRST); byte += LINE)                                      \
        __builtin_prefetch((const char *)(FIRST) + byte, WRITES);

enum {
    PIECE = 1 << 16, /* elements: short enough for all threads to end together, some 0.2 ms */
    FEW = 512        /* pieces: some 7 ms on 14 cores; Python lets another thread wait 5 ms for its lock */
};
#endif

#ifdef UPDATE_POOL
typedef struct {
    pthread_mutex_t lock, caller; /* who holds the second is served */
    pthread_cond_t begin, end, low;
    pthread_t *members;
    const stretch *work;
    int64_t stretches, pieces, turn; /* turn counts the calls */
    atomic_llong next;               /* the piece that nobody has taken */
    int threads, busy, closing;
} pool;

static int64_t pieces_of(const stretch *one) { return (one->count + PIECE - 1) / PIECE; }

static void take_pieces(pool *all) {
    for (;;) {
        int64_t piece = atomic_fetch_add(&all->next, 1), which = 0;
        if (piece == all->pieces - FEW) {
            pthread_mutex_lock(&all->lock);
            pthread_cond_broadcast(&all->low);
            pthread_mutex_unlock(&all->lock);
        }
        for (; which < all->stretches; which++) {
            int64_t pieces = pieces_of(&all->work[which]);
            if (piece < pieces) break;
            piece -= pieces;
        }
        if (which == all->stretches) return;
        update(&all->work[which], piece * PIECE);
    }
}

static void *member(void *argument) {
    pool *all = argument;
    int64_t seen = 0;
    pthread_mutex_lock(&all->lock);
    for (;;) {
        while (all->turn == seen && !all->closing) pthread_cond_wait(&all->begin, &all->lock);
        if (all->closing) break;
        seen = all->turn;
        pthread_mutex_unlock(&all->lock);
        take_pieces(all);
        pthread_mutex_lock(&all->lock);
        if (--all->busy == 0) {
            pthread_cond_signal(&all->end);
            pthread_cond_broadcast(&all->low);
        }
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

/* cores may be null; otherwise each thread is bound to one of them, where that is possible. Null where no thread can be
 * had. */
pool *pool_start(int threads, const int *cores) {
    pool *all = calloc(1, sizeof *all);
    if (!all) return NULL;
    all->members = calloc((size_t)threads, sizeof *all->members);
    pthread_mutex_init(&all->lock, NULL);
    pthread_mutex_init(&all->caller, NULL);
    pthread_cond_init(&all->begin, NULL);
    pthread_cond_init(&all->end, NULL);
    pthread_cond_init(&all->low, NULL);
    while (all->members && all->threads < threads &&
           pthread_create(&all->members[all->threads], NULL, member, all) == 0) {
#ifdef __linux__
        if (cores) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cores[all->threads], &one);
            pthread_setaffinity_np(all->members[all->threads], sizeof one, &one);
        }
#endif
        all->threads++;
    }
    if (all->threads) return all;
    free(all->members);
    free(all);
    return NULL;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Returns when all of it is done, and says from when until when. One who calls while another is served goes on at once
 * after it, whoever holds Python's lock by then. */
void pool_update(pool *all, const stretch *work, int64_t stretches, double *times) {
    pthread_mutex_lock(&all->caller);
    times[0] = now();
    pthread_mutex_lock(&all->lock);
    all->work = work;
    all->stretches = stretches;
    all->pieces = 0;
    for (int64_t i = 0; i < stretches; i++) all->pieces += pieces_of(&work[i]);
    atomic_store(&all->next, 0);
    all->busy = all->threads;
    all->turn++;
    pthread_cond_broadcast(&all->begin);
    while (all->busy) pthread_cond_wait(&all->end, &all->lock);
    pthread_mutex_unlock(&all->lock);
    times[1] = now();
    pthread_mutex_unlock(&all->caller);
}

/* Returns when a call has few pieces left that nobody has taken, or there is no call: time to choose the next. */
void pool_wait(pool *all) {
    pthread_mutex_lock(&all->lock);
    while (all->busy && atomic_load(&all->next) < all->pieces - FEW) pthread_cond_wait(&all->low, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

void pool_stop(pool *all) {
    pthread_mutex_lock(&all->lock);
    all->closing = 1;
    pthread_cond_broadcast(&all->begin);
    pthread_mutex_unlock(&all->lock);
    for (int i = 0; i < all->threads; i++) pthread_join(all->members[i], NULL);
    pthread_cond_destroy(&all->begin);
    pthread_cond_destroy(&all->end);
    pthread_cond_destroy(&all->low);
    pthread_mutex_destroy(&all->lock);
    pthread_mutex_destroy(&all->caller);
    free(all->members);
    free(all);
}
#endif
