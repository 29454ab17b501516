/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant that proves when it had the card: each of its kernels writes the card's own clock (globaltimer) when its first block
 * starts and when its last block ends. The work of a kernel is a number of steps, not a length of time, so a kernel that was
 * taken off the card in the middle takes longer by its stamps and counts no more work. With --beat each block looks at the
 * clock all the time instead and notes every stretch between two pauses, so that progress in the middle of a kernel is seen.
 */
#include "common.cuh"

#include <algorithm>
#include <string>
#include <unistd.h>

struct Options {
    std::string kind = "spin", stamps, log;
    uint64_t iters = 20000, start_at = 0, room = 1u << 20, in_flight = 32, per_request = 1, launch_cost = 0;
    double length = 5, busy = 0, idle = 0;
    int blocks = 0, threads = 128, n = 1024, nodes = 20;
    bool calibrate = false, beat = false;
};

/* Kernels of a tenant follow each other in one stream, so one set of tickets serves them all; a graph needs no index. */
struct Stamps {
    unsigned in, out;
    unsigned long long cursor, room;
    uint64_t *rec;
};

__device__ uint64_t sink;

__device__ void enter(Stamps *s)
{
    if (threadIdx.x | threadIdx.y)
        return;
    uint64_t t = card_ns();
    if (atomicAdd(&s->in, 1) == 0 && s->cursor < s->room)
        s->rec[2 * s->cursor] = t;
}

__device__ void leave(Stamps *s)
{
    __syncthreads();
    if (threadIdx.x | threadIdx.y)
        return;
    __threadfence();
    uint64_t t = card_ns();
    if (atomicAdd(&s->out, 1) != gridDim.x * gridDim.y - 1)
        return;
    if (s->cursor < s->room)
        s->rec[2 * s->cursor + 1] = t;
    s->in = s->out = 0;
    s->cursor++;
}

__global__ void spin(uint64_t iters, Stamps *s)
{
    enter(s);
    uint64_t x = clock64();
    for (uint64_t i = 0; i < iters; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    if (x == 0)
        sink = x;
    leave(s);
}

const uint64_t CHUNK = 256, LOOK = 64, PAUSE_NS = 20000;

__device__ void note(Stamps *s, uint64_t begin, uint64_t end)
{
    unsigned long long at = atomicAdd(&s->cursor, 1);
    if (at < s->room) {
        s->rec[2 * at] = begin;
        s->rec[2 * at + 1] = end;
    }
}

/* `leave`: ends a kernel that would go on for ever. */
__global__ void beat(uint64_t iters, Stamps *s, volatile unsigned *leave)
{
    __shared__ unsigned end;
    uint64_t x = clock64(), begin = card_ns(), last = begin;
    if (threadIdx.x == 0)
        end = 0;
    for (uint64_t done = 0; done < iters; done += CHUNK) {
        for (uint64_t i = 0; i < CHUNK; i++)
            x = x * 6364136223846793005u + 1442695040888963407u;
        __syncthreads();
        if (threadIdx.x == 0) {
            uint64_t now = card_ns();
            if (now - last > PAUSE_NS) {
                note(s, begin, last);
                begin = now;
            }
            last = now;
            if (done / CHUNK % LOOK == 0)
                end = *leave;
        }
        __syncthreads();
        if (end)
            break;
    }
    if (x == 0)
        sink = x;
    if (threadIdx.x == 0)
        note(s, begin, last);
}

const int TILE = 32;

__global__ void matmul(const float *a, const float *b, float *c, int n, Stamps *s)
{
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    enter(s);
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += TILE) {
        left[threadIdx.y][threadIdx.x] = a[(size_t)row * n + k + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(size_t)(k + threadIdx.y) * n + col];
        __syncthreads();
        for (int i = 0; i < TILE; i++)
            sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    c[(size_t)row * n + col] = sum;
    leave(s);
}

__global__ void fill(float *p, size_t size, unsigned seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < size; i += (size_t)gridDim.x * blockDim.x)
        p[i] = (float)((i * 2654435761u + seed) % 1000) / 1000;
}

__global__ void nothing() {}

