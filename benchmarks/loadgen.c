/* A closed-loop HTTP/1.1 load generator for what wrk cannot tell: latencies to the microsecond, bodies compared byte
 * for byte, and chunked streams with every chunk counted as the server framed it.
 *
 * One thread, epoll, keep-alive, IPv4 loopback. Each connection sends one request, reads the whole answer, sends the
 * next. Prints one line of JSON: times in microseconds; `bad` counts answers that were complete but not as expected,
 * `errors` broken connections, unreadable answers and requests still unanswered after 5 s when the time was up.
 *
 * usage: loadgen [options] PORT PATH
 *   -c N  connections (1)        -d S  seconds (5)           -n N  stop after N answers (0: by time alone)
 *   -b F  body from file ("x")   -t T  content type          -l N  expected length of the answer's body
 *   -e    the answer must equal the request's body           -k N  expected chunks in each answer
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <strings.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "measure.h"

enum { HEAD_MAX = 32768, STALLED_US = 5000000 };

enum state { HEAD, LENGTH_BODY, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER };

struct connection {
    int fd;
    bool writing;        /* EPOLLOUT is registered */
    bool busy;           /* a request is on its way */
    bool closing;        /* the server said `connection: close` */
    bool differs;        /* the body is not the one that was sent */
    enum state state;
    int status;
    size_t sent;         /* bytes of the request handed to the kernel */
    size_t head_used;
    uint64_t remaining;  /* bytes of the body, or of the chunk, still to come */
    uint64_t body_bytes;
    uint64_t chunks;
    char line[64];       /* a chunk's size line */
    size_t line_used;
    int64_t began, first_byte;
    char head[HEAD_MAX];
};

static struct {
    int connections;
    double seconds;
    uint64_t limit;
    const char *content_type;
    int64_t length;  /* -1: any */
    int64_t chunks;  /* -1: any */
    bool echo;
} options = {1, 5.0, 0, "text/plain", -1, -1, false};

static struct histogram latency, first_byte;
static uint64_t answers, non_2xx, bad, errors, chunks_seen, bytes_seen;
static char *request, *body = "x";
static size_t request_length, body_length = 1;
static int poller;

static void watch(struct connection *c, int operation, bool writing) {
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, operation, c->fd, &event) < 0) die("epoll_ctl");
    c->writing = writing;
}

static void reconnect(struct connection *c) {
    if (c->fd >= 0) close(c->fd);
    c->busy = c->closing = false;
    c->fd = connected();
    watch(c, EPOLL_CTL_ADD, false);
}

/* False when the connection broke. */
static bool send_rest(struct connection *c) {
    while (c->sent < request_length) {
        ssize_t n = send(c->fd, request + c->sent, request_length - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            if (!c->writing) watch(c, EPOLL_CTL_MOD, true);
            return true;
        }
        if (n < 0) return false;
        c->sent += (size_t)n;
    }
    if (c->writing) watch(c, EPOLL_CTL_MOD, false);
    return true;
}

static void begin(struct connection *c) {
    for (int attempt = 0; attempt < 3; attempt++) {
        c->busy = true;
        c->differs = false;
        c->state = HEAD;
        c->sent = c->head_used = c->line_used = 0;
        c->body_bytes = c->chunks = 0;
        c->first_byte = 0;
        c->began = now_us();
        if (send_rest(c)) return;
        errors++;
        reconnect(c);
    }
}

static void finish(struct connection *c) {
    int64_t end = now_us();
    answers++;
    c->busy = false;
    if (c->status < 200 || c->status > 299) {
        non_2xx++;
    } else {
        bool wrong = c->differs;
        if (options.echo && c->body_bytes != body_length) wrong = true;
        if (options.length >= 0 && c->body_bytes != (uint64_t)options.length) wrong = true;
        if (options.chunks >= 0 && c->chunks != (uint64_t)options.chunks) wrong = true;
        if (wrong) bad++;
        record(&latency, end - c->began);
        if (c->first_byte) record(&first_byte, c->first_byte - c->began);
    }
    if (c->closing) reconnect(c);
}

