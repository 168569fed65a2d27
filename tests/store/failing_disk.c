/* Makes the Nth write to the log's files fail with EIO: preloaded by test_io_errors.py.
   Counted are the calls by which SQLite changes or makes durable what is on disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fail_at, count;

void lmr_fail_at(int number) {
    fail_at = number;
    count = 0;
}

int lmr_writes(void) { return count; }

static int fails(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (!strstr(path, "events.db")) return 0;
    count++;
    if (!fail_at || count != fail_at) return 0;
    errno = EIO;
    return 1;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    return fails(fd) ? -1 : real(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    return fails(fd) ? -1 : real(fd, data, size, at);
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    return fails(fd) ? -1 : real(fd, data, size);
}

int fsync(int fd) {
    REAL(fsync);
    return fails(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return fails(fd) ? -1 : real(fd);
}

int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    return fails(fd) ? -1 : real(fd, size);
}

int ftruncate(int fd, off_t size) {
    REAL(ftruncate);
    return fails(fd) ? -1 : real(fd, size);
}