/* The card answers the host's word with its clock, so often that the quickest answer is near the truth. */
__global__ void answer(volatile unsigned *ask, volatile uint64_t *told, unsigned rounds)
{
    uint64_t give_up = card_ns() + 200000000u;
    for (unsigned i = 1; i <= rounds; i++) {
        while (*ask < i && card_ns() < give_up) {
        }
        told[0] = card_ns();
        __threadfence_system();
        told[1] = i;
        __threadfence_system();
    }
}

struct ClockPair {
    uint64_t host, card, doubt;
};

static ClockPair clocks(cudaStream_t stream)
{
    const unsigned rounds = 100;
    volatile unsigned *ask;
    volatile uint64_t *told;
    CHECK(cudaHostAlloc((void **)&ask, sizeof *ask, cudaHostAllocMapped));
    CHECK(cudaHostAlloc((void **)&told, 2 * sizeof *told, cudaHostAllocMapped));
    *ask = 0;
    told[0] = told[1] = 0;
    answer<<<1, 1, 0, stream>>>(ask, told, rounds);
    CHECK(cudaGetLastError());
    ClockPair best = {0, 0, UINT64_MAX};
    uint64_t give_up = now_ns() + 1000000000u;
    for (unsigned i = 1; i <= rounds; i++) {
        uint64_t before = now_ns();
        *ask = i;
        while (told[1] != i && now_ns() < give_up) {
        }
        uint64_t after = now_ns(), card = told[0];
        if (told[1] == i && after - before < best.doubt)
            best = {(before + after) / 2, card, after - before};
    }
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFreeHost((void *)ask));
    CHECK(cudaFreeHost((void *)told));
    return best;
}

struct Tenant {
    Options options;
    cudaStream_t stream;
    Stamps *stamps, host;
    float *a = nullptr, *b = nullptr, *c = nullptr;
    volatile unsigned *leave = nullptr;
    cudaGraphExec_t graph = nullptr;
    std::vector<cudaEvent_t> window;
    uint64_t launched = 0, requests = 0;

    void kernel(bool as_node = false)
    {
        const Options &o = options;
        if (o.kind == "matmul")
            matmul<<<dim3(o.n / TILE, o.n / TILE), dim3(TILE, TILE), 0, stream>>>(a, b, c, o.n, stamps);
        else if (o.kind == "graph" && !as_node)
            CHECK(cudaGraphLaunch(graph, stream));
        else if (o.beat)
            beat<<<o.blocks, o.threads, 0, stream>>>(o.iters, stamps, leave);
        else
            spin<<<o.blocks, o.threads, 0, stream>>>(o.iters, stamps);
        if (!as_node)
            CHECK(cudaGetLastError());
    }

    void open()
    {
        Options &o = options;
        cudaDeviceProp prop;
        CHECK(cudaGetDeviceProperties(&prop, 0));
        if (!o.blocks)
            o.blocks = prop.multiProcessorCount;
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        host = {0, 0, 0, o.room, nullptr};
        CHECK(cudaMalloc(&host.rec, o.room * 16));
        CHECK(cudaMalloc(&stamps, sizeof host));
        CHECK(cudaHostAlloc((void **)&leave, sizeof *leave, cudaHostAllocMapped));
        *leave = o.kind == "persistent"; /* the first one only loads the code */
        reset();
        if (o.kind == "matmul") {
            size_t size = (size_t)o.n * o.n;
            for (float **p : {&a, &b, &c})
                CHECK(cudaMalloc(p, size * sizeof **p));
            fill<<<256, 256, 0, stream>>>(a, size, 1);
            fill<<<256, 256, 0, stream>>>(b, size, 2);
        }
        if (o.kind == "graph")
            capture();
        window.resize(o.in_flight);
        for (cudaEvent_t &event : window)
            CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        kernel();
        nothing<<<1, 1, 0, stream>>>();
        CHECK(cudaStreamSynchronize(stream));
        *leave = 0;
        reset();
    }

