/* A closed-loop gRPC load generator: unary calls and server streams over HTTP/2, every message compared byte for byte,
 * every status read.
 *
 * One thread, epoll, IPv4 loopback, no libraries. Each stream of each connection sends one call, reads the whole
 * answer, makes the next. On the wire it looks like a gRPC client with one channel per connection: the headers of the
 * first call are put into the dynamic table, later ones refer to it; calls that are begun in one turn leave together.
 * When the time is up, the calls under way are waited for and checked, but not counted: what a server has still to do
 * for one run would otherwise slow down the next.
 *
 * Prints one line of JSON: times in microseconds; `not_ok` counts calls that ended with another status than OK, `bad`
 * those that ended OK with other messages than expected, `errors` reset streams, answers without a status, calls lost
 * with their connection and calls still unanswered 10 s after the end; `late` those that were answered until then.
 * The first failure is told on stderr.
 *
 * usage: grpcgen [options] PORT /package.Service/Method
 *   -c N  connections (1)        -s N  streams at a time on each (1)
 *   -d S  seconds (5)            -n N  stop after N answers (0: by time alone)
 *   -b F  the request's message, from a file (empty), up to 16,379 bytes
 *   -e F  the messages of the answer, each with its 5 bytes of prefix, as they must come
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "hpack.h"
#include "measure.h"

enum { STREAMS_MAX = 1024, WINDOW = 1 << 24, DEFAULT_WINDOW = 65535, FRAME_HEAD = 9, FRAME_MAX = 16384, PREFIX = 5 };
enum { RECEIVE_SIZE = 262144, CALL_MAX = 1024 + FRAME_HEAD + FRAME_MAX, BLOCK_MAX = 65536, TURN_EVENTS = 128 };
enum kind { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION };
enum { PATIENCE_US = 10000000 };
enum { ACK = 1, END_STREAM = 1, END_HEADERS = 4, PADDED = 8, WITH_PRIORITY = 32 };
enum { HEADER_TABLE_SIZE = 1, ENABLE_PUSH = 2, MAX_CONCURRENT_STREAMS = 3, INITIAL_WINDOW_SIZE = 4 };

struct stream {
    bool busy;
    bool differs;       /* the messages are not the expected ones */
    int http, status;   /* of HTTP and of gRPC; -1: not told yet */
    uint64_t body;      /* bytes of messages, with prefixes */
    uint64_t messages;
    uint8_t prefix[PREFIX];
    unsigned prefix_used;
    uint32_t remaining; /* bytes of the message still to come */
    uint32_t unacknowledged;
    int64_t began, first_message;
    char text[128];     /* grpc-message */
};

struct connection {
    int fd;
    bool writing;       /* EPOLLOUT is registered */
    bool ready;         /* the server has sent its settings */
    bool known;         /* the first call has put its headers into the server's table */
    bool closing;       /* the server said GOAWAY */
    int busy;
    uint32_t next_id;
    uint32_t *ids;      /* of the streams, beside them: they are searched for each frame */
    struct stream *streams;
    int64_t window, stream_window; /* bytes that the server takes */
    uint32_t unacknowledged;
    struct hpack table;
    uint32_t block_id;  /* of the header block that is being put together; 0: none */
    uint8_t block_flags;
    uint8_t *block;
    size_t block_used;
    uint8_t *in, *out;
    size_t in_used, out_used, out_sent, out_size;
};

static struct {
    int connections, streams;
    double seconds;
    uint64_t limit;
} options = {1, 1, 5.0, 0};

static bool over; /* the time is up */
static struct histogram latency, first_message;
static uint64_t answers, late, not_ok, bad, errors, messages_seen, bytes_seen;
static uint8_t first_call[CALL_MAX], next_call[CALL_MAX];
static size_t first_call_size, next_call_size, first_call_data, next_call_data; /* _data: where the DATA frame begins */
static size_t request_size; /* with its prefix */
static char *expected;
static size_t expected_size;
static int poller;

static uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void put32(uint8_t *p, uint32_t value) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(value >> (24 - 8 * i));
}

static size_t put_frame(uint8_t *to, enum kind kind, uint8_t flags, uint32_t id, const void *payload, size_t size) {
    put32(to, (uint32_t)size << 8 | (uint32_t)kind);
    to[4] = flags;
    put32(to + 5, id);
    if (size) memcpy(to + FRAME_HEAD, payload, size);
    return FRAME_HEAD + size;
}

static void watch(struct connection *c, int operation, bool writing) {
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, operation, c->fd, &event) < 0) die("epoll_ctl");
    c->writing = writing;
}

