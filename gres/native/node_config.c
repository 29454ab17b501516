/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Checks that qgpu can work with the node's configuration. Slurm itself accepts any count. Every
 * fault is one line in slurmd's log that says what to write instead. A node without qgpu is valid.
 */
#include "native.h"

#include <inttypes.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
/* Bytes of memory per card. A count outside this range is in another unit: 64 MiB are less than any
 * job may ask for, 64 TiB more than any card has, a hundred times over (max_reclaimable of
 * qgpu.yaml). Chosen, not measured. */
#define MEM_LEAST (64 * MIB)
#define MEM_MOST  (UINT64_C(64) << 40)
/* Percent per card and class: as much as classes.CLASS.overcommit of qgpu.yaml allows. */
#define SHARE_MOST UINT64_C(100000)

/* A walk over the records of one gres. */
struct walk {
    const char *gres;
    uint64_t cards;
    uint64_t sum;
    int records;
    bool seen[QGN_OFFLINE + 1];
    bool bad;
};

static int add_count(void *item, void *arg)
{
    const gres_slurmd_conf_t *record = item;
    struct walk *walk = arg;

    if (record->name && !strcmp(record->name, walk->gres)) {
        walk->sum += record->count;
        walk->records++;
    }
    return 0;
}

uint64_t qgn_sum(list_t *records, const char *gres)
{
    struct walk walk = {.gres = gres};

    list_for_each(records, add_count, &walk);
    return walk.sum;
}

static bool no_file(const gres_slurmd_conf_t *record)
{
    if (!record->file && !(record->config_flags & GRES_CONF_HAS_FILE))
        return true;
    error("gres.conf: Name=%s has File=%s, but it is a count: the cards are those of Name=gpu; "
          "leave File out",
          record->name, record->file ? record->file : "");
    return false;
}

static bool share_in_range(const gres_slurmd_conf_t *record, uint64_t cards)
{
    if (record->count && record->count % cards == 0 && record->count <= SHARE_MOST * cards)
        return true;
    error("gres.conf: Name=qgpu Type=%s Count=%" PRIu64 ", but this node has %" PRIu64
          " cards: write a multiple of "
          "it, %" PRIu64 " for one share of 100 per card, and at most %" PRIu64,
          record->type_name, record->count, cards, 100 * cards, SHARE_MOST * cards);
    return false;
}

static bool share_record(struct walk *walk, const gres_slurmd_conf_t *record)
{
    enum qgn_class type = qgn_class_of(record->type_name);

    if (type != QGN_ONLINE && type != QGN_OFFLINE) {
        error("gres.conf: Name=qgpu Count=%" PRIu64
              " has %s%s; the Type is the class: Type=online or Type=offline",
              record->count, record->type_name ? "Type=" : "no Type",
              record->type_name ? record->type_name : "");
        return false;
    }
    if (walk->seen[type]) {
        error("gres.conf: Name=qgpu Type=%s comes in two parts: write one line for all cards "
              "together, with the count "
              "that slurm.conf's Gres= has",
              record->type_name);
        return false;
    }
    walk->seen[type] = true;
    return no_file(record) && share_in_range(record, walk->cards);
}

static int check_share(void *item, void *arg)
{
    struct walk *walk = arg;
    const gres_slurmd_conf_t *record = item;

    if (record->name && !strcmp(record->name, walk->gres) && !share_record(walk, record))
        walk->bad = true;
    return 0;
}

static bool mem_record(struct walk *walk, const gres_slurmd_conf_t *record)
{
    if (record->type_name) {
        error("gres.conf: Name=vram has Type=%s; memory has no class, leave Type out",
              record->type_name);
        return false;
    }
    if (walk->records > 1) {
        error("gres.conf: Name=vram comes in %d parts: write one line for all cards together, "
              "with the count that "
              "slurm.conf's Gres= has",
              walk->records);
        return false;
    }
    if (!no_file(record))
        return false;
    if (record->count >= MEM_LEAST * walk->cards && record->count <= MEM_MOST * walk->cards)
        return true;
    error("gres.conf: Name=vram Count=%" PRIu64 " is %" PRIu64 " MiB for %" PRIu64
          " cards; it counts bytes: "
          "write the cards' usable memory with its unit, for example Count=%" PRIu64 "G",
          record->count, record->count / MIB, walk->cards, 78 * walk->cards);
    return false;
}

static int check_mem(void *item, void *arg)
{
    struct walk *walk = arg;
    const gres_slurmd_conf_t *record = item;

    if (record->name && !strcmp(record->name, walk->gres) && !mem_record(walk, record))
        walk->bad = true;
    return 0;
}

/* Checks the other gres that must be on the node too. A record of slurm.conf that gres.conf lacks
 * has count 0 and does not count. */
static bool needed_gres_present(list_t *records, const struct walk *walk, const char *other)
{
    if (!walk->cards) {
        error("gres.conf: this node has Name=%s, but no Name=gpu with File=", walk->gres);
        return false;
    }
    if (qgn_sum(records, "shard") != 100 * walk->cards) {
        error("gres.conf: Name=shard counts %" PRIu64
              " on this node; qgpu needs 100 for each of its %" PRIu64 " cards",
              qgn_sum(records, "shard"), walk->cards);
        return false;
    }
    if (!qgn_sum(records, other)) {
        error("gres.conf: this node has Name=%s, but no Name=%s", walk->gres, other);
        return false;
    }
    return true;
}

static bool valid(list_t *records, const char *gres, const char *other,
                  int (*check)(void *, void *))
{
    struct walk walk = {.gres = gres};

    list_for_each(records, add_count, &walk);
    if (!walk.sum)
        return true;
    walk.cards = qgn_sum(records, "gpu");
    if (!needed_gres_present(records, &walk, other))
        return false;
    list_for_each(records, check, &walk);
    return !walk.bad;
}

bool qgn_valid_qgpu(list_t *records)
{
    return valid(records, "qgpu", "vram", check_share);
}

bool qgn_valid_mem(list_t *records)
{
    return valid(records, "vram", "qgpu", check_mem);
}
