// Injects faults on purpose, for tests, in programs that are linked with inject.c. A fault is a function
// of step and micro batch, so a step that is replayed has it again; a step whose batch was skipped, or that a rollback
// went past, does not.
//
//     KIND@STEP[.MICRO]:TARGET[#ELEMENT]
//
// KIND    nan, inf or huge (1e20); flip: one bit, in the first computation alone; flap: one bit, in the first and the
//         third computation. For flip and flap ELEMENT counts bits.
// STEP    and MICRO count from 1; ELEMENT is taken modulo the tensor's size
// TARGET  batch          a token out of range
//         loss           the loss, once it exists
//         call/N         the first output of the program's N-th call (modulo their number), once it is written
//         MODULE/OP      likewise, of the first call of that op in that module: h.0.attn/attention
//         grad/NAME      the gradient of a parameter, after the micro batch
//         param/NAME     a parameter (and copies rounded from it), before the step
//         moment/NAME    the optimizer's last moment of a parameter (AdamW's exp_avg_sq), before the step
//         disk/NAME      a parameter in the checkpoint of that step
//         update/NAME    a parameter after the update, before the next computation of the same one
//         state/NAME     likewise the optimizer's last moment of a parameter
//         sum/N          what this rank receives of the step's N-th collective (modulo 16); MICRO is the rank
//
// flip@0:call/0#SEED     flips a bit in every step, at a call, micro batch and bit that are drawn; likewise flap,
//                        update/NAME (of any parameter) and sum/0. The file that MEZZO_INJECT_ROWS names gets a line
//                        for each: step,op,module,changed. `changed` says whether a gradient, or in an update any
//                        number, differs between the first two computations of the step.
// drop@STEP.N:batch      leaves out the batches of N steps from that one on, as in a run that never saw them
// halve@STEP.N:batch     likewise, and halves the loss scale there, as a rollback does
// signal@STEP:batch#N    sends the process the signal N before that step
#ifndef MZ_INJECT_H
#define MZ_INJECT_H

#include "train/inject.h"

typedef struct mz_inject {
    enum {
        MZ_INJECT_NONE,
        MZ_INJECT_NAN,
        MZ_INJECT_INF,
        MZ_INJECT_HUGE,
        MZ_INJECT_FLIP,
        MZ_INJECT_FLAP,
        MZ_INJECT_DROP,
        MZ_INJECT_HALVE,
        MZ_INJECT_SIGNAL
    } kind;
    enum {
        MZ_AT_BATCH,
        MZ_AT_LOSS,
        MZ_AT_CALL,
        MZ_AT_OP,
        MZ_AT_GRAD,
        MZ_AT_PARAM,
        MZ_AT_MOMENT,
        MZ_AT_DISK,
        MZ_AT_UPDATE,
        MZ_AT_STATE,
        MZ_AT_SUM
    } target;
    int64_t step, micro, element;
    uint64_t data; // where the data of that step began in its first computation; later batches are not hit
    bool met;
    int64_t visits; // flap: number of computations of the step so far
    bool rains;     // STEP was 0: every step is hit
    uint64_t seed;
    int64_t exchanges;        // the collectives of a step without a difference; 0: not known
    int64_t looks[2];         // comparisons of gradients, and of what an update left, in this step
    uint32_t crc[2];          // checksums of the first comparison
    bool changed;             // the second comparison found a difference
    int64_t differed;         // mz_replay's count before this step
    int64_t changes, missed;  // steps that a flip has changed; how many of these the replay found equal
    char name[128];           // of the parameter or module
    char op[32], module[128]; // of the call that was hit; op may also be the one to hit
    size_t call;
    int64_t now_step, now_micro;
    uint64_t now_data;
} mz_inject;

// Sets the fault of the next run that this thread opens; NULL: none. The caller keeps the text.
void mz_inject_next(const char *what);
// Makes runs that this thread opens read steps late by 0 or 1, as on a device with a queue; -1: as the device does.
void mz_inject_lag(int lag);
// Returns the fault of the run that this thread closed last: `met` where it struck; op and module of the call, "" where
// it hit none.
const mz_inject *mz_inject_last(void);

#endif
