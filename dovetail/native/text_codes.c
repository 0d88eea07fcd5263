/* Texts by the number of their first appearance, without an object for any: those of Arrow's buffers, or of Python's own
   strings. A table of open addresses; a text of up to eight bytes is its own key, so that nothing else is read. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint64_t word; int32_t length, place; } entry;
typedef struct {
    entry *entries;
    const char **texts;  /* of each place, where longer than its key */
    uint64_t mask, seed;
    int64_t count;
} table;

static uint64_t load(const char *at, int bytes)
{
    uint64_t word = 0;
    memcpy(&word, at, bytes);
    return word;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    __uint128_t both = (__uint128_t)a * b;
    return (uint64_t)both ^ (uint64_t)(both >> 64);
}

/* For texts of one length up to eight, another for each; beyond, a hash. Loads overlap, so that none has a length of its
   own to be compiled for. */
static uint64_t key_of(const char *text, int64_t length, uint64_t seed)
{
    if (length > 8) {
        uint64_t found = seed ^ (uint64_t)length;
        for (int64_t i = 0; i + 8 < length; i += 8) found = mix(found ^ load(text + i, 8), 0x9e3779b97f4a7c15ull);
        return mix(found ^ load(text + length - 8, 8), 0xd6e8feb86659fd93ull);
    }
    if (length >= 4) return load(text, 4) | load(text + length - 4, 4) << 32;
    if (!length) return 0;
    return (uint8_t)text[0] | (uint64_t)(uint8_t)text[length / 2] << 8 | (uint64_t)(uint8_t)text[length - 1] << 16;
}

static uint64_t address(const table *in, uint64_t word, int32_t length)
{
    return mix(word ^ in->seed, 0x9e3779b97f4a7c15ull + 2 * (uint64_t)(uint32_t)length) & in->mask;
}

static int grow(table *in)
{
    uint64_t size = in->entries ? (in->mask + 1) * 4 : 4096;
    entry *old = in->entries, *made = malloc(size * sizeof(entry));
    const char **texts = realloc(in->texts, size / 2 * sizeof(char *));
    if (texts) in->texts = texts;
    if (!made || !texts) { free(made); return 0; }
    for (uint64_t i = 0; i < size; i++) made[i].place = -1;
    uint64_t before = old ? in->mask + 1 : 0;
    in->entries = made;
    in->mask = size - 1;
    for (uint64_t i = 0; i < before; i++) if (old[i].place >= 0) {
        uint64_t at = address(in, old[i].word, old[i].length);
        while (made[at].place >= 0) at = (at + 1) & in->mask;
        made[at] = old[i];
    }
    free(old);
    return 1;
}

/* The place of a text, the next one where it is new; -1 where there is no memory. */
static int64_t place_of(table *in, const char *text, int64_t length)
{
    if (length > INT32_MAX) return -1;
    uint64_t word = key_of(text, length, in->seed), at = address(in, word, (int32_t)length);
    for (; in->entries[at].place >= 0; at = (at + 1) & in->mask) {
        const entry *one = in->entries + at;
        if (one->word == word && one->length == length
            && (length <= 8 || !memcmp(in->texts[one->place], text, (size_t)length)))
            return one->place;
    }
    if ((uint64_t)in->count * 2 > in->mask) {
        if (!grow(in)) return -1;
        at = address(in, word, (int32_t)length);
        while (in->entries[at].place >= 0) at = (at + 1) & in->mask;
    }
    in->entries[at] = (entry){word, (int32_t)length, (int32_t)in->count};
    in->texts[in->count] = text;
    return in->count++;
}

static int64_t finish(table *in, int64_t found)
{
    free(in->entries);
    free(in->texts);
    return found;
}

/* One loop for each width of offsets, and for rows of which none is missing: a text that is its own key, and stands where
   it is looked for first, is found without a call. */