static void refuse(const char *why) {
    fprintf(stderr, "grpcgen: %s\n", why);
    exit(1);
}

static void tell(const char *what, int number, const char *text) {
    static bool told;
    if (!told) fprintf(stderr, "grpcgen: first failure: %s %d %s\n", what, number, text);
    told = true;
}

/* -- what is sent ------------------------------------------------------------------------------------------------ */

/* Room for `size` bytes at the end of what waits to be sent. */
static uint8_t *room(struct connection *c, size_t size) {
    if (c->out_used + size > c->out_size) {
        c->out_size = 2 * (c->out_used + size);
        c->out = realloc(c->out, c->out_size);
        if (!c->out) die("realloc");
    }
    uint8_t *place = c->out + c->out_used;
    c->out_used += size;
    return place;
}

static void queue_frame(struct connection *c, enum kind kind, uint8_t flags, uint32_t id, const void *payload,
                        size_t size) {
    put_frame(room(c, FRAME_HEAD + size), kind, flags, id, payload, size);
}

static void queue_window_update(struct connection *c, uint32_t id, uint32_t increment) {
    uint8_t payload[4];
    put32(payload, increment);
    queue_frame(c, WINDOW_UPDATE, 0, id, payload, sizeof payload);
}

/* False when the connection broke. */
static bool flush(struct connection *c) {
    while (c->out_sent < c->out_used) {
        ssize_t n = send(c->fd, c->out + c->out_sent, c->out_used - c->out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            if (!c->writing) watch(c, EPOLL_CTL_MOD, true);
            return true;
        }
        if (n < 0) return false;
        c->out_sent += (size_t)n;
    }
    c->out_sent = c->out_used = 0;
    if (c->writing) watch(c, EPOLL_CTL_MOD, false);
    return true;
}

/* Makes a call on a stream that has none; it stays idle when the server takes no more now. */
static void begin(struct connection *c, int place) {
    struct stream *s = &c->streams[place];
    if (over || !c->ready || c->closing || c->window < (int64_t)request_size) return;
    if (c->stream_window < (int64_t)request_size) refuse("the server's window is smaller than the request");
    size_t size = c->known ? next_call_size : first_call_size, data = c->known ? next_call_data : first_call_data;
    uint8_t *call = room(c, size);
    memcpy(call, c->known ? next_call : first_call, size);
    put32(call + 5, c->next_id);
    put32(call + data + 5, c->next_id);
    c->known = true;
    c->window -= (int64_t)request_size;
    c->ids[place] = c->next_id;
    c->next_id += 2;
    c->busy++;
    *s = (struct stream){.busy = true, .http = -1, .status = -1, .began = now_us()};
}

static void begin_all(struct connection *c) {
    for (int i = 0; i < options.streams; i++)
        if (!c->streams[i].busy) begin(c, i);
}

static void reconnect(struct connection *c) {
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    uint8_t settings[] = {0, ENABLE_PUSH, 0, 0, 0, 0, 0, INITIAL_WINDOW_SIZE, 0, 0, 0, 0};
    put32(settings + 8, WINDOW);
    if (c->fd >= 0) close(c->fd);
    errors += (uint64_t)c->busy;
    for (int i = 0; i < options.streams; i++) c->streams[i].busy = false;
    c->ready = c->known = c->closing = false;
    c->busy = 0;
    c->next_id = 1;
    c->window = c->stream_window = DEFAULT_WINDOW;
    c->unacknowledged = c->block_id = 0;
    c->in_used = c->out_used = c->out_sent = c->block_used = 0;
    hpack_reset(&c->table);
    c->fd = connected();
    watch(c, EPOLL_CTL_ADD, false);
    memcpy(room(c, sizeof preface - 1), preface, sizeof preface - 1);
    queue_frame(c, SETTINGS, 0, 0, settings, sizeof settings);
    queue_window_update(c, 0, WINDOW - DEFAULT_WINDOW);
    if (!flush(c)) die("send");
}

/* -- what comes back --------------------------------------------------------------------------------------------- */

static void end_call(struct connection *c, struct stream *s) {
    s->busy = false;
    c->busy--;
    if (!c->closing) begin(c, (int)(s - c->streams));
}

static void fail_call(struct connection *c, struct stream *s, const char *what, int number) {
    errors++;
    tell(what, number, s->text);
    end_call(c, s);
}

