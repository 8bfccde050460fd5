// Runs a PMIx server for one job on one host: it gives each process its rank and lets the processes exchange their
// addresses.
#define _GNU_SOURCE
#include <pmix.h>
#include <pmix_server.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/link.h"
#include "dist/mpi/handlers.h"

static int told(pmix_status_t status, const char *what, char why[MZ_LINK_TEXT]) {
    if (status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED)
        return 0;
    snprintf(why, MZ_LINK_TEXT, "PMIx: %s: %s", what, PMIx_Error_string(status));
    return 1;
}

// --- queries to the server -----------------------------------------------------------------------------------------
static pmix_status_t connected(const pmix_proc_t *proc, void *object, pmix_op_cbfunc_t done, void *data) {
    (void)proc, (void)object, (void)done, (void)data;
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t aborted(const pmix_proc_t *proc, void *object, int status, const char message[],
                             pmix_proc_t procs[], size_t n, pmix_op_cbfunc_t done, void *data) {
    (void)proc, (void)object, (void)status, (void)message, (void)procs, (void)n, (void)done, (void)data;
    return PMIX_OPERATION_SUCCEEDED; // the process ends with a code, which the launcher sees
}

// Is called when all processes are here, so that the data they exchange is complete.
static pmix_status_t fence(const pmix_proc_t procs[], size_t n_procs, const pmix_info_t info[], size_t n_info,
                           char *bytes, size_t n, pmix_modex_cbfunc_t done, void *data) {
    (void)procs, (void)n_procs, (void)info, (void)n_info;
    if (done != NULL)
        done(PMIX_SUCCESS, bytes, n, data, free, bytes);
    return PMIX_SUCCESS;
}

static pmix_server_module_t module = {
    .client_connected = connected, .client_finalized = connected, .abort = aborted, .fence_nb = fence};

// --- the job -------------------------------------------------------------------------------------------------------
static char host[256];
static int started;

static int fill_rank(pmix_info_t *into, int rank) {
    const uint16_t local = (uint16_t)rank;
    const uint32_t node = 0, app = 0;
    const pmix_rank_t number = (pmix_rank_t)rank;
    pmix_data_array_t *array;
    PMIX_DATA_ARRAY_CREATE(array, 7, PMIX_INFO);
    if (array == NULL || array->array == NULL) {
        free(array);
        return 1;
    }
    pmix_info_t *i = array->array;
    PMIX_INFO_LOAD(&i[0], PMIX_RANK, &number, PMIX_PROC_RANK);
    PMIX_INFO_LOAD(&i[1], PMIX_GLOBAL_RANK, &number, PMIX_PROC_RANK);
    PMIX_INFO_LOAD(&i[2], PMIX_LOCAL_RANK, &local, PMIX_UINT16);
    PMIX_INFO_LOAD(&i[3], PMIX_NODE_RANK, &local, PMIX_UINT16);
    PMIX_INFO_LOAD(&i[4], PMIX_NODEID, &node, PMIX_UINT32);
    PMIX_INFO_LOAD(&i[5], PMIX_APPNUM, &app, PMIX_UINT32);
    PMIX_INFO_LOAD(&i[6], PMIX_HOSTNAME, host, PMIX_STRING);
    (void)strncpy(into->key, PMIX_PROC_DATA, PMIX_MAX_KEYLEN);
    into->value.type = PMIX_DATA_ARRAY;
    into->value.data.darray = array;
    return 0;
}

static int no_memory(char why[MZ_LINK_TEXT]) {
    snprintf(why, MZ_LINK_TEXT, "out of memory for what the ranks are told");
    return 1;
}

static int describe(const char *name, int size, char *peers, char why[MZ_LINK_TEXT]) {
    char *nodes = NULL, *ranks = NULL;
    const uint32_t n = (uint32_t)size, one = 1;
    const size_t facts = 11, all = facts + (size_t)size;
    pmix_info_t *i;
    pmix_nspace_t space;
    if (told(PMIx_generate_regex(host, &nodes), "nodes", why) || told(PMIx_generate_ppn(peers, &ranks), "ranks", why))
        return 1;
    PMIX_INFO_CREATE(i, all);
    if (i == NULL) {
        free(nodes);
        free(ranks);
        return no_memory(why);
    }
    PMIX_INFO_LOAD(&i[0], PMIX_UNIV_SIZE, &n, PMIX_UINT32);
    PMIX_INFO_LOAD(&i[1], PMIX_JOB_SIZE, &n, PMIX_UINT32);
    PMIX_INFO_LOAD(&i[2], PMIX_APP_SIZE, &n, PMIX_UINT32);
    PMIX_INFO_LOAD(&i[3], PMIX_LOCAL_SIZE, &n, PMIX_UINT32);
    PMIX_INFO_LOAD(&i[4], PMIX_NODE_SIZE, &n, PMIX_UINT32);
    PMIX_INFO_LOAD(&i[5], PMIX_MAX_PROCS, &n, PMIX_UINT32);
    PMIX_INFO_LOAD(&i[6], PMIX_NUM_NODES, &one, PMIX_UINT32);
    PMIX_INFO_LOAD(&i[7], PMIX_NODE_MAP, nodes, PMIX_REGEX);
    PMIX_INFO_LOAD(&i[8], PMIX_PROC_MAP, ranks, PMIX_REGEX);
    PMIX_INFO_LOAD(&i[9], PMIX_LOCAL_PEERS, peers, PMIX_STRING);
    PMIX_INFO_LOAD(&i[10], PMIX_JOBID, name, PMIX_STRING);
    int bad = 0;
    for (int r = 0; r < size && !bad; r++)
        bad = fill_rank(&i[facts + (size_t)r], r);
    PMIX_LOAD_NSPACE(space, name);
    bad = bad || told(PMIx_server_register_nspace(space, size, i, all, NULL, NULL), "the job", why);
    PMIX_INFO_FREE(i, all);
    free(nodes);
    free(ranks);
    return bad;
}

static int pmix_open(const char *name, int size, char why[MZ_LINK_TEXT]) {
    size_t room = (size_t)size * 6 + 1, at = 0;
    char *peers = calloc(room, 1);
    pmix_info_t *info;
    if (peers == NULL)
        return no_memory(why);
    for (int r = 0; r < size; r++)
        at += (size_t)snprintf(peers + at, room - at, "%s%d", r > 0 ? "," : "", r);
    gethostname(host, sizeof host - 1);
    int bad = 0;
    if (!started) {
        PMIX_INFO_CREATE(info, 1);
        if (info == NULL) {
            free(peers);
            return no_memory(why);
        }
        PMIX_INFO_LOAD(&info[0], PMIX_SERVER_NSPACE, "mezzo-launch", PMIX_STRING);
        const mz_handlers ours = mz_handlers_now();
        bad = told(PMIx_server_init(&module, info, 1), "no server", why);
        mz_handlers_restore(&ours);
        PMIX_INFO_FREE(info, 1);
        started = !bad;
    }
    bad = bad || describe(name, size, peers, why);
    free(peers);
    return bad;
}

static int pmix_variables(const char *name, int rank, char ***out, char why[MZ_LINK_TEXT]) {
    pmix_proc_t proc;
    PMIX_LOAD_PROCID(&proc, name, (pmix_rank_t)rank);
    *out = NULL;
    return told(PMIx_server_register_client(&proc, getuid(), getgid(), NULL, NULL, NULL), "a rank", why) ||
           told(PMIx_server_setup_fork(&proc, out), "its variables", why);
}

static void pmix_close(const char *name) {
    pmix_nspace_t space;
    PMIX_LOAD_NSPACE(space, name);
    PMIx_server_deregister_nspace(space, NULL, NULL);
}

__attribute__((visibility("default"))) const mz_launch_link mz_launch_pmix = {
    .abi = MZ_LINK_ABI, .open = pmix_open, .variables = pmix_variables, .close = pmix_close};
