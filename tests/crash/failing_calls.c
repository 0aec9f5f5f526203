/* Makes calls on the files of a store fail, for LD_PRELOAD: the compiled core calls the system directly. All settings but
   FAIL_SEGMENT_SYNC are about the journal.

   FAIL_SYNC=n     the n-th fdatasync fails with EIO, after the kernel has dropped nothing
   FAIL_SEGMENT_SYNC=n  the same for the segments of streams
   FAIL_WRITE=n    from the n-th vectored write on, all fail with ENOSPC
   SHORT_WRITES=1  every vectored write ends after half of its first buffer */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

typedef ssize_t (*pwritev_t)(int, const struct iovec *, int, off_t);

static int setting(const char *name) {
    const char *value = getenv(name);
    return value ? atoi(value) : 0;
}

static int find_path(int fd, char *path, size_t capacity) {
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, capacity - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return 1;
}

static int is_journal(int fd) {
    char path[4096];
    return find_path(fd, path, sizeof(path)) && strstr(path, "/journal/") && !strstr(path, "/journal/synced");
}

static int is_segment(int fd) {
    char path[4096];
    return find_path(fd, path, sizeof(path)) && strstr(path, "/streams/");
}

int fdatasync(int fd) {
    static int (*real)(int);
    static int count, segment_count;
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (setting("FAIL_SYNC") && is_journal(fd) && __sync_add_and_fetch(&count, 1) == setting("FAIL_SYNC")) {
        errno = EIO;
        return -1;
    }
    if (setting("FAIL_SEGMENT_SYNC") && is_segment(fd) &&
        __sync_add_and_fetch(&segment_count, 1) == setting("FAIL_SEGMENT_SYNC")) {
        errno = EIO;
        return -1;
    }
    return real(fd);
}

static ssize_t write_vectors(const char *name, int fd, const struct iovec *vectors, int count, off_t offset) {
    static int calls;
    pwritev_t real = (pwritev_t)dlsym(RTLD_NEXT, name);
    if (setting("FAIL_WRITE") && is_journal(fd) && __sync_add_and_fetch(&calls, 1) >= setting("FAIL_WRITE")) {
        errno = ENOSPC;
        return -1;
    }
    if (setting("SHORT_WRITES") && count > 0 && vectors[0].iov_len > 1 && is_journal(fd)) {
        struct iovec half = {vectors[0].iov_base, vectors[0].iov_len / 2};
        return real(fd, &half, 1, offset);
    }
    return real(fd, vectors, count, offset);
}

ssize_t pwritev(int fd, const struct iovec *vectors, int count, off_t offset) {
    return write_vectors("pwritev", fd, vectors, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *vectors, int count, off64_t offset) {
    return write_vectors("pwritev64", fd, vectors, count, offset);
}