/* The server has ended the stream. */
static void finish(struct connection *c, struct stream *s, int64_t now) {
    if (s->http == 200 && s->status < 0) {
        fail_call(c, s, "an answer without a status", 0);
        return;
    }
    *(over ? &late : &answers) += 1;
    if (s->http != 200 || s->status != 0) {
        not_ok++;
        tell(s->http != 200 ? "HTTP status" : "status", s->http != 200 ? s->http : s->status, s->text);
    } else {
        if (s->differs || s->remaining || s->prefix_used || (expected && s->body != expected_size)) {
            bad++;
            tell("other messages than expected:", (int)s->messages, "");
        }
        if (!over) record(&latency, now - s->began);
        if (!over && s->first_message) record(&first_message, s->first_message - s->began);
    }
    end_call(c, s);
}

static struct stream *find(struct connection *c, uint32_t id) {
    for (int i = 0; i < options.streams; i++)
        if (c->ids[i] == id) return c->streams[i].busy ? &c->streams[i] : NULL;
    return NULL;
}

static void take_message_bytes(struct stream *s, const uint8_t *data, size_t size, int64_t now) {
    if (expected && !s->differs)
        s->differs = s->body + size > expected_size || memcmp(expected + s->body, data, size) != 0;
    s->body += size;
    if (!over) bytes_seen += size;
    while (size) {
        if (s->prefix_used < PREFIX) {
            s->prefix[s->prefix_used++] = *data++;
            size--;
            if (s->prefix_used < PREFIX) continue;
            s->remaining = get32(s->prefix + 1);
        }
        size_t n = size < s->remaining ? size : s->remaining;
        s->remaining -= (uint32_t)n;
        data += n;
        size -= n;
        if (s->remaining) return;
        s->prefix_used = 0;
        s->messages++;
        if (!over) messages_seen++;
        if (!s->first_message) s->first_message = now;
    }
}

static void on_field(void *to, const char *name, const char *value) {
    struct stream *s = to;
    if (!s) return;
    if (strcmp(name, ":status") == 0) s->http = atoi(value);
    if (strcmp(name, "grpc-status") == 0) s->status = atoi(value);
    if (strcmp(name, "grpc-message") == 0) snprintf(s->text, sizeof s->text, "%s", value);
}

static bool on_block(struct connection *c, uint32_t id, uint8_t flags, const uint8_t *block, size_t size, int64_t now) {
    struct stream *s = find(c, id);
    if (!hpack_read(&c->table, block, size, on_field, s)) return false;
    if (s && flags & END_STREAM) finish(c, s, now);
    return true;
}

static bool on_headers(struct connection *c, uint32_t id, uint8_t flags, const uint8_t *data, size_t size,
                       int64_t now) {
    if (flags & END_HEADERS) return on_block(c, id, flags, data, size, now);
    if (c->block_used + size > BLOCK_MAX) return false;
    memcpy(c->block + c->block_used, data, size);
    c->block_used += size;
    c->block_id = id;
    c->block_flags = flags;
    return true;
}

static bool on_continuation(struct connection *c, uint32_t id, uint8_t flags, const uint8_t *data, size_t size,
                            int64_t now) {
    if (id == 0 || id != c->block_id || !on_headers(c, id, c->block_flags, data, size, now)) return false;
    if (!(flags & END_HEADERS)) return true;
    size = c->block_used;
    c->block_used = c->block_id = 0;
    return on_block(c, id, c->block_flags, c->block, size, now);
}

/* `counted`: bytes that flow control counts, padding among them. */
static void on_data(struct connection *c, uint32_t id, uint8_t flags, const uint8_t *data, size_t size, size_t counted,
                    int64_t now) {
    struct stream *s = find(c, id);
    c->unacknowledged += (uint32_t)counted;
    if (c->unacknowledged >= WINDOW / 2) {
        queue_window_update(c, 0, c->unacknowledged);
        c->unacknowledged = 0;
    }
    if (!s) return;
    take_message_bytes(s, data, size, now);
    s->unacknowledged += (uint32_t)counted;
    if (flags & END_STREAM) {
        finish(c, s, now);
    } else if (s->unacknowledged >= WINDOW / 2) {
        queue_window_update(c, id, s->unacknowledged);
        s->unacknowledged = 0;
    }
}

static bool on_settings(struct connection *c, uint8_t flags, const uint8_t *data, size_t size) {
    if (flags & ACK) return true;
    for (size_t at = 0; at + 6 <= size; at += 6) {
        int name = data[at] << 8 | data[at + 1];
        uint32_t value = get32(data + at + 2);
        if (name == MAX_CONCURRENT_STREAMS && value < (uint32_t)options.streams) refuse("too many streams");
        if (name == HEADER_TABLE_SIZE && value < HPACK_SIZE) refuse("the server remembers fewer headers");
        if (name == INITIAL_WINDOW_SIZE) c->stream_window = value;
    }
    queue_frame(c, SETTINGS, ACK, 0, NULL, 0);
    c->ready = true;
    return true;
}

