#include <stddef.h>
#include <string.h>

/* CUDA's driver, as Python found it. */
typedef int (*copy_to_device)(unsigned long long, const void *, size_t, void *);
typedef int (*record_event)(void *, void *);
typedef int (*await_event)(void *);

/* Send bytes part by part through a few places of pinned memory, by turns: while the device fetches one, the next is
   filled. An event for each place says when it was fetched. Gives CUDA's error, or 0. */
int send_through(char *places, size_t part, long count, void **events, long *turn, void *stream, const char *from,
                 unsigned long long to, size_t bytes, copy_to_device copy, record_event record, await_event await)
{
    for (size_t done = 0; done < bytes; done += part) {
        size_t size = bytes - done < part ? bytes - done : part;
        long place = (*turn)++ % count;
        char *held = places + place * part;
        int error = await(events[place]);
        if (error)
            return error;
        memcpy(held, from + done, size);
        if ((error = copy(to + done, held, size, stream)) || (error = record(events[place], stream)))
            return error;
    }
    return 0;
}
