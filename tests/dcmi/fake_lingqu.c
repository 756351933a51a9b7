/* A library of switches with the interface of liblingqu-dcmi.so (docs/spec/dcmi.md#switches).
 *
 * The test controls it by the functions fake_*, in the same process. Events are delivered by a thread of the library.
 * Nothing orders an event and the list that contains it: either can be late. Calls from more than one thread at a time
 * are counted as misuse, because the maker does not say that the library allows them. */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct event {
    int event_type;
    unsigned int sub_type;
    unsigned short peer_device, peer_id, chip, port;
    unsigned char severity, assertion;
    char reserved[6];
    unsigned int serial, notify_serial;
    unsigned long raised;
    unsigned char parameters[40];
    char information[32];
};

struct filter {
    unsigned int flag;
    int event_type;
    unsigned int event_id;
    unsigned char severity;
    unsigned int chip;
};

typedef void (*handler)(struct event *event);

#define MOST 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct event faults[MOST];
static unsigned int count, claimed;
static handler subscriber;
static int init_code, read_code, subscribe_code, initialised;
static atomic_int busy, misuse, reads, blocked;

static void enter(void)
{
    if (atomic_fetch_add(&busy, 1))
        atomic_fetch_add(&misuse, 1);
}

static int leave(int code)
{
    while (atomic_load(&blocked))
        usleep(1000);
    atomic_fetch_sub(&busy, 1);
    return code;
}

int lq_dcmi_init(void)
{
    enter();
    initialised = init_code == 0;
    return leave(init_code);
}

int lq_dcmi_subscribe_fault_event(struct filter filter, handler receive)
{
    enter();
    if (filter.flag || filter.event_type || filter.event_id || filter.severity || filter.chip)
        atomic_fetch_add(&misuse, 1);
    if (!initialised)
        return leave(-1);
    if (!subscribe_code)
        subscriber = receive;
    return leave(subscribe_code);
}

int lq_dcmi_get_fault_info(unsigned int length, unsigned int *found, struct event *list)
{
    enter();
    atomic_fetch_add(&reads, 1);
    if (!initialised)
        return leave(-1);
    if (read_code)
        return leave(read_code);
    pthread_mutex_lock(&lock);
    memcpy(list, faults, sizeof(*list) * (count < length ? count : length));
    *found = claimed ? claimed : count;
    pthread_mutex_unlock(&lock);
    return leave(0);
}

static int same(const struct event *a, const struct event *b)
{
    return a->event_type == b->event_type && a->sub_type == b->sub_type && a->peer_device == b->peer_device &&
           a->peer_id == b->peer_id && a->chip == b->chip && a->port == b->port;
}

/* Put a fault into the list, or remove it if it is one that has recovered. */
void fake_list(const struct event *event)
{
    pthread_mutex_lock(&lock);
    unsigned int kept = 0;
    for (unsigned int i = 0; i < count; i++)
        if (!same(&faults[i], event))
            faults[kept++] = faults[i];
    if (event->assertion && kept < MOST)
        faults[kept++] = *event;
    count = kept;
    pthread_mutex_unlock(&lock);
}

static void *deliver(void *argument)
{
    if (subscriber)
        subscriber(argument);
    free(argument);
    return NULL;
}

/* Announce a fault by a thread of the library; returns once the subscriber has it. */
void fake_announce(const struct event *event)
{
    struct event *copy = malloc(sizeof(*copy));
    *copy = *event;
    pthread_t thread;
    if (!pthread_create(&thread, NULL, deliver, copy))
        pthread_join(thread, NULL);
}

void fake_codes(int init, int subscribe, int read)
{
    init_code = init;
    subscribe_code = subscribe;
    read_code = read;
}

void fake_claim(unsigned int number)
{
    claimed = number;
}

void fake_block(int on)
{
    atomic_store(&blocked, on);
}

int fake_reads(void)
{
    return atomic_load(&reads);
}

int fake_misuse(void)
{
    return atomic_load(&misuse);
}
