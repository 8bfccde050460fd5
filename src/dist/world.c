// Reads the facts of a job from the variables that launchers set.
#include "dist/world.h"

#include "backend/collective.h"

#include <errno.h>
#include <stdlib.h>

enum { MOST_RANKS = 4096 };

static const char *given(const char *name) {
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

static mezzo_status read_number(const char *name, long least, long most, int *out) {
    const char *text = given(name);
    if (text == NULL)
        return MEZZO_OK;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least || value > most)
        return mz_fail(MEZZO_ERR_INVALID, "%s is \"%.40s\": it must be a whole number from %ld to %ld", name, text,
                       least, most);
    *out = (int)value;
    return MEZZO_OK;
}

// --- ranks ---------------------------------------------------------------------------------------------------------
static const struct {
    const char *started, *rank, *size, *local_rank, *local_size;
    const char *only_with; // a variable that must be set, too; NULL: none
} launchers[] = {
    {"torchrun's variables", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL},
    {"OpenMPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {"an MPI's launcher (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL},
    // sbatch sets these for the batch script, too, which is one process; srun's steps have a number below 2^31 - 10.
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "SLURM_STEP_NODELIST"},
};

static bool by_mpi(const mz_world *w) {
    return w->started == launchers[1].started || w->started == launchers[2].started;
}

static mezzo_status read_who(mz_world *w) {
    for (size_t i = 0; i < MZ_COUNT(launchers); i++) {
        if (given(launchers[i].rank) == NULL || given(launchers[i].size) == NULL ||
            (launchers[i].only_with != NULL && given(launchers[i].only_with) == NULL))
            continue;
        w->started = launchers[i].started;
        MEZZO_TRY(read_number(launchers[i].size, 1, MOST_RANKS, &w->size));
        MEZZO_TRY(read_number(launchers[i].rank, 0, w->size - 1, &w->rank));
        w->local_rank = w->rank;
        MEZZO_TRY(read_number(launchers[i].local_rank, 0, w->size - 1, &w->local_rank));
        if (launchers[i].local_size != NULL)
            MEZZO_TRY(read_number(launchers[i].local_size, 1, w->size, &w->local_size));
        return MEZZO_OK;
    }
    return MEZZO_OK;
}

// --- the meeting point ---------------------------------------------------------------------------------------------
static mezzo_status copy_text(const char *name, const char *value, char *to, size_t size) {
    if (strlen(value) >= size)
        return mz_fail(MEZZO_ERR_INVALID, "%s is longer than %zu bytes", name, size - 1);
    memcpy(to, value, strlen(value) + 1);
    return MEZZO_OK;
}

// Finds the first host of a list: "node[03-07,9],login" → "node03".
static void first_host(const char *list, char *to, size_t size) {
    size_t n = strcspn(list, ",[");
    int length = snprintf(to, size, "%.*s", (int)n, list);
    if (list[n] == '[' && length >= 0 && (size_t)length < size)
        snprintf(to + length, size - (size_t)length, "%.*s", (int)strcspn(list + n + 1, ",-]"), list + n + 1);
}

static mezzo_status meet_by_slurm(mz_world *w, const char *nodes) {
    int job = 0, step = 0;
    first_host(nodes, w->address, sizeof w->address);
    MEZZO_TRY(read_number("SLURM_JOB_ID", 0, INT32_MAX, &job));
    MEZZO_TRY(read_number("SLURM_STEP_ID", 0, INT32_MAX, &step));
    w->port = 20000 + (int)(((int64_t)job * 31 + step) % 12000);
    w->meeting = MZ_MEET_TCP;
    return MEZZO_OK;
}