static const char *header(const char *head, const char *name) {
    size_t length = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, length) == 0 && line[2 + length] == ':') {
            const char *value = line + 3 + length;
            return value + strspn(value, " \t");
        }
    return NULL;
}

/* False when the head cannot be understood. */
static bool read_head(struct connection *c) {
    const char *value;
    if (strncmp(c->head, "HTTP/1.1 ", 9) != 0) return false;
    c->status = atoi(c->head + 9);
    value = header(c->head, "connection");
    c->closing = value && strncasecmp(value, "close", 5) == 0;
    value = header(c->head, "transfer-encoding");
    if (value && strncasecmp(value, "chunked", 7) == 0) {
        c->state = CHUNK_SIZE;
        return true;
    }
    value = header(c->head, "content-length");
    if (!value) return false;
    c->remaining = strtoull(value, NULL, 10);
    c->state = LENGTH_BODY;
    if (c->remaining == 0) finish(c);
    return true;
}

static size_t take_body(struct connection *c, const char *data, size_t size) {
    size_t n = size < c->remaining ? size : (size_t)c->remaining;
    if (n && !c->first_byte) c->first_byte = now_us();
    if (options.echo && !c->differs)
        c->differs = c->body_bytes + n > body_length || memcmp(body + c->body_bytes, data, n) != 0;
    c->body_bytes += n;
    c->remaining -= n;
    bytes_seen += n;
    return n;
}

/* Collects a line into c->line; returns the bytes used, sets *whole when its end was seen. What is too long is cut. */
static size_t take_line(struct connection *c, const char *data, size_t size, bool *whole) {
    const char *end = memchr(data, '\n', size);
    size_t n = end ? (size_t)(end - data) + 1 : size;
    size_t room = sizeof c->line - 1 - c->line_used;
    memcpy(c->line + c->line_used, data, n < room ? n : room);
    c->line_used += n < room ? n : room;
    c->line[c->line_used] = 0;
    *whole = end != NULL;
    return n;
}

static size_t take_head(struct connection *c, const char *data, size_t size, bool *ok) {
    size_t before = c->head_used;
    size_t n = size < HEAD_MAX - 1 - before ? size : HEAD_MAX - 1 - before;
    memcpy(c->head + before, data, n);
    c->head[before + n] = 0;
    char *end = strstr(c->head + (before > 3 ? before - 3 : 0), "\r\n\r\n");
    if (!end) {
        c->head_used += n;
        *ok = c->head_used < HEAD_MAX - 1;
        return n;
    }
    end[2] = 0;
    n = (size_t)(end + 4 - c->head) - before;
    *ok = read_head(c);
    return n;
}

/* Reads one piece of the answer; returns the bytes used, 0 when the answer cannot be understood. */
static size_t take(struct connection *c, const char *data, size_t size) {
    bool ok = true, whole = false;
    size_t n = 0;
    switch (c->state) {
    case HEAD:
        n = take_head(c, data, size, &ok);
        return ok ? n : 0;
    case LENGTH_BODY:
        n = take_body(c, data, size);
        if (c->remaining == 0) finish(c);
        return n;
    case CHUNK_SIZE:
        n = take_line(c, data, size, &whole);
        if (!whole) return n;
        c->line_used = 0;
        c->remaining = strtoull(c->line, NULL, 16);
        c->state = c->remaining ? CHUNK_DATA : TRAILER;
        return n;
    case CHUNK_DATA:
        n = take_body(c, data, size);
        if (c->remaining == 0) {
            c->chunks++;
            chunks_seen++;
            c->state = CHUNK_END;
        }
        return n;
    case CHUNK_END:
        n = take_line(c, data, size, &whole);
        if (!whole) return n;
        ok = strcmp(c->line, "\r\n") == 0;
        c->line_used = 0;
        c->state = CHUNK_SIZE;
        return ok ? n : 0;
    case TRAILER:
        n = take_line(c, data, size, &whole);
        if (!whole) return n;
        ok = strcmp(c->line, "\r\n") == 0;
        c->line_used = 0;
        if (ok) finish(c);
        return n;
    }
    return 0;
}

