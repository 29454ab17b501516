/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that have nothing to do with each other, while a call of the driver does not come back in
 * one of them: `shim-slow WHAT`. test_shim_slow.py.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "submit.h"

#define DEPTH 1024 /* of the simulated card's queue */

struct card {
    CUcontext context;
    CUfunction work;
    CUstream stream;
    atomic_ulong launched;
    pthread_t thread;
};
static struct card cards[2];
static atomic_bool stop;

static void use(struct card *card, CUcontext of)
{
    static const char ptx[] =
        ".version 6.3\n.target sm_75\n.visible .entry qgpu_work(.param .u64 n)\n{ ret; }\n";
    card->context = of;
    MUST(CALL(cuCtxSetCurrent)(of));
    MUST(CALL(cuModuleLoadData)(&module, ptx));
    MUST(CALL(cuModuleGetFunction)(&card->work, module, "qgpu_work"));
    MUST(CALL(cuStreamCreate)(&card->stream, CU_STREAM_NON_BLOCKING));
}

/* Two cards; or, with `one`, two contexts of the first. */
static void open_cards(bool one)
{
    CUcontext of;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(!cuda);
    MUST(CALL(cuInit)(0));
    for (int i = 0; i < 2; i++) {
        MUST(i && one ? CALL(cuCtxCreate_v2)(&of, 0, 0)
                      : CALL(cuDevicePrimaryCtxRetain)(&of, one ? 0 : i));
        use(&cards[i], of);
    }
}

