/* SPDX-License-Identifier: Apache-2.0
 *
 * Window mode bounds the time of unfinished work on the GPU. A gate that closes then means a free
 * card soon. A launch goes if what is left of the running work, what is queued behind it and the
 * launch itself fit into the window. One launch may be queued behind the running one in any case,
 * shortly before that one ends. Durations are learned per function from samples; fences show how
 * far the GPU got.
 */
#include "window/window.h"

#include <string.h>

#include "base/thread.h"
#include "window/samples.h"
#include "window/wait.h"
#include "track/waiters.h"

/* bytes per us: A slow host link; only the order of magnitude of a copy matters. Evidence: none. */
#define COPY_BYTES_PER_US 12000u
/* ns of card time: To set up a copy. Evidence: none. */
#define COPY_SETUP_NS 5000u
/* ns: Work that is longer than the window is queued so long before the end of what runs, so that
 * the card does not wait for this thread. Evidence: promise (docs/specs/shim/estimator.md). */
#define LEAD_NS 150000u
/* ns of card time: Work is let through beside offline before the arbiter says that the card is
 * free. Evidence: simulator (docs/measurements/2026-11-28-constants-simulated.md). */
#define HOLD_NS 150000u
/* ns: The most of that wait; a live arbiter answers sooner. Evidence: protocol
 * (docs/specs/shim/launch-protocol.md). */
#define LONGEST_HOLD_NS 2000000u
/* ns: Launches wait so long past the allowed time; an arbiter that is later is dead. Evidence:
 * protocol (docs/specs/shim/launch-protocol.md). */
#define LONGEST_SPENT_NS 100000000u
/* 1/n: Launches may fill this part of the window between two polls. Evidence: promise
 * (docs/specs/shim/estimator.md). */
#define UNPOLLED_PARTS 8u
/* count: Launches between two polls, at most. Evidence: bound. */
#define MAX_UNPOLLED 63u
/* 1/n: This part of the window may be unfenced, as the end of work must be seen. Evidence: promise
 * (docs/specs/shim/estimator.md). */
#define UNFENCED_PARTS 4u
/* count: Bypasses in a row of which each doubles the time until the next one. Evidence: attack
 * (test_shim_bypass.py). */
#define MOST_DOUBLINGS 5u

/* An adaptive lock: it is held for less than 1 us, but by each thread that launches. A thread that
 * finds it taken spins before it asks the kernel to sleep. Without that, eight threads spend half
 * of their time on wake-ups. */
#define UNLOCKED PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
pthread_mutex_t qg_window_lock = UNLOCKED;
struct qg_functions qg_functions;
uint64_t qg_bypassed_ns;
static struct progress {
    uint64_t polled_ns;
    uint64_t sum_ns;   /* unfinished at that poll */
    uint64_t began_ns; /* when the running work began, as far as polls tell */
    uint64_t moved_ns; /* when a poll last found that work had ended */
    unsigned bypasses; /* in a row since then */
    struct {
        uint64_t seen;     /* qg_gate_page.changed_ns of the word that asked for the ring */
        uint64_t began_ns; /* when that was seen */
        uint64_t spent_ns; /* estimated work let through since */
    } hold;
} progress[QG_MAX_CARDS]; /* under lock */
__thread bool qg_window_open __attribute__((tls_model("initial-exec")));
static __thread struct qg_sample *sampling __attribute__((tls_model("initial-exec")));
/* booked, and not launched yet; and the estimate of that launch */
static __thread struct qg_stream *entering __attribute__((tls_model("initial-exec")));
static __thread uint64_t entering_ns __attribute__((tls_model("initial-exec")));
__thread bool qg_window_queued __attribute__((tls_model("initial-exec")));

/* A launch that asks for room, and what its last poll found. */
struct request {
    struct qg_stream *stream;
    struct qg_pages *pages;
    const struct qg_work *work;
    uint64_t window_ns, estimate_ns; /* of all launches that the work stands for */
    uint64_t began_ns, now;          /* time of the first poll, and of the last one */
    uint64_t ran_ns, least_ns;       /* of the running work: so far, and at least */
    uint64_t due_ns;                 /* ran_ns at which there is room; 0: not known */
    uint32_t flags;                  /* the gate word */
    bool held;                       /* other work on the card must end first */
    bool stuck;                      /* no progress for too long: the driver is asked */
    struct qg_inflight inflight;
};

void qg_window_after_fork(void)
{
    qg_window_lock = (pthread_mutex_t)UNLOCKED;
    memset(&qg_functions, 0, sizeof(qg_functions));
    qg_samples_after_fork();
    memset(progress, 0, sizeof(progress));
    qg_window_open = false;
    sampling = NULL;
    entering = NULL;
    qg_window_queued = false;
}

