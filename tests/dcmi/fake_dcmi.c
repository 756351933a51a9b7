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
 *       affinity= bdf=                      CPUs as 0-23; PCI address as 0000:c1:00.0; if absent, the call fails
 *       health=                             minimum of dcmi_get_device_health, which is that of the worst fault
 *       codes=HEX[:SEVERITY],...            its faults (default severity: 2)
 *       vnpus=ID[:TEMPLATE],...             virtual chips cut out of it
 *       dropped=1                           health and error codes return -8012
 *   fail FUNCTION CARD DEVICE CODE          the function returns CODE; FUNCTION, CARD, DEVICE may be *
 *   delay FUNCTION CARD DEVICE MS           the function takes MS longer; removing the line ends a pending delay
 *   serialise                               a call waits until those before it have ended, as in some drivers
 *   lose_events                             faults occur and clear without an event
 *   event SERIAL LOGIC HEX ASSERTION SEVERITY [TYPE]    an extra event, sent once, in ascending order of SERIAL
 *   count FILE                              count calls in FILE: records of a name (56 bytes) and a number (8 bytes)
 *
 * FUNCTION is a complete name. A function without card matches only *; dcmi_get_device_num_in_card has a card and no
 * device, dcmi_get_device_phyid_from_logicid has those of the chip with the logic id.
 *
 * Events are sent by a thread of the library within 20 ms. Faults from before the first subscription are no events.
 * A refused subscription is `fail dcmi_subscribe_fault_event * * -8255`.
 */
#define _GNU_SOURCE
#include "dcmi_abi.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <libgen.h>
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
#define MAX_RULES 128
#define MAX_EVENTS 256
#define ANY (-1)
#define NONE (-2)
#define TICK_MS 5

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
    X(dcmi_subscribe_fault_event)

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
};

struct chip {
    int card, device, logic, phy;
    char name[32], npu_name[32];
    uint32_t board, aicores, health;
    uint64_t hbm;
    char ip[64], affinity[64], bdf[32];
    bool in_pod, dropped;
    uint32_t sdid, pod, server;
    struct code codes[MAX_CODES];
    int code_count;
    struct vdev vdevs[DCMI_MAX_VDEV];
    int vdev_count;
};

struct rule {
    int function, card, device, value;
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
    bool serialise, lose_events;
    struct own_event events[MAX_EVENTS];
    int event_count;
};

struct counter {
    char name[56];
    uint64_t calls;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all variables below */
static struct state *now;
static unsigned long generation; /* how often `now` was replaced */
static struct stat read_from;
static struct counter *counters;
static event_handler handler;
static struct state *announced; /* the state as announced to the handler */
static long last_serial;

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
    else if (!strcmp(key, "ip")) copy_text(chip->ip, sizeof chip->ip, value);
    else if (!strcmp(key, "sdid")) chip->sdid = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "pod")) chip->in_pod = true, chip->pod = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "server")) chip->server = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "affinity")) copy_text(chip->affinity, sizeof chip->affinity, value);
    else if (!strcmp(key, "bdf")) copy_text(chip->bdf, sizeof chip->bdf, value);
    else if (!strcmp(key, "health")) chip->health = (uint32_t)strtoul(value, NULL, 0);
    else if (!strcmp(key, "dropped")) chip->dropped = atoi(value) != 0;
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
            if (*template == ':') copy_text(vdev->template, sizeof vdev->template, template + 1);
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
    int value = 0;
    if (*count == MAX_RULES || sscanf(words, "%63s %15s %15s %d", function, card, device, &value) != 4) return false;
    struct rule rule = {
        .function = strcmp(function, "*") ? function_named(function) : ANY,
        .card = strcmp(card, "*") ? atoi(card) : ANY,
        .device = strcmp(device, "*") ? atoi(device) : ANY,
        .value = value,
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
    if (!strcmp(word, "event")) return read_event(state, words);
    return false;
}

