/* A cuFile library for tests, on top of the stub of the CUDA driver: device memory is host memory, so a read is a pread. What differs between
 * variants (-D) is what it says of itself: NVFS (direct by nvidia-fs), P2P (direct by the kernel), neither (compatibility mode only); POSIX_EVERY n
 * (every n-th read goes through host memory even so), STATS_VERSION, NO_STATS, NO_SETTER, OPEN_CODE, REGISTER_CODE, SHORT (bytes a read gives at most), FAIL_READ (what
 * reads fail with), FAIL_READ_FROM (the first one that does, counted from 1), UNCOUNTED (reads that are counted neither as direct nor as through host memory). */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef STATS_VERSION
#define STATS_VERSION 1150
#endif
#ifndef OPEN_CODE
#define OPEN_CODE 0
#endif
#ifndef REGISTER_CODE
#define REGISTER_CODE 0
#endif
#ifndef FAIL_READ_FROM
#define FAIL_READ_FROM 1
#endif
#ifndef UNCOUNTED
#define UNCOUNTED 0
#endif
#ifdef NVFS
#define DIRECT 1
#elif defined(P2P)
#define DIRECT 1
#else
#define DIRECT 0
#endif

typedef struct { int code, cuda; } status;
typedef struct { int kind; union { int fd; void *handle; } u; const void *ops; } descriptor;
typedef struct { unsigned major, minor; size_t poll, direct; unsigned dstatus, dcontrol; unsigned rest[6]; } properties;
typedef struct { char uuid[16]; uint64_t n[29]; } gpu;
typedef struct { uint64_t before[128]; uint32_t gpus; gpu per_gpu[16]; } stats;

static bool compat = true, open_now;
static int level;
static uint64_t reads, posix, unaligned, bytes;
static status ok(void) { status s = {0, 0}; return s; }
static status no(int code) { status s = {code, 0}; return s; }

long cuFileUseCount(void) { return open_now; }
status cuFileGetVersion(int *version) { *version = STATS_VERSION; return ok(); }
#ifndef NO_SETTER
status cuFileSetParameterBool(int which, bool value) { if (open_now) return no(5026); if (which == 1) compat = value; return ok(); }
status cuFileGetParameterBool(int which, bool *value) {
    if (which == 1) *value = compat;
    else if (which == 2) *value = false;
#ifdef P2P
    else *value = true;
#else
    else *value = false;
#endif
    return ok();
}
#endif
status cuFileDriverOpen(void) {
    if (OPEN_CODE) return no(OPEN_CODE);
    if (!DIRECT && !compat) return no(5001);
    open_now = true; return ok();
}
status cuFileDriverGetProperties(properties *p) {
    if (!open_now) return no(5001);
    memset(p, 0, sizeof *p);
#ifdef NVFS
    p->major = 2; p->minor = 26;
#endif
    p->dcontrol = compat ? 2 : 0;
    return ok();
}
status cuFileHandleRegister(void **handle, descriptor *d) {
    if (!open_now) return no(5001);
    if (REGISTER_CODE) return no(REGISTER_CODE);
    if (d->kind != 1) return no(5018);
    *handle = (void *)(intptr_t)(d->u.fd + 1); return ok();
}
void cuFileHandleDeregister(void *handle) { (void)handle; }
ssize_t cuFileRead(void *handle, void *base, size_t len, off_t at, off_t offset) {
#ifdef FAIL_READ
    static uint64_t asked;
    if (__atomic_add_fetch(&asked, 1, __ATOMIC_SEQ_CST) >= FAIL_READ_FROM) return -FAIL_READ;
#endif
    size_t want = len;
#ifdef SHORT
    if (want > SHORT) want = SHORT;
#endif
    /* The descriptor may be open for direct I/O, which wants aligned memory: device memory is not the host's. */
    char *to = (char *)base + offset; size_t done = 0;
    static _Thread_local char bounce[1 << 16] __attribute__((aligned(4096)));
    while (done < want) {
        off_t page = (at + (off_t)done) & ~(off_t)4095; size_t skip = (size_t)(at + (off_t)done - page);
        ssize_t got = pread((int)(intptr_t)handle - 1, bounce, sizeof bounce, page);
        if (got < 0) return -1;
        if ((size_t)got <= skip) break;
        size_t take = (size_t)got - skip; if (take > want - done) take = want - done;
        memcpy(to + done, bounce + skip, take); done += take;
    }
    __atomic_add_fetch(&bytes, done, __ATOMIC_SEQ_CST);
    uint64_t n = __atomic_add_fetch(&reads, 1, __ATOMIC_SEQ_CST);
    if ((at | (off_t)len | (off_t)(uintptr_t)to) & 4095) __atomic_add_fetch(&unaligned, 1, __ATOMIC_SEQ_CST);
#ifdef POSIX_EVERY
    if (n % POSIX_EVERY == 0) __atomic_add_fetch(&posix, 1, __ATOMIC_SEQ_CST);
#elif !DIRECT
    __atomic_add_fetch(&posix, 1, __ATOMIC_SEQ_CST);
#endif
    (void)n;
    return (ssize_t)done;
}
#ifndef NO_STATS
status cuFileSetStatsLevel(int wanted) { level = wanted; return ok(); }
status cuFileStatsStart(void) { return ok(); }
status cuFileGetStatsL3(stats *s) {
    if (level < 3) return no(5022);
    memset(s, 0, sizeof *s); s->gpus = 1;
    gpu *g = &s->per_gpu[0];
    g->n[0] = bytes; g->n[4] = reads; g->n[7] = posix; g->n[8] = unaligned;
    uint64_t direct = reads - posix > UNCOUNTED ? reads - posix - UNCOUNTED : 0;
#ifdef P2P
    g->n[5] = direct;
#else
    g->n[6] = direct;
#endif
    return ok();
}
#endif
