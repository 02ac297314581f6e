/* Messages between this process and the token daemon: datagrams of a fixed size, in order. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "gpushare.h"

#define SECRET_BYTES_MAX 128
#define DESCRIPTORS_FROM 512
#define CONNECT_S 5 /* a stopped daemon accepts nothing */

static _Atomic uint64_t sequence;

static void fill(struct gs_message *message, enum gs_message_type type) {
    memset(message, 0, sizeof *message);
    message->version = GS_WIRE_VERSION;
    message->type = (uint16_t)type;
    message->pid = (uint32_t)getpid();
    message->seq = atomic_fetch_add(&sequence, 1);
}

static bool send_all(int fd, const void *bytes, size_t length) {
    ssize_t sent;
    do
        sent = send(fd, bytes, length, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)length;
}

/* Connects to a socket at a path. The address of a socket is short: a longer path goes by a
 * descriptor of its directory. */
static bool connect_to(int fd, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *name = strrchr(path, '/');
    if (strlen(path) < sizeof address.sun_path) {
        strcpy(address.sun_path, path);
        return connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    }
    char directory[PATH_MAX];
    if (name == NULL || (size_t)(name - path) >= sizeof directory) return false;
    memcpy(directory, path, (size_t)(name - path));
    directory[name - path] = 0;
    int place = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (place < 0) return false;
    int length = snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d%s", place,
                          name);
    bool fits = length > 0 && (size_t)length < sizeof address.sun_path;
    bool done = fits && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(place);
    return done;
}

/* Programs close the numbers that they have not opened, and use the low ones again. */
static int high_number(int fd) {
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, DESCRIPTORS_FROM);
    if (high < 0) return fd;
    close(fd);
    return high;
}

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 ? found.st_ino : 0;
}

bool gs_is_own(const struct gs_channel *channel) {
    return channel->fd >= 0 && inode_of(channel->fd) == channel->inode;
}

void gs_hang_up(struct gs_channel *channel) {
    if (gs_is_own(channel)) close(channel->fd);
    channel->fd = -1;
}

bool gs_dial(struct gs_channel *channel, uint32_t flags, uint64_t epoch, uint64_t bytes) {
    const struct gs_settings *settings = gs_settings();
    struct {
        struct gs_message message;
        char secret[SECRET_BYTES_MAX];
    } hello;
    size_t secret_bytes = strlen(settings->secret);
    if (secret_bytes > SECRET_BYTES_MAX) return false;
    int fd = high_number(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (fd < 0) return false;
    struct timeval longest = {.tv_sec = CONNECT_S};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest); /* connects wait, too */
    fill(&hello.message, GS_HELLO);
    hello.message.flags = flags;
    hello.message.epoch = epoch;
    hello.message.a = bytes;
    hello.message.b = channel->kind;
    memcpy(hello.secret, settings->secret, secret_bytes);
    /* A daemon without a place answers and hangs up before it is greeted. */
    if (connect_to(fd, settings->socket_path) &&
        (send_all(fd, &hello, sizeof hello.message + secret_bytes) || errno == EPIPE ||
         errno == ECONNRESET)) {
        channel->inode = inode_of(fd);
        channel->fd = fd;
        return true;
    }
    close(fd);
    return false;
}

bool gs_send(const struct gs_channel *channel, enum gs_message_type type, uint32_t flags,
             uint64_t epoch, uint64_t a, uint64_t b) {
    struct gs_message message;
    fill(&message, type);
    message.flags = flags;
    message.epoch = epoch;
    message.a = a;
    message.b = b;
    return gs_is_own(channel) && send_all(channel->fd, &message, sizeof message);
}

int gs_receive(const struct gs_channel *channel, struct gs_message *message, int *passed,
               int timeout_ms) {
    struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
    int count;
    do
        count = poll(&ready, 1, timeout_ms);
    while (count < 0 && errno == EINTR);
    if (count == 0) return -1;
    if (!gs_is_own(channel)) return 0;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {.iov_base = message, .iov_len = sizeof *message};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof control.bytes};
    ssize_t length;
    bool was_reset = false; /* told once, before the last answer of a daemon that has hung up */
    for (;;) {
        length = recvmsg(channel->fd, &header, MSG_CMSG_CLOEXEC);
        if (length >= 0 || (errno != EINTR && (errno != ECONNRESET || was_reset))) break;
        was_reset = was_reset || errno == ECONNRESET;
    }
    int descriptor = -1;
    for (struct cmsghdr *one = CMSG_FIRSTHDR(&header); one != NULL; one = CMSG_NXTHDR(&header, one))
        if (one->cmsg_level == SOL_SOCKET && one->cmsg_type == SCM_RIGHTS)
            memcpy(&descriptor, CMSG_DATA(one), sizeof descriptor);
    bool good = length == (ssize_t)sizeof *message &&
                (message->version == GS_WIRE_VERSION || message->type == GS_VERSION);
    if (good && passed != NULL)
        *passed = descriptor;
    else if (descriptor >= 0)
        close(descriptor);
    return good ? 1 : 0;
}
