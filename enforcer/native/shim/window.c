/* SPDX-License-Identifier: Apache-2.0
 *
 * Window mode: the work that the GPU has not finished is bounded in time, so that a gate that closes now means a
 * free card soon. Durations are learned per function from event pairs; how far the GPU got is read from markers.
 */
#include "window.h"

#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "estimate.h"
#include "nap.h"

#define PAIRS 16u
#define COPY_BYTES_PER_US 12000u  /* a cautious host link; only orders of magnitude matter */
#define COPY_SETUP_NS 5000u
#define STUCK_NS 2000000u         /* no progress for so long at a full window: let it through */
#define ALONE_NS 2000000u         /* a gate may be opened a little before the former tenant's work has ended */
#define LEAD_NS 100000u           /* work longer than the window is queued so long before what runs will end */
#define HOLD_NS 150000u           /* beside offline work so much goes before the arbiter said that the card is free */
#define LONGEST_HOLD_NS 2000000u  /* an arbiter that lives tells sooner */
#define PATIENT 3u                /* so many times in a row at once, then after 4, 8, ... ms */
#define LONGEST_SHIFT 5u
#define ROOMY_NS 5000000u         /* from such a window on not each launch is looked at: nobody waits for the card */
#define ROOMY_PARTS 8u            /* ... but so that those between two looks fill at most this part of it */
#define UNMARKED_NS 250000u       /* where others wait, more than this does not stay without a marker: its end must be seen */
#define MAX_CALM 63u
#define NEW_PARTS 8u              /* a function of which little is known fills at least this part of any window */
#define UNKNOWN_PARTS 2u          /* such a window is not filled by one unknown function, but by so many */

struct pair {
    CUevent start, end;
    CUcontext context; /* NULL: not created */
    const void *function;
    struct qg_pages *pages; /* and the gate's count of changes, when the start was recorded */
    uint64_t changes;
    bool alone;      /* the gate had been open for so long that the former tenant's work had ended */
    uint64_t gap_ns; /* at the start: when; at the end: between recording the start and having launched */
    enum { PAIR_FREE, PAIR_STARTED, PAIR_PENDING } state;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct qg_functions functions;
static struct pair pairs[PAIRS];
static struct progress {
    uint64_t sum_ns;    /* unfinished at the last look */
    uint64_t looked_ns; /* when that was */
    uint64_t began_ns;  /* since when what runs now runs, as far as can be told */
} progress[QG_MAX_CARDS];  /* under lock */
static struct hold {
    uint64_t seen;     /* qg_gate_page.changed_ns of the word that asked for the ring */
    uint64_t began_ns; /* when that was seen */
    uint64_t spent_ns; /* estimated work let through since */
} holds[QG_MAX_CARDS]; /* under lock */
static unsigned bypasses; /* under lock: let through one after the other without any progress between */
__thread bool qg_window_open __attribute__((tls_model("initial-exec")));
static __thread struct pair *sampling __attribute__((tls_model("initial-exec")));

void qg_window_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(&functions, 0, sizeof(functions));
    memset(pairs, 0, sizeof(pairs));
    memset(progress, 0, sizeof(progress));
    memset(holds, 0, sizeof(holds));
    bypasses = 0;
    qg_window_open = false;
    sampling = NULL;
}

void qg_window_context_gone(CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < PAIRS; i++)
        if (pairs[i].context == context)
            memset(&pairs[i], 0, sizeof(pairs[i])); /* its events died with the context */
    pthread_mutex_unlock(&lock);
}

/* A gate that closed meanwhile may mean that others were on the card at the same time: such a sample says nothing. (Turns
 * are no such case: who threw those samples away would learn of short kernels only.) */
static bool undisturbed(const struct pair *pair)
{
    return pair->changes == __atomic_load_n(&pair->pages->gate->changes, __ATOMIC_RELAXED);
}

