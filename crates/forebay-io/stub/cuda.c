/* A CUDA driver without a GPU, for tests: device memory is malloc'ed, and copies run as late as the API allows, when
 * somebody waits for their stream or for a mark behind them. Whoever reuses host memory too early copies wrong bytes here, every time.
 * It is as strict as the driver where misuse counts: calls without a current context, copies out of bounds,
 * memory pinned twice, copies from memory that was pinned in several pieces or in part.
 *
 * Variants are made by -D: DEVICES, MEMORY (bytes each), VERSION, INIT_CODE, FAIL_AT (copy to fail at, counted from 1, then all later calls
 * on the device fail), FAIL_WAIT (wait for a mark to fail at, counted from 1, and no other call), FAIL_CODE, ALLOC_CODE, PIN_MAX (bytes that can be pinned), NO_UUID (lacks a symbol). */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef MEMORY
#define MEMORY (1ull << 30)
#endif
#ifndef VERSION
#define VERSION 13000
#endif
#ifndef INIT_CODE
#define INIT_CODE 0
#endif
#ifndef FAIL_AT
#define FAIL_AT 0
#endif
#ifndef FAIL_WAIT
#define FAIL_WAIT 0
#endif
#ifndef FAIL_CODE
#define FAIL_CODE 719
#endif
#ifndef PIN_MAX
#define PIN_MAX (1ull << 40)
#endif

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, NO_CONTEXT = 201,
       INVALID_HANDLE = 400, NOT_READY = 600, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713 };

typedef struct context { int device; int retained; uint64_t used; } context;
typedef struct block { context *ctx; char *base; size_t len; struct block *next; } block;
typedef struct pinned { char *base; size_t len; struct pinned *next; } pinned;
typedef struct op { char *to; const char *from; size_t len; struct op *next; } op;
typedef struct stream { context *ctx; op *first, *last; uint64_t queued, ran; } stream;
typedef struct event { context *ctx; stream *at; uint64_t mark; } event;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static context contexts[DEVICES > 0 ? DEVICES : 1];
static block *blocks;
static pinned *pins;
static uint64_t pinned_bytes, copies, waits, live;
static int ready, lost;
static __thread context *stack[64];
static __thread int depth;

static context *current(void) { return depth > 0 ? stack[depth - 1] : NULL; }
#define ENTER pthread_mutex_lock(&lock); int code = OK; context *ctx = current(); (void)ctx; \
    if (!ready) { code = NOT_INITIALIZED; goto out; }
#define CONTEXT if (!ctx) { code = NO_CONTEXT; goto out; } if (lost) { code = lost; goto out; }
#define LEAVE out: pthread_mutex_unlock(&lock); return code;
#define FAIL(c) do { code = (c); goto out; } while (0)

/* What tests ask for: things that were made and not unmade. */
uint64_t stub_live(void) { return live; }
uint64_t stub_copies(void) { return copies; }
uint64_t stub_depth(void) { return (uint64_t)depth; }

