/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of shared memory is in the padding of the job page. Only the shims of the job write it.
 * A row has a name (hash of the handle that is passed between processes), the process that is
 * charged, and a bit for each slot that has opened it. The charged process stays charged while a
 * bit of a living process is set. If it dies, another user takes the bytes over at its next poll.
 * The arbiter keeps the dead process's bytes charged until its memory has left the card. A killed
 * process leaves rows and bits behind. A row is valid only while the pid in the slot is the same.
 * Old bits are cleared by the next process in that slot, or by the next program of the process.
 */
#include "memory/ipc.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/allocation_table.h"
#include "memory/open_files.h"

/* Rows of the list: as many as fit into the padding of the job page. */
#define ROWS 100u
/* Shared allocations of one process. Chosen, not measured; further ones are charged to each
 * process. */
#define LOCALS 512u
/* Descriptors that this process has exported. Chosen, not measured. */
#define SENT 256u
/* ns that the processes of a job get to move to a new page. Chosen, not measured. */
#define MOVES_NS 5000000000u

struct row {
    uint64_t name; /* 0: free */
    uint64_t size;
    /* the charged process; pid 0: it has not moved to this page yet; slot QG_MAX_PROCS: none */
    uint32_t pid, slot;
    uint64_t users[QG_MAX_PROCS / 64];
};
#define TABLE(pages) ((struct row *)(void *)&(pages)->job->pad[48])
_Static_assert(offsetof(struct qg_job_page, pad) + 48 + ROWS * sizeof(struct row) <= QG_PAGE,
               "no room for the rows");

/* LENT: charged here although this process does not use it itself */
enum { FREE, MAKER, USER, LENT };

static struct local {
    uint64_t name, size; /* name 0: no importer can know it again */
    struct qg_card *card;
    uint32_t opens; /* of a user */
    int role;
    bool watched; /* it was exported by descriptors that open_files.c watches */
} locals[LOCALS];
static unsigned nlocals; /* atomic: entries in use, so that the common case costs one load */

/* Descriptors that the program was given for memory of ours, which lives as long as one of them is
 * open; those that cannot be watched. */
static struct sent {
    uint16_t place; /* of the memory; 0: free */
    int fd;
    dev_t dev;
    ino_t ino;
} sent[SENT];

void qg_shares_after_fork(void)
{
    memset(locals, 0, sizeof(locals));
    memset(sent, 0, sizeof(sent));
    nlocals = 0;
    qg_open_files_after_fork();
}