/* Under lock: learns from every pair whose end was reached. */
static void harvest(void)
{
    float ms;
    CUstreamCaptureMode mode;
    bool relaxed = __atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE) && qg_relax(&mode);
    for (unsigned i = 0; i < PAIRS; i++) {
        struct pair *pair = &pairs[i];
        if (pair->state != PAIR_PENDING)
            continue;
        CUresult result = QG_REAL(cuEventQuery)(pair->end);
        if (result == CUDA_ERROR_NOT_READY)
            continue;
        if (result == CUDA_SUCCESS && QG_REAL(cuEventElapsedTime)(&ms, pair->start, pair->end) == CUDA_SUCCESS &&
            ms >= 0 && pair->function && undisturbed(pair))
            qg_function_learn(&functions, pair->function, (uint64_t)(ms * 1e6f), pair->gap_ns, pair->alone);
        pair->state = PAIR_FREE;
    }
    qg_unrelax(relaxed, &mode);
}

/* Events belong to the context that is current, and that need not be the stream's; nor need there be one. */
static bool make_events(struct pair *pair, CUcontext context)
{
    CUcontext popped;
    if (QG_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return false;
    bool made = QG_REAL(cuEventCreate)(&pair->start, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
    if (made && QG_REAL(cuEventCreate)(&pair->end, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
        QG_REAL(cuEventDestroy_v2)(pair->start);
        made = false;
    }
    QG_REAL(cuCtxPopCurrent_v2)(&popped);
    if (made)
        pair->context = context;
    return made;
}

/* Under lock: a free pair of this context, with the start recorded; NULL: sample some other time. */
static struct pair *start_sample(struct qg_stream *stream, struct qg_pages *pages, const void *function)
{
    struct pair *pair = NULL;
    for (unsigned i = 0; i < PAIRS && !pair; i++)
        if (pairs[i].state == PAIR_FREE && pairs[i].context == stream->context->handle)
            pair = &pairs[i];
    for (unsigned i = 0; i < PAIRS && !pair; i++)
        if (!pairs[i].context) {
            if (!make_events(&pairs[i], stream->context->handle))
                return NULL;
            pair = &pairs[i];
        }
    if (!pair)
        return NULL;
    pair->gap_ns = qg_now_ns();
    if (QG_REAL(cuEventRecord)(pair->start, stream->handle) != CUDA_SUCCESS)
        return NULL;
    pair->pages = pages;
    pair->alone = pair->gap_ns > __atomic_load_n(&pages->gate->changed_ns, __ATOMIC_RELAXED) + ALONE_NS;
    pair->changes = __atomic_load_n(&pages->gate->changes, __ATOMIC_RELAXED);
    pair->function = function;
    pair->state = PAIR_STARTED;
    return pair;
}

/* Under lock: a function that takes now long and now short has few lengths, most often; those that are over by now are out. */
static void narrow(struct qg_look *at)
{
    struct qg_inflight *now = &at->inflight;
    struct qg_ends ends;
    if (!now->first)
        return;
    bool left = qg_function_ends(qg_function_of(&functions, now->first), at->now - at->began, &ends);
    at->expected = ends.expected;
    if (!left)
        return;
    at->first_low_ns = ends.soonest_ns;
    at->first_ns = ends.soonest_ns < ends.latest_ns / 4 * 3 ? ends.latest_ns : ends.middle_ns;
}

/* Says when all of it will have ended, so that the next tenant's gate opens in time. When work ends that takes now long and
 * now short nobody knows, until it has run for so long that only its longest is left. */
static void foresee(struct qg_pages *pages, const struct qg_look *at)
{
    const struct qg_inflight *now = &at->inflight;
    uint64_t behind = now->sum_ns - now->first_ns, low = now->sum_low_ns - now->first_low_ns, sum = at->first_ns + behind;
    bool known = now->sum_ns && !now->unmarked && sum - at->first_low_ns - low <= sum / 4;
    __atomic_store_n(&pages->proc->ends_ns, known ? at->began + sum : 0, __ATOMIC_RELAXED);
}

int qg_no_slack(void)
{
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    return slack;
}

void qg_slack_again(int slack)
{
    if (slack > 0)
        prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
}

/* By number: a cancellation point otherwise. Who is held back is woken by the arbiter, or by the end of its own work. */
static void nap(const struct qg_look *at, const uint32_t *word)
{
    struct timespec wait = {0, (long)qg_nap_ns(at)};
    if (at->held && !at->inflight.sum_ns)
        wait.tv_nsec = NAP_NS;
    if (at->closed)
        return;
    if (!wait.tv_nsec) {
        __builtin_ia32_pause();
        return;
    }
    int slack = qg_no_slack();
    if (at->held)
        syscall(SYS_futex, word, FUTEX_WAIT, at->flags, &wait, NULL, 0);
    else
        syscall(SYS_nanosleep, &wait, NULL);
    qg_slack_again(slack);
}

/* Booked under lock, so that two threads cannot both take the last room. */
static void book(struct qg_stream *stream, struct qg_pages *pages, const struct qg_work *work, uint64_t estimate,
                 struct qg_look *at)
{
    uint64_t least = work->function ? qg_function_least(qg_function_of(&functions, work->function)) : estimate;
    pthread_mutex_lock(&stream->lock);
    stream->open_function = stream->open_ns || work->times != 1 ? NULL : work->function;
    stream->open_ns += estimate * work->times;
    stream->open_low_ns += least * work->times;
    pthread_mutex_unlock(&stream->lock);
    qg_stream_works(stream);
    __atomic_store_n(&pages->proc->inflight_us, (at->inflight.sum_ns + estimate) / 1000, __ATOMIC_RELAXED);
    if (!at->inflight.sum_ns) {
        at->inflight.first_ns = at->first_ns = estimate * work->times;
        at->inflight.first_low_ns = at->first_low_ns = least * work->times;
        at->inflight.unmarked = false; /* it will have one before its end matters */
    }
    at->inflight.sum_ns += estimate * work->times;
    at->inflight.sum_low_ns += least * work->times;
    qg_window_open = true;
    sampling = NULL;
    if (work->function && qg_function_launched(qg_function_of(&functions, work->function))) {
        harvest();
        sampling = start_sample(stream, pages, work->function);
    }
}

static uint64_t estimate_of(const struct qg_work *work, uint64_t window_ns)
{
    if (!work->function)
        return COPY_SETUP_NS + work->bytes * 1000u / COPY_BYTES_PER_US;
    const struct qg_function *function = qg_function_of(&functions, work->function);
    uint64_t unknown = window_ns < ROOMY_NS ? window_ns : window_ns / UNKNOWN_PARTS;
    uint64_t estimate = qg_function_estimate(function, unknown), few = window_ns / NEW_PARTS;
    return qg_function_new(function) && estimate < few ? few : estimate;
}

/* A wide window: how many launches like this one may pass before the next look. */
static uint16_t calm_after(const struct qg_work *work, uint64_t estimate, uint64_t window_ns)
{
    uint64_t fit = window_ns < ROOMY_NS || !work->function ? 0 : window_ns / ROOMY_PARTS / estimate;
    return (uint16_t)(fit < MAX_CALM ? fit : MAX_CALM);
}

/* Some of them, not all: a program that repeats a pattern must not always be looked at in the same place of it. */
void qg_window_calm(struct qg_seen *seen)
{
    uint32_t calm = qg_thread.calm;
    seen->attention = QG_GATE_STOPS | (calm ? 0 : QG_GATE_WINDOW);
    if (calm)
        seen->skip = seen->granted = (uint16_t)(calm - (calm > 1 ? (qg_tick() >> 6) % (calm / 2) : 0));
}

/* How long a full window may show no progress: what runs now may still have its whole estimate before it, and who was
 * let through several times without any effect waits longer, or long kernels would pile up behind the first. */
static uint64_t patience_ns(uint64_t first_ns, unsigned times)
{
    unsigned shift = times < PATIENT ? 0 : times - PATIENT + 1;
    return ((uint64_t)STUCK_NS << (shift < LONGEST_SHIFT ? shift : LONGEST_SHIFT)) + first_ns;
}

static void look_at(struct qg_look *at, struct qg_card *card)
{
    qg_inflight_of(card, &at->inflight);
    at->now = qg_now_ns();
    uint64_t sum = at->inflight.sum_ns;
    struct progress *seen = &progress[card - qg_cards];
    if (!sum) {
        seen->began_ns = at->now;
    } else if (sum < seen->sum_ns) { /* since the last look; when, is said best by how long it was to take */
        uint64_t ended = seen->began_ns + seen->sum_ns - sum;
        seen->began_ns = ended < seen->looked_ns ? seen->looked_ns : ended < at->now ? ended : at->now;
    }
    if (sum < at->last)
        at->moved = at->now;
    if (!sum || (sum < at->last && at->last != UINT64_MAX))
        bypasses = 0;
    seen->sum_ns = at->last = sum;
    seen->looked_ns = at->now;
    at->began = seen->began_ns;
    at->first_ns = at->inflight.first_ns;
    at->first_low_ns = at->inflight.first_low_ns;
    at->expected = false;
}

/* Work too long to be queued behind what runs is queued shortly before that ends, so that the card need not wait for
 * this thread to wake up. Only where one piece runs alone; what has run almost as long as its function ever takes ends soon,
 * however short it is at other times. */
static bool just_in_time(struct qg_look *at, uint64_t estimate, uint64_t window_ns)
{
    const struct qg_inflight *now = &at->inflight;
    uint64_t lead = estimate + LEAD_NS > window_ns ? LEAD_NS : window_ns - estimate;
    if (!now->oldest || now->unmarked || now->sum_ns != now->first_ns || !at->first_low_ns)
        return false;
    at->due = at->first_ns > lead ? at->first_ns - lead : 0;
    return at->now - at->began >= at->due;
}

/* What is unfinished, as far as can be told: what runs has taken much longer than estimated, so will what follows. */
static uint64_t unfinished(const struct qg_look *at)
{
    uint64_t ran = at->now - at->began, first = at->inflight.first_ns, sum = at->inflight.sum_ns;
    return first && ran > 2 * first ? (uint64_t)((double)sum / (double)first * (double)ran) : sum;
}

/* Beside offline work the first launch after a pause goes, so that the card has it at once, and what follows waits until
 * that work is over: the arbiter tells. What passes meanwhile lasts about as long as it takes to be told. */
static bool held_back(const struct hold *hold, const struct qg_look *at, uint64_t cost)
{
    return hold->spent_ns && hold->spent_ns + cost > HOLD_NS && at->now - hold->began_ns < LONGEST_HOLD_NS;
}

/* Books the work and returns true if it fits, or if nothing has moved for too long. */
static bool fits(struct qg_look *at, struct qg_stream *stream, struct qg_pages *pages, const struct qg_work *work,
                 uint64_t window_ns)
{
    pthread_mutex_lock(&lock);
    qg_depth++;
    look_at(at, stream->card);
    uint64_t estimate = estimate_of(work, window_ns), sum = at->inflight.sum_ns;
    bool stuck = at->now - at->moved > patience_ns(at->inflight.first_ns, bypasses);
    if (stuck && at->inflight.oldest && qg_stream_over(at->inflight.oldest)) {
        look_at(at, stream->card);
        sum = at->inflight.sum_ns;
        stuck = false;
    }
    at->due = 0;
    struct hold *hold = &holds[stream->card - qg_cards];
    at->flags = __atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST);
    at->closed = at->flags & QG_GATE_CLOSED;
    at->held = at->flags & QG_GATE_HOLD && held_back(hold, at, estimate * work->times);
    bool enter = !sum || __atomic_load_n(&stream->context->broken, __ATOMIC_RELAXED) ||
                 unfinished(at) + estimate * work->times <= window_ns;
    if (!enter)
        narrow(at);
    enter = enter || (work->times == 1 && just_in_time(at, estimate, window_ns));
    enter = enter && !at->closed && !at->held;
    stuck = stuck && !enter && !at->closed && !at->held;
    if (enter || stuck) {
        if (stuck) {
            bypasses++;
            __atomic_fetch_add(&pages->proc->window_bypass, 1, __ATOMIC_RELAXED);
        }
        if (at->flags & QG_GATE_HOLD)
            hold->spent_ns += estimate * work->times;
        book(stream, pages, work, estimate, at);
        progress[stream->card - qg_cards].sum_ns = sum + estimate * work->times;
        qg_thread.calm = stuck ? 0 : calm_after(work, estimate, window_ns);
    } else if (at->now - at->moved > SPIN_NS) {
        harvest(); /* a better estimate may make it fit */
    }
    foresee(pages, at);
    qg_depth--;
    pthread_mutex_unlock(&lock);
    return enter || stuck;
}

/* Another look, and a marker behind work that has none: without one its end is invisible. A signal handler may leave the
 * wait by siglongjmp, so signals come in while the thread sleeps and not while it holds a lock. */
static bool look_again(struct qg_look *at, struct qg_stream *stream, struct qg_pages *pages, const struct qg_work *work,
                       uint64_t window_ns)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct qg_stream *oldest = at->inflight.oldest;
    if (oldest && at->inflight.unmarked && !qg_stream_captures(oldest))
        qg_mark(oldest);
    bool enter = fits(at, stream, pages, work, window_ns);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return enter;
}

uint64_t qg_window_drain_ns(struct qg_card *card, struct qg_pages *pages)
{
    sigset_t all, before;
    struct qg_look at = {.last = UINT64_MAX};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&lock);
    look_at(&at, card);
    narrow(&at);
    foresee(pages, &at);
    pthread_mutex_unlock(&lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    uint64_t sleep_ns = at.inflight.sum_ns ? qg_nap_ns(&at) : 0;
    return !at.inflight.sum_ns ? 0 : sleep_ns > NAP_NS ? sleep_ns : NAP_NS;
}

bool qg_window_enter(struct qg_stream *stream, struct qg_pages *pages, const struct qg_work *work)
{
    uint64_t window_ns = (uint64_t)__atomic_load_n(&pages->gate->window_us, __ATOMIC_RELAXED) * 1000u;
    uint64_t start = qg_now_ns();
    struct qg_look at = {.now = start, .moved = start, .last = UINT64_MAX};
    qg_want_marker(stream);
    if (fits(&at, stream, pages, work, window_ns))
        return true;
    while (!look_again(&at, stream, pages, work, window_ns)) {
        nap(&at, &pages->gate->flags);
        if (qg_pages_of(stream->card) != pages ||
            (__atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST) & (QG_GATE_CLOSED | QG_GATE_WINDOW)) !=
                QG_GATE_WINDOW)
            return false;
    }
    return true;
}