int cuDriverGetVersion(int *version) { *version = VERSION; return OK; }
int cuInit(unsigned flags) { if (flags) return INVALID_VALUE; ready = INIT_CODE == 0; return INIT_CODE; }
int cuGetErrorName(int code, const char **name) {
    if (code == 2) { *name = "CUDA_ERROR_OUT_OF_MEMORY"; return OK; }
    if (code == 719) { *name = "CUDA_ERROR_LAUNCH_FAILED"; return OK; }
    if (code == 100) { *name = "CUDA_ERROR_NO_DEVICE"; return OK; }
    *name = NULL; return INVALID_VALUE;
}
int cuGetErrorString(int code, const char **words) {
    if (code == 2) { *words = "out of memory"; return OK; }
    if (code == 719) { *words = "unspecified launch failure"; return OK; }
    if (code == 100) { *words = "no CUDA-capable device is detected"; return OK; }
    *words = NULL; return INVALID_VALUE;
}
int cuDeviceGetCount(int *count) { ENTER *count = DEVICES; LEAVE }
int cuDeviceGet(int *device, int ordinal) { ENTER if (ordinal < 0 || ordinal >= DEVICES) FAIL(INVALID_DEVICE); *device = ordinal; LEAVE }
int cuDeviceGetName(char *name, int len, int device) { ENTER snprintf(name, len, "Stub GPU %d", device); LEAVE }
#ifndef NO_UUID
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { ENTER memset(uuid, device + 1, 16); LEAVE }
#endif
int cuDeviceGetPCIBusId(char *text, int len, int device) { ENTER snprintf(text, len, "00000000:%02X:00.0", 0x3a + device); LEAVE }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; ENTER *bytes = MEMORY; LEAVE }
int cuDeviceGetAttribute(int *value, int attribute, int device) { (void)device; ENTER *value = attribute == 75 ? 9 : 0; LEAVE }
int cuDevicePrimaryCtxRetain(context **out_ctx, int device) {
    ENTER
    if (device < 0 || device >= DEVICES) FAIL(INVALID_DEVICE);
    contexts[device].device = device; contexts[device].retained++; live++; *out_ctx = &contexts[device];
    LEAVE
}
int cuDevicePrimaryCtxRelease_v2(int device) { ENTER if (contexts[device].retained < 1) FAIL(NO_CONTEXT); contexts[device].retained--; live--; LEAVE }
int cuCtxPushCurrent_v2(context *pushed) { ENTER if (!pushed || pushed->retained < 1 || depth >= 64) FAIL(NO_CONTEXT); stack[depth++] = pushed; LEAVE }
int cuCtxPopCurrent_v2(context **popped) { ENTER if (depth < 1) FAIL(NO_CONTEXT); *popped = stack[--depth]; LEAVE }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { ENTER CONTEXT *total = MEMORY; *free_bytes = MEMORY - ctx->used; LEAVE }

int cuMemAlloc_v2(uint64_t *address, size_t len) {
    ENTER CONTEXT
    if (len == 0) FAIL(INVALID_VALUE);
#ifdef ALLOC_CODE
    FAIL(ALLOC_CODE);
#endif
    if (len > MEMORY - ctx->used) FAIL(OUT_OF_MEMORY);
    block *made = malloc(sizeof *made);
    made->base = aligned_alloc(4096, (len + 4095) / 4096 * 4096); memset(made->base, 0xcd, len);
    made->len = len; made->ctx = ctx; made->next = blocks; blocks = made; live++;
    ctx->used += len; *address = (uint64_t)(uintptr_t)made->base;
    LEAVE
}
int cuMemFree_v2(uint64_t address) {
    ENTER CONTEXT
    for (block **at = &blocks; *at; at = &(*at)->next)
        if ((uint64_t)(uintptr_t)(*at)->base == address) {
            block *gone = *at; *at = gone->next; gone->ctx->used -= gone->len; live--;
            free(gone->base); free(gone); goto out;
        }
    FAIL(INVALID_VALUE);
    LEAVE
}
int cuMemHostRegister_v2(void *ptr, size_t len, unsigned flags) {
    ENTER CONTEXT
    if (flags & ~1u || (uintptr_t)ptr % 4096 || len == 0) FAIL(INVALID_VALUE);
    for (pinned *at = pins; at; at = at->next)
        if ((char *)ptr < at->base + at->len && at->base < (char *)ptr + len) FAIL(ALREADY_REGISTERED);
    if (pinned_bytes + len > PIN_MAX) FAIL(OUT_OF_MEMORY);
    pinned *made = malloc(sizeof *made);
    made->base = ptr; made->len = len; made->next = pins; pins = made; pinned_bytes += len; live++;
    LEAVE
}
int cuMemHostUnregister(void *ptr) {
    ENTER CONTEXT
    for (pinned **at = &pins; *at; at = &(*at)->next)
        if ((*at)->base == ptr) { pinned *gone = *at; *at = gone->next; pinned_bytes -= gone->len; live--; free(gone); goto out; }
    FAIL(NOT_REGISTERED);
    LEAVE
}