static struct state *read_state(FILE *file, const char *path) {
    struct state *state = calloc(1, sizeof *state);
    char *line = NULL;
    size_t room = 0;
    for (int number = 1; state && getline(&line, &room, file) >= 0; number++) {
        if (!read_line(state, line)) fprintf(stderr, "fake libdcmi: %s line %d makes no sense\n", path, number);
    }
    free(line);
    return state;
}

static void map_counters(const char *path) {
    if (counters || !*path) return;
    size_t size = FUNCTION_COUNT * sizeof *counters;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return;
    if (ftruncate(file, (off_t)size) == 0) {
        void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) {
            counters = mapped;
            for (int each = 0; each < FUNCTION_COUNT; each++)
                copy_text(counters[each].name, sizeof counters[each].name, FUNCTION_NAMES[each]);
        }
    }
    close(file);
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
    free(now);
    now = state;
    generation++;
    map_counters(now->count_file);
}

/* ---- a call ---- */

static void sleep_ms(long ms) {
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static int64_t clock_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

static int ruled(const struct rule *rules, int count, int function, int card, int device) {
    for (int each = 0; each < count; each++) {
        const struct rule *rule = &rules[each];
        if ((rule->function == ANY || rule->function == function) && (rule->card == ANY || rule->card == card) &&
            (rule->device == ANY || rule->device == device))
            return rule->value;
    }
    return 0;
}

static const struct chip *chip_at(int card, int device) {
    for (int each = 0; each < now->chip_count; each++)
        if (now->chips[each].card == card && now->chips[each].device == device) return &now->chips[each];
    return NULL;
}

static const struct chip *chip_of_logic(int logic) {
    for (int each = 0; each < now->chip_count; each++)
        if (now->chips[each].logic == logic) return &now->chips[each];
    return NULL;
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

/* Take the lock and begin a call; `chip`, if not NULL, gets a copy of the chip. Releases the lock before returning. */
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
    wait_out(function, card, device);
    int code = ruled(now->fails, now->fail_count, function, card, device);
    if (chip) {
        const struct chip *found = chip_at(card, device);
        if (found) *chip = *found;
        else if (!code) code = DCMI_NO_DEVICE;
    }
    pthread_mutex_unlock(&lock);
    if (serialise) pthread_mutex_unlock(&one_by_one);
    return code;
}

#define BEGIN(name, card, device, chip)                                                                                \
    do {                                                                                                               \
        int code_ = begin(F_##name, card, device, chip);                                                               \
        if (code_) return code_;                                                                                       \
    } while (0)

EXPORT int dcmi_init(void) {
    BEGIN(dcmi_init, NONE, NONE, NULL);
    return DCMI_OK;
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
    *count = 0;
    for (int each = 0; each < now->chip_count; each++) {
        bool listed = false;
        for (int other = 0; other < *count; other++) listed |= cards[other] == now->chips[each].card;
        if (!listed && *count < size) cards[(*count)++] = now->chips[each].card;
    }
    pthread_mutex_unlock(&lock);
    return DCMI_OK;
}

EXPORT int dcmi_get_device_num_in_card(int card, int *count) {
    BEGIN(dcmi_get_device_num_in_card, card, NONE, NULL);
    pthread_mutex_lock(&lock);
    *count = 0;
    for (int each = 0; each < now->chip_count; each++) *count += now->chips[each].card == card;
    pthread_mutex_unlock(&lock);
    return DCMI_OK;
}

EXPORT int dcmi_get_device_logic_id(int *logic, int card, int device) {
    struct chip chip;
    BEGIN(dcmi_get_device_logic_id, card, device, &chip);
    *logic = chip.logic;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_phyid_from_logicid(unsigned int logic, unsigned int *phy) {
    struct chip chip;
    int card = NONE, device = NONE;
    pthread_mutex_lock(&lock);
    const struct chip *found = now ? chip_of_logic((int)logic) : NULL;
    if (found) card = found->card, device = found->device;
    pthread_mutex_unlock(&lock);
    BEGIN(dcmi_get_device_phyid_from_logicid, card, device, &chip);
    *phy = (unsigned int)chip.phy;
    return DCMI_OK;
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
    *info = (struct hbm_info){.memory_size = chip.hbm, .freq = 1600, .temp = 40};
    return DCMI_OK;
}

EXPORT int dcmi_get_device_ip(int card, int device, int port_type, int port, struct ip_addr *ip, struct ip_addr *mask) {
    struct chip chip;
    BEGIN(dcmi_get_device_ip, card, device, &chip);
    if (port_type != DCMI_ROCE_PORT || port != 0) return DCMI_INVALID_PARAMETER;
    bool wants_v6 = ip->ip_type == DCMI_IP_V6, is_v6 = strchr(chip.ip, ':') != NULL;
    if (!*chip.ip || wants_v6 != is_v6) return DCMI_INTERNAL;
    memset(mask->u_addr.ip6, 0xff, is_v6 ? 8 : 3);
    return inet_pton(is_v6 ? AF_INET6 : AF_INET, chip.ip, ip->u_addr.ip6) == 1 ? DCMI_OK : DCMI_INTERNAL;
}

static int vdev_info(const struct chip *chip, struct vdev_query *query) {
    for (int each = 0; each < chip->vdev_count; each++) {
        if (chip->vdevs[each].id != query->vdev_id) continue;
        copy_text(query->query_info.name, sizeof query->query_info.name, chip->vdevs[each].template);
        return DCMI_OK;
    }
    return DCMI_NO_DEVICE;
}

EXPORT int dcmi_get_device_info(int card, int device, int main, unsigned int sub, void *info, unsigned int *size) {
    struct chip chip;
    BEGIN(dcmi_get_device_info, card, device, &chip);
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
    if (chip.dropped) return DCMI_NOT_READY;
    *health = chip.health;
    for (int each = 0; each < chip.code_count; each++)
        if (chip.codes[each].severity > *health) *health = chip.codes[each].severity;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_errorcode_v2(int card, int device, int *count, unsigned int *codes, unsigned int size) {
    struct chip chip;
    BEGIN(dcmi_get_device_errorcode_v2, card, device, &chip);
    if (chip.dropped) return DCMI_NOT_READY;
    *count = 0;
    for (int each = 0; each < chip.code_count && (unsigned int)each < size; each++)
        codes[(*count)++] = chip.codes[each].id;
    return DCMI_OK;
}

/* ---- events ---- */

/* Space for every fault of every chip to occur and clear at once. */
static struct event outbox[MAX_EVENTS + 2 * MAX_CHIPS * MAX_CODES];
static int outbox_count;

static void post(int type, int logic, uint32_t code, int severity, int assertion) {
    static int serial;
    serial++;
    outbox[outbox_count++] = (struct event){
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
    outbox_count = 0;
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

/* Return when something has changed in the folder, or after a while. */
static void wait_for_change(int watch) {
    char events[4096];
    if (watch < 0 || read(watch, events, sizeof events) <= 0) sleep_ms(TICK_MS);
}

static void *announce(void *unused) {
    unsigned long seen = 0;
    int watch = watch_folder(); /* before the first reading, so that no change is missed */
    for (;;) {
        pthread_mutex_lock(&lock);
        refresh();
        event_handler receiver = handler;
        outbox_count = 0;
        if (generation != seen) collect();
        seen = generation;
        pthread_mutex_unlock(&lock);
        /* Only this thread uses the outbox; the handler may call the library. */
        for (int each = 0; each < outbox_count; each++) receiver(&outbox[each]);
        wait_for_change(watch);
    }
    return unused;
}

EXPORT int dcmi_subscribe_fault_event(int card, int device, struct event_filter filter, event_handler wanted) {
    BEGIN(dcmi_subscribe_fault_event, NONE, NONE, NULL);
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