static bool without_padding(uint8_t flags, const uint8_t **data, size_t *size) {
    if (flags & PADDED) {
        if (*size < 1 || *size < 1u + **data) return false;
        *size -= 1u + **data;
        *data += 1;
    }
    return true;
}

/* Handles one frame; false when it breaks the protocol. */
static bool on_frame(struct connection *c, const uint8_t *frame, size_t size, int64_t now) {
    const uint8_t *data = frame + FRAME_HEAD;
    uint8_t flags = frame[4];
    uint32_t id = get32(frame + 5) & 0x7FFFFFFF;
    size_t counted = size;
    struct stream *s;
    if (c->block_id && frame[3] != CONTINUATION) return false;
    switch (frame[3]) {
    case DATA:
        if (!without_padding(flags, &data, &size)) return false;
        on_data(c, id, flags, data, size, counted, now);
        return true;
    case HEADERS:
        if (!without_padding(flags, &data, &size) || (flags & WITH_PRIORITY && size < 5)) return false;
        if (flags & WITH_PRIORITY) data += 5, size -= 5;
        return on_headers(c, id, flags, data, size, now);
    case CONTINUATION: return on_continuation(c, id, flags, data, size, now);
    case RST_STREAM:
        s = find(c, id);
        if (s) fail_call(c, s, "RST_STREAM", (int)get32(data));
        return size == 4;
    case SETTINGS: return on_settings(c, flags, data, size);
    case PING:
        if (!(flags & ACK)) queue_frame(c, PING, ACK, 0, data, size);
        return size == 8;
    case WINDOW_UPDATE:
        if (id == 0) c->window += get32(data) & 0x7FFFFFFF;
        return size == 4;
    case GOAWAY:
        c->closing = true;
        return true;
    default: return true;
    }
}

/* False when the connection is of no use any more. */
static bool on_readable(struct connection *c) {
    ssize_t got = recv(c->fd, c->in + c->in_used, RECEIVE_SIZE - c->in_used, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) {
        if (c->busy) tell("connection closed, calls under way:", c->busy, "");
        return false;
    }
    int64_t now = now_us();
    size_t at = 0;
    c->in_used += (size_t)got;
    while (c->in_used - at >= FRAME_HEAD) {
        size_t size = get32(c->in + at) >> 8;
        if (c->in_used - at < FRAME_HEAD + size && size <= FRAME_MAX) break;
        if (size > FRAME_MAX || !on_frame(c, c->in + at, size, now)) {
            errors++;
            tell("frame that breaks the protocol, of kind", c->in[at + 3], "");
            return false;
        }
        at += FRAME_HEAD + size;
    }
    c->in_used -= at;
    memmove(c->in, c->in + at, c->in_used);
    begin_all(c);
    return !(c->closing && c->busy == 0);
}

/* -- the call ---------------------------------------------------------------------------------------------------- */

static size_t put_text(uint8_t *to, const char *text) {
    size_t size = strlen(text);
    if (size > 126) refuse("path too long");
    to[0] = (uint8_t)size;
    memcpy(to + 1, text, size);
    return 1 + size;
}

/* A literal with incremental indexing; `name` is one of the static table where `text` has none. */
static size_t put_literal(uint8_t *to, uint8_t name, const char *text, const char *value) {
    size_t used = 1;
    to[0] = 0x40 | name;
    if (!name) used += put_text(to + used, text);
    return used + put_text(to + used, value);
}

static size_t put_call(uint8_t *to, const uint8_t *block, size_t block_size, const char *message, size_t size,
                       size_t *data) {
    uint8_t framed[FRAME_MAX] = {0};
    put32(framed + 1, (uint32_t)size);
    if (size) memcpy(framed + PREFIX, message, size);
    *data = put_frame(to, HEADERS, END_HEADERS, 0, block, block_size);
    return *data + put_frame(to + *data, DATA, END_STREAM, 0, framed, PREFIX + size);
}

