/* What both load generators need: clock, latency histogram, files, the server's address. */
#ifndef MEASURE_H
#define MEASURE_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { CONNECTIONS_MAX = 1024, FINE_US = 1 << 20, COARSE_MS = 1 << 17 };

/* Exact to 1 us below about a second, to 1 ms below about two minutes. */
struct histogram {
    uint32_t fine[FINE_US];
    uint32_t coarse[COARSE_MS];
    uint64_t count;
    int64_t sum, max;
};

static struct sockaddr_in address;

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void die(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
    exit(1);
}

static void record(struct histogram *h, int64_t us) {
    if (us < FINE_US) h->fine[us < 0 ? 0 : us]++;
    else h->coarse[us / 1000 < COARSE_MS ? us / 1000 : COARSE_MS - 1]++;
    h->count++;
    h->sum += us;
    if (us > h->max) h->max = us;
}

static int64_t percentile(const struct histogram *h, double share) {
    uint64_t rank = (uint64_t)(share * (double)h->count), seen = 0;
    if (h->count == 0) return 0;
    for (int i = 0; i < FINE_US; i++)
        if ((seen += h->fine[i]) > rank) return i;
    for (int i = 0; i < COARSE_MS; i++)
        if ((seen += h->coarse[i]) > rank) return (int64_t)i * 1000;
    return h->max;
}

static double mean(const struct histogram *h) { return h->count ? (double)h->sum / (double)h->count : 0; }

static char *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f) die(path);
    fseek(f, 0, SEEK_END);
    long length = ftell(f);
    rewind(f);
    char *data = malloc((size_t)length + 1);
    if (!data || fread(data, 1, (size_t)length, f) != (size_t)length) die(path);
    fclose(f);
    *size = (size_t)length;
    return data;
}

static void set_address(int port) {
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

static int connected(void) {
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die("socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

#endif
