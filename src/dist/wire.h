// The ranks meet over these sockets and send frames. Both sides run the same build on the same kind of machine (the
// greeting checks that), so that frames are structs.
#ifndef MZ_DIST_WIRE_H
#define MZ_DIST_WIRE_H

#include "dist/world.h"

enum {
    MZ_WIRE_MAGIC = 0x4d5a4431, // "MZD1"
    MZ_WIRE_NAME = 32,
    MZ_WIRE_PLACE = 48,
    MZ_WIRE_LINE = 512,
    MZ_WIRE_MOST = 1 << 30, // bytes of a payload
};

typedef enum mz_wire_kind {
    MZ_WIRE_HELLO = 1, // member → hub: mz_wire_hello
    MZ_WIRE_WELCOME,   // hub → member: mz_group_rank × size
    MZ_WIRE_REFUSED,   // hub → member: a line
    MZ_WIRE_BEAT,      // both: member's carries mz_wire_beat
    MZ_WIRE_GATHER,    // member → hub: this rank's bytes
    MZ_WIRE_GATHERED,  // hub → member: everybody's, in rank order
    MZ_WIRE_ABORT,     // member → hub: a line
    MZ_WIRE_FAILED,    // hub → member: a line; rank: the one that reports it
    MZ_WIRE_BYE,       // member → hub; hub → member: all have left
} mz_wire_kind;

typedef struct mz_wire_frame {
    uint32_t magic;
    uint16_t kind;
    uint16_t rank;
    uint64_t bytes; // that follow
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
    uint64_t number; // of `doing`
    double since;    // seconds
    int32_t waits;   // 1: it is inside; 0: it began it last
} mz_wire_beat;

// Bytes that came and wait to be read as frames, or wait to be sent.
typedef struct mz_wire_buffer {
    char *data;
    size_t length, cap;
} mz_wire_buffer;
mezzo_status mz_wire_append(mz_wire_buffer *b, const void *data, size_t bytes);
void mz_wire_drop(mz_wire_buffer *b, size_t bytes); // from its front
void mz_wire_free(mz_wire_buffer *b);
// Returns whether a whole frame, with its payload right after it, is at the front. *bad: the bytes are no frame.
bool mz_wire_front(const mz_wire_buffer *b, mz_wire_frame *out, bool *bad);
mz_wire_frame mz_wire_make(mz_wire_kind kind, int rank, const char *name, size_t bytes);
// A piece of what can be had now: a sender without end keeps no other one waiting. False: the connection has ended, or
// memory.
bool mz_wire_receive(int fd, mz_wire_buffer *b);
bool mz_wire_flush(int fd, mz_wire_buffer *b); // what can be sent now

// --- meeting -------------------------------------------------------------------------------------------------------
// Rank 0: a socket that listens at world's address (its file is written; `given` ports are exact, 0 is any).
mezzo_status mz_wire_listen(const mz_world *world, int *fd, char address[256], int *port);
// Connects the others: a connection, tried again until `deadline` (mz_seconds()).
mezzo_status mz_wire_connect(const mz_world *world, const char *address, int port, double deadline, int *fd);
// Publishes rank 0's address through the file, with the secret. read waits until `deadline`.
mezzo_status mz_wire_publish(const char *path, const char *address, int port, const char *secret);
bool mz_wire_look_up(const char *path, char address[256], int *port, char secret[128]);
mezzo_status mz_wire_secret(char secret[128]); // a new one, from the system's random numbers

#endif
