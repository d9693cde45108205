/* What a process is told by a disk, a name server and a clock that fail without an error.

   Preloaded. GRAY_CONTROL names a file of four doubles, which the test changes at any time:
   seconds that the wall clock is off, that each call on a file below GRAY_FOLDER takes, and that
   each look-up of a name takes before it fails. The fourth counts the calls that were made to
   wait in the main thread of a process, which is where the event loop runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static volatile double *control;
static const char *folder;
static size_t folder_length;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("GRAY_CONTROL");
    folder = getenv("GRAY_FOLDER");
    folder_length = folder ? strlen(folder) : 0;
    int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *memory = mmap(NULL, 4 * sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (memory != MAP_FAILED) control = memory;
}

static void sleep_for(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}

static void wait_for_path(const char *path) {
    if (!control || control[1] <= 0 || !folder_length || !path) return;
    if (strncmp(path, folder, folder_length) != 0) return;
    int before = errno;
    if (getpid() == (pid_t)syscall(SYS_gettid)) {
        control[3] += 1;
        if (getenv("GRAY_TELL")) {
            char line[600];
            int n = snprintf(line, sizeof line, "GRAY main thread of %d waits: %s\n", getpid(), path);
            int out = (int)syscall(SYS_openat, AT_FDCWD, getenv("GRAY_TELL"), O_WRONLY | O_APPEND | O_CREAT, 0644);
            syscall(SYS_write, out, line, n);
            syscall(SYS_close, out);
        }
    }
    sleep_for(control[1]);
    errno = before;
}

static void wait_for_file(int file) {
    if (!control || control[1] <= 0) return;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    wait_for_path(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define FILE_CALL(type, name, parameters, arguments) \
    type name parameters { wait_for_file(file); return REAL(name) arguments; }
FILE_CALL(ssize_t, write, (int file, const void *data, size_t n), (file, data, n))
FILE_CALL(ssize_t, pwrite, (int file, const void *data, size_t n, off_t at), (file, data, n, at))
FILE_CALL(ssize_t, pwrite64, (int file, const void *data, size_t n, off64_t at), (file, data, n, at))
FILE_CALL(int, fsync, (int file), (file))
FILE_CALL(int, fdatasync, (int file), (file))
FILE_CALL(int, ftruncate, (int file, off_t n), (file, n))
FILE_CALL(int, ftruncate64, (int file, off64_t n), (file, n))

#define PATH_CALL(type, name, parameters, arguments) \
    type name parameters { wait_for_path(path); return REAL(name) arguments; }
PATH_CALL(int, stat, (const char *path, struct stat *found), (path, found))
PATH_CALL(int, lstat, (const char *path, struct stat *found), (path, found))
PATH_CALL(int, stat64, (const char *path, struct stat64 *found), (path, found))
PATH_CALL(int, lstat64, (const char *path, struct stat64 *found), (path, found))
PATH_CALL(int, unlink, (const char *path), (path))
PATH_CALL(int, mkdir, (const char *path, mode_t mode), (path, mode))
PATH_CALL(int, rename, (const char *path, const char *to), (path, to))

#define OPEN_CALL(name, before, passed) \
    int name(before const char *path, int flags, ...) { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); \
        } \
        wait_for_path(path); \
        return REAL(name)(passed path, flags, mode); \
    }
#define NOTHING
#define AT int at,
#define AT_PASSED at,
OPEN_CALL(open, NOTHING, NOTHING)
OPEN_CALL(open64, NOTHING, NOTHING)
OPEN_CALL(openat, AT, AT_PASSED)
OPEN_CALL(openat64, AT, AT_PASSED)

int getaddrinfo(const char *name, const char *port, const struct addrinfo *hints,
                struct addrinfo **found) {
    struct addrinfo numeric = {.ai_flags = AI_NUMERICHOST};
    int is_numeric = !name || REAL(getaddrinfo)(name, port, &numeric, found) == 0;
    if (is_numeric && name) freeaddrinfo(*found);
    if (control && control[2] > 0 && !is_numeric) {
        sleep_for(control[2]);
        return EAI_AGAIN;
    }
    return REAL(getaddrinfo)(name, port, hints, found);
}

static double offset(void) { return control ? control[0] : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += (time_t)offset();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (result) *result = precise.tv_sec;
    return precise.tv_sec;
}
