/* How a generated loop is carried out: over blocks of a flat index space, by threads that take units of it in turn.

The generated file defines, before it includes this: HEAD (bytes before an array's fields), INPUTS, OUTPUTS, REDUCTIONS,
ROWS (1 where the last axis alone is reduced) and struct scratch with a member gathered; after it: block, combine and
finish. A unit is a row where rows are reduced, or UNIT elements; its blocks' partial results are added pairwise, and so
are the units', in an order that does not depend on the number of threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define BLOCK 256
#define UNIT 65536
#define DIMENSIONS 32

/* What NumPy's arrays begin with, the same since its first version. */
struct array { char head[HEAD]; char *data; int dimensions; int64_t *shape; int64_t *strides; };
struct operand { char *data; int64_t item; int flat, constant; int64_t strides[DIMENSIONS]; };
#ifndef GROUPED
#define GROUPED 0
#endif
/* A group's sums: of floats with what rounding lost, of whole numbers exactly, and how many there were. */
struct group { int64_t rows; struct { double sum, lost; int64_t whole, count; } values[GROUPED + 1]; };
#define ADD_FLOAT(into, x) do { double added = (x); if (added == added) { \
    double y = added - into.lost, t = into.sum + y; \
    into.lost = fabs(t) < INFINITY ? (t - into.sum) - y : 0.0, into.sum = t, into.count++; } } while (0)
#define ADD_WHOLE(into, x) do { into.whole += (int64_t)(x), into.count++; } while (0)
typedef union { double f; int64_t i; uint64_t u; } value;
struct job {
    struct operand in[INPUTS + 1];
    char *out[OUTPUTS + 1], *reduced[REDUCTIONS + 1];
    const double *scalars;
    int dimensions;
    const int64_t *shape;
    int64_t total, unit, units;
    double count; /* elements behind each reduced number */
    value (*partials)[REDUCTIONS + 1];
    atomic_long next;
    struct group *groups; /* all threads' */
    int64_t group_count;
    pthread_mutex_t lock;
};

static void place(struct operand *operand, const struct array *array, int64_t item, int dimensions, const int64_t *shape) {
    int lead = dimensions - array->dimensions;
    int64_t expected = item;
    operand->data = array->data, operand->item = item, operand->flat = 1, operand->constant = 1;
    for (int d = dimensions - 1; d >= 0; d--) {
        int spread = d < lead || (array->shape[d - lead] == 1 && shape[d] != 1);
        int64_t stride = spread || shape[d] == 1 ? 0 : array->strides[d - lead];
        operand->strides[d] = stride;
        if (stride) operand->constant = 0;
        if (shape[d] != 1 && stride != expected) operand->flat = 0;
        expected *= shape[d];
    }
}

/* Elements start to start + n of an operand that is not laid out as the space is, one after another. */
#define COPY(type) for (int64_t k = 0; k < run; k++) ((type *)to)[k] = *(const type *)(from + k * step)
static const void *gather(const struct job *job, const struct operand *in, void *buffer, int64_t start, int64_t n) {
    int last = job->dimensions - 1;
    int64_t position[DIMENSIONS], rest = start;
    char *to = buffer, *from = in->data;
    for (int d = last; d >= 0; d--) {
        position[d] = rest % job->shape[d], rest /= job->shape[d];
        from += position[d] * in->strides[d];
    }
    for (int64_t left = n; left > 0;) {
        int64_t step = last < 0 ? 0 : in->strides[last], room = last < 0 ? left : job->shape[last] - position[last];
        int64_t run = left < room ? left : room;
        if (in->item == 8) COPY(uint64_t);
        else if (in->item == 4) COPY(uint32_t);
        else if (in->item == 2) COPY(uint16_t);
        else COPY(uint8_t);
        left -= run, to += run * in->item;
        if (last < 0) break;
        from += run * step, position[last] += run;
        for (int d = last; d > 0 && position[d] == job->shape[d]; d--) {
            from += in->strides[d - 1] - job->shape[d] * in->strides[d];
            position[d] = 0, position[d - 1]++;
        }
    }
    return buffer;
}
INLINE const void *elements(const struct job *job, int number, void *buffer, int64_t start, int64_t n) {
    const struct operand *in = &job->in[number];
    return in->flat ? in->data + start * in->item : gather(job, in, buffer, start, n);
}

