// Describes the job by the environment: the rank of this process, the number of ranks, and their addresses. It is read
// before any device is opened, without the network.
#ifndef MZ_DIST_WORLD_H
#define MZ_DIST_WORLD_H

#include "base/base.h"

typedef enum mz_meeting {
    MZ_MEET_ALONE, // a job of one process
    MZ_MEET_TCP,   // rank 0 listens at `address`:`port`
    MZ_MEET_FILE,  // rank 0 writes its address into `file`
    MZ_MEET_MPI,   // MPI carries the meeting
} mz_meeting;

typedef struct mz_world {
    int rank, size;             // 0 … size-1
    int local_rank, local_size; // among the job's processes on this host; local_size 0: not known
    mz_meeting meeting;
    char address[256];
    int port;
    int listen_fd; // on rank 0: a socket from the launcher that listens already; -1
    char file[1024];
    char secret[128];    // "" where the meeting transfers it
    char interface[64];  // "" = chosen by address
    const char *started; // what set the variables: "torchrun's variables", "OpenMPI", …; static text
} mz_world;

// Reads, in this order: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE (mezzo launch, torchrun);
// OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE} (OpenMPI's mpirun); PMI_RANK, PMI_SIZE (MPICH, Intel MPI);
// SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID (srun; SLURM_STEP_ID shows that it was srun). Without any there is one
// rank. The meeting point is MEZZO_RENDEZVOUS=file:PATH or mpi; else MASTER_ADDR and MASTER_PORT; else, under mpirun,
// MPI; else, under srun, the first host of the step and a port from the job's number. INVALID: a number that cannot be
// read, a rank outside the size, an address without a port, no secret (MEZZO_JOB_SECRET) where TCP needs one.
mezzo_status mz_world_read(mz_world *out);

// Chooses the device that this rank opens. `name` is the configuration's device. For "auto" and "cuda", in a job of
// several processes a host, it is "cuda:LOCAL_RANK" if `gpus`, the number of GPUs that this process sees, is more than
// one; else it is the name itself. More ranks on a host than GPUs is INVALID, where a process sees more than one.
mezzo_status mz_world_device(const mz_world *world, const char *name, int gpus, char *out, size_t size);

#endif
