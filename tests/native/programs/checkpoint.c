/* SPDX-License-Identifier: Apache-2.0
 *
 * A process with memory of every kind on every card, for test_checkpoint_kinds.py: it is taken off
 * its cards and brought back between the commands that it reads.
 * usage: sim-checkpoint SEED    then lines on stdin, each answered by "ok":
 *   same     all memory has the contents that were written, at the addresses of then
 *   change   some memory is freed, some is new, some gets other contents
 *   work     streams, events, host functions, graphs and written words do what they should
 */
#include "must.h"

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s is not so\n", __FILE__, __LINE__, #condition);              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define ITEMS 48u
#define CARDS 2
#define UNIT  (2ull << 20)
#define MOST  (300u << 10) /* bytes of contents that are written and compared at a time */
#define WORDS 4096u

enum kind { LINEAR, POOLED, MAPPED, GRAPH, PINNED, ARRAY, KINDS };

struct item {
    enum kind kind;
    int card;
    uint64_t size, offset, length; /* contents were written from offset on */
    uint64_t seed;                 /* of the contents */
    CUdeviceptr at, second;        /* second: another mapping of the same memory */
    CUmemGenericAllocationHandle handle;
    CUgraphExec exec;
    CUarray array;
    int fill; /* of the whole before; -1: none */
};

static struct item items[ITEMS];
static CUcontext contexts[CARDS];
static CUstream streams[CARDS], extra;
static CUevent events[CARDS];
static CUfunction work;
static CUdeviceptr variable[CARDS];
static uint32_t *pinned; /* by the driver */
static char *registered; /* the program's own pages */
static int cards, called;
static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static void bytes_of(uint64_t seed, uint8_t *out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        out[i] = (uint8_t)(seed >> 56);
    }
}

static const char module_text[] = ".version 6.3\n.target sm_75\n"
                                  ".visible .global .align 8 .b8 table[70000];\n"
                                  ".visible .entry qgpu_work(.param .u64 n)\n{ ret; }\n";

static void begin(void)
{
    CUmodule module;
    size_t size;
    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&cards));
    cards = cards < CARDS ? cards : CARDS;
    for (int i = 0; i < cards; i++) {
        MUST(cuDevicePrimaryCtxRetain(&contexts[i], i));
        MUST(cuCtxSetCurrent(contexts[i]));
        MUST(cuModuleLoadData(&module, module_text));
        MUST(cuModuleGetGlobal(&variable[i], &size, module, "table"));
        MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        MUST(cuEventCreate(&events[i], 0));
        if (i == 0)
            MUST(cuModuleGetFunction(&work, module, "qgpu_work"));
    }
    MUST(cuCtxSetCurrent(contexts[0]));
    MUST(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64u << 20));
    MUST(cuStreamCreate(&extra, 0));
    MUST(cuMemHostAlloc((void **)&pinned, WORDS, 0));
    registered = mmap(NULL, WORDS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(registered != MAP_FAILED);
    MUST(cuMemHostRegister(registered, WORDS, CU_MEMHOSTREGISTER_PORTABLE));
}

/* ---- memory ---- */

static void write_contents(struct item *item)
{
    static uint8_t data[MOST];
    item->length = 1 + draw(item->size < MOST ? item->size : MOST);
    item->offset = draw(item->size - item->length + 1);
    item->seed = draw(UINT64_MAX);
    bytes_of(item->seed, data, item->length);
    MUST(cuCtxSetCurrent(contexts[item->card]));
    MUST(cuMemcpy(item->at + item->offset, (CUdeviceptr)data, item->length));
}

static void make_mapped(struct item *item)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, {item->card}}};
    if (draw(2)) /* could be shared, but is not */
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    item->size = (1 + draw(8)) * UNIT;
    MUST(cuMemCreate(&item->handle, item->size, &prop, 0));
    MUST(cuMemAddressReserve(&item->at, 2 * item->size, 0, 0, 0));
    item->second = item->at + item->size;
    MUST(cuMemMap(item->at, item->size, 0, item->handle, 0));
    MUST(cuMemMap(item->second, item->size, 0, item->handle, 0));
}

