/* SPDX-License-Identifier: Apache-2.0
 *
 * Window mode bounds the time of unfinished work on the GPU. A gate that closes then means a free
 * card soon. Durations are learned per function from pairs of events. Fences show how far the GPU
 * got.
 */
#include "window/window.h"

#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/start_inference.h"
#include "window/starvation_bypass.h"
#include "track/waiters.h"

/* bytes per us of a slow host link: only the order of magnitude of a copy matters */
#define COPY_BYTES_PER_US 12000u
/* ns to set up a copy */
#define COPY_SETUP_NS 5000u
/* ns before the end of what runs at which work longer than the window is queued: no gap */
#define LEAD_NS 40000u
/* ns of work let through beside offline before the arbiter says that the card is free */
#define HOLD_NS 150000u
/* most ns of that wait; a live arbiter answers sooner */
#define LONGEST_HOLD_NS 2000000u
/* ns past the allowed time for which launches wait; a later arbiter is dead: go on */
#define LONGEST_SPENT_NS 100000000u
/* ns that a launch call takes, and the driver's way from there to the card */
#define CALL_NS 300000u
/* ns of window from which not each launch polls the fences: no tenant waits for the card */
#define ROOMY_NS 5000000u
/* between two such polls, launches fill at most 1/8 of the window */
#define ROOMY_PARTS 8u
/* most ns of work without a fence while others wait: its end must be seen */
#define UNFENCED_NS 250000u
/* most launches between two such polls */
#define MAX_UNPOLLED 63u
/* a function with few samples counts as at least 1/8 of the window: it may be long */
#define NEW_PARTS 8u
/* a function without samples counts as 1/2 of a wide window: one must not fill it */
#define UNKNOWN_PARTS 2u

/* An adaptive lock: it is held for less than 1 us, but by each thread that launches. A thread that
 * finds it taken spins before it asks the kernel to sleep. Without that, eight threads spend half
 * of their time on wake-ups. */
#define UNLOCKED PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
pthread_mutex_t qg_window_lock = UNLOCKED;
struct qg_functions qg_functions;
unsigned qg_bypassed_launches, qg_admitted_launches;
static struct progress {
    uint64_t sum_ns; /* unfinished ns at the last poll */
    struct qg_start_inference start;
    struct qg_bypass bypass;
} progress[QG_MAX_CARDS]; /* under lock */
static struct hold {
    uint64_t seen;     /* qg_gate_page.changed_ns of the word that asked for the ring */
    uint64_t began_ns; /* when that was seen */
    uint64_t spent_ns; /* estimated work let through since */
} holds[QG_MAX_CARDS]; /* under lock */
__thread bool qg_window_open __attribute__((tls_model("initial-exec")));
static __thread struct qg_sample *sampling __attribute__((tls_model("initial-exec")));
/* booked, and not launched yet */
static __thread struct qg_stream *entering __attribute__((tls_model("initial-exec")));
static __thread struct booking {
    uint64_t ns, low_ns;
} booking __attribute__((tls_model("initial-exec"))); /* for the one launch that enters */
/* ns in flight, including what this thread launches */
static __thread uint64_t entering_ns __attribute__((tls_model("initial-exec")));
__thread bool qg_window_queued __attribute__((tls_model("initial-exec")));

void qg_window_after_fork(void)
{
    qg_window_lock = (pthread_mutex_t)UNLOCKED;
    memset(&qg_functions, 0, sizeof(qg_functions));
    qg_samples_after_fork();
    memset(progress, 0, sizeof(progress));
    memset(holds, 0, sizeof(holds));
    qg_window_open = false;
    sampling = NULL;
    entering = NULL;
    qg_window_queued = false;
}

void qg_window_context_gone(CUcontext context)
{
    qg_samples_context_gone(context);
}

/* Under the lock: a function of varying duration mostly has a few typical durations. Those that are
 * over by now are left out. */
