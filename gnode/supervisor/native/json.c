/* Reading JSON for task.c: values into memory that stays until the next task. */
#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 32
#define CHUNK_BYTES 65536

/* --- memory of one attempt --- */

struct chunk {
    struct chunk *before;
    size_t used, bytes;
    char at[] __attribute__((aligned(16)));
};

static struct chunk *chunks;

void gsv_forget_all(void) {
    while (chunks && (chunks->before || chunks->bytes > CHUNK_BYTES)) { /* a first one of the usual size stays */
        struct chunk *before = chunks->before;
        free(chunks);
        chunks = before;
    }
    if (chunks)
        chunks->used = 0;
}

/* Return memory that stays until the next task; NULL: there is none. */
void *gsv_take(size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    if (chunks == NULL || chunks->bytes - chunks->used < bytes) {
        size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        struct chunk *made = malloc(sizeof *made + size);
        if (made == NULL)
            return NULL;
        made->before = chunks;
        made->used = 0;
        made->bytes = size;
        chunks = made;
    }
    void *found = chunks->at + chunks->used;
    chunks->used += bytes;
    return found;
}

char *gsv_joined(const char *first, const char *middle, const char *last) {
    size_t bytes = strlen(first) + strlen(middle) + strlen(last) + 1;
    char *made = gsv_take(bytes);
    if (made)
        snprintf(made, bytes, "%s%s%s", first, middle, last);
    return made;
}

/* --- JSON --- */


int gsv_bad(struct reader *r) {
    r->is_bad = 1;
    return 0;
}

void gsv_skip_space(struct reader *r) {
    while (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')
        r->at++;
}

/* Return whether a character comes next, and pass it. */
int gsv_eat(struct reader *r, char which) {
    gsv_skip_space(r);
    if (*r->at != which)
        return 0;
    r->at++;
    return 1;
}

int gsv_eat_word(struct reader *r, const char *word) {
    gsv_skip_space(r);
    if (strncmp(r->at, word, strlen(word)) != 0)
        return 0;
    r->at += strlen(word);
    return 1;
}

/* Go through an array or an object: return whether there is another element. */
int gsv_next(struct reader *r, int *count, char end) {
    if (r->is_bad || gsv_eat(r, end))
        return 0;
    if (*count > 0 && !gsv_eat(r, ','))
        return gsv_bad(r);
    *count += 1;
    return 1;
}

static unsigned hexadecimal(struct reader *r) {
    unsigned number = 0;
    for (int digit = 0; digit < 4; digit++, r->at++) {
        char c = *r->at;
        int value = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (value < 0)
            return (unsigned)gsv_bad(r);
        number = number << 4 | (unsigned)value;
    }
    return number;
}

static char *put_utf8(char *to, unsigned code) {
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xC0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *to++ = (char)(0xE0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    } else {
        *to++ = (char)(0xF0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3F));
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    }
    return to;
}

/* Pass what follows a backslash; a lone \udcXX is the byte XX, as in Python's file names. */
static char *unescape(struct reader *r, char *to) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = *r->at;
    const char *found = c ? strchr(names, c) : NULL;
    if (found) {
        r->at++;
        *to++ = values[found - names];
        return to;
    }
    if (c != 'u') {
        gsv_bad(r);
        return to;
    }
    r->at++;
    unsigned code = hexadecimal(r);
    if (code >= 0xD800 && code < 0xDC00 && r->at[0] == '\\' && r->at[1] == 'u') {
        r->at += 2;
        unsigned low = hexadecimal(r);
        if (low < 0xDC00 || low > 0xDFFF)
            gsv_bad(r);
        return put_utf8(to, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00));
    }
    if (code >= 0xDC80 && code <= 0xDCFF) {
        *to++ = (char)(code & 0xFF);
        return to;
    }
    if (code == 0 || (code >= 0xD800 && code <= 0xDFFF)) /* C would read another text; no text */
        gsv_bad(r);
    return put_utf8(to, code);
}

/* Return a text, with room for `more` bytes behind it. */
char *gsv_text(struct reader *r, size_t more, size_t *length) {
    if (!gsv_eat(r, '"')) {
        gsv_bad(r);
        return NULL;
    }
    const char *end = r->at;
    while (*end && *end != '"')
        end += *end == '\\' && end[1] ? 2 : 1;
    char *made = gsv_take((size_t)(end - r->at) + 1 + more), *to = made;
    if (made == NULL) {
        gsv_bad(r);
        return NULL;
    }
    while (!r->is_bad && *r->at != '"') {
        if ((unsigned char)*r->at < 0x20) {
            gsv_bad(r);
        } else if (*r->at == '\\') {
            r->at++;
            to = unescape(r, to);
        } else {
            *to++ = *r->at++;
        }
    }
    *to = 0;
    if (!r->is_bad)
        r->at++;
    if (length)
        *length = (size_t)(to - made);
    return r->is_bad ? NULL : made;
}

double gsv_number(struct reader *r) {
    char *end;
    gsv_skip_space(r);
    if (*r->at != '-' && (*r->at < '0' || *r->at > '9'))
        return gsv_bad(r);
    double found = strtod(r->at, &end);
    r->at = end;
    return found;
}

int64_t gsv_integer(struct reader *r) {
    double found = gsv_number(r);
    if (!(found >= -9e15 && found <= 9e15) || found != (double)(int64_t)found)
        return gsv_bad(r);
    return (int64_t)found;
}

int gsv_truth(struct reader *r) {
    if (gsv_eat_word(r, "true"))
        return 1;
    return gsv_eat_word(r, "false") ? 0 : gsv_bad(r);
}

void gsv_skip(struct reader *r, int depth) {
    int count = 0;
    gsv_skip_space(r);
    if (depth > DEPTH_MAX) {
        gsv_bad(r);
    } else if (*r->at == '"') {
        gsv_text(r, 0, NULL);
    } else if (gsv_eat(r, '[')) {
        while (gsv_next(r, &count, ']'))
            gsv_skip(r, depth + 1);
    } else if (gsv_eat(r, '{')) {
        while (gsv_next(r, &count, '}')) {
            gsv_text(r, 0, NULL);
            if (!gsv_eat(r, ':'))
                gsv_bad(r);
            gsv_skip(r, depth + 1);
        }
    } else if (!gsv_eat_word(r, "null") && !gsv_eat_word(r, "true") && !gsv_eat_word(r, "false")) {
        gsv_number(r);
    }
}

/* Pass a value that says that there is nothing. */
void gsv_nothing(struct reader *r) {
    if (gsv_eat_word(r, "null") || gsv_eat_word(r, "false") || gsv_eat_word(r, "\"\""))
        return;
    if (gsv_eat(r, '[')) {
        if (!gsv_eat(r, ']'))
            gsv_bad(r);
    } else if (gsv_number(r) != 0) {
        gsv_bad(r);
    }
}
