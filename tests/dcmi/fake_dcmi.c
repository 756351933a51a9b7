/* A libdcmi.so without chips: its answers are in a file that can be replaced while it is in use.
 *
 * The environment variable FAKE_DCMI_STATE names the file. It is read again as soon as it is replaced (write a
 * new file and rename it). One statement per line, words separated by spaces; '#' begins a comment:
 *
 *   version TEXT                            dcmi_get_dcmi_version
 *   chip KEY=VALUE ...                      a chip; every key is optional:
 *       card= device= logic= phy=           its ids (default: 0)
 *       name= npu_name= board= aicores= hbm=    board in any base; hbm in MB
 *       ip=                                 of its RoCE port, IPv4 or IPv6; if absent, the call fails
 *       sdid= pod= server=                  its place in a SuperPod; without pod, the call fails
 *       utilization= vector= overall=       percent
 *       hbm_used= hbm_percent=              MB, percent
 *       hbm_temp= hbm_rate=                 °C, percent
 *       temperature= power= network=        °C, tenths of a watt, result of the network's probe
 *       voltage= frequency=                 hundredths of a volt, MHz
 *       die=HEX                             the first part of its die's id
 *       affinity= bdf=                      CPUs as 0-23; PCI address as 0000:c1:00.0; if absent, the call fails
 *       health=                             minimum of dcmi_get_device_health, which is that of the worst fault; a
 *                                           number above 3 other than 0xffffffff makes the call fail with -8001
 *       codes=HEX[:SEVERITY],...            its faults (default severity: 2)
 *       vnpus=ID[:TEMPLATE[:used]],...      virtual chips cut out of it; used: a container has it
 *       dropped=1                           being reset: listed by the kernel, and answers nothing
 *       absent=1                            off the bus: the kernel does not list it
 *       lost=1                              the driver can't reach it: its health is 3, and its codes stay as they are
 *       processes=PID,...                   the processes that use it
 *       held=1                              a container holds it, even if no process uses it at present
 *       boot=N                              its boot status (default: 16, started)
 *       cpus=N                              its CPUs for vNPUs (default: 6)
 *       brother=CARD                        the card that is reset with it, -1 for none (default: that of a ring of A3)
 *   fail FUNCTION CARD DEVICE CODE [KIND]   the function returns CODE; FUNCTION, CARD, DEVICE may be *
 *   delay FUNCTION CARD DEVICE MS           the function takes MS longer; removing the line ends a pending delay
 *   serialise                               a call waits until those before it have ended, as in some drivers
 *   lose_events                             faults occur and clear without an event
 *   event_delay MS                          events are sent this much later, in their order
 *   code_delay MS                           health and error codes are those of this much earlier
 *   event SERIAL LOGIC HEX ASSERTION SEVERITY [TYPE]    an extra event, sent once, in ascending order of SERIAL
 *   resets FILE                             the state of resets, shared by all programs that use this fake
 *   down MS                                 how long chips answer nothing after a reset (default: 100)
 *   boot MS                                 how long they start afterwards (default: 100)
 *   keep_faults                             faults survive a reset
 *   cuts FILE                               the vNPUs that were created, shared by all programs that use this fake
 *   contained ID,...                        the vNPUs that containers have; to destroy one ends the process
 *   lone_cards                              no card of an A3 server is reset together with another
 *   count FILE                              count calls in FILE: records of a name (56 bytes) and a number (8 bytes);
 *                                           the last one, "races", is described below
 *
 * FUNCTION is a complete name. A function without card matches only *; dcmi_get_device_num_in_card has a card and no
 * device, dcmi_get_device_phyid_from_logicid has those of the chip with the logic id. KIND is what a function is asked for:
 * 256 * main + sub command of dcmi_get_device_info, the type of an address or a die, the kind of a utilization or frequency.
 *
 * Events are sent by a thread of the library within 20 ms. Faults from before the first subscription are no events.
 * A refused subscription is `fail dcmi_subscribe_fault_event * * -8255`; like the driver, the library subscribes once
 * per process and returns -8020 afterwards, also after most refusals.
 *
 * As in the driver (docs/spec/dcmi.md#behaviour-of-the-driver):
 *
 *   - dcmi_init() fills the table of cards, which is used until it is called again. A card with a chip that does not
 *     answer at that moment is in the table as card -1 with 0 chips; a chip the kernel does not list is not in it. The
 *     table is sorted, so these cards come first. A call for a card that is not in the table returns -8001.
 *   - With the policy of independent dies, a card with one die that answers is listed with all its dies. Those that do
 *     not answer have the logic id 0, as the table was cleared.
 *   - dcmi_init() empties the table first, and no lock protects it. A call by another thread during it, or
 *     dcmi_init() during a call that began less than RACE_MS before, is a race: it is counted and named on stderr, and
 *     the call finds no card.
 *   - dcmi_get_device_errorcode_v2 replaces most errors by -8005.
 *   - An error during dcmi_init() leaves the table empty.
 *   - dcmi_set_device_reset() resets all chips of a 910B whose chips are linked, both cards of a pair on A3, but the chip
 *     alone on a 910A. It returns before the chips have started. A library that resets a chip while anybody holds it, or
 *     one that is linked with it, or begins a reset during another, ends the process: no test can overlook that.
 */
#define _GNU_SOURCE
#include "dcmi_abi.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_CHIPS 64
#define MAX_CODES 128
#define MAX_RULES 2048
#define MAX_EVENTS 256
#define ANY (-1)
#define NONE (-2)
#define TICK_MS 5
#define RACE_MS 1000 /* within this time a call may not have used the table yet */
#define MAX_PAST 64
#define PAST_MS 10000
#define MAX_CALLS 256
#define FATAL 3
#define MAX_CUTS 256
#define CHIP_CPUS 6
#define COMPUTED (-2)
#define DCMI_A3_BOARD 0xb0
#define NOT_EXISTING 0xffffffffu

#define FUNCTIONS(X)                                                                                                   \
    X(dcmi_init)                                                                                                       \
    X(dcmi_get_dcmi_version)                                                                                           \
    X(dcmi_get_card_list)                                                                                              \
    X(dcmi_get_device_num_in_card)                                                                                     \
    X(dcmi_get_device_logic_id)                                                                                        \
    X(dcmi_get_device_phyid_from_logicid)                                                                              \
    X(dcmi_get_device_chip_info_v2)                                                                                    \
    X(dcmi_get_device_chip_info)                                                                                       \
    X(dcmi_get_device_board_info)                                                                                      \
    X(dcmi_get_device_hbm_info)                                                                                        \
    X(dcmi_get_device_ip)                                                                                              \
    X(dcmi_get_device_info)                                                                                            \
    X(dcmi_get_affinity_cpu_info_by_device_id)                                                                         \
    X(dcmi_get_device_pcie_info_v2)                                                                                    \
    X(dcmi_get_device_health)                                                                                          \
    X(dcmi_get_device_errorcode_v2)                                                                                    \
    X(dcmi_get_device_utilization_rate)                                                                                \
    X(dcmi_get_device_temperature)                                                                                     \
    X(dcmi_get_device_power_info)                                                                                      \
    X(dcmi_get_device_voltage)                                                                                         \
    X(dcmi_get_device_frequency)                                                                                       \
    X(dcmi_get_device_network_health)                                                                                  \
    X(dcmi_get_device_die_v2)                                                                                          \
    X(dcmi_set_multi_die_policy)                                                                                       \
    X(dcmi_subscribe_fault_event)                                                                                      \
    X(dcmi_get_device_resource_info)                                                                                   \
    X(dcmi_get_device_boot_status)                                                                                     \
    X(dcmi_get_netdev_brother_device)                                                                                  \
    X(dcmi_set_device_reset)                                                                                           \
    X(dcmi_create_vdevice)                                                                                             \
    X(dcmi_set_destroy_vdevice)

