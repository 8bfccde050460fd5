// Ranks meet over these sockets and send frames. Both sides run the same build on the same kind of machine (the
// greeting checks that), so frames are structs.
#ifndef MZ_DIST_WIRE_H
#define MZ_DIST_WIRE_H

#include "dist/world.h"

enum {
    MZ_WIRE_MAGIC = 0x4d5a4431, // "MZD1"
    MZ_WIRE_NAME = 32,
    MZ_WIRE_PLACE = 48,
    MZ_WIRE_LINE = 512,
    MZ_WIRE_MOST = 1 << 30, // the most bytes of a payload
};

typedef enum mz_wire_kind {
    MZ_WIRE_HELLO = 1, // member → hub: mz_wire_hello
    MZ_WIRE_WELCOME,   // hub → member: mz_group_rank × size
    MZ_WIRE_REFUSED,   // hub → member: a line
    MZ_WIRE_BEAT,      // both directions; a member's carries mz_wire_beat
    MZ_WIRE_GATHER,    // member → hub: this rank's bytes
    MZ_WIRE_GATHERED,  // hub → member: every rank's bytes, in rank order
    MZ_WIRE_ABORT,     // member → hub: a line
    MZ_WIRE_FAILED,    // hub → member: a line; rank: the one that reports it to the user
    MZ_WIRE_BYE,       // member → hub; hub → member: all have left
} mz_wire_kind;

typedef struct mz_wire_frame {
    uint32_t magic;
    uint16_t kind;
    uint16_t rank;
    uint64_t bytes; // length of the payload
    uint64_t number;
    char name[MZ_WIRE_NAME];
} mz_wire_frame;

typedef struct mz_wire_hello {
    char secret[128];
    char version[32];
    char host[64];
    int32_t rank, size, local_rank;
    int64_t process;
} mz_wire_hello;

typedef struct mz_wire_beat { // what the rank is doing
    char doing[MZ_WIRE_NAME]; // "all-reduce"; "" = none yet
    char place[MZ_WIRE_PLACE];
    uint64_t number; // counts calls of `doing`
    double since;    // seconds
    int32_t waits;   // 1: it is still doing it; 0: it has ended
} mz_wire_beat;

// Holds bytes that were received and wait to be read as frames, or that wait to be sent.
typedef struct mz_wire_buffer {
    char *data;
    size_t length, cap;
} mz_wire_buffer;
mezzo_status mz_wire_append(mz_wire_buffer *b, const void *data, size_t bytes);
void mz_wire_drop(mz_wire_buffer *b, size_t bytes); // removes bytes from its front
void mz_wire_free(mz_wire_buffer *b);
// Returns whether a whole frame, with its payload directly after it, is at the front. *bad: the bytes are no frame.
bool mz_wire_front(const mz_wire_buffer *b, mz_wire_frame *out, bool *bad);
mz_wire_frame mz_wire_make(mz_wire_kind kind, int rank, const char *name, size_t bytes);
// Receives at most one piece of the bytes that are ready, so that an endless sender does not keep others waiting.
// Returns false where the connection has ended or memory is missing.
bool mz_wire_receive(int fd, mz_wire_buffer *b);
bool mz_wire_flush(int fd, mz_wire_buffer *b); // sends as much as can be sent now

// --- meeting -------------------------------------------------------------------------------------------------------
// Opens, on rank 0, a socket that listens at world's address and writes the file. Where `given`, the port is exact; 0
// is any.
mezzo_status mz_wire_listen(const mz_world *world, int *fd, char address[256], int *port);
// Connects another rank to rank 0, and tries again until `deadline` (mz_seconds()).
mezzo_status mz_wire_connect(const mz_world *world, const char *address, int port, double deadline, int *fd);
// Publish rank 0's address and the secret through the file. The reader waits until `deadline`.
mezzo_status mz_wire_publish(const char *path, const char *address, int port, const char *secret);
bool mz_wire_look_up(const char *path, char address[256], int *port, char secret[128]);
mezzo_status mz_wire_secret(char secret[128]); // makes a new one from the system's random numbers

#endif