void qg_window_context_gone(CUcontext context)
{
    qg_samples_context_gone(context);
}

/* ---- what runs ---- */

/* Unfinished work of the card, and how long the running part of it has run. The start of that is
 * the end of the work before it. That came when it was expected to, but after the last poll that
 * did not see it, and before the one that does. */
static void poll_card(struct request *asked, struct qg_card *card)
{
    struct progress *seen = &progress[card - qg_cards];
    struct qg_inflight *now = &asked->inflight;
    qg_inflight_of(card, now);
    asked->now = qg_now_ns();
    bool moved = now->sum_ns < seen->sum_ns;
    uint64_t ended = seen->began_ns + (moved ? seen->sum_ns - now->sum_ns : 0);
    if (!now->sum_ns)
        seen->began_ns = asked->now;
    else if (moved)
        seen->began_ns = ended < seen->polled_ns ? seen->polled_ns
                         : ended < asked->now    ? ended
                                                 : asked->now;
    if (moved || !now->sum_ns)
        seen->bypasses = 0;
    if (moved)
        seen->moved_ns = asked->now;
    if (!asked->began_ns)
        asked->began_ns = asked->now;
    seen->sum_ns = now->sum_ns;
    seen->polled_ns = asked->now;
    asked->ran_ns = asked->now - seen->began_ns;
    asked->least_ns = now->first ? qg_function_of(&qg_functions, now->first)->least_ns : 0;
}

/* Room for the launch in ns; negative: what is missing. Work that was never sampled may take any
 * time, so the time that it has run says nothing. */
static int64_t room(struct request *asked)
{
    const struct qg_inflight *now = &asked->inflight;
    uint64_t longest = asked->window_ns > LEAD_NS ? asked->window_ns - LEAD_NS : 0,
             own = asked->estimate_ns < longest ? asked->estimate_ns : longest,
             taken = now->sum_ns - now->first_ns + own;
    bool known = !now->first || asked->least_ns;
    uint64_t left = known && asked->ran_ns < now->first_ns ? now->first_ns - asked->ran_ns
                    : known                                ? 0
                                                           : now->first_ns;
    asked->due_ns = known && taken < asked->window_ns && now->first_ns > asked->window_ns - taken
                        ? now->first_ns - (asked->window_ns - taken)
                        : 0;
    return (int64_t)asked->window_ns - (int64_t)(taken + left);
}

/* ---- reasons to wait although there is room, and to go although there is none ---- */

/* Beside offline work the first launch after a pause passes, so that the card has it at once. Later
 * launches wait until the offline work is over, which the arbiter reports. The work let through
 * lasts about as long as that report takes. */
static bool held_back(const struct request *asked)
{
    const struct progress *seen = &progress[asked->stream->card - qg_cards];
    return asked->flags & QG_GATE_HOLD && seen->hold.spent_ns &&
           seen->hold.spent_ns + asked->estimate_ns > HOLD_NS &&
           asked->now - seen->hold.began_ns < LONGEST_HOLD_NS;
}

/* True: the arbiter should have closed the gate or decided again by now. If it does neither for
 * long it is dead or hangs, and launches go on. */
static bool expired(const struct request *asked)
{
    uint64_t until = __atomic_load_n(&asked->pages->gate->until_ns, __ATOMIC_RELAXED);
    return until && asked->now >= until && asked->now - until < LONGEST_SPENT_NS;
}

/* The starvation bypass. Without progress for 2 ms, and for a quarter more than the longest of what
 * runs may take, one launch passes: the running kernel may wait for it. Each one without effect
 * doubles the time. So launches do not pile up behind a kernel that takes much longer than ever. */
static bool starves(const struct request *asked)
{
    uint64_t longest = asked->inflight.longest_ns, wait = longest + longest / 4;
    const struct progress *seen = &progress[asked->stream->card - qg_cards];
    wait = (wait > QG_STUCK_NS ? wait : QG_STUCK_NS)
           << (seen->bypasses < MOST_DOUBLINGS ? seen->bypasses : MOST_DOUBLINGS);
    return asked->now - asked->began_ns > wait && asked->now - seen->moved_ns > wait;
}

/* A launch that waited for room was counted when it came, so the unfenced word reports it. The word
 * is written before the gate is read once more. So a gate that closes now either stops this launch,
 * or the arbiter samples it. */
static bool closed_meanwhile(struct request *asked)
{
    qg_set_unfenced(asked->stream);
    asked->flags = __atomic_load_n(&asked->pages->gate->flags, __ATOMIC_SEQ_CST);
    return asked->flags & QG_GATE_CLOSED;
}

/* ---- booking ---- */

/* The launch that this thread booked last has returned, or was never made. */
static void not_entering(void)
{
    if (!entering)
        return;
    pthread_mutex_lock(&entering->lock);
    if (entering->entered)
        entering->entered--;
    pthread_mutex_unlock(&entering->lock);
    entering = NULL;
}