static int lies_within(uint64_t address, size_t len, context *ctx) {
    for (block *at = blocks; at; at = at->next)
        if (at->ctx == ctx && (char *)(uintptr_t)address >= at->base && (char *)(uintptr_t)address + len <= at->base + at->len) return 1;
    return 0;
}
static int straddles(const char *from, size_t len) {
    for (pinned *at = pins; at; at = at->next)
        if (from < at->base + at->len && at->base < from + len) return from < at->base || from + len > at->base + at->len;
    return 0;
}
static int queue(stream *s, char *to, const char *from, size_t len) {
    op *made = malloc(sizeof *made);
    made->to = to; made->from = from; made->len = len; made->next = NULL;
    if (s->last) s->last->next = made; else s->first = made;
    s->last = made; s->queued++;
    if (++copies == FAIL_AT) lost = FAIL_CODE;
    return OK;
}
static void run(stream *s, uint64_t until) {
    while (s->ran < until && s->first) {
        op *done = s->first;
        if (!lost) memcpy(done->to, done->from, done->len);
        s->first = done->next; if (!s->first) s->last = NULL;
        s->ran++; free(done);
    }
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t len, stream *s) {
    ENTER CONTEXT
    if (!s || s->ctx != ctx) FAIL(INVALID_HANDLE);
    if (!lies_within(to, len, ctx) || straddles(from, len)) FAIL(INVALID_VALUE);
    code = queue(s, (char *)(uintptr_t)to, from, len);
    LEAVE
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t len, stream *s) {
    ENTER CONTEXT
    if (!s || s->ctx != ctx) FAIL(INVALID_HANDLE);
    if (!lies_within(from, len, ctx)) FAIL(INVALID_VALUE);
    code = queue(s, to, (const char *)(uintptr_t)from, len);
    LEAVE
}
typedef struct rows { size_t from_x, from_y; int from_kind; const void *from_host; uint64_t from_device; const void *from_array; size_t from_stride;
    size_t to_x, to_y; int to_kind; void *to_host; uint64_t to_device; const void *to_array; size_t to_stride; size_t bytes, count; } rows;
int cuMemcpy2DAsync_v2(const rows *r, stream *s) {
    ENTER CONTEXT
    if (!s || s->ctx != ctx) FAIL(INVALID_HANDLE);
    if (r->to_kind != 2 || (r->from_kind != 1 && r->from_kind != 2) || (r->count > 1 && (r->from_stride < r->bytes || r->to_stride < r->bytes)) ||
        r->from_stride > 0x7fffffff || r->to_stride > 0x7fffffff) FAIL(INVALID_VALUE);
    if (r->from_kind == 1 && straddles(r->from_host, (r->count - 1) * r->from_stride + r->bytes)) FAIL(INVALID_VALUE);
    for (size_t i = 0; i < r->count; i++) {
        uint64_t to = r->to_device + i * r->to_stride, from = r->from_device + i * r->from_stride;
        if (!lies_within(to, r->bytes, ctx) || (r->from_kind == 2 && !lies_within(from, r->bytes, ctx))) FAIL(INVALID_VALUE);
        queue(s, (char *)(uintptr_t)to, r->from_kind == 1 ? (const char *)r->from_host + i * r->from_stride : (const char *)(uintptr_t)from, r->bytes);
    }
    LEAVE
}
int cuStreamCreate(stream **made, unsigned flags) {
    ENTER CONTEXT
    if (flags & ~1u) FAIL(INVALID_VALUE);
    *made = calloc(1, sizeof **made); (*made)->ctx = ctx; live++;
    LEAVE
}
int cuStreamDestroy_v2(stream *s) { ENTER if (!s) FAIL(INVALID_HANDLE); run(s, s->queued); free(s); live--; LEAVE }
int cuStreamSynchronize(stream *s) { ENTER CONTEXT run(s, s->queued); if (lost) FAIL(lost); LEAVE }
int cuEventCreate(event **made, unsigned flags) {
    ENTER CONTEXT
    if (flags & ~7u) FAIL(INVALID_VALUE);
    *made = calloc(1, sizeof **made); (*made)->ctx = ctx; live++;
    LEAVE
}
int cuEventDestroy_v2(event *e) { ENTER if (!e) FAIL(INVALID_HANDLE); free(e); live--; LEAVE }
int cuEventRecord(event *e, stream *s) { ENTER CONTEXT if (e->ctx != s->ctx) FAIL(INVALID_HANDLE); e->at = s; e->mark = s->queued; LEAVE }
int cuEventQuery(event *e) { ENTER CONTEXT if (e->at && e->at->ran < e->mark) FAIL(NOT_READY); LEAVE }
int cuEventSynchronize(event *e) { ENTER CONTEXT if (e->at) run(e->at, e->mark); if (lost) FAIL(lost); if (++waits == FAIL_WAIT) FAIL(FAIL_CODE); LEAVE }