static void make_graph(struct item *item)
{
    CUgraph graph;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {.bytesize = item->size};
    wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, {item->card}};
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &wanted));
    MUST(cuGraphInstantiate(&item->exec, graph, 0));
    MUST(cuGraphLaunch(item->exec, streams[item->card]));
    MUST(cuStreamSynchronize(streams[item->card]));
    MUST(cuGraphDestroy(graph));
    item->at = wanted.dptr;
}

static void make_array(struct item *item)
{
    CUDA_ARRAY_DESCRIPTOR wanted = {1 + draw(2000), draw(500), CU_AD_FORMAT_FLOAT, 2};
    MUST(cuArrayCreate(&item->array, &wanted));
}

static void make(struct item *item)
{
    *item = (struct item){.kind = (enum kind)draw(KINDS), .card = (int)draw((uint64_t)cards)};
    item->size = 1 + draw(draw(2) ? 5000 : 9u << 20);
    item->fill = draw(2) ? (int)draw(256) : -1;
    MUST(cuCtxSetCurrent(contexts[item->card]));
    if (item->kind == LINEAR)
        MUST(cuMemAlloc(&item->at, item->size));
    else if (item->kind == POOLED)
        MUST(cuMemAllocAsync(&item->at, item->size, streams[item->card]));
    else if (item->kind == MAPPED)
        make_mapped(item);
    else if (item->kind == GRAPH)
        make_graph(item);
    else if (item->kind == PINNED)
        MUST(cuMemHostAlloc((void **)&item->at, item->size, 0));
    else
        make_array(item);
    if (item->kind == ARRAY)
        return;
    if (item->fill >= 0)
        MUST(cuMemsetD8(item->at, (unsigned char)item->fill, item->size));
    write_contents(item);
}

static void drop(struct item *item)
{
    MUST(cuCtxSetCurrent(contexts[item->card]));
    if (item->kind == MAPPED) {
        MUST(cuMemUnmap(item->at, 2 * item->size));
        MUST(cuMemAddressFree(item->at, 2 * item->size));
        MUST(cuMemRelease(item->handle));
    } else if (item->kind == POOLED) {
        MUST(cuMemFreeAsync(item->at, streams[item->card]));
    } else if (item->kind == PINNED) {
        MUST(cuMemFreeHost((void *)item->at));
    } else if (item->kind == ARRAY) {
        MUST(cuArrayDestroy(item->array));
    } else {
        MUST(cuMemFree(item->at));
    }
    if (item->kind == GRAPH)
        MUST(cuGraphExecDestroy(item->exec));
}

static void compare(const struct item *item, CUdeviceptr base)
{
    static uint8_t data[MOST], want[MOST];
    bytes_of(item->seed, want, item->length);
    MUST(cuMemcpy((CUdeviceptr)data, base + item->offset, item->length));
    CHECK(memcmp(data, want, item->length) == 0);
    if (item->fill < 0)
        return;
    uint64_t ends[] = {0, item->offset, item->offset + item->length, item->size};
    for (unsigned i = 0; i < 4; i += 2) {
        uint64_t n = ends[i + 1] - ends[i] < MOST ? ends[i + 1] - ends[i] : MOST;
        if (!n)
            continue;
        MUST(cuMemcpy((CUdeviceptr)data, base + ends[i + 1] - n, n));
        memset(want, item->fill, n);
        CHECK(memcmp(data, want, n) == 0);
    }
}

static void same(void)
{
    static uint8_t data[70000];
    for (unsigned i = 0; i < ITEMS; i++) {
        if (items[i].kind == ARRAY)
            continue;
        MUST(cuCtxSetCurrent(contexts[items[i].card]));
        compare(&items[i], items[i].at);
        if (items[i].kind == MAPPED)
            compare(&items[i], items[i].second);
    }
    for (int i = 0; i < cards; i++) {
        MUST(cuMemcpy((CUdeviceptr)data, variable[i], sizeof data));
        for (size_t j = 0; j < sizeof data; j++)
            CHECK(data[j] == (uint8_t)(100 + i));
    }
}