    void capture()
    {
        cudaGraph_t made;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < options.nodes; i++)
            kernel(true);
        CHECK(cudaStreamEndCapture(stream, &made));
        CHECK(cudaGraphInstantiate(&graph, made, 0));
    }

    void reset()
    {
        CHECK(cudaMemset(host.rec, 0, options.room * 16));
        CHECK(cudaMemcpy(stamps, &host, sizeof host, cudaMemcpyHostToDevice));
        CHECK(cudaDeviceSynchronize());
    }

    void launch()
    {
        cudaEvent_t event = window[launched % window.size()];
        if (launched >= window.size())
            CHECK(cudaEventSynchronize(event));
        kernel();
        CHECK(cudaEventRecord(event, stream));
        launched++;
    }
};

static void write_stamps(Tenant &tenant, const ClockPair &first, const ClockPair &last)
{
    CHECK(cudaMemcpy(&tenant.host, tenant.stamps, sizeof tenant.host, cudaMemcpyDeviceToHost));
    uint64_t count = std::min<uint64_t>(tenant.host.cursor, tenant.options.room);
    std::vector<uint64_t> rec(2 * count);
    if (count)
        CHECK(cudaMemcpy(rec.data(), tenant.host.rec, count * 16, cudaMemcpyDeviceToHost));
    FILE *file = fopen(tenant.options.stamps.c_str(), "wb");
    if (!file) {
        perror(tenant.options.stamps.c_str());
        exit(2);
    }
    uint64_t head[9] = {0x31504d4154534751u, (uint64_t)getpid(), count, first.host, first.card,
                        last.host, last.card, std::max(first.doubt, last.doubt), tenant.host.cursor};
    fwrite(head, sizeof head, 1, file);
    fwrite(rec.data(), 16, count, file);
    fclose(file);
}

static double median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/* Nanoseconds per step, from the difference of a long and a short kernel: no cost of a launch is in it. */
static void calibrate(Tenant &tenant)
{
    const uint64_t few = 20000, many = 220000;
    cudaEvent_t a, b;
    std::vector<double> found[2];
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    for (int i = 0; i < 15; i++)
        for (int k = 0; k < 2; k++) {
            float ms;
            spin<<<tenant.options.blocks, tenant.options.threads, 0, tenant.stream>>>(few, tenant.stamps);
            CHECK(cudaEventRecord(a, tenant.stream));
            spin<<<tenant.options.blocks, tenant.options.threads, 0, tenant.stream>>>(k ? many : few, tenant.stamps);
            CHECK(cudaEventRecord(b, tenant.stream));
            CHECK(cudaEventSynchronize(b));
            CHECK(cudaEventElapsedTime(&ms, a, b));
            found[k].push_back(ms * 1e6);
        }
    printf("{\"ns_per_iter\": %.9f, \"blocks\": %d}\n", (median(found[1]) - median(found[0])) / (many - few),
           tenant.options.blocks);
}

/* What a call costs the program: batches small enough that the driver's queue never fills. */
static void launch_cost(Tenant &tenant)
{
    const int batch = 200;
    std::vector<double> kernel, record;
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (uint64_t round = 0; round < tenant.options.launch_cost + 10; round++) {
        uint64_t start = now_ns();
        for (int i = 0; i < batch; i++)
            nothing<<<1, 1, 0, tenant.stream>>>();
        uint64_t middle = now_ns();
        for (int i = 0; i < batch; i++)
            CHECK(cudaEventRecord(event, tenant.stream));
        uint64_t end = now_ns();
        CHECK(cudaStreamSynchronize(tenant.stream));
        if (round < 10)
            continue;
        kernel.push_back((double)(middle - start) / batch);
        record.push_back((double)(end - middle) / batch);
    }
    printf("{\"launch_ns\": %.1f, \"event_record_ns\": %.1f, \"rounds\": %zu}\n", median(kernel), median(record),
           kernel.size());
}

static void burst(Tenant &tenant, FILE *log, uint64_t until, std::vector<double> &latency)
{
    uint64_t start = now_ns(), before = tenant.requests;
    for (uint64_t now = start; now < until; now = now_ns()) {
        for (uint64_t i = 0; i < tenant.options.per_request; i++)
            tenant.launch();
        CHECK(cudaStreamSynchronize(tenant.stream));
        tenant.requests++;
        uint64_t took = now_ns() - now;
        latency.push_back((double)took / 1e3);
        if (log)
            fprintf(log, "{\"request\": %llu, \"due_ns\": %llu, \"start_ns\": %llu, \"latency_ns\": %llu}\n",
                    (unsigned long long)tenant.requests, (unsigned long long)now, (unsigned long long)now,
                    (unsigned long long)took);
    }
    if (log)
        fprintf(log, "{\"burst\": 1, \"start_ns\": %llu, \"end_ns\": %llu, \"requests\": %llu}\n",
                (unsigned long long)start, (unsigned long long)now_ns(), (unsigned long long)(tenant.requests - before));
}