static mezzo_status meet_by_address(mz_world *w, const char *address) {
    MEZZO_TRY(copy_text("MASTER_ADDR", address, w->address, sizeof w->address));
    MEZZO_TRY(read_number("MASTER_PORT", 1, 65535, &w->port));
    // torchrun's agent itself listens at MASTER_PORT.
    const char *agent = given("TORCHELASTIC_USE_AGENT_STORE");
    if (agent != NULL && strcmp(agent, "True") == 0 && w->port > 0)
        w->port = w->port < 65535 ? w->port + 1 : w->port - 1;
    MEZZO_TRY(read_number("MEZZO_PORT", 1, 65535, &w->port));
    if (w->port == 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "MASTER_ADDR is %s, but there is no MASTER_PORT: set it to a free port of "
                       "that host, the same for every rank",
                       w->address);
    w->meeting = MZ_MEET_TCP;
    return MEZZO_OK;
}

static mezzo_status read_where(mz_world *w) {
    const char *how = given("MEZZO_RENDEZVOUS"), *address = given("MASTER_ADDR"), *nodes = given("SLURM_STEP_NODELIST");
    if (how != NULL && strcmp(how, "mpi") == 0) {
        w->meeting = MZ_MEET_MPI;
    } else if (how != NULL && strncmp(how, "file:", 5) == 0 && how[5] != '\0') {
        MEZZO_TRY(copy_text("MEZZO_RENDEZVOUS", how + 5, w->file, sizeof w->file));
        w->meeting = MZ_MEET_FILE;
    } else if (how != NULL) {
        return mz_fail(MEZZO_ERR_INVALID,
                       "MEZZO_RENDEZVOUS is \"%.40s\": it must be file:PATH, with a path that every "
                       "rank can write, or mpi",
                       how);
    } else if (address != NULL) {
        MEZZO_TRY(meet_by_address(w, address));
    } else if (by_mpi(w)) {
        w->meeting = MZ_MEET_MPI;
    } else if (nodes != NULL) {
        MEZZO_TRY(meet_by_slurm(w, nodes));
    } else {
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s say that this is rank %d of %d, but nothing says where the ranks meet: set MASTER_ADDR and "
                       "MASTER_PORT, or MEZZO_RENDEZVOUS=file:PATH",
                       w->started, w->rank, w->size);
    }
    return MEZZO_OK;
}

static mezzo_status read_secret(mz_world *w) {
    const char *secret = given("MEZZO_JOB_SECRET");
    if (secret != NULL)
        return copy_text("MEZZO_JOB_SECRET", secret, w->secret, sizeof w->secret);
    if (w->meeting == MZ_MEET_TCP)
        return mz_fail(MEZZO_ERR_INVALID,
                       "the ranks meet at %s:%d without a secret: set MEZZO_JOB_SECRET to the same words for all of "
                       "them, so that nobody else joins",
                       w->address, w->port);
    return MEZZO_OK;
}

mezzo_status mz_world_read(mz_world *out) {
    *out = (mz_world){.size = 1, .listen_fd = -1};
    MEZZO_TRY(read_who(out));
    if (out->size == 1) {
        *out = (mz_world){.size = 1, .local_size = 1, .listen_fd = -1, .started = out->started};
        return MEZZO_OK;
    }
    MEZZO_TRY(read_where(out));
    MEZZO_TRY(read_secret(out));
    if (out->rank == 0)
        MEZZO_TRY(read_number("MEZZO_LISTEN_FD", 3, INT32_MAX, &out->listen_fd));
    const char *interface = given("MEZZO_INTERFACE");
    if (interface != NULL)
        MEZZO_TRY(copy_text("MEZZO_INTERFACE", interface, out->interface, sizeof out->interface));
    return MEZZO_OK;
}

mezzo_status mz_world_device(const mz_world *world, const char *name, int gpus, char *out, size_t size) {
    snprintf(out, size, "%s", name);
    if (world->size == 1 || !mz_device_name_is_open(name) || gpus <= 1)
        return MEZZO_OK;
    if (world->local_rank >= gpus)
        return mz_fail(MEZZO_ERR_INVALID,
                       "rank %d is number %d on this host, which has %d GPUs: start at most %d ranks per host, or use "
                       "--device cpu",
                       world->rank, world->local_rank + 1, gpus, gpus);
    snprintf(out, size, "%s:%d", mz_gpu_name(), world->local_rank);
    return MEZZO_OK;
}