static void launch(struct card *card, CUstream s, uint64_t ns)
{
    void *params[] = {&ns};
    MUST(CALL(cuLaunchKernel)(card->work, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
    card->launched++;
}

static void *works(void *own)
{
    struct card *card = own;
    MUST(CALL(cuCtxSetCurrent)(card->context));
    for (unsigned i = 0; !stop; i++) {
        launch(card, card->stream, 20000);
        if (i % 16 == 15)
            MUST(CALL(cuStreamSynchronize)(card->stream));
    }
    MUST(CALL(cuStreamSynchronize)(card->stream));
    return NULL;
}

/* A thread that comes, works in a stream of its own and in its default one, and ends. */
static void *visits(void *of)
{
    struct card *card = of;
    CUstream own;
    MUST(CALL(cuCtxSetCurrent)(card->context));
    MUST(CALL(cuStreamCreate)(&own, CU_STREAM_NON_BLOCKING));
    launch(card, own, 20000);
    launch(card, CU_STREAM_PER_THREAD, 20000);
    MUST(CALL(cuStreamSynchronize)(own));
    MUST(CALL(cuStreamSynchronize)(CU_STREAM_PER_THREAD));
    MUST(CALL(cuStreamDestroy_v2)(own));
    return NULL;
}

static void counts(void)
{
    printf("%lu %lu\n", (unsigned long)cards[0].launched, (unsigned long)cards[1].launched);
    fflush(stdout);
}

/* pair: a thread per card works until told; orders: "c" counts, "0" and "1" a visitor of that card,
 * "e" end. */
static void pair(bool one)
{
    char line[64];
    pthread_t visitor;
    open_cards(one);
    printf("ready\n");
    go_on();
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(&cards[i].thread, NULL, works, &cards[i]));
    while (fgets(line, sizeof(line), stdin) && *line != 'e') {
        if (*line == 'c') {
            counts();
            continue;
        }
        MUST(pthread_create(&visitor, NULL, visits, &cards[*line - '0']));
        MUST(pthread_join(visitor, NULL));
        printf("left\n");
        fflush(stdout);
    }
    stop = true;
    for (int i = 0; i < 2; i++)
        MUST(pthread_join(cards[i].thread, NULL));
    counts();
}

static atomic_bool filled;

static void *waits(void *unused)
{
    (void)unused;
    MUST(CALL(cuCtxSetCurrent)(cards[0].context));
    MUST(CALL(cuStreamWaitValue32_v2)(cards[0].stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    for (unsigned i = 1; i < DEPTH; i++) {
        MUST(CALL(cuMemcpyHtoDAsync_v2)(a, host, 64, cards[0].stream));
        /* on a busy machine markers take places as well, and one of the rest stands already */
        filled |= i > DEPTH / 2;
    }
    launch(&cards[0], cards[0].stream, 1000); /* there is room when somebody has written the word */
    MUST(CALL(cuStreamSynchronize)(cards[0].stream));
    return NULL;
}

/* behind: one thread's queue is full behind a word that the other thread's work writes. */
static void behind(bool one)
{
    void *page;
    struct timespec while_ = {.tv_nsec = 100000000};
    open_cards(one);
    MUST(CALL(cuCtxSetCurrent)(cards[0].context));
    MUST(CALL(cuMemAlloc_v2)(&a, 4096));
    MUST(CALL(cuMemHostAlloc)((void **)&host, 4096, 0));
    MUST(CALL(cuMemHostAlloc)(&page, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    MUST(CALL(cuMemHostGetDevicePointer_v2)(&word, page, 0));
    MUST(pthread_create(&cards[0].thread, NULL, waits, NULL));
    MUST(CALL(cuCtxSetCurrent)(cards[1].context));
    while (!filled)
        ;
    nanosleep(&while_, NULL); /* it stands in its launch, or in a copy */
    launch(&cards[1], cards[1].stream, 1000);
    MUST(CALL(cuStreamWriteValue32_v2)(cards[1].stream, word, 1, 0));
    MUST(CALL(cuStreamSynchronize)(cards[1].stream));
    MUST(pthread_join(cards[0].thread, NULL));
    counts();
}

static atomic_bool passed;
#define SHORT_NS 55000 /* below a quarter of the window: it gets no marker at once */

/* A function without a sample fills the window: it waits until what the
 * other context has there ends within 150 us. */
static void *needs_room(void *of)
{
    struct card *card = of;
    use(card, card->context);
    launch(card, card->stream, 1000);
    passed = true;
    return NULL;
}

static bool stands(struct card *card)
{
    struct timespec while_ = {.tv_nsec = 300000000};
    passed = false;
    MUST(pthread_create(&card->thread, NULL, needs_room, card));
    nanosleep(&while_, NULL);
    return !passed;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A short kernel behind the word in each of four streams, without a marker of its own, as it is if
 * the last one is less than a millisecond old. Together they last longer than 150 us even if one is
 * overdue. */
static void unmarked_work(struct card *card, volatile uint32_t *at)
{
    CUstream streams[4] = {card->stream};
    for (int i = 1; i < 4; i++)
        MUST(CALL(cuStreamCreate)(&streams[i], CU_STREAM_NON_BLOCKING));
    for (double began = 0; seconds() - began > 0.0008;) {
        *at = turn++; /* what stands there from the last time */
        for (int i = 0; i < 4; i++)
            MUST(CALL(cuStreamSynchronize)(streams[i]));
        began = seconds();
        for (int i = 0; i < 4; i++)
            launch(card, streams[i], SHORT_NS);
        for (int i = 0; i < 4; i++)
            MUST(CALL(cuStreamSynchronize)(streams[i]));
        for (int i = 0; i < 4; i++) {
            MUST(CALL(cuStreamWaitValue32_v2)(streams[i], word, turn, CU_STREAM_WAIT_VALUE_GEQ));
            launch(card, streams[i], SHORT_NS);
        }
    }
}

/* Another thread puts a marker behind the work of the second card's stream, which waits for a word
 * in *page. That call is blocked by the test: "stands" when it is made; then a line. */
static void marker_stands(bool one, void **page_out)
{
    void *page;
    open_cards(one);
    MUST(CALL(cuMemHostAlloc)(&page, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    MUST(CALL(cuMemHostGetDevicePointer_v2)(&word, page, 0));
    for (int i = 0; i < 20; i++) { /* so that its length is known */
        launch(&cards[1], cards[1].stream, SHORT_NS);
        MUST(CALL(cuStreamSynchronize)(cards[1].stream));
    }
    unmarked_work(&cards[1], page);
    printf("ready\n");
    go_on();
    printf(stands(&cards[0]) ? "stands\n" : "passed\n");
    go_on();
    *page_out = page;
}

/* ends: meanwhile that context is destroyed: "gone"; "over" at the end. */
static void ends(bool one)
{
    void *page;
    marker_stands(one, &page);
    *(volatile uint32_t *)page = turn;
    MUST(CALL(cuCtxDestroy_v2)(cards[1].context));
    printf("gone\n");
    fflush(stdout);
    MUST(pthread_join(cards[0].thread, NULL));
    printf("over\n");
    go_on();
}

/* captures: meanwhile that stream captures: "N nodes", and none of them is the program's; "over" at
 * the end. */
static void captures(bool one)
{
    void *page;
    CUgraph graph;
    size_t nodes = 0;
    marker_stands(one, &page);
    MUST(CALL(cuStreamBeginCapture_v2)(cards[1].stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(pthread_join(cards[0].thread, NULL));
    MUST(CALL(cuStreamEndCapture)(cards[1].stream, &graph));
    MUST(CALL(cuGraphGetNodes)(graph, NULL, &nodes));
    printf("%zu nodes\n", nodes);
    fflush(stdout);
    MUST(CALL(cuGraphDestroy)(graph));
    *(volatile uint32_t *)page = turn;
    MUST(CALL(cuStreamSynchronize)(cards[1].stream));
    printf("over\n");
    go_on();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(bool one);
    } all[] = {{"pair", pair}, {"behind", behind}, {"ends", ends}, {"captures", captures}};
    (void)begin, (void)announce, (void)done, (void)right, (void)look, (void)blank, (void)hold;
    for (size_t i = 0; argc > 2 && i < sizeof(all) / sizeof(*all); i++)
        if (!strcmp(argv[1], all[i].name)) {
            all[i].run(!strcmp(argv[2], "contexts"));
            return 0;
        }
    return 64;
}
