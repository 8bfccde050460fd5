// Who a process is and where its job meets, from the variables of each launcher.
#include <stdlib.h>

#include "dist/world.h"
#include "test.h"

extern char **environ;
static char *environment[32]; // what a launcher sets

static mezzo_status read_with(mz_world *out, ...) {
    va_list args;
    int n = 0;
    va_start(args, out);
    while ((environment[n] = va_arg(args, char *)) != NULL)
        n++;
    va_end(args);
    char **before = environ;
    environ = environment;
    mezzo_status status = mz_world_read(out);
    environ = before;
    return status;
}

static void expect_line(const char *word) {
    if (strstr(mezzo_error_message(), word) == NULL)
        fail_msg("'%s' does not say '%s'", mezzo_error_message(), word);
}

TEST(test_alone) {
    mz_world w;
    assert_int_equal(read_with(&w, NULL), MEZZO_OK);
    assert_int_equal(w.size, 1);
    assert_int_equal(w.meeting, MZ_MEET_ALONE);
    // A notebook under a batch system, torchrun with one process, half of a pair: one process, nothing to meet.
    assert_int_equal(read_with(&w, "SLURM_PROCID=0", "SLURM_NTASKS=8", NULL), MEZZO_OK);
    assert_int_equal(w.size, 1);
    assert_int_equal(read_with(&w, "RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", NULL), MEZZO_OK);
    assert_int_equal(w.size, 1);
    assert_int_equal(read_with(&w, "RANK=3", NULL), MEZZO_OK);
    assert_int_equal(w.size, 1);
}

TEST(test_torchrun) {
    mz_world w;
    assert_int_equal(read_with(&w, "RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=a.b",
                               "MASTER_PORT=29500", "MEZZO_JOB_SECRET=x", NULL),
                     MEZZO_OK);
    assert_int_equal(w.rank, 5);
    assert_int_equal(w.size, 8);
    assert_int_equal(w.local_rank, 1);
    assert_int_equal(w.local_size, 4);
    assert_int_equal(w.meeting, MZ_MEET_TCP);
    assert_string_equal(w.address, "a.b");
    assert_int_equal(w.port, 29500);
    assert_string_equal(w.secret, "x");
    // torchrun's own agent listens at that port.
    assert_int_equal(read_with(&w, "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=29500",
                               "TORCHELASTIC_USE_AGENT_STORE=True", "MEZZO_JOB_SECRET=x", NULL),
                     MEZZO_OK);
    assert_int_equal(w.port, 29501);
    assert_int_equal(read_with(&w, "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=29500", "MEZZO_PORT=4000",
                               "TORCHELASTIC_USE_AGENT_STORE=True", "MEZZO_JOB_SECRET=x", NULL),
                     MEZZO_OK);
    assert_int_equal(w.port, 4000);
}

TEST(test_mpi_and_slurm) {
    mz_world w;
    assert_int_equal(read_with(&w, "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                               "OMPI_COMM_WORLD_LOCAL_SIZE=1", "PMIX_RANK=2", NULL),
                     MEZZO_OK);
    assert_int_equal(w.rank, 2);
    assert_int_equal(w.local_rank, 0);
    assert_int_equal(w.meeting, MZ_MEET_MPI);
    assert_int_equal(read_with(&w, "PMI_RANK=1", "PMI_SIZE=2", "MEZZO_RENDEZVOUS=file:/tmp/x", NULL), MEZZO_OK);
    assert_int_equal(w.meeting, MZ_MEET_FILE);
    assert_string_equal(w.file, "/tmp/x");
    assert_int_equal(read_with(&w, "SLURM_PROCID=9", "SLURM_NTASKS=16", "SLURM_LOCALID=1", "SLURM_JOB_ID=77",
                               "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=node[03-04,9],login", "MEZZO_JOB_SECRET=x",
                               NULL),
                     MEZZO_OK);
    assert_int_equal(w.rank, 9);
    assert_int_equal(w.local_rank, 1);
    assert_string_equal(w.address, "node03");
    assert_in_range(w.port, 20000, 31999);
}

TEST(test_what_is_wrong_is_said) {
    mz_world w;
    assert_int_equal(read_with(&w, "RANK=2", "WORLD_SIZE=2", "MASTER_ADDR=a", NULL), MEZZO_ERR_INVALID);
    expect_line("RANK is \"2\"");
    assert_int_equal(read_with(&w, "RANK=one", "WORLD_SIZE=2", NULL), MEZZO_ERR_INVALID);
    expect_line("RANK is \"one\"");
    assert_int_equal(read_with(&w, "RANK=1", "WORLD_SIZE=2", NULL), MEZZO_ERR_INVALID);
    expect_line("MASTER_ADDR");
    assert_int_equal(read_with(&w, "RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=a", NULL), MEZZO_ERR_INVALID);
    expect_line("MASTER_PORT");
    assert_int_equal(read_with(&w, "RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=29500", NULL),
                     MEZZO_ERR_INVALID);
    expect_line("MEZZO_JOB_SECRET");
    assert_int_equal(read_with(&w, "RANK=1", "WORLD_SIZE=2", "MEZZO_RENDEZVOUS=smoke", NULL), MEZZO_ERR_INVALID);
    expect_line("MEZZO_RENDEZVOUS is \"smoke\"");
}

TEST(test_each_rank_has_a_device) {
    char name[16];
    mz_world w = {.rank = 6, .size = 8, .local_rank = 2};
    assert_int_equal(mz_world_device(&w, "auto", 4, name, sizeof name), MEZZO_OK);
    assert_string_equal(name, "cuda:2");
    assert_int_equal(mz_world_device(&w, "cuda", 1, name, sizeof name), MEZZO_OK); // each sees its own alone
    assert_string_equal(name, "cuda");
    assert_int_equal(mz_world_device(&w, "cpu", 4, name, sizeof name), MEZZO_OK);
    assert_string_equal(name, "cpu");
    assert_int_equal(mz_world_device(&w, "cuda", 2, name, sizeof name), MEZZO_ERR_INVALID);
    expect_line("which has 2 GPUs");
    w.size = 1;
    assert_int_equal(mz_world_device(&w, "auto", 4, name, sizeof name), MEZZO_OK);
    assert_string_equal(name, "auto");
}