static void work(Tenant &tenant, std::vector<double> &latency)
{
    const Options &o = tenant.options;
    FILE *log = o.log.empty() ? nullptr : fopen(o.log.c_str(), "w");
    uint64_t end = now_ns() + (uint64_t)(o.length * 1e9);
    if (o.kind == "persistent") {
        tenant.launch();
        sleep_until(end);
        *tenant.leave = 1;
    }
    while (now_ns() < end) {
        if (o.busy <= 0) {
            tenant.launch();
            continue;
        }
        burst(tenant, log, now_ns() + (uint64_t)(o.busy * 1e9), latency);
        sleep_until(std::min(end, now_ns() + (uint64_t)(o.idle * 1e9)));
    }
    CHECK(cudaStreamSynchronize(tenant.stream));
    if (log)
        fclose(log);
}

static Options parse(int argc, char **argv)
{
    Options o;
    for (int i = 1; i < argc; i++) {
        std::string name = argv[i];
        if (name == "--calibrate") {
            o.calibrate = true;
            continue;
        }
        if (name == "--beat") {
            o.beat = true;
            continue;
        }
        if (++i == argc) {
            fprintf(stderr, "tenant: %s needs a value\n", name.c_str());
            exit(2);
        }
        const char *v = argv[i];
        if (name == "--kind") o.kind = v;
        else if (name == "--iters") o.iters = strtoull(v, nullptr, 10);
        else if (name == "--blocks") o.blocks = atoi(v);
        else if (name == "--threads") o.threads = atoi(v);
        else if (name == "--n") o.n = atoi(v);
        else if (name == "--nodes") o.nodes = atoi(v);
        else if (name == "--in-flight") o.in_flight = strtoull(v, nullptr, 10);
        else if (name == "--per-request") o.per_request = strtoull(v, nullptr, 10);
        else if (name == "--length") o.length = atof(v);
        else if (name == "--busy") o.busy = atof(v);
        else if (name == "--idle") o.idle = atof(v);
        else if (name == "--start-at") o.start_at = strtoull(v, nullptr, 10);
        else if (name == "--stamps") o.stamps = v;
        else if (name == "--log") o.log = v;
        else if (name == "--launch-cost") o.launch_cost = strtoull(v, nullptr, 10);
        else {
            fprintf(stderr, "tenant: %s is unknown\n", name.c_str());
            exit(2);
        }
    }
    if (o.kind == "persistent") {
        o.beat = true;
        o.iters = UINT64_MAX / 2;
    }
    return o;
}

int main(int argc, char **argv)
{
    Tenant tenant;
    std::vector<double> latency;
    tenant.options = parse(argc, argv);
    tenant.open();
    if (tenant.options.calibrate || tenant.options.launch_cost) {
        tenant.options.calibrate ? calibrate(tenant) : launch_cost(tenant);
        return 0;
    }
    ClockPair first = clocks(tenant.stream), last;
    uint64_t ready = now_ns();
    if (tenant.options.start_at)
        sleep_until(tenant.options.start_at);
    uint64_t start = now_ns();
    work(tenant, latency);
    uint64_t end = now_ns();
    last = clocks(tenant.stream);
    if (!tenant.options.stamps.empty())
        write_stamps(tenant, first, last);
    printf("{\"pid\": %d, \"ready_ns\": %llu, \"start_ns\": %llu, \"end_ns\": %llu, \"launches\": %llu, \"requests\": %llu, "
           "\"clock_doubt_ns\": %llu}\n", (int)getpid(), (unsigned long long)ready, (unsigned long long)start, (unsigned long long)end,
           (unsigned long long)tenant.launched, (unsigned long long)tenant.requests,
           (unsigned long long)std::max(first.doubt, last.doubt));
    return 0;
}