#define AS_ENUM(name) F_##name,
#define AS_TEXT(name) #name,
enum function { FUNCTIONS(AS_ENUM) FUNCTION_COUNT };
static const char *const FUNCTION_NAMES[] = {FUNCTIONS(AS_TEXT)};

struct code {
    uint32_t id;
    uint8_t severity;
};

struct vdev {
    uint32_t id;
    char template[16];
    uint32_t group;
    bool used;
};

struct chip {
    int card, device, logic, phy;
    char name[32], npu_name[32];
    uint32_t board, aicores, health;
    uint64_t hbm, hbm_used;
    uint32_t utilization, vector, overall, hbm_percent, hbm_rate, network, die, voltage, frequency;
    int hbm_temp, temperature, power;
    char ip[64], affinity[64], bdf[32];
    bool in_pod, dropped, absent, lost, held, starting;
    int boot, cpus, brother, processes[DCMI_MAX_PROCESSES], process_count;
    uint32_t sdid, pod, server;
    struct code codes[MAX_CODES];
    int code_count;
    struct vdev vdevs[DCMI_MAX_VDEV];
    int vdev_count;
};

struct rule {
    int function, card, device, value, kind;
};

struct own_event {
    long serial;
    int logic, assertion, severity, type;
    uint32_t code;
};

struct state {
    char version[64], count_file[4096];
    struct chip chips[MAX_CHIPS];
    int chip_count;
    struct rule fails[MAX_RULES], delays[MAX_RULES];
    int fail_count, delay_count;
    bool serialise, lose_events, keep_faults, lone_cards;
    int down_ms, boot_ms;
    char reset_file[4096], cut_file[4096];
    uint32_t contained[MAX_CUTS];
    int contained_count;
    int event_delay_ms, code_delay_ms;
    struct own_event events[MAX_EVENTS];
    int event_count;
};

struct counter {
    char name[56];
    uint64_t calls;
};

/* A state that was replaced, and when. */
struct past {
    struct state *state;
    int64_t until_us;
};

struct card {
    int card, devices, logic[DCMI_MAX_DEVICES];
};

struct running {
    bool used;
    pthread_t thread;
    int64_t began_us;
};

/* What a reset did to the chip with a logic id. Times are those of the machine, so that another process knows them. */
struct reset {
    int64_t down_until_us, started_us;
    uint64_t codes; /* the faults that it ended, see hash_codes() */
};

/* A vNPU that was created; unused if its id is 0. */
struct cut {
    uint32_t id, group;
    int logic;
    char template[16];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all variables below */
static struct state *now;
static struct past past[MAX_PAST]; /* oldest first */
static int past_count;
static struct card table[MAX_CHIPS]; /* by dcmi_init() */
static int table_count;
static bool initialised; /* dcmi_init() has succeeded once */
static bool independent; /* the policy of dies */
static bool initialising;
static pthread_t initialiser;
static struct running calls[MAX_CALLS];
static unsigned long generation; /* how often `now` was replaced */
static struct stat read_from;
static struct counter *counters;
static struct reset *resets; /* by logic id */
static struct cut *cuts;
static bool resetting;
static event_handler handler;
static bool subscription_used;
static struct state *announced; /* the state as announced to the handler */
static long last_serial;

static _Thread_local int kind = ANY; /* what the function that this thread calls is asked for */

static pthread_mutex_t one_by_one = PTHREAD_MUTEX_INITIALIZER;

/* ---- reading the file ---- */

static void copy_text(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from); }