uint64_t qg_share_name(const void *bytes, unsigned long size)
{
    const unsigned char *at = bytes;
    uint64_t hash = 0xcbf29ce484222325u;
    for (unsigned long i = 0; i < size; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash ? hash : 1;
}

static uint32_t pid_in(const struct qg_pages *pages, uint32_t slot)
{
    return slot < QG_MAX_PROCS ? __atomic_load_n(&pages->job->procs[slot].pid, __ATOMIC_ACQUIRE)
                               : 0;
}

static bool owner_lives(const struct qg_pages *pages, const struct row *row)
{
    uint32_t pid = __atomic_load_n(&row->pid, __ATOMIC_ACQUIRE);
    return pid && pid_in(pages, __atomic_load_n(&row->slot, __ATOMIC_ACQUIRE)) == pid;
}

static bool used_by_us(const struct qg_pages *pages, const struct row *row)
{
    return __atomic_load_n(&row->users[pages->slot / 64], __ATOMIC_ACQUIRE) >> (pages->slot % 64) &
           1;
}

/* Whether a living process other than this one has it open. */
static bool used_by_others(const struct qg_pages *pages, const struct row *row)
{
    for (uint32_t slot = 0; slot < QG_MAX_PROCS; slot++)
        if (slot != pages->slot &&
            __atomic_load_n(&row->users[slot / 64], __ATOMIC_ACQUIRE) >> (slot % 64) & 1 &&
            pid_in(pages, slot))
            return true;
    return false;
}

static void set_user(const struct qg_pages *pages, struct row *row, bool uses)
{
    uint64_t bit = 1ull << (pages->slot % 64);
    if (uses)
        __atomic_or_fetch(&row->users[pages->slot / 64], bit, __ATOMIC_SEQ_CST);
    else
        __atomic_and_fetch(&row->users[pages->slot / 64], ~bit, __ATOMIC_SEQ_CST);
}

static struct row *row_of(const struct qg_pages *pages, uint64_t name)
{
    struct row *rows = TABLE(pages);
    for (unsigned i = 0; name && i < ROWS; i++)
        if (__atomic_load_n(&rows[i].name, __ATOMIC_ACQUIRE) == name)
            return &rows[i];
    return NULL;
}

/* A free row, or an unused one of a dead process. */
static struct row *claim(const struct qg_pages *pages, uint64_t name)
{
    struct row *rows = TABLE(pages);
    for (unsigned i = 0; i < ROWS; i++) {
        uint64_t old = __atomic_load_n(&rows[i].name, __ATOMIC_ACQUIRE);
        if (old && (owner_lives(pages, &rows[i]) || used_by_us(pages, &rows[i]) ||
                    used_by_others(pages, &rows[i])))
            continue;
        if (__atomic_compare_exchange_n(&rows[i].name, &old, name, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED))
            return &rows[i];
    }
    return NULL;
}

static struct row *write_row(const struct qg_pages *pages, uint64_t name, uint64_t size)
{
    struct row *row = row_of(pages, name);
    if (!row && (row = claim(pages, name)) != NULL)
        memset(row->users, 0, sizeof(row->users));
    if (!row)
        return NULL;
    __atomic_store_n(&row->size, size, __ATOMIC_RELAXED);
    __atomic_store_n(&row->slot, pages->slot, __ATOMIC_RELEASE);
    __atomic_store_n(&row->pid, pid_in(pages, pages->slot), __ATOMIC_RELEASE);
    return row;
}

static void forget(struct local *local)
{
    local->role = FREE;
    __atomic_sub_fetch(&nlocals, 1, __ATOMIC_RELAXED);
}

static struct local *remember(struct qg_card *card, uint64_t name, uint64_t size, int role)
{
    for (unsigned i = 0; i < LOCALS; i++)
        if (locals[i].role == FREE) {
            locals[i] =
                (struct local){.name = name, .size = size, .card = card, .role = role, .opens = 1};
            __atomic_add_fetch(&nlocals, 1, __ATOMIC_RELAXED);
            return &locals[i];
        }
    return NULL;
}

static uint16_t place_of(const struct local *local)
{
    return (uint16_t)(local - locals + 1);
}

uint16_t qg_share_publish(struct qg_card *card, uint16_t place, uint64_t name, uint64_t size)
{
    struct qg_pages *pages = qg_pages_of(card);
    struct local *local = place ? &locals[place - 1] : remember(card, 0, size, MAKER);
    if (local && name && !local->name) {
        local->name = name;
        if (pages)
            write_row(pages, name, size);
    }
    return local ? place_of(local) : 0;
}

/* ---- descriptors ---- */

/* All files of a driver's character device have the same identity. The number of one that is not
 * watched may belong to another by now, so the memory stays charged. */
static bool still_open(const struct sent *one)
{
    struct stat st;
    return fstat(one->fd, &st) == 0 && st.st_dev == one->dev && st.st_ino == one->ino;
}

static bool has_open(uint16_t place)
{
    const struct local *local = &locals[place - 1];
    bool open = local->watched && qg_open_file_is_open(local->name);
    for (unsigned i = 0; i < SENT; i++) {
        if (sent[i].place != place)
            continue;
        if (still_open(&sent[i]))
            open = true;
        else
            sent[i].place = 0;
    }
    return open;
}

/* The first export by such a descriptor names the memory, if nothing did before. */
static bool watch(struct local *local, uint16_t place, int fd)
{
    struct qg_pages *pages = qg_pages_of(local->card);
    if (!pages || !qg_open_file_is_device(fd))
        return false;
    uint64_t name = local->name ? local->name : qg_open_file_name(pid_in(pages, pages->slot));
    if (!name || !qg_open_file_watch(fd, name))
        return false;
    local->watched = true;
    qg_share_publish(local->card, place, name, local->size);
    return true;
}

void qg_share_sent(uint16_t place, int fd)
{
    struct sent *unused = NULL;
    struct stat st;
    if (!place || fstat(fd, &st) != 0 || watch(&locals[place - 1], place, fd))
        return;
    for (unsigned i = 0; i < SENT; i++) {
        /* it was closed, or the number would not be given again */
        if (sent[i].place && sent[i].fd == fd)
            sent[i].place = 0;
        if (!sent[i].place)
            unused = &sent[i];
    }
    for (unsigned i = 0; i < SENT && !unused; i++)
        if (!still_open(&sent[i]))
            unused = &sent[i];
    if (unused)
        *unused = (struct sent){place, fd, st.st_dev, st.st_ino};
}

/* ---- users ---- */

/* The process that named the row so. A row before it that names the same one was asked already. */
static uint32_t namer(const struct qg_pages *pages, unsigned at)
{
    const struct row *rows = TABLE(pages);
    uint32_t pid = __atomic_load_n(&rows[at].pid, __ATOMIC_ACQUIRE);
    if (!owner_lives(pages, &rows[at]) || !qg_open_file_of(rows[at].name, pid))
        return 0;
    for (unsigned i = 0; i < at; i++)
        if (qg_open_file_of(rows[i].name, pid) && owner_lives(pages, &rows[i]))
            return 0;
    return pid;
}

uint64_t qg_share_name_of_file(struct qg_card *card, int fd)
{
    struct qg_pages *pages = qg_pages_of(card);
    uint64_t name = 0;
    /* in a PID namespace of its own it would look at other processes */
    if (!pages || pid_in(pages, pages->slot) != (uint32_t)getpid() || !qg_open_file_is_device(fd))
        return 0;
    for (unsigned i = 0; i < ROWS && !name; i++)
        if (namer(pages, i))
            name = qg_open_file_match(__atomic_load_n(&TABLE(pages)[i].name, __ATOMIC_ACQUIRE), fd);
    return name;
}

uint16_t qg_share_known(struct qg_card *card, uint64_t name)
{
    uint16_t place = 0;
    pthread_mutex_lock(&qg_allocation_lock);
    struct qg_pages *pages = qg_pages_of(card);
    struct row *row = pages ? row_of(pages, name) : NULL;
    if (row && (owner_lives(pages, row) || used_by_others(pages, row))) {
        struct local *local = NULL;
        for (unsigned i = 0; i < LOCALS && !local; i++)
            if (locals[i].role == USER && locals[i].name == name && locals[i].card == card)
                local = &locals[i];
        if (local)
            local->opens++;
        else
            local = remember(card, name, __atomic_load_n(&row->size, __ATOMIC_RELAXED), USER);
        if (local) {
            set_user(pages, row, true);
            place = place_of(local);
        }
    }
    pthread_mutex_unlock(&qg_allocation_lock);
    return place;
}

/* True: released memory is still used: here, by other processes, or by a process that receives a
 * descriptor of ours. */
static bool needed(const struct local *local, const struct qg_pages *pages, const struct row *row)
{
    return has_open(place_of(local)) ||
           (row && (used_by_us(pages, row) || used_by_others(pages, row)));
}

/* The row is freed with the last allocation of this process under that name. */
static void finish(struct local *local, struct row *row)
{
    bool alike = false;
    for (unsigned i = 0; i < LOCALS; i++)
        alike |= &locals[i] != local && (locals[i].role == MAKER || locals[i].role == LENT) &&
                 locals[i].name == local->name && locals[i].card == local->card;
    if (row && !alike)
        __atomic_store_n(&row->name, 0, __ATOMIC_RELEASE);
    forget(local);
}

/* A maker releases its memory: without users the row and the charge end here. */
static bool release(struct local *local)
{
    struct qg_pages *pages = qg_pages_of(local->card);
    struct row *row = pages ? row_of(pages, local->name) : NULL;
    if (needed(local, pages, row)) {
        local->role = LENT;
        return true;
    }
    finish(local, row);
    return false;
}

bool qg_share_release(struct qg_card *card, uint16_t share)
{
    struct local *local = &locals[share - 1];
    (void)card;
    if (local->role == MAKER)
        return release(local);
    if (local->role == USER && --local->opens == 0) {
        struct qg_pages *pages = qg_pages_of(local->card);
        struct row *row = pages ? row_of(pages, local->name) : NULL;
        if (row)
            set_user(pages, row, false);
        forget(local);
    }
    return false; /* a user's entry has no bytes of its own */
}

/* The maker died: its bytes are charged to this process, if no other process was faster. A maker
 * that has not moved to a new page yet is given time. */
static void take_over(struct local *local, struct qg_pages *pages, struct row *row)
{
    uint32_t dead = __atomic_load_n(&row->pid, __ATOMIC_ACQUIRE);
    if (!dead && qg_now_ns() - pages->followed_ns < MOVES_NS)
        return;
    if (owner_lives(pages, row) ||
        !__atomic_compare_exchange_n(&row->pid, &dead, pid_in(pages, pages->slot), false,
                                     __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        return;
    __atomic_store_n(&row->slot, pages->slot, __ATOMIC_RELEASE);
    struct local *charged = remember(local->card, local->name, local->size, LENT);
    if (charged)
        qg_add_used(local->card, local->size);
}

bool qg_shares_tick(struct qg_card *card)
{
    bool less = false;
    if (!__atomic_load_n(&nlocals, __ATOMIC_RELAXED))
        return false;
    pthread_mutex_lock(&qg_allocation_lock);
    struct qg_pages *pages = qg_pages_of(card);
    for (unsigned i = 0; pages && i < LOCALS; i++) {
        struct local *local = &locals[i];
        if (local->role == FREE || local->role == MAKER || local->card != card)
            continue;
        struct row *row = row_of(pages, local->name);
        if (row && local->role == USER)
            take_over(local, pages, row);
        if (local->role == LENT && !needed(local, pages, row)) {
            qg_subtract_used(card, local->size);
            finish(local, row);
            less = true;
        }
    }
    pthread_mutex_unlock(&qg_allocation_lock);
    return less;
}

/* The slot belonged to another process, or to the program that this process ran before. That one
 * opened memory which this one does not have, and made memory which this one is not charged for. */
static void begin_slot(const struct qg_pages *pages)
{
    struct row *rows = TABLE(pages);
    uint32_t pid = pid_in(pages, pages->slot);
    for (unsigned i = 0; i < ROWS; i++) {
        set_user(pages, &rows[i], false);
        if (pid && __atomic_load_n(&rows[i].pid, __ATOMIC_ACQUIRE) == pid &&
            __atomic_load_n(&rows[i].slot, __ATOMIC_ACQUIRE) == pages->slot)
            __atomic_store_n(&rows[i].slot, QG_MAX_PROCS, __ATOMIC_RELEASE);
    }
}

void qg_shares_adopt(struct qg_card *card, bool fresh)
{
    struct qg_pages *pages = qg_pages_of(card);
    if (fresh)
        begin_slot(pages);
    for (unsigned i = 0; i < LOCALS; i++) {
        struct local *local = &locals[i];
        if (local->role == FREE || local->card != card || !local->name)
            continue;
        struct row *row = local->role == USER ? row_of(pages, local->name)
                                              : write_row(pages, local->name, local->size);
        if (!row && local->role == USER && (row = claim(pages, local->name)) != NULL) {
            memset(row->users, 0, sizeof(row->users));
            __atomic_store_n(&row->size, local->size, __ATOMIC_RELAXED);
            /* the maker writes itself in when it moves */
            __atomic_store_n(&row->pid, 0, __ATOMIC_RELEASE);
        }
        if (row && local->role == USER)
            set_user(pages, row, true);
    }
}

void qg_shares_poll(void)
{
    for (unsigned i = 0; i < QG_MAX_CARDS && __atomic_load_n(&nlocals, __ATOMIC_RELAXED); i++)
        if (qg_pages_of(&qg_cards[i]))
            qg_shares_tick(&qg_cards[i]);
}
