/* Wall-clock calls that answer from a mapped file, for a server or a Python process under test.
 *
 * The file named by RESTANTE_CLOCK_FILE holds two signed 64-bit words in microseconds:
 *   word 0  the time to show, 0 = the real time
 *   word 1  added to the real time while word 0 is 0
 * Without the variable, or when the file cannot be mapped, every call gives the real time.
 * Monotonic clocks stay real: timers of event loops must go on firing.
 *
 * Nothing here allocates or takes a lock, because jemalloc asks for the time while it starts;
 * that is where libfaketime hangs. Until the constructor has found libc's own clock_gettime
 * the system call is made directly.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define MICROS 1000000LL

static const volatile int64_t *words;
static int (*libc_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void map_clock(void)
{
    libc_clock_gettime =
        (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("RESTANTE_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        words = mapped;
}

static int real_time(clockid_t id, struct timespec *out)
{
    if (libc_clock_gettime)
        return libc_clock_gettime(id, out);
    return (int)syscall(SYS_clock_gettime, id, out);
}

int clock_gettime(clockid_t id, struct timespec *out)
{
    if (!words || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
        return real_time(id, out);
    int64_t shown = words[0];
    if (shown != 0) {
        out->tv_sec = (time_t)(shown / MICROS);
        out->tv_nsec = (long)(shown % MICROS) * 1000;
        return 0;
    }
    int failed = real_time(id, out);
    int64_t offset = words[1];
    if (failed || offset == 0)
        return failed;
    /* Nanoseconds of the real time stay, so that two calls in a row still differ. */
    int64_t nanos = out->tv_nsec + (offset % MICROS) * 1000;
    out->tv_sec += (time_t)(offset / MICROS);
    if (nanos < 0) {
        nanos += MICROS * 1000;
        out->tv_sec -= 1;
    } else if (nanos >= MICROS * 1000) {
        nanos -= MICROS * 1000;
        out->tv_sec += 1;
    }
    out->tv_nsec = (long)nanos;
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return (time_t)-1;
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

/* Valkey reads the processor's own counter if /proc/cpuinfo says that it is steady, and adds it to a wall-clock time
 * that it asks for once a millisecond: a frozen time would then run on. Without that file it asks every time. */
FILE *fopen(const char *restrict path, const char *restrict mode)
{
    static FILE *(*libc_fopen)(const char *restrict, const char *restrict);
    if (words && strcmp(path, "/proc/cpuinfo") == 0) {
        errno = ENOENT;
        return NULL;
    }
    if (!libc_fopen)
        libc_fopen = (FILE * (*)(const char *restrict, const char *restrict)) dlsym(RTLD_NEXT, "fopen");
    return libc_fopen(path, mode);
}

FILE *fopen64(const char *restrict path, const char *restrict mode)
{
    return fopen(path, mode);
}