static bool read_chip_key(struct chip *chip, const char *key, char *value) {
    char *rest = NULL;
    if (!strcmp(key, "card")) chip->card = atoi(value);
    else if (!strcmp(key, "device")) chip->device = atoi(value);
    else if (!strcmp(key, "logic")) chip->logic = atoi(value);
    else if (!strcmp(key, "phy")) chip->phy = atoi(value);
    else if (!strcmp(key, "name")) copy_text(chip->name, sizeof chip->name, value);
    else if (!strcmp(key, "npu_name")) copy_text(chip->npu_name, sizeof chip->npu_name, value);
    else if (!strcmp(key, "board")) chip->board = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "aicores")) chip->aicores = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "hbm")) chip->hbm = strtoull(value, NULL, 0);
    else if (!strcmp(key, "hbm_used")) chip->hbm_used = strtoull(value, NULL, 0);
    else if (!strcmp(key, "hbm_temp")) chip->hbm_temp = atoi(value);
    else if (!strcmp(key, "hbm_rate")) chip->hbm_rate = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "utilization")) chip->utilization = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "vector")) chip->vector = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "overall")) chip->overall = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "hbm_percent")) chip->hbm_percent = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "voltage")) chip->voltage = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "frequency")) chip->frequency = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "temperature")) chip->temperature = atoi(value);
    else if (!strcmp(key, "power")) chip->power = atoi(value);
    else if (!strcmp(key, "network")) chip->network = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "die")) chip->die = (uint32_t)strtoul(value, NULL, 16);
    else if (!strcmp(key, "ip")) copy_text(chip->ip, sizeof chip->ip, value);
    else if (!strcmp(key, "sdid")) chip->sdid = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "pod")) chip->in_pod = true, chip->pod = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "server")) chip->server = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "affinity")) copy_text(chip->affinity, sizeof chip->affinity, value);
    else if (!strcmp(key, "bdf")) copy_text(chip->bdf, sizeof chip->bdf, value);
    else if (!strcmp(key, "health")) chip->health = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "dropped")) chip->dropped = atoi(value) != 0;
    else if (!strcmp(key, "absent")) chip->absent = atoi(value) != 0;
    else if (!strcmp(key, "held")) chip->held = atoi(value) != 0;
    else if (!strcmp(key, "boot")) chip->boot = atoi(value);
    else if (!strcmp(key, "cpus")) chip->cpus = atoi(value);
    else if (!strcmp(key, "brother")) chip->brother = atoi(value);
    else if (!strcmp(key, "processes")) {
        for (char *part = strtok_r(value, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
            if (chip->process_count == DCMI_MAX_PROCESSES) return false;
            chip->processes[chip->process_count++] = atoi(part);
        }
    }
    else if (!strcmp(key, "lost")) chip->lost = atoi(value) != 0;
    else if (!strcmp(key, "codes")) {
        for (char *part = strtok_r(value, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
            char *severity = NULL;
            if (chip->code_count == MAX_CODES) return false;
            struct code *code = &chip->codes[chip->code_count++];
            code->id = (uint32_t)strtoul(part, &severity, 16);
            code->severity = *severity == ':' ? (uint8_t)atoi(severity + 1) : 2;
        }
    } else if (!strcmp(key, "vnpus")) {
        for (char *part = strtok_r(value, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
            char *template = NULL;
            if (chip->vdev_count == DCMI_MAX_VDEV) return false;
            struct vdev *vdev = &chip->vdevs[chip->vdev_count++];
            vdev->id = (uint32_t)strtoul(part, &template, 10);
            if (*template != ':') continue;
            char *used = strchr(++template, ':');
            vdev->used = used != NULL;
            if (used) *used = 0;
            copy_text(vdev->template, sizeof vdev->template, template);
        }
    } else {
        return false;
    }
    return true;
}

static bool read_chip(struct state *state, char *words) {
    char *rest = NULL;
    if (state->chip_count == MAX_CHIPS) return false;
    struct chip *chip = &state->chips[state->chip_count++];
    chip->boot = DCMI_STARTED, chip->cpus = CHIP_CPUS, chip->brother = COMPUTED;
    for (char *word = strtok_r(words, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
        char *value = strchr(word, '=');
        if (!value) return false;
        *value++ = '\0';
        if (!read_chip_key(chip, word, value)) return false;
    }
    return true;
}

static int function_named(const char *name) {
    for (int each = 0; each < FUNCTION_COUNT; each++)
        if (!strcmp(name, FUNCTION_NAMES[each])) return each;
    return NONE;
}

static bool read_rule(struct rule *rules, int *count, const char *words) {
    char function[64], card[16], device[16];
    int value = 0, kind = ANY;
    if (*count == MAX_RULES || sscanf(words, "%63s %15s %15s %d %d", function, card, device, &value, &kind) < 4) return false;
    struct rule rule = {
        .function = strcmp(function, "*") ? function_named(function) : ANY,
        .card = strcmp(card, "*") ? atoi(card) : ANY,
        .device = strcmp(device, "*") ? atoi(device) : ANY,
        .value = value,
        .kind = kind,
    };
    rules[(*count)++] = rule;
    return rule.function != NONE;
}

static bool read_event(struct state *state, const char *words) {
    if (state->event_count == MAX_EVENTS) return false;
    struct own_event event = {.type = DCMI_FAULT_EVENT};
    if (sscanf(words, "%ld %d %x %d %d %d", &event.serial, &event.logic, &event.code, &event.assertion, &event.severity,
               &event.type) < 5)
        return false;
    state->events[state->event_count++] = event;
    return true;
}

static bool read_line(struct state *state, char *line) {
    line[strcspn(line, "#\r\n")] = '\0';
    char *word = line + strspn(line, " \t");
    char *words = word + strcspn(word, " \t");
    if (*words) *words++ = '\0';
    words += strspn(words, " \t");
    if (!*word) return true;
    if (!strcmp(word, "version")) return copy_text(state->version, sizeof state->version, words), true;
    if (!strcmp(word, "count")) return copy_text(state->count_file, sizeof state->count_file, words), true;
    if (!strcmp(word, "chip")) return read_chip(state, words);
    if (!strcmp(word, "fail")) return read_rule(state->fails, &state->fail_count, words);
    if (!strcmp(word, "delay")) return read_rule(state->delays, &state->delay_count, words);
    if (!strcmp(word, "serialise")) return state->serialise = true;
    if (!strcmp(word, "lose_events")) return state->lose_events = true;
    if (!strcmp(word, "event_delay")) return state->event_delay_ms = atoi(words), true;
    if (!strcmp(word, "code_delay")) return state->code_delay_ms = atoi(words), true;
    if (!strcmp(word, "resets")) return copy_text(state->reset_file, sizeof state->reset_file, words), true;
    if (!strcmp(word, "cuts")) return copy_text(state->cut_file, sizeof state->cut_file, words), true;
    if (!strcmp(word, "contained")) {
        char *rest = NULL;
        for (char *part = strtok_r(words, ",", &rest); part && state->contained_count < MAX_CUTS; part = strtok_r(NULL, ",", &rest))
            state->contained[state->contained_count++] = (uint32_t)strtoul(part, NULL, 10);
        return true;
    }
    if (!strcmp(word, "down")) return state->down_ms = atoi(words), true;
    if (!strcmp(word, "boot")) return state->boot_ms = atoi(words), true;
    if (!strcmp(word, "keep_faults")) return state->keep_faults = true;
    if (!strcmp(word, "lone_cards")) return state->lone_cards = true;
    if (!strcmp(word, "event")) return read_event(state, words);
    return false;
}

static struct state *read_state(FILE *file, const char *path) {
    struct state *state = calloc(1, sizeof *state);
    char *line = NULL;
    size_t room = 0;
    if (state) state->down_ms = state->boot_ms = 100;
    for (int number = 1; state && getline(&line, &room, file) >= 0; number++) {
        if (!read_line(state, line)) fprintf(stderr, "fake libdcmi: %s line %d makes no sense\n", path, number);
    }
    free(line);
    return state;
}

static void map_counters(const char *path) {
    if (counters || !*path) return;
    size_t size = (FUNCTION_COUNT + 1) * sizeof *counters;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return;
    if (ftruncate(file, (off_t)size) == 0) {
        void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) {
            counters = mapped;
            for (int each = 0; each < FUNCTION_COUNT; each++)
                copy_text(counters[each].name, sizeof counters[each].name, FUNCTION_NAMES[each]);
            copy_text(counters[FUNCTION_COUNT].name, sizeof counters[FUNCTION_COUNT].name, "races");
        }
    }
    close(file);
}

static void map_resets(const char *path) {
    if (resets || !*path) return;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return;
    if (ftruncate(file, MAX_CHIPS * sizeof *resets) == 0) {
        void *mapped = mmap(NULL, MAX_CHIPS * sizeof *resets, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) resets = mapped;
    }
    close(file);
}

static void map_cuts(const char *path) {
    if (cuts || !*path) return;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return;
    if (ftruncate(file, MAX_CUTS * sizeof *cuts) == 0) {
        void *mapped = mmap(NULL, MAX_CUTS * sizeof *cuts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) cuts = mapped;
    }
    close(file);
}

static void sleep_ms(long ms) {
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static int64_t clock_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

/* With the lock held: keep the replaced state for as long as delayed codes may need it. */
static void keep_past(struct state *state) {
    int64_t at_us = clock_us();
    int outdated = 0;
    while (outdated < past_count &&
           (past_count - outdated == MAX_PAST || past[outdated].until_us < at_us - 1000 * PAST_MS))
        free(past[outdated++].state);
    memmove(past, past + outdated, (size_t)(past_count - outdated) * sizeof *past);
    past_count -= outdated;
    past[past_count++] = (struct past){state, at_us};
}

/* With the lock held: update `now` from the file. A missing file changes nothing. */
static void refresh(void) {
    static char path[4096];
    struct stat status;
    if (!*path) { /* once: a library that is loaded later can have another file */
        const char *named = getenv("FAKE_DCMI_STATE");
        if (named) copy_text(path, sizeof path, named);
    }
    if (stat(path, &status) != 0) return;
    if (now && status.st_ino == read_from.st_ino && status.st_mtim.tv_sec == read_from.st_mtim.tv_sec &&
        status.st_mtim.tv_nsec == read_from.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "re");
    if (!file) return;
    fstat(fileno(file), &read_from);
    struct state *state = read_state(file, path);
    fclose(file);
    if (!state) return;
    if (now) keep_past(now);
    now = state;
    generation++;
    map_counters(now->count_file);
    map_resets(now->reset_file);
    map_cuts(now->cut_file);
}

static uint64_t hash_codes(const struct chip *chip) {
    uint64_t hash = 1;
    for (int each = 0; each < chip->code_count; each++) hash = hash * 1000003 + chip->codes[each].id;
    return hash;
}

/* With the lock held: change a copy of a chip to what its last reset has made of it. */
static void after_reset(struct chip *chip) {
    if (!resets || chip->logic < 0 || chip->logic >= MAX_CHIPS) return;
    const struct reset *reset = &resets[chip->logic];
    if (!reset->started_us) return;
    int64_t at_us = clock_us();
    if (reset->codes && reset->codes == hash_codes(chip)) chip->code_count = 0;
    chip->dropped |= at_us < reset->down_until_us;
    chip->starting = at_us < reset->started_us;
    if (!chip->starting) return;
    int64_t left = reset->started_us - at_us, all = reset->started_us - reset->down_until_us;
    chip->boot = chip->dropped ? 0 : left * 3 > all * 2 ? 1 : left * 3 > all ? 2 : 3;
}

/* ---- a call ---- */

static int ruled(const struct rule *rules, int count, int function, int card, int device) {
    for (int each = 0; each < count; each++) {
        const struct rule *rule = &rules[each];
        if ((rule->function == ANY || rule->function == function) && (rule->card == ANY || rule->card == card) &&
            (rule->device == ANY || rule->device == device) && (rule->kind == ANY || rule->kind == kind))
            return rule->value;
    }
    return 0;
}

static const struct chip *chip_of_logic(const struct state *state, int logic) {
    for (int each = 0; each < state->chip_count; each++)
        if (state->chips[each].logic == logic) return &state->chips[each];
    return NULL;
}

/* With the lock held: give the chip the codes that the driver's memory has at this moment. */
static void delay_codes(struct chip *chip) {
    int64_t shown_us = clock_us() - 1000 * (int64_t)now->code_delay_ms;
    for (int each = 0; each < past_count; each++) {
        if (past[each].until_us <= shown_us) continue;
        const struct chip *earlier = chip_of_logic(past[each].state, chip->logic);
        if (!earlier) return;
        chip->code_count = earlier->code_count;
        memcpy(chip->codes, earlier->codes, sizeof chip->codes);
        return;
    }
}

/* With the lock held: find a chip through the table; return an error code of the driver if that is not possible. */
static int chip_in_table(int card, int device, struct chip *chip) {
    if (!initialised && !table_count) return DCMI_UNSUPPORTED;
    for (int each = 0; each < table_count; each++) {
        if (table[each].card != card) continue;
        if (device < 0 || device >= table[each].devices) return DCMI_INVALID_PARAMETER;
        const struct chip *found = chip_of_logic(now, table[each].logic[device]);
        if (!found) return DCMI_INVALID_DEVICE;
        *chip = *found;
        if (now->code_delay_ms) delay_codes(chip);
        after_reset(chip);
        return DCMI_OK;
    }
    return DCMI_INVALID_PARAMETER;
}

/* With the lock held: note that two threads use the table while one of them fills it. */
static void note_race(int function) {
    fprintf(stderr, "fake libdcmi: race: %s while dcmi_init() and another call run\n", FUNCTION_NAMES[function]);
    if (counters) __atomic_add_fetch(&counters[FUNCTION_COUNT].calls, 1, __ATOMIC_RELAXED);
}

/* With the lock held: begin a call; return its slot. */
static int enter(int function) {
    int slot = 0;
    int64_t at_us = clock_us();
    bool others = initialising && !pthread_equal(initialiser, pthread_self());
    for (int each = 0; function == F_dcmi_init && each < MAX_CALLS; each++)
        others |= calls[each].used && at_us - calls[each].began_us < 1000 * RACE_MS;
    if (others) note_race(function);
    while (slot < MAX_CALLS - 1 && calls[slot].used) slot++;
    calls[slot] = (struct running){true, pthread_self(), at_us};
    return slot;
}

/* With the lock held; releases it while it waits. */
static void wait_out(int function, int card, int device) {
    int64_t started = clock_us();
    while (clock_us() - started < 1000 * (int64_t)ruled(now->delays, now->delay_count, function, card, device)) {
        pthread_mutex_unlock(&lock);
        sleep_ms(1);
        pthread_mutex_lock(&lock);
        refresh();
    }
}

/* Take the lock and make a call; `chip`, if not NULL, gets a copy of the chip. Releases the lock before returning. */
static int begin(int function, int card, int device, struct chip *chip) {
    pthread_mutex_lock(&lock);
    refresh();
    if (!now) {
        pthread_mutex_unlock(&lock);
        return DCMI_INTERNAL;
    }
    if (counters) __atomic_add_fetch(&counters[function].calls, 1, __ATOMIC_RELAXED);
    bool serialise = now->serialise;
    if (serialise) {
        pthread_mutex_unlock(&lock);
        pthread_mutex_lock(&one_by_one);
        pthread_mutex_lock(&lock);
    }
    int slot = enter(function);
    int code = chip ? chip_in_table(card, device, chip) : DCMI_OK;
    wait_out(function, card, device);
    if (!code && chip) code = chip_in_table(card, device, chip);
    int failure = ruled(now->fails, now->fail_count, function, card, device);
    if (failure) code = failure;
    if (!code && chip && function != F_dcmi_get_device_health && function != F_dcmi_get_device_errorcode_v2 &&
        function != F_dcmi_get_device_logic_id && (chip->dropped || chip->absent || chip->lost))
        code = chip->lost ? DCMI_TIMED_OUT : DCMI_INTERNAL;
    calls[slot].used = false;
    pthread_mutex_unlock(&lock);
    if (serialise) pthread_mutex_unlock(&one_by_one);
    return code;
}

#define BEGIN(name, card, device, chip)                                                                                \
    do {                                                                                                               \
        int code_ = begin(F_##name, card, device, chip);                                                               \
        kind = ANY;                                                                                                    \
        if (code_) return code_;                                                                                       \
    } while (0)

static int by_card(const void *one, const void *other) {
    return ((const struct card *)one)->card - ((const struct card *)other)->card;
}

/* With the lock held: put a chip's card into the table, unless it is there. */
static void add_card(int card) {
    struct card entry = {.card = card};
    int answering = 0;
    for (int each = 0; each < now->chip_count; each++) {
        struct chip copy = now->chips[each], *chip = &copy;
        if (chip->card != card || chip->absent) continue;
        after_reset(chip);
        bool answers = !chip->dropped && !chip->lost;
        answering += answers;
        if (answers && chip->device >= 0 && chip->device < DCMI_MAX_DEVICES) entry.logic[chip->device] = chip->logic;
        entry.devices++;
    }
    if (!entry.devices) return;
    table[table_count++] = answering >= (independent ? 1 : entry.devices) ? entry : (struct card){.card = -1};
}

EXPORT int dcmi_init(void) {
    pthread_mutex_lock(&lock);
    refresh();
    int slot = enter(F_dcmi_init);
    initialising = true;
    initialiser = pthread_self();
    calls[slot].used = false;
    table_count = 0;
    pthread_mutex_unlock(&lock);
    int code = begin(F_dcmi_init, NONE, NONE, NULL);
    pthread_mutex_lock(&lock);
    for (int each = 0; !code && each < now->chip_count; each++) {
        bool seen = false;
        for (int other = 0; other < each; other++) seen |= now->chips[other].card == now->chips[each].card;
        if (!seen) add_card(now->chips[each].card);
    }
    qsort(table, (size_t)table_count, sizeof *table, by_card);
    initialised |= !code;
    initialising = false;
    pthread_mutex_unlock(&lock);
    return code;
}

EXPORT int dcmi_get_dcmi_version(char *version, unsigned int size) {
    BEGIN(dcmi_get_dcmi_version, NONE, NONE, NULL);
    pthread_mutex_lock(&lock);
    copy_text(version, size, now->version);
    pthread_mutex_unlock(&lock);
    return DCMI_OK;
}

EXPORT int dcmi_get_card_list(int *count, int *cards, int size) {
    BEGIN(dcmi_get_card_list, NONE, NONE, NULL);
    pthread_mutex_lock(&lock);
    bool usable = initialised;
    int entries = *count = table_count;
    for (int each = 0; each < entries && each < size; each++) cards[each] = table[each].card;
    pthread_mutex_unlock(&lock);
    if (!usable) return DCMI_INTERNAL;
    return entries > size ? DCMI_INVALID_PARAMETER : DCMI_OK;
}

EXPORT int dcmi_get_device_num_in_card(int card, int *count) {
    BEGIN(dcmi_get_device_num_in_card, card, NONE, NULL);
    int code = DCMI_INVALID_PARAMETER;
    pthread_mutex_lock(&lock);
    if (!initialised && !table_count) *count = 0, code = DCMI_OK;
    for (int each = 0; each < table_count && code; each++)
        if (table[each].card == card) *count = table[each].devices, code = DCMI_OK;
    pthread_mutex_unlock(&lock);
    return code;
}

EXPORT int dcmi_get_device_logic_id(int *logic, int card, int device) {
    if (card < 0 || device < 0) return DCMI_INVALID_PARAMETER;
    BEGIN(dcmi_get_device_logic_id, card, device, NULL);
    pthread_mutex_lock(&lock);
    int code = !initialised ? DCMI_NOT_READY : table_count ? DCMI_INVALID_PARAMETER : DCMI_INVALID_DEVICE;
    for (int each = 0; initialised && each < table_count && code; each++)
        if (table[each].card == card && device < table[each].devices)
            *logic = table[each].logic[device], code = DCMI_OK;
    pthread_mutex_unlock(&lock);
    return code;
}

/* Of the kernel, not of the table. */
EXPORT int dcmi_get_device_phyid_from_logicid(unsigned int logic, unsigned int *phy) {
    int card = NONE, device = NONE, code = DCMI_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    refresh();
    const struct chip *found = now ? chip_of_logic(now, (int)logic) : NULL;
    if (found && !found->absent) card = found->card, device = found->device, *phy = (unsigned)found->phy, code = 0;
    pthread_mutex_unlock(&lock);
    BEGIN(dcmi_get_device_phyid_from_logicid, card, device, NULL);
    return code;
}

EXPORT int dcmi_get_device_chip_info_v2(int card, int device, struct chip_info_v2 *info) {
    struct chip chip;
    BEGIN(dcmi_get_device_chip_info_v2, card, device, &chip);
    *info = (struct chip_info_v2){.chip_type = "Ascend", .chip_ver = "V1", .aicore_cnt = chip.aicores};
    copy_text(info->chip_name, sizeof info->chip_name, chip.name);
    copy_text(info->npu_name, sizeof info->npu_name, chip.npu_name);
    return DCMI_OK;
}

EXPORT int dcmi_get_device_chip_info(int card, int device, struct chip_info *info) {
    struct chip chip;
    BEGIN(dcmi_get_device_chip_info, card, device, &chip);
    *info = (struct chip_info){.chip_type = "Ascend", .chip_ver = "V1", .aicore_cnt = chip.aicores};
    copy_text(info->chip_name, sizeof info->chip_name, chip.name);
    return DCMI_OK;
}

EXPORT int dcmi_get_device_board_info(int card, int device, struct board_info *info) {
    struct chip chip;
    BEGIN(dcmi_get_device_board_info, card, device, &chip);
    *info = (struct board_info){.board_id = chip.board, .pcb_id = 1, .bom_id = 1, .slot_id = (uint32_t)card};
    return DCMI_OK;
}

EXPORT int dcmi_get_device_hbm_info(int card, int device, struct hbm_info *info) {
    struct chip chip;
    BEGIN(dcmi_get_device_hbm_info, card, device, &chip);
    *info = (struct hbm_info){
        .memory_size = chip.hbm,
        .freq = 1600,
        .memory_usage = chip.hbm_used,
        .temp = chip.hbm_temp,
        .bandwidth_util_rate = chip.hbm_rate,
    };
    return DCMI_OK;
}

EXPORT int dcmi_get_device_utilization_rate(int card, int device, int asked, unsigned int *percent) {
    struct chip chip;
    kind = asked;
    BEGIN(dcmi_get_device_utilization_rate, card, device, &chip);
    if (asked == DCMI_UTIL_AI_CORE) *percent = chip.utilization;
    else if (asked == DCMI_UTIL_HBM) *percent = chip.hbm_percent;
    else if (asked == DCMI_UTIL_VECTOR) *percent = chip.vector;
    else if (asked == DCMI_UTIL_OVERALL) *percent = chip.overall;
    else return DCMI_INVALID_PARAMETER;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_temperature(int card, int device, int *temperature) {
    struct chip chip;
    BEGIN(dcmi_get_device_temperature, card, device, &chip);
    *temperature = chip.temperature;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_power_info(int card, int device, int *power) {
    struct chip chip;
    BEGIN(dcmi_get_device_power_info, card, device, &chip);
    *power = chip.power;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_voltage(int card, int device, unsigned int *voltage) {
    struct chip chip;
    BEGIN(dcmi_get_device_voltage, card, device, &chip);
    *voltage = chip.voltage;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_frequency(int card, int device, int asked, unsigned int *frequency) {
    struct chip chip;
    kind = asked;
    BEGIN(dcmi_get_device_frequency, card, device, &chip);
    if (asked != DCMI_FREQUENCY_AI_CORE) return DCMI_INVALID_PARAMETER;
    *frequency = chip.frequency;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_network_health(int card, int device, unsigned int *result) {
    struct chip chip;
    BEGIN(dcmi_get_device_network_health, card, device, &chip);
    *result = chip.network;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_die_v2(int card, int device, int type, struct die_id *die) {
    struct chip chip;
    kind = type;
    BEGIN(dcmi_get_device_die_v2, card, device, &chip);
    if (type != DCMI_VDIE) return DCMI_INVALID_PARAMETER;
    *die = (struct die_id){{chip.die, 0x20809424, 0x1108C10, 0x60123, (uint32_t)(card << 8 | device)}};
    return DCMI_OK;
}

EXPORT int dcmi_get_device_ip(int card, int device, int port_type, int port, struct ip_addr *ip, struct ip_addr *mask) {
    struct chip chip;
    kind = ip->ip_type;
    BEGIN(dcmi_get_device_ip, card, device, &chip);
    if (port_type != DCMI_ROCE_PORT || port != 0) return DCMI_INVALID_PARAMETER;
    bool wants_v6 = ip->ip_type == DCMI_IP_V6, is_v6 = strchr(chip.ip, ':') != NULL;
    if (!*chip.ip || wants_v6 != is_v6) return DCMI_INTERNAL;
    memset(mask->u_addr.ip6, 0xff, is_v6 ? 8 : 3);
    return inet_pton(is_v6 ? AF_INET6 : AF_INET, chip.ip, ip->u_addr.ip6) == 1 ? DCMI_OK : DCMI_INTERNAL;
}

/* Add the vNPUs that were created to a copy of their chip. */
static void add_cuts(struct chip *chip) {
    pthread_mutex_lock(&lock);
    for (int each = 0; cuts && each < MAX_CUTS; each++) {
        if (!cuts[each].id || cuts[each].logic != chip->logic || chip->vdev_count == DCMI_MAX_VDEV) continue;
        struct vdev *vdev = &chip->vdevs[chip->vdev_count++];
        vdev->id = cuts[each].id, vdev->group = cuts[each].group;
        copy_text(vdev->template, sizeof vdev->template, cuts[each].template);
        for (int used = 0; used < now->contained_count; used++) vdev->used |= now->contained[used] == vdev->id;
    }
    pthread_mutex_unlock(&lock);
}

/* The cores and CPUs of a template such as vir05_1c_16g. */
static void sizes(const char *template, int *cores, int *cpus) {
    *cores = *cpus = 0;
    sscanf(template, "vir%d_%dc", cores, cpus);
}

static void free_parts(const struct chip *chip, int *cores, int *cpus) {
    *cores = (int)chip->aicores, *cpus = chip->cpus;
    for (int each = 0; each < chip->vdev_count; each++) {
        int its_cores, its_cpus;
        sizes(chip->vdevs[each].template, &its_cores, &its_cpus);
        *cores -= its_cores, *cpus -= its_cpus;
    }
}

/* With the lock held: the smallest id from 100 that no vNPU of the node has. */
static uint32_t unused_id(void) {
    for (uint32_t id = 100;; id++) {
        bool used = false;
        for (int each = 0; each < MAX_CUTS; each++) used |= cuts[each].id == id;
        for (int chip = 0; chip < now->chip_count; chip++)
            for (int each = 0; each < now->chips[chip].vdev_count; each++) used |= now->chips[chip].vdevs[each].id == id;
        if (!used) return id;
    }
}

EXPORT int dcmi_create_vdevice(int card, int device, struct create_vdev_res *wanted, struct create_vdev_out *created) {
    struct chip chip;
    int cores, cpus, left_cores, left_cpus;
    BEGIN(dcmi_create_vdevice, card, device, &chip);
    if (wanted->vdev_id != NOT_EXISTING || wanted->vfg_id != NOT_EXISTING) return DCMI_INVALID_PARAMETER;
    add_cuts(&chip);
    sizes(wanted->template_name, &cores, &cpus);
    free_parts(&chip, &left_cores, &left_cpus);
    if (!cores || cores > left_cores || cpus > left_cpus) return DCMI_INVALID_PARAMETER;
    int code = DCMI_INTERNAL;
    pthread_mutex_lock(&lock);
    for (int each = 0; cuts && each < MAX_CUTS && code; each++) {
        if (cuts[each].id) continue;
        struct cut made = {.id = unused_id(), .group = (uint32_t)chip.vdev_count, .logic = chip.logic};
        copy_text(made.template, sizeof made.template, wanted->template_name);
        cuts[each] = made;
        *created = (struct create_vdev_out){.vdev_id = made.id, .vfg_id = made.group};
        code = DCMI_OK;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

EXPORT int dcmi_set_destroy_vdevice(int card, int device, unsigned int vdev_id) {
    struct chip chip;
    BEGIN(dcmi_set_destroy_vdevice, card, device, &chip);
    int code = DCMI_NO_DEVICE;
    pthread_mutex_lock(&lock);
    for (int used = 0; used < now->contained_count; used++)
        if (now->contained[used] == vdev_id) {
            fprintf(stderr, "fake libdcmi: the vNPU %u is destroyed although a container has it\n", vdev_id);
            abort();
        }
    for (int each = 0; cuts && each < MAX_CUTS; each++)
        if (cuts[each].id == vdev_id && cuts[each].logic == chip.logic) cuts[each].id = 0, code = DCMI_OK;
    pthread_mutex_unlock(&lock);
    return code;
}

static int vdev_info(const struct chip *chip, struct vdev_query *query) {
    for (int each = 0; each < chip->vdev_count; each++) {
        if (chip->vdevs[each].id != query->vdev_id) continue;
        copy_text(query->query_info.name, sizeof query->query_info.name, chip->vdevs[each].template);
        query->query_info.is_container_used = chip->vdevs[each].used;
        query->query_info.vfg_id = chip->vdevs[each].group;
        return DCMI_OK;
    }
    return DCMI_NO_DEVICE;
}

EXPORT int dcmi_get_device_info(int card, int device, int main, unsigned int sub, void *info, unsigned int *size) {
    struct chip chip;
    kind = main << 8 | (int)sub;
    BEGIN(dcmi_get_device_info, card, device, &chip);
    add_cuts(&chip);
    if (main == DCMI_CMD_VDEV && sub == DCMI_SUB_VDEV_FREE) {
        int cores, cpus;
        if (*size != sizeof(struct free_resource)) return DCMI_INVALID_PARAMETER;
        struct free_resource *left = info;
        *left = (struct free_resource){.vfg_num = (uint32_t)chip.vdev_count};
        free_parts(&chip, &cores, &cpus);
        left->computing.aic = (float)cores;
        left->computing.device_aicpu = (uint16_t)cpus;
        return DCMI_OK;
    }
    if (main == DCMI_CMD_CHIP && sub == DCMI_SUB_SUPER_POD) {
        if (!chip.in_pod) return DCMI_UNSUPPORTED;
        if (*size != sizeof(struct spod_info)) return DCMI_INVALID_PARAMETER;
        *(struct spod_info *)info =
            (struct spod_info){.sdid = chip.sdid, .super_pod_id = chip.pod, .server_id = chip.server};
        return DCMI_OK;
    }
    if (main == DCMI_CMD_VDEV && sub == DCMI_SUB_VDEV_TOTAL) {
        if (*size != sizeof(struct total_resource)) return DCMI_INVALID_PARAMETER;
        struct total_resource *total = info;
        *total = (struct total_resource){.vdev_num = (uint32_t)chip.vdev_count};
        total->computing.aic = (float)chip.aicores;
        for (int each = 0; each < chip.vdev_count; each++) total->vdev_id[each] = chip.vdevs[each].id;
        return DCMI_OK;
    }
    if (main == DCMI_CMD_VDEV && sub == DCMI_SUB_VDEV_SINGLE) {
        if (*size != sizeof(struct vdev_query)) return DCMI_INVALID_PARAMETER;
        return vdev_info(&chip, info);
    }
    return DCMI_UNSUPPORTED;
}

EXPORT int dcmi_get_affinity_cpu_info_by_device_id(int card, int device, char *cpus, int *size) {
    struct chip chip;
    BEGIN(dcmi_get_affinity_cpu_info_by_device_id, card, device, &chip);
    if (!*chip.affinity) return DCMI_UNSUPPORTED;
    strcpy(cpus, chip.affinity); /* like the real library: *size is output only */
    *size = (int)strlen(cpus);
    return DCMI_OK;
}

EXPORT int dcmi_get_device_pcie_info_v2(int card, int device, struct pcie_info *info) {
    struct chip chip;
    BEGIN(dcmi_get_device_pcie_info_v2, card, device, &chip);
    *info = (struct pcie_info){.venderid = 0x19e5, .deviceid = 0xd802};
    int read = sscanf(chip.bdf, "%x:%x:%x.%x", (unsigned int *)&info->domain, &info->bdf_busid, &info->bdf_deviceid,
                      &info->bdf_funcid);
    return read == 4 ? DCMI_OK : DCMI_UNSUPPORTED;
}

EXPORT int dcmi_get_device_health(int card, int device, unsigned int *health) {
    struct chip chip;
    BEGIN(dcmi_get_device_health, card, device, &chip);
    *health = chip.absent || chip.dropped ? NOT_EXISTING : chip.lost ? FATAL : chip.health;
    if (chip.dropped) return DCMI_NOT_READY;
    if (chip.absent || chip.lost || *health == NOT_EXISTING) return DCMI_OK;
    for (int each = 0; each < chip.code_count; each++)
        if (chip.codes[each].severity > *health) *health = chip.codes[each].severity;
    return *health > FATAL ? DCMI_INVALID_PARAMETER : DCMI_OK;
}

static int error_codes(int card, int device, int *count, unsigned int *codes, unsigned int size) {
    struct chip chip;
    BEGIN(dcmi_get_device_errorcode_v2, card, device, &chip);
    if (chip.dropped || chip.absent) return DCMI_INTERNAL;
    if ((unsigned int)chip.code_count > size) return DCMI_INVALID_PARAMETER;
    for (*count = 0; *count < chip.code_count; ++*count) codes[*count] = chip.codes[*count].id;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_errorcode_v2(int card, int device, int *count, unsigned int *codes, unsigned int size) {
    int code = error_codes(card, device, count, codes, size);
    return code == DCMI_OK || code == DCMI_INVALID_PARAMETER || code == DCMI_UNSUPPORTED ? code : DCMI_INTERNAL;
}

/* ---- resets ---- */

EXPORT int dcmi_get_device_resource_info(int card, int device, struct proc_mem_info *processes, int *count) {
    struct chip chip;
    BEGIN(dcmi_get_device_resource_info, card, device, &chip);
    /* Like the real library: as many as there are, whatever space the caller has. */
    for (*count = 0; *count < chip.process_count; ++*count)
        processes[*count] = (struct proc_mem_info){chip.processes[*count], 1 << 20};
    return DCMI_OK;
}

EXPORT int dcmi_get_device_boot_status(int card, int device, int *status) {
    struct chip chip;
    BEGIN(dcmi_get_device_boot_status, card, device, &chip);
    *status = chip.boot;
    return DCMI_OK;
}

/* With the lock held. */
static bool is_linked_pair(int card, int other) {
    return card == other || (!now->lone_cards && card / 4 != other / 4 && card % 4 == other % 4);
}

EXPORT int dcmi_get_netdev_brother_device(int card, int device, int *brother) {
    struct chip chip;
    BEGIN(dcmi_get_netdev_brother_device, card, device, &chip);
    if (strcmp(chip.name, "Ascend910")) return DCMI_UNSUPPORTED;
    pthread_mutex_lock(&lock);
    *brother = chip.brother != COMPUTED ? chip.brother : now->lone_cards ? -1 : card < 4 ? card + 4 : card - 4;
    pthread_mutex_unlock(&lock);
    return DCMI_OK;
}

/* With the lock held: whether nobody may use the other chip while this one is reset. */
static bool is_linked_with(const struct chip *chip, const struct chip *other) {
    bool single = chip->board == 0x28 || chip->board == 0x29 || chip->board == 0x33 || chip->board == 0x3c;
    if (!strcmp(chip->name, "Ascend910")) return is_linked_pair(chip->card, other->card);
    if (!strncmp(chip->name, "910B", 4)) return !single || chip->logic == other->logic;
    return chip->logic / 4 == other->logic / 4;
}

/* With the lock held. */
static bool is_reset_with(const struct chip *chip, const struct chip *other) {
    return strncmp(chip->name, "910A", 4) ? is_linked_with(chip, other) : chip->logic == other->logic;
}

static void refuse_loudly(const char *why, int logic) {
    fprintf(stderr, "fake libdcmi: the chip with logic id %d, or one that is linked with it, is reset although %s\n", logic, why);
    abort();
}

/* With the lock held: reset the chips that are reset with this one. */
static void reset_group(const struct chip *chip) {
    int64_t down_until_us = clock_us() + 1000 * (int64_t)now->down_ms;
    for (int each = 0; each < now->chip_count; each++) {
        const struct chip *other = &now->chips[each];
        if (!is_linked_with(chip, other) || other->logic >= MAX_CHIPS) continue;
        if (other->process_count) refuse_loudly("a process uses it", other->logic);
        if (other->held) refuse_loudly("a container holds it", other->logic);
        if (!is_reset_with(chip, other)) continue;
        resets[other->logic] = (struct reset){
            .down_until_us = down_until_us,
            .started_us = down_until_us + 1000 * (int64_t)now->boot_ms,
            .codes = now->keep_faults ? 0 : hash_codes(other),
        };
    }
}

EXPORT int dcmi_set_device_reset(int card, int device, int channel) {
    struct chip chip;
    pthread_mutex_lock(&lock);
    if (resetting) refuse_loudly("another reset is under way", -1);
    resetting = true;
    pthread_mutex_unlock(&lock);
    int code = begin(F_dcmi_set_device_reset, card, device, &chip);
    pthread_mutex_lock(&lock);
    resetting = false;
    if (!code && channel != DCMI_INBAND) code = DCMI_NOT_PERMITTED;
    if (!code && !resets) code = DCMI_INTERNAL;
    if (!code) reset_group(&chip);
    pthread_mutex_unlock(&lock);
    return code;
}

/* ---- events ---- */

/* Events in the order in which they are sent, and when each is due. */
static struct {
    struct event event;
    int64_t due_us;
} *outbox;
static int outbox_first, outbox_end, outbox_room;

static void post(int type, int logic, uint32_t code, int severity, int assertion) {
    static int serial;
    serial++;
    if (outbox_end == outbox_room) {
        outbox_room = outbox_room ? 2 * outbox_room : 64;
        outbox = realloc(outbox, (size_t)outbox_room * sizeof *outbox);
    }
    outbox[outbox_end].due_us = clock_us() + 1000 * (int64_t)now->event_delay_ms;
    outbox[outbox_end++].event = (struct event){
        .type = type,
        .dms_event = {.event_id = code,
                      .deviceid = (uint16_t)logic,
                      .severity = (uint8_t)severity,
                      .assertion = (uint8_t)assertion,
                      .event_serial_num = serial,
                      .notify_serial_num = serial,
                      .alarm_raised_time = (uint64_t)time(NULL),
                      .event_name = "a fault",
                      .additional_info = "fake"},
    };
}

static bool has_code(const struct state *state, int logic, uint32_t code) {
    for (int chip = 0; chip < state->chip_count; chip++) {
        if (state->chips[chip].logic != logic) continue;
        for (int each = 0; each < state->chips[chip].code_count; each++)
            if (state->chips[chip].codes[each].id == code) return true;
    }
    return false;
}

/* Post an event for every fault that is in `from` and not in `to`. */
static void post_difference(const struct state *from, const struct state *to, int assertion) {
    for (int each = 0; each < from->chip_count; each++) {
        const struct chip *chip = &from->chips[each];
        for (int code = 0; code < chip->code_count; code++)
            if (!has_code(to, chip->logic, chip->codes[code].id))
                post(DCMI_FAULT_EVENT, chip->logic, chip->codes[code].id, chip->codes[code].severity, assertion);
    }
}

/* With the lock held: fill the outbox with the changes since the last announcement. */
static void collect(void) {
    if (!now->lose_events) {
        post_difference(announced, now, DCMI_RECOVER);
        post_difference(now, announced, DCMI_OCCUR);
    }
    *announced = *now;
    for (int each = 0; each < now->event_count; each++) {
        const struct own_event *event = &now->events[each];
        if (event->serial <= last_serial) continue;
        last_serial = event->serial;
        post(event->type, event->logic, event->code, event->severity, event->assertion);
    }
}

/* Watch the folder of the file, so that an idle library uses no CPU. Return -1 if that is not possible. */
static int watch_folder(void) {
    char path[4096];
    const char *named = getenv("FAKE_DCMI_STATE");
    if (!named) return -1;
    copy_text(path, sizeof path, named);
    int watch = inotify_init1(IN_CLOEXEC);
    if (watch >= 0 && inotify_add_watch(watch, dirname(path), IN_MOVED_TO | IN_CLOSE_WRITE) < 0) {
        close(watch);
        return -1;
    }
    return watch;
}

/* Return when something has changed in the folder, when the next event is due, or after a while. */
static void wait_for_change(int watch) {
    char events[4096];
    struct pollfd changes = {.fd = watch, .events = POLLIN};
    int64_t wait_ms = -1;
    if (outbox_first < outbox_end) {
        wait_ms = (outbox[outbox_first].due_us - clock_us() + 999) / 1000;
        if (wait_ms <= 0) return;
    }
    if (watch < 0) sleep_ms(TICK_MS);
    else if (poll(&changes, 1, (int)wait_ms) > 0 && read(watch, events, sizeof events) <= 0) sleep_ms(TICK_MS);
}

static void *announce(void *unused) {
    unsigned long seen = 0;
    int watch = watch_folder(); /* before the first reading, so that no change is missed */
    for (;;) {
        pthread_mutex_lock(&lock);
        refresh();
        event_handler receiver = handler;
        if (generation != seen) collect();
        seen = generation;
        pthread_mutex_unlock(&lock);
        /* Only this thread uses the outbox; the handler may call the library. */
        for (; outbox_first < outbox_end && outbox[outbox_first].due_us <= clock_us(); outbox_first++)
            receiver(&outbox[outbox_first].event);
        if (outbox_first == outbox_end) outbox_first = outbox_end = 0;
        wait_for_change(watch);
    }
    return unused;
}

EXPORT int dcmi_set_multi_die_policy(int policy) {
    BEGIN(dcmi_set_multi_die_policy, NONE, NONE, NULL);
    if (policy != 0 && policy != 1) return DCMI_INVALID_PARAMETER;
    pthread_mutex_lock(&lock);
    int code = now->chip_count && now->chips[0].board == DCMI_A3_BOARD ? DCMI_OK : DCMI_UNSUPPORTED;
    if (!code) independent = policy;
    pthread_mutex_unlock(&lock);
    return code;
}

EXPORT int dcmi_subscribe_fault_event(int card, int device, struct event_filter filter, event_handler wanted) {
    int refused = begin(F_dcmi_subscribe_fault_event, NONE, NONE, NULL);
    pthread_mutex_lock(&lock);
    bool again = subscription_used;
    /* The driver fails before it makes its thread, or the thread fails; then it is never made again. */
    subscription_used |= !refused || refused == DCMI_UNSUPPORTED || refused == DCMI_OCCUPIED;
    pthread_mutex_unlock(&lock);
    if (again) return DCMI_OCCUPIED;
    if (refused) return refused;
    if (card != -1 || device != -1 || !wanted || filter.filter_flag || filter.event_id || filter.severity)
        return DCMI_INVALID_PARAMETER;
    pthread_mutex_lock(&lock);
    bool first = !handler;
    handler = wanted;
    if (first) {
        announced = malloc(sizeof *announced);
        *announced = *now;
    }
    pthread_mutex_unlock(&lock);
    pthread_t thread;
    if (first && pthread_create(&thread, NULL, announce, NULL) == 0) pthread_detach(thread);
    return DCMI_OK;
}
