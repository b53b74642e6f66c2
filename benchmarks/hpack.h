/* Reads header blocks of HTTP/2 (RFC 7541): static and dynamic table, Huffman code. One table per connection. */
#ifndef HPACK_H
#define HPACK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { HPACK_SIZE = 4096, HPACK_ENTRIES = HPACK_SIZE / 32, HPACK_STATIC = 61, HPACK_TEXT = 32768 };
enum { HUFFMAN_LONGEST = 30 };

struct hpack_entry {
    char *name, *value;
    size_t size;
};

/* A ring, the newest entry at `newest`. */
struct hpack {
    struct hpack_entry entries[HPACK_ENTRIES];
    unsigned newest, count;
    size_t used, limit;
};

typedef void hpack_field(void *to, const char *name, const char *value);

static const char *const hpack_static[HPACK_STATIC][2] = {
    {":authority", ""}, {":method", "GET"}, {":method", "POST"}, {":path", "/"}, {":path", "/index.html"},
    {":scheme", "http"}, {":scheme", "https"}, {":status", "200"}, {":status", "204"}, {":status", "206"},
    {":status", "304"}, {":status", "400"}, {":status", "404"}, {":status", "500"}, {"accept-charset", ""},
    {"accept-encoding", "gzip, deflate"}, {"accept-language", ""}, {"accept-ranges", ""}, {"accept", ""},
    {"access-control-allow-origin", ""}, {"age", ""}, {"allow", ""}, {"authorization", ""}, {"cache-control", ""},
    {"content-disposition", ""}, {"content-encoding", ""}, {"content-language", ""}, {"content-length", ""},
    {"content-location", ""}, {"content-range", ""}, {"content-type", ""}, {"cookie", ""}, {"date", ""}, {"etag", ""},
    {"expect", ""}, {"expires", ""}, {"from", ""}, {"host", ""}, {"if-match", ""}, {"if-modified-since", ""},
    {"if-none-match", ""}, {"if-range", ""}, {"if-unmodified-since", ""}, {"last-modified", ""}, {"link", ""},
    {"location", ""}, {"max-forwards", ""}, {"proxy-authenticate", ""}, {"proxy-authorization", ""}, {"range", ""},
    {"referer", ""}, {"refresh", ""}, {"retry-after", ""}, {"server", ""}, {"set-cookie", ""},
    {"strict-transport-security", ""}, {"transfer-encoding", ""}, {"user-agent", ""}, {"vary", ""}, {"via", ""},
    {"www-authenticate", ""},
};

/* Bits of each octet's code, and of the end marker's. The code is canonical: lengths are all that is needed. */
static const uint8_t huffman_bits[257] = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
};

/* By length: the first code, how many there are, and where their octets begin in huffman_octets. */
static uint32_t huffman_first[HUFFMAN_LONGEST + 1], huffman_count[HUFFMAN_LONGEST + 1];
static uint32_t huffman_start[HUFFMAN_LONGEST + 1];
static uint16_t huffman_octets[257];

static void hpack_setup(void) {
    uint32_t code = 0, place = 0;
    for (int length = 1; length <= HUFFMAN_LONGEST; length++) {
        code <<= 1;
        huffman_first[length] = code;
        huffman_start[length] = place;
        for (uint16_t octet = 0; octet < 257; octet++)
            if (huffman_bits[octet] == length) huffman_octets[place++] = octet;
        huffman_count[length] = place - huffman_start[length];
        code += huffman_count[length];
    }
}

/* False when it is no Huffman code, or too long. */
static bool huffman_read(const uint8_t *data, size_t size, char *text) {
    uint32_t code = 0;
    int length = 0;
    size_t used = 0;
    for (size_t bit = 0; bit < size * 8; bit++) {
        code = code << 1 | (data[bit / 8] >> (7 - bit % 8) & 1);
        if (++length > HUFFMAN_LONGEST) return false;
        if (code - huffman_first[length] >= huffman_count[length]) continue;
        uint16_t octet = huffman_octets[huffman_start[length] + code - huffman_first[length]];
        if (octet == 256 || used == HPACK_TEXT - 1) return false;
        text[used++] = (char)octet;
        code = 0;
        length = 0;
    }
    text[used] = 0;
    return length < 8 && code == (1u << length) - 1;
}