static void narrow_estimate(struct qg_poll *at)
{
    struct qg_inflight *now = &at->inflight;
    struct qg_ends ends;
    if (!now->first)
        return;
    bool left =
        qg_function_ends(qg_function_of(&qg_functions, now->first), at->now - at->began, &ends);
    at->expected = ends.expected;
    if (!left)
        return;
    at->first_low_ns = ends.soonest_ns;
    at->first_ns = ends.soonest_ns < ends.latest_ns / 4 * 3 ? ends.latest_ns : ends.middle_ns;
}

/* Writes when all work in flight will have ended, so that the next tenant's gate opens in time. For
 * a function of varying duration the end is not known, until it has run so long that only its
 * longest duration is left. */
static void report_end(struct qg_pages *pages, const struct qg_poll *at)
{
    const struct qg_inflight *now = &at->inflight;
    uint64_t behind = now->sum_ns - now->first_ns, low = now->sum_low_ns - now->first_low_ns,
             sum = at->first_ns + behind;
    bool known = now->sum_ns && !now->unfenced && sum - at->first_low_ns - low <= sum / 4;
    __atomic_store_n(&pages->proc->predicted_end_ns, known ? at->began + sum : 0, __ATOMIC_RELAXED);
}

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

/* Publishes the ns of all work in flight, the last of which is about to enter the driver. Until the
 * call returns it is not known whether that launch is on the card. So no more is claimed for it
 * than such a call takes. */
static void show(struct qg_pages *pages, const struct qg_work *work, uint64_t sum_ns,
                 uint64_t last_ns)
{
    uint64_t call_ns = work->function
                           ? qg_function_call_ns(qg_function_of(&qg_functions, work->function))
                           : UINT64_MAX;
    if (call_ns < CALL_NS)
        call_ns = CALL_NS;
    entering_ns = sum_ns + last_ns;
    __atomic_store_n(&pages->proc->inflight_us,
                     (sum_ns + (last_ns < call_ns ? last_ns : call_ns)) / 1000, __ATOMIC_RELAXED);
}

/* The launch has entered the driver: publishes all work in flight, unless another thread published
 * more. */