/* Launches like this one that may pass before the next poll. */
static uint16_t unpolled_after(const struct request *asked)
{
    uint64_t each = asked->estimate_ns / asked->work->times,
             fit = asked->work->function ? asked->window_ns / UNPOLLED_PARTS / each : 0;
    return (uint16_t)(fit < MAX_UNPOLLED ? fit : MAX_UNPOLLED);
}

/* Booked under lock, so that two threads cannot both take the last room. True: the launch shall be
 * timed. */
static bool book(struct request *asked, bool bypasses)
{
    struct progress *seen = &progress[asked->stream->card - qg_cards];
    struct qg_stream *stream = asked->stream;
    const struct qg_work *work = asked->work;
    not_entering();
    pthread_mutex_lock(&stream->lock);
    stream->open_function = stream->open_ns || work->times != 1 ? NULL : work->function;
    stream->open_ns += asked->estimate_ns;
    stream->entered++;
    pthread_mutex_unlock(&stream->lock);
    entering = stream;
    entering_ns = asked->estimate_ns / work->times; /* the other launches have entered before */
    qg_stream_has_work(stream);
    seen->sum_ns += asked->estimate_ns;
    __atomic_store_n(&asked->pages->proc->inflight_us, seen->sum_ns / 1000, __ATOMIC_RELAXED);
    if (asked->flags & QG_GATE_HOLD)
        seen->hold.spent_ns += asked->estimate_ns;
    if (bypasses) {
        seen->bypasses++;
        qg_bypassed_ns = asked->now;
        __atomic_fetch_add(&asked->pages->proc->window_bypass, 1, __ATOMIC_RELAXED);
    }
    qg_thread.unpolled = bypasses ? 0 : unpolled_after(asked);
    qg_window_open = true;
    if (sampling)
        qg_sample_drop(sampling);
    sampling = NULL;
    return work->function && qg_function_launched(qg_function_of(&qg_functions, work->function));
}

static uint64_t estimate_of(const struct qg_work *work, uint64_t window_ns)
{
    uint64_t each =
        work->function
            ? qg_function_estimate(qg_function_of(&qg_functions, work->function), window_ns)
            : COPY_SETUP_NS + work->bytes * 1000u / COPY_BYTES_PER_US;
    return each * work->times;
}

/* Under the lock: books the work and returns true if it fits. Also true if there was no progress
 * for too long and the driver was asked why. *timed: it is booked and its launch is to be sampled.
 * Or it waits, and a better estimate may make it fit. */
static bool fits(struct request *asked, bool *timed)
{
    poll_card(asked, asked->stream->card);
    asked->estimate_ns = estimate_of(asked->work, asked->window_ns);
    bool was_stuck = asked->stuck;
    asked->stuck = starves(asked);
    asked->flags = __atomic_load_n(&asked->pages->gate->flags, __ATOMIC_SEQ_CST);
    asked->held = held_back(asked);
    bool may = !(asked->flags & QG_GATE_CLOSED) && !asked->held && !expired(asked);
    bool enters = room(asked) >= 0 || !asked->inflight.sum_ns ||
                  __atomic_load_n(&asked->stream->context->broken, __ATOMIC_RELAXED);
    bool bypasses = !enters && asked->stuck && was_stuck;
    bool goes = may && (enters || bypasses) && !closed_meanwhile(asked);
    *timed = goes ? book(asked, bypasses) : asked->now != asked->began_ns;
    return goes;
}

/* One poll, and then the calls of the driver that it needs, without a lock, since they may block.
 */
static bool poll_and_sample(struct request *asked)
{
    bool timed;
    pthread_mutex_lock(&qg_window_lock);
    bool goes = fits(asked, &timed);
    pthread_mutex_unlock(&qg_window_lock);
    if (!timed)
        return goes;
    qg_depth++;
    qg_samples_collect(asked->stream->context->handle);
    if (goes)
        sampling = qg_sample_start(asked->stream, asked->pages, asked->work->function);
    qg_depth--;
    return goes;
}

/* Another poll, after a fence behind unfenced work, whose end could not be observed. If there was
 * no progress, the driver is asked about the stream first. A signal handler may leave the wait by
 * siglongjmp. So signals are blocked while a lock is held, and not while the thread sleeps. */
static bool poll_again(struct request *asked)
{
    uint64_t before;
    qg_signals_block(&before);
    struct qg_stream *oldest = asked->inflight.oldest;
    if (oldest && asked->inflight.unfenced)
        qg_fence_insert_for(oldest);
    if (oldest && asked->stuck) {
        qg_depth++;
        qg_stream_over(oldest);
        qg_depth--;
    }
    bool goes = poll_and_sample(asked);
    if (!goes) {
        qg_window_queued = true;
        qg_waiter_queue(asked->pages->proc);
    }
    qg_signals_restore(&before);
    return goes;
}