static void on_readable(struct connection *c) {
    static char buffer[262144];
    ssize_t got = recv(c->fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        if (c->busy) errors++;
        reconnect(c);
        return;
    }
    for (size_t used = 0; used < (size_t)got;) {
        size_t n = c->busy ? take(c, buffer + used, (size_t)got - used) : 0;
        if (n == 0) {
            errors++;
            reconnect(c);
            return;
        }
        used += n;
    }
}

static void build_request(int port, const char *path) {
    char head[2048];
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n", path,
                     port, options.content_type, body_length);
    if (n < 0 || (size_t)n >= sizeof head) die("path too long");
    request_length = (size_t)n + body_length;
    request = malloc(request_length);
    if (!request) die("malloc");
    memcpy(request, head, (size_t)n);
    memcpy(request + n, body, body_length);
}

static void parse(int argc, char **argv) {
    for (int o; (o = getopt(argc, argv, "c:d:n:b:t:l:ek:")) != -1;) switch (o) {
        case 'c': options.connections = atoi(optarg); break;
        case 'd': options.seconds = atof(optarg); break;
        case 'n': options.limit = strtoull(optarg, NULL, 10); break;
        case 'b': body = read_file(optarg, &body_length); break;
        case 't': options.content_type = optarg; break;
        case 'l': options.length = atoll(optarg); break;
        case 'e': options.echo = true; break;
        case 'k': options.chunks = atoll(optarg); break;
        default: exit(2);
        }
    if (argc - optind != 2 || options.connections < 1 || options.connections > CONNECTIONS_MAX) {
        fprintf(stderr, "usage: loadgen [-c N] [-d S] [-n N] [-b FILE] [-t TYPE] [-l N] [-e] [-k N] PORT PATH\n");
        exit(2);
    }
}

static void report(double seconds) {
    printf("{\"requests\": %lu, \"seconds\": %.6f, \"non_2xx\": %lu, \"bad\": %lu, \"errors\": %lu, ", answers, seconds,
           non_2xx, bad, errors);
    printf("\"mean_us\": %.1f, \"p50_us\": %ld, \"p90_us\": %ld, \"p99_us\": %ld, \"max_us\": %ld, ", mean(&latency),
           percentile(&latency, 0.50), percentile(&latency, 0.90), percentile(&latency, 0.99), latency.max);
    printf("\"chunks\": %lu, \"bytes\": %lu, \"first_byte_p50_us\": %ld, \"first_byte_p99_us\": %ld}\n", chunks_seen,
           bytes_seen, percentile(&first_byte, 0.50), percentile(&first_byte, 0.99));
}

int main(int argc, char **argv) {
    parse(argc, argv);
    int port = atoi(argv[optind]);
    struct connection *all = calloc((size_t)options.connections, sizeof *all);
    struct epoll_event ready[128];
    build_request(port, argv[optind + 1]);
    set_address(port);
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (!all || poller < 0) die("setup");
    for (int i = 0; i < options.connections; i++) {
        all[i].fd = -1;
        reconnect(&all[i]);
    }
    int64_t start = now_us(), deadline = start + (int64_t)(options.seconds * 1e6), now = start;
    for (int i = 0; i < options.connections; i++) begin(&all[i]);
    while (now < deadline && (options.limit == 0 || answers < options.limit)) {
        int n = epoll_wait(poller, ready, 128, (int)((deadline - now) / 1000) + 1);
        if (n < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            if ((ready[i].events & EPOLLOUT) && !send_rest(c)) {
                errors++;
                reconnect(c);
            } else if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
                on_readable(c);
            }
            if (!c->busy) begin(c);
        }
        now = now_us();
    }
    for (int i = 0; i < options.connections; i++)
        if (all[i].busy && now - all[i].began > STALLED_US) errors++;
    report((double)(now - start) / 1e6);
    return 0;
}