static void change(void)
{
    for (unsigned i = 0; i < ITEMS; i++) {
        uint64_t what = draw(4);
        if (what == 0) {
            drop(&items[i]);
            make(&items[i]);
        } else if (what == 1 && items[i].kind != ARRAY) {
            MUST(cuCtxSetCurrent(contexts[items[i].card]));
            items[i].fill = (int)draw(256);
            MUST(cuMemsetD8(items[i].at, (unsigned char)items[i].fill, items[i].size));
            write_contents(&items[i]);
        }
    }
}

/* ---- work ---- */

static void count_call(void *unused)
{
    (void)unused;
    called++;
}

static void launch(CUstream stream)
{
    uint64_t n = 200000;
    void *arguments[] = {&n};
    MUST(cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

/* A word that a stream writes behind a kernel, and one that it waits for. */
static void words(int card, uint32_t value)
{
    CUdeviceptr mine = (CUdeviceptr)pinned + 64u * (unsigned)card,
                theirs = (CUdeviceptr)registered + 128u * (unsigned)card;
    launch(streams[card]);
    MUST(cuStreamWriteValue32(streams[card], mine, value, 0));
    MUST(cuStreamWriteValue64(streams[card], theirs, value, 0));
    MUST(cuStreamWaitValue32(streams[card], mine, value, CU_STREAM_WAIT_VALUE_EQ));
    MUST(cuStreamSynchronize(streams[card]));
    CHECK(*(uint32_t *)mine == value && *(uint64_t *)theirs == value);
}

static void work_on(int card)
{
    static uint32_t value;
    float ms;
    CUevent start;
    MUST(cuCtxSetCurrent(contexts[card]));
    MUST(cuEventCreate(&start, 0));
    MUST(cuEventRecord(start, streams[card]));
    launch(streams[card]);
    launch(NULL);
    MUST(cuEventRecord(events[card], streams[card]));
    MUST(cuStreamWaitEvent(extra, events[card], 0));
    MUST(cuLaunchHostFunc(streams[card], count_call, NULL));
    int before = called;
    MUST(cuEventSynchronize(events[card]));
    MUST(cuStreamSynchronize(streams[card]));
    CHECK(called <= before + 1 && called > 0);
    MUST(cuEventElapsedTime(&ms, start, events[card]));
    CHECK(ms >= 0.2f);
    MUST(cuEventDestroy(start));
    words(card, ++value);
}

static void graph_copies(void)
{
    static CUgraphExec exec;
    static CUdeviceptr from, to;
    uint32_t got, want = (uint32_t)draw(UINT32_MAX);
    MUST(cuCtxSetCurrent(contexts[0]));
    if (!exec) {
        CUgraph graph;
        MUST(cuMemAlloc(&from, 4096));
        MUST(cuMemAlloc(&to, 4096));
        MUST(cuStreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
        MUST(cuMemcpyDtoDAsync(to, from, 4096, streams[0]));
        MUST(cuStreamWriteValue32(streams[0], to + 8, 77, 0));
        MUST(cuLaunchHostFunc(streams[0], count_call, NULL));
        MUST(cuStreamEndCapture(streams[0], &graph));
        MUST(cuGraphInstantiate(&exec, graph, 0));
    }
    MUST(cuMemsetD32(from, want, 1024));
    MUST(cuGraphLaunch(exec, streams[0]));
    MUST(cuStreamSynchronize(streams[0]));
    MUST(cuMemcpyDtoH(&got, to + 4, sizeof got));
    CHECK(got == want);
    MUST(cuMemcpyDtoH(&got, to + 8, sizeof got));
    CHECK(got == 77);
}

static void do_work(void)
{
    for (int i = 0; i < cards; i++)
        work_on(i);
    graph_copies();
}

int main(int argc, char **argv)
{
    char line[64];
    CHECK(argc == 2);
    state = strtoull(argv[1], NULL, 10) * 2654435761u + 88172645463325252u;
    begin();
    for (int i = 0; i < cards; i++) {
        MUST(cuCtxSetCurrent(contexts[i]));
        MUST(cuMemsetD8(variable[i], (unsigned char)(100 + i), 70000));
    }
    for (unsigned i = 0; i < ITEMS; i++)
        make(&items[i]);
    puts("ok");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "same\n") == 0)
            same();
        else if (strcmp(line, "change\n") == 0)
            change();
        else
            do_work();
        puts("ok");
        fflush(stdout);
    }
    return 0;
}