/* The arbiter wakes a held thread, and so does the end of its own work. */
static void wait_for_room(const struct request *asked)
{
    if (asked->flags & QG_GATE_CLOSED)
        return;
    qg_wait_sleep(asked->inflight.sum_ns ? qg_wait_ns(asked->ran_ns, asked->least_ns, asked->due_ns)
                                         : QG_SHORTEST_SLEEP_NS,
                  asked->held ? &asked->pages->gate->flags : NULL, asked->flags);
}

bool qg_window_enter(struct qg_stream *stream, struct qg_pages *pages, const struct qg_work *work)
{
    struct request asked = {
        .stream = stream,
        .pages = pages,
        .work = work,
        .window_ns = (uint64_t)__atomic_load_n(&pages->gate->window_us, __ATOMIC_RELAXED) * 1000u};
    qg_fence_slot_want(stream);
    if (poll_and_sample(&asked))
        return true;
    while (!poll_again(&asked)) {
        wait_for_room(&asked);
        if (qg_pages_of(stream->card) != pages ||
            (__atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST) &
             (QG_GATE_CLOSED | QG_GATE_WINDOW)) != QG_GATE_WINDOW)
            return false;
    }
    return true;
}

uint64_t qg_window_drain_ns(struct qg_card *card)
{
    uint64_t before;
    struct request asked = {0};
    qg_signals_block(&before);
    pthread_mutex_lock(&qg_window_lock);
    poll_card(&asked, card);
    pthread_mutex_unlock(&qg_window_lock);
    qg_signals_restore(&before);
    return asked.inflight.sum_ns ? qg_wait_ns(asked.ran_ns, asked.least_ns, 0) : 0;
}

/* Skips some of these polls, not all: a program that repeats a pattern must not always be polled at
 * the same place. */
void qg_window_skip_polls(struct qg_seen *seen)
{
    uint32_t unpolled = qg_thread.unpolled;
    seen->attention = QG_GATE_STOPS | (unpolled ? 0 : QG_GATE_WINDOW);
    if (unpolled)
        seen->skip = seen->skip_set =
            (uint16_t)(unpolled - (unpolled > 1 ? (qg_tick() >> 6) % (unpolled / 2) : 0));
}

void qg_window_hold_begin(struct qg_card *card, const struct qg_pages *pages)
{
    uint64_t changed = __atomic_load_n(&pages->gate->changed_ns, __ATOMIC_RELAXED);
    struct progress *seen = &progress[card - qg_cards];
    pthread_mutex_lock(&qg_window_lock);
    if (seen->hold.seen != changed) {
        seen->hold.seen = changed;
        seen->hold.began_ns = qg_now_ns();
        seen->hold.spent_ns = 0;
    }
    pthread_mutex_unlock(&qg_window_lock);
}

void qg_window_forget(const void *function)
{
    pthread_mutex_lock(&qg_window_lock);
    if (function)
        qg_function_forget(&qg_functions, function);
    else
        memset(&qg_functions, 0, sizeof(qg_functions));
    qg_samples_forget(function);
    pthread_mutex_unlock(&qg_window_lock);
}

/* ---- after the driver's call ---- */

static void end_sample(const struct qg_stream *stream, CUresult result)
{
    if (sampling && result == CUDA_SUCCESS) {
        qg_sample_end(sampling, stream);
    } else if (sampling) {
        pthread_mutex_lock(&qg_window_lock);
        qg_sample_drop(sampling);
        pthread_mutex_unlock(&qg_window_lock);
    }
    sampling = NULL;
}

void qg_window_leave(struct qg_stream *stream, CUresult result)
{
    struct qg_pages *pages = qg_pages_of(stream->card);
    uint64_t window_ns =
        (uint64_t)__atomic_load_n(&pages->gate->window_us, __ATOMIC_RELAXED) * 1000u;
    qg_window_open = false;
    qg_depth++;
    end_sample(stream, result);
    if (entering != stream)
        not_entering();
    pthread_mutex_lock(&stream->lock);
    if (entering && stream->entered)
        stream->entered--;
    /* refused; if another thread inserted a fence meanwhile, that fence ends the booking */
    if (entering && result != CUDA_SUCCESS)
        stream->open_ns -= entering_ns < stream->open_ns ? entering_ns : stream->open_ns;
    entering = NULL;
    /* or another thread wanted one while this launch was under way */
    bool due = stream->open_ns >= window_ns / UNFENCED_PARTS || stream->again;
    pthread_mutex_unlock(&stream->lock);
    if (due)
        qg_fence_insert(stream);
    qg_depth--;
}