void qg_window_pause_ends(struct qg_card *card, const struct qg_pages *pages)
{
    uint64_t changed = __atomic_load_n(&pages->gate->changed_ns, __ATOMIC_RELAXED);
    struct hold *hold = &holds[card - qg_cards];
    pthread_mutex_lock(&lock);
    if (hold->seen != changed)
        *hold = (struct hold){.seen = changed, .began_ns = qg_now_ns()};
    pthread_mutex_unlock(&lock);
}

void qg_window_after_turn(const struct qg_pages *pages, uint64_t before, uint64_t after)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < PAIRS; i++)
        if (pairs[i].pages == pages && pairs[i].changes == before)
            pairs[i].changes = after;
    pthread_mutex_unlock(&lock);
}

void qg_window_forget(const void *function)
{
    pthread_mutex_lock(&lock);
    if (function)
        qg_function_forget(&functions, function);
    else
        memset(&functions, 0, sizeof(functions));
    for (unsigned i = 0; i < PAIRS; i++)
        if (!function || pairs[i].function == function)
            pairs[i].function = NULL; /* a sample under way is of what it was before */
    pthread_mutex_unlock(&lock);
}

void qg_window_leave(struct qg_stream *stream)
{
    struct qg_pages *pages = qg_pages_of(stream->card);
    qg_window_open = false;
    qg_depth++;
    if (sampling) {
        uint64_t launched = qg_now_ns();
        bool recorded = QG_REAL(cuEventRecord)(sampling->end, stream->handle) == CUDA_SUCCESS;
        pthread_mutex_lock(&lock);
        sampling->gap_ns = launched - sampling->gap_ns;
        sampling->state = recorded ? PAIR_PENDING : PAIR_FREE;
        pthread_mutex_unlock(&lock);
        sampling = NULL;
    }
    uint64_t window_ns = (uint64_t)__atomic_load_n(&pages->gate->window_us, __ATOMIC_RELAXED) * 1000u;
    uint64_t most = window_ns >= ROOMY_NS || window_ns < 4 * UNMARKED_NS ? window_ns / 4 : UNMARKED_NS;
    pthread_mutex_lock(&stream->lock);
    bool due = stream->open_ns >= most;
    pthread_mutex_unlock(&stream->lock);
    if (due)
        qg_mark(stream);
    qg_depth--;
}