/* Partial results, added up as the digits of a binary counter carry: pairwise, with room for 2^48 of them. */
struct tower { int64_t count; value levels[48][REDUCTIONS + 1]; };
static void combine(value *into, const value *other);
static void finish(const struct job *job, const value *result, int64_t number);
static void pile(struct tower *tower, value *partial) {
    int64_t height = 0;
    for (int64_t carry = tower->count++; carry & 1; carry >>= 1, height++) {
        combine(tower->levels[height], partial);
        memcpy(partial, tower->levels[height], sizeof tower->levels[0]);
    }
    memcpy(tower->levels[height], partial, sizeof tower->levels[0]);
}
static void topple(struct tower *tower, value *result) {
    int begun = 0;
    for (int64_t height = 0, left = tower->count; left; left >>= 1, height++)
        if (left & 1) {
            if (begun) combine(result, tower->levels[height]);
            else memcpy(result, tower->levels[height], sizeof tower->levels[0]);
            begun = 1;
        }
}

static void block(const struct job *job, struct scratch *scratch, int64_t start, int64_t n, value *partial);

static void *work(void *argument) {
    struct job *job = argument;
    struct scratch scratch __attribute__((aligned(64)));
    struct group *own = 0;
    if (GROUPED && !(own = calloc(job->group_count, sizeof *own))) return job; /* others do it */
    scratch.groups = own;
    int64_t share = ROWS && job->unit < UNIT ? UNIT / (job->unit + 1) + 1 : 1;
    for (;;) {
        int64_t first = atomic_fetch_add(&job->next, share), end = first + share;
        if (first >= job->units) break;
        for (int64_t unit = first; unit < end && unit < job->units; unit++) {
            int64_t start = unit * job->unit, stop = start + job->unit;
            struct tower tower;
            value partial[REDUCTIONS + 1];
            tower.count = 0;
            if (stop > job->total) stop = job->total;
            for (; start < stop; start += BLOCK) {
                block(job, &scratch, start, stop - start < BLOCK ? stop - start : BLOCK, partial);
                if (REDUCTIONS) pile(&tower, partial);
            }
            if (!REDUCTIONS) continue;
            topple(&tower, partial);
            if (ROWS) finish(job, partial, unit);
            else memcpy(job->partials[unit], partial, sizeof partial);
        }
    }
    if (own) {
        pthread_mutex_lock(&job->lock);
        for (int64_t k = 0; k < job->group_count; k++) {
            if (!own[k].rows) continue;
            job->groups[k].rows += own[k].rows;
            for (int v = 0; v < GROUPED; v++) {
                job->groups[k].values[v].sum += own[k].values[v].sum - own[k].values[v].lost;
                job->groups[k].values[v].whole += own[k].values[v].whole;
                job->groups[k].values[v].count += own[k].values[v].count;
            }
        }
        pthread_mutex_unlock(&job->lock);
        free(own);
    }
    return 0;
}

/* The last array of a group-by is one of struct group. */
/* Arrays of inputs, outputs and reduced numbers, in this order. Gives 0, or 1 where there was no memory. */
int run(const struct array *const *arrays, const double *scalars, int dimensions, const int64_t *shape, int threads) {
    struct job job = {.scalars = scalars, .dimensions = dimensions, .shape = shape, .total = 1};
    for (int d = 0; d < dimensions; d++) job.total *= shape[d];
    for (int k = 0; k < INPUTS; k++) place(&job.in[k], arrays[k], ITEMS[k], dimensions, shape);
    for (int k = 0; k < OUTPUTS; k++) job.out[k] = arrays[INPUTS + k]->data;
    if (GROUPED) {
        const struct array *groups = arrays[INPUTS];
        job.groups = (struct group *)groups->data, job.group_count = groups->shape[0];
        pthread_mutex_init(&job.lock, 0);
    }
    for (int k = 0; k < REDUCTIONS; k++) job.reduced[k] = arrays[INPUTS + OUTPUTS + k]->data;
    if (job.total == 0) return 0;
    job.unit = ROWS ? shape[dimensions - 1] : UNIT;
    job.units = (job.total + job.unit - 1) / job.unit;
    job.count = (double)(ROWS ? job.unit : job.total);
    if (REDUCTIONS && !ROWS && !(job.partials = malloc(job.units * sizeof *job.partials))) return 1;
    if (job.total <= UNIT) threads = 1;
    pthread_t others[threads];
    int started = 0;
    while (started < threads - 1 && !pthread_create(&others[started], 0, work, &job)) started++;
    int failed = work(&job) != 0 && !started;
    while (started) pthread_join(others[--started], 0);
    if (REDUCTIONS && !ROWS) {
        struct tower tower;
        value result[REDUCTIONS + 1];
        tower.count = 0;
        for (int64_t unit = 0; unit < job.units; unit++) pile(&tower, job.partials[unit]);
        topple(&tower, result);
        finish(&job, result, 0);
        free(job.partials);
    }
    return failed;
}