static void show_all(struct qg_pages *pages)
{
    uint64_t us = entering_ns / 1000,
             shown = __atomic_load_n(&pages->proc->inflight_us, __ATOMIC_RELAXED);
    while (shown < us && !__atomic_compare_exchange_n(&pages->proc->inflight_us, &shown, us, true,
                                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Booked under lock, so that two threads cannot both take the last room. True: the launch shall be
 * timed. */
static bool book(struct qg_stream *stream, struct qg_pages *pages, const struct qg_work *work,
                 uint64_t estimate, struct qg_poll *at)
{
    uint64_t least = work->function
                         ? qg_function_least(qg_function_of(&qg_functions, work->function))
                         : estimate;
    not_entering();
    pthread_mutex_lock(&stream->lock);
    stream->open_function = stream->open_ns || work->times != 1 ? NULL : work->function;
    stream->open_ns += estimate * work->times;
    stream->open_low_ns += least * work->times;
    stream->entered++;
    pthread_mutex_unlock(&stream->lock);
    entering = stream;
    booking = (struct booking){estimate, least};
    qg_stream_has_work(stream);
    /* the other launches have entered before */
    show(pages, work, at->inflight.sum_ns + estimate * (work->times - 1), estimate);
    if (!at->inflight.sum_ns) {
        at->inflight.first_ns = at->first_ns = estimate * work->times;
        at->inflight.first_low_ns = at->first_low_ns = least * work->times;
        at->inflight.unfenced = false; /* it gets a fence before its end matters */
    }
    at->inflight.sum_ns += estimate * work->times;
    at->inflight.sum_low_ns += least * work->times;
    qg_window_open = true;
    qg_admitted_launches++;
    if (sampling)
        qg_sample_drop(sampling);
    sampling = NULL;
    return work->function && qg_function_launched(qg_function_of(&qg_functions, work->function));
}

static uint64_t estimate_of(const struct qg_work *work, uint64_t window_ns)
{
    if (!work->function)
        return COPY_SETUP_NS + work->bytes * 1000u / COPY_BYTES_PER_US;
    const struct qg_function *function = qg_function_of(&qg_functions, work->function);
    uint64_t unknown = window_ns < ROOMY_NS ? window_ns : window_ns / UNKNOWN_PARTS;
    uint64_t estimate = qg_function_estimate(function, unknown), few = window_ns / NEW_PARTS;
    return qg_function_new(function) && estimate < few ? few : estimate;
}

/* Launches like this one that may pass a wide window before the next poll. */
static uint16_t unpolled_after(const struct qg_work *work, uint64_t estimate, uint64_t window_ns)
{
    uint64_t fit = window_ns < ROOMY_NS || !work->function ? 0 : window_ns / ROOMY_PARTS / estimate;
    return (uint16_t)(fit < MAX_UNPOLLED ? fit : MAX_UNPOLLED);
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

static void poll_card(struct qg_poll *at, struct qg_card *card)
{
    qg_inflight_of(card, &at->inflight);
    at->now = qg_now_ns();
    uint64_t sum = at->inflight.sum_ns;
    struct progress *seen = &progress[card - qg_cards];
    if (!sum)
        qg_start_idle(&seen->start, at->now);
    else if (sum < seen->sum_ns)
        qg_start_ended(&seen->start, seen->sum_ns - sum, at->now);
    if (sum < at->last)
        at->moved = at->now;
    qg_bypass_poll(&seen->bypass, at, seen->start.polled_ns,
                   !sum || (sum < at->last && at->last != UINT64_MAX));
    seen->sum_ns = at->last = sum;
    seen->start.polled_ns = at->now;
    at->began = seen->start.began_ns;
    at->guessed = qg_start_guessed(&seen->start);
    at->first_ns = at->inflight.first_ns;
    at->first_low_ns = at->inflight.first_low_ns;
    at->expected = false;
}

/* True: work that is too long for the window may be queued now, shortly before the running work
 * ends. The card then need not wait for this thread to wake up. Only if one piece of work runs
 * alone. Work that has run almost as long as its function ever takes counts as ending soon. */
static bool just_in_time(struct qg_poll *at, uint64_t estimate, uint64_t window_ns)
{
    const struct qg_inflight *now = &at->inflight;
    uint64_t lead = estimate + LEAD_NS > window_ns ? LEAD_NS : window_ns - estimate;
    if (!now->oldest || at->guessed || now->unfenced || now->sum_ns != now->first_ns ||
        !at->first_low_ns)
        return false;
    at->due = at->first_ns > lead ? at->first_ns - lead : 0;
    return at->now - at->began >= at->due;
}

/* Unfinished ns. If the running work has taken much longer than estimated, the rest is scaled up
 * too. */
static uint64_t unfinished(const struct qg_poll *at)
{
    uint64_t ran = at->now - at->began, first = at->inflight.first_ns, sum = at->inflight.sum_ns;
    return first && ran > 2 * first ? (uint64_t)((double)sum / (double)first * (double)ran) : sum;
}

/* Beside offline work the first launch after a pause passes, so that the card has it at once. Later
 * launches wait until the offline work is over, which the arbiter reports. The work let through
 * lasts about as long as that report takes. */
static bool held_back(const struct hold *hold, const struct qg_poll *at, uint64_t cost)
{
    return hold->spent_ns && hold->spent_ns + cost > HOLD_NS &&
           at->now - hold->began_ns < LONGEST_HOLD_NS;
}

/* True: the arbiter should have closed the gate or decided again by now. If it does neither for
 * long it is dead or hangs, and launches go on. */
static bool expired(const struct qg_pages *pages, uint64_t now)
{
    uint64_t until = __atomic_load_n(&pages->gate->until_ns, __ATOMIC_RELAXED);
    return until && now >= until && now - until < LONGEST_SPENT_NS;
}

/* A launch that waited for room was counted when it came, so the unfenced word reports it. The word
 * is written before the gate is read once more. So a gate that closes now either stops this launch,
 * or the arbiter samples it. */
static bool closed_meanwhile(struct qg_poll *at, struct qg_stream *stream, struct qg_pages *pages)
{
    qg_set_unfenced(stream);
    at->flags = __atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST);
    at->closed = at->flags & QG_GATE_CLOSED;
    return at->closed;
}

/* Under the lock: books the work and returns true if it fits. Also true if there was no progress
 * for too long and the driver was asked why. *timed: it is booked and its launch is to be sampled.
 * Or it waits, and a better estimate may make it fit. */
static bool fits(struct qg_poll *at, struct qg_stream *stream, struct qg_pages *pages,
                 const struct qg_work *work, uint64_t window_ns, bool *timed)
{
    poll_card(at, stream->card);
    uint64_t estimate = estimate_of(work, window_ns), sum = at->inflight.sum_ns;
    struct qg_bypass *bypass = &progress[stream->card - qg_cards].bypass;
    bool stuck = qg_bypass_due(bypass, at, stream), asked = at->stuck;
    at->stuck = stuck;
    at->due = 0;
    struct hold *hold = &holds[stream->card - qg_cards];
    at->flags = __atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST);
    at->closed = at->flags & QG_GATE_CLOSED;
    at->held = at->flags & QG_GATE_HOLD && held_back(hold, at, estimate * work->times);
    bool enter = !sum || __atomic_load_n(&stream->context->broken, __ATOMIC_RELAXED) ||
                 unfinished(at) + estimate * work->times <= window_ns;
    if (!enter)
        narrow_estimate(at);
    enter = enter || (work->times == 1 && just_in_time(at, estimate, window_ns));
    at->expired = expired(pages, at->now);
    enter =
        enter && !at->closed && !at->held && !at->expired && !closed_meanwhile(at, stream, pages);
    stuck = stuck && asked && !enter && !at->closed && !at->held && !at->expired;
    *timed = false;
    if (enter || stuck) {
        if (stuck) {
            qg_bypass_passed(bypass, at, stream, estimate * work->times);
            __atomic_fetch_add(&pages->proc->window_bypass, 1, __ATOMIC_RELAXED);
        }
        if (at->flags & QG_GATE_HOLD)
            hold->spent_ns += estimate * work->times;
        qg_bypass_used(at);
        *timed = book(stream, pages, work, estimate, at);
        progress[stream->card - qg_cards].sum_ns = sum + estimate * work->times;
        qg_thread.unpolled = stuck ? 0 : unpolled_after(work, estimate, window_ns);
    } else {
        *timed = at->now - at->moved > SPIN_NS;
    }
    report_end(pages, at);
    return enter || stuck;
}

/* One poll, and then the calls of the driver that it needs, without a lock, since they may block.
 */
static bool poll_and_sample(struct qg_poll *at, struct qg_stream *stream, struct qg_pages *pages,
                            const struct qg_work *work, uint64_t window_ns)
{
    bool timed;
    pthread_mutex_lock(&qg_window_lock);
    bool enter = fits(at, stream, pages, work, window_ns, &timed);
    pthread_mutex_unlock(&qg_window_lock);
    if (!timed)
        return enter;
    qg_depth++;
    qg_samples_collect(stream->context->handle, enter);
    if (enter)
        sampling = qg_sample_start(stream, pages, work->function);
    qg_depth--;
    return enter;
}

/* Another poll, after a fence behind unfenced work, whose end could not be observed. If there was
 * no progress, the driver is asked about the stream first. A signal handler may leave the wait by
 * siglongjmp. So signals are blocked while a lock is held, and not while the thread sleeps. */
static bool poll_again(struct qg_poll *at, struct qg_stream *stream, struct qg_pages *pages,
                       const struct qg_work *work, uint64_t window_ns)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct qg_stream *oldest = at->inflight.oldest;
    if (oldest && at->inflight.unfenced)
        qg_fence_insert_for(oldest);
    if (oldest && at->stuck) {
        qg_depth++;
        qg_stream_over(oldest);
        qg_depth--;
    }
    bool enter = poll_and_sample(at, stream, pages, work, window_ns);
    if (!enter) {
        qg_window_queued = true;
        qg_waiter_queue(pages->proc);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return enter;
}

uint64_t qg_window_drain_ns(struct qg_card *card, struct qg_pages *pages)
{
    sigset_t all, before;
    struct qg_poll at = {.last = UINT64_MAX};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&qg_window_lock);
    poll_card(&at, card);
    narrow_estimate(&at);
    report_end(pages, &at);
    pthread_mutex_unlock(&qg_window_lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    uint64_t sleep_ns = at.inflight.sum_ns ? qg_wait_sleep_ns(&at) : 0;
    return !at.inflight.sum_ns ? 0 : sleep_ns > DEFAULT_SLEEP_NS ? sleep_ns : DEFAULT_SLEEP_NS;
}

bool qg_window_enter(struct qg_stream *stream, struct qg_pages *pages, const struct qg_work *work)
{
    uint64_t window_ns =
        (uint64_t)__atomic_load_n(&pages->gate->window_us, __ATOMIC_RELAXED) * 1000u;
    struct qg_poll at = {.last = UINT64_MAX}; /* the first poll reads the clock */
    qg_fence_slot_want(stream);
    if (poll_and_sample(&at, stream, pages, work, window_ns))
        return true;
    while (!poll_again(&at, stream, pages, work, window_ns)) {
        qg_wait_sleep(&at, &pages->gate->flags);
        if (qg_pages_of(stream->card) != pages ||
            (__atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST) &
             (QG_GATE_CLOSED | QG_GATE_WINDOW)) != QG_GATE_WINDOW)
            return false;
    }
    return true;
}

void qg_window_hold_begin(struct qg_card *card, const struct qg_pages *pages)
{
    uint64_t changed = __atomic_load_n(&pages->gate->changed_ns, __ATOMIC_RELAXED);
    struct hold *hold = &holds[card - qg_cards];
    pthread_mutex_lock(&qg_window_lock);
    if (hold->seen != changed)
        *hold = (struct hold){.seen = changed, .began_ns = qg_now_ns()};
    pthread_mutex_unlock(&qg_window_lock);
}

void qg_window_after_quantum(const struct qg_pages *pages, uint64_t before, uint64_t after)
{
    pthread_mutex_lock(&qg_window_lock);
    qg_samples_after_quantum(pages, before, after);
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

/* Under stream->lock. If another thread inserted a fence meanwhile, that fence covers the booking
 * and ends it. */
static void unbook(struct qg_stream *stream)
{
    stream->open_ns -= booking.ns < stream->open_ns ? booking.ns : stream->open_ns;
    stream->open_low_ns -=
        booking.low_ns < stream->open_low_ns ? booking.low_ns : stream->open_low_ns;
}

static void drop_sample(void)
{
    pthread_mutex_lock(&qg_window_lock);
    qg_sample_drop(sampling);
    pthread_mutex_unlock(&qg_window_lock);
}

void qg_window_leave(struct qg_stream *stream, CUresult result)
{
    struct qg_pages *pages = qg_pages_of(stream->card);
    qg_window_open = false;
    if (result == CUDA_SUCCESS)
        show_all(pages); /* before any call of ours, which may block */
    qg_depth++;
    if (sampling && result == CUDA_SUCCESS)
        qg_sample_end(sampling, stream);
    else if (sampling)
        drop_sample();
    sampling = NULL;
    if (entering != stream)
        not_entering();
    uint64_t window_ns =
        (uint64_t)__atomic_load_n(&pages->gate->window_us, __ATOMIC_RELAXED) * 1000u;
    uint64_t most =
        window_ns >= ROOMY_NS || window_ns < 4 * UNFENCED_NS ? window_ns / 4 : UNFENCED_NS;
    pthread_mutex_lock(&stream->lock);
    if (entering && stream->entered)
        stream->entered--;
    if (entering && result != CUDA_SUCCESS)
        unbook(stream);
    entering = NULL;
    /* or another thread wanted one while this launch was under way */
    bool due = stream->open_ns >= most || stream->again;
    pthread_mutex_unlock(&stream->lock);
    if (due)
        qg_fence_insert(stream);
    qg_depth--;
}