static inline __attribute__((always_inline)) int64_t code_rows(table *in, const char *data, const void *offsets,
    int32_t width, const uint8_t *valid, int64_t start, int64_t rows, int32_t *places, int64_t *firsts)
{
#define OFFSET(row) (width == 8 ? ((const int64_t *)offsets)[row] : ((const int32_t *)offsets)[row])
    for (int64_t i = 0, row = start; i < rows; i++, row++) {
        if (valid && !(valid[row >> 3] >> (row & 7) & 1)) { places[i] = -1; continue; }
        const char *text = data + OFFSET(row);
        int64_t length = OFFSET(row + 1) - OFFSET(row), before = in->count;
        if (length <= 8) {
            uint64_t word = key_of(text, length, in->seed);
            const entry *one = in->entries + address(in, word, (int32_t)length);
            if (one->word == word && one->length == length && one->place >= 0) { places[i] = one->place; continue; }
        }
        places[i] = (int32_t)place_of(in, text, length);
        if (places[i] < 0) return -1;
        if (places[i] == before) firsts[before] = i;
    }
    return in->count;
#undef OFFSET
}

/* The place of each of `rows` texts of Arrow, from `start` on, -1 where it is missing, and the row in which each place
   came first. `width` is the bytes of an offset. `known` texts, all unlike, have the first places. Gives how many places
   there are, or -1 where there is no memory. */
int64_t code_buffers(const char *data, const void *offsets, int32_t width, const uint8_t *valid, int64_t start,
                     int64_t rows, uint64_t seed, const char *known_data, const int32_t *known_offsets, int64_t known,
                     int32_t *places, int64_t *firsts)
{
    table in = {.seed = seed};
    if (!grow(&in)) return finish(&in, -1);
    for (int64_t k = 0; k < known; k++)
        if (place_of(&in, known_data + known_offsets[k], known_offsets[k + 1] - known_offsets[k]) < 0)
            return finish(&in, -1);
    if (valid) return finish(&in, code_rows(&in, data, offsets, width, valid, start, rows, places, firsts));
    if (width == 8) return finish(&in, code_rows(&in, data, offsets, 8, 0, start, rows, places, firsts));
    return finish(&in, code_rows(&in, data, offsets, 4, 0, start, rows, places, firsts));
}

/* The same of Python's strings; `utf8` is PyUnicode_AsUTF8AndSize, `none` stands for what is missing. -1 also where
   something else is among them, with Python's error set. The caller holds the interpreter's lock. */
int64_t code_objects(void *const *objects, int64_t rows, const char *(*utf8)(void *, ptrdiff_t *), const void *none,
                     uint64_t seed, int32_t *places, int64_t *firsts)
{
    table in = {.seed = seed};
    if (!grow(&in)) return finish(&in, -1);
    for (int64_t i = 0; i < rows; i++) {
        if (objects[i] == none) { places[i] = -1; continue; }
        ptrdiff_t length;
        const char *text = utf8(objects[i], &length);
        int64_t before = in.count;
        places[i] = text ? (int32_t)place_of(&in, text, length) : -1;
        if (places[i] < 0) return finish(&in, -1);
        if (places[i] == before) firsts[before] = i;
    }
    return finish(&in, in.count);
}

/* What stands at each row's place in a table of values of one or of four bytes. */
void look_up(const void *table, int32_t width, const int32_t *places, int64_t rows, void *found)
{
    if (width == 1)
        for (int64_t i = 0; i < rows; i++) ((uint8_t *)found)[i] = ((const uint8_t *)table)[places[i]];
    else
        for (int64_t i = 0; i < rows; i++) ((int32_t *)found)[i] = ((const int32_t *)table)[places[i]];
}

/* The first row, of those that are chosen, in which each of `count` places stands, or -1; rows after all were found are
   not looked at. */
void first_rows(const int32_t *places, const uint8_t *chosen, int64_t rows, int64_t count, int64_t *first)
{
    for (int64_t k = 0; k < count; k++) first[k] = -1;
    for (int64_t i = 0; i < rows && count; i++)
        if ((!chosen || chosen[i]) && first[places[i]] < 0) first[places[i]] = i, count--;
}