static bool hpack_integer(const uint8_t **at, const uint8_t *end, int bits, uint32_t *value) {
    uint32_t mask = (1u << bits) - 1;
    if (*at == end) return false;
    *value = *(*at)++ & mask;
    if (*value < mask) return true;
    for (int shift = 0; shift < 28; shift += 7) {
        if (*at == end) return false;
        uint8_t octet = *(*at)++;
        *value += (uint32_t)(octet & 127) << shift;
        if (octet < 128) return true;
    }
    return false;
}

static bool hpack_string(const uint8_t **at, const uint8_t *end, char *text) {
    uint32_t size;
    if (*at == end) return false;
    bool huffman = **at & 0x80;
    if (!hpack_integer(at, end, 7, &size) || size > (size_t)(end - *at)) return false;
    const uint8_t *data = *at;
    *at += size;
    if (huffman) return huffman_read(data, size, text);
    if (size > HPACK_TEXT - 1) return false;
    memcpy(text, data, size);
    text[size] = 0;
    return true;
}

static void hpack_evict(struct hpack *h, size_t size) {
    while (h->count && h->used > size) {
        struct hpack_entry *oldest = &h->entries[(h->newest + h->count - 1) % HPACK_ENTRIES];
        h->used -= oldest->size;
        free(oldest->name);
        free(oldest->value);
        h->count--;
    }
}

static void hpack_add(struct hpack *h, const char *name, const char *value) {
    size_t size = strlen(name) + strlen(value) + 32;
    hpack_evict(h, size > h->limit ? 0 : h->limit - size);
    if (size > h->limit) return;
    h->newest = (h->newest + HPACK_ENTRIES - 1) % HPACK_ENTRIES;
    h->entries[h->newest] = (struct hpack_entry){strdup(name), strdup(value), size};
    h->used += size;
    h->count++;
}

static bool hpack_lookup(const struct hpack *h, uint32_t index, const char **name, const char **value) {
    if (index == 0 || index > HPACK_STATIC + h->count) return false;
    if (index <= HPACK_STATIC) {
        *name = hpack_static[index - 1][0];
        *value = hpack_static[index - 1][1];
    } else {
        const struct hpack_entry *entry = &h->entries[(h->newest + index - HPACK_STATIC - 1) % HPACK_ENTRIES];
        *name = entry->name;
        *value = entry->value;
    }
    return true;
}

static void hpack_reset(struct hpack *h) {
    hpack_evict(h, 0);
    h->limit = HPACK_SIZE;
}

/* Gives each header of a block to `field`; false when the block is malformed. */
static bool hpack_read(struct hpack *h, const uint8_t *at, size_t size, hpack_field *field, void *to) {
    static char own_name[HPACK_TEXT], own_value[HPACK_TEXT];
    const uint8_t *end = at + size;
    while (at < end) {
        const char *name, *value;
        uint32_t index;
        uint8_t kind = *at;
        if (kind & 0x80) {
            if (!hpack_integer(&at, end, 7, &index) || !hpack_lookup(h, index, &name, &value)) return false;
            field(to, name, value);
            continue;
        }
        if ((kind & 0xE0) == 0x20) {
            if (!hpack_integer(&at, end, 5, &index) || index > HPACK_SIZE) return false;
            h->limit = index;
            hpack_evict(h, index);
            continue;
        }
        if (!hpack_integer(&at, end, kind & 0x40 ? 6 : 4, &index)) return false;
        if (index == 0) {
            if (!hpack_string(&at, end, own_name)) return false;
        } else {
            if (!hpack_lookup(h, index, &name, &value)) return false;
            strcpy(own_name, name);  /* adding it may evict the entry that it comes from */
        }
        if (!hpack_string(&at, end, own_value)) return false;
        if (kind & 0x40) hpack_add(h, own_name, own_value);
        field(to, own_name, own_value);
    }
    return true;
}

#endif
