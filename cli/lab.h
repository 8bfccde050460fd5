// The lessons that have a file of their own.
#ifndef CLI_LAB_H
#define CLI_LAB_H

#include "cli.h"

int cli_lab_underflow(const cli_args *args); // lab_underflow.c
int cli_lab_speed(const cli_args *args);     // lab_speed.c

#endif