static void build_calls(int port, const char *path, const char *message, size_t size) {
    /* :method POST and :scheme http are in the static table; the other six are entries 67 down to 62 afterwards. */
    static const uint8_t later[] = {0x83, 0x86, 0x80 | 67, 0x80 | 66, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62};
    uint8_t block[1024] = {0x83, 0x86};
    char authority[32];
    size_t used = 2;
    snprintf(authority, sizeof authority, "127.0.0.1:%d", port);
    if (size > FRAME_MAX - PREFIX) refuse("request too long");
    used += put_literal(block + used, 4, NULL, path);
    used += put_literal(block + used, 1, NULL, authority);
    used += put_literal(block + used, 0, "te", "trailers");
    used += put_literal(block + used, 31, NULL, "application/grpc");
    used += put_literal(block + used, 58, NULL, "grpcgen");
    used += put_literal(block + used, 0, "grpc-accept-encoding", "identity, deflate, gzip");
    first_call_size = put_call(first_call, block, used, message, size, &first_call_data);
    next_call_size = put_call(next_call, later, sizeof later, message, size, &next_call_data);
    request_size = PREFIX + size;
}

static void parse(int argc, char **argv) {
    char *message = NULL;
    size_t size = 0;
    for (int o; (o = getopt(argc, argv, "c:s:d:n:b:e:")) != -1;) switch (o) {
        case 'c': options.connections = atoi(optarg); break;
        case 's': options.streams = atoi(optarg); break;
        case 'd': options.seconds = atof(optarg); break;
        case 'n': options.limit = strtoull(optarg, NULL, 10); break;
        case 'b': message = read_file(optarg, &size); break;
        case 'e': expected = read_file(optarg, &expected_size); break;
        default: exit(2);
        }
    if (argc - optind != 2 || options.connections < 1 || options.connections > CONNECTIONS_MAX || options.streams < 1 ||
        options.streams > STREAMS_MAX) {
        fprintf(stderr, "usage: grpcgen [-c N] [-s N] [-d S] [-n N] [-b FILE] [-e FILE] PORT PATH\n");
        exit(2);
    }
    set_address(atoi(argv[optind]));
    build_calls(atoi(argv[optind]), argv[optind + 1], message, size);
}

static void report(double seconds) {
    printf("{\"requests\": %lu, \"seconds\": %.6f, \"not_ok\": %lu, \"bad\": %lu, \"errors\": %lu, \"late\": %lu, ",
           answers, seconds, not_ok, bad, errors, late);
    printf("\"mean_us\": %.1f, \"p50_us\": %ld, \"p90_us\": %ld, \"p99_us\": %ld, \"max_us\": %ld, ", mean(&latency),
           percentile(&latency, 0.50), percentile(&latency, 0.90), percentile(&latency, 0.99), latency.max);
    printf("\"messages\": %lu, \"bytes\": %lu, \"first_message_p50_us\": %ld, \"first_message_p99_us\": %ld}\n",
           messages_seen, bytes_seen, percentile(&first_message, 0.50), percentile(&first_message, 0.99));
}

static struct connection *connect_all(void) {
    struct connection *all = calloc((size_t)options.connections, sizeof *all);
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (!all || poller < 0) die("setup");
    for (int i = 0; i < options.connections; i++) {
        struct connection *c = &all[i];
        c->fd = -1;
        c->ids = calloc((size_t)options.streams, sizeof *c->ids);
        c->streams = calloc((size_t)options.streams, sizeof *c->streams);
        c->in = malloc(RECEIVE_SIZE);
        c->block = malloc(BLOCK_MAX);
        if (!c->ids || !c->streams || !c->in || !c->block) die("malloc");
        reconnect(c);
    }
    return all;
}

static void turn(int64_t milliseconds) {
    struct epoll_event ready[TURN_EVENTS];
    int n = epoll_wait(poller, ready, TURN_EVENTS, (int)milliseconds);
    if (n < 0 && errno != EINTR) die("epoll_wait");
    for (int i = 0; i < n; i++) {
        struct connection *c = ready[i].data.ptr;
        bool ok = !(ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) || on_readable(c);
        if (!ok || !flush(c)) reconnect(c);
    }
}

/* Calls under way on all connections. */
static uint64_t under_way(const struct connection *all) {
    uint64_t count = 0;
    for (int i = 0; i < options.connections; i++) count += (uint64_t)all[i].busy;
    return count;
}

int main(int argc, char **argv) {
    hpack_setup();
    parse(argc, argv);
    struct connection *all = connect_all();
    int64_t start = now_us(), deadline = start + (int64_t)(options.seconds * 1e6), now = start;
    while (now < deadline && (options.limit == 0 || answers < options.limit)) {
        turn((deadline - now) / 1000 + 1);
        now = now_us();
    }
    over = true;
    while (under_way(all) && now_us() - now < PATIENCE_US) turn(100);
    errors += under_way(all);
    report((double)(now - start) / 1e6);
    return 0;
}
